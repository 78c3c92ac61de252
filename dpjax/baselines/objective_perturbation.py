"""Objective perturbation (Kifer et al. 2012, Iyengar et al. 2019): a minimum with noise inside."""

import math

from dpjax.accounting import Event, PrivacyBudget, calibrate, gaussian_multiplier
from dpjax.algorithms import base
from dpjax.baselines.perturbation import (
    PAPERS,
    Perturbation,
    check_ridge,
    exact_setting,
    one_release,
)
from dpjax.objectives import Objective, margin_derivatives
from dpjax.oracles import ObjectiveQuery, iterations_of

# Of epsilon and of delta, what hiding the distance from the exact minimum may cost.
_SHARE = 1e-3
# That distance over the noise's own scale, so that the noise which hides it is small beside it.
_NEAR = 1e-6


def objective_perturbation(
    objective: Objective,
    budget: PrivacyBudget,
    *,
    data_size: int,
    dimension: int,
    accountant: str = "pld",
) -> Perturbation:
    """Returns objective perturbation: the minimum of an objective with a random linear term.

    Curvature in a direction shrinks the noise there, where output perturbation adds as much in
    every direction.

    Args:
      objective: a convex loss that falls with the margin, with constants, such as ``logistic_l2``;
        its regularizer must be ``L2`` of a strength mu of M / (n (e^(epsilon/2) - 1)) at least.
        Features longer than 1 are scaled to length 1 behind the door: it is their objective that is
        minimised.
      budget: what the release may spend, between data sets of the same public n (not
        ``"add_or_remove_one"``, under which no number of steps is sure to find the minimum).
      data_size: the declared public number of records n.
      dimension: number of parameters p.
      accountant: ``"pld"``; no Renyi bound is known.

    Returns:
      A frozen pytree for ``solve``: one step, which asks for the perturbed minimiser.

    Raises:
      ValueError: for an objective that is not known to be strongly convex, a regularizer too weak
        for the budget, or an argument out of range.

    Privacy: releases one vector. For a margin of your own, that it is convex, falls, and has
      curvature M at most is yours to prove: here it is only checked at many margins. G is enforced
      by cutting the slope. See ``ObjectiveQuery``.

    Reference: Iyengar et al., "Towards practical differentially private convex optimization"
      (2019), algorithm 1; Redberg, Koskela and Wang (2023) for the accounting.

    >>> from dpjax import objectives
    >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-6)
    >>> algorithm = objective_perturbation(
    ...     objectives.logistic_l2(1e-2), budget, data_size=10_000, dimension=10)
    >>> [release.name for release in algorithm.event.releases]
    ['perturbed_minimizer', 'distance_from_minimum']
    """
    problem = base.check_problem(objective, budget, data_size, dimension, accountant)
    base.refuse_paper(accountant, "objective perturbation", PAPERS)
    if accountant == "rdp":
        raise ValueError(
            "no Renyi bound is known for objective perturbation; take accountant='pld'."
        )
    check_ridge(objective)
    _check_falling(problem)
    small = PrivacyBudget(_SHARE * budget.epsilon, _SHARE * budget.delta, budget.relation)
    near = problem.setting.sampler.scale(_NEAR, budget.relation)

    def query(scale: float) -> ObjectiveQuery:
        return ObjectiveQuery(
            setting=exact_setting(problem, objective),
            noise_multiplier=scale,
            iterations=iterations_of(objective, near),
            output_multiplier=hidden,
            dimension=problem.dimension,
        )

    hidden = gaussian_multiplier(small, 1, noise_draws=problem.dimension)

    def event(scale: float) -> Event:
        return query(scale).event(1)

    asked = query(calibrate(event, budget, accountant))
    return one_release(problem, asked, "objective perturbation")


def _check_falling(problem: base.Problem) -> None:
    objective, budget = problem.objective, problem.budget
    first, _ = margin_derivatives(objective.margin)  # pyright: ignore[reportArgumentType]
    if first.max() > 0:
        raise ValueError(
            f"the margin loss of {objective.name} must be non-increasing: a derivative of "
            f"{first.max():g} was found; use output_perturbation."
        )
    smoothness = objective.constants.smoothness  # pyright: ignore[reportOptionalMemberAccess]
    least = smoothness / (problem.data_size * math.expm1(min(budget.epsilon / 2, 700)))
    strength = objective.regularizer.strength  # pyright: ignore[reportOptionalMemberAccess]
    if strength < least:
        raise ValueError(
            f"the regularizer's strength must be at least {least:.3g} for this budget, got "
            f"{strength:g}: below that, the Hessian alone costs half of epsilon or more."
        )
