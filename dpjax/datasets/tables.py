"""Readers for a user's table, by a schema or by the feature ranges declared for it."""

import csv
import dataclasses
import json
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dpjax import _validate
from dpjax.datasets.base import Dataset, Preprocessing, Ranges
from dpjax.datasets.cells import Kind
from dpjax.datasets.csv_files import check_unique, few
from dpjax.datasets.encoders import ClassLabel, NumberLabel
from dpjax.datasets.labels import Label, declared_classes
from dpjax.datasets.schema import Schema, check_table, check_unit, undeclared_line_breaks
from dpjax.datasets.source import Opened, Source
from dpjax.datasets.sources import is_table_path, open_source
from dpjax.datasets.units import NOT_GROUPED, group
from dpjax.placement.stream import Rows

Bounds = str | os.PathLike[str] | Mapping[str, Sequence[float]] | Sequence[Sequence[float]]


class Units(NamedTuple):
    """Whose a record is: the arguments of ``group``, with the column that says it."""

    column: str
    max_records: int
    unit_type: str | None


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """A table before scaling, with the ranges and classes declared for it.

    Args:
      ranges: lowest and highest value of each feature, declared and not measured, each (p,)
        float64; None where the features are used as they are.
      said: what the labels are called in errors.

    Privacy: raw data.
    """

    name: str
    columns: tuple[str, ...]
    opened: Opened
    label: str
    ranges: Ranges | None
    classes: tuple[Label, ...] | None
    unit: str = "row"
    said: str = "y"

    @property
    def source(self) -> Source:
        """The training records."""
        return self.opened.source

    def dataset(self, intercept: bool, units: Units | None = None) -> Dataset:
        """Returns the rows and labels for training.

        Raises:
          ValueError: if the classes are not declared, or equal no label that is stored so.

        Privacy: row i depends on record i alone.
        """
        source = self.source
        classes = declared_classes(self.classes, self.said, source.kinds[self.label])
        if units is not None:
            check_unit(source, units.column, units.unit_type)
        bounds = None
        if self.ranges is not None:
            bounds = tuple(zip(*(end.tolist() for end in self.ranges), strict=True))
        scale = Preprocessing(self.columns, bounds, intercept, classes)
        data = _dataset(self.name, self.opened, scale, ClassLabel(self.label, classes), units)
        return data if units else dataclasses.replace(data, unit=self.unit)


def read_table(
    table: Any,
    label: str | None,
    bounds: Bounds | None,
    classes: Sequence[Label] | None = None,
    memory_limit: int | None = None,
    unit: str | None = None,
) -> Table:
    """Returns an unscaled table with its declared ranges and classes.

    Args:
      table: the path of a CSV, NPZ, NPY or Parquet file, or a data frame or mapping of columns.
      label: the label's column (required, but for an NPZ) or array (NPZ, default ``"y"``).
      bounds: see ``read_ranges``; None attaches no ranges.
      classes: see ``encode_labels``.
      memory_limit: bytes of features, in float32, above which a file's rows stay on disk; None for
        any number.
      unit: a column that is no feature, or None.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: if the table is not valid as a whole (no record, no such label column, arrays of
        other shapes), or the declarations do not fit it. A strange *record* raises nothing.

    Privacy: errors depend on the header, the shapes and the dtypes of arrays only, which are taken
      as public.
    """
    opened = open_source(table, label, memory_limit)
    source = opened.source
    where, column = source.where, opened.label or label
    if column is None:
        raise ValueError(
            f"label must name the label's column of {where}, got None: choose from "
            f"{few(source.names)}; or declare each column in a schema, which `dpjax data FILE "
            "--template` begins."
        )
    _validate.choice("label", column, source.names)
    if unit is not None:
        _validate.choice("unit", unit, source.names)
    columns = tuple(name for name in source.names if name not in (column, unit))
    Preprocessing(columns, None).check_stored(source)
    if not columns:
        raise ValueError(f"{where} has no feature column: add one beside the label.")
    check_size(source)
    ranges = None if bounds is None else read_ranges(bounds, columns)
    said = f"the column {label!r} of {where}" if label else f"the labels of {where}"
    kind = source.kinds[column]
    if classes is not None or kind not in (Kind.NUMBERS, Kind.WORDS, Kind.MIXED):
        classes = declared_classes(classes, said, kind)
    classes = None if classes is None else tuple(classes)
    return Table(table_name(table), columns, opened, column, ranges, classes, said=said)


def check_size(source: Source) -> None:
    """Raises if a table has no record."""
    if not source.size:
        raise ValueError(f"{source.where} has no records: training needs at least one.")


def table_name(table: Any) -> str:
    """Returns what a user's table is called in results.

    >>> table_name("data/people.csv"), table_name({"age": [30]})
    ('people', 'table')
    """
    return pathlib.Path(table).stem if is_table_path(table) else "table"


def read_declared(table: Any, schema: Schema, memory_limit: int | None = None) -> Dataset:
    """Returns a table as its schema declares it, with units where it declares them.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: if the table has other columns than are declared, or stores them otherwise; or if
        it has no records, or records on disk that are to be grouped.

    Privacy: row i of the result depends on record i alone; a row that is a unit, on its records.
      Errors depend on the names of columns and on how they are stored.
    """
    label, scale = schema.label, preprocessing_of(schema)
    width, breaks = len(scale.features), schema.quoted_line_breaks
    opened = open_source(table, label.column, memory_limit, width, breaks)
    check_table(schema, opened.source)
    for problem in undeclared_line_breaks(schema, opened.source):
        raise ValueError(problem)
    check_size(opened.source)
    units = None
    if schema.unit is not None and schema.max_records is not None:
        units = Units(schema.unit, schema.max_records, schema.unit_type)
    return _dataset(table_name(table), opened, scale, label, units)


def _dataset(
    name: str,
    opened: Opened,
    scale: Preprocessing,
    label: ClassLabel | NumberLabel,
    units: Units | None,
) -> Dataset:
    """Returns the rows and labels of a table, with one unit a row where there are units."""
    source = opened.source
    x: Any
    y: Any
    owners = None
    if opened.on_disk:
        if units is not None:
            raise ValueError(NOT_GROUPED)
        x = Rows(_Encoded(source, scale.wanted, scale.encode, (len(scale.features),)))
        asked = [label.column], {label.column} if label.numeric else set()
        y = Rows(_Encoded(source, asked, lambda cells: label.encode(*cells), ()))
    else:
        x, y, owners = _encoded(source, scale, label, units)
    test_x = test_y = None
    if opened.test is not None:
        test_x, test_y, _ = _encoded(opened.test, scale, label)
    data = Dataset(x, y, test_x, test_y, name, "row", 1.0, scale)
    if units is None:
        return data
    return group(data, owners, units.max_records, units.column, units.unit_type)


def preprocessing_of(schema: Schema) -> Preprocessing:
    """Returns the mapping of features and labels that a schema declares.

    >>> schema = {"label": {"column": "y", "bounds": [0, 9]}, "columns": {"x": {"order": "ab"}}}
    >>> schema["columns"]["x"]["order"] = ["a", "b"]
    >>> preprocessing_of(Schema.read(schema)).rows({"x": ["b", "a"]}).round(4)
    array([[ 0.7071,  0.7071],
           [-0.7071,  0.7071]], dtype=float32)
    """
    encoders = tuple(column for column in schema.columns if column.features)
    return Preprocessing(
        tuple(column.name for column in encoders),
        None,
        schema.intercept,
        schema.label.classes,
        schema.label.bounds,
        encoders,
    )


class _Encoded:
    """Encoded rows of a table that stays on disk, as an array-like."""

    def __init__(
        self, source: Source, asked: tuple[Any, ...], encode: Callable, shape: tuple[int, ...]
    ):
        self._source, self._asked, self._encode = source, asked, encode
        self.shape, self.dtype = (source.size, *shape), np.dtype(np.float32)
        self.source_file = source.source_file

    def __getitem__(self, index: slice | np.ndarray) -> np.ndarray:
        return self._encode(self._source.read(index, *self._asked))


def _encoded(
    source: Source,
    scale: Preprocessing,
    label: ClassLabel | NumberLabel,
    units: Units | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Returns rows, labels, and the cells that say whose a record is."""
    wanted, numeric, together = scale.wanted
    numeric |= {label.column} if label.numeric else set()
    unit = [] if units is None else [units.column]
    count = len(wanted) + bool(together)
    x = np.empty((source.size, len(scale.features)), np.float32)
    y = np.empty(source.size, np.float32)
    owners, start = [], 0
    for block in source.blocks([*wanted, label.column, *unit], numeric, together):
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

    >>> read_ranges({"age": [0, 120]}, ["age"])
    (array([0.]), array([120.]))
    """
    declared: Any = bounds
    if isinstance(bounds, str | os.PathLike):
        declared = _read_declared(pathlib.Path(bounds))
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
    pairs = np.array([_pair(column, declared[column]) for column in columns])
    return pairs[:, 0], pairs[:, 1]


def _pair(column: str, pair: Any) -> tuple[float, float]:
    name = f"bounds of column {column!r}"
    try:
        low, high = (float(end) for end in pair)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be two numbers [low, high], got {pair!r}.") from None
    if not (low < high and np.isfinite(high - low)):
        raise ValueError(f"{name} must be finite with low < high, got {pair!r}.")
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
    lines = [line for line in lines if line]
    wanted = ["column", "low", "high"]
    if [cell.strip() for cell in header] != wanted or any(len(line) != 3 for line in lines):
        raise ValueError(
            f"bounds file {str(path)!r} must have the header column,low,high and three cells a "
            f"line, got the header {','.join(header)!r}."
        )
    names = [line[0].strip() for line in lines]
    check_unique(f"bounds file {str(path)!r}", names)
    return {name: line[1:] for name, line in zip(names, lines, strict=True)}
