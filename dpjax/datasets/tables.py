"""Reader for a table: what is declared of it as a schema, and its rows and labels."""

import csv
import json
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dpjax import _validate
from dpjax.datasets.cells import Kind
from dpjax.datasets.csv_files import check_unique, few
from dpjax.datasets.dataset import Dataset, Preprocessing
from dpjax.datasets.encoders import ClassLabel, Column, NumberLabel, Numeric, Unscaled
from dpjax.datasets.labels import Label, declared_classes
from dpjax.datasets.rows import Rows
from dpjax.datasets.scaling import Ranges
from dpjax.datasets.schema import Schema, check_table, undeclared_line_breaks
from dpjax.datasets.source import OpenTable, Source
from dpjax.datasets.sources import is_table_path, open_source
from dpjax.datasets.units import NOT_GROUPED, group

Bounds = str | os.PathLike[str] | Mapping[str, Sequence[float]] | Sequence[Sequence[float]]


class Options(NamedTuple):
    """What ``load`` and ``check`` take in place of a schema, see ``load``."""

    label: str | None = None
    bounds: Bounds | None = None
    classes: Sequence[Label] | None = None
    unit: str | None = None
    max_records: int | None = None
    unit_type: str | None = None
    intercept: bool = False


class Table(NamedTuple):
    """A table and what is declared of it.

    Args:
      schema: without bounds its columns are ``Unscaled``, and without classes its label has none,
        which ``check`` allows.
      unit: what a row stands for where no column says whose it is.

    Privacy: raw data.
    """

    name: str
    opened: OpenTable
    schema: Schema
    unit: str = "row"

    @property
    def source(self) -> Source:
        """The training records."""
        return self.opened.source

    def dataset(self) -> Dataset:
        """Returns the rows and labels for training, with one unit a row where there are units.

        Raises:
          ValueError: if classes or ``max_records`` are not declared, or records on disk are to be
            grouped.

        Privacy: row i depends on record i alone; a row that is a unit, on its records.
        """
        schema, source = self.schema, self.source
        label, scale = schema.label, schema.preprocessing
        # Left out by ``check_table`` where the classes are still to be declared.
        label.check_stored(source)
        for problem in undeclared_line_breaks(schema, source):
            raise ValueError(problem)
        if schema.unit is not None and self.opened.on_disk:
            raise ValueError(NOT_GROUPED)
        if schema.unit is not None and schema.max_records is None:
            raise ValueError(
                f"max_records must say how many records one {schema.unit} contributes at most, got "
                "None: declare a number without looking at the data."
            )
        x: Any
        y: Any
        owners = None
        if self.opened.on_disk:
            # Encoded when a pass asks for them: memory holds one chunk, and each pass pays anew.
            x = Rows(_Encoded(source, scale.wanted, scale.encode, (len(scale.features),)))
            wanted = [label.column], {label.column} if label.numeric else set()
            y = Rows(_Encoded(source, wanted, lambda cells: label.encode(*cells), ()))
        else:
            x, y, owners = _encoded(source, scale, label, schema.unit)
        test_x = test_y = None
        if self.opened.test is not None:
            test_x, test_y, _ = _encoded(self.opened.test, scale, label)
        # Rows have norm 1, or at most 1 where a constant divides them.
        data = Dataset(x, y, test_x, test_y, self.name, self.unit, 1.0, scale)
        if schema.unit is None or schema.max_records is None:
            return data
        return group(data, owners, schema.max_records, schema.unit, schema.unit_type)


def read_table(table: Any, declared: Schema | Options, memory_limit: int | None = None) -> Table:
    """Returns a user's table with what is declared of it.

    Args:
      table: the path of a CSV, NPZ, NPY or Parquet file, or a data frame or mapping of columns.
      declared: a schema, or the options that stand for one.
      memory_limit: bytes of features, in float32, above which a file's rows stay on disk; None for
        any number.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: if the table is not valid as a whole (no record, no such label column, arrays of
        other shapes), or the declarations do not fit it. A strange *record* raises nothing.

    Privacy: errors depend on the header, the shapes and the dtypes of arrays only, which are taken
      as public.
    """
    if isinstance(declared, Schema):
        # The levels of a column become several features, and an ignored column none.
        width = len(declared.features)
        breaks, label = declared.quoted_line_breaks, declared.label.column
        opened, schema = open_source(table, label, memory_limit, width, breaks), declared
    else:
        opened = open_source(table, declared.label, memory_limit)
        schema = _schema_of(opened, declared)
    check_table(schema, opened.source)
    check_size(opened.source)
    name = pathlib.Path(table).stem if is_table_path(table) else "table"
    return Table(name, opened, schema)


def _schema_of(opened: OpenTable, options: Options) -> Schema:
    """Returns the schema that label, bounds and classes declare."""
    source, label = opened.source, opened.label or options.label
    if label is None:
        raise ValueError(
            f"label must name the label's column of {source.where}, got None: choose from "
            f"{few(source.names)}, on the command line --label COLUMN; or declare each column in a "
            "schema, which `dpjax data FILE --template` begins."
        )
    _validate.choice("column for the label", label, source.names)
    if options.unit is not None:
        _validate.choice("column for the unit", options.unit, source.names)
    columns = tuple(name for name in source.names if name not in (label, options.unit))
    if not columns:
        raise ValueError(f"{source.where} has no feature column: add one beside the label.")
    classes, kind = options.classes, source.kinds[label]
    # Undeclared classes are left for `check` to suggest, unless the dtype decides: booleans need
    # none declared, and dates are refused.
    if classes is not None or kind not in (Kind.NUMBERS, Kind.WORDS, Kind.MIXED):
        said = f"the column {label!r} of {source.where}"
        classes = declared_classes(classes, said, kind)
    return Schema(
        ClassLabel(label, tuple(classes or ())),
        scaled_columns(columns, options.bounds),
        options.unit,
        options.max_records,
        options.intercept,
        options.unit_type,
    )


def scaled_columns(columns: Sequence[str], bounds: Bounds | None) -> tuple[Column, ...]:
    """Returns columns of numbers with these bounds, see ``read_ranges``; unscaled without any."""
    if bounds is None:
        return tuple(map(Unscaled, columns))
    ranges = zip(*(end.tolist() for end in read_ranges(bounds, columns)), strict=True)
    return tuple(Numeric(name, *pair) for name, pair in zip(columns, ranges, strict=True))


def check_size(source: Source) -> None:
    """Raises if a table has no record."""
    if not source.size:
        raise ValueError(f"{source.where} has no records: training needs at least one.")


class _Encoded:
    """Encoded rows of a table that stays on disk, as an array-like."""

    def __init__(
        self, source: Source, wanted: tuple[Any, ...], encode: Callable, shape: tuple[int, ...]
    ):
        self._source, self._wanted, self._encode = source, wanted, encode
        self.shape, self.dtype = (source.size, *shape), np.dtype(np.float32)

    def __getitem__(self, index: slice | np.ndarray) -> np.ndarray:
        return self._encode(self._source.read(index, *self._wanted))


def _encoded(
    source: Source, scale: Preprocessing, label: ClassLabel | NumberLabel, unit: str | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Returns rows, labels, and the cells that say whose a record is."""
    wanted, numeric, together = scale.wanted
    # In place, as `wanted` gives a new set each time.
    numeric |= {label.column} if label.numeric else set()
    beside = [label.column, *([] if unit is None else [unit])]
    # Columns that are read together come as one array.
    count = len(wanted) + bool(together)
    # Filled block by block: joining blocks at the end would take twice the memory.
    x = np.empty((source.size, len(scale.features)), np.float32)
    y = np.empty(source.size, np.float32)
    owners, start = [], 0
    for block in source.blocks([*wanted, *beside], numeric, together):
        stop = start + len(block[count])
        x[start:stop], y[start:stop] = scale.encode(block[:count]), label.encode(block[count])
        owners += block[count + 1 :]
        start = stop
    return x, y, np.concatenate(owners) if owners else None


def read_ranges(bounds: Bounds, columns: Sequence[str]) -> Ranges:
    """Returns the declared range of each feature, in the order of the columns.

    Args:
      bounds: path of a JSON file, ``{"age": [0, 120], ...}``; or of a CSV file with the header
        ``column,low,high``; or such a mapping. A list of ``[low, high]`` stands for the
        columns ``"0"``, ``"1"``, ... of an NPZ.
      columns: the p feature names.

    Returns:
      (low, high), each (p,) float64.

    Raises:
      ValueError: naming the columns without a range, the ranges without a column, or the range
        that is not a finite ``low < high``.

    Privacy: the ranges must be known without looking at the data.
    """
    declared: Any = bounds
    if isinstance(bounds, str | os.PathLike):
        declared = _read_declared(pathlib.Path(bounds))
    # The columns of an NPZ or NPY are named by their numbers.
    if isinstance(declared, list | tuple):
        declared = {str(index): pair for index, pair in enumerate(declared)}
    if not isinstance(declared, Mapping):
        raise ValueError(f"bounds must be {{column: [low, high]}}, got {declared!r}.")
    if missing := [column for column in columns if column not in declared]:
        raise ValueError(f"bounds lack the columns {few(missing)}: declare [low, high] for each.")
    if unknown := [column for column in declared if column not in columns]:
        raise ValueError(
            f"bounds name {few(unknown)}, which are not features of the table: remove them. Its "
            f"features are {few(columns)}."
        )
    pairs = [_validate.interval(f"bounds of column {c!r}", declared[c]) for c in columns]
    low, high = np.array(pairs, np.float64).T
    return low, high


def _read_declared(path: pathlib.Path) -> Any:
    if not path.is_file():
        raise FileNotFoundError(f"there is no bounds file {str(path)!r}.")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"bounds file {str(path)!r} is not UTF-8: save it as UTF-8.") from None
    if path.suffix.lower() == ".json":
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"bounds file {str(path)!r} is not valid JSON: {error}.") from None
    if path.suffix.lower() != ".csv":
        raise ValueError(f"bounds must name a .json or .csv file, got {str(path)!r}.")
    header, *lines = csv.reader(text.splitlines()) if text.strip() else [[]]
    # csv returns an empty list for a blank line.
    lines = [line for line in lines if line]
    wanted = ["column", "low", "high"]
    if [cell.strip() for cell in header] != wanted or any(len(line) != 3 for line in lines):
        raise ValueError(
            f"bounds file {str(path)!r} must have the header column,low,high and three cells a "
            f"line, got the header {','.join(header)!r}."
        )
    names = [line[0].strip() for line in lines]
    check_unique(f"bounds file {str(path)!r}", names)
    # Still text: `interval` converts it, and names the column of what is no number.
    return {name: line[1:] for name, line in zip(names, lines, strict=True)}
