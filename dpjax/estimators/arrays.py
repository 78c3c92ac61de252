"""Converts an estimator's input to labels and to rows of norm at most 1, record by record.

Shapes and the dtypes of arrays and data frames are public. Values are not, nor is the number of
records: no message holds them, and no single record decides whether there is one. A list has no
dtype, and what it holds would give it one: it is read as objects.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.utils import column_or_1d

from dpjax import _validate
from dpjax.datasets.cells import Kind, cells_of, check_unmasked, kind_of, may_be_numbers, to_numbers
from dpjax.datasets.dataset import Preprocessing
from dpjax.datasets.encoders import NumberLabel, Numeric
from dpjax.datasets.labels import check_labels
from dpjax.datasets.scaling import Ranges, finite_or_nan, linear_scale, normalise, read_ranges
from dpjax.datasets.source import ROWS_AT_ONCE
from dpjax.datasets.sources import Frame, column_keys

# The constant beside rows of norm at most 1: a small one leaves them most of the norm, and takes a
# larger weight. On ijcnn1 1 and 1/2 are worse; on randhie all are alike.
_CONSTANT = 0.25
# Larger multiples of the declared norm are clamped to it, whose square is finite.
_LARGEST = 1e150


def features(x: Any) -> np.ndarray:
    """Returns ``x`` as real numbers (n, p), with NaN for a cell that is none."""
    # Its rows are dense once they are scaled.
    x = x.toarray() if sparse.issparse(x) else x
    array, kind = _read("X", x)
    if array.ndim != 2:
        raise ValueError(
            f"Expected 2D array, got {_dimensions(array)} instead: X must hold rows of features, "
            "all of one length. Reshape your data either using X.reshape(-1, 1) if it has a single "
            "feature or X.reshape(1, -1) if it is a single record."
        )
    if not array.size:
        # scikit-learn's words, which its checks look for, without the number of records.
        lacking, shape = ("sample", "(0, )") if array.shape[1] else ("feature", "(, 0)")
        raise ValueError(
            f"X must not be empty: found array with 0 {lacking}(s) (shape={shape}) while a minimum "
            "of 1 is required."
        )
    frame = _frame(x)
    kinds, dtypes = ({"X": kind}, {}) if frame is None else (frame.kinds, frame.stated)
    for name, kind in kinds.items():
        if not may_be_numbers(kind, dtype := dtypes.get(name, "")):
            where = "" if frame is None else f" in its column {name!r}"
            held = "category" if dtype == "category" else kind.value
            raise ValueError(
                f"X must hold numbers, got {held}{where}: leave such a column out, or put "
                "numbers in its place, such as days since a fixed date, or 0 and 1 for two words."
            )
    if array.dtype.kind in "biuf":
        return array
    if frame is not None:
        return frame.numbers(slice(None), frame.names)
    return to_numbers(array.ravel()).reshape(array.shape)


def labels(y: Any, name: str = "y") -> tuple[np.ndarray, Kind]:
    """Returns the labels in ``y``, or other cells (n,), and how they are stored."""
    frame = _frame(y)
    if frame is not None and len(frame.names) == 1:  # its one dtype, whatever a cell lacks
        (cells,) = frame.at(slice(None), frame.names)
        return cells, frame.kinds[frame.names[0]]
    array, kind = _read(name, y)
    # A column of lists is not for granted: one longer list would make objects of all the others.
    column = array.ndim == 2 and array.shape[1] == 1 and not _is_bare(y)
    if array.ndim != 1 and not column:
        raise ValueError(
            f"{name} should be a 1d array, got {_dimensions(array)} instead: it must hold one cell "
            "for each row of X. Pass one column, as a flat array or list."
        )
    return column_or_1d(array, warn=True), kind


def numbers(y: Any, low: float, high: float) -> np.ndarray:
    """Returns labels that are numbers from ``low`` to ``high`` mapped to [-1, 1].

    NaN for any other, hence a null record.
    """
    cells, kind = labels(y)
    # Words may be numbers, and one that is none makes a null record.
    if kind != Kind.WORDS and not may_be_numbers(kind, ""):
        raise ValueError(f"y must hold numbers, got {kind.value}.")
    return NumberLabel("y", low, high).encode(cells)


def weights(sample_weight: Any, largest: Any) -> np.ndarray:
    """Returns weights (n,) from 0 to the declared ``largest``, over that; NaN for what is none."""
    largest = _validate.normal("max_weight", largest)
    cells, kind = labels(sample_weight, "sample_weight")
    if not may_be_numbers(kind, ""):
        raise ValueError(f"sample_weight must hold numbers, got {kind.value}.")
    return Numeric("sample_weight", 0.0, largest).encode(cells)[:, 0].astype(np.float32)


def declared_labels(classes: Sequence[Any]) -> np.ndarray:
    """Returns the declared labels, sorted: two or more, of one kind, each once."""
    listed = np.asarray(classes).tolist() if hasattr(classes, "__array__") else classes
    known = check_labels("classes", listed, 1)
    if len(known) < 2:
        # scikit-learn's checks look for the words "one class".
        raise ValueError(f"classes must be two labels or more, got one class: {classes!r}.")
    if len({type(label) if isinstance(label, str | bytes) else 0 for label in known}) > 1:
        raise ValueError(f"classes must be labels of one kind, got {classes!r}.")
    # Sorted, as scikit-learn has `classes_`.
    return np.unique(np.array(known))


def _frame(data: Any) -> Frame | None:
    return Frame(data, column_keys(data) or {}) if hasattr(data, "columns") else None


def _read(name: str, data: Any) -> tuple[np.ndarray, Kind]:
    """Returns ``data`` as an array, and how it is stored."""
    if sparse.issparse(data):
        raise TypeError(
            f"Sparse data was passed for {name}, but dense data is required: pass {name}.toarray()."
        )
    check_unmasked(name, data)
    if _is_bare(data):
        try:
            return np.array(data, dtype=object), Kind.MIXED
        except (TypeError, ValueError):
            raise ValueError(
                f"{name} must be an array, or lists of one length; those given are ragged."
            ) from None
    array = np.asarray(data)
    # By the dtype: a complex number in a list is a cell that is none.
    if array.dtype.kind == "c":
        raise ValueError(f"Complex data not supported: {name} must hold real values.")
    if array.ndim == 1 and (hasattr(data, "dtype") or hasattr(data, "to_pylist")):
        return cells_of(data), kind_of(data)  # it may state more than what it becomes
    return array, kind_of(array)


def _is_bare(data: Any) -> bool:
    """Whether ``data`` is a list or the like, which declares no dtype."""
    return not (hasattr(data, "dtype") or hasattr(data, "__array__"))


def _dimensions(array: np.ndarray) -> str:
    return f"{array.ndim}D array" if array.ndim else "scalar array"


class Scaling(NamedTuple):
    """How features become the rows that are trained on; everything in it is declared.

    With ``ranges`` a value is clamped to its range and mapped to [0, 1], the intercept's 1 is
    appended, and the row is divided by its own norm. With ``norm`` a row is divided by it, or by
    its own norm if that is larger; the intercept's 1/4 is appended, and all divided by the norm
    that this gives to the longest, (1 + 1/16)^(1/2).

    A ``linear`` scaling with ranges maps values to [-1, 1], and divides all rows by one constant,
    the largest norm that there can be; with a norm, the constant is 1. So no row within the
    declaration is divided by a norm of its own.
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

        Of the weights (p,) or (p + 1,) of the rows, the intercept's last.
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

    def preprocessing(self, names: Sequence[str], **declared: Any) -> Preprocessing | None:
        """Returns the mapping of columns of these names that gives the same rows; None by a norm.

        ``declared`` are the classes or the bounds of the label.
        """
        if self.ranges is None:
            return None
        ends = zip(names, *(end.tolist() for end in self.ranges), strict=True)
        columns = tuple(Numeric(*column) for column in ends)
        return Preprocessing(columns, self.intercept, **declared, constant=self.linear)

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
    """Returns bounds ``(lower, upper)``, from a mapping by the columns of a data frame too."""
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
