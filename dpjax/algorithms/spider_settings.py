"""Settings of Stochastic Spider beside the problem, and the defaults of its step sizes."""

import dataclasses
import math
from typing import Any, NamedTuple

from dpjax import _validate
from dpjax.algorithms import base
from dpjax.algorithms.spider_theory import Scale
from dpjax.objectives import Objective
from dpjax.oracles import EstimateQuery

LONGEST = 4096
KEPT = 0.1


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a Spider is made of, beside the problem; None asks for the default.

    Args:
      batch_size: b.
      difference_size: of a fixed batch for differences.
      drift_threshold: kappa, in units of the gradient.
      step_size: eta.
      horizon: K, the most increments of a segment.
      noise: kind of the noise.
      kick: zeta.
      kick_threshold: of the gradient norm.
      frozen_steps: Gamma.
      steps: cap on the steps.
      patience: the default of Gamma in units of M / sqrt(rho alpha).
      fixed: whether differences take a fixed batch, by default b / 8.
      squared_drift: whether squared lengths are added up.
    """

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


@dataclasses.dataclass(frozen=True)
class Selection:
    """How the output is chosen.

    Args:
      candidates: K iterates to choose from; 0 for the last one.
      kept: records kept for the scores, as a share of n.
      beta: probability that the certificate fails.
    """

    candidates: int | None = None
    kept: float = KEPT
    beta: float = 0.05


class Norms(NamedTuple):
    """Clip norms and constants as they were given; None asks for the objective's."""

    clip_norm: float | None
    hessian_clip_norm: float | None
    smoothness: float | None
    hessian_lipschitz: float | None
    initial_gap: float | None


class Constants(NamedTuple):
    """Clip norms and constants of the problem, given or the objective's."""

    clip_norm: float
    smoothness: float
    hessian_clip_norm: float
    hessian_lipschitz: float
    initial_gap: float


def pace(
    settings: Settings,
    scale: Scale,
    alpha: float,
    estimate: EstimateQuery,
    curvature: float,
    objective: Objective,
) -> dict[str, Any]:
    """Returns step size, thresholds and kicks, as leaves.

    Args:
      settings: what was given.
      scale: of the problem.
      alpha: target.
      estimate: whose batch decides how loud the noise is.
      curvature: sqrt(rho alpha).
      objective: for its smoothness, regularizer included.

    Raises:
      ValueError: for a number out of range.
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
