"""Noise, step size and number of steps of DP-GD, and its factory ``dp_gradient_descent``."""

import math

from dpjax import _validate
from dpjax.accounting import PrivacyBudget, check_spent, gaussian_multiplier, round_up
from dpjax.algorithms import base
from dpjax.algorithms.certificate import CLIP_SLACK, NoiseBounds
from dpjax.algorithms.gradient_descent import GradientDescent
from dpjax.linalg import chi_quantile
from dpjax.objectives import Objective
from dpjax.oracles import GradientQuery

LONGEST = 2048


def dp_gradient_descent(
    objective: Objective,
    budget: PrivacyBudget,
    *,
    data_size: int,
    dimension: int,
    steps: int | None = None,
    step_size: float | None = None,
    clip_norm: float | None = None,
    initial_gap: float | None = None,
    accountant: str = "pld",
    certify: str | None = "last_query",
    beta: float = 0.05,
    unsafe_fast_noise: bool = False,
) -> GradientDescent:
    """Returns differentially private gradient descent, calibrated to the budget.

    Args:
      objective: what to minimise.
      budget: what a whole run may spend.
      data_size: the declared public number of records n.
      dimension: number of parameters p.
      steps: T; by default the one that minimises the bound of theorem 6.3 on the mean squared
        gradient, 2 M gap / T + p sigma^2, at most 2,048.
      step_size: eta; by default 1 / smoothness of the whole objective.
      clip_norm: bound on one record's gradient; by default the objective's Lipschitz constant.
      initial_gap: public bound on L(w0) - min L, used for T; by default phi(0) of a margin loss.
      accountant: ``"pld"``, ``"rdp"``, or ``"paper"`` for the noise of the paper's theorem 6.1
        with the constant c = 8 + 4 epsilon / ln(1/delta), which always suffices (replace-one).
      certify: ``"last_query"`` or None.
      beta: probability that the certificate fails.
      unsafe_fast_noise: plain float32 noise, see ``mechanisms.perturb``; NOT for a release.

    Returns:
      A frozen pytree for ``solve``.

    Raises:
      ValueError: for an argument out of range, a constant that is missing, or a budget that no
        noise reaches.

    Privacy: releases T clipped mean gradients with Gaussian noise; every iterate is covered.

    Reference: Wang, Ye and Xu (2017), algorithm 4, theorems 6.1 and 6.3.

    >>> from dpjax import objectives
    >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-6)
    >>> algorithm = dp_gradient_descent(
    ...     objectives.logistic(), budget, data_size=10_000, dimension=10)
    >>> algorithm.steps
    440
    """
    problem = base.check_problem(objective, budget, data_size, dimension, accountant)
    clip, _ = base.clip_norms(objective, clip_norm, 1.0)
    if certify not in (None, "last_query"):
        raise ValueError(f"certify must be 'last_query' or None for DP-GD, got {certify!r}.")
    if step_size is None:
        step_size = default_step_size(objective)
    if steps is None:
        steps = theory_steps(problem, clip, step_size, initial_gap)
    steps = _validate.positive_int("steps", steps)
    if accountant == "paper":
        multiplier = paper_multiplier(budget, steps)
    else:
        multiplier = gaussian_multiplier(budget, steps, accountant)
    asked = GradientQuery(multiplier, clip, objective, problem.data_size, budget.relation)
    (query,) = base.fast_noise((asked,), unsafe_fast_noise)
    base.check_noise(query.event(steps))
    check_spent(query.event(steps), budget, base.recount_accountant(accountant), "use 'pld'.")
    beta = _validate.open_unit("beta", beta)
    bound = float(query.stddev) * chi_quantile(dimension, 1 - beta) + CLIP_SLACK * clip
    return GradientDescent(
        query=query,
        step_size=base.positive_leaf("step_size", step_size),
        steps=steps,
        bounds=NoiseBounds(round_up(bound), None),
        beta=beta,
        declared=base.Declared(budget.epsilon, budget.delta),
        max_steps=max(steps, LONGEST),
        dimension=problem.dimension,
        certified=certify is not None,
        unclipped=base.never_clips(objective, clip) and budget.relation != "add_or_remove_one",
        accountant=accountant,
    )


def default_step_size(objective: Objective) -> float:
    """Returns 1 / smoothness of the whole objective, or raises if that is not known."""
    if objective.smoothness is None:
        raise ValueError(f"step_size is required: {objective.name} has no constants.")
    return 1 / objective.smoothness


def theory_steps(
    problem: base.Problem, clip: float, step_size: float, initial_gap: float | None
) -> int:
    """Returns the T that minimises theorem 6.3's bound on the mean squared gradient."""
    gap = base.initial_gap(problem.objective, initial_gap)
    per_step = (
        gaussian_multiplier(problem.budget, 1)
        * GradientQuery(
            1.0, clip, problem.objective, problem.data_size, problem.budget.relation
        ).sensitivity
    )
    best = math.sqrt(2 * gap / (step_size * problem.dimension)) / per_step
    return int(min(max(round(best), 1), LONGEST))


def paper_multiplier(budget: PrivacyBudget, steps: int) -> float:
    """Returns theorem 6.1's noise over the sensitivity, with a constant that always suffices."""
    # sigma^2 = c G^2 T ln(1/delta) / (n epsilon)^2 over the sensitivity 2 G / n.
    log = math.log(1 / budget.delta)
    constant = 8 + 4 * budget.epsilon / log
    return round_up(math.sqrt(constant * steps * log) / (2 * budget.epsilon))
