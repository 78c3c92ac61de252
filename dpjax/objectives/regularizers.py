"""Penalties on the parameters; they read no record, so they cost no privacy.

Their strengths are leaves of a pytree: a program compiled for one serves every other.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax._typing import Array, Params
from dpjax.objectives.proximal import prox_elastic_net, prox_l1, prox_l2

_Class = TypeVar("_Class", bound=type)


def _register(penalty: _Class) -> _Class:
    """Makes the fields of a dataclass leaves; tracers in their place are not validated again."""
    names = [field.name for field in dataclasses.fields(penalty)]

    def flatten(value: Any) -> tuple[list, None]:
        keys = map(jax.tree_util.GetAttrKey, names)
        return [(key, getattr(value, key.name)) for key in keys], None

    def unflatten(_: None, leaves: Iterable) -> Any:
        # Past ``__post_init__``: a tracer, or a gradient, is no number to validate.
        value = object.__new__(penalty)
        for name, leaf in zip(names, leaves, strict=True):
            object.__setattr__(value, name, leaf)
        return value

    jax.tree_util.register_pytree_with_keys(penalty, flatten, unflatten)
    return penalty


@dataclasses.dataclass(frozen=True)
class _Penalty:
    """What the penalties share: their numbers are not below 0."""

    def __post_init__(self):
        for field in dataclasses.fields(self):
            number = _validate.non_negative(field.name, getattr(self, field.name))
            object.__setattr__(self, field.name, number)

    def __call__(self, params: Params) -> Array:
        """Returns the penalty, shape ()."""
        raise NotImplementedError


@_register
@dataclasses.dataclass(frozen=True)
class L2(_Penalty):
    """strength / 2 times the squared l2 norm.

    >>> float(L2(2.0)(jnp.array([1.0, 2.0])))
    5.0
    """

    strength: float

    @property
    def smoothness(self) -> float:
        """Largest eigenvalue of the Hessian."""
        return self.strength

    @property
    def strong_convexity(self) -> float:
        """Least eigenvalue of the Hessian."""
        return self.strength

    def __call__(self, params: Params) -> Array:
        return self.strength / 2 * _square_sum(params)

    def prox(self, params: Params, step_size: Array | float) -> Params:
        """Returns argmin over x of |x - params|^2 / 2 + ``step_size`` times the penalty."""
        return prox_l2(params, step_size * self.strength)


@_register
@dataclasses.dataclass(frozen=True)
class L1(_Penalty):
    """strength times the l1 norm, which sets weights to zero; it has no smoothness.

    >>> float(L1(2.0)(jnp.array([1.0, -2.0])))
    6.0
    """

    strength: float

    strong_convexity = 0.0

    def __call__(self, params: Params) -> Array:
        return self.strength * _absolute_sum(params)

    def prox(self, params: Params, step_size: Array | float) -> Params:
        """Returns argmin over x of |x - params|^2 / 2 + ``step_size`` times the penalty."""
        return prox_l1(params, step_size * self.strength)


@_register
@dataclasses.dataclass(frozen=True)
class ElasticNet(_Penalty):
    """l1 times the l1 norm, plus l2 / 2 times the squared l2 norm.

    >>> float(ElasticNet(1.0, 2.0)(jnp.array([1.0, -2.0])))
    8.0
    """

    l1: float
    l2: float

    @property
    def strong_convexity(self) -> float:
        """That of the squared norm."""
        return self.l2

    def __call__(self, params: Params) -> Array:
        return self.l1 * _absolute_sum(params) + self.l2 / 2 * _square_sum(params)

    def prox(self, params: Params, step_size: Array | float) -> Params:
        """Returns argmin over x of |x - params|^2 / 2 + ``step_size`` times the penalty."""
        return prox_elastic_net(params, step_size * self.l1, step_size * self.l2)


@_register
@dataclasses.dataclass(frozen=True)
class Nonconvex(_Penalty):
    """strength times the sum of w^2 / (1 + w^2), which bounds each weight's penalty.

    Reference: Wang and Xu (2020), section 5.

    >>> float(Nonconvex(1.0)(jnp.array([1.0, 0.0])))
    0.5
    """

    strength: float

    @property
    def smoothness(self) -> float:
        """Largest absolute eigenvalue of the Hessian, at w = 0."""
        # The second derivative (2 - 6 w^2) / (1 + w^2)^3 falls from 2 at 0 to -1/2 at 1.
        return 2 * self.strength

    def __call__(self, params: Params) -> Array:
        penalties = [jnp.sum(w * w / (1 + w * w)) for w in jax.tree.leaves(params)]
        return self.strength * jnp.asarray(sum(penalties))


@dataclasses.dataclass(frozen=True)
class Quartic:
    """|U'U|^2 / 4 in the Frobenius norm, for U with ``rank`` columns, or flat; |u|^4 / 4 for one.

    Has neither smoothness nor a proximal operator.

    >>> float(Quartic()(jnp.array([1.0, 1.0])))
    1.0
    """

    # It decides a shape, so it is structure and not a leaf.
    rank: int = 1

    def __post_init__(self):
        object.__setattr__(self, "rank", _validate.positive_int("rank", self.rank))

    def __call__(self, params: Array) -> Array:
        """Returns the penalty, shape ()."""
        # Of rank x rank numbers, where U U' of the same norm has p x p.
        columns = params.reshape(-1, self.rank)
        return jnp.sum((columns.T @ columns) ** 2) / 4


# Those whose numbers are leaves.
PENALTIES = (L1, L2, ElasticNet, Nonconvex)


def _absolute_sum(params: Params) -> Array:
    # Of a tree without leaves the sum is Python's 0.
    return jnp.asarray(sum(jnp.sum(jnp.abs(w)) for w in jax.tree.leaves(params)))


def _square_sum(params: Params) -> Array:
    return jnp.asarray(sum(jnp.sum(w * w) for w in jax.tree.leaves(params)))
