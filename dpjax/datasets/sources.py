"""Opens a table as a ``Source``: a file, a data frame, a mapping of columns, or an array."""

import os
import pathlib
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from dpjax import _validate
from dpjax._streaming import Rows
from dpjax.datasets import columnar
from dpjax.datasets.cells import cells_of, check_names, kind_of, stated
from dpjax.datasets.columnar import Matrix
from dpjax.datasets.csv_files import CsvFile, few
from dpjax.datasets.raw import (
    SUFFIXES,
    check_present,
    check_size,
    column_keys,
    existing,
    is_table_path,
    read_archive,
)
from dpjax.datasets.source import Source


class Frame(Source):
    """A data frame or a mapping of columns.

    Args:
      table: with named columns.
      keys: the key of each column by its name, see ``column_keys``.

    Raises:
      ValueError: if it has no column.
    """

    def __init__(self, table: Any, keys: dict[str, Any]):
        self.where, self._table, self._keys = "the table", table, keys
        if not keys:
            raise ValueError("the table has no column.")
        self.names = tuple(keys)
        self.kinds = {name: kind_of(table[key]) for name, key in keys.items()}
        self.stated = {name: stated(table[key]) for name, key in keys.items()}
        self.size = len(table[keys[self.names[0]]])
        self._held: dict[str, np.ndarray] = {}

    def at(
        self, index: slice | np.ndarray, wanted: Sequence[str], numeric: Collection[str] = ()
    ) -> list[np.ndarray]:
        """Returns the cells of some rows, see ``Source.at``."""
        del numeric
        return [self._cells(name)[index] for name in wanted]

    def _cells(self, name: str) -> np.ndarray:
        if name not in self._held:
            cells = cells_of(self._table[self._keys[name]])
            if len(cells) != self.size:
                raise ValueError("all columns of the table must have the same number of cells.")
            self._held[name] = cells
        return self._held[name]


class Opened(NamedTuple):
    """A table, and the held-out records that an NPZ may have beside it.

    Args:
      source: the table.
      test: held-out records, or None.
      on_disk: whether its rows are to stay there.
      label: the column that is known to hold the labels, or None.
    """

    source: Source
    test: Source | None = None
    on_disk: bool = False
    label: str | None = None


def open_source(
    table: Any,
    label: str | None = None,
    memory_limit: int | None = None,
    width: int = 0,
    quoted_line_breaks: bool | None = False,
) -> Opened:
    """Returns the columns of a table.

    Args:
      table: the path of a CSV, NPZ, NPY or Parquet file, a data frame or a mapping of columns.
      label: the array of labels of an NPZ.
      memory_limit: bytes of features, in float32, above which a file's rows stay on disk.
      width: number of features, of which ``memory_limit`` is a limit.
      quoted_line_breaks: see ``CsvFile``.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: if it is no table, or one that is read as a whole and exceeds the limit.

    >>> open_source({"age": [30, None]}).source.names
    ('age',)
    """
    if not is_table_path(table):
        keys = column_keys(table)
        if keys is None:
            raise ValueError(
                "a table must be a path, a data frame, or a mapping of columns; arrays go into "
                f"Dataset(x, y). A table's path must end in {few(SUFFIXES)}."
            )
        return Opened(Frame(table, keys))
    path = existing(table)
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return _open_archive(path, label, memory_limit)
    if suffix in columnar.OPENED:
        source = columnar.OPENED[suffix](path)
        exceeds = memory_limit is not None and 4 * source.size * width > memory_limit
        return Opened(source, on_disk=exceeds)
    check_size(path, memory_limit)
    return Opened(CsvFile(path, quoted_line_breaks))


def exact_problems(table: Any, quoted_line_breaks: bool | None = False) -> list[str]:
    """NOT PRIVATE: returns what is wrong with the quotes of a table, if it is a CSV."""
    if not (is_table_path(table) and str(table).lower().endswith(".csv")):
        return []
    return CsvFile(existing(table), quoted_line_breaks).exact_problems()


def read_names(table: Any, column: str, unit_type: str | None) -> np.ndarray:
    """Returns the cells (n,) of the column of a CSV, Parquet file or frame that names units.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: if there is no such column, it cannot name units, or columns have no names.

    Privacy: raw data.

    >>> read_names({"who": ["ann", "bob"]}, "who", None).tolist()
    ['ann', 'bob']
    """
    if is_table_path(table) and str(table).lower().endswith((".npz", ".npy")):
        raise ValueError(
            f"unit names a column, and those of {str(table)!r} have no names: save the table as "
            "CSV or Parquet, or group its arrays by dpjax.datasets.group."
        )
    source = open_source(table).source
    wanted = [_validate.choice("unit", column, source.names)]
    said = f"the unit {column!r} of {source.where}"
    check_names(said, source.kinds[column], source.stated[column], unit_type)
    blocks = [block[0] for block in source.blocks(wanted)]
    return np.concatenate(blocks) if blocks else np.empty(0, object)


def open_features(table: Any, columns: Sequence[str]) -> Source:
    """Returns the columns of a table that may have no labels; a CSV's as RFC 4180 parses them.

    Args:
      table: as for ``open_source``; or an array (n, p) in the order of the columns.
      columns: the names of those that are needed.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: if a column is missing, or an array has another shape.

    >>> open_features(np.zeros((2, 1)), ["age"]).names
    ('age',)
    """
    if is_table_path(table) and str(table).lower().endswith(".npz"):
        table = read_archive(existing(table), None, labelled=False).x
        if table.ndim == 2 and {*columns} <= {*map(str, range(table.shape[1]))}:
            return Matrix("the array", table)
    elif isinstance(table, str | os.PathLike) or column_keys(table) is not None:
        # Predictions protect nobody, and stand beside the records as other programs read them.
        source = open_source(table, quoted_line_breaks=True).source
        check_present(source.where, columns, source.names)
        return source
    array = np.asarray(table)
    if array.ndim != 2 or array.shape[1] != len(columns):
        raise ValueError(
            f"features must be an array (n, {len(columns)}), one column for each of "
            f"{few(columns)}, in their own units; got "
            f"{array.ndim} axes{f' of {array.shape[1]} columns' if array.ndim == 2 else ''}. Pass "
            "rows that are already scaled as the Dataset that load returned."
        )
    return Matrix("the array", array, columns)


def _open_archive(path: pathlib.Path, label: str | None, memory_limit: int | None) -> Opened:
    raw = read_archive(path, label, memory_limit)
    where = repr(str(path))
    source = Matrix(where, raw.x, beside={raw.label: raw.labels})
    test = None
    if raw.test_x is not None:
        test = Matrix(where, raw.test_x, beside={raw.label: raw.test_labels})
    return Opened(source, test, isinstance(raw.x, Rows), raw.label)
