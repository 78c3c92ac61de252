"""Scales features to rows of norm at most 1, by declared numbers and row by row."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from dpjax import _validate
from dpjax.datasets.scaling import Ranges, finite_or_nan, linear_scale, normalise
from dpjax.datasets.source import ROWS_AT_ONCE
from dpjax.datasets.tables import read_ranges

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

    A ``linear`` scaling with ranges maps values to [-1, 1], and divides all rows by one constant,
    the largest norm that there can be; with a norm, the constant is 1.

    Args:
      ranges: lowest and highest value of each feature, or None.
      norm: declared bound on the norm of a row, where there are no ranges.
      intercept: whether to append a constant feature.
      linear: whether no row within the declaration is divided by a norm of its own.
    """

    ranges: Ranges | None
    norm: float
    intercept: bool
    linear: bool = False

    def rows(self, x: np.ndarray) -> np.ndarray:
        """Returns (n, p) numbers as float32 rows of norm at most 1, up to rounding; a copy.

        Privacy: each row depends on its own record and on declared numbers. One that holds a NaN or
        an infinity is NaN throughout: a null record.
        """
        if self.ranges is not None:
            return normalise(x, self.ranges, self.intercept, *self._linear_scale)
        count, features = x.shape
        out = np.empty((count, features + self.intercept), np.float32)
        for start in range(0, count, ROWS_AT_ONCE):
            with np.errstate(over="ignore"):
                block = finite_or_nan(x[start : start + ROWS_AT_ONCE]) / self.norm
            # So that a huge finite value is shortened, and no infinity makes NaN of the record.
            np.clip(block, -_LARGEST, _LARGEST, out=block)
            length = np.sqrt(np.einsum("ij,ij->i", block, block))[:, None]
            shrink, constant = self._constants
            place = out[start : start + ROWS_AT_ONCE]
            place[:, :features] = block * (shrink / np.maximum(length, 1.0))
            place[:, features:] = constant
            # The intercept too: a null record is NaN throughout.
            place[np.isnan(length[:, 0])] = np.nan
        return out

    def in_units(self, params: np.ndarray) -> tuple[np.ndarray, float]:
        """Returns weights (p,) and an intercept for features in their own units.

        Args:
          params: weights (p,) or (p + 1,) of the rows, the intercept's last.
        """
        # Not params[:-1], as a row without an intercept ends with a feature.
        weights = params[: len(params) - self.intercept]
        intercept = float(params[-1]) if self.intercept else 0.0
        if self.ranges is None:
            shrink, constant = self._constants
            return weights * (shrink / self.norm), intercept * constant
        low, high = self.ranges
        _, largest = self._linear_scale
        if largest is None:  # a row's own norm scales its score, whose sign stays
            weights = weights / (high - low)
            return weights, intercept - float(low @ weights)
        # The middle of a range is mapped to 0, and each half of it to 1.
        weights = weights * (2 * (1 / largest) / (high - low))
        return weights, intercept * (1 / largest) - float((low + high) / 2 @ weights)

    @property
    def _linear_scale(self) -> tuple[float, float | None]:
        assert self.ranges is not None
        return linear_scale(len(self.ranges[0]), self.intercept) if self.linear else (0.0, None)

    @property
    def _constants(self) -> tuple[float, float]:
        """What rows of norm at most 1 are multiplied by, and the constant beside them."""
        if not self.intercept:
            return 1.0, 0.0
        beside = 1.0 if self.linear else _CONSTANT
        # By which the longest row, of norm 1 before, has norm 1 with its constant.
        shrink = 1 / math.hypot(1.0, beside)
        return shrink, beside * shrink


def by_column(bounds: Any, x: Any, features: int) -> Any:
    """Returns bounds ``(lower, upper)``, from a mapping by the columns of a data frame too.

    Raises:
      ValueError: naming the columns that have none, or bounds that have no column.
    """
    if not isinstance(bounds, Mapping):
        return bounds
    names = getattr(x, "columns", None)
    if names is None:
        raise ValueError("bounds by column need a data frame with named columns.")
    names = [str(name) for name in names][:features]
    return read_ranges({str(name): pair for name, pair in bounds.items()}, names)


def declare(
    bounds: Any, data_norm: Any, intercept: bool, features: int, linear: bool = False
) -> Scaling:
    """Returns the scaling that the arguments declare.

    Bounds are (lower, upper), each a number or one for each of p ``features``.

    Raises:
      ValueError: if not exactly one of the two is given, or it is none.
    """
    if (bounds is None) == (data_norm is None):
        declared = "neither was" if bounds is None else "both were"
        raise ValueError(
            f"one of bounds and data_norm must be declared, {declared}: bounds=(lower, upper) "
            "clamps each feature to its range, data_norm=R scales down rows of norm above R. "
            "Neither is read off the data, which would release them."
        )
    if data_norm is not None:
        return Scaling(None, _validate.positive("data_norm", data_norm), intercept, linear)
    try:
        # A copy, since all cells of a broadcast array are one, and it cannot be written to.
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
    return Scaling((low, high), 1.0, intercept, linear)
