"""Reader for raw tables: files or columns in memory; features as numbers, labels as cells."""

import os
import pathlib
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dpjax import _validate
from dpjax._streaming import Rows
from dpjax.datasets import columnar
from dpjax.datasets.archives import DAMAGED
from dpjax.datasets.cells import cells_of, check_numbers, kind_of, stated, to_numbers
from dpjax.datasets.csv_files import CsvFile, few

SUFFIXES = (".csv", ".npz", *columnar.OPENED)

# Names of the arrays of an NPZ: features, labels, features and labels for testing.
_NPZ_NAMES = (
    ("x", "y", "test_x", "test_y"),
    ("X", "y", "X_test", "y_test"),
    ("X_train", "y_train", "X_test", "y_test"),
    ("x_train", "y_train", "x_test", "y_test"),
)


class Raw(NamedTuple):
    """A table before any scaling and mapping.

    Args:
      columns: the p feature names.
      x: (n, p) real numbers, NaN for a cell that is not a number; ``Rows`` if they stay on disk.
      labels: (n,) cells of any dtype, None for a missing cell; or None if no label is read.
        ``Rows`` where ``x`` is.
      test_x: (m, p) real numbers, or None.
      test_labels: (m,) cells, or None.
      label: the name of the labels in an NPZ.

    Privacy: raw data.
    """

    columns: tuple[str, ...]
    x: Any
    labels: Any = None
    test_x: np.ndarray | None = None
    test_labels: np.ndarray | None = None
    label: str = "y"


def is_table_path(table: Any) -> bool:
    """Returns whether ``table`` is the path of a CSV, NPZ, NPY or Parquet file.

    >>> is_table_path("patients.CSV"), is_table_path("randhie")
    (True, False)
    """
    return isinstance(table, str | os.PathLike) and os.fspath(table).lower().endswith(SUFFIXES)


def has_columns(table: Any) -> bool:
    """Returns whether ``table`` has named columns: a data frame, mapping or structured array.

    >>> has_columns({"age": [30, 60]}), has_columns(np.zeros((2, 1)))
    (True, False)
    """
    return column_keys(table) is not None


def read_labelled(
    table: Any, label: str | None, memory_limit: int | None = None, unit: str | None = None
) -> Raw:
    """Returns a table with its labels.

    Args:
      table: a path ending as in ``SUFFIXES``, or named columns.
      label: the label's column; of an NPZ the label's array, by default ``y`` or ``y_train``.
      memory_limit: bytes of features, in float32, above which a file's rows stay on disk; None for
        any number.
      unit: a column that is no feature, or None.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: if the table is not valid as a whole. A strange *record* raises nothing.

    Privacy: errors depend on the header, the shapes and the dtypes of arrays only, which are taken
      as public.
    """
    if not is_table_path(table):
        names = column_keys(table)
        assert names is not None
        wanted, name = _features("the table", list(names), label, unit)
        x = np.stack([_numbers(c, table[names[c]]) for c in wanted], axis=1) if wanted else None
        return Raw(
            tuple(wanted), np.empty((0, 0)) if x is None else x, cells_of(table[names[name]])
        )
    path = existing(table)
    suffix = path.suffix.lower()
    if suffix in columnar.OPENED:
        return _read_columns(path, label, memory_limit, unit)
    if suffix == ".npz":
        return read_archive(path, label, memory_limit)
    check_size(path, memory_limit)
    file = CsvFile(path)
    wanted, name = _features(file.where, list(file.names), label, unit)
    return Raw(tuple(wanted), *_read_csv(file, wanted, name))


def existing(table: Any) -> pathlib.Path:
    """Returns the path of a table.

    Raises:
      FileNotFoundError: if there is no such file.
    """
    path = pathlib.Path(table)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {str(path)!r}.")
    return path


def check_size(path: pathlib.Path, memory_limit: int | None) -> None:
    """Raises if a CSV, which is read as a whole, exceeds ``memory_limit``."""
    size = path.stat().st_size
    if memory_limit is not None and size > memory_limit:
        raise ValueError(
            f"{str(path)!r} has {size:,} bytes, above memory_limit={memory_limit:,}, and a CSV is "
            "read as a whole: save it as Parquet or NPY, whose rows can stay on disk."
        )


def _features(
    where: str, header: list[str], label: str | None, unit: str | None
) -> tuple[list[str], str]:
    if label is None:
        raise ValueError(
            f"label must name the label's column of {where}, got None: choose from {few(header)}; "
            "or declare each column in a schema, which `dpjax data FILE --template` begins."
        )
    _validate.choice("label", label, header)
    return [name for name in header if name not in (label, unit)], label


def check_present(where: str, columns: Sequence[str], header: Sequence[str]) -> None:
    """Raises if a table lacks a column that a model was trained on."""
    if missing := [name for name in columns if name not in header]:
        raise ValueError(
            f"{where} lacks {few(missing)}, which the model was trained on; it has {few(header)}."
        )


# Columns in memory


def column_keys(table: Any) -> dict[str, Any] | None:
    """Returns the column names as text, each with its key in the table; or None.

    >>> column_keys({"age": [30], 2: [1]}), column_keys([1.0])
    ({'age': 'age', '2': 2}, None)
    """
    if isinstance(table, Mapping):
        names: Any = list(table)
    elif isinstance(table, np.ndarray):
        names = table.dtype.names
    else:
        names = getattr(table, "column_names", getattr(table, "columns", None))
    return None if names is None else {str(name): name for name in names}


def _numbers(name: str, column: Any) -> np.ndarray:
    check_numbers(name, kind_of(column), stated(column))
    return to_numbers(cells_of(column))


# Files


def _read_csv(file: CsvFile, wanted: Sequence[str], label: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the wanted columns as numbers (n, p), and the label's cells."""
    x, labels = np.full((file.size, len(wanted)), np.nan), np.full(file.size, None, object)
    start = 0
    for *columns, cells in file.blocks([*wanted, label], wanted):
        stop = start + len(cells)
        for place, column in enumerate(columns):
            x[start:stop, place] = column
        labels[start:stop] = cells
        start = stop
    return x, labels


# Files whose rows may stay on disk


def _read_columns(
    path: pathlib.Path, label: str | None, memory_limit: int | None, unit: str | None
) -> Raw:
    held = columnar.OPENED[path.suffix.lower()](path)
    wanted, name = _features(held.where, list(held.names), label, unit)
    if not wanted:
        return Raw((), np.empty((0, 0)))
    x, cells = held.rows(wanted), held.cells(name)
    if memory_limit is not None and 4 * x.shape[0] * x.shape[1] > memory_limit:
        return Raw(tuple(wanted), x, cells)
    return Raw(tuple(wanted), np.asarray(x), np.asarray(cells))


def _read_mapped(path: pathlib.Path, label: str | None) -> Raw:
    try:
        with zipfile.ZipFile(path) as archive:
            held = [name.removesuffix(".npy") for name in archive.namelist()]
        features, labels, *_ = _npz_names(held, label)
        arrays: dict[str, Any] = {
            name: columnar.mapped_member(path, name) for name in {features, labels} & {*held}
        }
    except DAMAGED as error:
        raise ValueError(f"{str(path)!r} is not an archive of plain arrays: {error}.") from None
    _check_held(path, held, features, labels)
    for name, array in arrays.items():
        if array is None:
            raise ValueError(
                f"{name!r} of {str(path)!r} is compressed, so it is read as a whole, which is "
                "above memory_limit: save it by numpy.savez, or as NPY or Parquet."
            )
    _check_shapes(path, arrays, features, labels)
    columns = tuple(map(str, range(arrays[features].shape[1])))
    return Raw(columns, Rows(arrays[features]), Rows(arrays[labels]), label=labels)


# NPZ


def read_archive(
    path: pathlib.Path,
    label: str | None,
    memory_limit: int | None = None,
    labelled: bool = True,
) -> Raw:
    """Returns the arrays of an NPZ, see ``read_labelled``; or its features alone."""
    if memory_limit is not None and path.stat().st_size > memory_limit:
        return _read_mapped(path, label)
    try:
        # Opened here, because numpy leaves a damaged archive's file open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            held = archive.files
            names = _npz_names(held, label)
            arrays = {name: archive[name] for name in {*names} & {*held}}
    except DAMAGED as error:
        raise ValueError(f"{str(path)!r} is not an archive of plain arrays: {error}.") from None
    features, label, test_features, test_label = names
    _check_held(path, held, *names[: 1 + labelled])
    x = arrays[features]
    columns = tuple(map(str, range(x.shape[1] if x.ndim == 2 else 0)))
    if not labelled:
        return Raw(columns, x)
    if (test_features in arrays) != (test_label in arrays):
        raise ValueError(
            f"{str(path)!r} must have both {test_features!r} and {test_label!r}, or neither."
        )
    _check_shapes(path, arrays, features, label)
    if test_features not in arrays:
        return Raw(columns, x, arrays[label], label=label)
    _check_shapes(path, arrays, test_features, test_label)
    if arrays[test_features].shape[1] != x.shape[1]:
        raise ValueError(
            f"{test_features!r} of {str(path)!r} must have {x.shape[1]} columns, as {features!r} "
            "has."
        )
    return Raw(columns, x, arrays[label], arrays[test_features], arrays[test_label], label)


def _check_held(path: pathlib.Path, held: Sequence[str], *names: str) -> None:
    roles = ("the features", "the labels (label=... names another)")
    for name, role in zip(names, roles, strict=False):
        if name not in held:
            raise ValueError(f"{str(path)!r} lacks {name!r}, {role}; it has {few(held)}.")


def _npz_names(held: Sequence[str], label: str | None) -> tuple[str, str, str, str]:
    features, usual, test_features, test_label = next(
        (names for names in _NPZ_NAMES if names[0] in held), _NPZ_NAMES[0]
    )
    if label is None or label == usual:
        return features, usual, test_features, test_label
    return features, label, test_features, f"test_{label}"


def _check_shapes(path: pathlib.Path, arrays: Mapping[str, np.ndarray], features: str, label: str):
    x, y = arrays[features], arrays[label]
    if x.ndim != 2 or y.shape != x.shape[:1]:
        axes = (x.ndim, y.ndim)
        # Without n, which is private where records are added or removed.
        held = "two lengths" if axes == (2, 1) else f"{axes[0]} and {axes[1]} axes"
        raise ValueError(
            f"{features!r} of {str(path)!r} must be (n, p) and {label!r} (n,), got {held}."
        )
    if x.dtype.kind not in "biuf":
        raise ValueError(f"{features!r} of {str(path)!r} must be numbers, got {x.dtype}.")
