"""NOT PRIVATE: exact counts of what a schema leaves out of a table, for its owner only."""

import collections
import datetime
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from dpjax.datasets.cells import MISSING, to_day, unit_name
from dpjax.datasets.encoders import Dates
from dpjax.datasets.labels import Label, exact_stand_ins, label_text, stand_in_problems
from dpjax.datasets.schema import Schema, check_table, undeclared_line_breaks
from dpjax.datasets.sources import open_source
from dpjax.datasets.tables import check_size, preprocessing_of, table_name

_SHOWN = 8  # levels named in one remark
_NEARLY = 0.9  # of the cells: levels, or dates, are written in another way than is declared
_NARROW = 0.01  # of the declared bounds: noise hides what differs so little
_TRIED = 1_000  # cells of a column that are read as dates of other forms
_FORMS = {
    "%d.%m.%Y": "day.month.year",
    "%d/%m/%Y": "day/month/year",
    "%m/%d/%Y": "month/day/year",
    "%Y/%m/%d": "year/month/day",
    "%d-%m-%Y": "day-month-year",
    "%m-%d-%Y": "month-day-year",
    "%d %b %Y": "day name-of-month year",
    "%b %d, %Y": "name-of-month day, year",
}


def exact_counts(table: Any, schema: Schema) -> dict[str, Any]:
    """NOT PRIVATE: returns the fields of a ``CheckReport`` for a table with a schema.

    Raises:
      ValueError: if the table has other columns than are declared.
      FileNotFoundError: if there is no such file.
    """
    breaks = schema.quoted_line_breaks
    source = open_source(table, schema.label.column, quoted_line_breaks=breaks).source
    check_table(schema, source)
    check_size(source)
    tally = _Tally(schema)
    for block in source.blocks(*tally.wanted):
        tally.add(block)
    fields = {"name": table_name(table), "unit": "row", **tally.fields()}
    of_file = (*undeclared_line_breaks(schema, source), *source.exact_problems())
    of_cells = (*tally.label_problems(), *tally.column_problems(), *tally.unit_problems())
    return fields | {"exact_problems": (*of_file, *of_cells)}


class _Tally:
    """Counts of a table's records, added up block by block."""

    def __init__(self, schema: Schema):
        self._schema, self._scale = schema, preprocessing_of(schema)
        self._columns = self._scale.encoders or ()
        names, numeric, _ = self._scale.wanted
        label, unit = schema.label, schema.unit
        self.wanted = (
            [*names, label.column, *([] if unit is None else [unit])],
            numeric | ({label.column} if label.numeric else set()),
        )
        self._rows = self._null_rows = self._invalid_rows = self._impossible = self._zeros = 0
        self._missing, self._outside = collections.Counter[str](), collections.Counter[str]()
        self._undeclared = {name: collections.Counter[str]() for name in names}
        self._labels, self._codes = collections.Counter[str](), collections.Counter[float]()
        self._owners = Owners(schema.unit, schema.max_records, schema.unit_type)
        self._stand_ins = np.zeros(2, int)
        self._dates = {name: list[str]() for name in names}  # some cells that are none
        self._least, self._most = (dict.fromkeys(names, end) for end in (np.inf, -np.inf))
        self._seen: set[int] = set()

    def add(self, block: list[np.ndarray]) -> None:
        cells, (labels, *owners) = block[: len(self._columns)], block[len(self._columns) :]
        parts = []
        for column, held in zip(self._columns, cells, strict=True):
            name, part = column.name, column.encode(held)
            parts.append(part)
            self._least[name] = np.fmin(self._least[name], np.fmin.reduce(part))
            self._most[name] = np.fmax(self._most[name], np.fmax.reduce(part))
            if isinstance(column, Dates):
                self._dates[name] += _no_dates(held, _TRIED - len(self._dates[name]))
            self._missing[name] += int(np.isnan(part).any(axis=1).sum())
            self._outside[name] += column.exact_outside(held)
            self._undeclared[name] += column.exact_undeclared(held)
        rows, y = np.concatenate(parts, axis=1), self._schema.label.encode(labels)
        invalid, impossible = np.isnan(rows).any(axis=1), np.isnan(y)
        nobody = self._owners.add(owners[0]) if owners else False
        self._stand_ins += exact_stand_ins(labels, self._schema.label.classes or ())
        self._labels += self._schema.label.exact_undeclared(labels)
        self._codes.update(y[~impossible].tolist())
        self._rows += len(y)
        self._null_rows += int((invalid | impossible | nobody).sum())
        self._invalid_rows += int(invalid.sum())
        self._impossible += int(impossible.sum())
        self._zeros += int((rows == 0).all(axis=1).sum())
        both = np.column_stack([rows, y])  # NaN has one pattern of bits here
        self._seen.update(hash(row.tobytes()) for row in both)

    def fields(self) -> dict[str, Any]:
        undeclared = {name: dict(held.most_common()) for name, held in self._undeclared.items()}
        return {
            "exact_rows": self._rows,
            "exact_class_counts": self._class_counts(),
            "exact_impossible_labels": self._impossible,
            "exact_other_labels": dict(self._labels.most_common()),
            "exact_nonfinite_rows": self._invalid_rows,
            "exact_nonfinite": _positive(self._missing),
            "exact_outside": _positive(self._outside),
            "exact_zero_rows": self._zeros,
            "exact_duplicate_rows": self._rows - len(self._seen),
            "exact_null_rows": self._null_rows,
            "exact_undeclared": {name: held for name, held in undeclared.items() if held},
            "exact_constant": constant(self._least, self._least.values(), self._most.values()),
            **self._owners.fields(),
        }

    def label_problems(self) -> list[str]:
        name, problems = self._schema.label.column, []
        if self._labels:
            problems.append(
                f"the label {name!r} holds {_few(self._labels)}, which is not declared; such a "
                "record contributes nothing: correct the label's classes or bounds from public "
                "knowledge, or leave those records out."
            )
        absent = [label for label, count in self._class_counts().items() if not count]
        if absent and self._scale.classes is not None:
            problems.append(
                f"no record has the label {', '.join(map(repr, absent))}: are the classes written "
                "as in the file?"
            )
        if self._scale.classes is not None:
            where = f"the label {name!r}"
            return problems + stand_in_problems(where, self._stand_ins, self._scale.classes)
        spans = [(max(self._codes) - min(self._codes)) / 2] if len(self._codes) > 1 else []
        return problems + narrow(f"the label {name!r}", spans)

    def unit_problems(self) -> list[str]:
        return self._owners.problems(self._rows)

    def column_problems(self) -> list[str]:
        rows, empty = self._rows, np.array([None], object)
        may_lack = [c.name for c in self._columns if np.isnan(c.encode(empty)).any()]
        dated = {name: _of_dates(name, cells) for name, cells in self._dates.items()}
        problems = list(filter(None, dated.values()))
        if not problems and may_lack and 2 * min(self._missing[name] for name in may_lack) > rows:
            return [
                "no column holds a valid value in most records: do the lines have more or fewer "
                "cells than the header?"
            ]
        for column in self._columns:
            name, missing = column.name, self._missing[column.name]
            undeclared = self._undeclared[name]
            if getattr(column, "other", False) and undeclared.total() > _NEARLY * rows:
                problems.append(
                    f"the column {name!r} holds none of its declared levels in "
                    f"{undeclared.total()} of {rows} records, but {_few(undeclared)}: are the "
                    "levels written as in the file?"
                )
            if missing and undeclared:
                problems.append(
                    f"the column {name!r} holds {_few(undeclared)}, which is not declared; such a "
                    "record contributes nothing: declare further levels from public knowledge, or "
                    "other = true."
                )
            elif 2 * missing > rows and not dated[name]:
                problems.append(
                    f"the column {name!r} has no valid value in {missing} of {rows} records, which "
                    "therefore contribute nothing: declare what it holds, ignore = true, or, for "
                    "numbers, missing = a number."
                )
            if 2 * self._outside[name] > rows:
                problems.append(
                    f"the column {name!r} is outside its declared bounds in {self._outside[name]} "
                    f"of {rows} records: are the bounds in the units of the file?"
                )
        spans = [np.max(self._most[c.name] - self._least[c.name]) for c in self._columns]
        return problems + narrow("every column", spans)

    def _class_counts(self) -> dict[Label, int]:
        classes = self._scale.classes
        if classes is None:
            return {"a number within its bounds": self._codes.total()}
        codes = self._schema.label.encode(np.array(classes, object)).tolist()
        return {label: self._codes[code] for label, code in zip(classes, codes, strict=True)}


class Owners:
    """NOT PRIVATE: counts of whose records there are.

    Args:
      unit: what says whose a record is; None if nothing does.
      max_records: of a unit that count; None for any number.
    """

    def __init__(self, unit: str | None, max_records: int | None, unit_type: str | None):
        self._unit, self._most, self._type = unit, max_records, unit_type
        self._names = collections.Counter[str]()  # in cells that name nobody
        self._persons = collections.Counter[str]()

    def add(self, cells: np.ndarray) -> np.ndarray:
        """Counts some cells, and returns which of them name nobody."""
        units = [unit_name(cell, self._type) for cell in cells]
        nobody = np.array([not unit for unit in units], bool)
        self._persons.update(filter(None, units))
        texts = map(label_text, cells[nobody])
        self._names.update(text for text in texts if text.lower() not in MISSING)
        return nobody

    def fields(self) -> dict[str, Any]:
        """Returns fields of a ``CheckReport``."""
        persons = None if self._unit is None else len(self._persons)
        return {"exact_persons": persons, "exact_above_cap": self._above}

    @property
    def _above(self) -> int:
        most = self._most or math.inf
        return int(sum(max(0, held - most) for held in self._persons.values()))

    def problems(self, rows: int) -> list[str]:
        """Returns what is wrong, of so many records."""
        unit, most, problems = self._unit, self._most, []
        if self._names:
            problems.append(
                f"the unit {unit!r} holds {_few(self._names)}, which names nobody, so that such a "
                'record contributes nothing: declare under [unit] type = "number" (unit_type in '
                "Python) if all are whole numbers (7, 7.0, 007 and +7 are one), or "
                '"text" if they are words, compared as they are written.'
            )
        if unit is not None and len(self._persons) < 2:
            named = "no unit" if not self._persons else "one unit alone"
            problems.append(f"the column {unit!r} names {named}: does it say whose a record is?")
        elif 2 * self._above > rows:
            problems.append(
                f"max_records = {most} leaves out {self._above} of {rows} records, those beyond "
                f"the first {most} of a {unit!r}: declare a larger number from public knowledge."
            )
        return problems


def narrow(where: str, spans: Sequence[float]) -> list[str]:
    """NOT PRIVATE: returns what is wrong where all values lie close together.

    ``spans`` are fractions of the declared bounds, and ``where`` says whose.
    """
    # Columns of one value, or none, are said elsewhere.
    if not 0 < max(spans, default=0) < _NARROW:
        return []
    return [
        f"the values of {where} span less than {_NARROW:.0%} of the declared bounds, so that "
        "records hardly differ once scaled: are the bounds in the units of the file?"
    ]


def constant(columns: Iterable[str], least: Iterable, most: Iterable) -> tuple[str, ...]:
    """NOT PRIVATE: returns the columns whose least and largest values are the same."""
    ends = zip(columns, least, most, strict=True)
    return tuple(column for column, low, high in ends if np.all(low == high))


def _no_dates(cells: np.ndarray, count: int) -> list[str]:
    found = (text for cell in cells if np.isnan(to_day(cell)) and (text := label_text(cell)))
    return list(itertools.islice((text for text in found if text.lower() not in MISSING), count))


def _of_dates(name: str, cells: list[str]) -> str:
    """What to do where most cells that are no dates are dates of another form, or ""."""
    days = [re.sub(r"[ T]\d{1,2}:\d\d.*$", "", cell) for cell in cells]
    most = max(1, _NEARLY * len(days))
    forms = [w for form, w in _FORMS.items() if sum(_is_date(day, form) for day in days) >= most]
    if not forms:
        return ""
    return (
        f"the column {name!r} holds dates written as {' or '.join(forms)}, such as {cells[0]!r}, "
        "and such a record contributes nothing: write them as year-month-day, such as 2015-01-31."
    )


def _is_date(text: str, form: str) -> bool:
    try:
        return bool(datetime.datetime.strptime(text, form))
    except ValueError:
        return False


def _few(counts: collections.Counter[str]) -> str:
    shown = ", ".join(f"{level!r} {count} times" for level, count in counts.most_common(_SHOWN))
    return shown + (f", ... ({len(counts)} levels in all)" if len(counts) > _SHOWN else "")


def _positive(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}
