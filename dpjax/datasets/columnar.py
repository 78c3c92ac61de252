"""Readers of files whose rows can be read piece by piece: NPY, uncompressed NPZ, Parquet."""

import pathlib
import struct
import threading
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dpjax._files import SourceFile
from dpjax._streaming import Rows
from dpjax.datasets.arrow import arrow_cells
from dpjax.datasets.cells import Kind, check_numbers, kind_of, stated, to_numbers
from dpjax.datasets.csv_files import check_unique
from dpjax.datasets.source import Source

_LOCAL_HEADER = 30  # bytes of a ZIP member's own header, before its name


class Matrix(Source):
    """The columns of an array (n, p), and others beside them.

    Args:
      where: what it is called in errors.
      array: (n, p), possibly on disk.
      names: of its columns; by default "0", "1", ...
      beside: further columns (n,) by name.
    """

    def __init__(
        self,
        where: str,
        array: Any,
        names: Sequence[str] | None = None,
        beside: Mapping[str, Any] | None = None,
    ):
        self.where, self._array, self._beside = where, array, dict(beside or {})
        columns = map(str, range(array.shape[1])) if names is None else names
        self._places = {name: place for place, name in enumerate(columns)}
        every = dict.fromkeys(self._places, array) | self._beside
        self.names, self.stated = (*every,), {name: stated(held) for name, held in every.items()}
        self.kinds = {name: kind_of(held) for name, held in every.items()}
        if array.dtype.kind in "USTO":  # it may hold numbers and words, as a CSV does
            self.kinds |= dict.fromkeys(self._places, Kind.MIXED)
        self.size = array.shape[0]
        self.source_file = getattr(array, "source_file", None)

    def at(
        self, index: slice | np.ndarray, wanted: Sequence[str], numeric: Collection[str] = ()
    ) -> list[np.ndarray]:
        """Returns the cells of some rows, see ``Source.at``."""
        del numeric
        block = self._array[index]
        return [
            self._beside[name][index] if name in self._beside else block[:, self._places[name]]
            for name in wanted
        ]


class NpyFile(Matrix):
    """An NPY file of shape (n, p), whose columns are "0", "1", ..."""

    def __init__(self, path: pathlib.Path):
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, OSError, EOFError) as error:
            raise ValueError(f"{str(path)!r} is not a plain array: {error}.") from None
        if array.ndim != 2 or array.dtype.kind not in "biuf":
            raise ValueError(
                f"{str(path)!r} must hold numbers (n, columns), one of them the label, got "
                f"{array.ndim} axes of {array.dtype}."
            )
        super().__init__(repr(str(path)), Rows(array))
        self._mapped = array

    def rows(self, wanted: Sequence[str]) -> Rows:
        """Returns the named columns as numbers, (n, p)."""
        places = [self._places[name] for name in wanted]
        first, count = places[0], len(places)
        if places == list(range(first, first + count)):
            return Rows(self._mapped, lambda rows: rows[:, first : first + count], (count,))
        return Rows(self._mapped, lambda rows: np.take(rows, places, axis=1), (count,))

    def cells(self, name: str) -> Rows:
        """Returns one column, (n,), in its own dtype."""
        place = self._places[name]
        return Rows(self._mapped, lambda rows: rows[:, place], ())


class ParquetFile(Source):
    """A Parquet file; the row group read last is kept."""

    def __init__(self, path: pathlib.Path):
        try:
            from pyarrow import ArrowInvalid, parquet
        except ImportError:
            raise ImportError(
                "reading Parquet needs pyarrow, an optional extra: pip install 'dpjax[parquet]'."
            ) from None
        try:
            self._path, held = path, parquet.ParquetFile(path)
        except ArrowInvalid as error:
            raise ValueError(f"{str(path)!r} is not a Parquet file: {error}.") from None
        self.source_file = SourceFile(path)
        self.where, self.names = repr(str(path)), tuple(held.schema_arrow.names)
        check_unique(self.where, self.names)
        self._dtypes = {field.name: _dtype(field.type) for field in held.schema_arrow}
        self.stated = {field.name: stated(field) for field in held.schema_arrow}
        self.kinds = {field.name: kind_of(field) for field in held.schema_arrow}
        sizes = [held.metadata.row_group(i).num_rows for i in range(held.num_row_groups)]
        self._ends = np.cumsum([0, *sizes])
        self.size = int(self._ends[-1])
        self._groups: dict[tuple[tuple[str, ...], frozenset[str]], _Cells] = {}

    def at(
        self, index: slice | np.ndarray, wanted: Sequence[str], numeric: Collection[str] = ()
    ) -> list[np.ndarray]:
        """Returns the cells of some rows, see ``Source.at``."""
        asked = tuple(wanted), frozenset(numeric)
        if asked not in self._groups:
            self._groups[asked] = _Cells(self._path, list(wanted), self._ends, asked[1])
        return self._groups[asked][index]

    def rows(self, wanted: Sequence[str]) -> Rows:
        """Returns the named columns as numbers, (n, p)."""
        for name in wanted:
            check_numbers(name, self.kinds[name], self.stated[name])
        dtype = np.result_type(np.float32, *(self._dtypes[name] for name in wanted))
        return Rows(_Stacked(self._path, list(wanted), self._ends, dtype, stacked=True))

    def cells(self, name: str) -> Rows:
        """Returns one column, (n,), in its own dtype."""
        dtype = self._dtypes[name]
        if dtype.kind == "b":
            dtype = np.dtype(object)  # a missing cell is neither True nor False
        return Rows(_Stacked(self._path, [name], self._ends, dtype, stacked=False))


class _Groups:
    """Columns of a Parquet file by rows; the row group read last is kept."""

    def __init__(self, path: pathlib.Path, names: list[str], ends: np.ndarray):
        from pyarrow import parquet

        self._file, self._names, self._ends = parquet.ParquetFile(path), names, ends
        self.source_file = SourceFile(path)
        self._held: tuple[int, Any] | None = None
        self._lock = threading.Lock()

    def _parts(self, index: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, Any]]:
        """Yields a mask of ``index`` for each row group, their places there, and its values."""
        groups = np.searchsorted(self._ends, index, side="right") - 1
        with self._lock:
            for group in np.unique(groups):
                here = groups == group
                yield here, index[here] - self._ends[group], self._group(int(group))

    def _indices(self, index: slice | np.ndarray) -> np.ndarray:
        if not isinstance(index, slice):
            return index
        return np.arange(*index.indices(int(self._ends[-1])))

    def _group(self, group: int) -> Any:
        self.source_file.check()
        if self._held is None or self._held[0] != group:
            table = self._read(group)
            self._held = group, self._converted([table.column(name) for name in self._names])
        return self._held[1]

    def _read(self, group: int) -> Any:
        import pyarrow
        from pyarrow import parquet

        try:
            return self._file.read_row_group(group, columns=self._names)
        except pyarrow.ArrowInvalid:
            # Categories of which one is not UTF-8. That would be an error by one record.
            plain = parquet.ParquetFile(self.source_file.path, binary_type=pyarrow.large_binary())
            return plain.read_row_group(group, columns=self._names)

    def _converted(self, columns: list[Any]) -> Any:
        raise NotImplementedError


class _Stacked(_Groups):
    """Columns as one array (n, p) of one dtype; a single one as (n,) if it is not stacked."""

    def __init__(
        self, path: pathlib.Path, names: list[str], ends: np.ndarray, dtype: Any, stacked: bool
    ):
        super().__init__(path, names, ends)
        self.dtype, self._stacked = np.dtype(dtype), stacked
        self.shape = (int(ends[-1]), *((len(names),) if stacked else ()))

    def __getitem__(self, index: slice | np.ndarray) -> np.ndarray:
        index = self._indices(index)
        out = np.empty((len(index), *self.shape[1:]), self.dtype)
        for here, places, values in self._parts(index):
            out[here] = values[places]
        return out

    def _converted(self, columns: list[Any]) -> np.ndarray:
        arrays = [_numpy(column, self.dtype) for column in columns]
        return np.stack(arrays, axis=1) if self._stacked else arrays[0]


class _Cells(_Groups):
    """Columns as one array each: some as float64, the others by their own dtype."""

    def __init__(
        self, path: pathlib.Path, names: list[str], ends: np.ndarray, numeric: Collection[str]
    ):
        super().__init__(path, names, ends)
        self._numeric = [name in numeric for name in names]

    def __getitem__(self, index: slice | np.ndarray) -> list[np.ndarray]:
        index = self._indices(index)
        parts = [
            (here, [column[places] for column in values])
            for here, places, values in self._parts(index)
        ]
        if len(parts) < 2:
            return parts[0][1] if parts else [np.empty(0, object) for _ in self._names]
        order = np.concatenate([np.flatnonzero(here) for here, _ in parts])
        columns = zip(*(values for _, values in parts), strict=True)
        # An integer column is of objects in those groups that lack a cell.
        return [np.concatenate(pieces)[np.argsort(order)] for pieces in columns]

    def _converted(self, columns: list[Any]) -> list[np.ndarray]:
        return [
            _floats(column) if number else arrow_cells(column)
            for column, number in zip(columns, self._numeric, strict=True)
        ]


def _floats(column: Any) -> np.ndarray:
    from pyarrow import types

    if types.is_integer(column.type) or types.is_floating(column.type):
        return to_numbers(np.asarray(column.to_numpy(), np.float64))
    return to_numbers(arrow_cells(column))


def _dtype(kind: Any) -> np.dtype:
    from pyarrow import types

    if types.is_boolean(kind):
        return np.dtype(bool)
    if types.is_integer(kind) or types.is_floating(kind):
        # A missing number becomes NaN, which float64 holds beside every integer of 53 bits.
        return np.dtype("float32" if types.is_float32(kind) else "float64")
    return np.dtype(object)


def _numpy(column: Any, dtype: np.dtype) -> np.ndarray:
    with np.errstate(all="ignore"):
        if dtype.kind == "f":
            if _dtype(column.type).kind == "O":
                return to_numbers(arrow_cells(column)).astype(dtype)
            return np.asarray(column.to_numpy(), dtype=dtype)
        cells = arrow_cells(column)
        # Nanoseconds would become integers.
        return cells.astype("datetime64[us]" if cells.dtype.kind == "M" else object).astype(object)


OPENED = {".npy": NpyFile, ".parquet": ParquetFile}  # what opens a file, by its suffix


def mapped_member(path: pathlib.Path, name: str) -> np.ndarray | None:
    """Returns an array of an NPZ as a memory map, or None if it is compressed."""
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        member = archive.getinfo(f"{name}.npy")
        if member.compress_type != zipfile.ZIP_STORED:
            return None
        file.seek(member.header_offset)
        header = file.read(_LOCAL_HEADER)
        lengths = struct.unpack("<HH", header[26:30])  # of the member's name and extra field
        file.seek(member.header_offset + _LOCAL_HEADER + sum(lengths))
        version = np.lib.format.read_magic(file)
        read = {(1, 0): np.lib.format.read_array_header_1_0}.get(
            version, np.lib.format.read_array_header_2_0
        )
        shape, fortran, dtype = read(file)
        if dtype.hasobject or fortran:
            return None
        return np.memmap(path, dtype, "r", offset=file.tell(), shape=shape)
