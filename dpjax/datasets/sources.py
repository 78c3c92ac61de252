"""Opens a table as a ``Source``: a CSV or another file, a data frame, columns, or an array."""

import csv
import functools
import itertools
import math
import os
import pathlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dpjax.datasets import columnar
from dpjax.datasets.cells import Kind, cells_of, kind_of, stated
from dpjax.datasets.columnar import Matrix, open_archive, read_features
from dpjax.datasets.source import ROWS_AT_ONCE, OpenTable, Source, check_unique, few, stacked

SUFFIXES = (".csv", ".npz", *columnar.OPENED)
SEPARATORS = (",", ";", "\t", "|")
# With it spreadsheets begin a file in UTF-8.
_MARK = b"\xef\xbb\xbf"


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


class CsvFile(Source):
    """A CSV file: a header, then its records.

    The header tells which of ``SEPARATORS`` stands between cells: the one by which it has most. In
    a file with semicolons ``3,5`` is a number as ``3.5`` is. A line ends at a line feed.

    Args:
      quoted_line_breaks: whether records are as RFC 4180 parses them, by which a cell in quotes may
        hold line breaks, and a quote that is never closed holds all lines after it. Without it
        each line is a record, whatever it holds.

    Raises:
      ValueError: if the header is empty, is not UTF-8, leaves a quote open, or names a column
        twice.
    """

    def __init__(self, path: pathlib.Path, quoted_line_breaks: bool | None = False):
        self._path, self.where, self._parsed = path, repr(str(path)), quoted_line_breaks
        with path.open("rb") as file:  # by its first line alone, which is no record's
            line = file.readline().removeprefix(_MARK)
        self.separator = max(SEPARATORS, key=lambda mark: len(_cells(line, mark)))
        first = next(self._lines(self.separator), b"")
        if not first.strip():
            raise ValueError(
                f"{self.where} begins with an empty line, or is empty: the first line must name "
                "the columns."
            )
        try:
            first.decode("utf-8")
        except UnicodeDecodeError:
            raise ValueError(
                f"the header of {self.where} is not UTF-8: save the file as UTF-8 (spreadsheets "
                "call it CSV UTF-8). It may be Latin-1, Windows-1252 or UTF-16 now."
            ) from None
        if _open_quote(self.separator).fullmatch(first):
            raise ValueError(
                f"the header of {self.where} leaves a quote open: close it, or, where the name of "
                "a column holds a line break, declare quoted_line_breaks = true in a schema."
            )
        self.names = tuple(cell.strip() for cell in _cells(first, self.separator))
        check_unique(f"the header of {self.where}", self.names)
        self.kinds = dict.fromkeys(self.names, Kind.MIXED)
        self.stated = dict.fromkeys(self.names, "")
        # By reading it all: lines in quotes are no records.
        self.size = sum(1 for _ in self._records())

    def blocks(
        self, wanted: Sequence[str], numeric: Collection[str] = (), together: Sequence[str] = ()
    ) -> Iterator[list[np.ndarray]]:
        """Yields blocks of rows: one array of cells for each wanted column, see ``Source.blocks``.

        A line with another number of cells than the header has is empty in every column.

        Numeric columns are float64, NaN for what is not a number; others are text without white
        space around it. Columns ``together`` come first, in one array.
        """
        columns = [(self.names.index(name), True) for name in together]
        columns += [(self.names.index(name), name in numeric) for name in wanted]
        number = _comma_number if self.separator == ";" else _number
        same: dict[str, str] = {}  # one string for each word, not one for each record
        empty = [""] * len(self.names)
        records = self._records()
        while lines := list(itertools.islice(records, ROWS_AT_ONCE)):
            rows = [_cells(line, self.separator) for line in lines]
            # With other numbers of cells nobody knows which column a cell belongs to.
            rows = [row if len(row) == len(empty) else empty for row in rows]
            block = []
            for place, as_number in columns:
                cells = (row[place] for row in rows)
                if as_number:
                    block.append(np.fromiter(map(number, cells), np.float64, len(rows)))
                else:
                    words = (same.setdefault(word, word) for word in map(str.strip, cells))
                    block.append(np.fromiter(words, object, len(rows)))
            first = [stacked(block[: len(together)])] if together else []
            yield first + block[len(together) :]

    def exact_problems(self) -> list[str]:
        """NOT PRIVATE: returns what is wrong with the quotes of the file, if anything is."""
        opened = _open_quote(self.separator)
        count = sum(b'"' in line and bool(opened.fullmatch(line)) for line in self._records())
        said = (
            "leave a quote open. Where cells in quotes hold line breaks, one record is read as "
            "several: declare quoted_line_breaks = true in the schema. Otherwise close the quotes."
        )
        if self._parsed:
            said = "leave a quote open, up to the end of the file: close it."
        return [f"{count} records of {self.where} {said}"] if count else []

    def _records(self) -> Iterator[bytes]:
        lines = self._lines(self.separator)
        next(lines, None)
        # Of cells between tabs a line without any value is a record, not a blank line.
        tabs = self.separator == "\t"
        yield from (line for line in lines if line.strip() or (tabs and b"\t" in line))

    def _lines(self, separator: str) -> Iterator[bytes]:
        """Yields the header and the records, blank lines too."""
        # Undeclared, a stray quote in one record would swallow the records after it. Binary mode
        # splits at \n alone.
        opened, held = _open_quote(separator), []
        with self._path.open("rb") as file:
            if file.read(len(_MARK)) != _MARK:
                file.seek(0)
            for line in file:
                if self._parsed:
                    held.append(line)
                    # After b'"x' a line goes on in quotes, and one at its start closes them.
                    within = len(held) > 1
                    if b'"' in line:
                        within = bool(opened.fullmatch(b'"x' * within + line))
                    if within:
                        continue
                    line, held = b"".join(held), []
                yield line
            if held:
                yield b"".join(held)


@functools.cache
def _open_quote(separator: str) -> re.Pattern[bytes]:
    """Matches a line that leaves a quote open: cells, as ``csv`` reads them, and one in quotes."""
    # Possessive: no line, however it is written, may take quadratic time.
    mark, quoted = re.escape(separator).encode(), rb'"[^"]*+(?:""[^"]*+)*+'
    cell = rb'(?:%b"(?!")|(?!"))[^%b]*+' % (quoted, mark)
    return re.compile(rb"(?:%b%b)*+%b" % (cell, mark, quoted))


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan


def _comma_number(cell: str) -> float:
    # 1.234,5 and 1,234,5 stay no numbers: which mark is the decimal one is not certain.
    if "," in cell and "." not in cell and cell.count(",") == 1:
        cell = cell.replace(",", ".")
    return _number(cell)


def _cells(line: bytes, separator: str) -> list[str]:
    text = line.decode("utf-8", "surrogateescape").rstrip("\r\n")  # keeps cells distinct
    try:
        return next(csv.reader([text], delimiter=separator), [])
    # Such as a cell above csv's limit: an error would tell of the record.
    except csv.Error:
        return []


def open_source(
    table: Any,
    label: str | None = None,
    memory_limit: int | None = None,
    width: int | None = None,
    quoted_line_breaks: bool | None = False,
) -> OpenTable:
    """Returns the columns of a table.

    Args:
      table: a file, a data frame or a mapping of columns, see ``load``.
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
