"""Readers of files whose rows can be read piece by piece: NPY, uncompressed NPZ, Parquet."""

import pathlib
import struct
import threading
import zipfile
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from dpjax.datasets.cells import Kind, arrow_cells, kind_of, stated, to_numbers
from dpjax.datasets.csv_files import check_unique
from dpjax.datasets.rows import Rows, SourceFile
from dpjax.datasets.source import Source

_LOCAL_HEADER = 30  # bytes of a ZIP member's own header, before its name


class Matrix(Source):
    """The columns of an array (n, p), and others beside them.

    Args:
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
        arrays = dict.fromkeys(self._places, array) | self._beside
        self.names, self.stated = (*arrays,), {name: stated(held) for name, held in arrays.items()}
        self.kinds = {name: kind_of(held) for name, held in arrays.items()}
        if array.dtype.kind in "USTO":  # it may hold numbers and words, as a CSV does
            self.kinds |= dict.fromkeys(self._places, Kind.MIXED)
        self.size = array.shape[0]

    def at(
        self, index: slice | np.ndarray, wanted: Sequence[str], numeric: Collection[str] = ()
    ) -> list[np.ndarray]:
        inside = any(name in self._places for name in wanted)
        block: Any = self._array[index] if inside else None  # labels alone need no features
        return [
            self._beside[name][index] if name in self._beside else block[:, self._places[name]]
            for name in wanted
        ]

    def numbers(self, index: slice | np.ndarray, wanted: Sequence[str]) -> np.ndarray:
        """Returns columns of some rows as numbers (m, p), of any real dtype where all are."""
        places = [self._places.get(name, -1) for name in wanted]
        first, block = places[0], self._array[index]
        if -1 in places or block.dtype.kind not in "biuf":
            return super().numbers(index, wanted)
        # Neighbouring columns are a view, which copies nothing.
        if places == [*range(first, first + len(places))]:
            return block[:, first : first + len(places)]
        return block[:, places]


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


class ParquetFile(Source):
    """A Parquet file."""

    def __init__(self, path: pathlib.Path):
        try:
            # An extra, and slow to import.
            from pyarrow import ArrowInvalid, parquet
        except ImportError:
            raise ImportError(
                "reading Parquet needs pyarrow, an optional extra: pip install 'dpjax[parquet]'."
            ) from None
        try:
            held = parquet.ParquetFile(path)
        except ArrowInvalid as error:
            raise ValueError(f"{str(path)!r} is not a Parquet file: {error}.") from None
        self._file = SourceFile(path)
        self.where, self.names = repr(str(path)), tuple(held.schema_arrow.names)
        check_unique(self.where, self.names)
        self.stated = {field.name: stated(field) for field in held.schema_arrow}
        self.kinds = {field.name: kind_of(field) for field in held.schema_arrow}
        sizes = [held.metadata.row_group(i).num_rows for i in range(held.num_row_groups)]
        self._ends = np.cumsum([0, *sizes])
        self.size = int(self._ends[-1])
        # Features and labels are read in turn: each holds a row group of its own.
        self._readers: dict[tuple[tuple[str, ...], frozenset[str]], _Columns] = {}

    def at(
        self, index: slice | np.ndarray, wanted: Sequence[str], numeric: Collection[str] = ()
    ) -> list[np.ndarray]:
        columns = tuple(wanted), frozenset(numeric)
        if columns not in self._readers:
            self._readers[columns] = _Columns(self._file, self._ends, *columns)
        return self._readers[columns].at(index)


class _Columns:
    """Columns of a Parquet file, some as float64; the row group read last is kept."""

    def __init__(
        self, file: SourceFile, ends: np.ndarray, names: Sequence[str], numeric: Collection[str]
    ):
        from pyarrow import parquet

        self._file, self._ends, self._names = parquet.ParquetFile(file.path), ends, list(names)
        self._source_file = file
        self._readers = [_floats if name in numeric else arrow_cells for name in names]
        self._held: tuple[int, list[np.ndarray]] | None = None
        # Rows are read ahead in another thread.
        self._lock = threading.Lock()

    def at(self, index: slice | np.ndarray) -> list[np.ndarray]:
        if isinstance(index, slice):
            index = np.arange(*index.indices(int(self._ends[-1])))
        # Each row group is read once, whatever the order of the indices.
        groups = np.searchsorted(self._ends, index, side="right") - 1
        parts = []
        with self._lock:
            for group in np.unique(groups):
                places = index[groups == group] - self._ends[group]
                parts.append([column[places] for column in self._group(int(group))])
        if len(parts) < 2:
            return parts[0] if parts else [np.empty(0, object) for _ in self._names]
        order = np.argsort(np.argsort(groups, kind="stable"))
        # An integer column is of objects in those groups that lack a cell.
        return [np.concatenate(pieces)[order] for pieces in zip(*parts, strict=True)]

    def _group(self, group: int) -> list[np.ndarray]:
        # Where the group is held too: a file that changed holds other records.
        self._source_file.check()
        if self._held is None or self._held[0] != group:
            table = self._read(group)
            columns = zip(self._readers, self._names, strict=True)
            self._held = group, [read(table.column(name)) for read, name in columns]
        return self._held[1]

    def _read(self, group: int) -> Any:
        import pyarrow
        from pyarrow import parquet

        try:
            return self._file.read_row_group(group, columns=self._names)
        except pyarrow.ArrowInvalid:
            # Categories of which one is not UTF-8. That would be an error by one record.
            plain = parquet.ParquetFile(self._source_file.path, binary_type=pyarrow.large_binary())
            return plain.read_row_group(group, columns=self._names)


def _floats(column: Any) -> np.ndarray:
    from pyarrow import types

    if types.is_integer(column.type) or types.is_floating(column.type):
        return to_numbers(np.asarray(column.to_numpy(), np.float64))
    return to_numbers(arrow_cells(column))


OPENED = {".npy": NpyFile, ".parquet": ParquetFile}  # what opens a file, by its suffix


def mapped_member(path: pathlib.Path, name: str) -> np.ndarray | None:
    """Returns an array of an NPZ as a memory map, or None if it is compressed."""
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        member = archive.getinfo(f"{name}.npy")
        # Only bytes that lie in the file as they are can be mapped.
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
        # Objects are pickled; in Fortran's order a row lies in p places.
        if dtype.hasobject or fortran:
            return None
        return np.memmap(path, dtype, "r", offset=file.tell(), shape=shape)
