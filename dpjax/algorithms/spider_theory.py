"""Theory of Stochastic Spider: how it leaves saddles, its target for n, noise and thresholds."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from scipy import special

from dpjax import _validate
from dpjax._typing import Array, Params, pytree_dataclass
from dpjax._wide import at_least_float32
from dpjax.accounting import gaussian_multiplier
from dpjax.algorithms import base
from dpjax.algorithms.certificate import CLIP_SLACK, NoiseBounds
from dpjax.mechanisms import derive, prefix_noise
from dpjax.objectives import Objective
from dpjax.oracles import EstimateQuery, ScoreQuery, single_passes

MAX_STEPS = 4096
KEPT = 0.1
_HORIZON = 512
_BATCHES = 8
_PATIENCE = 4
# Hessians of more parameters than this are not formed by default.
_LARGEST = 512
_CANDIDATES = 8


@pytree_dataclass
class EscapeRule:
    """How Spider leaves saddles, updated once a step: a pytree. This one never pushes.

    Privacy: post-processing; a rule sees released values and public coins alone.
    """

    forgets_drift: ClassVar[bool] = False
    """Whether a push makes the drift 0, so that no fresh gradient interrupts the way out."""

    def init(self, params: Params) -> Any:
        """Returns the first state, at the starting point."""
        return ()

    def update(
        self, key: Array, gradient: Params, state: Any, params: Params
    ) -> tuple[Params, Array, Any]:
        """Returns a push that is added to the gradient, whether there is one, and the next state.

        ``gradient`` is the estimate at ``params``, regularizer included; ``key`` is for public
        coins, which hide nothing.
        """
        return jax.tree.map(jnp.zeros_like, gradient), jnp.array(False), state

    def ended(self, state: Any) -> Array:
        """Returns whether the run is over, before the records are."""
        return jnp.array(False)

    def output(self, state: Any, params: Params) -> Params:
        """Returns the output of a run without scores, whose last iterate is ``params``."""
        return params


class KicksState(NamedTuple):
    """The state of ``Kicks``; all of it released."""

    frozen: Array
    """Steps until another kick is allowed."""
    gradient_norm: Array
    """Norm of the last step's direction before any kick; infinite before the first."""


@pytree_dataclass
class Kicks(EscapeRule):
    """A kick where the last gradient was small, and then none for ``frozen_steps`` steps.

    In the paper's notation ``kick`` is zeta, ``kick_threshold`` gamma log^3 and ``frozen_steps``
    Gamma.
    """

    kick: Array | float
    kick_threshold: Array | float
    frozen_steps: Array | int

    forgets_drift = True

    def init(self, params: Params) -> KicksState:
        # The state must have the dtype of the norm that replaces it, as in any JAX loop.
        dtype = jnp.result_type(*jax.tree.leaves(at_least_float32(params)))
        # No kick at the first step, before which there is no gradient to judge by.
        return KicksState(jnp.ones((), jnp.int32), jnp.array(jnp.inf, dtype))

    def update(
        self, key: Array, gradient: Params, state: KicksState, params: Params
    ) -> tuple[Params, Array, KicksState]:
        kicked = (state.gradient_norm <= self.kick_threshold) & (state.frozen <= 0)
        frozen = jnp.where(kicked, self.frozen_steps, state.frozen - 1).astype(jnp.int32)
        push = gaussian_push(key, gradient, jnp.where(kicked, self.kick, 0.0))
        return push, kicked, KicksState(frozen, optax.tree.norm(gradient))


def gaussian_push(key: Array, like: Params, length: Array) -> Params:
    """Returns noise of expected squared norm ``length``^2, from public coins: it hides nothing."""
    leaves, tree = jax.tree.flatten(like)
    # One key for each leaf, as leaves of equal shapes would get equal noise from one.
    keys = jax.random.split(derive(key, "kick", 0), len(leaves))
    scale = length / sum(leaf.size for leaf in leaves) ** 0.5
    noise = [
        scale.astype(leaf.dtype) * jax.random.normal(key, leaf.shape, leaf.dtype)
        for key, leaf in zip(keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(tree, noise)


BatchRule = Callable[[Any, Array], Any]
"""From the released state and the default b_t to b_t: a pytree that is called."""


@pytree_dataclass
class LemmaBatches:
    """Lemma 3.8's b_t, of which the default is one term; ``rate`` is kappa M / alpha^2."""

    rate: Array | float

    def __call__(self, state: Any, needed: Array) -> Array:
        move = jax.tree.map(jnp.subtract, *map(at_least_float32, (state.params, state.previous)))
        return jnp.maximum(needed, self.rate * optax.tree.norm(move))


def batch_rule(given: Any, rate: float) -> Any:
    """Returns the ``difference_size`` of a configuration, or raises for what is none."""
    if callable(given):  # a function is no pytree, but part of the structure of one
        return given if dataclasses.is_dataclass(given) else jax.tree_util.Partial(given)
    if given == "lemma_3.8":
        return LemmaBatches(base.positive_leaf("kappa M / alpha^2", rate))
    return _validate.optional_count("difference_size", given)


def records_by(rule: BatchRule, state: Any, needed: Array, most: Array) -> Array:
    """Returns a rule's b_t, int32 (): 1 at least, and ``most`` where it is more or no number."""
    size = jnp.asarray(rule(state, needed))
    if size.shape:
        raise ValueError(f"difference_size must return one number, got shape {size.shape}.")
    return jnp.where(size < most, jnp.maximum(jnp.ceil(size), 1), most).astype(jnp.int32)


class Scale(NamedTuple):
    """The paper's constants of a problem, and the size of the noise on its estimates."""

    lipschitz: float
    """G, to which gradients are clipped."""
    smoothness: float
    """M."""
    initial_gap: float
    """B, bound on F(x_0) - min F."""
    noise: float
    """Norm of the noise on an estimate, for increments that a record moves by 1."""
    hessian_clip_norm: float = math.inf
    hessian_lipschitz: float = math.inf

    def batch(self, alpha: float) -> float:
        """Returns b at which noise and sampling each move a gradient by alpha (lemma 3.8)."""
        g = self.lipschitz
        return g * self.noise / alpha + (g / alpha) ** 2

    def drift(self, alpha: float) -> float:
        """Returns kappa (theorem 3.11)."""
        product = self.initial_gap * self.lipschitz * self.smoothness
        return max(alpha * self.noise, product ** (1 / 3))

    def records(self, alpha: float) -> float:
        """Returns how many records are read until an alpha-SOSP is met (lemma 3.9)."""
        steepness = self.initial_gap * self.smoothness
        kappa = self.drift(alpha)
        fresh = self.batch(alpha) * steepness / (kappa * alpha)
        return fresh + steepness * (self.noise / alpha**2 + kappa / alpha**3 + 1 / alpha**2)


def reachable(scale: Scale, data_size: int) -> float:
    """Returns the least alpha whose ``records`` are at most ``data_size``.

    Reference: Liu and Talwar (2024), lemmas 3.8 to 3.10, with constants and logarithms taken as 1.
    """
    low, high = 1e-12, 1e12  # bisected in the logarithm
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if scale.records(middle) <= data_size else (middle, high)
    return high


def target(scale: Scale, data_size: int, alpha: float | None) -> float:
    """Returns alpha, by default the least that the records reach; raises for one below."""
    least = reachable(scale, data_size)
    if alpha is None:
        return least
    if _validate.normal("alpha", alpha) < least:
        raise ValueError(
            f"alpha={alpha:g} is out of reach with {data_size:,} records: at this budget they "
            f"suffice for alpha={least:.3g} (up to constants that the theory does not give); "
            "choose that, raise epsilon, or collect more."
        )
    return float(alpha)


def queries(
    problem: base.Problem,
    scale: Scale,
    draws: tuple[int | None, str | None],
    choice: tuple[int | None, float],
    batch_size: int | None,
    alpha: float | None,
) -> tuple[EstimateQuery, ScoreQuery | None, Scale]:
    """Returns both queries, calibrated, and the size of their noise.

    ``draws`` is the horizon of the noise and its kind, ``choice`` the number of candidates and the
    fraction of the records that is kept for their scores.
    """
    n, relation = problem.data_size, problem.budget.relation
    candidates = _candidates(choice[0], problem.dimension)
    train, last = single_passes(n, _kept(choice[1], candidates, n))
    horizon = _HORIZON if draws[0] is None else draws[0]
    noise = prefix_noise(horizon, problem.dimension, draws[1])
    moved = train.sum_scale(1.0, relation)  # raises where a record may be absent
    numbers = problem.dimension * n + 2 * candidates  # an increment for each record, and scores
    # One Gaussian mechanism to each record, which enters one answer at most.
    multiplier = gaussian_multiplier(problem.budget, 1, problem.accountant, noise_draws=numbers)
    # The largest noise on any prefix sum of a segment.
    stddev = multiplier * noise.sensitivity * float(noise.stddevs().max())
    scale = scale._replace(noise=moved * stddev * math.sqrt(problem.dimension))
    estimate = EstimateQuery(
        setting=problem.setting.drawn_by(train),
        noise_multiplier=multiplier,
        clip_norm=scale.lipschitz,
        smoothness=scale.smoothness,
        batch_size=_batch(scale, int(train.expected), batch_size, alpha),
        correlation=noise,
    )
    if last is None:
        return estimate, None, scale
    score = ScoreQuery(
        setting=problem.setting.drawn_by(last),
        noise_multiplier=multiplier,
        clip_norm=scale.lipschitz,
        hessian_clip_norm=scale.hessian_clip_norm,
        dimension=problem.dimension,
        candidates=candidates,
    )
    return estimate, score, scale


def scale(
    objective: Objective,
    clip_norm: float | None,
    hessian_clip_norm: float | None,
    smoothness: float | None,
    hessian_lipschitz: float | None,
    initial_gap: float | None,
) -> Scale:
    """Returns the constants, by default the objective's and without noise; raises if one lacks."""
    clip, _ = base.clip_norms(objective, clip_norm, 1.0)
    known, defaults = objective.constants, objective.defaults
    # Where the loss has no constants, the usual size of a Hessian.
    usual = None if defaults is None else defaults.hessian_clip_norm
    # Clipping is by the data term's M; tolerances are by the objective's rho.
    m, rho = (known.smoothness, objective.hessian_lipschitz) if known else (usual, usual)
    smoothness = base.required("smoothness", smoothness, m, objective)
    rho = base.required("hessian_lipschitz", hessian_lipschitz, rho, objective)
    hessian_clip = smoothness if hessian_clip_norm is None else hessian_clip_norm
    return Scale(
        clip,
        base.positive_leaf("smoothness", smoothness),
        hessian_clip_norm=base.positive_leaf("hessian_clip_norm", hessian_clip),
        hessian_lipschitz=_validate.normal("hessian_lipschitz", rho),
        initial_gap=base.initial_gap(objective, initial_gap),
        noise=0.0,
    )


def _candidates(given: int | None, dimension: int) -> int:
    if given is None:
        has_float64 = jax.default_backend() != "tpu"  # for eigenvalues of exact sums
        return _CANDIDATES if dimension <= _LARGEST and has_float64 else 0
    return 0 if given == 0 else _validate.positive_int("candidates", given)


def score_bounds(score: ScoreQuery, beta: float) -> NoiseBounds:
    """Returns bounds on the error of all noisy scores, noise and rounding."""
    # All 2 K numbers must hold at once: which are certified is chosen by looking at them.
    quantile = -float(special.ndtri(beta / (2 * score.candidates)))
    (_, gradient), (_, curvature) = score.components
    clip, hessian_clip = float(score.clip_norm), float(score.hessian_clip_norm)
    return NoiseBounds(
        quantile * gradient + CLIP_SLACK * clip, quantile * curvature + CLIP_SLACK * hessian_clip
    )


def _kept(fraction: float, candidates: int, n: int) -> int:
    if candidates == 0:
        return 0
    count = max(1, round(_validate.open_unit("kept", fraction) * n))
    if count >= n:
        raise ValueError(
            f"kept={fraction:g} of data_size={n} leaves no record to train on; lower it."
        )
    return count


def _batch(scale: Scale, records: int, batch: int | None, alpha: float | None) -> int:
    if batch is None:
        batch = max(1, records // _BATCHES)
        if alpha is not None:
            batch = min(math.ceil(scale.batch(_validate.normal("alpha", alpha))), records)
    batch = _validate.positive_int("batch_size", batch)
    if batch > records:
        raise ValueError(
            f"the first batch takes batch_size={batch:,} records, and there are {records:,} to "
            "train on; lower it, or hold out fewer for the selection."
        )
    return batch


def step_size(objective: Objective, scale: Scale, given: float | None) -> float:
    """Returns eta, by default of the smoothness of the objective with its regularizer."""
    # Clipping bounds the data term's smoothness alone: the objective's has the regularizer's too.
    usual = None if objective.defaults is None else objective.defaults.step_size
    usual = usual or 1 / (objective.smoothness or scale.smoothness)
    return base.positive_leaf("step_size", usual if given is None else given)


def drift_threshold(scale: Scale, alpha: float, given: float | None) -> float:
    """Returns kappa, by default half of the theorem's; it may be infinite."""
    drift = scale.drift(alpha) / 2 if given is None else given
    if drift == math.inf:
        return drift
    if not drift > 0:
        raise ValueError(
            f"drift_threshold must be above 0, got {drift!r}: at 0 every step recomputes the "
            "gradient; for that use dp_gradient_descent, or batch_size with drift_threshold=1e-6."
        )
    return base.positive_leaf("drift_threshold", drift)


def kicks(
    scale: Scale,
    estimate: EstimateQuery,
    curvature: float,
    kick: float | None,
    threshold: float | None,
    frozen: int | None,
) -> Kicks:
    """Returns the rule that leaves saddles; ``curvature`` is sqrt(rho alpha)."""
    batch = float(estimate.batch_size)
    noise = scale.lipschitz * scale.noise / batch
    error = noise + scale.lipschitz / math.sqrt(batch)  # by noise, and by sampling
    if frozen is None:
        # A curvature of -sqrt(rho alpha) takes M / sqrt(rho alpha) steps of 1 / M to show.
        frozen = math.ceil(min(_PATIENCE * scale.smoothness / curvature, MAX_STEPS))
    kick = _validate.non_negative("kick", noise if kick is None else kick)
    threshold = 2 * error if threshold is None else threshold
    threshold = base.positive_leaf("kick_threshold", threshold)
    return Kicks(base.to_leaf(kick), threshold, _validate.positive_int("frozen_steps", frozen))
