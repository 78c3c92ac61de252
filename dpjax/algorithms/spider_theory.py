"""Theory of Stochastic Spider: the smallest target for n, and noise, batches and thresholds."""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
from scipy import stats

from dpjax import _validate
from dpjax.accounting import gaussian_multiplier
from dpjax.algorithms import base
from dpjax.algorithms.certificate import CLIP_SLACK, NoiseBounds
from dpjax.mechanisms import PrefixNoise, prefix_noise
from dpjax.objectives import Objective
from dpjax.oracles import LEAST, EstimateQuery, ScoreQuery, single_passes

LONGEST = 4096
KEPT = 0.1
_HORIZON = 512
_BATCHES = 8
# Hessians of more parameters than this are not formed by default.
_LARGEST = 512
_CANDIDATES = 8


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a Spider is made of, beside the problem; None asks for the default.

    Its fields are the arguments of ``stochastic_spider`` and its variants, and three that tell
    these apart: ``patience`` is the default of Gamma in units of M / sqrt(rho alpha), ``fixed``
    whether differences take a fixed batch, by default b / 8, and ``squared_drift`` whether squared
    lengths are added up.
    """

    alpha: float | None = None
    batch_size: int | None = None
    difference_size: int | None = None
    drift_threshold: float | None = None
    step_size: float | None = None
    horizon: int | None = None
    noise: str | None = None
    kick: float | None = None
    kick_threshold: float | None = None
    frozen_steps: int | None = None
    steps: int | None = None
    patience: int = 4
    fixed: bool = False
    squared_drift: bool = False
    candidates: int | None = None
    kept: float = KEPT
    beta: float = 0.05
    clip_norm: float | None = None
    hessian_clip_norm: float | None = None
    smoothness: float | None = None
    hessian_lipschitz: float | None = None
    initial_gap: float | None = None


class Constants(NamedTuple):
    """Clip norms and constants of the problem, given or the objective's."""

    clip_norm: float
    smoothness: float
    hessian_clip_norm: float
    hessian_lipschitz: float
    initial_gap: float


class Scale(NamedTuple):
    """The constants of a problem, and how loud the noise is that hides one record of it.

    Args:
      lipschitz: G.
      smoothness: M.
      initial_gap: B, bound on F(x_0) - min F.
      noise: norm of the noise on an estimate, for increments that a record moves by 1.
    """

    lipschitz: float
    smoothness: float
    initial_gap: float
    noise: float

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

    The paper's bounds hold up to constants and logarithms; here they are taken as 1.

    Reference: Liu and Talwar (2024), lemmas 3.8 to 3.10.

    >>> scale = Scale(1.0, 1.0, 1.0, 20.0)
    >>> reachable(scale, 10**4) > reachable(scale, 10**6)
    True
    """
    low, high = 1e-12, 1e12
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if scale.records(middle) <= data_size else (middle, high)
    return high


def target(scale: Scale, data_size: int, alpha: float | None) -> float:
    """Returns alpha, by default the least that the records reach.

    Raises:
      ValueError: for a target below that, saying which can be reached.
    """
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


def configure(kind: Any, name: str, problem: base.Problem, settings: Settings) -> Any:
    """Returns the configuration that ``stochastic_spider`` and its variants share.

    ``kind`` is ``Spider`` or a subclass of it, whose own fields have defaults.
    """
    objective = problem.objective
    base.check_smooth(objective, name)
    _check_relation(problem, name)
    constants = _constants(objective, settings)
    estimate, score, scale, alpha = _queries(problem, settings, constants)
    curvature = math.sqrt(constants.hessian_lipschitz * alpha)
    steps = _validate.positive_int("steps", LONGEST if settings.steps is None else settings.steps)
    beta = _validate.open_unit("beta", settings.beta)
    made = kind(
        estimate=estimate,
        score=score,
        **pace(settings, scale, alpha, estimate, curvature, objective),
        difference_size=_difference_size(settings, estimate),
        tolerances=(base.positive_leaf("alpha", alpha), base.positive_leaf("curvature", curvature)),
        bounds=None if score is None else _score_bounds(score, beta),
        beta=beta,
        name=name,
        squared_drift=settings.squared_drift,
        unclipped=_never_clips(objective, constants),
        **problem.plan(steps, LONGEST),
    )
    # Independent noise falls with what a difference can move, to that share at least.
    least = LEAST if estimate.correlation.is_independent else 1.0
    problem.check_spent(made.event, least, "use accountant='pld'.")
    return made


def _queries(
    problem: base.Problem, settings: Settings, constants: Constants
) -> tuple[EstimateQuery, ScoreQuery | None, Scale, float]:
    """Both queries, how loud the noise is, and the target."""
    n, relation = problem.data_size, problem.budget.relation
    candidates = _candidates(settings, problem.dimension)
    train, last = single_passes(n, _kept(settings, candidates, n))
    noise = _noise(settings, problem)
    draws = problem.dimension * n + 2 * candidates  # of an increment for each record, and scores
    multiplier = gaussian_multiplier(problem.budget, 1, problem.accountant, noise_draws=draws)
    moved = train.sum_scale(1.0, relation)
    loudness = multiplier * noise.sensitivity * float(noise.stddevs().max())
    scale = Scale(
        constants.clip_norm,
        constants.smoothness,
        constants.initial_gap,
        moved * loudness * math.sqrt(problem.dimension),
    )
    batch = _batch(settings, scale, int(train.expected))
    estimate = EstimateQuery(
        setting=problem.setting.drawn_by(train),
        noise_multiplier=multiplier,
        clip_norm=constants.clip_norm,
        smoothness=constants.smoothness,
        batch_size=batch,
        correlation=noise,
    )
    score = None
    if last is not None:
        score = ScoreQuery(
            setting=problem.setting.drawn_by(last),
            noise_multiplier=multiplier,
            clip_norm=constants.clip_norm,
            hessian_clip_norm=constants.hessian_clip_norm,
            dimension=problem.dimension,
            candidates=candidates,
        )
    return estimate, score, scale, target(scale, int(train.expected), settings.alpha)


def _check_relation(problem: base.Problem, name: str) -> None:
    if problem.budget.relation == "add_or_remove_one":
        raise ValueError(
            f"{name} reads each record at most once, in one random order, and has no accounting "
            "under relation='add_or_remove_one': removing a record would shift later ones into "
            "other batches. Declare PrivacyBudget(..., relation='zero_out') or 'replace_one', for "
            "which n is public."
        )


def _constants(objective: Objective, settings: Settings) -> Constants:
    clip, _ = base.clip_norms(objective, settings.clip_norm, 1.0)
    smoothness = settings.smoothness
    if smoothness is None and (smoothness := _usual(objective, "smoothness")) is None:
        raise ValueError(
            f"smoothness is required: {objective.name!r} declares no constants. Pass smoothness=."
        )
    hessian_clip = settings.hessian_clip_norm
    rho = settings.hessian_lipschitz
    if rho is None and (rho := _usual(objective, "hessian_lipschitz")) is None:
        raise ValueError(f"hessian_lipschitz is required: {objective.name!r} declares none.")
    return Constants(
        clip,
        base.positive_leaf("smoothness", smoothness),
        base.positive_leaf(
            "hessian_clip_norm", smoothness if hessian_clip is None else hessian_clip
        ),
        _validate.normal("hessian_lipschitz", rho),
        base.initial_gap(objective, settings.initial_gap),
    )


def _candidates(settings: Settings, dimension: int) -> int:
    if settings.candidates is None:
        has_float64 = jax.default_backend() != "tpu"  # for eigenvalues of exact sums
        return _CANDIDATES if dimension <= _LARGEST and has_float64 else 0
    if settings.candidates == 0:
        return 0
    return _validate.positive_int("candidates", settings.candidates)


def _score_bounds(score: ScoreQuery, beta: float) -> NoiseBounds:
    """Returns what a noisy score may be off by, noise and rounding."""
    # All 2 K numbers must hold at once: which are certified is chosen by looking at them.
    quantile = float(stats.norm.isf(beta / (2 * score.candidates)))
    (_, gradient), (_, curvature) = score.components
    clip, hessian_clip = float(score.clip_norm), float(score.hessian_clip_norm)
    return NoiseBounds(
        quantile * gradient + CLIP_SLACK * clip, quantile * curvature + CLIP_SLACK * hessian_clip
    )


def _never_clips(objective: Objective, constants: Constants) -> bool:
    """Whether neither gradients nor Hessians are clipped on rows |x| <= 1, provably."""
    if objective.constants is None or not base.never_clips(objective, constants.clip_norm):
        return False
    return constants.hessian_clip_norm >= base.to_leaf(objective.constants.smoothness)


def _usual(objective: Objective, constant: str) -> float | None:
    """A constant of the objective; where it has none, its usual Hessian clip norm."""
    if objective.constants is not None:
        known = getattr(objective.constants, constant)
        return known if known < math.inf else None
    return None if objective.defaults is None else objective.defaults.hessian_clip_norm


def _kept(settings: Settings, candidates: int, n: int) -> int:
    if candidates == 0:
        return 0
    share = _validate.open_unit("kept", settings.kept)
    kept = max(1, round(share * n))
    if kept >= n:
        raise ValueError(f"kept={share:g} of data_size={n} leaves no record to train on; lower it.")
    return kept


def _noise(settings: Settings, problem: base.Problem) -> PrefixNoise:
    horizon = _HORIZON if settings.horizon is None else settings.horizon
    return prefix_noise(horizon, problem.dimension, settings.noise)


def _batch(settings: Settings, scale: Scale, records: int) -> int:
    batch, alpha = settings.batch_size, settings.alpha
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


def _difference_size(settings: Settings, estimate: EstimateQuery) -> int | None:
    if not settings.fixed:
        return None
    if settings.difference_size is None:
        return max(1, int(estimate.batch_size) // 8)
    return _validate.positive_int("difference_size", settings.difference_size)


def pace(
    settings: Settings,
    scale: Scale,
    alpha: float,
    estimate: EstimateQuery,
    curvature: float,
    objective: Objective,
) -> dict[str, Any]:
    """Returns step size, thresholds and kicks, as leaves.

    The batch of ``estimate`` decides how loud the noise is; ``curvature`` is sqrt(rho alpha), and
    the objective's smoothness is with its regularizer.
    """
    step = settings.step_size
    if step is None:
        usual = None if objective.defaults is None else objective.defaults.step_size
        step = usual or 1 / (objective.smoothness or scale.smoothness)
    drift = settings.drift_threshold
    if drift is None:
        drift = scale.drift(alpha) / 2
        drift = drift**2 if settings.squared_drift else drift
    # What an estimate is off by: the noise, and the chance of a batch.
    batch = float(estimate.batch_size)
    loudness = scale.lipschitz * scale.noise / batch
    error = loudness + scale.lipschitz / math.sqrt(batch)
    frozen = settings.frozen_steps
    if frozen is None:
        frozen = math.ceil(min(settings.patience * scale.smoothness / curvature, LONGEST))
    kick = loudness if settings.kick is None else settings.kick
    threshold = settings.kick_threshold
    return {
        "step_size": base.positive_leaf("step_size", step),
        "drift_threshold": _threshold(drift),
        "kick": base.to_leaf(_validate.non_negative("kick", kick)),
        "kick_threshold": base.positive_leaf(
            "kick_threshold", 2 * error if threshold is None else threshold
        ),
        "frozen_steps": _validate.positive_int("frozen_steps", frozen),
    }


def _threshold(drift: float) -> float:
    if drift == math.inf:
        return drift
    if not drift > 0:
        raise ValueError(
            f"drift_threshold must be above 0, got {drift!r}: at 0 every step recomputes the "
            "gradient; for that use dp_gradient_descent, or batch_size with drift_threshold=1e-6."
        )
    return base.positive_leaf("drift_threshold", drift)
