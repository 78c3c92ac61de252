"""One noisy minimiser, released once: noise on it (Chaudhuri et al. 2011) or in the objective."""

import dataclasses
import math
from typing import Any, NamedTuple

import jax.numpy as jnp

from dpjax import objectives
from dpjax._typing import Array, Params, pytree_dataclass, static
from dpjax.accounting import PrivacyBudget, gaussian_multiplier
from dpjax.algorithms import base
from dpjax.oracles import MinimizerQuery, ObjectiveQuery, Query, iterations_of

# What stopping short of the minimum may add to the sensitivity, as a fraction of it.
_SHORT = 1e-3
# The fraction of epsilon and of delta that hiding the distance from the exact minimum may cost.
_SHARE = 1e-3
# That distance over the scale of the noise, so that the noise which hides it is small beside it.
_NEAR = 1e-6


class MinimizerState(NamedTuple):
    """The start, and after the only step the noisy minimiser."""

    params: Params


class MinimizerInfo(NamedTuple):
    """Metrics of the only step; released."""

    _repr_html_ = base.history_html
    step_norm: Array
    """Distance of what was released from the start."""


@pytree_dataclass
class Perturbation(base.SingleQueryAlgorithm):
    """Configuration of a method that releases one noisy minimiser; made by the factories."""

    query: Query
    title: str = static()

    def init(self, params: Params) -> MinimizerState:
        return MinimizerState(params)

    def step(
        self, key: Array, state: MinimizerState, ask: base.Ask
    ) -> tuple[MinimizerState, MinimizerInfo]:
        answer = ask(self.query, state.params)
        moved = jnp.linalg.norm(answer - state.params.astype(answer.dtype))
        return MinimizerState(answer.astype(state.params.dtype)), MinimizerInfo(moved)


def output_perturbation(
    objective: objectives.Objective,
    budget: PrivacyBudget,
    *,
    data_size: int,
    dimension: int,
    accountant: str = "pld",
) -> Perturbation:
    """Returns output perturbation: the minimiser of a strongly convex objective plus noise, once.

    The noise has standard deviation about G / (n mu) times the multiplier of one Gaussian: strong
    regularization keeps it small, but moves the minimum.

    Args:
      objective: a convex loss of the margin with constants, such as ``logistic_l2``; its
        regularizer must be ``L2`` of a strength mu above 0. The query scales features longer than
        1 to length 1, so that G and M hold, and minimises the objective of the scaled records.
      budget: what the release may spend, between data sets of the same public n (not
        ``"add_or_remove_one"``, under which no number of steps is sure to find the minimum).
      the others: the same in all factories, see ``help(dpjax.algorithms)``.

    Privacy: releases one vector by the Gaussian mechanism. For a margin of your own its convexity,
      and that M bounds phi'', are yours to prove: here they are only checked at many margins. G is
      enforced by cutting the slope. See ``MinimizerQuery``.

    Reference: Chaudhuri, Monteleoni and Sarwate (2011), algorithm 1, with Gaussian noise; Wu et al.
      (2017) and Zhang et al. (2017) for minimisers that are not exact.

    >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-6)
    >>> algorithm = output_perturbation(
    ...     objectives.logistic_l2(1e-2), budget, data_size=10_000, dimension=10)
    >>> round(algorithm.event.releases[0].sensitivity, 5)
    0.01001
    """
    problem = base.check_problem(objective, budget, data_size, dimension, accountant)
    check_ridge(objective)
    # Both of two neighbouring minimisers may be missed, each by half of what is allowed.
    short = problem.setting.sampler.scale(_SHORT / 2, budget.relation)
    query = MinimizerQuery(
        # With the objective in float64, as passed: it is structure there, and no number a leaf.
        setting=dataclasses.replace(problem.setting, objective=objective),
        noise_multiplier=gaussian_multiplier(budget, 1, accountant, noise_draws=problem.dimension),
        iterations=iterations_of(objective, short),
    )
    return one_release(problem, query, "output perturbation")


def objective_perturbation(
    objective: objectives.Objective,
    budget: PrivacyBudget,
    *,
    data_size: int,
    dimension: int,
    accountant: str = "pld",
) -> Perturbation:
    """Returns objective perturbation: the minimum of an objective with a random linear term.

    Curvature in a direction shrinks the noise there, where output perturbation adds as much in
    every direction.

    The arguments are as in ``output_perturbation``, with these differences. ``objective`` must fall
    with the margin, and mu be M / (n (e^(epsilon/2) - 1)) at least, below which a ``ValueError`` is
    raised. ``accountant`` is ``"pld"``; no Renyi bound is known.

    Privacy: releases one vector. For a margin of your own, that it is convex, falls, and has
      curvature M at most is yours to prove: here it is only checked at many margins. G is enforced
      by cutting the slope. See ``ObjectiveQuery``.

    Reference: Iyengar et al., "Towards practical differentially private convex optimization"
      (2019), algorithm 1; Redberg, Koskela and Wang (2023) for the accounting.

    >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-6)
    >>> algorithm = objective_perturbation(
    ...     objectives.logistic_l2(1e-2), budget, data_size=10_000, dimension=10)
    >>> [release.name for release in algorithm.event.releases]
    ['perturbed_minimizer', 'distance_from_minimum']
    """
    problem = base.check_problem(objective, budget, data_size, dimension, accountant)
    if accountant == "rdp":
        raise ValueError(
            "no Renyi bound is known for objective perturbation; take accountant='pld'."
        )
    check_ridge(objective)
    rounded: Any = problem.objective
    first, _ = objectives.margin_derivatives(rounded.margin)
    if first.max() > 0:
        raise ValueError(
            f"the margin loss of {objective.name} must be non-increasing: a derivative of "
            f"{first.max():g} was found; use output_perturbation."
        )
    # One record moves the Hessian by rank 1, and its determinant by a factor of 1 + M / (n mu) at
    # most: that is e^(epsilon / 2) here. Beyond 709 expm1 overflows.
    grown = problem.data_size * math.expm1(min(budget.epsilon / 2, 700))
    least, strength = rounded.constants.smoothness / grown, rounded.regularizer.strength
    if strength < least:
        raise ValueError(
            f"the regularizer's strength must be at least {least:.3g} for this budget, got "
            f"{strength:g}: below that, the Hessian alone costs half of epsilon or more."
        )
    # The proof is of the exact minimum: noise of its own hides how far the iterate is from it.
    small = PrivacyBudget(_SHARE * budget.epsilon, _SHARE * budget.delta, budget.relation)
    near = problem.setting.sampler.scale(_NEAR, budget.relation)
    query = ObjectiveQuery(
        setting=dataclasses.replace(problem.setting, objective=objective),
        noise_multiplier=1.0,
        iterations=iterations_of(objective, near),
        output_multiplier=gaussian_multiplier(small, 1, noise_draws=problem.dimension),
        dimension=problem.dimension,
    )
    calibrated = problem.calibrated(query, lambda query: query.event(1))
    return one_release(problem, calibrated, "objective perturbation")


def one_release(problem: base.Problem, query: Query, title: str) -> Perturbation:
    """Returns the configuration that asks ``query`` once, after checking what it spends."""
    problem.check_spent(query.event(1))
    return Perturbation(query=query, title=title, **problem.plan(1, 1))


def check_ridge(objective: objectives.Objective) -> None:
    """Raises unless the objective is a convex margin loss plus a squared norm."""
    if objective.margin is None or objective.constants is None:
        raise ValueError(
            f"{objective.name} needs a margin and constants: they bound the sensitivity of its "
            "minimizer. Use dpjax.objectives.logistic_l2, or give an Objective margin= and "
            "constants=."
        )
    regularizer = objective.regularizer
    if not isinstance(regularizer, objectives.L2) or regularizer.strength == 0:
        raise ValueError(
            f"{objective.name} must be strongly convex by the regularizer L2(strength) with a "
            f"strength above 0, got {regularizer!r}; its noise is G / (n strength)."
        )
    # Checked at many margins, which proves nothing: the docstrings say whose proof it is.
    _, second = objectives.margin_derivatives(objective.margin)
    lowest, highest = float(second.min()), float(second.max())
    room = 1 + 1e-6
    if not -1e-9 <= lowest <= highest <= objective.constants.smoothness * room:
        raise ValueError(
            f"the margin of {objective.name} must be convex with curvature at most its constant "
            f"smoothness={objective.constants.smoothness:g}, found {lowest:g} to {highest:g}."
        )
