"""Noise on the updates of an optax chain: with a key in the state and a matching event."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax import _validate
from dpjax._typing import Array, PyTree, Relation
from dpjax.accounting import Event
from dpjax.accounting.noise_draws import NUMBERS
from dpjax.mechanisms import as_key, derive, fold, prefix_noise
from dpjax.mechanisms.keys import claim
from dpjax.mechanisms.noise import Ball, Noise, Prefix
from dpjax.sampling import FullBatch, Sampler, SinglePass
from dpjax.transforms.checks import check_callers, check_updates

# What to do about a key that a training or another chain has claimed.
_ADVICE = (
    "make a chain with a new dpjax.random_key() for every training, and call its init once. For "
    "research that is to be repeated pass jax.random.key(INTEGER)."
)


class NoiseState(NamedTuple):
    """What the next step needs.

    Privacy: secret. Whoever holds the key can subtract the noise of every step; keep the state of
      the optimizer out of what is published.
    """

    key: Array
    count: Array
    """Number of updates so far, int32."""


class NoiseTransformation(optax.GradientTransformationExtraArgs):
    """An optax transformation that adds noise, and can say what its steps release.

    It unpacks and chains like any other; ``optax.chain`` forgets ``event``, so keep this object.
    Its ``init`` refuses wrappers of optax that break it, as the table of docs/optax.md lists them.
    It stands right after the updates of bounded sensitivity, before anything that has a state or a
    scale. The noise of a step depends on the key and the number of the step alone: give each
    training a key used for nothing else. ``init`` claims a key of ``random_key``, so that a second
    ``init`` raises; under ``jit`` it cannot.
    """

    event: Callable[..., Event]
    """``event(steps, ...) -> Event``, see the factory."""

    def __new__(
        cls, init: Callable[..., Any], update: Callable[..., Any], event: Callable[..., Event]
    ) -> "NoiseTransformation":
        """Makes the pair that optax reads, with the event beside it."""
        check_callers(making=True)
        pair = super().__new__(cls, init, update)
        # ``optax.chain`` drops this attribute: who needs the event keeps the object.
        pair.event = event
        return pair


def first_state(key: Array, params: PyTree) -> NoiseState:
    """Returns the state before the first update; the caller's key stays usable.

    Under ``jit`` and ``eval_shape`` no key is claimed or refused: it cannot be seen whether noise
    is drawn.
    """
    check_callers()
    check_updates((), params, {})
    key = jax.random.clone(key)  # traced where this is, even if the caller's is not
    claim(key, _ADVICE)
    return NoiseState(key, jnp.zeros((), jnp.int32))


def leaf_keys(state: NoiseState, purpose: str) -> Callable[[int], Array]:
    """Returns the key of each leaf at one update, for noise that is independent of all other."""
    step_key = derive(state.key, purpose, state.count)
    # One key for each leaf: leaves of one shape would get the same noise.
    return lambda i: fold(step_key, jnp.uint32([i]))


def add_noise(noise: Noise, key_of: Callable[[int], Array], updates: PyTree, stddev: Any) -> PyTree:
    """Returns ``updates`` with noise; all noise of chains passes here.

    ``key_of`` gives each leaf a key that is used for nothing else; ``stddev`` is public.

    Privacy: what it means for epsilon says the event of the chain.
    """
    return noise.add_tree(key_of, updates, stddev)


def adding(
    key: Array, add: Callable[[NoiseState, PyTree], PyTree], event: Callable[..., Event]
) -> NoiseTransformation:
    """Returns the transformation whose noise depends on a key and the number of the step alone.

    ``add(state, updates)`` returns noisy updates. A ``key`` that is no threefry key is refused.
    """
    init = functools.partial(first_state, as_key(key))

    def update(
        updates: PyTree, state: NoiseState, params: PyTree | None = None, **extra: Any
    ) -> tuple[PyTree, NoiseState]:
        check_updates(updates, params, extra)
        # The key stays and the count moves, so that each step has noise of its own.
        return add(state, updates), NoiseState(state.key, state.count + 1)

    return NoiseTransformation(init, update, event)


def event_of(
    name: str, count: int, *, sampler: Sampler, relation: Relation, sensitivity: float, **own: Any
) -> Event:
    """Returns what ``count`` noisy updates release; all events of chains are built here.

    ``sensitivity`` is what the noise multiplier is relative to, in the units of ``components``;
    ``own`` is what else ``Sampler.released`` takes.
    """
    return Event((sampler.released(name, count, sensitivity=sensitivity, **own),), relation)


def add_ball_noise(radius: float, key: Array) -> NoiseTransformation:
    """Returns a transformation that adds noise uniform in a ball over all leaves of the updates.

    A baseline, as ``perturbed_gradient_descent`` is: at the same delta Gaussian noise is 10^4 times
    smaller.

    Args:
      radius: R, in the units of the updates that arrive.
      key: a key used for nothing else, shape (); required. See ``NoiseTransformation``.

    Returns:
      A ``NoiseTransformation``. ``event(steps, *, sensitivity, dimension, relation, sampler=None)``
      is what so many steps release: ``sensitivity`` is how far one record moves the update where it
      is drawn, ``dimension`` the number of its entries, ``sampler`` one of ``dpjax.sampling`` that
      drew the records of each step.

    Raises:
      ValueError: if the radius is not above 0 or ``key`` is no threefry key; by ``event`` where
        half of the sensitivity reaches the radius.

    Privacy: (0, delta) a step with delta = ``accounting.ball_delta(sensitivity, radius,
      dimension)``, at every epsilon the same. The caller answers for the sensitivity: updates must
      be sums of clipped contributions over a *public* divisor. The chain's output and what follows
      it are post-processing; its state holds the key and is secret.

    Reference: Tholeti et al. (2021), algorithm 1.

    >>> import dpjax
    >>> noise = add_ball_noise(2.0, dpjax.random_key())
    >>> optimizer = optax.chain(noise, optax.sgd(0.1))
    >>> state = optimizer.init(jnp.zeros(3))
    >>> updates, state = optimizer.update(jnp.ones(3), state)
    >>> bool(jnp.linalg.norm(-10 * updates - 1) <= 2.001)
    True
    >>> event = noise.event(10, sensitivity=0.01, dimension=3, relation="zero_out")
    >>> round(10 * event.releases[0].total_variation, 4)
    0.0375
    """
    radius = _validate.positive("radius", radius)

    def of_coordinate(dimension: int) -> float:
        # A coordinate of a uniform point in a ball of R^d has the variance R^2 / (d + 2).
        return radius / math.sqrt(dimension + 2)

    def add(state: NoiseState, updates: PyTree) -> PyTree:
        stddev = of_coordinate(sum(map(jnp.size, jax.tree.leaves(updates))))
        # One key for all leaves: the ball is in the space of all their entries.
        step_key = derive(state.key, "ball_noise", state.count)
        return add_noise(Ball(), lambda _: step_key, updates, stddev)

    def event(
        steps: int,
        *,
        sensitivity: float,
        dimension: int,
        relation: Relation,
        sampler: Sampler | None = None,
    ) -> Event:
        # Sampled or not: what counts is how far apart the centres are where the record is drawn.
        distance = _validate.positive("sensitivity", sensitivity)
        # Declared, as the event is asked for before any update is seen.
        stddev = of_coordinate(_validate.positive_int("dimension", dimension))
        return event_of(
            "updates",
            steps,
            sampler=FullBatch(1) if sampler is None else sampler,
            relation=relation,
            sensitivity=distance,
            noise_multiplier=stddev / distance,
            components=(("updates", stddev),),
            mechanism="ball",
            dimension=dimension,
        )

    return adding(key, add, event)


def add_tree_noise(
    stddev: float, key: Array, *, horizon: int, kind: str = "square_root"
) -> NoiseTransformation:
    """Returns a transformation that adds noise which is small on *sums* of updates.

    For a chain whose parameters are the sum of its updates, such as SGD in one pass over the
    records: what has been added by step t is the noise of one prefix sum, not of t draws.

    Args:
      stddev: of the independent draws that the noise is made of, in the units of the updates.
      key: a key used for nothing else, shape (); required. See ``NoiseTransformation``.
      horizon: K, the most updates.
      kind: ``"square_root"``, which makes 32 to 44 draws for an entry at each update, ``"tree"``
        for large models, which makes log2 K, or ``"independent"``; see ``mechanisms.PrefixNoise``.

    Returns:
      A ``NoiseTransformation``. Past the horizon it raises, and under ``jit`` updates are NaN; a
      draw is never used again. ``event(steps, *, sensitivity, relation, data_size,
      dimension=2**24)`` is what so many steps release: ``sensitivity`` is how far one record moves
      the one update it enters, ``dimension`` how many numbers an update has at most.

    Raises:
      ValueError: for a number out of range or a bad key; by ``event`` for more steps than the
        horizon, or under ``add_or_remove_one``.

    Privacy: one Gaussian mechanism to each record that enters *one update at most*, in an order
      that no record decides. A record that is used in several updates has no accounting here.

    Reference: Kairouz et al. (2021), algorithm 1, for the tree; Denisov et al. (2022) for other
      factorisations.

    >>> import dpjax
    >>> noise = add_tree_noise(0.1, dpjax.random_key(), horizon=16)
    >>> optimizer = optax.chain(noise, optax.sgd(0.1))
    >>> state = optimizer.init(jnp.zeros(3))
    >>> updates, state = optimizer.update(jnp.ones(3), state)
    >>> event = noise.event(16, sensitivity=0.01, relation="zero_out", data_size=1_600)
    >>> round(event.gaussian_mu, 6)
    0.1
    """
    stddev = _validate.positive("stddev", stddev)
    noise = prefix_noise(horizon, 1, kind)

    def add(state: NoiseState, updates: PyTree) -> PyTree:
        law = Prefix(of=noise, leaf=state.count)
        # All increments share one key for each leaf.
        return add_noise(law, lambda i: derive(state.key, "tree_noise", i), updates, stddev)

    def event(
        steps: int,
        *,
        sensitivity: float,
        relation: Relation,
        data_size: int,
        dimension: int = NUMBERS,
    ) -> Event:
        if _validate.positive_int("steps", steps) > noise.horizon:
            raise ValueError(f"steps={steps} are past the horizon of {noise.horizon} updates.")
        # One update enters several draws, in all by the factorisation's column norm.
        on_mean = _validate.positive("sensitivity", sensitivity) * noise.sensitivity
        n = _validate.positive_int("data_size", data_size)
        return event_of(
            "updates",
            # One release for all steps, as a record enters one update only.
            1,
            sampler=SinglePass(n, 0, n),
            relation=relation,
            sensitivity=on_mean,
            noise_multiplier=stddev / on_mean,
            components=(("updates", stddev),),
            noise_draws=steps * dimension,
        )

    return adding(key, add, event)
