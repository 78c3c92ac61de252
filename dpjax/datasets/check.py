"""NOT PRIVATE: exact counts of problems in a data set, for its owner only."""

import collections
import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpjax.datasets.base import Dataset, finite_or_nan
from dpjax.datasets.cells import MISSING, cells_of
from dpjax.datasets.check_schema import Owners, constant, exact_counts, narrow
from dpjax.datasets.columnar import Matrix
from dpjax.datasets.csv_files import few
from dpjax.datasets.labels import (
    A_NUMBER,
    Label,
    check_classes,
    class_places,
    exact_stand_ins,
    label_text,
    labels_counted,
    plain,
    stand_in_problems,
)
from dpjax.datasets.loaders import check_schema_alone, check_units, open_table
from dpjax.datasets.schema import Schema, check_unit
from dpjax.datasets.source import Opened
from dpjax.datasets.sources import has_columns, is_table_path
from dpjax.datasets.tables import Bounds, Table, check_size, read_ranges

_KEEP = " (to keep some: missing = a number for empty cells of numbers, other = true for levels)"
_MOST_CLASSES = 20  # a column with more distinct values is not a label of classes


@dataclasses.dataclass(frozen=True)
class CheckReport:
    """NOT PRIVATE: counts of problems in the training records, before any scaling.

    Args:
      name: the data set.
      unit: what one row stands for.
      exact_rows: number of records.
      exact_class_counts: number of records of each class that is declared.
      exact_impossible_labels: number of records with any other label, which training drops.
      exact_other_labels: number of records of each such label, without missing ones.
      exact_nonfinite_rows: number of records with a cell that is not a finite number; training
        drops them.
      exact_nonfinite: number of such cells, for each column that has any. A CSV line with too
        few or too many cells counts in every column and has no label.
      exact_outside: number of values outside the declared range, which are clamped to it, for
        each column that has any; None if no ranges are declared.
      exact_zero_rows: number of records that are zero in every feature once scaled.
      exact_duplicate_rows: number of records equal to an earlier one in features and label.
      exact_problems: problems for which training would be refused or drop many records, with
        remedies.
      exact_classes: the labels to declare, if the data show them; else None.
      exact_null_rows: number of records that contribute nothing; None without a schema.
      exact_undeclared: number of records of each level that is not declared, for each column that
        has any; None without a schema.
      exact_constant: columns that hold one value in all records, clamped and encoded.
      exact_persons: number of units that records belong to; None without any.
      exact_above_cap: number of records beyond ``max_records`` of their unit, which are left out.

    Privacy: NOT PRIVATE; exact functions of the data. Do not publish it, nor choose the bounds of
    a private training from it.
    """

    name: str
    unit: str
    exact_rows: int
    exact_class_counts: dict[Label, int]
    exact_impossible_labels: int
    exact_other_labels: dict[str, int]
    exact_nonfinite_rows: int
    exact_nonfinite: dict[str, int]
    exact_outside: dict[str, int] | None
    exact_zero_rows: int
    exact_duplicate_rows: int
    exact_problems: tuple[str, ...] = ()
    exact_classes: tuple[str, ...] | None = None
    exact_null_rows: int | None = None
    exact_undeclared: dict[str, dict[str, int]] | None = None
    exact_constant: tuple[str, ...] = ()
    exact_persons: int | None = None
    exact_above_cap: int = 0

    def lines(self) -> list[str]:
        r"""NOT PRIVATE: returns the report as lines of text, one count each.

        Returns:
          The lines; the first says NOT PRIVATE.

        >>> print(*check("randhie").lines(), sep="\n")
        NOT PRIVATE: exact counts of the data set 'randhie', for its owner's eyes only.
        rows (person-year): 20190
        labels: 6308 of -1, 13882 of +1, 0 impossible
        rows with a cell that is no finite number: 0
        values outside the declared bounds: 0
        rows that are zero once scaled: 106
        rows equal to an earlier one: 16104
        """
        outside, null = self.exact_outside, self.exact_null_rows
        if outside is None:
            bounds = "values outside the declared bounds: not counted, no bounds are declared"
        else:
            bounds = f"values outside the declared bounds: {_by_column(outside)}"
        cells = f" (cells: {_by_column(self.exact_nonfinite)})" if self.exact_nonfinite else ""
        declared = self.exact_undeclared is not None
        valid = "that has no valid value" if declared else "that is no finite number"
        return [
            f"NOT PRIVATE: exact counts of the data set {self.name!r}, for its owner's eyes only.",
            f"rows ({self.unit}): {self.exact_rows}",
            f"labels: {self._labels()}{self.exact_impossible_labels} impossible",
            f"rows with a cell {valid}: {self.exact_nonfinite_rows}{cells}",
            bounds,
            *self._levels(),
            f"rows that are zero once scaled: {self.exact_zero_rows}",
            f"rows equal to an earlier one: {self.exact_duplicate_rows}",
            *self._units(),
            *(
                []
                if null is None
                else [f"rows that contribute nothing: {null}{_KEEP if null else ''}"]
            ),
            *(f"wrong: {problem}" for problem in self.exact_problems),
        ]

    def _levels(self) -> list[str]:
        if self.exact_undeclared is None:
            return []
        counted = {name: sum(held.values()) for name, held in self.exact_undeclared.items()}
        return [f"levels that are not declared: {_by_column(counted)}"]

    def _units(self) -> list[str]:
        found = []
        if self.exact_constant:
            found.append(f"columns with one value in all rows: {few(self.exact_constant)}")
        if self.exact_persons is not None:
            found.append(
                f"units: {self.exact_persons}, rows beyond max_records of theirs: "
                f"{self.exact_above_cap}"
            )
        return found

    def _labels(self) -> str:
        signs = set(self.exact_class_counts) == {-1, 1}
        if not self.exact_class_counts:
            return "none is declared, "
        return "".join(
            f"{count} of {f'{label:+d}' if signs else repr(label)}, "
            for label, count in self.exact_class_counts.items()
        )


def check(
    name_or_path: str | os.PathLike[str] | Any,
    *,
    label: str | None = None,
    bounds: Bounds | None = None,
    classes: Sequence[Label] | None = None,
    schema: Schema | str | os.PathLike[str] | Mapping[str, Any] | None = None,
    unit: Any = None,
    max_records: int | None = None,
    unit_type: str | None = None,
) -> CheckReport:
    """NOT PRIVATE: counts values that ``load`` would silently clamp or drop, and suggests remedies.

    Args:
      name_or_path: what ``load`` reads; or a ``Dataset`` with labels of classes.
      label: the column, or of an NPZ the array, of the labels; for a table only.
      bounds: the declared ranges, if any; of a ``Dataset`` for features in their own units.
      classes: the declared labels, if any; of a ``Dataset`` numbers in ``y``, by default -1 and 1.
      schema: a ``Schema`` or its file, in place of the other options.
      unit: the column that says whose a record is; of a ``Dataset`` its cells, see ``group``.
      max_records: the largest number of records that a unit contributes, if declared.
      unit_type: how the cells of ``unit`` are compared, see ``group``.

    Returns:
      A ``CheckReport`` of the training records.

    Raises:
      ValueError: as ``load``, except for absent bounds and classes.
      FileNotFoundError: as ``load``.

    Privacy: NOT PRIVATE; exact counts, which no budget pays for.

    >>> check("randhie").exact_class_counts
    {-1: 6308, 1: 13882}
    """
    if schema is not None:
        options = {"label": label, "bounds": bounds, "classes": classes, "unit": unit}
        options |= {"max_records": max_records, "unit_type": unit_type}
        check_schema_alone(name_or_path, options)
        return CheckReport(**exact_counts(name_or_path, Schema.read(schema)))
    check_units(name_or_path, label, unit, max_records, unit_type)
    if isinstance(name_or_path, Dataset):
        if label is not None:
            raise ValueError("label is for a table: the labels of a Dataset are in y.")
        table = _of_arrays(name_or_path, classes, unit, bounds)
        unit = None if unit is None else "unit"
    else:
        options = {"label": label, "bounds": bounds, "classes": classes, "unit": unit}
        table = open_table(name_or_path, **options)
    if unit is not None:
        check_unit(table.source, unit, unit_type)
    tally = _Tally(table, Owners(unit, max_records, unit_type))
    wanted = [table.label, *([] if unit is None else [unit])]
    for block in table.source.blocks(wanted, together=table.columns):
        tally.add(*block)
    report, problems = tally.report(), table.source.exact_problems()
    suggested = _suggested(tally.labels)
    declare = _to_encode if isinstance(name_or_path, Dataset) else _to_declare
    advice = None if suggested is None else declare(suggested)
    problems += _label_problems(table, report, tally.labels, advice)
    problems += _feature_problems(report)
    problems += tally.problems()
    if table.ranges is None and (is_table_path(name_or_path) or has_columns(name_or_path)):
        problems.append(_bounds_to_declare(table.columns))
    return dataclasses.replace(report, exact_problems=tuple(problems), exact_classes=suggested)


def _of_arrays(
    data: Dataset, classes: Sequence[Label] | None, unit: Any, bounds: Bounds | None
) -> Table:
    x, y = np.asarray(data.x), np.asarray(data.y)
    if data.present is not None:
        x, y = x[np.asarray(data.present)], y[np.asarray(data.present)]
    beside = {"y": y} if unit is None else {"y": y, "unit": cells_of(unit)}
    source = Matrix("the data", x.reshape(len(x), math.prod(x.shape[1:])), beside=beside)
    check_size(source)
    if any(cells.shape != (len(x),) for cells in beside.values()):
        raise ValueError("y and unit must have one entry for each record.")
    if classes is None:
        count = len((data.preprocessing and data.preprocessing.classes) or ())
        classes = range(count) if count > 2 else (-1, 1)
    columns = source.names[: -len(beside)]
    ranges = None if bounds is None else read_ranges(bounds, columns)
    return Table(data.name, columns, Opened(source), "y", ranges, check_classes(classes))


class _Tally:
    """Counts of a table's records, added up block by block."""

    def __init__(self, table: Table, owners: Owners):
        self._table, self._owners, self._rows = table, owners, 0
        self._nonfinite, self._outside = np.zeros((2, len(table.columns)), int)
        self._least, self._most = np.full((2, len(table.columns)), [[np.inf], [-np.inf]])
        self._nonfinite_rows = self._zeros = 0
        self._labels: collections.Counter[Any] = collections.Counter()
        self._stand_ins = np.zeros(2, int)
        # 64-bit hashes instead of the rows: half a million rows of 54 features then take 30 MB,
        # and a collision among them has probability below 1e-8.
        self._seen: set[int] = set()

    def add(self, numbers: np.ndarray, labels: np.ndarray, *units: np.ndarray) -> None:
        block = finite_or_nan(numbers)
        holes = np.isnan(block)
        self._rows += len(block)
        self._nonfinite += holes.sum(0)
        self._nonfinite_rows += int(holes.any(1).sum())
        self._least = np.fmin(self._least, np.fmin.reduce(block))
        self._most = np.fmax(self._most, np.fmax.reduce(block))
        if self._table.ranges is None:
            self._zeros += int((block == 0).all(1).sum())
        else:
            low, high = self._table.ranges
            self._outside += ((block < low) | (block > high)).sum(0)
            self._zeros += int((block <= low).all(1).sum())
        held = [*map(plain, labels.tolist())]
        self._labels.update(held)
        self._stand_ins += exact_stand_ins(labels, self._table.classes or ())
        for cells in units:
            self._owners.add(cells)
        pairs = zip(block, held, strict=True)
        self._seen.update(hash((row.tobytes(), label)) for row, label in pairs)

    def report(self) -> CheckReport:
        table = self._table
        counted, other, missing = _labels(self._labels, table.classes or ())
        outside = None if table.ranges is None else _positive(table.columns, self._outside)
        return CheckReport(
            name=table.name,
            unit=table.unit,
            exact_rows=self._rows,
            exact_class_counts=counted,
            exact_impossible_labels=sum(other.values()) + missing,
            exact_other_labels=other,
            exact_nonfinite_rows=self._nonfinite_rows,
            exact_nonfinite=_positive(table.columns, self._nonfinite),
            exact_outside=outside,
            exact_zero_rows=self._zeros,
            exact_duplicate_rows=self._rows - len(self._seen),
            exact_constant=constant(table.columns, self._least, self._most),
            **self._owners.fields(),
        )

    @property
    def labels(self) -> collections.Counter[str]:
        """How often each label occurs, whether or not it is declared; without missing ones."""
        found: collections.Counter[str] = collections.Counter()
        for value, count in self._labels.items():
            if (text := label_text(value)).lower() not in MISSING:
                found[text] += count
        return found

    def problems(self) -> list[str]:
        table = self._table
        found = stand_in_problems(table.said, self._stand_ins, table.classes or ())
        if table.ranges is not None:
            low, high = table.ranges
            ends = np.clip(self._most, low, high) - np.clip(self._least, low, high)
            found += narrow("every column", (ends / (high - low)).tolist())
        return found + self._owners.problems(self._rows)


def _labels(
    values: Mapping[Any, int], classes: Sequence[Label]
) -> tuple[dict[Label, int], dict[str, int], int]:
    """Returns the counts of each class, of each other label, and of missing labels."""
    counted: dict[Label, int] = dict.fromkeys(classes, 0)
    other: collections.Counter[str] = collections.Counter()
    missing = 0
    found = class_places(np.fromiter(values, object, len(values)), classes)
    for (value, count), place in zip(values.items(), found, strict=True):
        if place >= 0:
            counted[classes[int(place)]] += count
        elif (text := label_text(value)).lower() in MISSING:
            missing += count
        else:
            other[text] += count
    return counted, dict(other.most_common()), missing


def _suggested(labels: Mapping[str, int]) -> tuple[str, ...] | None:
    if not 2 <= len(labels) <= _MOST_CLASSES or any(map(_is_garbled, labels)):
        return None
    return tuple(sorted(labels, key=_order))


def _is_garbled(label: str) -> bool:
    """Whether a label was read from bytes that are not UTF-8; it cannot be typed or printed."""
    return any("\ud800" <= letter <= "\udfff" for letter in label)


def _order(label: str) -> tuple[bool, float, str]:
    try:
        return False, float(label), ""
    except ValueError:
        return True, 0.0, label.lower()


def _label_problems(
    table: Table, report: CheckReport, labels: collections.Counter[str], declare: str | None
) -> list[str]:
    other, counted = report.exact_other_labels, report.exact_class_counts
    undeclared = table.classes is None
    absent = [label for label, count in counted.items() if not count]
    if not (undeclared or other or absent):
        return []
    where = table.said
    if len(other) > _MOST_CLASSES or (undeclared and len(other) < 2):
        distinct = "1 value" if len(labels) == 1 else f"{len(labels)} different values"
        return [
            f"{where} holds {distinct}: it is not a column of classes; name another with --label. "
            + A_NUMBER
        ]
    held = ", ".join(f"{label!r} {count} times" for label, count in labels.most_common())
    words = [f"{where} holds {held}"]
    if undeclared:
        words.append("which labels count is not declared")
    else:
        counts = labels_counted(table.classes)
        words.append(f"declared are {counts}; a record with another label contributes nothing")
        if absent:
            words.append(f"no record has {', '.join(map(repr, absent))}")
    if any(map(_is_garbled, other)):
        words.append("some labels are not UTF-8: save the file as UTF-8")
    elif declare is not None:
        words.append(declare)
    return ["; ".join(words) + "."]


def _to_declare(suggested: tuple[str, ...]) -> str:
    if len(suggested) == 2:
        return (
            f"declare --classes {','.join(suggested)} (in Python classes={suggested!r}); the first "
            "becomes -1, the second +1"
        )
    return (
        f"declare two for `dpjax run`, such as --classes {','.join(suggested[:2])}, or merge "
        f"these into two labels; a network in Python takes all of them, classes={suggested!r}"
    )


def _to_encode(suggested: tuple[str, ...]) -> str:
    return (
        f"pass dpjax.datasets.encode_labels(y, classes={suggested!r}) as y, with from_zero=True "
        "for a network; a check takes the numbers that this gives as classes"
    )


def _feature_problems(report: CheckReport) -> list[str]:
    rows, problems = report.exact_rows, []
    for name, count in report.exact_nonfinite.items():
        if 2 * count > rows:
            problems.append(
                f"the column {name!r} holds no number in {count} of {rows} records, which "
                "therefore contribute nothing: remove the column from the file, or declare "
                "its levels in a schema."
            )
    for name, count in (report.exact_outside or {}).items():
        if 2 * count > rows:
            problems.append(
                f"the column {name!r} is outside its declared bounds in {count} of {rows} records: "
                "are the bounds in the units of the file?"
            )
    return problems


def _bounds_to_declare(columns: tuple[str, ...]) -> str:
    pairs = ", ".join(f'"{column}": [low, high]' for column in columns)
    return (
        "no bounds are declared: write to a file bounds.json the lowest and highest possible "
        "value of each feature, from public knowledge and not from these records, as "
        f"{{{pairs}}}; then add --bounds bounds.json (in Python bounds='bounds.json')."
    )


def _positive(columns: tuple[str, ...], counts: np.ndarray) -> dict[str, int]:
    return {name: int(count) for name, count in zip(columns, counts, strict=True) if count}


def _by_column(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} in {name!r}" for name, count in counts.items()) or "0"
