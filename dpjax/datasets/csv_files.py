"""Reader for CSV files, in which a line is a record unless line breaks in quotes are declared."""

import csv
import functools
import itertools
import math
import pathlib
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np

from dpjax.datasets.cells import Kind
from dpjax.datasets.source import ROWS_AT_ONCE, Source, stacked

SEPARATORS = (",", ";", "\t", "|")
# With it spreadsheets begin a file in UTF-8.
_MARK = b"\xef\xbb\xbf"


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


def few(names: Sequence[Any], show: Callable[[Any], str] = repr) -> str:
    """Returns the first few names as text for an error message."""
    shown = ", ".join(map(show, names[:8]))
    return shown + (f", ... ({len(names)} in all)" if len(names) > 8 else "")


def check_unique(where: str, names: Sequence[str]) -> None:
    """Raises if a name occurs twice."""
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise ValueError(f"{where} names {few(twice)} twice: rename one.")
