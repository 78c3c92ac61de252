"""NOT PRIVATE: exact counts of problems in a data set, for its owner only."""

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpjax.datasets import loaders
from dpjax.datasets.cells import cells_of
from dpjax.datasets.columnar import Matrix
from dpjax.datasets.dataset import Dataset
from dpjax.datasets.encoders import ClassLabel
from dpjax.datasets.labels import Label, check_labels
from dpjax.datasets.scaling import Bounds
from dpjax.datasets.schema import Schema
from dpjax.datasets.source import OpenTable, few
from dpjax.datasets.sources import is_table
from dpjax.datasets.tally import MOST_CLASSES, Tally, is_garbled
from dpjax.datasets.template import exact_unread

_KEEP = " (to keep some: missing = a number for empty cells of numbers, other = true for levels)"


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
      exact_nonfinite_rows: number of records with a cell that is no finite number: all dropped.
      exact_nonfinite: number of such cells, for each column that has any. A CSV line with too
        few or too many cells counts in every column and has no label.
      exact_outside: number of values outside the declared range, which are clamped to it, for
        each column that has any; None if no ranges are declared.
      exact_zero_rows: number of records that are zero in every feature once scaled.
      exact_duplicate_rows: number of records equal to an earlier one in features and label.
      exact_problems: why training would be refused or drop many records, with remedies.
      exact_classes: the labels to declare, if the data show them; else None.
      exact_null_rows: number of records that contribute nothing.
      exact_undeclared: number of records of each level that is not declared, for each column that
        has any; None without a column of levels.
      exact_constant: columns that hold one value in all records, clamped and encoded.
      exact_persons: number of units that records belong to; None without any.
      exact_above_cap: number of records beyond ``max_records`` of their unit, which are left out.
      exact_remarks: what looks like a slip: rare levels, some lines of a file.

    Privacy: NOT PRIVATE; exact functions of the data: publish none, and choose no bounds by them.
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
    exact_problems: tuple[str, ...]
    exact_classes: tuple[str, ...] | None
    exact_null_rows: int
    exact_undeclared: dict[str, dict[str, int]] | None
    exact_constant: tuple[str, ...]
    exact_persons: int | None
    exact_above_cap: int
    exact_remarks: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        r"""NOT PRIVATE: returns the report as lines of text, one count each.

        >>> print(*check("randhie").lines(), sep="\n")
        NOT PRIVATE: exact counts of the data set 'randhie', for its owner's eyes only.
        rows (person-year): 20190
        labels: 6308 of -1, 13882 of +1, 0 impossible
        rows with a cell that has no valid value: 0
        values outside the declared bounds: 0
        rows that are zero once scaled: 106
        rows equal to an earlier one: 16104
        rows that contribute nothing: 0
        """
        outside, undeclared = self.exact_outside, self.exact_undeclared
        clamped = "not counted, no bounds are declared" if outside is None else _by_column(outside)
        cells = f" (cells: {_by_column(self.exact_nonfinite)})" if self.exact_nonfinite else ""
        signs = set(self.exact_class_counts) == {-1, 1}
        classes = (
            f"{count} of {f'{label:+d}' if signs else repr(label)}, "
            for label, count in self.exact_class_counts.items()
        )
        lines = [
            f"NOT PRIVATE: exact counts of the data set {self.name!r}, for its owner's eyes only.",
            f"rows ({self.unit}): {self.exact_rows}",
            f"labels: {''.join(classes) or 'none is declared, '}{self.exact_impossible_labels} "
            "impossible",
            f"rows with a cell that has no valid value: {self.exact_nonfinite_rows}{cells}",
            f"values outside the declared bounds: {clamped}",
        ]
        if undeclared is not None:
            counted = {name: sum(held.values()) for name, held in undeclared.items()}
            lines.append(f"levels that are not declared: {_by_column(counted)}")
        lines += [
            f"rows that are zero once scaled: {self.exact_zero_rows}",
            f"rows equal to an earlier one: {self.exact_duplicate_rows}",
        ]
        if self.exact_constant:
            lines.append(f"columns with one value in all rows: {few(self.exact_constant)}")
        if self.exact_persons is not None:
            lines.append(
                f"units: {self.exact_persons}, rows beyond max_records of theirs: "
                f"{self.exact_above_cap}"
            )
        lines += self.exact_remarks
        lines.append(
            f"rows that contribute nothing: {self.exact_null_rows}"
            f"{_KEEP if self.exact_null_rows else ''}"
        )
        return lines + [f"wrong: {problem}" for problem in self.exact_problems]


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
      ValueError: for what ``load`` refuses, except for absent bounds and classes.
      FileNotFoundError: if the file is absent, or the named set cannot be downloaded.

    Privacy: NOT PRIVATE; exact counts, which no budget pays for.

    >>> check("randhie").exact_class_counts
    {-1: 6308, 1: 13882}
    """
    options = loaders.Options(label, bounds, classes, unit, max_records, unit_type=unit_type)
    # A Dataset beside a schema goes to `open_table`, whose error says that a schema is for tables.
    if isinstance(name_or_path, Dataset) and schema is None:
        loaders.check_units(name_or_path, options)
        table, of_arrays = _of_arrays(name_or_path, options), True
    else:
        table, of_arrays = loaders.open_table(name_or_path, options, schema), False
    source, schema_label = table.opened.source, table.schema.label.column
    tally = Tally(table.schema, f"the label {schema_label!r} of {source.where}")
    # Cells of a whole table as objects would take several times its memory.
    for block in source.blocks(*tally.wanted):
        tally.add(block)
    suggested = None
    # Others are no list to declare: too many, or words that cannot be typed.
    if 2 <= len(tally.labels) <= MOST_CLASSES and not any(map(is_garbled, tally.labels)):
        suggested = tuple(sorted(tally.labels, key=_order))
    of_file, remarks = source.exact_faults()
    problems = loaders.undeclared_line_breaks(table.schema, source) + of_file
    problems += tally.label_problems(_advice(suggested, of_arrays, schema is not None))
    # What cells that are no numbers hold instead, if any are.
    forms = {name: form for name, form in tally.forms.items() if tally.unread[name]}
    block = next(source.blocks([*forms]), []) if forms else []
    held = zip(forms.items(), block, strict=False)
    unread = {name: exact_unread(name, form, cells) for (name, form), cells in held}
    otherwise = {name: problem for name, (problem, _) in unread.items() if problem}
    problems += (*tally.column_problems(otherwise), *otherwise.values(), *tally.unit_problems())
    remarks += tally.remarks()
    remarks += (remark for _, remark in unread.values() if remark)
    fields = tally.fields()
    # Only a user's table lacks bounds: named sets and a Dataset are scaled already.
    if fields["exact_outside"] is None and is_table(name_or_path):
        pairs = ", ".join(f'"{column}": [low, high]' for column in table.schema.features)
        problems.append(
            "no bounds are declared: write to a file bounds.json the lowest and highest possible "
            "value of each feature, from public knowledge and not from these records, as "
            f"{{{pairs}}}; then add --bounds bounds.json (in Python bounds='bounds.json')."
        )
    said: Any = {"exact_problems": tuple(problems), "exact_remarks": tuple(remarks)}
    return CheckReport(table.name, table.unit, **fields, **said, exact_classes=suggested)


def _of_arrays(data: Dataset, options: loaders.Options) -> loaders.Table:
    if options.label is not None:
        raise ValueError("label is for a table: the labels of a Dataset are in y.")
    x, y = np.asarray(data.x), np.asarray(data.y)
    if data.present is not None:
        # Absent records of a unit are padding.
        x, y = x[np.asarray(data.present)], y[np.asarray(data.present)]
    unit = None if options.unit is None else "unit"
    beside = {"y": y} if unit is None else {"y": y, "unit": cells_of(options.unit)}
    # Images become rows; prod and not -1, which NumPy cannot infer where there is no record.
    source = Matrix("the data", x.reshape(len(x), math.prod(x.shape[1:])), beside=beside)
    if any(cells.shape != (len(x),) for cells in beside.values()):
        raise ValueError("y and unit must have one entry for each record.")
    classes = options.classes
    if classes is None:
        count = len((data.preprocessing and data.preprocessing.classes) or ())
        # As ``load`` encodes them: two classes are signs.
        classes = range(count) if count > 2 else (-1, 1)
    schema = Schema(
        ClassLabel("y", check_labels("classes", classes, 2)),
        # The names of what stands beside the array come last, see `Matrix`.
        loaders.scaled_columns(source.names[: -len(beside)], options.bounds),
        unit,
        options.max_records,
        unit_type=options.unit_type,
        # The rows of a Dataset are ready for training: an intercept is one of their features.
        intercept=False,
    )
    loaders.check_table(schema, source)
    return loaders.Table(data.name, OpenTable(source), schema)


def _order(label: str) -> tuple[bool, float, str]:
    try:
        # Numbers by their value, so that 10 follows 9, and words after them.
        return False, float(label), ""
    except ValueError:
        return True, 0.0, label.lower()


def _advice(suggested: tuple[str, ...] | None, of_arrays: bool, has_schema: bool) -> str | None:
    """Returns what to do about classes: declare those suggested, where nothing else is declared."""
    if suggested is None:
        return None
    # Beside a schema, which declares the classes, no option could.
    if has_schema:
        return (
            "correct classes under [label] from public knowledge, in words as in the file, or "
            "leave those records out"
        )
    if of_arrays:
        return (
            f"pass dpjax.datasets.encode_labels(y, classes={suggested!r}) as y, with "
            "from_zero=True for a network; a check takes the numbers that this gives as classes"
        )
    how = f"declare --classes {','.join(suggested)} (in Python classes={suggested!r})"
    if len(suggested) == 2:
        return how + "; the first becomes -1, the second +1"
    return how + ", which trains softmax regression or a network, or merge these into two labels"


def _by_column(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} in {name!r}" for name, count in counts.items()) or "0"
