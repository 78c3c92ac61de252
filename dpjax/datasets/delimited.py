"""``CsvFile``: a table in lines, read in pieces of the file, each record by itself."""

import csv
import functools
import gzip
import io
import itertools
import pathlib
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple

import numpy as np

from dpjax.datasets.cells import Kind
from dpjax.datasets.forms import NO_NUMBERS, PLAIN, NumberForm
from dpjax.datasets.rows import SourceFile
from dpjax.datasets.source import NO_FORMS, Source, check_unique, stacked

SUFFIXES = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz")
SEPARATORS = (",", ";", "\t", "|")
# With it spreadsheets begin a file in UTF-8.
_MARK = b"\xef\xbb\xbf"
# With `sep=;` Excel says in a line of its own what stands between cells.
_TOLD = re.compile(rb'"?sep=(.)"?\r?\n')
# What other files begin with that are called .csv.
_BEGINNINGS = {
    rb"PK\x03\x04": "a ZIP archive, as an Excel workbook is: call it .xlsx",
    rb"\x1f\x8b": "compressed by gzip: call it .csv.gz",
    rb"PAR1": "a Parquet file: call it .parquet",
    rb"\xd0\xcf\x11\xe0": "a workbook of an old Excel: save it as CSV UTF-8, or .xlsx",
    rb"%PDF": "a PDF: export the table as CSV UTF-8",
    rb"\s*<(!|\?|html|head|body|table)": "a web page or XML: save it as CSV UTF-8",
    rb"\xff\xfe|\xfe\xff|.?\0": "text in UTF-16: save it as CSV UTF-8",
}
_PIECE = 2**22  # bytes that are read at once
_ROWS = 2**15  # records of a block: enough that a date or level is read once for many of them
_Asked = tuple[int, NumberForm | None]  # the place of a column, and how it holds numbers, if so
_BLANK = re.compile(rb"(?:\A|\n)[ \t\r\f\v]*\n")


class _Piece(NamedTuple):
    """Some records of a file: where their bytes are, and whether each is a line that is `plain`."""

    start: int
    stop: int
    size: int
    plain: bool


class CsvFile(Source):
    """A CSV file: a header, then its records.

    The header tells which of ``SEPARATORS`` stands between cells: the one by which it has most. In
    a file with semicolons ``3,5`` is a number as ``3.5`` is. A line ends at a line feed.

    Args:
      quoted_line_breaks: whether records are as RFC 4180 parses them, by which a cell in quotes may
        hold line breaks, and a quote that is never closed holds all lines after it. Without it
        each line is a record, whatever it holds.
      separator: what stands between cells, if it is declared; in a .tsv it is a tab.

    Raises:
      ValueError: if the header is empty, is not UTF-8, leaves a quote open, or names a column
        twice.
    """

    def __init__(
        self,
        path: pathlib.Path,
        quoted_line_breaks: bool | None = False,
        separator: str | None = None,
    ):
        self._path, self.where, self._parsed = path, repr(str(path)), quoted_line_breaks
        self._file = SourceFile(path)
        told = "\t" if ".tsv" in path.suffixes[-2:] else None
        try:
            self.names, self._start = self._header(separator or told)
            # By reading it all: lines in quotes are no records.
            self._pieces = [*self._plan()]
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ValueError(f"{self.where} is damaged, or not of gzip: {error}.") from None
        self.kinds = dict.fromkeys(self.names, Kind.MIXED)
        self.stated = dict.fromkeys(self.names, "")
        self.size = sum(piece.size for piece in self._pieces)

    def _open(self) -> IO[bytes]:
        self._file.check()
        return gzip.open(self._path) if self._path.suffix == ".gz" else self._path.open("rb")

    def _header(self, separator: str | None) -> tuple[tuple[str, ...], int]:
        """Returns the names of the columns, and where the records begin."""
        with self._open() as file:
            start = len(_MARK) if file.read(len(_MARK)) == _MARK else 0
            file.seek(start)
            line = file.readline()  # the first line alone tells, which is no record's
            for beginning, said in _BEGINNINGS.items():
                if re.match(beginning, line, re.DOTALL | re.IGNORECASE):
                    raise ValueError(f"{self.where} is no CSV but {said}.")
            if match := _TOLD.fullmatch(line):
                separator, start = separator or match[1].decode("latin-1"), file.tell()
                line = file.readline()
            self.separator = separator or max(SEPARATORS, key=lambda mark: len(_cells(line, mark)))
            file.seek(start)
            first = next(self._split(file), b"")
            start += len(first)
        self._check_header(first)
        names = tuple(cell.strip() for cell in _cells(first, self.separator))
        if names[1:].count("") > 1:
            places = [str(place) for place, name in enumerate(names, 1) if not name]
            raise ValueError(
                f"the header of {self.where} names no column in {', '.join(places)}: remove the "
                "separators at the ends of lines, or name those columns."
            )
        check_unique(f"the header of {self.where}", names)
        return names, start

    def _check_header(self, first: bytes) -> None:
        if not first.strip():
            how = "begins with an empty line" if first else "is empty"
            raise ValueError(f"{self.where} {how}: the first line must name the columns.")
        try:
            first.decode("utf-8")
        except UnicodeDecodeError:
            raise ValueError(
                f"the header of {self.where} is not UTF-8: save the file as UTF-8 (spreadsheets "
                "call it CSV UTF-8). It may be Latin-1 or Windows-1252 now."
            ) from None
        if _open_quote(self.separator).fullmatch(first):
            raise ValueError(
                f"the header of {self.where} leaves a quote open: close it, or, where the name of "
                "a column holds a line break, declare quoted_line_breaks = true in a schema."
            )
        if not _cells(first, self.separator):
            raise ValueError(
                f"lines of {self.where} end in carriage returns alone, or its header holds one or "
                "a cell above 131,072 characters: save it with line feeds."
            )

    def _plan(self) -> Iterator[_Piece]:
        """Yields pieces of the file, each of whole records."""
        with self._open() as file:
            start = self._start
            file.seek(start)
            while data := file.read(_PIECE):
                data += file.readline()
                size = _plain_lines(data, self.separator)
                stop = start + len(data)
                if size is None:
                    # The last of its records may go on in the lines behind it.
                    stop, size = start, 0
                    for record in self._split(itertools.chain(io.BytesIO(data), file)):
                        stop, size = stop + len(record), size + self._counts(record)
                        if stop - start >= len(data):
                            break
                    yield _Piece(start, stop, size, False)
                else:
                    yield _Piece(start, stop, size, True)
                start = stop

    def _read(self) -> Iterator[tuple[_Piece, bytes]]:
        with self._open() as file:
            for piece in self._pieces:
                file.seek(piece.start)
                yield piece, file.read(piece.stop - piece.start)

    def blocks(
        self,
        wanted: Sequence[str],
        numeric: Mapping[str, NumberForm] = NO_FORMS,
        together: Sequence[str] = (),
    ) -> Iterator[list[np.ndarray]]:
        """Yields blocks of rows: one array of cells for each wanted column, see ``Source.blocks``.

        A line with another number of cells than the header has is empty in every column.

        Numeric columns are float64, NaN for what is not a number; others are text without white
        space around it. Columns ``together`` come first, in one array.
        """
        columns = [(self.names.index(name), PLAIN.between(self.separator)) for name in together]
        columns += [
            (
                self.names.index(name),
                numeric[name].between(self.separator) if name in numeric else None,
            )
            for name in wanted
        ]
        for piece, data in self._read():
            if not piece.size:
                continue
            found = self._parse(data, columns) if piece.plain else None
            if found is None:
                found = _converted(self._rows(piece, data), columns)
            for start in range(0, piece.size, _ROWS):
                block = [cells[start : start + _ROWS] for cells in found]
                first = [stacked(block[: len(together)])] if together else []
                yield first + block[len(together) :]

    def _rows(self, piece: _Piece, data: bytes) -> list[list[str]]:
        """Returns the cells of records; empty ones where their number is not the header's."""
        empty = [""] * len(self.names)
        if piece.plain:
            lines = data.decode("utf-8", "surrogateescape").split("\n")
            rows = filter(None, csv.reader(lines, delimiter=self.separator))
        else:
            records = filter(self._counts, self._split(io.BytesIO(data)))
            rows = (_cells(record, self.separator) for record in records)
        # With other numbers of cells nobody knows which column a cell belongs to.
        return [row if len(row) == len(empty) else empty for row in rows]

    def _parse(self, data: bytes, columns: Sequence[_Asked]) -> list[np.ndarray] | None:
        """Returns columns of plain lines by pyarrow; None without it, or if a line is strange."""
        try:
            import pyarrow
            from pyarrow import csv as arrow
        except ImportError:  # an extra
            return None
        # Of one column a line of blanks would be a record.
        if len(self.names) < 2:
            return None
        places = [str(place) for place in range(len(self.names))]
        read = arrow.ReadOptions(column_names=places, block_size=len(data) + 1)
        lines = arrow.ParseOptions(delimiter=self.separator, double_quote=False)
        words = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
        mark = "," if any(form and "," in form.decimal for _, form in columns) else "."
        # Most pieces hold numbers and empty cells alone where numbers are declared.
        for at_once in (True, False):
            types = {
                str(place): words if form is None
                else pyarrow.float64() if at_once and form.is_plain(mark) else pyarrow.string()
                for place, form in columns
            }  # fmt: skip
            convert = arrow.ConvertOptions(
                column_types=types, include_columns=[*types], null_values=NO_NUMBERS,
                decimal_point=mark,
            )  # fmt: skip
            try:
                table = arrow.read_csv(pyarrow.BufferReader(data), read, lines, convert)
            except pyarrow.ArrowInvalid:
                continue
            held = [(table.column(str(place)).combine_chunks(), form) for place, form in columns]
            return [_words(part) if form is None else _floats(part, form) for part, form in held]
        return None

    def exact_problems(self) -> list[str]:
        """NOT PRIVATE: returns what is wrong with the quotes of the file, if anything is."""
        count = sum(is_open for is_open, _ in self._strange())
        said = (
            "leave a quote open. Where cells in quotes hold line breaks, one record is read as "
            "several: declare quoted_line_breaks = true in the schema. Otherwise close the quotes."
        )
        if self._parsed:
            said = "leave a quote open, up to the end of the file: close it."
        return [f"{count} records of {self.where} {said}"] if count else []

    def exact_remarks(self) -> list[str]:
        """NOT PRIVATE: returns which records have another number of cells than the header."""
        wanted = len(self.names)
        ragged = [cells for is_open, cells in self._strange() if cells != wanted and not is_open]
        if not ragged:
            return []
        return [
            f"records with another number of cells than the {wanted} of the header: {len(ragged)}, "
            f"the first with {ragged[0]}; is there a {self.separator!r} in a cell without quotes?"
        ]

    def _strange(self) -> Iterator[tuple[bool, int]]:
        """Yields, of records in pieces with a strange line, open quotes and the number of cells."""
        opened = _open_quote(self.separator)
        for piece, data in self._read():
            if piece.plain and self._parse(data, [(0, None)]):
                continue
            for record in filter(self._counts, self._split(io.BytesIO(data))):
                is_open = b'"' in record and bool(opened.fullmatch(record))
                yield is_open, len(_cells(record, self.separator))

    def _counts(self, record: bytes) -> bool:
        # Of cells between tabs a line without any value is a record, not a blank line.
        return bool(record.strip()) or (self.separator == "\t" and b"\t" in record)

    def _split(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """Yields the records of some lines, blank ones too."""
        if not self._parsed:
            # A stray quote in one record would swallow the records after it.
            yield from lines
            return
        opened, held = _open_quote(self.separator), []
        for line in lines:
            held.append(line)
            # After b'"x' a line goes on in quotes, and one at its start closes them.
            within = len(held) > 1
            if b'"' in line:
                within = bool(opened.fullmatch(b'"x' * within + line))
            if not within:
                yield b"".join(held)
                held = []
        if held:
            yield b"".join(held)


def _plain_lines(data: bytes, separator: str) -> int | None:
    """Returns how many lines there are, if each is a record under any rule, else None.

    Its quotes stand around whole cells, each in its line, and hold no others.
    """
    if b"\r" in data and data.count(b"\r") != data.count(b"\r\n"):
        return None
    held = np.frombuffer(b"\n%b\n" % data.removesuffix(b"\n"), np.uint8)
    ends = np.flatnonzero(held == ord("\n"))
    if np.diff(ends).max() > csv.field_size_limit():
        return None
    starts = held[ends[:-1] + 1]
    # Of a blank line, or one whose first cell is empty or begins with white space.
    if (starts <= ord(" ")).any() and _BLANK.search(data):
        return None
    if b'"' in data:
        quotes = np.flatnonzero(held == ord('"'))
        opens, closes = quotes[::2], quotes[1::2]
        edges = np.isin(np.arange(256), [ord(mark) for mark in f"{separator}\r\n"])
        if (
            len(opens) != len(closes)
            or not (edges[held[opens - 1]] & edges[held[closes + 1]]).all()
        ):
            return None
        if (np.searchsorted(opens, ends) != np.searchsorted(closes, ends)).any():
            return None
    return len(ends) - 1


@functools.cache
def _open_quote(separator: str) -> re.Pattern[bytes]:
    """Matches a line that leaves a quote open: cells, as ``csv`` reads them, and one in quotes."""
    # Possessive: no line, however it is written, may take quadratic time.
    mark, quoted = re.escape(separator).encode(), rb'"[^"]*+(?:""[^"]*+)*+'
    cell = rb'(?:%b"(?!")|(?!"))[^%b]*+' % (quoted, mark)
    return re.compile(rb"(?:%b%b)*+%b" % (cell, mark, quoted))


def _cells(line: bytes, separator: str) -> list[str]:
    text = line.decode("utf-8", "surrogateescape").rstrip("\r\n")  # keeps cells distinct
    try:
        return next(csv.reader([text], delimiter=separator), [])
    # Such as a cell above csv's limit: an error would tell of the record.
    except csv.Error:
        return []


def _converted(rows: Sequence[Sequence[str]], columns: Sequence[_Asked]) -> list[np.ndarray]:
    """Returns columns of rows of cells, by what each is asked for."""
    held: list[Any] = [*zip(*rows, strict=True)]
    same: dict[str, str] = {}  # one string for each word, not one for each record
    found = []
    for place, form in columns:
        if form is None:
            words = (same.setdefault(word, word) for word in map(str.strip, held[place]))
            found.append(np.fromiter(words, object, len(rows)))
        else:
            found.append(np.fromiter(map(form.number, held[place]), np.float64, len(rows)))
    return found


def _words(column: Any) -> np.ndarray:
    words = [word.strip() for word in column.dictionary.to_pylist()]
    return np.fromiter(words, object, len(words))[column.indices.to_numpy()]


def _floats(column: Any, form: NumberForm) -> np.ndarray:
    """Returns a column of pyarrow, of numbers or text, as float64."""
    import pyarrow
    from pyarrow import compute

    if not pyarrow.types.is_string(column.type):
        values = np.array(column.to_numpy(zero_copy_only=False))
        values[~np.isfinite(values)] = np.nan
        return values
    text = column
    usual = compute.match_substring_regex(text, form.pattern)
    for written, read in form.replaced:
        text = compute.replace_substring(text, written, read)
    kept = compute.if_else(usual, compute.utf8_trim_whitespace(text), None)
    values = np.array(kept.cast(pyarrow.float64()).to_numpy(zero_copy_only=False))
    # What is left is empty, or written in another way.
    others = column.filter(compute.invert(usual)).to_pylist()
    values[~usual.to_numpy(zero_copy_only=False)] = [form.number(cell) for cell in others]
    values[~np.isfinite(values)] = np.nan
    return values
