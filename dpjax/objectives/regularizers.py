"""Penalties on the parameters; they read no record, so they cost no privacy."""

import dataclasses

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax._typing import Array, Params


@dataclasses.dataclass(frozen=True)
class L2:
    """strength / 2 times the squared l2 norm.

    >>> float(L2(2.0)(jnp.array([1.0, 2.0])))
    5.0
    """

    strength: float

    def __post_init__(self):
        object.__setattr__(self, "strength", _validate.non_negative("strength", self.strength))

    @property
    def smoothness(self) -> float:
        """Largest eigenvalue of the Hessian."""
        return self.strength

    def __call__(self, params: Params) -> Array:
        """Returns the penalty, shape ()."""
        squares = [jnp.sum(w * w) for w in jax.tree.leaves(params)]
        return self.strength / 2 * jnp.asarray(sum(squares))


@dataclasses.dataclass(frozen=True)
class Nonconvex:
    """strength times the sum of w^2 / (1 + w^2), which bounds each weight's penalty.

    Reference: Wang and Xu (2020), section 5.

    >>> float(Nonconvex(1.0)(jnp.array([1.0, 0.0])))
    0.5
    """

    strength: float

    def __post_init__(self):
        object.__setattr__(self, "strength", _validate.non_negative("strength", self.strength))

    @property
    def smoothness(self) -> float:
        """Largest absolute eigenvalue of the Hessian, at w = 0."""
        return 2 * self.strength

    def __call__(self, params: Params) -> Array:
        """Returns the penalty, shape ()."""
        penalties = [jnp.sum(w * w / (1 + w * w)) for w in jax.tree.leaves(params)]
        return self.strength * jnp.asarray(sum(penalties))
