"""``LinearLoss``: a loss of the scores that a linear model gives one record's features."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._typing import Array, Bool, Float

ONE_LABEL = "pass y[:, 0] of labels in one column, y.argmax(axis=1) of one-hot labels"
"""What an error says of labels with more than one number for a record."""


@dataclasses.dataclass(frozen=True)
class Signs:
    """Labels -1 and +1, which features are multiplied by; as data are given, 0 stands for -1."""

    words: ClassVar[str] = "-1, 1, and 0 as -1"
    """The labels that count."""
    classes: ClassVar[int | None] = 2
    """How many labels there are, None for numbers."""
    twin: ClassVar[tuple[int, int] | None] = (0, -1)
    """A number in the data that stands for a label, and that label; or None."""
    axes: ClassVar[int] = 0
    """How many axes the label of one record has."""

    def read(self, y: Any) -> Any:
        """Returns the labels of an array, each by itself, with its label for the ``twin``."""
        unsigned = y.dtype.kind in "bu"
        if self.twin is None or (unsigned and self.twin[0] < 0):  # which 255 would equal
            return y
        # Unsigned integers cannot hold -1.
        y = y.astype(np.float32) if unsigned else y
        number, label = self.twin
        # In the library of the array, so that labels of NumPy stay on the host.
        return (np if isinstance(y, np.ndarray) else jnp).where(y == number, label, y)

    def accepts(self, y: Float[Array, "*rows"]) -> Bool[Array, "*rows"]:
        """Returns whether each label counts; a record with another contributes nothing."""
        return jnp.abs(y) == 1

    def known(self, y: Array, counts: Bool[Array, "*rows"], other: float = 0) -> Array:
        """Returns the labels that count, and ``other`` in place of each that does not."""
        return jnp.where(counts[(..., *(None,) * self.axes)], y, other)

    def sign(self, y: Float[Array, "*rows"]) -> Float[Array, "*rows"]:
        """Returns what the features of a record are multiplied by."""
        return y

    def beside(self, y: Float[Array, "*rows"]) -> Float[Array, "*rows"] | None:
        """Returns what a loss reads beside the scores, None for nothing."""
        return None

    def correct(self, scores: Array, label: Array | None) -> Bool[Array, "*rows"]:
        """Returns whether scores, (*rows,) or (*rows, K), give the labels."""
        # Features are multiplied by the sign, so that a score above 0 is right for either label.
        return scores > 0


@dataclasses.dataclass(frozen=True)
class Numbers(Signs):
    """Labels from -1 to 1."""

    words = "numbers from -1 to 1"
    classes = twin = None

    def accepts(self, y: Float[Array, "*rows"]) -> Bool[Array, "*rows"]:
        # Within 1: at w = 0 the residual is the label, so that a slope there is within 1 too.
        return jnp.abs(y) <= 1

    def sign(self, y: Float[Array, "*rows"]) -> Float[Array, "*rows"]:
        return jnp.ones_like(y)

    def beside(self, y: Float[Array, "*rows"]) -> Float[Array, "*rows"]:
        return y


@dataclasses.dataclass(frozen=True)
class Classes(Numbers):
    """Labels 0, 1, ..., ``count`` - 1; of two, -1 stands for 0."""

    count: int

    @property
    def words(self) -> str:
        return ", ".join(map(str, range(self.count)))

    @property
    def classes(self) -> int:
        return self.count

    @property
    def twin(self) -> tuple[int, int] | None:
        return (-1, 0) if self.count == 2 else None

    def accepts(self, y: Float[Array, "*rows"]) -> Bool[Array, "*rows"]:
        # NaN fails every comparison, and a fraction is no class.
        return (y >= 0) & (y < self.count) & (y == jnp.floor(y))

    def correct(self, scores: Array, label: Array | None) -> Bool[Array, "*rows"]:
        return jnp.argmax(scores, axis=-1) == label


@dataclasses.dataclass(frozen=True)
class WithWeights(Signs):
    """Labels (*rows, 2) of another kind, each with a weight that is above 0 and at most 1."""

    form: Signs

    axes = 1
    said: ClassVar[str] = (
        ", each with the record's weight, above 0 and at most the declared one, to which "
        "estimators clamp it"
    )
    words = property(lambda self: self.form.words + self.said)  # pyright: ignore
    classes, twin = (property(operator.attrgetter(f"form.{n}")) for n in ("classes", "twin"))  # pyright: ignore

    def read(self, y: Any) -> Any:
        stack = (np if isinstance(y, np.ndarray) else jnp).stack
        return stack([self.form.read(y[..., 0]), y[..., 1]], axis=-1)

    def accepts(self, y: Float[Array, "*rows 2"]) -> Bool[Array, "*rows"]:
        return self.form.accepts(y[..., 0]) & (y[..., 1] > 0) & (y[..., 1] <= 1)

    def sign(self, y: Float[Array, "*rows 2"]) -> Float[Array, "*rows"]:
        return self.form.sign(y[..., 0])

    def beside(self, y: Float[Array, "*rows 2"]) -> Float[Array, "*rows 2"]:
        return y

    def correct(self, scores: Array, label: Array) -> Bool[Array, "*rows"]:
        return self.form.correct(scores, label[..., 0])


class Region(NamedTuple):
    """Public numbers for a trust-region method to start from.

    Args:
      steps: of a method that asks all records.
      radius: of the first step, for rows of norm 1.
      damping: over the spectral scale of the noise on the Hessian.
    """

    steps: int = 32
    radius: float = 12.0
    damping: float = 0.5


@dataclasses.dataclass(frozen=True)
class LinearLoss:
    """A loss psi(s, y) of a record (x, y), whose scores s are <x, w> or, for K outputs, W x.

    Its gradient is psi'(s, y) x and its Hessian psi''(s, y) x x^T (for K outputs, Kronecker
    products of them), so that norms follow from the derivatives by the scores, and sums over
    records are matrix products. Frozen and hashable: it is structure, not numbers.

    Privacy: NOT a mechanism; each value depends on one record alone.
    """

    labels: ClassVar[Signs]
    """The labels that count."""
    outputs: ClassVar[int] = 1
    """Number of scores, K."""
    at_zero: ClassVar[float]
    """The largest loss of a record at w = 0, where psi is never negative."""
    region: ClassVar[Region] = Region()
    """What a trust-region method starts from: weights that classify have large norms."""
    concordance: ClassVar[float | None] = None
    """The most that the third derivative of psi is over the second; None if it has no bound.

    As forms, |D^3 psi[u, u, v]| <= k D^2 psi[u, u] |v| for all vectors u and v of scores.
    """

    def value(self, score: Array, label: Any) -> Array:
        """Returns psi of one record, shape (): of a score () or scores (K,), and its label ().

        The label is None where ``labels.beside`` is.
        """
        raise NotImplementedError

    def derivatives(self, score: Array, label: Any) -> tuple[Array, Array]:
        """Returns psi', () or (K,), and psi'', () or (K, K), of one record."""
        slope = jax.grad(self.value)
        # Of K scores forward over backward, K products for K^2 entries.
        curve = jax.grad(slope) if self.outputs == 1 else jax.jacfwd(slope)
        return slope(score, label), curve(score, label)

    def slope_within(self, length: Array) -> Array | None:
        """Returns a bound on |psi'| for |x| <= 1 and weights of norm ``length``; None for none."""
        return None

    def joint_weights(self, lipschitz: float) -> tuple[float, float] | None:
        """Returns w_g and w_h, over ``lipschitz``, at which a joint bound of 1 never clips.

        With them |g|^2 / w_g^2 + |H|_F^2 / w_h^2 <= 1 for every record with |x| <= 1, where
        ``lipschitz`` is a bound on the norm of psi'. None if none are known.
        """
        return None


@dataclasses.dataclass(frozen=True)
class Margin(LinearLoss):
    """A loss phi(m) of the margin m = y <x, w>, of a scalar function phi differentiable twice."""

    phi: Callable[[Array], Array]

    labels = Signs()

    def value(self, score: Array, label: Any = None) -> Array:
        return self.phi(score)

    @property
    def at_zero(self) -> float:
        return float(self.phi(jnp.zeros(())))

    @property
    def concordance(self) -> float | None:
        """1 of the logistic loss; None where phi is not convex."""
        return concordance(self.phi)

    def joint_weights(self, lipschitz: float) -> tuple[float, float]:
        """Returns 1 and ``free_hessian_ratio``: beside the gradient the Hessian costs nothing."""
        return 1.0, free_hessian_ratio(self.phi, lipschitz)


@dataclasses.dataclass(frozen=True)
class _KeptSigns(Signs):
    """Labels -1 and +1 that a loss reads beside the scores."""

    def beside(self, y: Float[Array, "*rows"]) -> Float[Array, "*rows"]:
        return y


@dataclasses.dataclass(frozen=True)
class Weighted(LinearLoss):
    """A loss times a number of the record from 0 to 1: of its class, declared, or its own.

    Weights only shrink a record's loss with all its derivatives, whatever they are. So every bound
    on those of ``form`` holds, none grows with the weights, and clip norms stay what they are.
    """

    form: LinearLoss
    weights: tuple[float, ...] | None
    """One for each class, the largest 1; None for each record's own, see ``WithWeights``."""

    def __post_init__(self):
        if not all(0 <= weight <= 1 for weight in self.weights or ()):
            raise ValueError(f"weights must be from 0 to 1, got {self.weights}.")

    outputs, at_zero, region, concordance, slope_within, joint_weights = (  # pyright: ignore
        property(operator.attrgetter(f"form.{name}"))
        for name in ("outputs", "at_zero", "region", "concordance", "slope_within", "joint_weights")
    )

    @property
    def labels(self) -> Signs:
        if self.weights is None:
            return WithWeights(self.form.labels)
        return _KeptSigns() if type(self.form.labels) is Signs else self.form.labels

    def value(self, score: Array, label: Array) -> Array:
        weight, beside = self._parts(label)
        return weight * self.form.value(score, beside)

    def derivatives(self, score: Array, label: Array) -> tuple[Array, Array]:
        weight, beside = self._parts(label)
        slope, curve = self.form.derivatives(score, beside)
        return weight * slope, weight * curve

    def _parts(self, label: Array) -> tuple[Array, Array | None]:
        if self.weights is None:
            label, weight = label
        else:
            place = label if self.form.labels.twin is None or self.outputs > 1 else label > 0
            weight = jnp.asarray(self.weights, label.dtype)[place.astype(int)]
        return weight, self.form.labels.beside(label)


def unweighted(form: Any) -> Any:
    """Returns a loss without its weights; those of a class made of ``Weighted`` may be any."""
    return unweighted(form.form) if type(form) is Weighted else form


def linear_of(loss: Any) -> LinearLoss | None:
    """Returns the closed form of an objective, or None if it or a loss has none."""
    return getattr(loss, "linear", None)


@functools.lru_cache(maxsize=64)
def free_hessian_ratio(margin: Callable[[Array], Array], lipschitz: float) -> float:
    """Returns the least ratio of Hessian to gradient noise at which the Hessian costs nothing.

    With t this ratio, sup over m of (phi'(m) / G)^2 + (phi''(m) / (t G))^2 is 1: one record's joint
    norm is at most its gradient's, so releasing the Hessian beside the gradient needs no more
    noise, and joint clipping to 1 never acts on rows with |x| <= 1.

    Args:
      margin: scalar function phi.
      lipschitz: G, a bound on |phi'|.

    Returns:
      t, rounded up by 1e-4: 0.3003 for the logistic loss, 0.7072 for the sigmoid.

    >>> round(free_hessian_ratio(lambda m: jnp.log1p(jnp.exp(-m)), 1.0), 4)
    0.3003
    """
    first, second = (values / lipschitz for values in margin_derivatives(margin))
    # What a joint norm of 1 leaves to the Hessian beside the gradient.
    room = 1 - first**2
    # Far out phi' is too close to its bound to tell the room from rounding; phi'' is as small.
    ratios = np.where(room > 1e-9, second**2 / np.maximum(room, 1e-9), 0.0)
    # Rounded up for what lies between the margins tried, or clipping would act.
    return float(np.sqrt(ratios.max())) * (1 + 1e-4)


def margin_derivatives(margin: Callable[[Array], Array]) -> tuple[np.ndarray, np.ndarray]:
    """Returns phi' and phi'' at 60,000 margins from -30 to 30, in float64.

    >>> first, second = margin_derivatives(lambda m: jnp.log1p(jnp.exp(-m)))
    >>> bool((first < 0).all() and (second > 0).all())
    True
    """
    # An even count keeps m = 0 off the grid, where the sigmoid's second derivative is 0.
    return _with_derivative(jax.grad(margin), np.linspace(-30, 30, 60_000))


def _with_derivative(
    function: Callable[[Array], Array], margins: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    # One program: operation by operation it takes a second.
    both = jax.jit(jax.vmap(jax.value_and_grad(function)))
    # It may be asked for while a training is traced, whose program this is no part of.
    with jax.ensure_compile_time_eval(), jax.enable_x64(True):
        values, slopes = both(margins)
    return np.asarray(values), np.asarray(slopes)


@functools.lru_cache(maxsize=64)
def concordance(margin: Callable[[Array], Array]) -> float | None:
    """Returns the most that |phi'''| is over phi'', at many margins; None if phi is not convex.

    >>> round(concordance(lambda m: jnp.log1p(jnp.exp(-m))), 4)
    1.0
    """
    second, third = _with_derivative(jax.grad(jax.grad(margin)), np.linspace(-15, 15, 30_000))
    if (second <= 0).any():
        return None
    return float((np.abs(third) / second).max())
