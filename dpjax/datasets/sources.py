"""Opens a table as a ``Source``: a CSV or another file, a data frame, columns, or an array."""

import os
import pathlib
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpjax import _validate
from dpjax.datasets import columnar, delimited
from dpjax.datasets.cells import cells_of, kind_of, stated
from dpjax.datasets.source import NO_FORMS, Forms, OpenTable, Source, check_unique, existing, few

SUFFIXES = (*delimited.SUFFIXES, ".xlsx", ".npz", *columnar.OPENED)


def is_table_path(table: Any) -> bool:
    """Returns whether ``table`` is the path of a file of a kind that is read, see ``SUFFIXES``."""
    return isinstance(table, str | os.PathLike) and os.fspath(table).lower().endswith(SUFFIXES)


def is_table(table: Any) -> bool:
    """Returns whether ``table`` is such a path, or has named columns, see ``column_keys``."""
    return is_table_path(table) or column_keys(table) is not None


def column_keys(table: Any) -> dict[str, Any] | None:
    """Returns the column names as text, each with its key in a frame, mapping or array; or None."""
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
        self, index: slice | np.ndarray, wanted: Sequence[str], numeric: Forms = NO_FORMS
    ) -> list[np.ndarray]:
        for name in [name for name in wanted if name not in self._held]:
            cells = cells_of(self._table[self._keys[name]])
            if len(cells) != self.size:
                raise ValueError("all columns of the table must have the same number of cells.")
            # Converted once, of which blocks are slices.
            self._held[name] = cells
        return [self._held[name][index] for name in wanted]


class ExcelFile(Frame):
    """The first sheet of a workbook of Excel: a header, then its records.

    A number, a date or text stays what its cell holds, and of a formula what Excel computed last.
    """

    def __init__(self, path: pathlib.Path):
        try:
            import openpyxl
        except ImportError:
            needed = _validate.install("reading .xlsx", "openpyxl")
            raise ImportError(f"{needed}; or save the sheet as CSV UTF-8.") from None
        where = repr(str(path))
        # A warning of a cell that is no date, say, would tell that such a record is there.
        with warnings.catch_warnings(action="ignore"):
            try:
                book = openpyxl.load_workbook(path, read_only=True, data_only=True)
                sheet = book.worksheets[0]
                sheet.reset_dimensions()  # some programs write wrong ones
                header, *rows = [*sheet.iter_rows(values_only=True)] or [()]
                book.close()
            except (zipfile.BadZipFile, KeyError, IndexError, ValueError, SyntaxError) as error:
                raise ValueError(f"{where} is no workbook of Excel: {error}.") from None
        names = ["" if name is None else str(name).strip() for name in header]
        while names and not names[-1]:  # cells that are formatted, but empty
            names.pop()
        if not any(names):
            raise ValueError(
                f"the first sheet of {where} begins with an empty row, or is empty: the first row "
                "must name the columns."
            )
        check_unique(f"the header of {where}", names)
        # Rows end with their last cell that holds something.
        kept = [(*row, *(None,) * len(names)) for row in rows if any(c is not None for c in row)]
        columns = {
            name: np.fromiter((row[place] for row in kept), object, len(kept))
            for place, name in enumerate(names)
        }
        super().__init__(columns, {name: name for name in names})
        self.where = where


def open_source(
    table: Any,
    label: str | None = None,
    memory_limit: int | None = None,
    width: int | None = None,
    quoted_line_breaks: bool | None = False,
    separator: str | None = None,
) -> OpenTable:
    """Returns the columns of a table: a file, a data frame or a mapping of columns, see ``load``.

    ``label`` is the array of labels of an NPZ, ``width`` the number of features, which
    ``memory_limit`` is about, None for all columns but one; the rest are of ``CsvFile``. A table
    that is read as a whole and exceeds the limit raises, which tells that its size is above it, as
    the shapes of arrays are told.
    """
    if not is_table_path(table):
        keys = column_keys(table)
        if keys is None:
            got = f", got {str(table)!r}" if isinstance(table, str | os.PathLike) else ""
            raise ValueError(
                "a table must be a path, a data frame, or a mapping of columns; arrays go into "
                f"Dataset(x, y). A table's path must end in {', '.join(SUFFIXES)}{got}."
            )
        return OpenTable(Frame(table, keys))
    path = existing(table)
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return columnar.open_archive(path, label, memory_limit)
    if suffix in columnar.OPENED:
        source = columnar.OPENED[suffix](path)
        # One column is the label.
        columns = len(source.names) - 1 if width is None else width
        exceeds = memory_limit is not None and 4 * source.size * columns > memory_limit
        return OpenTable(source, on_disk=exceeds)
    # The file's size stands for that of the features, which only reading it all would tell.
    if memory_limit is not None and path.stat().st_size > memory_limit:
        # Without the size, which would tell n to a few records.
        kind = "workbook" if suffix == ".xlsx" else "CSV"
        raise ValueError(
            f"{str(path)!r} is above memory_limit={memory_limit:,}, and a {kind} is read as a "
            "whole: save it as Parquet or NPY, whose rows can stay on disk."
        )
    if suffix == ".xlsx":
        return OpenTable(ExcelFile(path))
    return OpenTable(delimited.CsvFile(path, quoted_line_breaks, separator))


def open_features(table: Any, columns: Sequence[str]) -> Source:
    """Returns columns of a table, a CSV's as by RFC 4180, or of an array (n, p) in their order."""
    if is_table_path(table) and str(table).lower().endswith(".npz"):
        table = columnar.read_features(existing(table))
        # A model of numbered columns finds its own among those, even where it ignores some.
        if table.ndim == 2 and {*columns} <= {*map(str, range(table.shape[1]))}:
            return columnar.Matrix("the array", table)
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
    return columnar.Matrix("the array", array, columns)
