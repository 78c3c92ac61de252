"""Penalties and constraint sets, with proximal operators; they read no record: post-processing.

Strengths of penalties are leaves of a pytree: a program compiled for one serves every other. As a
regularizer a convex set is its indicator: the penalty is 0 inside and infinite outside, and the
proximal operator is the projection, for any step size.
"""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import optax

from dpjax import _validate
from dpjax._typing import Array, Params, pytree_dataclass, static


def prox_zero(params: Params, scale: Array | float) -> Params:
    """Returns ``params``, the proximal operator of no penalty, whatever its ``scale``.

    >>> prox_zero(jnp.array([1.0]), 2.0).tolist()
    [1.0]
    """
    return params


def prox_l1(params: Params, scale: Array | float) -> Params:
    """Returns every weight brought nearer to zero by ``scale``, and not past it.

    ``scale``, not below 0, is the step size times the strength of the penalty.

    Reference: soft thresholding; Parikh and Boyd, "Proximal algorithms" (2014), section 6.5.2.

    >>> prox_l1(jnp.array([3.0, -0.5]), 1.0).tolist()
    [2.0, -0.0]
    """
    # In the weights' dtype, which a float64 step size would widen.
    return jax.tree.map(
        lambda w: jnp.sign(w) * jnp.maximum(jnp.abs(w) - jnp.asarray(scale, w.dtype), 0), params
    )


def prox_l2(params: Params, scale: Array | float) -> Params:
    """Returns ``params`` / (1 + ``scale``), the operator of scale / 2 times the squared l2 norm.

    >>> prox_l2(jnp.array([3.0]), 2.0).tolist()
    [1.0]
    """
    return jax.tree.map(lambda w: w / (1 + jnp.asarray(scale, w.dtype)), params)


def prox_elastic_net(params: Params, l1: Array | float, l2: Array | float) -> Params:
    """Returns the operator of l1 |x|_1 + l2 / 2 |x|^2: threshold, then shrink.

    Reference: Parikh and Boyd (2014), section 6.5.3.

    >>> prox_elastic_net(jnp.array([4.0]), 1.0, 2.0).tolist()
    [1.0]
    """
    return prox_l2(prox_l1(params, l1), l2)


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
class _Checked:
    """Numbers that ``_check`` takes; a dataclass is frozen, so the checked ones are set past it."""

    _check = staticmethod(_validate.positive)

    def __post_init__(self):
        for field in dataclasses.fields(self):
            number = self._check(field.name, getattr(self, field.name))
            object.__setattr__(self, field.name, number)


class _Penalty(_Checked):
    """What the penalties share: their numbers are not below 0."""

    _check = staticmethod(_validate.non_negative)

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
        """Largest eigenvalue of the Hessian, and the least."""
        return self.strength

    strong_convexity = smoothness
    hessian_lipschitz = 0.0

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

    @property
    def hessian_lipschitz(self) -> float:
        """Largest absolute third derivative of a weight's penalty, 4.6686 times the strength.

        The Hessian is diagonal, so |H(v) - H(w)| is at most this times max |v_i - w_i|. With
        w = tan t the third derivative is -6 sin 4t cos^4 t, whose derivative in t, -24 cos^3 t
        cos 5t, is 0 at t = 18, 54 and 90 degrees. It is largest at 18, where sin 4t = cos t.
        """
        return 6 * math.cos(math.pi / 10) ** 5 * self.strength

    def __call__(self, params: Params) -> Array:
        penalties = [jnp.sum(w * w / (1 + w * w)) for w in jax.tree.leaves(params)]
        return self.strength * jnp.asarray(sum(penalties))


@dataclasses.dataclass(frozen=True)
class Quartic(_Checked):
    """|U'U|^2 / 4 in the Frobenius norm, for U with ``rank`` columns, or flat; |u|^4 / 4 for one.

    Has neither smoothness nor a proximal operator.

    >>> float(Quartic()(jnp.array([1.0, 1.0])))
    1.0
    """

    # It decides a shape, so it is structure and not a leaf.
    rank: int = 1
    _check = staticmethod(_validate.positive_int)

    def __call__(self, params: Array) -> Array:
        """Returns the penalty, shape ()."""
        # Of rank x rank numbers, where U U' of the same norm has p x p.
        columns = params.reshape(-1, self.rank)
        return jnp.sum((columns.T @ columns) ** 2) / 4


@pytree_dataclass
class ExceptIntercept:
    """A penalty on all weights of a linear model but that of the last feature, the intercept.

    Of several ``outputs``, with parameters (K p,), the mean of their intercepts is penalised: it
    changes no prediction, and nothing else would determine it. Not strongly convex.

    >>> penalty = ExceptIntercept(L2(2.0))
    >>> float(penalty(jnp.array([3.0, 100.0]))), penalty.smoothness
    (9.0, 2.0)
    >>> penalty.prox(jnp.array([3.0, 100.0]), 1.0).tolist()
    [1.0, 100.0]
    """

    penalty: Any
    outputs: int = static(default=1)

    strong_convexity = 0.0

    def __call__(self, params: Array) -> Array:
        """Returns the penalty, shape ()."""
        return self.penalty(self._penalised(params))

    @property
    def smoothness(self) -> float:
        """That of the penalty, where it has one."""
        return self.penalty.smoothness

    @property
    def hessian_lipschitz(self) -> float:
        """That of the penalty, where it has one: what is penalised is an orthogonal projection."""
        return self.penalty.hessian_lipschitz

    @property
    def prox(self) -> Any:
        """The proximal operator ``(params, step_size) -> params``, where the penalty has one."""
        # The rest is orthogonal to what is penalised, and stays.
        operator, part = self.penalty.prox, self._penalised
        return lambda params, step: operator(part(params), step) + (params - part(params))

    def _penalised(self, params: Array) -> Array:
        rows = params.reshape(self.outputs, -1)
        common = jnp.mean(rows[:, -1]) if self.outputs > 1 else 0.0
        return rows.at[:, -1].set(common).ravel()


def default_penalty(size: int, epsilon: float, classes: bool, inference: bool = False) -> float:
    """Returns the strength that tables and estimators take by default: c / (n epsilon).

    Noise on a mean gradient is of this order too. For predictions c is 2 with ``classes`` and 1 of
    a number, see ``benchmarks/estimator.py`` and ``regression.py``. For ``inference`` it is 1/10:
    intervals need a curvature of about 9 / (n epsilon), so at most about 1 % is lost.

    >>> default_penalty(1_000, 2.0, classes=True)
    0.001
    """
    factor = 0.1 if inference else 2.0 if classes else 1.0
    return factor / (size * _validate.positive("epsilon", epsilon))


def describe_penalty(regularizer: Any) -> str:
    """Returns what is added to the loss in words, or none where nobody knows them.

    >>> describe_penalty(ExceptIntercept(L2(5e-5)))
    'L2, strength 5e-05, on all weights but the intercept'
    """
    if isinstance(regularizer, ExceptIntercept):
        return f"{describe_penalty(regularizer.penalty)}, on all weights but the intercept"
    if not isinstance(regularizer, PENALTIES):
        return "none" if regularizer is None else ""
    # Arrays, where a compiled program returned the objective.
    named = [f"{name} {float(jnp.asarray(held)):.4g}" for name, held in vars(regularizer).items()]
    return f"{type(regularizer).__name__}, {', '.join(named)}"


# Those whose numbers are leaves.
PENALTIES = (L1, L2, ElasticNet, Nonconvex, ExceptIntercept)


def _absolute_sum(params: Params) -> Array:
    # Of a tree without leaves the sum is Python's 0.
    return jnp.asarray(sum(jnp.sum(jnp.abs(w)) for w in jax.tree.leaves(params)))


def _square_sum(params: Params) -> Array:
    return jnp.asarray(sum(jnp.sum(w * w) for w in jax.tree.leaves(params)))


# How far outside, relative to the set, rounding may leave a projected point.
_ROUNDING = 1e-5


class _Domain(_Checked):
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
    _check = staticmethod(_validate.finite)

    def __post_init__(self):
        super().__post_init__()
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

    def project(self, params: Params) -> Params:
        return optax.projections.projection_simplex(params, self.total)

    def excess(self, params: Params) -> Array:
        leaves = jax.tree.leaves(params)
        off = jnp.abs(jnp.asarray(sum(jnp.sum(w) for w in leaves)) - self.total)
        below = jnp.stack([-jnp.min(w) for w in leaves]).max()
        return jnp.maximum(off, below) / self.total
