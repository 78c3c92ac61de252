"""Converts an estimator's input to features and signs, cell by cell.

Shapes and the dtypes of arrays and data frames are public. Values are not, nor is the number of
records: no message holds them, and no single record decides whether there is one. A list has no
dtype, and what it holds would give it one: it is read as objects.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.utils import column_or_1d

from dpjax.datasets.cells import Kind, cells_of, check_unmasked, kind_of, may_be_numbers, to_numbers
from dpjax.datasets.encoders import NumberLabel
from dpjax.datasets.labels import check_labels
from dpjax.datasets.sources import Frame, column_keys


class Labels(NamedTuple):
    """The labels of records."""

    cells: np.ndarray
    kind: Kind


def features(x: Any) -> np.ndarray:
    """Returns ``x`` as real numbers (n, p), with NaN for a cell that is none.

    Raises:
      ValueError: for another shape, or a dtype of other things than real numbers.
      TypeError: for a sparse matrix.
    """
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


def labels(y: Any) -> Labels:
    """Returns the labels in ``y``.

    Raises:
      ValueError: for another shape than (n,) or an array of (n, 1), or a complex dtype.
      TypeError: for a sparse matrix.
    """
    frame = _frame(y)
    if frame is not None and len(frame.names) == 1:  # its one dtype, whatever a cell lacks
        (cells,) = frame.at(slice(None), frame.names)
        return Labels(cells, frame.kinds[frame.names[0]])
    array, kind = _read("y", y)
    # A column of lists is not for granted: one longer list would make objects of all the others.
    column = array.ndim == 2 and array.shape[1] == 1 and not _is_bare(y)
    if array.ndim != 1 and not column:
        raise ValueError(
            f"y should be a 1d array, got {_dimensions(array)} instead: it must hold one label for "
            "each row of X. Pass one column, as a flat array or list."
        )
    return Labels(column_or_1d(array, warn=True), kind)


def numbers(y: Any, low: float, high: float) -> np.ndarray:
    """Returns labels that are numbers from ``low`` to ``high`` mapped to [-1, 1].

    NaN for any other, hence a null record.

    Raises:
      ValueError: for another shape, or a dtype of other things than real numbers.
    """
    cells, kind = labels(y)
    # Words may be numbers, and one that is none makes a null record.
    if kind != Kind.WORDS and not may_be_numbers(kind, ""):
        raise ValueError(f"y must hold numbers, got {kind.value}.")
    return NumberLabel("y", low, high).encode(cells)


def declared_labels(classes: Sequence[Any]) -> np.ndarray:
    """Returns the labels that are declared, sorted.

    Raises:
      ValueError: for fewer than two, one twice, of two kinds, or such as equal nothing.
    """
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
