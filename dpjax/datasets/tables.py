"""Reads a user's own table, CSV or NPZ, and the feature ranges declared for it."""

import csv
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpjax import _validate
from dpjax.datasets.archives import DAMAGED
from dpjax.datasets.base import Ranges, Table, encode_labels

SUFFIXES = (".csv", ".npz")

Bounds = str | os.PathLike[str] | Mapping[str, Sequence[float]] | Sequence[Sequence[float]]


def read_table(path: pathlib.Path, label: str | None, bounds: Bounds | None) -> Table:
    """Reads a CSV or NPZ file as it is, and attaches the declared ranges.

    Args:
      path: a file ending in .csv or .npz.
      label: the label's column (CSV, required) or array (NPZ, default ``"y"``).
      bounds: see ``read_ranges``; None attaches no ranges.

    Returns:
      The ``Table``, unscaled.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: if the file as a whole is not such a table (no record, no such label column,
        arrays of other shapes), or the bounds do not fit it. A strange *record* raises nothing.

    Privacy: what is raised depends on the header and the shapes, which are taken as public.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {str(path)!r}.")
    read = _read_npz if path.suffix.lower() == ".npz" else _read_csv
    columns, x, y, test_x, test_y = read(path, label)
    if not columns:
        raise ValueError(f"{str(path)!r} has no feature: add a column beside the label.")
    if not len(x):
        raise ValueError(f"{str(path)!r} has no record: a training needs at least one.")
    ranges = None if bounds is None else read_ranges(bounds, columns)
    return Table(path.stem, columns, x, y, ranges, test_x, test_y)


def read_ranges(bounds: Bounds, columns: Sequence[str]) -> Ranges:
    """The declared range of each feature, in the order of the columns.

    Args:
      bounds: path of a JSON file, ``{"age": [0, 120], ...}``; or of a CSV file with the header
        ``column,low,high``; or such a mapping itself. A list of ``[low, high]`` stands for the
        columns ``"0"``, ``"1"``, ... of an NPZ.
      columns: the p feature names.

    Returns:
      (low, high), each (p,) float64.

    Raises:
      ValueError: naming the columns without a range, the ranges without a column, or the range
        that is no finite ``low < high``.

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
        raise ValueError(f"bounds lack the columns {_few(missing)}: declare [low, high] for each.")
    if unknown := [column for column in declared if column not in columns]:
        raise ValueError(
            f"bounds name {_few(unknown)}, which the table has not as features: remove them. "
            f"The features are {_few(columns)}."
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
    text = path.read_text(encoding="utf-8-sig")
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
    _unique(f"bounds file {str(path)!r}", names)
    return {name: line[1:] for name, line in zip(names, lines, strict=True)}


def _read_csv(path: pathlib.Path, label: str | None):
    # One line is one record, whatever it holds: read as a stream, a stray quote in one record
    # would swallow the records after it. Hence also binary mode, which splits at \n alone.
    with path.open("rb") as file:
        header = [cell.strip() for cell in _cells(file.readline().removeprefix(b"\xef\xbb\xbf"))]
        records = sum(1 for line in file if line.strip())
    _unique(f"the header of {str(path)!r}", header)
    if label is None:
        raise ValueError(
            f"label must name the label's column of {str(path)!r}, got None: choose from "
            f"{_few(header)}."
        )
    position = header.index(_validate.choice("label", label, header))
    x, y = np.full((records, len(header) - 1), np.nan), np.full(records, np.nan)
    with path.open("rb") as file:
        file.readline()
        lines = (line for line in file if line.strip())
        for record, line in enumerate(lines):
            values = [_number(cell) for cell in _cells(line)]
            if len(values) == len(header):
                y[record] = values.pop(position)
                x[record] = values
    columns = tuple(header[:position] + header[position + 1 :])
    return columns, x, encode_labels(y), None, None


def _cells(line: bytes) -> list[str]:
    text = line.decode("utf-8", "replace").rstrip("\r\n")
    try:
        return next(csv.reader([text]), [])
    except csv.Error:
        return []


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return np.nan


def _read_npz(path: pathlib.Path, label: str | None):
    label = "y" if label is None else label
    arrays = {}
    try:
        # Opened here, because numpy leaves a damaged archive's file open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            for name in {"x", label, "test_x", f"test_{label}"} & set(archive.files):
                arrays[name] = archive[name]
            names = archive.files
    except DAMAGED as error:
        raise ValueError(f"{str(path)!r} is not an archive of plain arrays: {error}.") from None
    for name, role in (("x", "the features"), (label, "the labels (label=... names another)")):
        if name not in arrays:
            raise ValueError(f"{str(path)!r} lacks {name!r}, {role}; it has {_few(names)}.")
    if ("test_x" in arrays) != (f"test_{label}" in arrays):
        raise ValueError(f"{str(path)!r} must have both 'test_x' and 'test_{label}', or neither.")
    _check_shapes(path, arrays, "x", label)
    x, y = arrays["x"], encode_labels(arrays[label])
    columns = tuple(map(str, range(x.shape[1])))
    if "test_x" not in arrays:
        return columns, x, y, None, None
    _check_shapes(path, arrays, "test_x", f"test_{label}")
    if arrays["test_x"].shape[1] != x.shape[1]:
        raise ValueError(f"'test_x' of {str(path)!r} must have {x.shape[1]} columns, as 'x' has.")
    return columns, x, y, arrays["test_x"], encode_labels(arrays[f"test_{label}"])


def _check_shapes(path: pathlib.Path, arrays: Mapping[str, np.ndarray], features: str, label: str):
    x, y = arrays[features], arrays[label]
    if x.ndim != 2 or y.shape != x.shape[:1]:
        axes = (x.ndim, y.ndim)
        # Without n, which is private where records are added or removed.
        found = "two lengths" if axes == (2, 1) else f"{axes[0]} and {axes[1]} axes"
        raise ValueError(
            f"{features!r} of {str(path)!r} must be (n, p) and {label!r} (n,), got {found}."
        )
    for name, array in ((features, x), (label, y)):
        if array.dtype.kind not in "biuf":
            raise ValueError(f"{name!r} of {str(path)!r} must be numbers, got {array.dtype}.")


def _unique(where: str, names: Sequence[str]):
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise ValueError(f"{where} names {_few(twice)} twice: rename one.")


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:8]))
    return shown + (f", ... ({len(names)} in all)" if len(names) > 8 else "")
