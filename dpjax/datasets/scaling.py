"""The declared ranges of features, and the scaling by them, of one record at a time."""

import csv
import json
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from dpjax import _validate
from dpjax.datasets.source import check_unique, few, text_of

Bounds = str | os.PathLike[str] | Mapping[str, Sequence[float]] | Sequence[Sequence[float]]
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
    a feature that is 1 before the division, which is by ``constant`` if there is one, and by a
    row's own norm only where that is larger.

    Rows are float32, of norm 1 up to rounding. A zero row stays zero. A row with a NaN or an
    infinity becomes NaN throughout: a null record, dropped by training.

    Privacy: each row depends on one record alone (the ranges are declared, not measured), so
    the same adjacency holds before and after.
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
                # NaN stays NaN: a null record stays one.
                norm = np.maximum(norm, constant)
            # A row of zeros stays one.
            norm[norm == 0] = 1.0
            place = out[start : start + ROWS_IN_CACHE]
            # Unsafe, so that float64 quotients are rounded to float32 where they are written.
            np.divide(block, norm, out=place[:, :features], casting="unsafe")
            if intercept:
                # NaN where the norm is: a null record is NaN throughout.
                place[:, features:] = 1.0 / norm
    return out


def linear_scale(
    columns: int, intercept: bool, max_norm: float | None = None
) -> tuple[float, float]:
    """Returns ``least`` and ``constant`` of ``normalise`` for rows that are linear in the columns.

    The constant is the largest norm that there can be: a column, which may have several indicators,
    adds at most 1 to its square. A declared ``max_norm`` takes its place where it is smaller, and
    longer rows are scaled down to it.
    """
    largest = math.sqrt(columns + intercept)
    return -1.0, largest if max_norm is None else min(largest, max_norm)


def finite_or_nan(values: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Returns a float64 copy, in ``out`` if given, with infinities, which clamping hid, as NaN."""
    block = np.empty(values.shape) if out is None else out[: len(values)]
    with np.errstate(all="ignore"):
        np.copyto(block, values, casting="unsafe")
    finite = np.isfinite(block)
    if not finite.all():
        block[~finite] = np.nan
    return block


def read_ranges(bounds: Bounds, columns: Sequence[str]) -> Ranges:
    """Returns the declared lowest and highest value of each column, each (p,) float64.

    Bounds are a mapping ``{"age": [0, 120], ...}``, a JSON file that holds one, or a CSV file with
    the header ``column,low,high``; a list of pairs is of the columns ``"0"``, ``"1"``, ... of an
    NPZ.

    Privacy: the ranges must be known without looking at the data.
    """
    declared: Any = bounds
    if isinstance(bounds, str | os.PathLike):
        declared = _read_declared(pathlib.Path(bounds), text_of(bounds, "bounds file"))
    # The columns of an NPZ or NPY are named by their numbers.
    if isinstance(declared, list | tuple):
        declared = {str(index): pair for index, pair in enumerate(declared)}
    if not isinstance(declared, Mapping):
        raise ValueError(f"bounds must be {{column: [low, high]}}, got {declared!r}.")
    if missing := [column for column in columns if column not in declared]:
        raise ValueError(f"bounds lack the columns {few(missing)}: declare [low, high] for each.")
    if unknown := [column for column in declared if column not in columns]:
        raise ValueError(
            f"bounds name {few(unknown)}, which are not features of the table: remove them. Its "
            f"features are {few(columns)}."
        )
    pairs = [_validate.interval(f"bounds of column {c!r}", declared[c]) for c in columns]
    low, high = np.array(pairs, np.float64).T
    return low, high


def _read_declared(path: pathlib.Path, text: str) -> Any:
    if path.suffix.lower() == ".json":
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"bounds file {str(path)!r} is not valid JSON: {error}.") from None
    if path.suffix.lower() != ".csv":
        raise ValueError(f"bounds must name a .json or .csv file, got {str(path)!r}.")
    header, *lines = csv.reader(text.splitlines()) if text.strip() else [[]]
    # csv returns an empty list for a blank line.
    lines = [line for line in lines if line]
    wanted = ["column", "low", "high"]
    if [cell.strip() for cell in header] != wanted or any(len(line) != 3 for line in lines):
        raise ValueError(
            f"bounds file {str(path)!r} must have the header column,low,high and three cells a "
            f"line, got the header {','.join(header)!r}."
        )
    names = [line[0].strip() for line in lines]
    check_unique(f"bounds file {str(path)!r}", names)
    # Still text: `interval` converts it, and names the column of what is no number.
    return {name: line[1:] for name, line in zip(names, lines, strict=True)}
