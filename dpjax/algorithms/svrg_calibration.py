"""``dp_svrg`` and ``dp_svrg_plus_plus``: step size, epochs and noise from the theorems."""

import math
import warnings
from typing import NamedTuple

from dpjax import _validate
from dpjax.accounting import calibrate, check_spent, compose, gaussian_multiplier, round_up
from dpjax.algorithms import base
from dpjax.algorithms.svrg import VarianceReduced
from dpjax.objectives import Objective
from dpjax.accounting import PrivacyBudget
from dpjax.oracles import AnchorQuery, DifferenceQuery, check_batch_size, poisson_sampler

LONGEST = 2048
_LARGEST_BATCH = 16_384
_EPOCHS = "epochs"


class _Schedule(NamedTuple):
    """How long to run: ``epochs`` that begin, of ``epoch_length`` steps or 2^s of it, cut off."""

    epochs: int
    epoch_length: int
    steps: int


class _Asked(NamedTuple):
    """What the two queries are made of."""

    clip_norm: float
    smoothness: float
    batch_size: int
    capacity: int | None
    anchor_share: float
    unsafe_fast_noise: bool


def dp_svrg(
    objective: Objective,
    budget: PrivacyBudget,
    *,
    data_size: int,
    dimension: int,
    epochs: int | None = None,
    epoch_length: int | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    step_size: float | None = None,
    clip_norm: float | None = None,
    smoothness: float | None = None,
    strong_convexity: float | None = None,
    initial_gap: float | None = None,
    anchor: str = "noisy",
    anchor_share: float = 0.1,
    capacity: int | None = None,
    accountant: str = "pld",
    unsafe_fast_noise: bool = False,
) -> VarianceReduced:
    """Returns DP-SVRG, calibrated to the budget: for strongly convex objectives."""
    problem = _check_problem(objective, budget, data_size, dimension, accountant, anchor)
    asked = _asked(
        problem, clip_norm, smoothness, batch_size, capacity, anchor_share, unsafe_fast_noise
    )
    step_size = _step_size(asked, step_size, 12)
    convexity = _strong_convexity(objective, strong_convexity)
    if epoch_length is None:
        epoch_length = _contracting_length(asked, step_size, _needed(objective, convexity))
    schedule = _Schedule(epochs, epoch_length, epochs * epoch_length)
    return _configured(problem, asked, schedule, step_size, doubling=False)


def dp_svrg_plus_plus(
    objective: Objective,
    budget: PrivacyBudget,
    *,
    data_size: int,
    dimension: int,
    epochs: int | None = None,
    epoch_length: int | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    step_size: float | None = None,
    clip_norm: float | None = None,
    smoothness: float | None = None,
    initial_gap: float | None = None,
    anchor: str = "noisy",
    anchor_share: float = 0.1,
    capacity: int | None = None,
    accountant: str = "pld",
    unsafe_fast_noise: bool = False,
) -> VarianceReduced:
    """Returns DP-SVRG++, calibrated to the budget: for convex objectives."""
    problem = _check_problem(objective, budget, data_size, dimension, accountant, anchor)
    asked = _asked(
        problem, clip_norm, smoothness, batch_size, capacity, anchor_share, unsafe_fast_noise
    )
    step_size = _step_size(asked, step_size, 13)
    schedule = _Schedule(epochs, epoch_length, (2 ** (epochs + 1) - 2) * epoch_length)
    return _configured(problem, asked, schedule, step_size, doubling=True)


def _check_problem(objective, budget, data_size, dimension, accountant, anchor):
    problem = base.check_problem(objective, budget, data_size, dimension, accountant)
    return problem


def _asked(problem, clip_norm, smoothness, batch_size, capacity, anchor_share, fast) -> _Asked:
    clip, smooth = base.clip_norms(problem.objective, clip_norm, smoothness)
    return _Asked(clip, smooth, batch_size, capacity, anchor_share, fast)


def _step_size(asked, given, factor):
    return given


def _strong_convexity(objective, given):
    return getattr(objective.regularizer, "strong_convexity", 0.0)


def _configured(
    problem: base.Problem, asked: _Asked, schedule: _Schedule, step_size: float, doubling: bool
) -> VarianceReduced:
    objective, budget, n, dimension, accountant = problem
    share = asked.anchor_share
    anchors = gaussian_multiplier(budget, schedule.epochs, accountant) / math.sqrt(share)
    anchor = AnchorQuery(round_up(anchors), asked.clip_norm, objective, n, budget.relation)
    sampler = poisson_sampler(asked.batch_size, n, budget, schedule.steps, asked.capacity)

    def difference(multiplier: float) -> DifferenceQuery:
        norms = (asked.clip_norm, asked.smoothness)
        return DifferenceQuery(multiplier, *norms, objective, n, budget.relation, sampler)

    def event(multiplier: float):
        differences = difference(multiplier).event(schedule.steps)
        return compose([anchor.event(schedule.epochs), differences])

    query = difference(calibrate(event, budget, accountant))
    anchor, query = base.fast_noise((anchor, query), asked.unsafe_fast_noise)
    return VarianceReduced(
        anchor=anchor,
        difference=query,
        step_size=base.positive_leaf("step_size", step_size),
        epochs=schedule.epochs,
        epoch_length=schedule.epoch_length,
        steps=schedule.steps,
        declared=base.Declared(budget.epsilon, budget.delta),
        doubling=doubling,
        max_steps=max(schedule.steps, LONGEST),
        dimension=dimension,
        accountant=accountant,
    )
