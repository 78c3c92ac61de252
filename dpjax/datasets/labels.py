"""Declared labels, and the numbers that encode them in training."""

import decimal
from collections.abc import Sequence
from typing import Any

import numpy as np

from dpjax import _validate
from dpjax.datasets.cells import Kind, cells_of, is_no_number, kind_of, never_raises, of_each

Label = str | bool | int | float
Classes = tuple[Label, ...]
_COUNTED = {1: "one label", 2: "two labels"}


def check_labels(name: str, labels: Any, least: int) -> tuple[Label, ...]:
    """Returns declared labels, ``least`` different words, numbers or booleans, as Python values."""
    # A word is a sequence too, of its letters.
    if isinstance(labels, str) or not isinstance(labels, Sequence | np.ndarray):
        raise ValueError(
            f"{name} must be a list of labels such as ('No', 'Yes'), got {_validate.shown(labels)}."
        )
    values = tuple(label.item() if isinstance(label, np.generic) else label for label in labels)
    seen: set[Any] = set()
    for label in values:
        forms = _forms(label)
        if forms is None or not str(label).strip():
            raise ValueError(f"{name} must be words, numbers, True or False, got {label!r}.")
        # 1 and '1.0' would be one class under two names.
        if not seen.isdisjoint(forms):
            raise ValueError(f"{name} must be distinct, got {label!r} twice.")
        seen.update(forms)
    if len(values) < least:
        raise ValueError(f"{name} must hold at least {_COUNTED[least]}, got {values!r}.")
    return values


def encode_labels(
    y: Any, classes: Sequence[Label] | None = None, *, from_zero: bool = False, name: str = "y"
) -> np.ndarray:
    """Returns declared labels as numbers, and any other value as NaN.

    Args:
      y: (n,) words, booleans or numbers.
      classes: the declared labels, compared as text or as numbers. Of two, the first becomes -1
        and the second +1; more become 0, 1, ... in their order. Of the classes 0 and 1, -1 is 0,
        and of -1 and 1, 0 is -1. Booleans need none.
      from_zero: whether two classes become 0 and 1 as well, as for a network.
      name: of ``y`` in an error.

    Returns:
      (n,) float32.

    Raises:
      ValueError: by the dtype alone: without ``classes``, or for classes that no value of this
        dtype can equal.

    Privacy: each number depends on one record alone. A label outside the classes raises no error,
      which would depend on the data; it makes a null record, which contributes nothing.

    >>> encode_labels(["No", "Yes", "?"], classes=("No", "Yes"))
    array([-1.,  1., nan], dtype=float32)
    >>> encode_labels(np.array([0, 1, -1, 7]), classes=(0, 1))
    array([-1.,  1., -1., nan], dtype=float32)
    """
    if isinstance(y, np.ndarray) and y.ndim != 1:
        flat = encode_labels(y.ravel(), classes, from_zero=from_zero, name=name)
        return flat.reshape(y.shape)
    cells = cells_of(y)
    classes = declared_classes(classes, name, kind_of(y))
    return encoded(cells, classes, from_zero)


def encoded(cells: np.ndarray, classes: Sequence[Label], from_zero: bool = False) -> np.ndarray:
    """Returns the number of each cell's class (n,) in float32, NaN for one that has none."""
    numbers = range(len(classes)) if from_zero else codes(classes)
    # Place -1, of no class, is the last, NaN.
    return np.array([*numbers, np.nan], np.float32)[class_places(cells, classes)]


A_NUMBER = "If labels are numbers, declare bounds in a schema; see `dpjax data FILE --template`."


def declared_classes(classes: Sequence[Label] | None, name: str, kind: Kind) -> tuple[Label, ...]:
    """Returns the labels that count in a column; undeclared, False and True of booleans."""
    if kind in (Kind.DATES, Kind.OTHER):
        raise ValueError(f"{name} must hold words, booleans or real numbers, got {kind.value}.")
    if classes is None and kind == Kind.BOOLEANS:
        return (False, True)
    if classes is None:
        raise ValueError(
            f"classes must declare which labels count in {name}, which holds {kind.value}: pass "
            "them as classes=('No', 'Yes') in Python or --classes No,Yes on the command line; a "
            "record with any other label contributes nothing. Reading them off the data would leak "
            "it; the owner of a file can list them with `dpjax data FILE --label COLUMN --check`. "
            f"{A_NUMBER}"
        )
    classes = check_labels("classes", classes, 2)
    check_possible("classes", classes, name, kind)
    return classes


def class_places(cells: np.ndarray, classes: Sequence[Label]) -> np.ndarray:
    """Returns the index of each cell's class (n,), -1 for none; see ``places``, ``stand_in``."""
    if (extra := stand_in(classes)) is None:
        return places(cells, classes)
    indices = places(cells, (*classes, extra[0]))
    return np.where(indices == len(classes), extra[1], indices)


def stand_in(classes: Sequence[Any]) -> tuple[int, int] | None:
    """Returns which number counts as a class beside the declared ones, and the place of that class.

    -1 stands for 0 of the classes 0 and 1, and 0 for -1 of -1 and 1. None for other classes.
    """
    # Data sets and libraries write the negative class as either, and the sign is all that counts.
    numbers = [_number(label) for label in classes]
    for negative, other in ((0, -1), (-1, 0)):
        if numbers in ([negative, 1], [1, negative]):
            return other, numbers.index(negative)
    return None


def exact_stand_ins(cells: np.ndarray, classes: Sequence[Label]) -> np.ndarray:
    """NOT PRIVATE: counts the cells of the number that stands in, and those of its class."""
    if (extra := stand_in(classes)) is None:
        return np.zeros(2, int)
    indices = places(cells, (*classes, extra[0]))
    return np.array([(indices == len(classes)).sum(), (indices == extra[1]).sum()])


def stand_in_problems(where: str, counts: np.ndarray, classes: Sequence[Label]) -> list[str]:
    """Returns what is wrong where a number and the class that it stands for both occur."""
    extra = stand_in(classes)
    if extra is None or not counts.all():
        return []
    number, label = extra[0], classes[extra[1]]
    return [
        f"{where} holds {number} {counts[0]} times and {label!r} {counts[1]} times, and {number} "
        f"is read as {label!r}: if it says that the label is missing, leave those cells empty."
    ]


def places(cells: np.ndarray, labels: Sequence[Label]) -> np.ndarray:
    """Returns the place of each cell (n,) among labels, -1 for one that equals none.

    Labels are distinct, and compared as text or as numbers. Of two that a cell equals, one by its
    text and the other by its number, the first counts.

    Privacy: each place depends on its own cell.
    """
    known: dict[Any, int] = {}
    for place, label in enumerate(labels):
        for form in _forms(label) or ():
            known.setdefault(form, place)

    def place_of(cell: Any) -> int:
        return min((known[form] for form in _forms(cell) or () if form in known), default=-1)

    if cells.dtype.kind in "OT":
        return of_each(place_of, cells, int)
    # Labels repeat: each distinct value is compared once.
    values, positions = np.unique(cells, return_inverse=True)
    return np.array([place_of(value) for value in values], int)[positions]


def labels_counted(classes: Sequence[Label] | None) -> str:
    """Returns the declared labels and their numeric codes as text."""
    classes = (-1, 1) if classes is None else classes
    signed = "+d" if len(classes) == 2 else "d"
    pairs = zip(classes, codes(classes), strict=True)
    return listed([f"{label!r} (as {int(code):{signed}})" for label, code in pairs], classes)


def listed(shown: Sequence[str], classes: Sequence[Label]) -> str:
    """Returns the texts of labels as one, with the number that stands for a label beside them."""
    extra = stand_in(classes)
    more = "" if extra is None else f", and {extra[0]} as {classes[extra[1]]!r}"
    return ", ".join(shown) + more


def decode_labels(
    encoded: np.ndarray, classes: Sequence[Label] | None, *, from_zero: bool = False
) -> np.ndarray:
    """Returns the labels for numbers of ``encode_labels``."""
    known = (-1, 1) if classes is None else tuple(classes)
    alike = len({type(label) for label in known}) == 1
    # NumPy would make words of numbers that stand beside words.
    labels = np.array(known) if alike else np.array(known, dtype=object)
    # Codes grow with the place of a class, so that a search finds the place.
    return labels[encoded if from_zero else np.searchsorted(codes(known), encoded)]


def codes(classes: Sequence[Label]) -> list[float]:
    """Returns the numbers that encode declared labels."""
    return [-1.0, 1.0] if len(classes) == 2 else [float(i) for i in range(len(classes))]


def check_possible(what: str, labels: Sequence[Label], name: str, kind: Kind) -> None:
    """Raises if one of ``labels`` can equal no cell of a column that is stored so."""
    find = class_places if what == "classes" else places
    # By the dtype alone, which is public: so it may raise.
    of_booleans = find(np.array([False, True]), labels)
    for place, label in enumerate(labels):
        possible = kind in (Kind.WORDS, Kind.MIXED) or _number(label) is not None
        if kind == Kind.BOOLEANS:
            possible = place in of_booleans
        if not possible:
            raise ValueError(
                f"{what} hold {label!r}, but {name} holds {kind.value}: declare {what} of that "
                "kind."
            )


def label_text(cell: Any) -> str:
    """Returns a label as text without white space around it; "" for a missing value."""
    value = plain(cell)
    if value is None or isinstance(value, str | bool):
        return "" if value is None else str(value).strip()
    # 3 and 3.0 are one label, and so one text.
    return str(int(value)) if value == value // 1 else str(value)


@never_raises(None)
def plain(cell: Any) -> Label | None:
    """Returns a label as a value of Python; None for what is missing, or no label."""
    if is_no_number(cell):
        return None
    if getattr(cell, "ndim", None) == 0:
        cell = cell.item()  # of a scalar of NumPy or JAX
    if isinstance(cell, bytes):
        cell = cell.decode("utf-8", "surrogateescape")
    if isinstance(cell, decimal.Decimal):
        cell = float(cell)
    if not isinstance(cell, Label) or cell != cell:  # NaN equals nothing
        return None
    # An integer of thousands of digits cannot be printed, and cannot be one of the classes.
    return None if isinstance(cell, int) and cell.bit_length() >= 1_000 else cell


def _forms(cell: Any) -> tuple[str, int | float] | tuple[str] | None:
    """Returns a label as text, and as a number if it is one; None for a missing value."""
    if (value := plain(cell)) is None:
        return None
    text, number = str(value).strip(), _number(value)
    return (text,) if number is None else (text, number)


def _number(label: Label) -> int | float | None:
    for convert in (int, float):  # an integer beyond 2^53 stays the number that it is
        try:
            number = convert(label) if isinstance(label, str) else label
        except ValueError:
            continue
        return None if number != number else number
    return None
