"""Losses of the residual <x, w> - y, for labels from -1 to 1: squared, Huber, Tukey, Welsch."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import jax.numpy as jnp

from dpjax import _validate
from dpjax._typing import Array
from dpjax.objectives.linear import LinearLoss, Numbers, Region
from dpjax.objectives.model import LinearRegression
from dpjax.objectives.objective import Constants, Defaults, Objective, of_scores

# Of a loss whose largest slope and largest curvature meet, a joint bound of 1 clips nobody at
# w_g^2 = (1 + k) C^2 and w_h^2 = (1 + 1/k) M^2 for any k; k = 1/4 leaves the gradient most of it.
_SHARE = 0.25
# 1.01193 of Tukey's loss, rounded up: see ``_Redescending.joint_weights``.
_REDESCENDING = 1.012


@dataclasses.dataclass(frozen=True)
class Residual(LinearLoss):
    """A loss psi(r) of the residual r = <x, w> - y, which is even, smooth and 0 at 0."""

    labels = Numbers()
    # Short steps: where residuals are large slopes are flat, and models far off.
    region = Region(steps=16, radius=1.0)
    constants: ClassVar[Constants | None] = None
    """Those on |x| <= 1, None where there are none for all w."""

    def of_residual(self, r: Array) -> tuple[Array, Array, Array]:
        """Returns psi, psi' and psi'' at residuals of any shape."""
        raise NotImplementedError

    def value(self, score: Array, label: Array) -> Array:
        return self.of_residual(score - label)[0]

    def derivatives(self, score: Array, label: Array) -> tuple[Array, Array]:
        return self.of_residual(score - label)[1:]

    @property
    def at_zero(self) -> float:
        return float(self.of_residual(jnp.ones(()))[0])

    def joint_weights(self, lipschitz: float) -> tuple[float, float]:
        """Returns weights for which slope and curvature, at most 1, may both be largest."""
        return math.sqrt(1 + _SHARE), math.sqrt(1 + 1 / _SHARE) / lipschitz


@dataclasses.dataclass(frozen=True)
class Reweighted(Residual):
    """A robust loss with slope over residual for its curvature: steps from afar that come near."""

    form: Residual

    def of_residual(self, r: Array) -> tuple[Array, Array, Array]:
        value, slope, _ = self.form.of_residual(r)
        return value, slope, jnp.where(r == 0, 1, slope / jnp.where(r == 0, 1, r))


@dataclasses.dataclass(frozen=True)
class Squared(Residual):
    """r^2 / 2."""

    # One step, from 0: there no record is clipped, and gradient and Hessian say it all. Damping
    # chosen on two data sets of ``benchmarks/regression.py``, on other seeds.
    region = Region(steps=1, damping=1.0)
    concordance = 0.0  # a quadratic model leaves nothing out

    def slope_within(self, length: Array) -> Array:
        return 1 + length

    def joint_weights(self, lipschitz: float) -> tuple[float, float]:
        # Slope and curvature may both be largest: each takes half of the joint norm's square.
        return math.sqrt(2), math.sqrt(2) / lipschitz

    def of_residual(self, r: Array) -> tuple[Array, Array, Array]:
        return r * r / 2, r, jnp.ones_like(r)


@dataclasses.dataclass(frozen=True)
class Huber(Residual):
    """r^2 / 2 up to the threshold d, and from there d (|r| - d / 2)."""

    threshold: float

    proven = True

    @property
    def constants(self) -> Constants:
        return Constants(self.threshold, 1.0, math.inf)

    def of_residual(self, r: Array) -> tuple[Array, Array, Array]:
        slope = jnp.clip(r, -self.threshold, self.threshold)
        inside = jnp.abs(r) <= self.threshold
        # By the clipped slope one formula serves both sides of the threshold.
        return slope * (r - slope / 2), slope, jnp.asarray(inside, jnp.result_type(r))


@dataclasses.dataclass(frozen=True)
class _Redescending(Residual):
    """A loss whose slope falls to 0 far out, beyond the scale c, so that it is not convex."""

    scale: float

    def joint_weights(self, lipschitz: float) -> tuple[float, float]:
        """Returns 1 and a little over 1 / ``lipschitz``: steep slopes have little curvature.

        psi'^2 / G^2 + psi''^2 / t^2 is at most 1 for t = 1 of Welsch's loss and 1.01193 of Tukey's.
        """
        return 1.0, _REDESCENDING / lipschitz


@dataclasses.dataclass(frozen=True)
class Tukey(_Redescending):
    """Tukey's biweight, c^2 / 6 (1 - (1 - (r / c)^2)^3), and c^2 / 6 beyond c."""

    proven = True

    @property
    def constants(self) -> Constants:
        """The slope is largest at r = c / sqrt 5, the third derivative at c."""
        return Constants(16 * self.scale / (25 * math.sqrt(5)), 1.0, 8 / self.scale)

    def of_residual(self, r: Array) -> tuple[Array, Array, Array]:
        # Beyond c the loss is flat: with 1 the formulas give c^2 / 6, 0 and 0.
        square = jnp.minimum((r / self.scale) ** 2, 1)
        rest = 1 - square
        return self.scale**2 / 6 * (1 - rest**3), r * rest**2, rest * (1 - 5 * square)


@dataclasses.dataclass(frozen=True)
class Welsch(_Redescending):
    """c^2 / 2 (1 - exp(-(r / c)^2))."""

    proven = True

    @property
    def constants(self) -> Constants:
        """The slope is largest at r = c / sqrt 2; the third derivative is that of ``welsch``."""
        # In v = sqrt(2) r / c the curvature is (1 - v^2) exp(-v^2 / 2), the other loss's.
        third = 1.3801195 * math.sqrt(2) / self.scale
        return Constants(math.exp(-1 / 2) * self.scale / math.sqrt(2), 1.0, third)

    def of_residual(self, r: Array) -> tuple[Array, Array, Array]:
        square = (r / self.scale) ** 2
        decay = jnp.exp(-square)
        # Where the square overflows its product with 0 would be NaN.
        return (
            self.scale**2 / 2 * (1 - decay),
            r * decay,
            jnp.where(decay > 0, (1 - 2 * square) * decay, 0),
        )


def least_squares(regularization: float = 1e-3) -> Objective:
    """Returns (<x, w> - y)^2 / 2 plus ``regularization`` / 2 times |w|^2, for labels in [-1, 1].

    The gradient has no bound for all w, so there are no constants; the default clip norm, 1, is
    that of the gradient of the largest label at w = 0.

    Args:
      regularization: strength of the penalty; 0 for none.

    Raises:
      ValueError: for a negative strength.

    >>> float(least_squares()(jnp.zeros(2), (jnp.ones(2), 0.5)))
    0.125
    """
    defaults = Defaults(clip_norm=1.0, hessian_clip_norm=1.0, step_size=1.0, initial_gap=0.5)
    return of_scores(Squared(), "least-squares", LinearRegression(), regularization, defaults)


def huber(regularization: float = 1e-3, threshold: float = 0.2) -> Objective:
    """Returns Huber's loss of <x, w> - y plus ``regularization`` / 2 times |w|^2.

    It is r^2 / 2 up to the threshold d, and d (|r| - d / 2) beyond, so that outliers count less. It
    is convex; its curvature jumps at d, hence it has no Hessian-Lipschitz constant.

    Args:
      regularization: strength of the penalty; 0 for none.
      threshold: d, for labels in [-1, 1]; a public number.

    Raises:
      ValueError: for a threshold that is not above 0, or a negative strength.

    Reference: Huber, "Robust estimation of a location parameter" (1964).

    >>> huber(threshold=0.5).constants
    Constants(lipschitz=0.5, smoothness=1.0, hessian_lipschitz=inf)
    """
    form = Huber(_validate.normal("threshold", threshold))
    return of_scores(form, "huber", LinearRegression(), regularization)


def tukey(regularization: float = 1e-3, scale: float = 0.8) -> Objective:
    """Returns Tukey's biweight of <x, w> - y plus ``regularization`` / 2 times |w|^2.

    Records with a residual beyond the scale c count for nothing; the loss is not convex.

    Args:
      regularization: strength of the penalty; 0 for none.
      scale: c, for labels in [-1, 1]; a public number.

    Raises:
      ValueError: for a scale that is not above 0, or a negative strength.

    Reference: Beaton and Tukey, "The fitting of power series, meaning polynomials, illustrated on
    band-spectroscopic data" (1974). |psi'| <= 16 c / (25 sqrt 5), |psi''| <= 1, |psi'''| <= 8 / c.

    >>> print(round(tukey(scale=1.0).constants.lipschitz, 4))
    0.2862
    """
    form = Tukey(_validate.normal("scale", scale))
    return of_scores(form, "tukey", LinearRegression(), regularization)


def welsch_residual(regularization: float = 1e-3, scale: float = 0.6) -> Objective:
    """Returns Welsch's loss of <x, w> - y plus ``regularization`` / 2 times |w|^2.

    c^2 / 2 (1 - exp(-(r / c)^2)) for a residual r; the loss is not convex.

    Args:
      regularization: strength of the penalty; 0 for none.
      scale: c, for labels in [-1, 1]; a public number.

    Raises:
      ValueError: for a scale that is not above 0, or a negative strength.

    Reference: Holland and Welsch, "Robust regression using iteratively reweighted least-squares"
    (1977). |psi'| <= c exp(-1/2) / sqrt 2, |psi''| <= 1, |psi'''| <= 1.9518 / c.

    >>> print(round(welsch_residual(scale=1.0).constants.lipschitz, 4))
    0.4289
    """
    form = Welsch(_validate.normal("scale", scale))
    return of_scores(form, "welsch-residual", LinearRegression(), regularization)
