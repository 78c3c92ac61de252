"""Scales features to rows of norm at most 1, by declared numbers and row by row."""

import math
from typing import Any, NamedTuple

import numpy as np

from dpjax import _validate
from dpjax.datasets.base import ROWS_AT_ONCE, Ranges, finite_or_nan, normalise

# The constant beside rows of norm at most 1: a small one leaves them most of the norm, and takes a
# larger weight. On ijcnn1 1 and 1/2 are worse; on randhie all are alike.
_CONSTANT = 0.25
# Larger multiples of the declared norm are clamped to it, whose square is finite.
_LARGEST = 1e150


class Scaling(NamedTuple):
    """How features become the rows that are trained on; everything in it is declared.

    With ``ranges`` a value is clamped to its range and mapped to [0, 1], the intercept's 1 is
    appended, and the row is divided by its own norm. With ``norm`` a row is divided by it, or by
    its own norm if that is larger; the intercept's 1/4 is appended, and all divided by the norm
    that this gives to the longest, (1 + 1/16)^(1/2).

    Args:
      ranges: lowest and highest value of each feature, or None.
      norm: declared bound on the norm of a row, where there are no ranges.
      intercept: whether to append a constant feature.
    """

    ranges: Ranges | None
    norm: float
    intercept: bool

    def rows(self, x: np.ndarray) -> np.ndarray:
        """Returns (n, p) numbers as float32 rows of norm at most 1, up to rounding; a copy.

        Privacy: each row depends on its own record and on declared numbers. One that holds a NaN or
        an infinity is NaN throughout: a null record.

        >>> scaling = Scaling(None, 2.0, intercept=False)
        >>> scaling.rows(np.array([[1.0, 0.0], [3.0, 4.0], [np.nan, 0.0]]))
        array([[0.5, 0. ],
               [0.6, 0.8],
               [nan, nan]], dtype=float32)
        """
        if self.ranges is not None:
            x = x.view()
            x.flags.writeable = False  # the caller's array is not scaled in place
            return normalise(x, self.ranges, self.intercept)
        count, features = x.shape
        out = np.empty((count, features + self.intercept), np.float32)
        shrink, constant = self._weights
        for start in range(0, count, ROWS_AT_ONCE):
            block = finite_or_nan(x[start : start + ROWS_AT_ONCE])
            place = out[start : start + ROWS_AT_ONCE]
            with np.errstate(over="ignore", invalid="ignore"):
                block /= self.norm
                np.clip(block, -_LARGEST, _LARGEST, out=block)
                length = np.sqrt(np.einsum("ij,ij->i", block, block))[:, None]
                block *= shrink / np.maximum(length, 1.0)
            place[:, :features] = np.where(np.isnan(length), np.nan, block)
            place[:, features:] = np.where(np.isnan(length), np.nan, constant)
        return out

    def in_units(self, params: np.ndarray) -> tuple[np.ndarray, float]:
        """Returns weights (p,) and an intercept for features in their own units.

        Args:
          params: weights (p,) or (p + 1,) of the rows, the intercept's last.
        """
        weights = params[: len(params) - self.intercept]
        intercept = float(params[-1]) if self.intercept else 0.0
        if self.ranges is None:
            shrink, constant = self._weights
            return weights * (shrink / self.norm), intercept * constant
        low, high = self.ranges
        weights = weights / (high - low)
        return weights, intercept - float(low @ weights)

    @property
    def _weights(self) -> tuple[float, float]:
        """What rows of norm at most 1 are multiplied by, and the constant beside them."""
        if not self.intercept:
            return 1.0, 0.0
        shrink = 1 / math.hypot(1.0, _CONSTANT)
        return shrink, _CONSTANT * shrink


def declare(bounds: Any, data_norm: Any, intercept: bool, features: int) -> Scaling:
    """Returns the scaling that the arguments declare.

    Args:
      bounds: (lower, upper), each a number or one for each feature; or None.
      data_norm: bound on the norm of a row; or None.
      intercept: whether to append a constant feature.
      features: number p of features.

    Raises:
      ValueError: if not exactly one of the two is given, or it is none.

    >>> declare((0, [30, 100]), None, True, 2).ranges
    (array([0., 0.]), array([ 30., 100.]))
    """
    if (bounds is None) == (data_norm is None):
        given = "neither was" if bounds is None else "both were"
        raise ValueError(
            f"one of bounds and data_norm must be declared, {given}: bounds=(lower, upper) clamps "
            "each feature to its range, data_norm=R scales down rows of norm above R. Neither is "
            "read off the data, which would release them."
        )
    if data_norm is not None:
        return Scaling(None, _validate.positive("data_norm", data_norm), intercept)
    try:
        low, high = (
            np.broadcast_to(np.asarray(end, np.float64), (features,)).copy() for end in bounds
        )
    except (TypeError, ValueError):
        raise ValueError(
            f"bounds must be (lower, upper), each a number or {features} of them, one for each "
            f"feature; got {bounds!r}."
        ) from None
    if wrong := np.flatnonzero(~((low < high) & np.isfinite(high - low))).tolist():
        i = wrong[0]
        raise ValueError(
            f"bounds must be finite with lower < upper; feature {i} has {low[i]} and {high[i]}. "
            "Leave out a feature that is constant."
        )
    return Scaling((low, high), 1.0, intercept)
