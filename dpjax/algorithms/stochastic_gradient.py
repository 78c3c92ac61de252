"""DP-SGD (Bassily et al. 2014, Abadi et al. 2016), DP-Adam, and any optax optimizer on its answers.

Each step asks one noisy gradient of a Poisson batch.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from dpjax import _validate, objectives
from dpjax._typing import Params
from dpjax._wide import at_least_float32
from dpjax.accounting import PrivacyBudget
from dpjax.algorithms import base
from dpjax.algorithms.descent import AdamSteps, Descent, OptaxSteps, Steps, output_rule
from dpjax.algorithms.gradient_descent import batch_step_size
from dpjax.oracles import NetworkQuery
from dpjax.transforms import check_optimizer

# The first step over 1 / smoothness: rows of unit norm are served by weights of norm about 35.
_FIRST = 64
# One object, so that it compiles once. For rows of unit norm, whose weights have norm about 35:
# 600 steps of 0.1 get there.
_ADAM = optax.adam(0.1)


def dp_sgd(
    objective: objectives.Objective,
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

    Args:
      objective: what to minimise. A regularizer with a proximal operator is handled by it, so that
        l1 penalties and convex sets (a projection) are exact; any other by its gradient.
      step_size: of the first step; by default 64 / smoothness of one record's loss, for rows of
        unit norm; the decay makes it small in time. For other models choose it.
      decay: the step t has length step_size / t^decay: 0.5 is Bassily et al.'s for convex losses,
        1 theirs for strongly convex ones, 0 a constant.
      the others: the same in all factories, see ``help(dpjax.algorithms)``.

    Privacy: releases T clipped mean gradients with Gaussian noise, each of its own Poisson batch;
      every iterate is covered. Proximal steps and the output rule are post-processing.

    Reference: Abadi et al. (2016), algorithm 1; Bassily, Smith and Thakurta (2014), algorithm 1,
      for the steps, with Poisson batches and exact accounting in place of theirs.

    >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-6)
    >>> algorithm = dp_sgd(objectives.logistic_l1(), budget, data_size=7_000, dimension=10, steps=9)
    >>> round(algorithm.event.releases[0].sampling_probability, 3)
    0.071
    """
    problem = base.check_problem(objective, budget, data_size, dimension, accountant)
    steps = _validate.int32_count("steps", base.STEPS if steps is None else steps)
    decay = base.to_leaf(_validate.non_negative("decay", decay))
    return Descent(
        query=base.gradient_query(problem, steps, clip_norm, (batch_size, max_batch_size)),
        rule=Steps(batch_step_size(objective, step_size, _FIRST), decay),
        outputs=output_rule(output, average_decay),
        name="DP-SGD",
        # Also if the penalty is smooth; DP-GD would differentiate it.
        proximal=hasattr(objective.regularizer, "prox"),
        **problem.plan(steps),
    )


def dp_adam(
    objective: objectives.Objective,
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

    Args:
      step_size: of the first step. Rows of unit norm are served by weights of norm about 35, so
        it is large; for a network take 1e-3.
      final_step_size: of the last step, geometric in between; by default 1/300 of the first.
      b1: decay of the mean of gradients, from 0 to below 1.
      b2: decay of the mean of their squares, from 0 to below 1.
      eps: added to the root of that mean.
      the others: the same in all factories, see ``help(dpjax.algorithms)``.

    Privacy: releases T clipped mean gradients with Gaussian noise, each of its own Poisson batch;
      every iterate is covered. Both moments are post-processing of them.

    Reference: Kingma and Ba (2015), algorithm 1, on the gradients of Abadi et al. (2016), algorithm
      1, without the factor by which noise biases the second moment.

    >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-6)
    >>> algorithm = dp_adam(objectives.logistic(), budget, data_size=7_000, dimension=10, steps=50)
    >>> round(algorithm.event.releases[0].sampling_probability, 3)
    0.071
    """
    problem = base.check_problem(objective, budget, data_size, dimension, accountant)
    base.check_smooth(objective, "DP-Adam")
    steps = _validate.int32_count("steps", base.STEPS if steps is None else steps)
    query = base.gradient_query(problem, steps, clip_norm, (batch_size, max_batch_size))
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
    return Descent(query=query, rule=rule, name="DP-Adam", **problem.plan(steps))


def dp_optimizer(
    objective: objectives.Objective,
    budget: PrivacyBudget,
    *,
    data_size: int,
    dimension: int,
    optimizer: optax.GradientTransformation | None = None,
    params: Params | None = None,
    batch_size: int | None = None,
    steps: int | None = None,
    clip_norm: float | None = None,
    output: str = "last",
    average_decay: float | None = None,
    max_batch_size: int | None = None,
    per_layer: bool = False,
    memory_limit: int | None = None,
    accountant: str = "pld",
) -> Descent:
    """Returns DP-SGD with the steps of an optax optimizer, calibrated to the budget.

    Args:
      optimizer: fed the noisy mean gradient, in float32 at least; learning rate and schedule are
        its own. By default ``optax.adam(0.1)``, for rows of unit norm; for a network say
        ``optax.adam(1e-3)``. Another configuration with the same object compiles nothing anew.
        One that adds noise, has ``optax.MultiSteps`` or reads more than gradient and params raises.
      params: as in ``solve``, or its shapes, for an optimizer that treats the leaves of a pytree
        differently; it is traced with them. By default a vector of ``dimension`` numbers.
      per_layer: as in ``clipped_grad``: each leaf is clipped, within the same joint bound.
      memory_limit: bytes of one clipped sum, as in ``clipped_grad``.
      the others: the same in all factories, see ``help(dpjax.algorithms)``.

    Privacy: releases T clipped mean gradients with Gaussian noise, each of its own Poisson batch;
      every iterate is covered. The optimizer and the output rule are post-processing; the event is
      that of all T steps.

    Reference: Abadi et al. (2016), algorithm 1. Zhang et al. (2021), algorithm 1, for the random
      iterate.

    >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-6)
    >>> algorithm = dp_optimizer(
    ...     objectives.logistic(), budget, data_size=7_000, dimension=10, steps=50,
    ...     optimizer=optax.sgd(0.5))
    >>> algorithm.event.releases[0].count
    50
    """
    problem = base.check_problem(objective, budget, data_size, dimension, accountant)
    base.check_smooth(objective, "DP optimizer")
    optimizer = _ADAM if optimizer is None else optimizer
    shapes = jnp.zeros(problem.dimension) if params is None else params
    size = sum(jnp.size(leaf) for leaf in jax.tree.leaves(shapes))
    if size != problem.dimension:
        raise ValueError(f"params hold {size} numbers, but dimension={dimension}.")
    check_optimizer(optimizer, shapes)
    _check_update(optimizer, shapes)
    steps = _validate.int32_count("steps", base.STEPS if steps is None else steps)
    sizes = (batch_size, max_batch_size)
    fields = {"per_layer": per_layer, "memory_limit": memory_limit}
    query = base.gradient_query(problem, steps, clip_norm, sizes, NetworkQuery, **fields)
    return Descent(
        query=query,
        rule=OptaxSteps(optimizer),
        outputs=output_rule(output, average_decay),
        name="DP optimizer",
        **problem.plan(steps),
    )


def _check_update(optimizer: optax.GradientTransformation, params: Any) -> None:
    # On shapes alone, so that a mistake is found before anything is calibrated.
    wide = jax.eval_shape(at_least_float32, params)
    try:
        # Gradients have the shapes and dtypes of the parameters, so these stand for both.
        jax.eval_shape(optimizer.update, wide, jax.eval_shape(optimizer.init, wide), wide)
    except TypeError as error:
        raise ValueError(
            f"optimizer must update from gradients and parameters alone, and failed: {error}. No "
            "loss value is released that could be passed to it."
        ) from error
