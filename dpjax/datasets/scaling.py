"""The scaling of features by declared numbers, of one record at a time."""

import math
from typing import TypeVar

import numpy as np

Ranges = tuple[np.ndarray, np.ndarray]
Limit = TypeVar("Limit", float, np.ndarray)
# Several passes over a block in float64 are 2.5 times as fast where it fits a core's cache.
ROWS_IN_CACHE = 1024


def to_range(values: np.ndarray, low: Limit, high: Limit, least: float = 0.0) -> np.ndarray:
    """Clamps float64 values to declared ranges, and maps those to [``least``, 1]; in place."""
    # Both pass NaN on.
    np.minimum(np.maximum(values, low, out=values), high, out=values)
    # Correct rounding keeps the order: a clamped value gives at most (high - low) / (high - low),
    # which is exactly 1.
    values -= low
    values /= high - low
    if least:
        values *= 1 - least
        values += least
    return values


def normalise(
    x: np.ndarray,
    ranges: Ranges | None,
    intercept: bool = False,
    least: float = 0.0,
    constant: float | None = None,
) -> np.ndarray:
    """Clamps and scales each feature to its declared range, then divides each row by its norm.

    Ranges are mapped to [``least``, 1], and None leaves features as they are; ``intercept`` appends
    a feature that is 1 before the division, which is by ``constant`` if there is one.

    Returns:
      (n, p) or (n, p + 1) float32, rows of norm 1 up to rounding. A zero row stays zero. A row
      with a NaN or an infinity becomes NaN throughout: a null record, dropped by training.

    Privacy: each row depends on one record alone (the ranges are declared, not measured), so
    the same adjacency holds before and after.

    >>> low, high = np.zeros(2), np.array([30.0, 100.0])
    >>> normalise(np.array([[0, 50], [90, 100], [0, 0]]), (low, high)).round(4)
    array([[0.    , 1.    ],
           [0.7071, 0.7071],
           [0.    , 0.    ]], dtype=float32)
    """
    rows, features = x.shape
    out = np.empty((rows, features + intercept), np.float32)
    scratch = np.empty((min(rows, ROWS_IN_CACHE), features))
    with np.errstate(all="ignore"):
        for start in range(0, rows, ROWS_IN_CACHE):
            block = finite_or_nan(x[start : start + ROWS_IN_CACHE], scratch)
            if ranges is not None:
                to_range(block, *ranges, least)
            # einsum squares and adds in one pass, without an array of squares.
            norm = np.sqrt(np.einsum("ij,ij->i", block, block) + intercept)[:, None]
            if constant is not None:
                # A null record stays one.
                norm = np.where(np.isnan(norm), np.nan, constant)
            # A row of zeros stays one.
            norm[norm == 0] = 1.0
            place = out[start : start + ROWS_IN_CACHE]
            # Unsafe, so that float64 quotients are rounded to float32 where they are written.
            np.divide(block, norm, out=place[:, :features], casting="unsafe")
            if intercept:
                # NaN where the norm is: a null record is NaN throughout.
                place[:, features:] = 1.0 / norm
    return out


def linear_scale(columns: int, intercept: bool) -> tuple[float, float]:
    """Returns ``least`` and ``constant`` of ``normalise`` for rows that are linear in the columns.

    The constant is the largest norm that there can be: a column, which may have several indicators,
    adds at most 1 to its square.
    """
    return -1.0, math.sqrt(columns + intercept)


def finite_or_nan(values: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Returns a float64 copy with infinities as NaN, so that clamping cannot make them finite.

    ``out`` is float64 memory for as many rows or more, or None for new memory.
    """
    block = np.empty(values.shape) if out is None else out[: len(values)]
    with np.errstate(all="ignore"):
        np.copyto(block, values, casting="unsafe")
    finite = np.isfinite(block)
    if not finite.all():
        block[~finite] = np.nan
    return block
