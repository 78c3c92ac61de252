"""Reader for a user's table and the feature ranges declared for it."""

import csv
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpjax.datasets.base import Ranges, Table
from dpjax.datasets.csv_files import check_unique, few
from dpjax.datasets.labels import Label, check_classes, typed
from dpjax.datasets.raw import is_table_path, read_labelled

Bounds = str | os.PathLike[str] | Mapping[str, Sequence[float]] | Sequence[Sequence[float]]


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
      memory_limit: see ``read_labelled``.
      unit: a column that is no feature, or None.

    Returns:
      The ``Table``, unscaled.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: if the table is not valid as a whole (no record, no such label column, arrays of
        other shapes), or the declarations do not fit it. A strange *record* raises nothing.

    Privacy: errors depend on the header, the shapes and the dtypes of arrays only, which are taken
      as public.
    """
    declared = None if classes is None else check_classes(classes)
    raw = read_labelled(table, label, memory_limit)
    if unit in raw.columns:
        kept = [place for place, column in enumerate(raw.columns) if column != unit]
        raw = raw._replace(columns=tuple(raw.columns[i] for i in kept), x=raw.x[:, kept])
    path = is_table_path(table)
    name, where = (pathlib.Path(table).stem, repr(str(table))) if path else ("table", "the table")
    if not raw.columns:
        raise ValueError(f"{where} has no feature column: add one beside the label.")
    if not len(raw.x):
        raise ValueError(f"{where} has no records: training needs at least one.")
    ranges = None if bounds is None else read_ranges(bounds, raw.columns)
    assert raw.labels is not None
    # Declared classes are compared as text too: "01" declared as a word is not the number 1.
    labels = raw.labels
    if declared is None and isinstance(labels, np.ndarray):
        labels = typed(labels)
    described = f"the column {label!r} of {where}" if label else f"the labels of {where}"
    return Table(
        name,
        raw.columns,
        raw.x,
        labels,
        ranges,
        declared,
        raw.test_x,
        raw.test_labels,
        label=described,
    )


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
