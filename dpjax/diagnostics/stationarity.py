"""NOT PRIVATE: exact objective, derivatives and accuracy on raw data; saddle, minimum, escape."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree

from dpjax._typing import Array, Params, PyTree
from dpjax.linalg import Exact, trust_region_step
from dpjax.objectives import LowRankLoss, Objective, PhaseLoss, TwoLayerLoss
from dpjax.objectives.linear import Signs

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
    return mean + (
        jnp.zeros(()) if objective.regularizer is None else objective.regularizer(params)
    )


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
    label, kind = objective.read((x, y))[1], objective.label_kind
    label = label[..., 0] if kind is not None and kind.axes else label  # of weights beside it
    return jnp.mean(objective.predict(params, x) == label)


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


@jax.jit
def exact_hessian(objective: Objective, params: Params, examples: PyTree) -> Array:
    """Returns the exact Hessian of the flattened parameters, (p, p). NOT PRIVATE.

    >>> from dpjax.objectives import logistic
    >>> print(exact_hessian(logistic(), jnp.zeros(1), (jnp.ones((2, 1)), jnp.ones(2))))
    [[0.25]]
    """
    flat, unravel = ravel_pytree(params)
    gradient = jax.grad(lambda w: _mean_loss(objective.data_term, unravel(w), examples))
    # One column after the other: (n, p) at a time, never (n, p, p).
    columns = jax.lax.map(
        lambda v: jax.jvp(gradient, (flat,), (v,))[1], jnp.eye(flat.size, dtype=flat.dtype)
    )
    # Columns differ from rows by rounding; eigenvalues are those of a symmetric matrix.
    return objective.regularize_hessian((columns + columns.T) / 2, params)


_regularize = jax.jit(Objective.regularize_hessian)
_MOST_STEPS = 500
_FIRST_RADIUS, _LEAST_RADIUS = 0.1, 1e-9
_POLISHING_STEPS = 2
# Relative to the largest: a curvature that is taken for none.
_FLAT = 1e-6


class Point(NamedTuple):
    """A stationary point (p,) of the exact objective, its value, and the least curvature there."""

    params: np.ndarray
    value: float
    min_eigenvalue: float


class Landscape(NamedTuple):
    """What there is to escape from and to.

    Args:
      saddle: params = 0, its eigenvalue in closed form.
      minimum: where exact descent from the saddle ends; a local minimum, and no proof of a global
        one. The problems are even, so minus its parameters are another of the same value.
      halfway: the value midway between the two; below it a run has escaped.
    """

    saddle: Point
    minimum: Point
    halfway: float


def exact_saddle(objective: Objective, examples: tuple[PyTree, PyTree]) -> Point:
    """Returns the stationary point 0, its smallest eigenvalue in closed form. NOT PRIVATE.

    With S the mean of x x': that of the Hessian is phi''(0) times the largest of S for an even loss
    phi of the margin (Welsch, PCA), minus the largest of S for ``low_rank``, minus that of the mean
    of |b| a a' for phase retrieval, -|mean of y x| / 2 for two layers; plus the curvature of the
    regularizer. No derivative of the loss is taken over the records.

    Args:
      objective: one of ``dpjax.objectives.SADDLES``, or ``low_rank``.
      examples: ``(x, y)``, x (n, p), y (n,); records that training drops count in n alone.

    Returns:
      ``Point(params, value, min_eigenvalue)`` in float64.

    Raises:
      ValueError: for an objective whose saddle is not known in closed form, or if it is none: the
        regularizer outweighs the negative curvature.

    >>> from dpjax.objectives import welsch
    >>> print(exact_saddle(welsch(0.25), (np.eye(2), np.ones(2))).min_eigenvalue)
    -0.25
    """
    with jax.enable_x64(True):
        x, y = (jnp.asarray(leaf, jnp.float64) for leaf in examples)
        params = jnp.zeros(objective.parameters(x.shape[1]))
        own = _regularize(objective, jnp.zeros((params.size, params.size)), params)
        # At 0 the Hessian of these penalties is a multiple of the identity: one entry is enough.
        lowest = _data_curvature(objective, np.asarray(x), np.asarray(y)) + float(own[0, 0])
        value = float(exact_objective(objective, params, (x, y)))
        # Not ``lowest >= 0``, which NaN would pass.
        if not lowest < 0:
            raise ValueError(
                f"0 is not a strict saddle of {objective.name}: the smallest eigenvalue of its "
                f"Hessian is {lowest:.6g}; use less regularization."
            )
        return Point(np.asarray(params), value, lowest)


def exact_landscape(objective: Objective, examples: tuple[PyTree, PyTree]) -> Landscape:
    """Returns the saddle at 0, the minimum beside it, and what lies halfway. NOT PRIVATE.

    The minimum is where a trust-region method with exact derivatives ends, in float64, from a step
    along the most negative direction of the saddle.

    Arguments and errors are those of ``exact_saddle``.

    >>> from dpjax.objectives import pca
    >>> rows = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 0.5], [0.0, 0.5]])
    >>> landscape = exact_landscape(pca(), (rows, np.ones(4)))
    >>> print(np.abs(landscape.minimum.params).round(4), round(landscape.halfway, 4))
    [0.7071 0.    ] -0.0312
    """
    saddle = exact_saddle(objective, examples)
    with jax.enable_x64(True):
        data: Any = tuple(jnp.asarray(leaf, jnp.float64) for leaf in examples)
        hessian = exact_hessian(objective, jnp.asarray(saddle.params), data)
        # Of either sign, as the problems are even.
        downhill = jnp.linalg.eigh(hessian)[1][:, 0]
        params = _descend(objective, _FIRST_RADIUS * downhill, data)
        value = float(exact_objective(objective, params, data))
        lowest = float(jnp.linalg.eigvalsh(exact_hessian(objective, params, data))[0])
    minimum = Point(np.asarray(params), value, lowest)
    return Landscape(saddle, minimum, (saddle.value + value) / 2)


def exact_escape(
    objective: Objective, params: Array, examples: tuple[PyTree, PyTree], landscape: Landscape
) -> Array:
    """Returns whether the exact objective is more than halfway down to the minimum. NOT PRIVATE.

    Bool, shape (), and False for parameters that are not finite. Works under ``vmap`` over
    ``params``.

    Args:
      objective: what was minimised.
      params: what a run gave, (dimension,).
      examples: ``(x, y)``.
      landscape: of this objective on these examples, from ``exact_landscape``.

    >>> from dpjax.objectives import pca
    >>> examples = np.eye(2)[:1], np.ones(1)
    >>> landscape = exact_landscape(pca(), examples)
    >>> [bool(exact_escape(pca(), jnp.array([w, 0.0]), examples, landscape)) for w in (0.5, 0.6)]
    [False, True]
    """
    # With parameters that are not finite all records may be left out of the mean, which is then 0.
    lower = exact_objective(objective, params, examples) < landscape.halfway
    return lower & jnp.isfinite(params).all()


def _data_curvature(objective: Objective, x: np.ndarray, y: np.ndarray) -> float:
    """Smallest eigenvalue at 0 of the data term's Hessian."""
    finite, signs = np.isfinite(x).all(axis=1), Signs().read(y)
    labelled = finite & (np.abs(signs) == 1)
    loss, slope = objective.loss, objective.margin and jax.grad(objective.margin)
    if isinstance(loss, TwoLayerLoss):
        return float(-np.linalg.norm(signs[labelled] @ x[labelled]) / y.size / 2)
    if isinstance(loss, PhaseLoss):
        kept = finite & np.isfinite(y)
        weights = -np.abs(y[kept])
    elif isinstance(loss, LowRankLoss):
        kept, weights = labelled, -1.0
    elif slope is not None and float(slope(0.0)) == 0:
        kept, weights = labelled, float(jax.grad(slope)(0.0))
    else:
        raise ValueError(
            f"{objective.name} has no saddle at 0 that is known in closed form; take one of "
            "dpjax.objectives.SADDLES."
        )
    weighted = x[kept].T * weights
    return float(np.linalg.eigvalsh(weighted @ x[kept])[0]) / y.size


@jax.jit
def _descend(objective: Objective, params: Array, examples: tuple[Array, Array]) -> Array:
    """Trust-region descent with exact derivatives, until steps are lost in rounding."""
    slope = jax.value_and_grad(exact_objective, argnums=1)

    def going_on(carry: tuple[Array, Array, Array]) -> Array:
        _, radius, count = carry
        return (count < _MOST_STEPS) & (radius > _LEAST_RADIUS)

    def one_step(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        params, radius, count = carry
        value, gradient = slope(objective, params, examples)
        hessian = exact_hessian(objective, params, examples)
        # Exact in the hard case too, which is near at first: at the saddle the gradient is 0.
        step, _ = trust_region_step(gradient, hessian, radius, Exact())
        promised = gradient @ step + step @ hessian @ step / 2
        change = exact_objective(objective, params + step, examples) - value
        # Of a promise of 0 neither comparison holds, and the radius shrinks until the loop ends.
        wider = jnp.where(change < 0.75 * promised, 2 * radius, radius)
        radius = jnp.where(change < 0.25 * promised, wider, radius / 4)
        return jnp.where(change < 0, params + step, params), radius, count + 1

    first = (params, jnp.asarray(_FIRST_RADIUS), jnp.asarray(0))
    params = lax.while_loop(going_on, one_step, first)[0]

    # The value is flat to half the digits around a minimum. Newton's steps find the others, and do
    # not move along a direction in which nothing changes.
    def polish(_: int, params: Array) -> Array:
        gradient = slope(objective, params, examples)[1]
        hessian = exact_hessian(objective, params, examples)
        return params - jnp.linalg.lstsq(hessian, gradient, rcond=_FLAT)[0]

    return lax.fori_loop(0, _POLISHING_STEPS, polish, params)
