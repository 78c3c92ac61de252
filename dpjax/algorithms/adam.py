"""DP-Adam (Abadi et al. 2016 with Kingma and Ba 2015): optax's Adam on noisy gradients."""

from dpjax import _validate
from dpjax.accounting import PrivacyBudget
from dpjax.algorithms import base
from dpjax.algorithms.descent import AdamSteps, Descent
from dpjax.objectives import Objective
from dpjax.oracles import GradientQuery

TITLE = "DP-Adam"


def dp_adam(
    objective: Objective,
    budget: PrivacyBudget,
    *,
    data_size: int,
    dimension: int,
    batch_size: int | None = None,
    steps: int | None = None,
    step_size: float = 2.0,
    final_step_size: float | None = None,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    clip_norm: float | None = None,
    max_batch_size: int | None = None,
    accountant: str = "pld",
) -> Descent:
    """Returns DP-Adam, calibrated to the budget: the first-order baseline of every comparison.

    Arguments that are not listed mean the same in all factories: see ``help(dpjax.algorithms)``.

    Args:
      steps: T; by default 600.
      step_size: of the first step. Rows of unit norm are served by weights of norm about 35, so
        it is large; for a network take 1e-3.
      final_step_size: of the last step, geometric in between; by default 1/300 of the first.
      b1: decay of the mean of gradients, from 0 to below 1.
      b2: decay of the mean of their squares, from 0 to below 1.
      eps: added to the root of that mean.

    Privacy: releases T clipped mean gradients with Gaussian noise, each of its own Poisson batch;
      every iterate is covered. Both moments are post-processing of them.

    Reference: Kingma and Ba (2015), algorithm 1, on the gradients of Abadi et al. (2016), algorithm
      1, without the factor by which noise biases the second moment.

    >>> from dpjax import objectives
    >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-6)
    >>> algorithm = dp_adam(objectives.logistic(), budget, data_size=7_000, dimension=10, steps=50)
    >>> round(algorithm.event.releases[0].sampling_probability, 3)
    0.071
    """
    problem = base.check_problem(objective, budget, data_size, dimension, accountant)
    base.check_smooth(objective, TITLE)
    clip, _ = base.clip_norms(objective, clip_norm, 1.0)
    steps = _validate.int32_count("steps", base.STEPS if steps is None else steps)
    query = base.calibrated_query(
        problem, GradientQuery, steps, batch_size, max_batch_size, clip_norm=clip
    )
    rate = base.positive_leaf("step_size", step_size)
    # Noise does not fall as the optimum comes near: steps must, or the iterates keep moving by it.
    final = rate / 300 if final_step_size is None else final_step_size
    rule = AdamSteps(
        step_size=rate,
        final_step_size=base.positive_leaf("final_step_size", final),
        steps=steps,
        b1=base.to_leaf(_validate.decay("b1", b1)),
        b2=base.to_leaf(_validate.decay("b2", b2)),
        eps=base.positive_leaf("eps", eps),
    )
    return Descent(query=query, rule=rule, name=TITLE, **problem.plan(steps))
