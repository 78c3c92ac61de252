"""NOT PRIVATE: exact values in float64, and convex optima with a bound on what they may miss."""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.objectives import L1, L2, L1Ball, Objective
from dpjax.objectives.base import Regularizer
from dpjax.reproduce.exact import Examples

# Without a strongly convex regularizer an optimum is one of all points of so large an l2 norm.
WIDEST = 1_000.0
_TIGHT = 1e-9
_NEWTON, _SWEEPS, _ACCELERATED = 100, 400, 20_000
_ROWS = 65_536
# A float32 projection leaves a point this far outside, relative to the set.
_ROUNDING = 1e-5


class Optimum(NamedTuple):
    """The best point found, and a proof of how good it is."""

    params: np.ndarray
    """(p,) float64."""
    value: float
    """Of the objective, regularizer included."""
    slack: float
    """No value is below ``value - slack``: by convexity, from the gradient there."""


class _Derivatives(NamedTuple):
    value: float
    gradient: np.ndarray


class _Data:
    """Value, gradient and Hessian of the data term, in float64."""

    def __init__(self, objective: Objective, examples: Examples):
        if objective.margin is None:
            raise ValueError(f"{objective.name} has no margin, which exact values are made of.")
        x, y = (np.asarray(leaf, np.float64) for leaf in examples)
        self.signed = x * y[:, None]
        self.margin = objective.margin

    def values(self, params: np.ndarray) -> np.ndarray:
        """Means of the loss at (m, p) parameters."""
        total = np.zeros(len(params))
        for rows in self._blocks():
            total += self._phi(0, rows @ params.T).sum(axis=0)
        return total / len(self.signed)

    def at(self, params: np.ndarray) -> _Derivatives:
        """Value and gradient at (p,) parameters."""
        margins = self.signed @ params
        slope = self._phi(1, margins)
        value = float(self._phi(0, margins).mean())
        return _Derivatives(value, slope @ self.signed / len(slope))

    def hessian(self, params: np.ndarray) -> np.ndarray:
        """Hessian at (p,) parameters."""
        total = np.zeros((len(params), len(params)))
        for rows in self._blocks():
            total += (rows * self._phi(2, rows @ params)[:, None]).T @ rows
        return total / len(self.signed)

    def _blocks(self):
        return (self.signed[i : i + _ROWS] for i in range(0, len(self.signed), _ROWS))

    def _phi(self, order: int, margins: np.ndarray) -> np.ndarray:
        with jax.enable_x64(True):
            return np.asarray(_derivative(self.margin, order, jnp.asarray(margins)))


def exact_risks(
    objective: Objective, params: np.ndarray | jax.Array, examples: Examples
) -> np.ndarray:
    """Returns the exact values of many parameters, in float64. NOT PRIVATE.

    Args:
      objective: with a margin.
      params: (m, p).
      examples: ``(x, y)``, x (n, p) and y (n,), every row a valid record.

    Returns:
      (m,) float64, regularizer included; infinite outside a convex set.

    Raises:
      ValueError: if the objective has no margin, or a regularizer that is not known here.

    Privacy: NOT PRIVATE.

    >>> from dpjax.objectives import logistic
    >>> exact_risks(logistic(), np.zeros((2, 1)), (np.ones((3, 1)), np.ones(3))).round(4).tolist()
    [0.6931, 0.6931]
    """
    points = np.asarray(params, np.float64)
    return _Data(objective, examples).values(points) + _penalty(objective.regularizer, points)


def certified_optimum(objective: Objective, examples: Examples) -> Optimum:
    """Returns the optimum of a convex objective, with a proven bound on the error. NOT PRIVATE.

    Newton's method in float64 for no regularizer and for ``L2``, proximal Newton for ``L1``, and
    accelerated projected descent for ``L1Ball``. Without a strongly convex regularizer an optimum
    may not exist; then the value is the least over all points of l2 norm at most ``WIDEST``.

    Args:
      objective: convex, with a margin loss that is never negative.
      examples: ``(x, y)``, every row a valid record.

    Raises:
      ValueError: if the objective has no margin, or a regularizer that is not known here.

    Privacy: NOT PRIVATE.

    >>> from dpjax.objectives import logistic_l2
    >>> found = certified_optimum(logistic_l2(), (np.ones((2, 1)), np.array([1.0, -1.0])))
    >>> round(found.value, 4), found.slack < 1e-8
    (0.6931, True)
    """
    data, regularizer = _Data(objective, examples), objective.regularizer
    _penalty(regularizer, np.zeros((1, data.signed.shape[1])))
    if isinstance(regularizer, L1Ball):
        return _accelerated(data, regularizer)
    return _newton(data, regularizer)


def _penalty(regularizer: Regularizer | None, points: np.ndarray) -> np.ndarray:
    if regularizer is None:
        return np.zeros(len(points))
    if isinstance(regularizer, L2):
        return regularizer.strength / 2 * (points**2).sum(axis=1)
    norms = np.abs(points).sum(axis=1)
    if isinstance(regularizer, L1):
        return regularizer.strength * norms
    if isinstance(regularizer, L1Ball):
        return np.where(norms <= regularizer.radius * (1 + _ROUNDING), 0.0, np.inf)
    raise ValueError(f"regularizer must be None, L2, L1 or L1Ball here, got {regularizer!r}.")


def _newton(data: _Data, regularizer: Regularizer | None) -> Optimum:
    params = np.zeros(data.signed.shape[1])
    l1 = regularizer.strength if isinstance(regularizer, L1) else 0.0
    l2 = regularizer.strength if isinstance(regularizer, L2) else 0.0

    def whole(point: np.ndarray) -> _Derivatives:
        value, gradient = data.at(point)
        own = float(_penalty(regularizer, point[None])[0])
        return _Derivatives(value + own, gradient + l2 * point)

    here = whole(params)
    start = here.value
    for _ in range(_NEWTON):
        if _slack(params, here.gradient, l1, l2, start) < _TIGHT:
            break
        curvature = data.hessian(params) + (l2 + 1e-13) * np.eye(len(params))
        move = _direction(params, here.gradient, curvature, l1)
        model = here.gradient @ move + l1 * (np.abs(params + move) - np.abs(params)).sum()
        share, there = 1.0, whole(params + move)
        while there.value > here.value + 1e-4 * share * model and share > 1e-6:
            share /= 2
            there = whole(params + share * move)
        if there.value > here.value:
            break
        params, here = params + share * move, there
    return Optimum(params, here.value, _slack(params, here.gradient, l1, l2, start))


def _slack(params: np.ndarray, gradient: np.ndarray, l1: float, l2: float, start: float) -> float:
    """How far the value may be above the least one, from the supporting plane at ``params``."""
    if l2:
        return float(gradient @ gradient) / (2 * l2)
    if not l1:
        norm = math.sqrt(gradient @ gradient)
        return norm * (WIDEST + math.sqrt(params @ params))
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
    signed = data.signed
    random = np.random.default_rng(0).normal(size=signed.shape[1])
    for _ in range(50):
        random = signed.T @ (signed @ (random / np.linalg.norm(random)))
    # Power iteration is from below; 1.1 makes up for it, and a rise restarts the momentum.
    step = len(signed) / (1.1 * float(np.linalg.norm(random)) * _steepest(data))
    params = ahead = np.zeros(signed.shape[1])
    momentum, value, best = 1.0, math.inf, None
    for i in range(_ACCELERATED):
        moved = _into(ball.radius, ahead - step * data.at(ahead).gradient)
        if i % 20 == 19:
            here = data.at(moved)
            # Of a linear function over the ball, the least value is at a corner.
            slack = float(here.gradient @ moved + ball.radius * np.abs(here.gradient).max())
            if best is None or here.value < best.value:
                best = Optimum(moved, here.value, slack)
            if slack < _TIGHT:
                break
            if here.value > value:
                momentum = 1.0
            value = here.value
        grown = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        # Restarts where the momentum points up hill.
        if (ahead - moved) @ (moved - params) > 0:
            grown = momentum = 1.0
        ahead = moved + (momentum - 1) / grown * (moved - params)
        params, momentum = moved, grown
    assert best is not None
    return best


def _steepest(data: _Data) -> float:
    """Largest curvature of the loss of a margin, which for the logistic loss is at 0."""
    return float(data._phi(2, np.linspace(-20, 20, 4001)).max())


def _into(radius: float, point: np.ndarray) -> np.ndarray:
    """The nearest point of the l1 ball, in float64."""
    sizes = np.abs(point)
    if sizes.sum() <= radius:
        return point
    falling = np.sort(sizes)[::-1]
    over = (np.cumsum(falling) - radius) / np.arange(1, len(point) + 1)
    threshold = over[np.nonzero(falling > over)[0][-1]]
    return np.sign(point) * np.maximum(sizes - threshold, 0)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _derivative(margin, order: int, margins):
    for _ in range(order):
        margin = jax.grad(margin)
    return jnp.vectorize(margin)(margins)
