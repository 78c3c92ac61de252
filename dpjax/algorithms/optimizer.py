"""Any optax optimizer on the noisy gradients of DP-SGD (Abadi et al. 2016), for networks."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from dpjax import _validate
from dpjax._typing import Params
from dpjax._wide import at_least_float32
from dpjax.accounting import PrivacyBudget
from dpjax.algorithms import base
from dpjax.algorithms.descent import Descent, OptaxSteps, output_rule
from dpjax.objectives import Objective
from dpjax.oracles import NetworkQuery
from dpjax.transforms import check_optimizer

# One object, so that it compiles once. For rows of unit norm, whose weights have norm about 35:
# 600 steps of 0.1 get there.
_ADAM = optax.adam(0.1)
TITLE = "DP optimizer"


def dp_optimizer(
    objective: Objective,
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

    Arguments that are not listed mean the same in all factories: see ``help(dpjax.algorithms)``.

    Args:
      optimizer: fed the noisy mean gradient, in float32 at least; learning rate and schedule are
        its own. By default ``optax.adam(0.1)``, for rows of unit norm; for a network say
        ``optax.adam(1e-3)``.
      params: as in ``solve``, or its shapes, for an optimizer that treats the leaves of a pytree
        differently; it is traced with them. By default a vector of ``dimension`` numbers.
      steps: T; by default 600.
      per_layer: as in ``clipped_grad``: each leaf is clipped, within the same joint bound.
      memory_limit: bytes of one clipped sum, as in ``clipped_grad``.

    Returns:
      A frozen pytree that, built again with the same ``optimizer`` object, compiles nothing anew.

    Raises:
      ValueError: for params that are not ``dimension`` numbers, or an optimizer that adds noise,
        holds ``optax.MultiSteps``, or needs more than gradient and parameters.

    Privacy: releases T clipped mean gradients with Gaussian noise, each of its own Poisson batch;
      every iterate is covered. The optimizer and the output rule are post-processing; the event is
      that of all T steps.

    Reference: Abadi et al. (2016), algorithm 1. Zhang et al. (2021), algorithm 1, for the random
      iterate.

    >>> from dpjax import objectives
    >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-6)
    >>> algorithm = dp_optimizer(
    ...     objectives.logistic(), budget, data_size=7_000, dimension=10, steps=50,
    ...     optimizer=optax.sgd(0.5))
    >>> algorithm.event.releases[0].count
    50
    """
    problem = base.check_problem(objective, budget, data_size, dimension, accountant)
    base.check_smooth(objective, TITLE)
    optimizer = _ADAM if optimizer is None else optimizer
    shapes = _shapes(params, problem.dimension)
    check_optimizer(optimizer, shapes)
    _check_update(optimizer, shapes)
    clip, _ = base.clip_norms(objective, clip_norm, 1.0)
    steps = _validate.int32_count("steps", base.STEPS if steps is None else steps)
    clipping = {"clip_norm": clip, "per_layer": per_layer, "memory_limit": memory_limit}
    query = base.calibrated_query(
        problem, NetworkQuery, steps, batch_size, max_batch_size, **clipping
    )
    return Descent(
        query=query,
        rule=OptaxSteps(optimizer),
        outputs=output_rule(output, average_decay),
        name=TITLE,
        **problem.plan(steps),
    )


def _shapes(params: Params | None, dimension: int) -> Params:
    if params is None:
        return jnp.zeros(dimension)
    size = sum(jnp.size(leaf) for leaf in jax.tree.leaves(params))
    if size != dimension:
        raise ValueError(f"params hold {size} numbers, but dimension={dimension}.")
    return params


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
