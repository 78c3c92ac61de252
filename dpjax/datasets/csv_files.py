"""Reader for CSV files in which each line is one record, whatever its content."""

import csv
import math
import pathlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np

from dpjax.datasets.cells import Kind
from dpjax.datasets.source import ROWS_AT_ONCE, Source

SEPARATORS = (",", ";", "\t", "|")


class CsvFile(Source):
    """A CSV file: a header, then one record a line.

    The header tells which of ``SEPARATORS`` stands between cells: the one by which it has most. In
    a file with semicolons ``3,5`` is a number as ``3.5`` is.

    Args:
      path: of the file, in UTF-8.

    Raises:
      ValueError: if the header is empty, is not UTF-8, or names a column twice.
    """

    def __init__(self, path: pathlib.Path):
        self._path, self.where = path, repr(str(path))
        with path.open("rb") as file:
            first = file.readline().removeprefix(b"\xef\xbb\xbf")
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
        self.separator = max(SEPARATORS, key=lambda mark: len(_cells(first, mark)))
        self.names = tuple(cell.strip() for cell in _cells(first, self.separator))
        check_unique(f"the header of {self.where}", self.names)
        self.kinds = dict.fromkeys(self.names, Kind.MIXED)
        self.size = sum(1 for _ in self._lines())

    def blocks(
        self, wanted: Sequence[str], numeric: Collection[str] = ()
    ) -> Iterator[list[np.ndarray]]:
        """Yields blocks of rows: one array of cells for each wanted column.

        A line with another number of cells than the header has is empty in every column.

        Args:
          wanted: names of columns.
          numeric: those to be read as float64, NaN for what is not a number; the others are text
            without white space around it.
        """
        columns = [(self.names.index(name), name in numeric) for name in wanted]
        number = _comma_number if self.separator == ";" else _number
        same: dict[str, str] = {}  # one string for each word, not one for each record
        empty = [""] * len(self.names)
        for lines in _batched(self._lines(), ROWS_AT_ONCE):
            rows = [_cells(line, self.separator) for line in lines]
            rows = [row if len(row) == len(empty) else empty for row in rows]
            block = []
            for place, as_number in columns:
                cells = (row[place] for row in rows)
                if as_number:
                    block.append(np.fromiter(map(number, cells), np.float64, len(rows)))
                else:
                    words = (same.setdefault(word, word) for word in map(str.strip, cells))
                    block.append(np.fromiter(words, object, len(rows)))
            yield block

    def _lines(self) -> Iterator[bytes]:
        # Read as a stream, a stray quote in one record would swallow the records after it. Hence
        # also binary mode, which splits at \n alone.
        tabs = self.separator == "\t"
        with self._path.open("rb") as file:
            file.readline()
            # Of cells between tabs a line without any value is a record, not a blank line.
            yield from (line for line in file if line.strip() or (tabs and b"\t" in line))


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan


def _comma_number(cell: str) -> float:
    if "," in cell and "." not in cell and cell.count(",") == 1:
        cell = cell.replace(",", ".")
    return _number(cell)


def _batched(lines: Iterator[bytes], size: int) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    for line in lines:
        batch.append(line)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def _cells(line: bytes, separator: str) -> list[str]:
    text = line.decode("utf-8", "surrogateescape").rstrip("\r\n")  # keeps cells distinct
    try:
        return next(csv.reader([text], delimiter=separator), [])
    except csv.Error:
        return []


def few(names: Sequence[Any], show: Callable[[Any], str] = repr) -> str:
    """Returns the first few names as text for an error message.

    >>> few(["age", "bmi"])
    "'age', 'bmi'"
    """
    shown = ", ".join(map(show, names[:8]))
    return shown + (f", ... ({len(names)} in all)" if len(names) > 8 else "")


def check_unique(where: str, names: Sequence[str]) -> None:
    """Raises if a name occurs twice."""
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise ValueError(f"{where} names {few(twice)} twice: rename one.")
