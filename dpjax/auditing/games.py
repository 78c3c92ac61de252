"""Distinguishing games: full runs on D and on D', scored by an attacker; NOT PRIVATE.

Every game takes the attacked mechanism as an argument, so that a test can pass a broken one.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._typing import Array, PyTree
from dpjax.accounting import BallRelease, Event, Release, ball_radius
from dpjax.algorithms import Algorithm
from dpjax.auditing import canaries
from dpjax.auditing.canaries import NeighbouringPair
from dpjax.auditing.claims import Claim, SampledGaussianClaim
from dpjax.auditing.recorder import Answers, Recorder, SegmentScores, score
from dpjax.driver import solve
from dpjax.mechanisms import add_ball, add_gaussian, add_symmetric_gaussian, as_key, derive
from dpjax.mechanisms.keys import fold
from dpjax.objectives import Objective
from dpjax.oracles import HessianQuery, Query, SelectionQuery, Setting, bind
from dpjax.sampling import Sampler

# Reads no record: its query serves for the noise's scale and the event alone.
_CONSTANT = Objective(lambda params, example: 0.0 * params.sum(), name="none")


@dataclasses.dataclass(frozen=True)
class Game:
    """An attack on one mechanism."""

    claim: Claim
    pair: NeighbouringPair
    run: Callable[[Array, PyTree], Array | SegmentScores]
    """``run(key, data) -> score`` of one run; larger scores indicate the canary."""
    batch: int = 8192
    """Number of runs at once, which bounds the memory."""
    queries: tuple[Query, ...] = ()
    """That a run may ask, if it returns a ``SegmentScores``."""


def play(
    game: Game,
    key: Array,
    runs: int,
    progress: Callable[[int], None] | None = None,
    note: Callable[[Answers], None] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the scores of the attack, half of the runs on D and half on D'.

    Args:
      game: the attack.
      key: root key, shape ().
      runs: total number of runs.
      progress: called with the number of runs done since the last call.
      note: called with the most answers of a run that were scored since the last call.

    Returns:
      Two float32 arrays of shape (runs // 2,).

    Raises:
      ValueError: if ``key`` is not a key.

    >>> on_d, on_other = play(gaussian(), jax.random.key(0), 2_000)
    >>> bool(0.8 < on_other.mean() - on_d.mean() < 1.2)
    True
    """
    key = as_key(key)
    count = runs // 2
    batch = min(game.batch, max(count, 1))
    run_batch = program(game)
    scores = []
    for side, data in enumerate((game.pair.without, game.pair.canary)):
        pieces = []
        for start in range(0, count, batch):
            # Another key for each side and batch, so that all runs are independent.
            batch_key = jax.random.fold_in(jax.random.fold_in(key, side), start)
            result = run_batch(_run_keys(batch_key, batch), data)
            ratios, answers = result if isinstance(result, SegmentScores) else (result, {})
            # The last batch is full too, for the same program; what is too much is cut off.
            pieces.append(np.asarray(ratios)[: count - start])
            if note is not None:
                note(jax.tree.map(lambda each: int(np.max(each)), answers))
            if progress is not None:
                progress(pieces[-1].size)
        scores.append(np.concatenate(pieces) if pieces else np.zeros(0, np.float32))
    return scores[0], scores[1]


def program(game: Game) -> Callable[[Array, PyTree], Array | SegmentScores]:
    """Returns ``program(keys, data) -> scores``: one run for each key, compiled together."""
    # The keys of the runs are derived outside: XLA repeats a hash that another hash reads once for
    # each of its four words.
    return jax.jit(jax.vmap(game.run, (0, None)))


@functools.partial(jax.jit, static_argnums=1)
def _run_keys(key: Array, runs: int) -> Array:
    return jax.vmap(lambda run: fold(key, run[None]))(jnp.arange(runs, dtype=jnp.uint32))


def gaussian(mechanism: Callable = add_gaussian, noise_multiplier: float = 1.0) -> Game:
    """Returns the attack on one Gaussian release of a tree, of sensitivity 1.

    >>> round(gaussian().claim.epsilon(1e-5), 3)
    4.377
    """
    # Of norm 1 over both leaves.
    canary = {"a": jnp.full(2, 0.5), "b": jnp.sqrt(jnp.full((), 0.5))}
    release = Release("gaussian", 1, noise_multiplier=noise_multiplier)

    def run(key: Array, tree: PyTree) -> Array:
        answer = mechanism(key, tree, noise_multiplier)
        # The projection on the canary is sufficient for two Gaussians that differ by it.
        return sum(jnp.vdot(answer[name], canary[name]) for name in canary)  # pyright: ignore

    pair = NeighbouringPair(jax.tree.map(jnp.zeros_like, canary), canary, "zero_out")
    return Game(Claim(Event((release,), "zero_out")), pair, run, 2**15)


def sampled_gaussian(
    mechanism: Callable = add_gaussian,
    noise_multiplier: float = 0.5,
    sampling_probability: float = 0.1,
    count: int = 1,
) -> Game:
    """Returns the attack on Poisson samples: DP-SGD along the canary's gradient alone.

    If other records contribute a known constant, this reduction loses nothing: the answer along
    the gradient is N(0, s^2) on D, and on D' N(1, s^2) in a step whose batch holds the canary, with
    s the noise multiplier.

    >>> round(sampled_gaussian().claim.epsilon(1e-5), 3)
    6.576
    """
    claim = SampledGaussianClaim(noise_multiplier, sampling_probability, count)

    def run(key: Array, canary: Array) -> Array:
        drawn = jax.random.bernoulli(derive(key, "sample", 0), sampling_probability, (count,))
        answer = mechanism(derive(key, "noise", 0), drawn * canary, noise_multiplier)
        # log(1 - q + q e^l) for l the log-likelihood ratio of a step that draws the canary.
        gain = jnp.expm1((2 * answer - 1) / (2 * noise_multiplier**2))
        return jnp.sum(jnp.log1p(sampling_probability * gain))

    pair = NeighbouringPair(jnp.zeros(()), jnp.ones(()), claim.relation)
    return Game(claim, pair, run, 2**15 if count == 1 else 2**13)


def symmetric(
    kind: str,
    mechanism: Callable = add_symmetric_gaussian,
    noise_multiplier: float = 1.5,
    dimension: int = 10,
) -> Game:
    """Returns the attack on one symmetric matrix of Frobenius sensitivity 1.

    ``kind`` is that of the canary, see ``canaries.matrix``; the noise multiplier the standard
    deviation of a diagonal entry.

    >>> round(symmetric("identity").claim.epsilon(1e-5), 3)
    2.753
    """
    canary = canaries.matrix(kind, dimension)
    query = HessianQuery(
        setting=Setting(_CONSTANT, 1, "zero_out"), noise_multiplier=noise_multiplier, clip_norm=1.0
    )

    def run(key: Array, exact: Array) -> Array:
        return jnp.vdot(mechanism(key, exact, query.stddev), canary)

    pair = NeighbouringPair(jnp.zeros_like(canary), canary, query.relation)
    return Game(Claim(query.event(1)), pair, run)


def ball(dimension: int, mechanism: Callable = add_ball, delta: float = 0.3) -> Game:
    """Returns the attack on one release with noise uniform in the unit ball.

    An answer farther from D's sum than the radius is certain to come from D'. The score is that
    distance, so that a ball that is too small is detected as well.

    ``delta`` fixes the canary's distance: epsilon is 0 at this delta, and infinite below it.

    >>> round(ball(10).claim.delta(), 9)
    0.3
    """
    # The ratio of radius to distance follows from delta; the radius is 1.
    distance = 1 / ball_radius(1.0, delta, dimension)
    # The standard deviation of a coordinate is R / sqrt(d + 2).
    multiplier = 1 / (distance * np.sqrt(dimension + 2))
    release = BallRelease("ball", 1, multiplier, distance, dimension=dimension)

    def run(key: Array, exact: Array) -> Array:
        return jnp.linalg.norm(mechanism(key, exact, 1.0))

    canary = jnp.full(dimension, distance / np.sqrt(dimension), jnp.float32)
    pair = NeighbouringPair(jnp.zeros_like(canary), canary, "zero_out")
    return Game(Claim(Event((release,), "zero_out")), pair, run, 2**15)


def single_answer(query: Query, pair: NeighbouringPair, dimension: int) -> Game:
    """Returns the attack on one answer of a query at w = 0, by the log-likelihood ratio.

    The claim is the query's event; the pair must have its relation.

    >>> from dpjax.oracles import GradientQuery, Setting
    >>> setting = Setting(canaries.LOSSES["bowl"], 2, "zero_out")
    >>> query = GradientQuery(setting=setting, noise_multiplier=1.0, clip_norm=1.0)
    >>> round(single_answer(query, canaries.records(), 3).claim.epsilon(1e-5), 3)
    4.377
    """
    return _answered(query, pair, jnp.zeros(dimension))


def single_selection(query: SelectionQuery, pair: NeighbouringPair, candidates: Array) -> Game:
    """Returns the attack on one selection, by the log-likelihood ratio of the chosen index.

    Candidates (K, p) are scored as at released gradients of 0; the pair has the query's relation.
    """
    # At gradient norms of 0 the selection is by curvature alone.
    public = {"gradient_norms": jnp.zeros(len(candidates)), "filled": len(candidates)}
    return _answered(query, pair, candidates, **public)


def _answered(query: Query, pair: NeighbouringPair, params: Array, **public: Any) -> Game:
    _same_relation(query.relation, pair)

    def run(key: Array, examples: PyTree) -> SegmentScores:
        answer = query.answer(key, bind(query, examples), params, **public)
        ratio, _ = score(query, query.initial_score(params), answer, params, pair, **public)
        return SegmentScores(ratio, {"answer": {query.name: 1}})

    return Game(Claim(query.event(1)), pair, run, 2**12, (query,))


def training(
    algorithm: Algorithm, pair: NeighbouringPair, train: Callable[..., Any] = solve
) -> Game:
    """Returns the attack on a full training, by an attacker who sees every noisy answer.

    ``train(algorithm, data, key=key)`` returns a ``Solution``, whose certificate is read; the claim
    is the algorithm's event, and the pair must have its relation.

    The score is the sum of the log-likelihood ratios of all answers, each given the earlier ones,
    at the parameters of its query, wherever it is asked. The attacker knows the order of a single
    pass. By Neyman and Pearson this is the optimal test.

    >>> import dpjax
    >>> algorithm = dpjax.dp_gradient_descent(
    ...     canaries.LOSSES["alternating"], dpjax.PrivacyBudget(4.0, 1e-5), data_size=2,
    ...     dimension=2, steps=4, step_size=1.0, clip_norm=1e-3, certify=None)
    >>> on_d, on_other = play(training(algorithm, canaries.records()), jax.random.key(0), 1_000)
    >>> bool(on_d.mean() < on_other.mean())
    True
    """
    _same_relation(algorithm.relation, pair)
    # A single pass reads by position, so that the null records must keep their places.
    samplers = [*filter(_is_sampler, jax.tree.leaves(algorithm, is_leaf=_is_sampler))]
    by_position = any(sampler.by_position for sampler in samplers)
    examples_of_pair = pair[:2] if by_position else canaries.without_nulls(pair)
    # Of records that are all alike, those of a draw with the canary, or with the one in its place.
    rows_of_draw = slice(samplers[0].subset_size if samplers else None)
    examples_of_pair = jax.tree.map(lambda rows: rows[rows_of_draw], examples_of_pair)

    def run(key: Array, examples: PyTree) -> SegmentScores:
        order = derive(key, "audited order", 0)
        known = jax.tree.map(
            lambda node: node.with_known_order(order) if _is_sampler(node) else node,
            algorithm,
            is_leaf=_is_sampler,
        )
        # The recorder puts its scores in the place of the certificate.
        return train(Recorder(known, *examples_of_pair), examples, key=key).certificate

    return Game(Claim(algorithm.event), pair, run, 2**10, algorithm.queries)


def _is_sampler(node: Any) -> bool:
    return isinstance(node, Sampler)


def _same_relation(relation: str, pair: NeighbouringPair) -> None:
    if relation != pair.relation:
        raise ValueError(
            f"the mechanism protects {relation!r} neighbours, the data sets are "
            f"{pair.relation!r} neighbours; build both with the same relation."
        )
