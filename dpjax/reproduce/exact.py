"""NOT PRIVATE: exact values of many parameters at once, and local minima by exact descent."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._typing import Array
from dpjax.linalg import trust_region_step
from dpjax.objectives import L2, Objective

Examples = tuple[Array | np.ndarray, Array | np.ndarray]

# A Hessian of so many rows points the way as well; value and gradient are of all rows.
_HESSIAN_ROWS = 50_000
_FLAT = 1e-8
_LOOSE = 1e-5


def exact_values(
    objective: Objective, params: Array | np.ndarray, examples: Examples
) -> tuple[np.ndarray, np.ndarray]:
    """Returns objective values and gradient norms of many parameters. NOT PRIVATE.

    One product with the features serves all of them, where ``diagnostics`` takes one each.

    Args:
      objective: with a margin.
      params: (m, p).
      examples: ``(x, y)``, x (n, p) and y (n,), every row a valid record.

    Returns:
      (m,) float64 values, and (m,) float64 l2 norms of the gradients; regularizer included.

    Raises:
      ValueError: if the objective has no margin.

    Privacy: NOT PRIVATE.

    >>> from dpjax.objectives import logistic
    >>> values, norms = exact_values(logistic(), jnp.zeros((1, 1)), (jnp.ones((2, 1)), jnp.ones(2)))
    >>> values.round(4).tolist(), norms.tolist()
    ([0.6931], [0.5])
    """
    values, gradients = _values_and_gradients(objective, jnp.asarray(params), examples)
    return values, np.linalg.norm(gradients.astype(np.float64), axis=1)


def exact_descent(
    objective: Objective, start: Array | np.ndarray, examples: Examples, most: int = 200
) -> tuple[np.ndarray, float]:
    """Returns the local minimum that a monotone trust-region descent ends in. NOT PRIVATE.

    It starts with radius 1, small beside the distance between minima on unit rows, so that it stays
    in the basin of ``start``.

    Args:
      objective: with a margin.
      start: (p,).
      examples: ``(x, y)``, every row a valid record.
      most: iterations at most.

    Returns:
      (p,) parameters, and the value there.

    Privacy: NOT PRIVATE.

    >>> from dpjax.objectives import logistic_l2
    >>> examples = jnp.ones((2, 1)), jnp.array([1.0, -1.0])
    >>> params, value = exact_descent(logistic_l2(), jnp.array([2.0]), examples)
    >>> bool(abs(params[0]) < 1e-3), round(value, 4)
    (True, 0.6931)
    """
    x, y = examples
    every = max(1, len(y) // _HESSIAN_ROWS)
    some = x[::every], y[::every]
    params, radius = jnp.asarray(start), 1.0
    values, gradients = _values_and_gradients(objective, params[None], examples)
    for _ in range(most):
        hessian = _hessian(objective, params, some)
        move, _ = _step(gradients[0], hessian, radius)
        model = -float(gradients[0] @ move + move @ (hessian @ move) / 2)
        if model < _FLAT:
            break
        moved = params + move
        new_values, new_gradients = _values_and_gradients(objective, moved[None], examples)
        ratio = (values[0] - new_values[0]) / model
        if ratio > 0.1:
            params, values, gradients = moved, new_values, new_gradients
        if ratio > 0.7:
            radius *= 2
        elif ratio < 0.3:
            radius /= 4
    return np.asarray(params), float(values[0])


def exact_optimum(
    objective: Objective, examples: Examples, starts: int = 4, seed: int = 0
) -> tuple[np.ndarray, float]:
    """Returns the best of the local minima found from several starts. NOT PRIVATE.

    The first start is zero; the second is the minimum with hardly any regularizer, from where a
    nonconvex one has the fewest weights to bring back; the others are normal, of norm about 25.

    Args:
      objective: with a margin.
      examples: ``(x, y)``, every row a valid record.
      starts: how many.
      seed: of the normal ones.

    Returns:
      (p,) parameters, and the value there.

    Privacy: NOT PRIVATE.

    >>> from dpjax.objectives import logistic_l2
    >>> examples = jnp.ones((2, 1)), jnp.array([1.0, -1.0])
    >>> round(exact_optimum(logistic_l2(), examples, starts=2)[1], 4)
    0.6931
    """
    dimension = examples[0].shape[1]
    random = np.random.default_rng(seed)
    points = [np.zeros(dimension, np.float32)]
    loose = dataclasses.replace(objective, regularizer=L2(_LOOSE))
    points.append(exact_descent(loose, points[0], examples)[0])
    while len(points) < starts:
        points.append(random.normal(0, 25 / np.sqrt(dimension), dimension).astype(np.float32))
    found = [exact_descent(objective, point, examples) for point in points[:starts]]
    return min(found, key=lambda one: one[1])


_step = jax.jit(trust_region_step)


def _values_and_gradients(
    objective: Objective, params: Array, examples: Examples
) -> tuple[np.ndarray, np.ndarray]:
    losses, own, gradients = _pass(objective, params, examples)
    # The mean of half a million float32 losses, to the digits that tell gaps of 1e-5 apart.
    values = np.asarray(losses).mean(axis=0, dtype=np.float64) + np.asarray(own, np.float64)
    return values, np.asarray(gradients)


@functools.partial(jax.jit, static_argnums=0)
def _pass(objective: Objective, params: Array, examples: Examples) -> tuple[Array, Array, Array]:
    x, y = map(jnp.asarray, examples)
    margins = y[:, None] * (x @ params.T)
    loss, slope = jax.vmap(jax.vmap(jax.value_and_grad(_margin(objective))))(margins)
    gradients = (y[:, None] * slope).T @ x / len(y)
    own = jnp.zeros(len(params))
    if objective.regularizer is not None:
        own = jax.vmap(objective.regularizer)(params)
    return loss, own, jax.vmap(objective.regularize_gradient)(gradients, params)


@functools.partial(jax.jit, static_argnums=0)
def _hessian(objective: Objective, params: Array, examples: Examples) -> Array:
    x, y = map(jnp.asarray, examples)
    curvature = jax.vmap(jax.grad(jax.grad(_margin(objective))))(y * (x @ params))
    return objective.regularize_hessian((x * curvature[:, None]).T @ x / len(y), params)


def _margin(objective: Objective):
    if objective.margin is None:
        raise ValueError(f"{objective.name} has no margin, which exact values here are made of.")
    return objective.margin
