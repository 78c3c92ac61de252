"""DP-GD (Wang, Ye and Xu 2017, algorithm 4): noisy full-batch gradient descent, the baseline."""

import dataclasses
import math

import numpy as np

from dpjax import _validate, objectives
from dpjax.accounting import PrivacyBudget, gaussian_multiplier, round_up
from dpjax.algorithms import base
from dpjax.algorithms.certificate import CLIP_SLACK, NoiseBounds
from dpjax.algorithms.descent import Descent, Steps, output_rule
from dpjax.linalg import chi_quantile
from dpjax.oracles import GradientQuery, Query


def dp_gradient_descent(
    objective: objectives.Objective,
    budget: PrivacyBudget,
    *,
    data_size: int,
    dimension: int,
    steps: int | None = None,
    step_size: float | None = None,
    clip_norm: float | None = None,
    initial_gap: float | None = None,
    pl_constant: float | None = None,
    batch_size: int | None = None,
    max_batch_size: int | None = None,
    output: str = "last",
    average_decay: float | None = None,
    accountant: str = "pld",
    certify: str | None = "last_query",
    beta: float = 0.05,
) -> Descent:
    """Returns differentially private gradient descent, calibrated to the budget.

    A smooth regularizer is differentiated; one that only has a proximal operator, such as ``L1`` or
    a convex set, is applied by it after each step.

    Args:
      steps: T; by default the one that minimises the bound of theorem 6.3 on the mean squared
        gradient, 2 gap / (eta T) + p sigma^2, at most 2,048.
      step_size: eta; by default 1 / smoothness of what is differentiated.
      pl_constant: mu of the Polyak-Lojasiewicz condition |grad L|^2 >= 2 mu (L - min L), such as
        the strong convexity of an l2 penalty on a convex loss. T is then by default theorem 6.2's.
      batch_size: expected size of a Poisson batch; by default every record at every step. With
        batches there is no certificate, and T does not count their own variance.
      output: as in all factories; ``"random"`` is the iterate of theorem 6.3.
      certify: ``"last_query"`` (free; w_{T-1}) or None; not for batches or a proximal step.
      the others: the same in all factories, see ``help(dpjax.algorithms)``.

    Privacy: releases T clipped mean gradients with Gaussian noise; every iterate is covered. The
      choice of the output is post-processing; of ``output="random"`` the solution tells the
      iterate's number, which is drawn without the records.

    Reference: Wang, Ye and Xu (2017), algorithm 4, theorems 6.1 to 6.3. Its range of the random
      iterate, 0 .. m - 1 for m itself, is a misprint of 0 .. T - 1; w_1 .. w_T, without the
      public w_0, has the same bound but for one more step's noise.

    >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-6)
    >>> algorithm = dp_gradient_descent(
    ...     objectives.logistic(), budget, data_size=10_000, dimension=10)
    >>> algorithm.steps
    440
    """
    problem = base.check_problem(objective, budget, data_size, dimension, accountant)
    clip, _ = base.clip_norms(objective, clip_norm, 1.0)
    mu = _check_polyak_lojasiewicz(objective, pl_constant)
    if certify not in (None, "last_query"):
        raise ValueError(f"certify must be 'last_query' or None for DP-GD, got {certify!r}.")
    if step_size is None:
        step_size = default_step_size(objective)
    base.positive_leaf("step_size", step_size)
    if steps is None:
        # The smoothness of what is differentiated.
        known = objective.constants if base.proximal(objective) else objective
        if objective.constants and known and known.smoothness:
            words = (
                f"1 / smoothness = {1 / known.smoothness:g}, the bound of theorems 6.2 and 6.3, by "
                "which steps is chosen here; give steps, or a smaller step."
            )
            base.warn_if_above(step_size, 1 / known.smoothness, words)
        steps = theory_steps(problem, clip, step_size, initial_gap, mu)
    steps = _validate.int32_count("steps", steps)
    batch = problem.data_size if batch_size is None else batch_size
    query = base.calibrated_query(
        problem, GradientQuery, steps, batch, max_batch_size, clip_norm=clip
    )
    beta = _validate.open_unit("beta", beta)
    # The error of a batch has no bound, and a penalty without a gradient no gradient norm.
    certified = certify is not None and query.sampler.reads_all and not base.proximal(objective)
    return Descent(
        query=query,
        rule=Steps(base.positive_leaf("step_size", step_size)),
        outputs=output_rule(output, average_decay),
        name="DP-GD",
        bounds=noise_bounds(query, problem.dimension, beta) if certified else None,
        beta=beta,
        proximal=base.proximal(objective),
        unclipped=base.never_clips(objective, budget.relation, clip),
        **problem.plan(steps),
    )


def noise_bounds(query: Query, dimension: int, beta: float) -> NoiseBounds:
    """Returns what the norm of the noise exceeds with probability at most ``beta``."""
    # The norm of p independent normal numbers has a chi distribution.
    noise = float(query.stddev) * chi_quantile(dimension, 1 - beta)
    return NoiseBounds(round_up(noise + CLIP_SLACK * float(query.bound())), None)


def default_step_size(objective: objectives.Objective) -> float:
    """Returns 1 / smoothness of what is differentiated, or the objective's own default."""
    if objective.constants is not None and base.proximal(objective):
        return 1 / objective.constants.smoothness
    if objective.constants is None and objective.defaults is not None:
        return objective.defaults.step_size
    if objective.smoothness is None and objective.constants is not None:
        raise ValueError(
            f"step_size is required: the regularizer of {objective.name} has neither smoothness "
            "nor a prox."
        )
    return 1 / base.required("step_size", objective.smoothness, None, objective)


def batch_step_size(
    objective: objectives.Objective, step_size: float | None, factor: float
) -> float:
    """Returns a step size, by default ``factor`` over the smoothness of one record's loss."""
    if step_size is None:
        # A batch is a part of the data term: the regularizer's smoothness does not count.
        step_size = factor * default_step_size(dataclasses.replace(objective, regularizer=None))
    return base.positive_leaf("step_size", step_size)


def theory_steps(
    problem: base.Problem,
    clip: float,
    step_size: float,
    initial_gap: float | None,
    mu: float | None = None,
) -> int:
    """Returns the T up to 2,048 that minimises theorem 6.3's bound on the mean squared gradient.

    With mu it is theorem 6.2's bound on L(w_T) - min L.
    """
    gap = base.initial_gap(problem.objective, initial_gap)
    stddev = noise_of_one(problem, clip)
    if mu is None:
        # 2 gap / (eta T) + T p sigma_1^2 is least where its terms are equal.
        best = math.sqrt(2 * gap / (step_size * problem.dimension)) / stddev
        return int(min(max(round(best), 1), base.MAX_STEPS))
    # For eta at most 1 / M one step leaves at most q = 1 - mu eta of the gap, and adds at most
    # M eta^2 p sigma^2 / 2 <= eta p sigma^2 / 2. T steps cost sigma^2 = T sigma_1^2, so that the
    # bound is q^T gap + (1 - q^T) T p sigma_1^2 / (2 mu). Its least T is about the theorem's,
    # log(2 mu gap / (p sigma_1^2)) / (mu eta), here with the constants.
    noise = problem.dimension * stddev**2 / (2 * mu)
    steps = np.arange(1, base.MAX_STEPS + 1)
    remaining = max(1 - mu * step_size, 0.0) ** steps
    return int(steps[np.argmin(remaining * gap + (1 - remaining) * steps * noise)])


def noise_of_one(problem: base.Problem, clip: float) -> float:
    """Returns the noise's standard deviation if one full gradient were all that is released."""
    # For T gradients it is sqrt(T) times this.
    query = GradientQuery(setting=problem.setting, noise_multiplier=1.0, clip_norm=clip)
    multiplier = gaussian_multiplier(problem.budget, 1, noise_draws=problem.dimension)
    return multiplier * float(query.sensitivity)


def _check_polyak_lojasiewicz(objective: objectives.Objective, mu: float | None) -> float | None:
    if mu is None:
        return None
    largest = math.inf if objective.smoothness is None else objective.smoothness
    if _validate.normal("pl_constant", mu) > largest:
        raise ValueError(
            f"pl_constant must be at most {largest:g}, the smoothness of {objective.name}, "
            f"got {mu!r}."
        )
    return float(mu)
