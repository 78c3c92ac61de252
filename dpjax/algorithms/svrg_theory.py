"""Settings of DP-SVRG and DP-SVRG++ by theorems 4.2 and 4.4, and checks of given settings."""

import math
import warnings
from collections.abc import Callable
from typing import NamedTuple

from dpjax import _validate
from dpjax.accounting import Event, calibrate, compose, gaussian_multiplier, round_up
from dpjax.algorithms import base
from dpjax.objectives import Objective
from dpjax.oracles import AnchorQuery, DifferenceQuery, check_batch_size, poisson_sampler

# From 32 on the theorems allow the step 1 / L of the full gradient; smaller batches than 128 were
# measured to lose more to noise than they save in records.
_BATCHES = 128, 16_384


class Settings(NamedTuple):
    """The numbers of both queries."""

    clip_norm: float
    smoothness: float
    batch_size: int | None
    max_batch_size: int | None
    anchor_share: float

    def sized(self, data_size: int, steps_of_a_pass: float) -> "Settings":
        """Returns these with a batch size, at whose default so many steps read as one pass does."""
        size = self.batch_size
        if size is None:
            # A difference takes two gradients of a record.
            size = min(max(round(data_size / (2 * steps_of_a_pass)), _BATCHES[0]), _BATCHES[1])
            size = min(size, data_size)
        return self._replace(batch_size=check_batch_size(size, data_size))

    def variance(self, data_size: int) -> float:
        """The variance of a batch's mean over that of one record's part."""
        size = self.batch_size or data_size
        return 0.0 if size == data_size else 1 / size


def settings_of(
    objective: Objective,
    clip_norm: float | None,
    smoothness: float | None,
    batch_size: int | None,
    max_batch_size: int | None,
    anchor_share: float,
) -> Settings:
    """Returns the numbers of both queries, by default the objective's constants."""
    _ = objective.prox  # raises where there is none
    clip, _ = base.clip_norms(objective, clip_norm, 1.0)
    usual = None if objective.constants is None else objective.constants.smoothness
    smoothness = base.required("smoothness", smoothness, usual, objective)
    smooth = base.positive_leaf("smoothness", smoothness)
    fraction = _validate.open_unit("anchor_share", anchor_share)
    return Settings(clip, smooth, batch_size, max_batch_size, fraction)


def strong_convexity(objective: Objective, given: float | None) -> float | None:
    """Returns mu, or None if nothing is known of it."""
    if given is not None:
        return _validate.normal("strong_convexity", given)
    return getattr(objective.regularizer, "strong_convexity", None) or None


def needed(objective: Objective, mu: float | None, argument: str) -> float:
    """Returns mu, or raises if there is none to choose ``argument`` by."""
    if mu is None:
        raise ValueError(
            f"strong_convexity must be above 0 to choose {argument}, and {objective.name} is not "
            f"known to be strongly convex: add L2, give {argument}, or take dp_svrg_plus_plus."
        )
    return mu


def first_step_size(settings: Settings, given: float | None) -> float:
    """Returns eta as far as it is known before the batch: the given one, or 1 / L."""
    return 1 / settings.smoothness if given is None else _validate.normal("step_size", given)


def step_size(settings: Settings, n: int, given: float | None, factors: tuple[int, int]) -> float:
    """Returns eta, by default below the bound of the theorem so that (4) has a solution."""
    variance = settings.variance(n)
    most, usual = (1 / (settings.smoothness * max(1.0, factor * variance)) for factor in factors)
    if given is None:
        return usual
    # Privacy does not depend on it: a warning, not an error.
    if _validate.normal("step_size", given) > most * (1 + 1e-6):
        warnings.warn(
            f"step_size={given:g} is above {most:.4g}, the bound of the theorem for batches of b: "
            f"min(1 / L, b / ({factors[0]} L)). Above it the theorem does not apply.",
            stacklevel=3,
        )
    return given


def contracting_length(settings: Settings, n: int, step_size: float, mu: float | None) -> int:
    """Returns the least m of inequality (4), with 8 eta L divided by the batch size."""
    theta = 8 * step_size * settings.smoothness * settings.variance(n)
    if theta >= 1 / 3:
        raise ValueError(
            f"no epoch_length satisfies inequality (4) of theorem 4.2 at step_size={step_size:g}; "
            f"take one below {step_size / (3 * theta):.4g}, or give epoch_length."
        )
    assert mu is not None  # the batch size was chosen by it
    return math.floor((1 / (step_size * mu) + theta) / (0.5 - 1.5 * theta)) + 1


def noise(problem: base.Problem, clip: float) -> float:
    """Returns G sqrt(p ln(1/delta)) / (n epsilon), the error that noise leaves."""
    budget, p = problem.budget, problem.dimension
    return clip * math.sqrt(p * math.log(1 / budget.delta)) / (problem.data_size * budget.epsilon)


def all_steps(epochs: int | None, steps: int | None, total: Callable[[int], int]) -> int:
    """Returns the inner steps of all epochs."""
    if steps is not None:
        if epochs is not None:
            raise ValueError(f"give epochs={epochs} or steps={steps}, not both.")
        return _validate.int32_count("steps", steps)
    planned = total(_validate.positive_int("epochs", epochs))
    if planned >= 2**31:
        raise ValueError(
            f"epochs={epochs} have 2^31 steps or more, and steps are numbered by 32 bits: take "
            "fewer epochs, or a shorter epoch_length."
        )
    return planned


def epochs_of(steps: int, epoch_length: int, doubling: bool) -> int:
    """Returns how many epochs of m steps, or of 2 m, 4 m and so on, begin within ``steps``."""
    lengths = -(-steps // epoch_length)
    # The first T doubling epochs have (2^(T + 1) - 2) m steps.
    return (lengths + 1).bit_length() - 1 if doubling else lengths


def split_queries(
    problem: base.Problem, settings: Settings, steps: int, epochs: int
) -> tuple[AnchorQuery, DifferenceQuery]:
    """Returns the gradient at the anchor and the difference to it, calibrated to the budget."""
    budget, n = problem.budget, problem.data_size
    draws = problem.dimension
    # mu^2 of Gaussians is a sum over releases: the anchors spend a fraction of it. The differences,
    # on sampled batches, have no mu, and are calibrated to what the anchors leave.
    multiplier = gaussian_multiplier(budget, epochs, problem.accountant, noise_draws=draws)
    multiplier = round_up(multiplier / math.sqrt(settings.anchor_share))
    anchor = AnchorQuery(
        setting=problem.setting, noise_multiplier=multiplier, clip_norm=settings.clip_norm
    )
    sampler = poisson_sampler(settings.batch_size or n, n, budget, steps, settings.max_batch_size)

    def difference(multiplier: float) -> DifferenceQuery:
        return DifferenceQuery(
            setting=problem.setting.drawn_by(sampler),
            noise_multiplier=multiplier,
            clip_norm=settings.clip_norm,
            smoothness=settings.smoothness,
        )

    def event(multiplier: float) -> Event:
        return compose([anchor.event(epochs), difference(multiplier).event(steps)])

    return anchor, difference(calibrate(event, budget, problem.accountant))
