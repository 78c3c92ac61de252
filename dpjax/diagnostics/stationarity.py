"""NOT PRIVATE: exact objective, gradient norm, smallest eigenvalue and accuracy on raw data."""

import functools

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from dpjax._typing import Array, Params, PyTree
from dpjax.objectives import Objective

# Each is one program: one operation after another, each new shape would be compiled for each.


@jax.jit
def exact_objective(objective: Objective, params: Params, examples: PyTree) -> Array:
    """Returns the mean loss plus the regularizer. NOT PRIVATE.

    Args:
      objective: what is evaluated.
      params: where.
      examples: pytree with one row per record; records with an entry or a loss that is not finite
        are left out of the sum, as they are in training, but counted in n.

    >>> from dpjax.objectives import logistic
    >>> print(exact_objective(logistic(), jnp.zeros(1), (jnp.ones((2, 1)), jnp.ones(2))))
    0.6931472
    """
    mean = _mean_loss(objective.data_term, params, examples)
    return mean + _regularizer(objective, params)


@jax.jit
def exact_gradient_norm(objective: Objective, params: Params, examples: PyTree) -> Array:
    """Returns the l2 norm of the exact gradient. NOT PRIVATE.

    >>> from dpjax.objectives import logistic
    >>> print(exact_gradient_norm(logistic(), jnp.zeros(1), (jnp.ones((2, 1)), jnp.ones(2))))
    0.5
    """
    gradient = jax.grad(exact_objective, argnums=1)(objective, params, examples)
    return jnp.linalg.norm(ravel_pytree(gradient)[0])


def exact_min_eigenvalue(objective: Objective, params: Params, examples: PyTree) -> Array:
    """Returns the smallest eigenvalue of the exact Hessian. NOT PRIVATE.

    >>> from dpjax.objectives import logistic
    >>> print(exact_min_eigenvalue(logistic(), jnp.zeros(1), (jnp.ones((2, 1)), jnp.ones(2))))
    0.25
    """
    return _smallest_eigenvalue(exact_hessian(objective, params, examples))


@jax.jit
def exact_accuracy(objective: Objective, params: Array, x: Array, y: Array) -> Array:
    """Returns the share of rows whose label is predicted. NOT PRIVATE on private rows.

    >>> from dpjax.objectives import logistic
    >>> print(exact_accuracy(logistic(), jnp.ones(1), jnp.ones((2, 1)), jnp.array([1.0, -1.0])))
    0.5
    """
    return jnp.mean(objective.predict(params, x) == objective.read((x, y))[1])


@jax.jit
def _smallest_eigenvalue(hessian: Array) -> Array:
    return jnp.linalg.eigvalsh(hessian)[0]


@functools.partial(jax.jit, static_argnums=0)
def _mean_loss(objective: Objective, params: Params, examples: PyTree) -> Array:
    losses = jax.vmap(objective.loss, in_axes=(None, 0))
    examples = objective.read(examples)
    kept = jnp.isfinite(losses(params, examples))
    for leaf in jax.tree.leaves(examples):
        kept = kept & jnp.isfinite(leaf).reshape(kept.size, -1).all(axis=1)
    # A NaN would reach the derivatives through the branch not taken, so in place of a record that
    # is left out the first one kept is evaluated.
    rows = jnp.where(kept, jnp.arange(kept.size), jnp.argmax(kept))
    values = losses(params, jax.tree.map(lambda leaf: jnp.asarray(leaf)[rows], examples))
    return jnp.sum(jnp.where(kept, values, 0.0)) / kept.size


def _regularizer(objective: Objective, params: Params) -> Array:
    return jnp.zeros(()) if objective.regularizer is None else objective.regularizer(params)


@jax.jit
def exact_hessian(objective: Objective, params: Params, examples: PyTree) -> Array:
    """Returns the exact Hessian of the flattened parameters, (p, p). NOT PRIVATE.

    >>> from dpjax.objectives import logistic
    >>> print(exact_hessian(logistic(), jnp.zeros(1), (jnp.ones((2, 1)), jnp.ones(2))))
    [[0.25]]
    """
    mean = _mean_hessian(objective.data_term, params, examples)
    return objective.regularize_hessian(mean, params)


def _mean_hessian(objective: Objective, params: Params, examples: PyTree) -> Array:
    flat, unravel = ravel_pytree(params)
    gradient = jax.grad(lambda w: _mean_loss(objective, unravel(w), examples))
    # One column after the other: (n, p) at a time, never (n, p, p).
    columns = jax.lax.map(
        lambda v: jax.jvp(gradient, (flat,), (v,))[1], jnp.eye(flat.size, dtype=flat.dtype)
    )
    # Columns differ from rows by rounding; eigenvalues are those of a symmetric matrix.
    return (columns + columns.T) / 2
