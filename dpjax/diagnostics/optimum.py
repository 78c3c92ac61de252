"""NOT PRIVATE: exact values in float64, and optima: found by descent, or proven where convex."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._typing import Array, Params
from dpjax.diagnostics.stationarity import exact_gradient_norm, exact_objective
from dpjax.linalg import trust_region_step
from dpjax.objectives import L1, L2, L1Ball, Objective
from dpjax.objectives.linear import LinearLoss

Examples = tuple[Array | np.ndarray, Array | np.ndarray]

WIDEST = 1_000.0
"""Without a strongly convex regularizer an optimum is one of all points of so large an l2 norm."""
# A Hessian of so many rows points the way as well; value and gradient are of all rows.
_HESSIAN_ROWS = 50_000
# Between minima on unit rows the distance is larger: a descent stays in the basin of its start.
_FIRST_RADIUS = 1.0
_FLAT, _LOOSE = 1e-8, 1e-5
_TIGHT = 1e-9
_STEPS, _NEWTON, _SWEEPS, _ACCELERATED = 200, 100, 400, 20_000
# Margins that are held at once: 128 MiB.
_MARGINS = 2**24
_step = jax.jit(trust_region_step)


class Optimum(NamedTuple):
    """The best point found, and a proof of how good it is."""

    params: np.ndarray
    """(p,) float64."""
    value: float
    """Of the objective, regularizer included."""
    suboptimality: float
    """No value is below ``value - suboptimality``: by convexity, from the gradient there."""


class _Data:
    """Value, gradient and Hessian of the data term, in float64."""

    def __init__(self, objective: Objective, examples: Examples):
        if objective.linear is None:
            raise ValueError(
                f"{objective.name} is no loss of linear scores, which exact values are made of."
            )
        self.linear = objective.linear
        labels = self.linear.labels
        with jax.enable_x64(True):
            x, y = (jnp.asarray(np.asarray(leaf, np.float64)) for leaf in examples)
            y = labels.read(y)
            # Signs go into the rows, so that a loss of the margin reads no label.
            self.rows, self.label = x * labels.sign(y)[:, None], labels.beside(y)
        self.size = len(self.rows)
        self.dimension = self.linear.outputs * self.rows.shape[1]

    def values(self, params: np.ndarray) -> np.ndarray:
        """Means of the loss at (m, k) parameters."""
        return self._mean(_value_sums, params, self.linear.outputs)

    def gradients(self, params: np.ndarray) -> np.ndarray:
        """Gradients at (m, k) parameters."""
        return self._mean(_gradient_sums, params, self.linear.outputs)

    def hessian(self, params: np.ndarray, every: int = 1) -> np.ndarray:
        """Hessian at (k,) parameters, of one in ``every`` records."""
        held = 1 if self.linear.outputs == 1 else self.linear.outputs * self.dimension
        return self._mean(_hessian_sum, params[None], held, every)

    def _mean(
        self, sums: Callable[..., Array], params: np.ndarray, held: int, every: int = 1
    ) -> np.ndarray:
        """Mean over records of what ``sums`` adds, with ``held`` numbers a record and point."""
        many = max(_MARGINS // (len(params) * held), 1)
        with jax.enable_x64(True):
            records = (self.rows, self.label)
            if every > 1:
                records = jax.tree.map(lambda leaf: leaf[::every], records)
            count = len(records[0])
            # Products are XLA's: NumPy's take a hundred times as long where cores are busy.
            blocks = [records] if many >= count else [
                jax.tree.map(lambda leaf, i=i: leaf[i : i + many], records)
                for i in range(0, count, many)]  # fmt: skip
            parts = [np.asarray(sums(self.linear, *one, jnp.asarray(params))) for one in blocks]
        return np.sum(parts, axis=0) / count


def _of_scores(function: Callable, rows: Array, label: Array | None, params: Array, k: int) -> Any:
    """``function`` of each record's scores at each of (m, k) parameters, (n, m, ...)."""
    if k == 1:
        scores = rows @ params.T
    else:
        scores = jnp.einsum("np,mkp->nmk", rows, params.reshape(len(params), k, -1))
    return jax.vmap(jax.vmap(function, in_axes=(0, None)))(scores, label)


@functools.partial(jax.jit, static_argnums=0)
def _value_sums(linear: LinearLoss, rows: Array, label: Array | None, params: Array) -> Array:
    return _of_scores(linear.value, rows, label, params, linear.outputs).sum(axis=0)


@functools.partial(jax.jit, static_argnums=0)
def _gradient_sums(linear: LinearLoss, rows: Array, label: Array | None, params: Array) -> Array:
    slope, _ = _of_scores(linear.derivatives, rows, label, params, linear.outputs)
    if linear.outputs == 1:
        return slope.T @ rows
    return jnp.einsum("nmk,np->mkp", slope, rows).reshape(len(params), -1)


@functools.partial(jax.jit, static_argnums=0)
def _hessian_sum(linear: LinearLoss, rows: Array, label: Array | None, params: Array) -> Array:
    _, curve = _of_scores(linear.derivatives, rows, label, params, linear.outputs)
    if linear.outputs == 1:
        return (rows * curve).T @ rows
    k, size = linear.outputs, params.shape[1]
    left = jnp.einsum("nab,np->nabp", curve[:, 0], rows).reshape(len(rows), -1)
    return (left.T @ rows).reshape(k, k, -1, rows.shape[1]).swapaxes(1, 2).reshape(size, size)


def exact_values(objective: Objective, params: Params, examples: Examples) -> np.ndarray:
    """Returns the exact values of many parameters; of linear scores in float64. NOT PRIVATE.

    Args:
      objective: what is evaluated.
      params: (m, p), or a pytree of leaves with the leading axis m.
      examples: ``(x, y)``, x (n, p) and y (n,), every row a valid record.

    Returns:
      (m,) float64, regularizer included; infinite outside a convex set.

    >>> from dpjax.objectives import logistic
    >>> exact_values(logistic(), np.zeros((2, 1)), (np.ones((3, 1)), np.ones(3))).round(4).tolist()
    [0.6931, 0.6931]
    """
    if objective.linear is None:
        return _sequential(lambda w: exact_objective(objective, w, examples), params)
    points = np.asarray(params, np.float64)
    return _Data(objective, examples).values(points) + _penalty(objective.regularizer, points)


def exact_gradient_norms(objective: Objective, params: Params, examples: Examples) -> np.ndarray:
    """Returns the (m,) l2 norms of the exact gradients of many parameters. NOT PRIVATE.

    The arguments are those of ``exact_values``.

    >>> from dpjax.objectives import logistic
    >>> exact_gradient_norms(logistic(), np.zeros((1, 1)), (np.ones((2, 1)), np.ones(2))).tolist()
    [0.5]
    """
    if objective.linear is None:
        return _sequential(lambda w: exact_gradient_norm(objective, w, examples), params)
    points = np.asarray(params, np.float64)
    gradients = _Data(objective, examples).gradients(points)
    whole = [_regular(objective, 1, g, w) for g, w in zip(gradients, points, strict=True)]
    return np.linalg.norm(whole, axis=1)


def exact_descent(
    objective: Objective, start: np.ndarray | Array, examples: Examples
) -> tuple[np.ndarray, float]:
    """Returns the local minimum that a trust-region descent ends in, and its value. NOT PRIVATE.

    Args:
      objective: a loss of linear scores.
      start: (p,).
      examples: ``(x, y)``, every row a valid record.

    >>> from dpjax.objectives import logistic_l2
    >>> examples = np.ones((2, 1)), np.array([1.0, -1.0])
    >>> params, value = exact_descent(logistic_l2(), np.array([2.0]), examples)
    >>> bool(abs(params[0]) < 1e-3), round(value, 4)
    (True, 0.6931)
    """
    return _descend(objective, _Data(objective, examples), np.asarray(start, np.float64))


def exact_optimum(
    objective: Objective, examples: Examples, starts: int = 4, seed: int = 0
) -> tuple[np.ndarray, float]:
    """Returns the best of the local minima from several starts, (p,), and its value. NOT PRIVATE.

    The first start is zero; the second is the minimum with hardly any regularizer, from where a
    nonconvex one has the fewest weights to bring back; the others are normal, of norm about 25.

    Args:
      objective: a loss of linear scores.
      examples: ``(x, y)``, every row a valid record.
      starts: how many.
      seed: of the normal ones.

    >>> from dpjax.objectives import logistic_l2
    >>> examples = np.ones((2, 1)), np.array([1.0, -1.0])
    >>> round(exact_optimum(logistic_l2(), examples, starts=2)[1], 4)
    0.6931
    """
    data, random = _Data(objective, examples), np.random.default_rng(seed)
    dimension = data.dimension
    points = [np.zeros(dimension)]
    if starts > 1:
        loose = dataclasses.replace(objective, regularizer=L2(_LOOSE))
        points.append(_descend(loose, data, points[0])[0])
    while len(points) < starts:
        points.append(random.normal(0, 25 / math.sqrt(dimension), dimension))
    return min((_descend(objective, data, point) for point in points), key=lambda one: one[1])


def exact_certified_optimum(objective: Objective, examples: Examples) -> Optimum:
    """Returns the optimum of a convex objective, with a proven bound on the error. NOT PRIVATE.

    Newton's method in float64 for no regularizer and for ``L2``, proximal Newton for ``L1``, and
    accelerated projected descent for ``L1Ball``. Without a strongly convex regularizer an optimum
    may not exist; then the value is the least over all points of l2 norm at most ``WIDEST``.

    Args:
      objective: a convex loss of linear scores that is never negative.
      examples: ``(x, y)``, every row a valid record.

    Raises:
      ValueError: for another loss, or a regularizer that is not known here.

    >>> from dpjax.objectives import logistic_l2
    >>> found = exact_certified_optimum(logistic_l2(), (np.ones((2, 1)), np.array([1.0, -1.0])))
    >>> round(found.value, 4), found.suboptimality < 1e-8
    (0.6931, True)
    """
    data, regularizer = _Data(objective, examples), objective.regularizer
    if isinstance(regularizer, L1Ball) and objective.margin is not None:
        return _accelerated(data, regularizer)
    if regularizer is not None and not isinstance(regularizer, L1 | L2):
        raise ValueError(f"regularizer must be None, L2, L1 or L1Ball here, got {regularizer!r}.")
    return _newton(data, objective)


def _sequential(function: Callable[[Params], Array], params: Params) -> np.ndarray:
    count = len(jax.tree.leaves(params)[0])
    every = (jax.tree.map(lambda leaf, i=i: jnp.asarray(leaf[i]), params) for i in range(count))
    return np.array([float(function(one)) for one in every])


def _penalty(regularizer: Any, points: np.ndarray) -> np.ndarray:
    if regularizer is None:
        return np.zeros(len(points))
    with jax.enable_x64(True):
        return np.array([float(regularizer(jnp.asarray(point))) for point in points])


def _regular(objective: Objective, order: int, mean: np.ndarray, point: np.ndarray) -> np.ndarray:
    """A gradient or Hessian of the data term with that of the regularizer."""
    with jax.enable_x64(True):
        return np.asarray(_with_regularizer(objective, order, mean, point))


@functools.partial(jax.jit, static_argnames="order")
def _with_regularizer(objective: Objective, order: int, mean: Array, point: Array) -> Array:
    add = objective.regularize_gradient if order == 1 else objective.regularize_hessian
    return add(mean, point)


def _descend(objective: Objective, data: _Data, start: np.ndarray) -> tuple[np.ndarray, float]:
    every = max(1, data.size // _HESSIAN_ROWS)

    def at(point: np.ndarray) -> tuple[float, np.ndarray]:
        value = data.values(point[None])[0] + _penalty(objective.regularizer, point[None])[0]
        return float(value), _regular(objective, 1, data.gradients(point[None])[0], point)

    params, radius = start, _FIRST_RADIUS
    value, gradient = at(params)
    for _ in range(_STEPS):
        hessian = _regular(objective, 2, data.hessian(params, every), params)
        with jax.enable_x64(True):
            move = np.asarray(_step(jnp.asarray(gradient), jnp.asarray(hessian), radius)[0])
        # What the quadratic model promises; below ``_FLAT`` there is nothing left to gain.
        model = -float(gradient @ move + move @ hessian @ move / 2)
        if model < _FLAT:
            break
        there, slope = at(params + move)
        ratio = (value - there) / model
        if ratio > 0.1:
            params, value, gradient = params + move, there, slope
        radius *= 2 if ratio > 0.7 else 1 / 4 if ratio < 0.3 else 1
    return params, value


def _newton(data: _Data, objective: Objective) -> Optimum:
    regularizer = objective.regularizer
    params = np.zeros(data.dimension)
    l1 = float(regularizer.strength) if isinstance(regularizer, L1) else 0.0
    l2 = float(regularizer.strength) if isinstance(regularizer, L2) else 0.0

    def at(point: np.ndarray) -> tuple[float, np.ndarray]:
        value = data.values(point[None])[0] + _penalty(regularizer, point[None])[0]
        return float(value), data.gradients(point[None])[0] + l2 * point

    here, gradient = at(params)
    start = here
    for _ in range(_NEWTON):
        if _suboptimality(params, gradient, l1, l2, start) < _TIGHT:
            break
        # A little more than nothing, or a flat direction would make the matrix singular.
        curvature = data.hessian(params) + (l2 + 1e-13) * np.eye(len(params))
        move = _direction(params, gradient, curvature, l1)
        model = gradient @ move + l1 * (np.abs(params + move) - np.abs(params)).sum()
        # Backtracks until the value falls by a part of what the model promises.
        share, (there, slope) = 1.0, at(params + move)
        while there > here + 1e-4 * share * model and share > 1e-6:
            share /= 2
            there, slope = at(params + share * move)
        # No lower value along the direction: what is left is rounding.
        if there > here:
            break
        params, here, gradient = params + share * move, there, slope
    return Optimum(params, here, _suboptimality(params, gradient, l1, l2, start))


def _suboptimality(
    params: np.ndarray, gradient: np.ndarray, l1: float, l2: float, start: float
) -> float:
    """How far the value may be above the least one, from the supporting plane at ``params``."""
    if l2:
        # Strong convexity: F(w) - F* <= |grad F(w)|^2 / (2 mu).
        return float(gradient @ gradient) / (2 * l2)
    if not l1:
        # Convexity: F(w) - F* <= |grad F(w)| |w - w*|, with |w*| at most ``WIDEST``.
        return math.sqrt(gradient @ gradient) * (WIDEST + math.sqrt(params @ params))
    # The loss is never negative, so an optimum has an l1 norm of at most F(0) / l1.
    steepest = max(float(np.abs(gradient).max()) - l1, 0.0)
    return float(l1 * np.abs(params).sum() + gradient @ params) + steepest * start / l1


def _direction(
    params: np.ndarray, gradient: np.ndarray, hessian: np.ndarray, l1: float
) -> np.ndarray:
    """Minimiser d of <gradient, d> + <d, hessian d> / 2 + l1 |params + d|_1."""
    if not l1:
        return -np.linalg.solve(hessian, gradient)
    point, slope = params.copy(), gradient.copy()
    for _ in range(_SWEEPS):
        most = 0.0
        for j, curvature in enumerate(np.diag(hessian)):
            # Coordinate by coordinate, as along one the minimum is a soft threshold.
            target = point[j] - slope[j] / curvature
            new = math.copysign(max(abs(target) - l1 / curvature, 0.0), target)
            moved = new - point[j]
            if moved:
                point[j] = new
                slope += moved * hessian[:, j]
                most = max(most, abs(moved))
        if most < 1e-13:
            break
    return point - params


def _accelerated(data: _Data, ball: L1Ball) -> Optimum:
    signed = np.asarray(data.rows)
    random = np.random.default_rng(0).normal(size=signed.shape[1])
    for _ in range(50):
        random = signed.T @ (signed @ (random / np.linalg.norm(random)))
    # The largest curvature of a loss of the margin, which for the logistic loss is at 0; power
    # iteration is from below: 1.1 makes up for it, and a rise restarts the momentum.
    curvature = jax.vmap(lambda score: data.linear.derivatives(score, None)[1])
    steepest = float(curvature(jnp.linspace(-20, 20, 4001)).max())
    step = len(signed) / (1.1 * float(np.linalg.norm(random)) * steepest)
    params = ahead = np.zeros(signed.shape[1])
    momentum, value = 1.0, math.inf
    best = Optimum(params, math.inf, math.inf)
    for i in range(_ACCELERATED):
        moved = _into(ball.radius, ahead - step * data.gradients(ahead[None])[0])
        if i % 20 == 19:
            here, gradient = float(data.values(moved[None])[0]), data.gradients(moved[None])[0]
            # Of a linear function over the ball, the least value is at a corner.
            suboptimality = float(gradient @ moved + ball.radius * np.abs(gradient).max())
            if here < best.value:
                best = Optimum(moved, here, suboptimality)
            if suboptimality < _TIGHT:
                break
            if here > value:
                momentum = 1.0
            value = here
        # The momenta of accelerated proximal descent (Beck and Teboulle 2009).
        grown = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        # Restarts where the momentum points up hill.
        if (ahead - moved) @ (moved - params) > 0:
            grown = momentum = 1.0
        ahead = moved + (momentum - 1) / grown * (moved - params)
        params, momentum = moved, grown
    return best


def _into(radius: float, point: np.ndarray) -> np.ndarray:
    """The nearest point of the l1 ball, in float64."""
    sizes = np.abs(point)
    if sizes.sum() <= radius:
        return point
    falling = np.sort(sizes)[::-1]
    # The threshold at which the sizes sum to the radius (Duchi et al. 2008).
    over = (np.cumsum(falling) - radius) / np.arange(1, len(point) + 1)
    threshold = over[np.nonzero(falling > over)[0][-1]]
    return np.sign(point) * np.maximum(sizes - threshold, 0)
