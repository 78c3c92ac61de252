"""Opens a table as a ``Source``: a file, a data frame, a mapping of columns, or an array."""

import os
import pathlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from dpjax.datasets import columnar
from dpjax.datasets.cells import cells_of, kind_of, stated
from dpjax.datasets.columnar import Matrix
from dpjax.datasets.csv_files import CsvFile, check_unique, few
from dpjax.datasets.npz_files import open_archive, read_features
from dpjax.datasets.source import OpenTable, Source

SUFFIXES = (".csv", ".npz", *columnar.OPENED)


def is_table_path(table: Any) -> bool:
    """Returns whether ``table`` is the path of a CSV, NPZ, NPY or Parquet file."""
    return isinstance(table, str | os.PathLike) and os.fspath(table).lower().endswith(SUFFIXES)


def has_columns(table: Any) -> bool:
    """Returns whether ``table`` has named columns: a data frame, mapping or structured array."""
    return column_keys(table) is not None


def column_keys(table: Any) -> dict[str, Any] | None:
    """Returns the column names as text, each with its key in the table; or None."""
    if isinstance(table, Mapping):
        names: Any = list(table)
    elif isinstance(table, np.ndarray):
        names = table.dtype.names
    else:
        # Of pyarrow ``columns`` are the cells.
        names = getattr(table, "column_names", getattr(table, "columns", None))
    if names is None:
        return None
    # Two keys such as 1 and "1" would be one name.
    check_unique("the table", [*map(str, names)])
    return {str(name): name for name in names}


def existing(table: Any) -> pathlib.Path:
    """Returns the path of a table."""
    path = pathlib.Path(table)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {str(path)!r}.")
    return path


class Frame(Source):
    """A data frame or a mapping of columns."""

    def __init__(self, table: Any, keys: dict[str, Any]):
        self.where, self._table, self._keys = "the table", table, keys
        if not keys:
            raise ValueError("the table has no column.")
        self.names = tuple(keys)
        self.kinds = {name: kind_of(table[key]) for name, key in keys.items()}
        self.stated = {name: stated(table[key]) for name, key in keys.items()}
        # The lengths of the other columns are compared when those are read.
        self.size = len(table[keys[self.names[0]]])
        self._held: dict[str, np.ndarray] = {}

    def at(
        self, index: slice | np.ndarray, wanted: Sequence[str], numeric: Collection[str] = ()
    ) -> list[np.ndarray]:
        return [self._cells(name)[index] for name in wanted]

    def _cells(self, name: str) -> np.ndarray:
        if name not in self._held:
            cells = cells_of(self._table[self._keys[name]])
            if len(cells) != self.size:
                raise ValueError("all columns of the table must have the same number of cells.")
            # Converted once, of which blocks are slices.
            self._held[name] = cells
        return self._held[name]


def open_source(
    table: Any,
    label: str | None = None,
    memory_limit: int | None = None,
    width: int | None = None,
    quoted_line_breaks: bool | None = False,
) -> OpenTable:
    """Returns the columns of a table.

    Args:
      table: the path of a CSV, NPZ, NPY or Parquet file, a data frame or a mapping of columns.
      label: the array of labels of an NPZ.
      memory_limit: bytes of features, in float32, above which a file's rows stay on disk.
      width: number of features, of which ``memory_limit`` is a limit; None for all columns but one.
      quoted_line_breaks: see ``CsvFile``.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: if it is no table, or one that is read as a whole and exceeds the limit, which
        tells that its size is above it, as the shapes of arrays are told.
    """
    if not is_table_path(table):
        keys = column_keys(table)
        if keys is None:
            raise ValueError(
                "a table must be a path, a data frame, or a mapping of columns; arrays go into "
                f"Dataset(x, y). A table's path must end in {few(SUFFIXES)}."
            )
        return OpenTable(Frame(table, keys))
    path = existing(table)
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return open_archive(path, label, memory_limit)
    if suffix in columnar.OPENED:
        source = columnar.OPENED[suffix](path)
        # One column is the label.
        columns = len(source.names) - 1 if width is None else width
        exceeds = memory_limit is not None and 4 * source.size * columns > memory_limit
        return OpenTable(source, on_disk=exceeds)
    # The file's size stands for that of the features, which only reading it all would tell.
    if memory_limit is not None and path.stat().st_size > memory_limit:
        # Without the size, which would tell n to a few records.
        raise ValueError(
            f"{str(path)!r} is above memory_limit={memory_limit:,}, and a CSV is read as a whole: "
            "save it as Parquet or NPY, whose rows can stay on disk."
        )
    return OpenTable(CsvFile(path, quoted_line_breaks))


def open_features(table: Any, columns: Sequence[str]) -> Source:
    """Returns the columns of a table that may have no labels; a CSV's as RFC 4180 parses them.

    The table is as for ``open_source``, or an array (n, p) in the order of the columns.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: if a column is missing, or an array has another shape.
    """
    if is_table_path(table) and str(table).lower().endswith(".npz"):
        table = read_features(existing(table))
        # A model of numbered columns finds its own among those, even where it ignores some.
        if table.ndim == 2 and {*columns} <= {*map(str, range(table.shape[1]))}:
            return Matrix("the array", table)
    elif isinstance(table, str | os.PathLike) or column_keys(table) is not None:
        # Predictions protect nobody, and stand beside the records as other programs read them.
        source = open_source(table, quoted_line_breaks=True).source
        if missing := [name for name in columns if name not in source.names]:
            raise ValueError(
                f"{source.where} lacks {few(missing)}, which the model was trained on; it has "
                f"{few(source.names)}."
            )
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
