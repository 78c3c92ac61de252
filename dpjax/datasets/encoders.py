"""How a declared column becomes features: each cell by itself, from declared numbers and levels."""

import collections
import dataclasses
import datetime
from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np

from dpjax.datasets import labels
from dpjax.datasets.cells import EPOCH, MISSING, Kind, may_be_numbers, to_days, to_numbers
from dpjax.datasets.forms import PLAIN, DateForm, Form, NumberForm
from dpjax.datasets.scaling import to_range
from dpjax.datasets.source import Source

_NUMBERS = {Kind.NUMBERS, Kind.BOOLEANS, Kind.MIXED}


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a table as it was declared; the base class of its kinds."""

    name: str

    key: ClassVar[str]
    """What declares a column of this kind."""
    options: ClassVar[tuple[str, ...]] = ()
    """What may be declared beside the key that says which kind it is."""
    stored: ClassVar[set[Kind]] = set(Kind)
    """How a column of this kind may be stored."""

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features that it becomes."""
        return (self.name,)

    def encode(self, cells: np.ndarray, low: float = 0.0) -> np.ndarray:
        """Returns the features (n, k) in float64, NaN where a cell has no valid value.

        The lower end of a range is mapped to ``low``, 0 or -1; the upper end is 1.

        Privacy: each row depends on its own cell.
        """
        raise NotImplementedError

    def check_stored(self, source: Source) -> None:
        """Raises if no cell of a column that is stored as this one of a table has a valid value."""
        # By the dtype alone, which is public: an error about cells would depend on a record.
        kind, stated = source.kinds[self.name], source.stated[self.name]
        numeric = isinstance(form_of(self), NumberForm)
        if kind not in self.stored or (numeric and not may_be_numbers(kind, stated)):
            held = "categories" if stated == "category" else kind.value
            raise ValueError(
                f"the column {self.name!r} of {source.where} holds {held}, for which {self.key} "
                f"cannot be declared: {_REMEDY[kind]}."
            )

    def declaration(self) -> dict[str, Any]:
        """Returns what declares it, as numbers, words and lists that JSON can hold."""
        raise NotImplementedError

    def exact_outside(self, cells: np.ndarray) -> int:
        """NOT PRIVATE: returns how many cells are clamped to the declared range."""
        return 0

    def exact_undeclared(self, cells: np.ndarray) -> collections.Counter[str]:
        """NOT PRIVATE: returns how many cells hold each level that is not declared."""
        return collections.Counter()


_WORDS = "convert it to numbers, or declare its levels in a schema, or their order"
_REMEDY = {
    Kind.NUMBERS: "declare bounds as numbers, or levels",
    Kind.BOOLEANS: "declare levels = [false, true], or bounds = [0, 1]",
    Kind.WORDS: _WORDS,
    Kind.DATES: "declare bounds as dates in a schema, such as [2015-01-01, 2025-12-31]",
    Kind.MIXED: _WORDS,
    Kind.OTHER: "convert it, or declare ignore = true in a schema",
}


@dataclasses.dataclass(frozen=True)
class Unscaled(Column):
    """Numbers that are used as they are: of published data, or where no bounds are declared yet."""

    key: ClassVar[str] = "bounds"
    form: ClassVar[Form] = PLAIN
    stored: ClassVar[set[Kind]] = _NUMBERS

    def encode(self, cells: np.ndarray, low: float = 0.0) -> np.ndarray:
        return to_numbers(cells)[:, None]

    def declaration(self) -> dict[str, Any]:
        # Empty, by which `scaled.preprocessing_of` knows this kind again.
        return {}


@dataclasses.dataclass(frozen=True)
class Numeric(Column):
    """Numbers, clamped to a declared range and scaled.

    A cell that is empty or no number counts as ``missing``; None makes it a null record.
    """

    low: float
    high: float
    missing: float | None = None
    form: Form = PLAIN

    key: ClassVar[str] = "bounds"
    options: ClassVar[tuple[str, ...]] = ("missing", *NumberForm._fields)
    stored: ClassVar[set[Kind]] = _NUMBERS

    def encode(self, cells: np.ndarray, low: float = 0.0) -> np.ndarray:
        # A new array, which the lines below change in place.
        values = self.values(cells)
        if self.missing is not None:
            # Before the scaling: it is declared in the column's own units.
            values[np.isnan(values)] = self.missing
        return to_range(values, self.low, self.high, low)[:, None]

    def values(self, cells: np.ndarray) -> np.ndarray:
        """Returns the numbers (n,) in float64, NaN for what is not a finite number."""
        return to_numbers(cells, self.form.number)

    def check_stored(self, source: Source) -> None:
        # Words may be numbers where it is declared how those are written.
        if self.form == PLAIN or not _are_words(source, self.name):
            super().check_stored(source)

    def declaration(self) -> dict[str, Any]:
        missing = {} if self.missing is None else {"missing": self.missing}
        return {"bounds": [self.low, self.high], **missing, **self.form.declared}

    def exact_outside(self, cells: np.ndarray) -> int:
        # A comparison with NaN is False: a missing cell is not counted as outside.
        values = self.values(cells)
        return int(((values < self.low) | (values > self.high)).sum())


@dataclasses.dataclass(frozen=True)
class Dates(Numeric):
    """Dates, as days since 1970-01-01, clamped to a declared range and scaled."""

    form: Form = DateForm()

    options: ClassVar[tuple[str, ...]] = ("missing", "format")
    # Files and object columns hold dates as ISO 8601 text, or as dates of Python.
    stored: ClassVar[set[Kind]] = {Kind.DATES, Kind.WORDS, Kind.MIXED}

    def values(self, cells: np.ndarray) -> np.ndarray:
        """Returns days since 1970-01-01 (n,) in float64, NaN for what is no date."""
        # Of floats a reader has made them days.
        return to_days(cells) if cells.dtype.kind == "M" else to_numbers(cells, self.form.number)

    def declaration(self) -> dict[str, Any]:
        missing = {} if self.missing is None else {"missing": to_iso(self.missing)}
        return {"bounds": [to_iso(self.low), to_iso(self.high)], **missing, **self.form.declared}


def _are_words(source: Source, name: str) -> bool:
    return source.kinds[name] == Kind.WORDS and source.stated[name] != "category"


class _OfLevels(Column):
    """A column of declared levels, in the field that its key names."""

    stored: ClassVar[set[Kind]] = _NUMBERS | {Kind.WORDS}

    @property
    def _levels(self) -> tuple[labels.Label, ...]:
        return getattr(self, self.key)

    def check_stored(self, source: Source) -> None:
        super().check_stored(source)
        where = f"the column {self.name!r} of {source.where}"
        labels.check_possible(self.key, self._levels, where, source.kinds[self.name])

    def declaration(self) -> dict[str, Any]:
        return {self.key: list(self._levels)}

    def exact_undeclared(self, cells: np.ndarray) -> collections.Counter[str]:
        return _undeclared(cells, labels.places(cells, self._levels))


@dataclasses.dataclass(frozen=True)
class Categorical(_OfLevels):
    """One of declared levels, each with an indicator of its own but for a reference level.

    Args:
      levels: compared as text or as numbers.
      other: whether any other cell has an indicator too; else it makes a null record.
      reference: the level that has none, with which the others are compared; None if all have one.
    """

    levels: tuple[labels.Label, ...]
    other: bool = False
    reference: labels.Label | None = None

    key: ClassVar[str] = "levels"
    options: ClassVar[tuple[str, ...]] = ("other", "reference")

    @property
    def features(self) -> tuple[str, ...]:
        levels = (*self.levels, *(("other",) if self.other else ()))
        return tuple(f"{self.name}={level}" for level in levels if level != self.reference)

    def encode(self, cells: np.ndarray, low: float = 0.0) -> np.ndarray:
        place = labels.places(cells, self.levels)
        # 0 or 1 whatever `low` is: k indicators of -1 would add k to a row's squared norm, of which
        # `linear_scale` allows 1 to a column.
        rows = np.zeros((len(cells), len(self.levels) + self.other))
        rows[np.arange(len(cells)), place] = 1.0  # -1 is the last, "other"
        if not self.other:
            rows[place < 0] = np.nan
        # Of a column without a reference nothing is left out.
        left_out = [i for i, level in enumerate(self.levels) if level == self.reference]
        return np.delete(rows, left_out, axis=1) if left_out else rows

    def declaration(self) -> dict[str, Any]:
        beside = {"other": True} if self.other else {}
        named = {} if self.reference is None else {"reference": self.reference}
        return super().declaration() | beside | named


@dataclasses.dataclass(frozen=True)
class Ordinal(_OfLevels):
    """One of declared levels in their order, evenly spaced from 0 to 1."""

    order: tuple[labels.Label, ...]

    key: ClassVar[str] = "order"

    def encode(self, cells: np.ndarray, low: float = 0.0) -> np.ndarray:
        spaced = np.append(np.linspace(low, 1.0, len(self.order)), np.nan)
        return spaced[labels.places(cells, self.order)][:, None]  # -1 is the last, NaN


@dataclasses.dataclass(frozen=True)
class Ignored(Column):
    """A column that is not read, and so is never encoded."""

    key: ClassVar[str] = "ignore"

    @property
    def features(self) -> tuple[str, ...]:
        return ()


@dataclasses.dataclass(frozen=True)
class ClassLabel:
    """A label of declared classes, of two -1 and +1, of more 0, 1, ...; () if not declared yet."""

    column: str
    classes: tuple[labels.Label, ...]

    # NumberLabel has them: a schema reads both fields of either kind of label.
    bounds: ClassVar[None] = None

    def encode(self, cells: np.ndarray) -> np.ndarray:
        """Returns the labels (n,) in float32, NaN for one that is not declared.

        Privacy: each depends on its own cell.
        """
        return labels.encoded(cells, self.classes)

    def check_stored(self, source: Source) -> None:
        """Raises if no cell of a column that is stored as this one has a declared class."""
        said, kind = f"the column {self.column!r} of {source.where}", source.kinds[self.column]
        # Without classes its error says how to declare them.
        labels.declared_classes(self.classes or None, said, kind)

    def exact_undeclared(self, cells: np.ndarray) -> collections.Counter[str]:
        """NOT PRIVATE: returns how many cells hold each label that is not declared."""
        return _undeclared(cells, labels.class_places(cells, self.classes))


@dataclasses.dataclass(frozen=True)
class NumberLabel:
    """A label that is a number: its declared range is mapped to [-1, 1]."""

    column: str
    low: float
    high: float
    form: NumberForm = PLAIN

    classes: ClassVar[None] = None

    @property
    def bounds(self) -> tuple[float, float]:
        """The declared range."""
        return self.low, self.high

    def encode(self, cells: np.ndarray) -> np.ndarray:
        """Returns the labels (n,) in float32, NaN for one outside its range or missing.

        Privacy: each depends on its own cell.
        """
        values = to_numbers(cells, self.form.number)
        # Not clamped as features are: training would fit labels that nobody has.
        values[(values < self.low) | (values > self.high)] = np.nan
        # In float64 up to the cast: float32 merges the ends of a narrow range far from 0.
        return (2 * ((values - self.low) / (self.high - self.low)) - 1).astype(np.float32)

    def check_stored(self, source: Source) -> None:
        """Raises if no cell of a column that is stored as this one is a number."""
        if self.form != PLAIN and _are_words(source, self.column):
            return
        if (kind := source.kinds[self.column]) not in _NUMBERS:
            raise ValueError(
                f"the label {self.column!r} of {source.where} holds {kind.value}: declare classes "
                "for words or numbers, or bounds for numbers; convert words that are numbers."
            )

    def exact_undeclared(self, cells: np.ndarray) -> collections.Counter[str]:
        """NOT PRIVATE: returns how many cells hold a number outside the range."""
        values = to_numbers(cells, self.form.number)
        outside = int(((values < self.low) | (values > self.high)).sum())
        return collections.Counter({"a number outside its bounds": outside} if outside else {})


AnyLabel = ClassLabel | NumberLabel


def form_of(column: Column | AnyLabel) -> Form | None:
    """Returns how the cells of a column or label that may be read as float64 are written."""
    return getattr(column, "form", None)


def numeric_forms(columns: Iterable[Column]) -> dict[str, Form]:
    """Returns the columns whose cells may be read as float64, and how they are written there."""
    return {c.name: form for c in columns if (form := form_of(c)) is not None}


def label_forms(label: AnyLabel) -> dict[str, Form]:
    """Returns the same of a label."""
    return {label.column: label.form} if isinstance(label, NumberLabel) else {}


def _undeclared(cells: np.ndarray, found: np.ndarray) -> collections.Counter[str]:
    unknown = cells[found < 0]
    counts: Iterable[tuple[Any, int]] = ((cell, 1) for cell in unknown)
    if cells.dtype.kind not in "OT":  # cells of those may be anything, unhashable too
        counts = collections.Counter(unknown.tolist()).items()
    undeclared = collections.Counter[str]()
    # An empty cell is missing, not a level that somebody forgot to declare.
    for cell, count in counts:
        if (text := labels.label_text(cell)).lower() not in MISSING:
            undeclared[text] += count
    return undeclared


def to_iso(days: float) -> str:
    """Returns days since 1970-01-01 as a date."""
    moment = EPOCH + datetime.timedelta(days=days)
    # Without the time where it is midnight, as a person declares a date.
    return (moment.date() if days == int(days) else moment).isoformat()
