"""Converts an estimator's input to features and signs, cell by cell.

Shapes and the dtypes of arrays and data frames are public. Values are not, nor is the number of
records: no message holds them, and no single record decides whether there is one. A list has no
dtype, and what it holds would give it one: it is read as objects.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.utils import column_or_1d

from dpjax.datasets.cells import Kind, check_unmasked, kind_of
from dpjax.datasets.labels import stand_in

# Kinds of which a cell may be a number. A single word makes words of a column of numbers.
_TEXT = "OUT"
# What arrays of numpy's kinds hold. Objects, of kind O, may be anything.
_HOLDS = dict.fromkeys("biuf", "numbers") | dict.fromkeys("UT", "words")
_HOLDS |= {
    "S": "bytes",
    "M": "dates",
    "m": "durations",
    "c": "complex numbers",
    "V": "cells of another type",
}


class Labels(NamedTuple):
    """The labels of records.

    Args:
      cells: (n,), an array of any dtype.
      kind: numpy's letter for the dtype that was declared, O for none.
    """

    cells: np.ndarray
    kind: str


def features(x: Any) -> np.ndarray:
    """Returns ``x`` as real numbers (n, p), with NaN for a cell that is none.

    Raises:
      ValueError: for another shape, or a dtype of other things than real numbers.
      TypeError: for a sparse matrix.

    >>> features([[1, 2.5], ["a", 1j], ["3", None]])
    array([[1. , 2.5],
           [nan, nan],
           [3. , nan]])
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
    if array.dtype.kind in "biuf":
        return array
    if kind not in _TEXT:
        raise ValueError(
            f"X must hold numbers, got an array of {_HOLDS[kind]}: leave such a column out, or put "
            "numbers in its place, such as days since a fixed date."
        )
    return _each(_number, array, np.float64)


def labels(y: Any) -> Labels:
    """Returns the labels in ``y``.

    Raises:
      ValueError: for another shape than (n,) or an array of (n, 1), or a complex dtype.
      TypeError: for a sparse matrix.
    """
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

    >>> numbers([0, 5.0, 10, 11, "x"], 0.0, 10.0)
    array([-1.,  0.,  1., nan, nan], dtype=float32)
    """
    given = labels(y)
    if given.kind not in "biuf" + _TEXT:
        raise ValueError(f"y must hold numbers, got an array of {_HOLDS[given.kind]}.")
    cells = given.cells
    if cells.dtype.kind in _TEXT:
        cells = _each(_number, cells, np.float64)
    cells = cells.astype(np.float64)
    middle, half = (low + high) / 2, (high - low) / 2
    with np.errstate(all="ignore"):
        inside = (cells >= low) & (cells <= high)
        return np.where(inside, np.clip((cells - middle) / half, -1, 1), np.nan).astype(np.float32)


def declared_labels(classes: Sequence[Any]) -> np.ndarray:
    """Returns the labels that are declared, sorted.

    Raises:
      ValueError: for fewer than two, one twice, of two kinds, or such as equal nothing.

    >>> declared_labels(("sun", "rain")).tolist()
    ['rain', 'sun']
    """
    try:
        found = np.unique(np.asarray(classes))
    except (TypeError, ValueError):
        raise ValueError(
            f"classes must be labels of one kind that can be sorted, got {classes!r}."
        ) from None
    if len(found) < 2:
        # scikit-learn's checks look for the words "one class".
        raise ValueError(f"classes must be two labels or more, got one class: {classes!r}.")
    if len(found) < len(classes):
        raise ValueError(f"classes must be distinct, got one label twice: {classes!r}.")
    kinds = [_HOLDS.get(_kind(label), "objects") for label in classes]
    if len(set(kinds)) > 1:
        raise ValueError(
            f"classes must be labels of one kind, got {' and '.join(dict.fromkeys(kinds))}: "
            f"{classes!r}."
        )
    if not all(_is(label, label) for label in found):
        raise ValueError(
            f"classes must be labels that equal themselves, got {classes!r}: records without a "
            "label contribute nothing, and cannot be a class."
        )
    # scikit-learn's scores refuse numbers and words that are kept as objects.
    known = found.dtype.kind == "O" and kinds[0] != "objects"
    return np.array(found.tolist()) if known else found


def codes(y: Labels, classes: np.ndarray) -> np.ndarray:
    """Returns -1 and +1 for two classes, 0, 1, ... for more; NaN for any other label.

    Of the classes 0 and 1, -1 stands for 0, and of -1 and 1, 0 for -1.

    Raises:
      ValueError: if by its dtype ``y`` holds labels of another kind than the classes.

    >>> codes(labels([1, "?", 0, None]), declared_labels((0, 1)))
    array([ 1., nan, -1., nan], dtype=float32)
    """
    given, declared = _HOLDS.get(y.kind), _HOLDS.get(_kind(classes[0]))
    if (given, declared) == ("words", "numbers"):
        y = Labels(_each(_number, y.cells, np.float64), "f")
    elif given and declared and given != declared:
        raise ValueError(
            f"y holds {given} and classes {declared}, of which none can be equal: declare classes "
            "in the labels' own type."
        )
    found = np.full(y.cells.shape, np.nan, np.float32)
    numbered = (-1, 1) if len(classes) == 2 else range(len(classes))
    pairs = list(zip(classes.tolist(), numbered, strict=True))
    if declared == "numbers" and (extra := stand_in(classes.tolist())) is not None:
        pairs.append((extra[0], numbered[extra[1]]))
    for label, code in pairs:
        if y.cells.dtype.kind != "O":
            found[y.cells == label] = code
        else:
            found[_each(lambda cell, label=label: _is(cell, label), y.cells, np.bool_)] = code
    return found


def _read(name: str, data: Any) -> tuple[np.ndarray, str]:
    """Returns ``data`` as an array, and the kind of dtype that was declared for it."""
    if sparse.issparse(data):
        raise TypeError(
            f"Sparse data was passed for {name}, but dense data is required: pass {name}.toarray()."
        )
    check_unmasked(name, data)
    if _is_bare(data):
        try:
            return np.array(data, dtype=object), "O"
        except (TypeError, ValueError):
            raise ValueError(
                f"{name} must be an array, or lists of one length; those given are ragged."
            ) from None
    array = np.asarray(data)
    kind = array.dtype.kind
    if kind == "c":
        raise ValueError(f"Complex data not supported: {name} must hold real values.")
    foreign = [one for one in _dtypes(data, array) if not isinstance(one, np.dtype)]
    if foreign:
        held = getattr(foreign[0], "type", object) if array.ndim == 1 else object
        kind = np.dtype(held).kind
    # Of such a column one missing value decides what array it becomes.
    if kind == "T" or (foreign and (array.ndim == 1 or array.dtype.kind not in "biuf")):
        array = np.asarray(data, dtype=object)
    if kind == "O":  # a column of a data frame may state more
        columns = [data[name] for name in data.columns] if hasattr(data, "columns") else [data]
        stated = {kind_of(column) for column in columns}
        kind = "M" if Kind.DATES in stated else "V" if Kind.OTHER in stated else kind
    return array, kind


def _is_bare(data: Any) -> bool:
    """Whether ``data`` is a list or the like, which declares no dtype."""
    return not (hasattr(data, "dtype") or hasattr(data, "__array__"))


def _dtypes(data: Any, array: np.ndarray) -> list[Any]:
    """Returns the dtypes that ``data`` declares: one, or one for each column of a data frame."""
    found: Any = getattr(data, "dtypes", getattr(data, "dtype", array.dtype))
    return [found] if hasattr(found, "kind") or not hasattr(found, "__iter__") else list(found)


def _dimensions(array: np.ndarray) -> str:
    return f"{array.ndim}D array" if array.ndim else "scalar array"


def _each(convert: Callable[[Any], Any], cells: np.ndarray, dtype: type) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a warning, too, tells of one record
        return np.vectorize(convert, otypes=[dtype])(cells)


# A cell may be anything and raise anything: pandas' NA is neither equal nor unequal.
def _number(cell: Any) -> float:
    try:
        return np.nan if _is_complex(cell) else float(cell)
    except Exception:
        return np.nan


def _is(cell: Any, label: Any) -> bool:
    try:
        return not _is_complex(cell) and bool(cell == label)
    except Exception:
        return False


def _is_complex(cell: Any) -> bool:
    # float() takes NumPy's for their real part.
    return isinstance(cell, complex | np.complexfloating)


def _kind(label: Any) -> str:
    return np.asarray(label).dtype.kind
