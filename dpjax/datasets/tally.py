"""NOT PRIVATE: exact counts of what declarations leave out of a table, for its owner only."""

import collections
import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from dpjax.datasets import labels
from dpjax.datasets.cells import MISSING, unit_name
from dpjax.datasets.encoders import ClassLabel, Numeric, Unscaled, label_forms, numeric_forms
from dpjax.datasets.schema import Schema
from dpjax.datasets.source import few

MOST_CLASSES = 20  # a column with more distinct values is not a label of classes
_SHOWN = 8  # levels named in one remark
_NEARLY = 0.9  # of the cells: levels, or dates, are written in another way than is declared
_RARE = 0.005  # of the records: a level with fewer is hidden by noise, or misspelt
_NARROW = 0.01  # of the declared bounds: noise hides what differs so little


class Tally:
    """NOT PRIVATE: counts of a table's records, added up block by block."""

    def __init__(self, schema: Schema, said: str):
        self._schema, self._said, self._scale = schema, said, schema.preprocessing
        self._columns = self._scale.encoders
        names = self._scale.columns
        label, unit = schema.label, schema.unit
        self.forms = numeric_forms(self._columns) | label_forms(label)
        self.wanted = ([*names, label.column, *([] if unit is None else [unit])], self.forms)
        self._rows = self._null_rows = self._invalid_rows = self._impossible = self._zeros = 0
        self._missing, self._outside = collections.Counter[str](), collections.Counter[str]()
        self._undeclared = {name: collections.Counter[str]() for name in names}
        self.labels, self._other = collections.Counter[str](), collections.Counter[str]()
        self._codes, self._levels = collections.Counter[float](), collections.Counter[str]()
        self._persons = collections.Counter[str]()
        self._no_persons = collections.Counter[str]()  # what cells hold that name nobody
        self._stand_ins = np.zeros(2, int)
        self.unread = collections.Counter[str]()  # cells that are no numbers, even if declared so
        self._ends = (False, False)  # whether the first and the last record contribute nothing
        self._least, self._most = (dict.fromkeys(names, end) for end in (np.inf, -np.inf))
        # 64-bit hashes instead of the rows: half a million rows of 54 features then take 30 MB,
        # and a collision among them has probability below 1e-8.
        self._seen: set[int] = set()

    def add(self, block: list[np.ndarray]) -> None:
        """Counts some records, whose cells are those ``wanted``."""
        cells, (label, *owners) = block[: len(self._columns)], block[len(self._columns) :]
        parts = []
        for column, held in zip(self._columns, cells, strict=True):
            name, part = column.name, column.encode(held)
            parts.append(part)
            if column.key == "levels":
                ones = (part == 1).sum(axis=0).tolist()
                self._levels.update(dict(zip(column.features, ones, strict=True)))
            # Both leave NaN out.
            self._least[name] = np.fmin(self._least[name], np.fmin.reduce(part))
            self._most[name] = np.fmax(self._most[name], np.fmax.reduce(part))
            if isinstance(column, Numeric):
                self.unread[name] += int(np.isnan(column.values(held)).sum())
            self._missing[name] += int(np.isnan(part).any(axis=1).sum())
            self._outside[name] += column.exact_outside(held)
            self._undeclared[name] += column.exact_undeclared(held)
        rows, y = np.concatenate(parts, axis=1), self._schema.label.encode(label)
        invalid, impossible = np.isnan(rows).any(axis=1), np.isnan(y)
        nobody = self._count_owners(owners[0]) if owners else False
        if (classes := self._scale.classes) is None:
            self.unread[self._schema.label.column] += int(impossible.sum())
        else:
            self._stand_ins += labels.exact_stand_ins(label, classes)
            self.labels += ClassLabel("", ()).exact_undeclared(label)
        self._other += self._schema.label.exact_undeclared(label)
        self._codes.update(y[~impossible].tolist())
        lost = impossible if self._scale.classes != () else False  # () is still to be declared
        null = np.asarray(invalid | lost | nobody)
        self._ends = (bool(null[0] if not self._rows else self._ends[0]), bool(null[-1]))
        self._rows += len(y)
        self._null_rows += int(null.sum())
        self._invalid_rows += int(invalid.sum())
        self._impossible += int(impossible.sum())
        self._zeros += int((rows == 0).all(axis=1).sum())
        both = np.column_stack([rows, y])  # NaN has one pattern of bits here
        self._seen.update(hash(row.tobytes()) for row in both)

    def _count_owners(self, cells: np.ndarray) -> np.ndarray:
        """Counts whose records there are, and returns which cells name nobody."""
        units = [unit_name(cell, self._schema.unit_type) for cell in cells]
        nobody = np.array([not unit for unit in units], bool)
        self._persons.update(filter(None, units))
        texts = map(labels.label_text, cells[nobody])
        self._no_persons.update(text for text in texts if text.lower() not in MISSING)
        return nobody

    @property
    def _above(self) -> int:
        most = self._schema.max_records or math.inf
        return int(sum(max(0, held - most) for held in self._persons.values()))

    def fields(self) -> dict[str, Any]:
        """Returns fields of a ``CheckReport``."""
        undeclared = None
        if any(column.key in ("levels", "order") for column in self._columns):
            held = self._undeclared.items()
            undeclared = {name: dict(counts.most_common()) for name, counts in held if counts}
        constant = [name for name, low in self._least.items() if np.all(low == self._most[name])]
        bounded = not any(isinstance(column, Unscaled) for column in self._columns)
        return {
            "exact_rows": self._rows,
            "exact_class_counts": self._class_counts(),
            "exact_impossible_labels": self._impossible,
            "exact_other_labels": dict(self._other.most_common()),
            "exact_nonfinite_rows": self._invalid_rows,
            "exact_nonfinite": dict(+self._missing),
            "exact_outside": dict(+self._outside) if bounded else None,
            "exact_zero_rows": self._zeros,
            "exact_duplicate_rows": self._rows - len(self._seen),
            "exact_null_rows": self._null_rows,
            "exact_undeclared": undeclared,
            "exact_constant": tuple(constant),
            "exact_persons": None if self._schema.unit is None else len(self._persons),
            "exact_above_cap": self._above,
        }

    def label_problems(self, advice: str | None) -> list[str]:
        """Returns what is wrong with the labels; ``advice`` says what to declare of classes."""
        classes = self._scale.classes
        if classes is not None:
            wrong = self._class_problems(classes, advice)
            return wrong + labels.stand_in_problems(self._said, self._stand_ins, classes)
        problems = []
        if self._other:
            problems.append(
                f"{self._said} holds {_few(self._other)}, and such a record contributes nothing: "
                "correct the label's bounds from public knowledge, or leave those records out."
            )
        # The declared bounds of a number become -1 and 1, which lie 2 apart.
        spans = [(max(self._codes) - min(self._codes)) / 2] if len(self._codes) > 1 else []
        return problems + _narrow(self._said, spans)

    def _class_problems(self, classes: Sequence[labels.Label], advice: str | None) -> list[str]:
        absent = [label for label, count in self._class_counts().items() if not count]
        if classes and not (self._other or absent):
            return []
        if len(self._other) > MOST_CLASSES or not (classes or len(self._other) > 1):
            count = len(self.labels)
            distinct = "1 value" if count == 1 else f"{count} different values"
            return [
                f"{self._said} holds {distinct}: it is not a column of classes; name another with "
                f"--label. {labels.A_NUMBER}"
            ]
        held = ", ".join(f"{label!r} {count} times" for label, count in self.labels.most_common())
        words = [f"{self._said} holds {held or 'none'}"]
        if classes:
            words.append(f"declared are {labels.labels_counted(classes)}; a record with another "
                         "label contributes nothing")  # fmt: skip
        else:
            words.append("which labels count is not declared")
        if absent:
            words.append(f"no record has {', '.join(map(repr, absent))}")
        if any(map(is_garbled, self._other)):
            words.append("some labels are not UTF-8: save the file as UTF-8")
        elif advice is not None:
            words.append(advice)
        return ["; ".join(words) + "."]

    def remarks(self) -> list[str]:
        """Returns what looks like a slip: rare levels, and lines at the ends of a table."""
        rare = [f"{n} of {name!r}" for name, n in self._levels.items() if n < _RARE * self._rows]
        found = [f"levels that fewer than {_RARE:.1%} of the rows have: {few(rare, str)}; "
                 "with such levels --inference may give no intervals"] * bool(rare)  # fmt: skip
        if 10 * self._null_rows > self._rows:
            return found
        said = ("first record contributes nothing: is it a second line of the header?",
                "last record contributes nothing: is it a line of totals, or a note?")  # fmt: skip
        return found + [f"the {end}" for end, null in zip(said, self._ends, strict=True) if null]

    def unit_problems(self) -> list[str]:
        """Returns what is wrong with the units."""
        unit, most, rows, problems = self._schema.unit, self._schema.max_records, self._rows, []
        if self._no_persons:
            problems.append(
                f"the unit {unit!r} holds {_few(self._no_persons)}, which names nobody, so that "
                'such a record contributes nothing: declare under [unit] type = "number" if all '
                'are whole numbers (7, 7.0, 007 and +7 are one), or "text" (unit_type in Python).'
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

    def column_problems(self, said: Collection[str] = ()) -> list[str]:
        """Returns what is wrong with the features; of columns ``said`` that has been said."""
        # Where an empty cell has a valid value, such as `missing`, no record lacks one.
        rows, empty = self._rows, np.array([None], object)
        may_lack = [c.name for c in self._columns if np.isnan(c.encode(empty)).any()]
        problems = list[str]()
        # A line with another number of cells is empty in every column at once.
        if not said and may_lack and 2 * min(self._missing[name] for name in may_lack) > rows:
            return [
                "no column holds a valid value in most records: do the lines have more or fewer "
                "cells than the header?"
            ]
        for column in self._columns:
            name, missing = column.name, self._missing[column.name]
            undeclared = self._undeclared[name]
            garbled = any(map(is_garbled, undeclared))
            if getattr(column, "other", False) and undeclared.total() > _NEARLY * rows:
                problems.append(
                    f"the column {name!r} holds none of its declared levels in "
                    f"{undeclared.total()} of {rows} records, but {_few(undeclared)}: are the "
                    "levels written as in the file?"
                )
            if missing and undeclared:
                problems.append(
                    f"the column {name!r} holds {_few(undeclared)}, which is not declared; such a "
                    "record contributes nothing: "
                    + ("save the file as UTF-8, which some are not, or " if garbled else "")
                    + "declare further levels from public knowledge, or other = true."
                )
            elif 2 * missing > rows and name not in said:
                problems.append(
                    f"the column {name!r} has no valid value in {missing} of {rows} records, which "
                    "therefore contribute nothing: declare in a schema what it holds, such as "
                    "levels for words, ignore = true, or, for numbers, missing = a number."
                )
            if 2 * self._outside[name] > rows:
                problems.append(
                    f"the column {name!r} is outside its declared bounds in {self._outside[name]} "
                    f"of {rows} records: are the bounds in the units of the file?"
                )
        scaled = [c.name for c in self._columns if not isinstance(c, Unscaled)]
        # Encoded from 0 to 1, so that a span is a fraction of the declared bounds.
        spans = [np.max(self._most[name] - self._least[name]) for name in scaled]
        return problems + _narrow("every column", spans)

    def _class_counts(self) -> dict[labels.Label, int]:
        classes = self._scale.classes
        if classes is None:
            return {"a number within its bounds": self._codes.total()}
        codes = self._schema.label.encode(np.array(classes, object)).tolist() if classes else ()
        return {label: self._codes[code] for label, code in zip(classes, codes, strict=True)}


def _narrow(where: str, spans: Sequence[float]) -> list[str]:
    """What is wrong where all values span small fractions of the declared bounds."""
    # Columns of one value, or none, are said elsewhere.
    if not 0 < max(spans, default=0) < _NARROW:
        return []
    return [
        f"the values of {where} span less than {_NARROW:.0%} of the declared bounds, so that "
        "records hardly differ once scaled: are the bounds in the units of the file?"
    ]


def _few(counts: collections.Counter[str]) -> str:
    shown = ", ".join(f"{level!r} {count} times" for level, count in counts.most_common(_SHOWN))
    return shown + (f", ... ({len(counts)} levels in all)" if len(counts) > _SHOWN else "")


def is_garbled(label: str) -> bool:
    """Whether a label was read from bytes that are not UTF-8; it cannot be typed or printed."""
    return any("\ud800" <= letter <= "\udfff" for letter in label)
