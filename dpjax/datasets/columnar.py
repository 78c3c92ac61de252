"""Readers of files whose rows can be read piece by piece: NPY, uncompressed NPZ, Parquet."""

import pathlib
import struct
import threading
import zipfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from dpjax._streaming import Rows

SUFFIXES = (".npy", ".parquet")
_LOCAL_HEADER = 30  # bytes of a ZIP member's own header, before its name


def open_columns(path: pathlib.Path) -> tuple[list[str], "Columns"]:
    """Returns the names of a file's columns, and what reads them.

    Args:
      path: an NPY file of shape (n, p), whose columns are "0", "1", ...; or a Parquet file.

    Raises:
      ValueError: if it is not one.
      ImportError: for Parquet without pyarrow.
    """
    columns = _Array(path) if path.suffix.lower() == ".npy" else _Parquet(path)
    return columns.names, columns


class Columns:
    """The columns of a file, of which rows are read when they are asked for; raw data."""

    names: list[str]

    def rows(self, wanted: Sequence[str]) -> Rows:
        """Returns the named columns as numbers, (n, p)."""
        raise NotImplementedError

    def cells(self, name: str) -> Rows:
        """Returns one column, (n,), in its own dtype."""
        raise NotImplementedError


class _Array(Columns):
    def __init__(self, path: pathlib.Path):
        try:
            self._array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, OSError, EOFError) as error:
            raise ValueError(f"{str(path)!r} is not a plain array: {error}.") from None
        if self._array.ndim != 2 or self._array.dtype.kind not in "biuf":
            raise ValueError(
                f"{str(path)!r} must hold numbers (n, columns), one of them the label, got "
                f"{self._array.ndim} axes of {self._array.dtype}."
            )
        self.names = list(map(str, range(self._array.shape[1])))

    def rows(self, wanted: Sequence[str]) -> Rows:
        places = [self.names.index(name) for name in wanted]
        return Rows(self._array, lambda rows: rows[:, places], (len(places),))

    def cells(self, name: str) -> Rows:
        place = self.names.index(name)
        return Rows(self._array, lambda rows: rows[:, place], ())


class _Parquet(Columns):
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
        self.names = list(held.schema_arrow.names)
        kinds = {field.name: field.type for field in held.schema_arrow}
        self._dtypes = {name: _dtype(kind) for name, kind in kinds.items()}
        sizes = [held.metadata.row_group(i).num_rows for i in range(held.num_row_groups)]
        self._ends = np.cumsum([0, *sizes])

    def rows(self, wanted: Sequence[str]) -> Rows:
        words = [name for name in wanted if self._dtypes[name].kind not in "biuf"]
        if words:
            raise ValueError(
                f"the column {words[0]!r} must hold one number for each record: remove it, or "
                "encode it as columns of 0 and 1."
            )
        dtype = np.result_type(np.float32, *(self._dtypes[name] for name in wanted))
        return Rows(_Groups(self._path, list(wanted), self._ends, dtype, stacked=True))

    def cells(self, name: str) -> Rows:
        return Rows(_Groups(self._path, [name], self._ends, self._dtypes[name], stacked=False))


class _Groups:
    """Columns of a Parquet file as an array-like; the row group read last is kept."""

    def __init__(
        self, path: pathlib.Path, names: list[str], ends: np.ndarray, dtype: Any, stacked: bool
    ):
        from pyarrow import parquet

        self._file, self._names, self._ends = parquet.ParquetFile(path), names, ends
        self._path, self._size = path, path.stat().st_size
        self.dtype, self._stacked = dtype, stacked
        self.shape = (int(ends[-1]), *((len(names),) if stacked else ()))
        self._held: tuple[int, np.ndarray] | None = None
        self._lock = threading.Lock()

    def __getitem__(self, index: slice | np.ndarray) -> np.ndarray:
        if isinstance(index, slice):
            index = np.arange(*index.indices(self.shape[0]))
        out = np.empty((len(index), *self.shape[1:]), self.dtype)
        groups = np.searchsorted(self._ends, index, side="right") - 1
        with self._lock:
            for group in np.unique(groups):
                here = groups == group
                out[here] = self._group(int(group))[index[here] - self._ends[group]]
        return out

    def _group(self, group: int) -> np.ndarray:
        if self._path.stat().st_size != self._size:
            raise OSError(f"the size of {str(self._path)!r} changed while it was read.")
        if self._held is None or self._held[0] != group:
            table = self._file.read_row_group(group, columns=self._names)
            columns = [_numpy(table.column(name), self.dtype) for name in self._names]
            self._held = group, np.stack(columns, axis=1) if self._stacked else columns[0]
        return self._held[1]


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
            return np.asarray(column.to_numpy(), dtype=dtype)
        return np.array(column.to_pylist(), dtype=object)


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
