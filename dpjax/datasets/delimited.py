"""``CsvFile``: a table in lines, read in pieces of the file, each record by itself."""

import csv
import functools
import gzip
import io
import itertools
import pathlib
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from dpjax.datasets.cells import Kind, of_each
from dpjax.datasets.forms import NO_NUMBERS, PLAIN, DateForm, Form, NumberForm
from dpjax.datasets.rows import SourceFile
from dpjax.datasets.source import NO_FORMS, ROWS_AT_ONCE, Forms, Source, check_unique, stacked

SUFFIXES = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz")
SEPARATORS = (",", ";", "\t", "|")
# With it spreadsheets begin a file in UTF-8.
_MARK = b"\xef\xbb\xbf"
# With `sep=;` Excel says in a line of its own what stands between cells.
_TOLD = re.compile(rb'"?sep=(.)"?\r?\n')
# What the first line tells of a file that is called .csv, and is none or no readable one.
_NO_CSV = {
    rb"\Z": "is empty: the first line must name the columns",
    rb"\s*\n": "begins with an empty line: the first line must name the columns",
    rb"PK\x03\x04": "is a ZIP archive, as an Excel workbook is: call it .xlsx",
    rb"\x1f\x8b": "is compressed by gzip: call it .csv.gz",
    rb"PAR1": "is a Parquet file: call it .parquet",
    rb"\xd0\xcf\x11\xe0": "is a workbook of an old Excel: save it as CSV UTF-8, or .xlsx",
    rb"%PDF": "is a PDF: export the table as CSV UTF-8",
    rb"\s*<(!|\?|html|head|body|table)": "is a web page or XML: save it as CSV UTF-8",
    rb"\xff\xfe|\xfe\xff|.?\0": "is text in UTF-16: save it as CSV UTF-8",
    rb".*\r(?!\n)": "has lines that end in carriage returns alone: save it with line feeds",
}
_PIECE = 2**23  # bytes that are read at once: a date that occurs in them is read once
_Asked = tuple[int, Form | None]  # the place of a column, and how it holds numbers, if so
_BLANK = re.compile(rb"(?:\A|\n)[ \t\r\f\v]*\n")


class CsvFile(Source):
    """A CSV file: a header, then its records.

    The header tells which of ``SEPARATORS`` stands between cells: the one by which it has most. In
    a file with semicolons ``3,5`` is a number as ``3.5`` is. A line ends at a line feed.

    Args:
      quoted_line_breaks: whether records are as RFC 4180 parses them, by which a cell in quotes may
        hold line breaks, and a quote that is never closed holds all lines after it. Without it
        each line is a record, whatever it holds.
      separator: what stands between cells, if it is declared; in a .tsv it is a tab.
    """

    def __init__(
        self, path: pathlib.Path, quoted_line_breaks: Any = False, separator: str | None = None
    ):
        self._path, self.where, self._parsed = path, repr(str(path)), quoted_line_breaks
        # How many plain lines a piece has, by where it begins.
        self._file, self._plain = SourceFile(path), dict[int, int | None]()
        by_suffix = "\t" if ".tsv" in path.suffixes[-2:] else None
        try:
            self.names = self._header(separator or by_suffix)
            # By reading it all: lines in quotes are no records.
            self.size = sum(size for size, *_ in self._pieces())
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ValueError(f"{self.where} is damaged, or not of gzip: {error}.") from None
        self.kinds = dict.fromkeys(self.names, Kind.MIXED)
        self.stated = dict.fromkeys(self.names, "")

    def _open(self) -> Any:
        self._file.check()
        return gzip.open(self._path) if self._path.suffix == ".gz" else self._path.open("rb")

    def _header(self, separator: str | None) -> tuple[str, ...]:
        with self._open() as file:
            self._start = len(_MARK) if file.read(len(_MARK)) == _MARK else 0
            file.seek(self._start)
            line = file.readline()  # the first line alone tells, which is no record's
            for beginning, said in _NO_CSV.items():
                if re.match(beginning, line, re.DOTALL | re.IGNORECASE):
                    raise ValueError(f"{self.where} {said}.")
            if match := _TOLD.fullmatch(line):
                separator, self._start = separator or match[1].decode("latin-1"), file.tell()
                line = file.readline()
            self.separator = separator or max(SEPARATORS, key=lambda mark: len(_cells(line, mark)))
            file.seek(self._start)
            first = next(self._split(file), b"")
        self._start += len(first)
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
        names = tuple(cell.strip() for cell in _cells(first, self.separator))
        check_unique(f"the header of {self.where}", names)
        return names

    def _pieces(self) -> Iterator[tuple[int, bytes, list[bytes] | None]]:
        """Yields pieces of whole records: how many, the bytes, and each unless lines are plain."""
        with self._open() as file:
            start = file.seek(self._start)
            while data := file.read(_PIECE):
                data += file.readline()
                if start not in self._plain:
                    self._plain[start] = _plain_lines(data, self.separator)
                start += len(data)
                if (size := self._plain[start - len(data)]) is not None:
                    yield size, data, None
                    continue
                records, read = list[bytes](), 0
                # The last of its records may go on in the lines behind it.
                for record in self._split(itertools.chain(io.BytesIO(data), file)):
                    read += len(record)
                    # Of cells between tabs a line without any value is a record, not a blank one.
                    if record.strip() or (self.separator == "\t" and b"\t" in record):
                        records.append(record)
                    if read >= len(data):
                        break
                start += read - len(data)
                yield len(records), data, records

    def blocks(
        self, wanted: Sequence[str], numeric: Forms = NO_FORMS, together: Sequence[str] = ()
    ) -> Iterator[list[np.ndarray]]:
        """Yields blocks of rows; a line with too few or too many cells is empty in every column."""
        forms = [*((name, PLAIN) for name in together), *((k, numeric.get(k)) for k in wanted)]
        columns = [
            (self.names.index(k), f.between(self.separator) if isinstance(f, NumberForm) else f)
            for k, f in forms
        ]
        for size, data, records in self._pieces():
            found = self._parse(data, columns) if records is None else None
            if found is None:
                found = self._by_cell(data, records, columns) if size else []
            for start in range(0, size, ROWS_AT_ONCE):
                block = [cells[start : start + ROWS_AT_ONCE] for cells in found]
                first = [stacked(block[: len(together)])] if together else []
                yield first + block[len(together) :]

    def _by_cell(
        self, data: bytes, records: list[bytes] | None, columns: Sequence[_Asked]
    ) -> list[np.ndarray]:
        """Returns columns of any records, by what each is asked for."""
        if records is None:
            lines = data.decode("utf-8", "surrogateescape").split("\n")
            rows = filter(None, csv.reader(lines, delimiter=self.separator))
        else:
            rows = (_cells(record, self.separator) for record in records)
        # With other numbers of cells nobody knows which column a cell belongs to.
        empty = [""] * len(self.names)
        held = [*zip(*(row if len(row) == len(empty) else empty for row in rows), strict=True)]
        return [
            of_each(form.number if form else str.strip, held[place], float if form else object)
            for place, form in columns
        ]

    def _parse(self, data: bytes, columns: Sequence[_Asked]) -> list[np.ndarray] | None:
        """Returns columns of plain lines by pyarrow; None without it, or if a line is strange."""
        try:
            import pyarrow
            from pyarrow import csv as arrow
        except ImportError:  # an extra
            return None
        # Of one column a line of blanks would be a record; pyarrow drops a mark at the start, which
        # is part of the first cell by the other way, taken where any other record is strange.
        if len(self.names) < 2 or data.startswith(_MARK):
            return None
        read = arrow.ReadOptions(column_names=[*map(str, range(len(self.names)))],
                                 block_size=len(data) + 1)  # fmt: skip
        lines = arrow.ParseOptions(delimiter=self.separator, double_quote=False)
        of_numbers = [form for _, form in columns if isinstance(form, NumberForm)]
        mark = "," if any("," in form.decimal for form in of_numbers) else "."
        # Most pieces hold numbers, ISO dates and empty cells alone where those are declared.
        for at_once in (True, False):
            types = {str(place): _type(form, mark, at_once) for place, form in columns}
            convert = arrow.ConvertOptions(
                column_types=types, include_columns=[*types], null_values=NO_NUMBERS,
                decimal_point=mark,
            )  # fmt: skip
            try:
                table = arrow.read_csv(pyarrow.BufferReader(data), read, lines, convert)
            except pyarrow.ArrowInvalid:
                continue
            return [_cells_of(table.column(str(place)), form) for place, form in columns]
        return None

    def exact_faults(self) -> tuple[list[str], list[str]]:
        """NOT PRIVATE: returns what is wrong with quotes, and a remark on records' lengths."""
        opened, wanted, count, ragged = _open_quote(self.separator), len(self.names), 0, []
        for _, data, records in self._pieces():
            if records is None and self._parse(data, [(0, None)]):
                continue  # a piece without a strange line
            for record in io.BytesIO(data) if records is None else records:
                cells = len(_cells(record, self.separator))
                if b'"' in record and opened.fullmatch(record):
                    count += 1
                elif cells != wanted:
                    ragged.append(cells)
        said = (
            "leave a quote open. Where cells in quotes hold line breaks, one record is read as "
            "several: declare quoted_line_breaks = true in the schema. Otherwise close the quotes."
        )
        if self._parsed:
            said = "leave a quote open, up to the end of the file: close it."
        remarks = [
            f"records with another number of cells than the {wanted} of the header: {len(ragged)}, "
            f"the first with {cells}; is there a {self.separator!r} in a cell without quotes?"
            for cells in ragged[:1]
        ]
        return [f"{count} records of {self.where} {said}"] if count else [], remarks

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


def _type(form: Form | None, mark: str, at_once: bool) -> Any:
    """Returns how pyarrow is to read a column: as text, or what it reads as Python does."""
    import pyarrow

    if isinstance(form, NumberForm):
        return pyarrow.float64() if at_once and form.is_plain(mark) else pyarrow.string()
    dates = at_once and form == DateForm()
    return pyarrow.date32() if dates else pyarrow.dictionary(pyarrow.int32(), pyarrow.string())


def _cells_of(column: Any, form: Form | None) -> np.ndarray:
    """Returns a column of pyarrow as text, or as float64 where it has a form."""
    import pyarrow
    from pyarrow import compute as kernels

    compute: Any = kernels  # whose functions are made when it is imported
    column = column.combine_chunks()
    if pyarrow.types.is_dictionary(column.type):
        words = column.dictionary.to_pylist()
        kind = np.float64 if form else object
        each = np.fromiter(map(form.number if form else str.strip, words), kind, len(words))
        return each[column.indices.to_numpy()]
    others, left = None, []
    if isinstance(form, NumberForm) and pyarrow.types.is_string(column.type):
        usual = compute.match_substring_regex(column, form.pattern)
        # What is left is empty, or written in another way.
        others = ~usual.to_numpy(zero_copy_only=False)
        left = [form.number(cell) for cell in column.filter(compute.invert(usual)).to_pylist()]
        for written, read in form.replaced:
            column = compute.replace_substring(column, written, read)
        column = compute.if_else(usual, compute.utf8_trim_whitespace(column), None)
    days = pyarrow.types.is_date32(column.type)
    numbers = (column.cast(pyarrow.int32()) if days else column).cast(pyarrow.float64())
    values = np.array(numbers.to_numpy(zero_copy_only=False))
    if others is not None:
        values[others] = left
    values[~np.isfinite(values)] = np.nan
    return values
