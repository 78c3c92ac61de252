"""Convex constraint sets: balls, a box, the simplex; each can be an objective's regularizer.

As a regularizer a set is its indicator: the penalty is 0 inside and infinite outside, and the
proximal operator is the projection, for any step size. All is post-processing.
"""

import dataclasses

import jax
import jax.numpy as jnp
import optax

from dpjax import _validate
from dpjax._typing import Array, Params

# How far outside, relative to the set, rounding may leave a projected point.
_ROUNDING = 1e-5


class _Domain:
    """What the sets share; a subclass has ``project`` and ``excess``."""

    # An indicator is flat inside its set.
    strong_convexity = 0.0

    def __call__(self, params: Params) -> Array:
        """Returns the indicator, shape (): 0 inside (up to rounding), infinite outside."""
        return jnp.where(self.excess(params) <= _ROUNDING, 0.0, jnp.inf)

    def prox(self, params: Params, step_size: Array | float) -> Params:
        """Returns the projection, whatever the step size."""
        return self.project(params)

    def project(self, params: Params) -> Params:
        """Returns the nearest point of the set, in the l2 norm."""
        raise NotImplementedError

    def excess(self, params: Params) -> Array:
        """Returns how far outside ``params`` is, relative to the set; not above 0 inside."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class _Ball(_Domain):
    """A ball around 0; a subclass has ``norm`` and ``project``."""

    radius: float

    def __post_init__(self):
        # The dataclass is frozen, so the checked number is set past it.
        object.__setattr__(self, "radius", _validate.positive("radius", self.radius))

    def norm(self, params: Params) -> Array:
        """Returns the Minkowski norm: the least r such that ``params`` lies in r times the set."""
        raise NotImplementedError

    def excess(self, params: Params) -> Array:
        return self.norm(params) - 1


@dataclasses.dataclass(frozen=True)
class L2Ball(_Ball):
    """All points of l2 norm at most ``radius``.

    >>> [round(float(w), 3) for w in L2Ball(1.0).project(jnp.array([3.0, 4.0]))]
    [0.6, 0.8]
    """

    def project(self, params: Params) -> Params:
        return optax.projections.projection_l2_ball(params, self.radius)

    def norm(self, params: Params) -> Array:
        return optax.tree.norm(params) / self.radius


@dataclasses.dataclass(frozen=True)
class L1Ball(_Ball):
    """All points of l1 norm at most ``radius``.

    >>> L1Ball(1.0).project(jnp.array([2.0, 0.5])).tolist()
    [1.0, 0.0]
    """

    def project(self, params: Params) -> Params:
        return optax.projections.projection_l1_ball(params, self.radius)

    def norm(self, params: Params) -> Array:
        return optax.tree.norm(params, ord=1) / self.radius


@dataclasses.dataclass(frozen=True)
class Box(_Domain):
    """All points whose every coordinate lies from ``lower`` to ``upper``.

    >>> Box(-1.0, 1.0).project(jnp.array([3.0, 0.5])).tolist()
    [1.0, 0.5]
    """

    lower: float
    upper: float

    def __post_init__(self):
        for field in ("lower", "upper"):
            object.__setattr__(self, field, _validate.finite(field, getattr(self, field)))
        if not self.lower < self.upper:
            raise ValueError(f"lower must be below upper, got {self.lower!r} and {self.upper!r}.")

    def project(self, params: Params) -> Params:
        return optax.projections.projection_box(params, self.lower, self.upper)

    def excess(self, params: Params) -> Array:
        # Over the larger bound, as it is relative to the set's size.
        past = [jnp.maximum(w - self.upper, self.lower - w).max() for w in jax.tree.leaves(params)]
        return jnp.stack(past).max() / max(abs(self.lower), abs(self.upper))


@dataclasses.dataclass(frozen=True)
class Simplex(_Domain):
    """All points with coordinates not below 0 that sum to ``total``.

    >>> Simplex(1.0).project(jnp.array([2.0, 0.5])).tolist()
    [1.0, 0.0]
    """

    total: float = 1.0

    def __post_init__(self):
        object.__setattr__(self, "total", _validate.positive("total", self.total))

    def project(self, params: Params) -> Params:
        return optax.projections.projection_simplex(params, self.total)

    def excess(self, params: Params) -> Array:
        leaves = jax.tree.leaves(params)
        off = jnp.abs(jnp.asarray(sum(jnp.sum(w) for w in leaves)) - self.total)
        below = jnp.stack([-jnp.min(w) for w in leaves]).max()
        return jnp.maximum(off, below) / self.total
