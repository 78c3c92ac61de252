"""Declared labels, and the numbers that encode them in training."""

import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np

from dpjax import _validate

Label = str | bool | int | float
Classes = tuple[Label, ...]
_SIGNS = "-1, +1"

_HOLDS = {
    "b": "True and False",
    "U": "words",
    "S": "bytes",
    "T": "words",
    "O": "cells of no stated type",
}


def check_classes(classes: Any) -> tuple[Label, ...]:
    """Returns the declared labels as plain Python values.

    Args:
      classes: at least two different words, numbers or booleans; of two, the first is the
        negative class.

    Raises:
      ValueError: for anything else.

    Privacy: the labels must be known without looking at the data.

    >>> check_classes(["No", "Yes"])
    ('No', 'Yes')
    """
    if isinstance(classes, str) or not isinstance(classes, Sequence | np.ndarray):
        raise ValueError(
            "classes must be a list of labels such as ('No', 'Yes'), got "
            f"{_validate.shown(classes)}."
        )
    labels = tuple(label.item() if isinstance(label, np.generic) else label for label in classes)
    for label in labels:
        if not isinstance(label, Label) or label != label or not str(label).strip():
            raise ValueError(f"classes must be words, numbers, True or False, got {label!r}.")
    if len(labels) < 2:
        raise ValueError(f"classes must hold at least two labels, got {labels!r}.")
    for position, label in enumerate(labels):
        if any(same_label(label, other) for other in labels[:position]):
            raise ValueError(f"classes must be distinct, got {label!r} twice.")
    return labels


def typed(cells: np.ndarray) -> np.ndarray:
    """Returns the cells of a file as numbers if most of them are numbers, else unchanged.

    Args:
      cells: (n,); a dtype other than object is kept.

    Returns:
      (n,) float64, NaN for a cell that is not a number; or ``cells``.

    Privacy: whether a column holds numbers or words is public, as the dtype of an array is. The
      majority decides, so that one strange record among many does not change the result.

    >>> typed(np.array(["0", "1", "?"], object)), typed(np.array(["No", "Yes", "1"], object))
    (array([ 0.,  1., nan]), array(['No', 'Yes', '1'], dtype=object))
    """
    if cells.dtype.kind not in "OT":
        return cells
    known = {str(cell): _number(cell) for cell in cells.flat if isinstance(cell, str)}
    values = [
        known[str(cell)] if isinstance(cell, str) else None if isinstance(cell, bool) else cell
        for cell in cells.flat
    ]
    converted = np.array([_to_float(number) for number in values])
    return converted if 2 * np.isfinite(converted).sum() > len(converted) else cells


def _to_float(number: Any) -> float:
    try:
        return float(number) if isinstance(number, numbers.Real) else np.nan
    except (OverflowError, ValueError):
        return np.nan


def encode_labels(
    y: Any, classes: Sequence[Label] | None = None, *, from_zero: bool = False, name: str = "y"
) -> np.ndarray:
    """Returns declared labels as numbers, and any other value as NaN.

    Args:
      y: (n,) words, booleans or numbers.
      classes: the declared labels, compared as text or as numbers. Of two, the first becomes -1
        and the second +1; more become 0, 1, ... in their order. None requires numbers: 1
        becomes +1, 0 and -1 become -1.
      from_zero: whether two classes become 0 and 1 as well, as for a network.
      name: of ``y`` in an error.

    Returns:
      (n,) float32.

    Raises:
      ValueError: by the dtype alone: for words or booleans without ``classes``, or classes that no
        value of this dtype can equal.

    Privacy: each number depends on one record alone. A label outside the classes raises no error,
      which would depend on the data; it makes a null record, which contributes nothing.

    >>> encode_labels(["No", "Yes", "?"], classes=("No", "Yes"))
    array([-1.,  1., nan], dtype=float32)
    >>> encode_labels(np.array([0, 1, -1, 7]))
    array([-1.,  1., -1., nan], dtype=float32)
    """
    cells = np.asarray(y) if hasattr(y, "dtype") else np.array(y, dtype=object)
    kind = cells.dtype.kind
    if kind not in "biufUSTO":
        raise ValueError(f"{name} must hold words, booleans or real numbers, got {cells.dtype}.")
    if classes is None:
        if kind not in "iuf":
            raise ValueError(
                f"classes must declare which labels count in {name}, which holds "
                f"{_HOLDS.get(kind, 'cells of no stated type')}: pass them as classes=('No', "
                "'Yes') in Python or --classes No,Yes on the command line; a record with any "
                "other label contributes nothing. Reading them off the data would leak it; the "
                "owner of a file can list them with `dpjax data FILE --label COLUMN --check`."
            )
        signs = np.full(cells.shape, np.nan, np.float32)
        signs[cells == 1] = 1.0
        signs[(cells == 0) | (cells == -1)] = -1.0
        return signs
    classes = check_classes(classes)
    _check_kind(name, kind, classes)
    numbers = range(len(classes)) if from_zero else _codes(classes)
    codes = dict(zip(classes, map(float, numbers), strict=True))

    def code(cell: Any) -> float:
        return next((codes[label] for label in classes if same_label(cell, label)), np.nan)

    if kind in "OT":
        known: dict[str, float] = {}
        return np.array([_remembered(known, cell, code) for cell in cells.flat], np.float32)
    values, positions = np.unique(cells, return_inverse=True)
    return np.array([code(value) for value in values.tolist()], np.float32)[positions]


def labels_counted(classes: Sequence[Label] | None) -> str:
    """Returns the declared labels and their numeric codes as text.

    >>> labels_counted(("No", "Yes"))
    "'No' (as -1), 'Yes' (as +1)"
    """
    if classes is None:
        return "-1 and 0 (as -1), 1 (as +1)"
    if tuple(classes) == (-1, 1):
        return _SIGNS
    pairs = zip(classes, _codes(classes), strict=True)
    signed = "+d" if len(classes) == 2 else "d"
    return ", ".join(f"{label!r} (as {int(code):{signed}})" for label, code in pairs)


def null_labels(counted: str | None, classes: Sequence[Label] | None) -> str:
    r"""Returns the guarantee's line on the labels counted; it never says that others occur.

    Args:
      counted: the labels of the loss as text, or None if it takes any number.
      classes: the labels declared for the data; empty for a table of numbers, None for arrays.

    >>> null_labels("-1, +1", ("No", "Yes"))
    "Accepted labels: 'No', 'Yes'; a record with any other label is a null record.\n"
    """
    if counted is None:
        return ""
    if counted == _SIGNS and classes == ():
        counted = labels_counted(None)
    if classes and tuple(classes) != (-1, 1):
        counted = ", ".join(map(repr, classes))
    return f"Accepted labels: {counted}; a record with any other label is a null record.\n"


def decode_labels(
    codes: np.ndarray, classes: Sequence[Label] | None, *, from_zero: bool = False
) -> np.ndarray:
    """Returns the labels for codes of ``encode_labels``.

    >>> decode_labels(np.array([1.0, -1.0]), ("No", "Yes"))
    array(['Yes', 'No'], dtype='<U3')
    """
    known = (-1, 1) if classes is None else tuple(classes)
    alike = len({type(label) for label in known}) == 1
    labels = np.array(known) if alike else np.array(known, dtype=object)
    return labels[codes if from_zero else np.searchsorted(_codes(known), codes)]


def _codes(classes: Sequence[Label]) -> list[float]:
    return [-1.0, 1.0] if len(classes) == 2 else [float(i) for i in range(len(classes))]


def _check_kind(name: str, kind: str, classes: tuple[Label, ...]) -> None:
    for label in classes:
        possible = kind in "USTO" or _number(label) is not None
        if kind == "b":
            possible = any(same_label(value, label) for value in (False, True))
        if not possible:
            held = "True and False" if kind == "b" else "numbers"
            raise ValueError(
                f"classes hold {label!r}, but {name} holds {held}: declare classes of that kind."
            )


def _remembered(known: dict[str, float], cell: Any, code: Any) -> float:
    if not isinstance(cell, str):
        return code(cell)
    if cell not in known:
        known[cell] = code(cell)
    return known[cell]


def same_label(cell: Any, label: Label) -> bool:
    """Returns whether two labels are equal, as text or as numbers; nothing equals a missing value.

    >>> same_label(" 1.0", 1), same_label(True, "True"), same_label(float("nan"), "nan")
    (True, True, False)
    """
    if isinstance(cell, np.generic):
        cell = cell.item()
    if isinstance(cell, bytes):
        cell = cell.decode("utf-8", "replace")
    if not isinstance(cell, Label) or cell != cell:
        return False
    number = _number(cell)
    # An integer of thousands of digits cannot be printed, and cannot be one of the classes.
    short = not isinstance(cell, int) or cell.bit_length() < 1_000
    return short and (
        str(cell).strip() == str(label).strip() or (number is not None and number == _number(label))
    )


def _number(label: Label) -> int | float | None:
    for convert in (int, float):
        try:
            number = convert(label) if isinstance(label, str) else label
        except ValueError:
            continue
        return None if number != number else number
    return None
