"""DP-SGD (Bassily et al. 2014, Abadi et al. 2016): noisy proximal steps on Poisson batches."""

from dpjax import _validate
from dpjax.accounting import PrivacyBudget
from dpjax.algorithms import base
from dpjax.algorithms.descent import Descent, Steps, output_rule
from dpjax.algorithms.gradient_descent import batch_step_size
from dpjax.objectives import Objective
from dpjax.oracles import GradientQuery

# The first step over 1 / smoothness: rows of unit norm are served by weights of norm about 35.
_FIRST = 64


def dp_sgd(
    objective: Objective,
    budget: PrivacyBudget,
    *,
    data_size: int,
    dimension: int,
    batch_size: int | None = None,
    steps: int | None = None,
    step_size: float | None = None,
    decay: float = 0.5,
    output: str = "last",
    average_decay: float | None = None,
    clip_norm: float | None = None,
    max_batch_size: int | None = None,
    accountant: str = "pld",
) -> Descent:
    """Returns DP-SGD, calibrated to the budget: what private training is usually compared with.

    Arguments that are not listed mean the same in all factories: see ``help(dpjax.algorithms)``.

    Args:
      objective: what to minimise. A regularizer with a proximal operator is handled by it, so that
        l1 penalties and convex sets (a projection) are exact; any other by its gradient.
      steps: T; by default 600.
      step_size: of the first step; by default 64 / smoothness of one record's loss, for rows of
        unit norm; the decay makes it small in time. For other models choose it.
      decay: the step t has length step_size / t^decay: 0.5 is Bassily et al.'s for convex losses,
        1 theirs for strongly convex ones, 0 a constant.

    Privacy: releases T clipped mean gradients with Gaussian noise, each of its own Poisson batch;
      every iterate is covered. Proximal steps and the output rule are post-processing.

    Reference: Abadi et al. (2016), algorithm 1; Bassily, Smith and Thakurta (2014), algorithm 1,
      for the steps, with Poisson batches and exact accounting in place of theirs.

    >>> from dpjax import objectives
    >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-6)
    >>> algorithm = dp_sgd(objectives.logistic_l1(), budget, data_size=7_000, dimension=10, steps=9)
    >>> round(algorithm.event.releases[0].sampling_probability, 3)
    0.071
    """
    problem = base.check_problem(objective, budget, data_size, dimension, accountant)
    clip, _ = base.clip_norms(objective, clip_norm, 1.0)
    steps = _validate.int32_count("steps", base.STEPS if steps is None else steps)
    query = base.calibrated_query(
        problem, GradientQuery, steps, batch_size, max_batch_size, clip_norm=clip
    )
    decay = base.to_leaf(_validate.non_negative("decay", decay))
    return Descent(
        query=query,
        rule=Steps(batch_step_size(objective, step_size, _FIRST), decay),
        outputs=output_rule(output, average_decay),
        name="DP-SGD",
        # Also if the penalty is smooth; DP-GD would differentiate it.
        proximal=hasattr(objective.regularizer, "prox"),
        **problem.plan(steps),
    )
