"""Rows that stay on disk, or in the host's memory, until they are asked for."""

import mmap
import os
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

_PAGES = 2**26  # bytes of a file that stay mapped after they were read


class Rows:
    """An array-like whose rows are read when they are asked for: ``rows[5:9]``, ``rows[indices]``.

    Its source is a memory map, or an object with ``shape`` and ``dtype``; a function maps each row
    by itself to one of another shape or dtype.

    Privacy: raw data.
    """

    def __init__(
        self, source: Any, function: Callable | None = None, shape: Any = None, dtype: Any = None
    ):
        self._function = function
        self.shape = (source.shape[0], *(source.shape[1:] if shape is None else shape))
        self.dtype = np.dtype(source.dtype if dtype is None else dtype)
        mapped = getattr(source, "_mmap", None) is not None and source.filename is not None
        self._source: Any = MappedFile(source) if mapped else source

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Size of all rows."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: slice | np.ndarray) -> np.ndarray:
        # A function may work in place. Those of a file and of other ``Rows`` are nobody else's.
        own = isinstance(self._source, MappedFile | Rows)
        rows = np.array(self._source[index], copy=None if own else True)
        return rows if self._function is None else self._function(rows)

    def read(self, start: int, out: np.ndarray) -> int:
        """Fills ``out`` with the rows from ``start`` on; returns how many there are."""
        rows = min(len(out), max(self.shape[0] - start, 0))
        plain = self._function is None and out.dtype == self.dtype
        if plain and isinstance(self._source, MappedFile) and self._source.in_order:
            self._source.read(start, out[:rows])
        else:
            out[:rows] = self[start : start + rows]
        return rows

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self[:].astype(self.dtype if dtype is None else dtype, copy=False)

    def __repr__(self) -> str:
        # Without the number of rows, which may be private.
        return f"Rows(row={self.shape[1:]}, dtype={self.dtype})"


class SourceFile:
    """A file that records are read from, which must keep its size."""

    def __init__(self, path: str | os.PathLike[str]):
        self.path = os.path.abspath(path)
        self._size = os.path.getsize(self.path)

    def check(self) -> None:
        """Raises an ``OSError`` if the file's size changed: its rows are others then."""
        if os.path.getsize(self.path) != self._size:
            raise OSError(f"the size of {self.path!r} changed while it was read.")


class MappedFile:
    """The file of a memory map: what is read of it does not stay in memory.

    ``in_order`` says whether rows follow each other in it, and can be read without mapping them.
    """

    def __init__(self, source: np.memmap):
        self._source = source
        self._map: mmap.mmap = source._mmap  # pyright: ignore[reportAttributeAccessIssue]
        self.source_file, self._read = SourceFile(str(source.filename)), 0
        # For ``preadv``: rows read through the map would stay in this process's memory.
        self._file = os.open(self.source_file.path, os.O_RDONLY)
        # With the last reference, or when Python ends.
        weakref.finalize(self, os.close, self._file)
        # A view of a map has the offset of the map, not its own.
        begin = np.frombuffer(self._map, np.uint8).ctypes.data
        self._offset = source.offset - source.offset % mmap.ALLOCATIONGRANULARITY
        self._offset += source.ctypes.data - begin
        self.in_order = source.flags.c_contiguous and hasattr(os, "preadv")

    def __getitem__(self, index: slice | np.ndarray) -> np.ndarray:
        """Returns rows of the file; a changed size raises, see ``SourceFile.check``."""
        if isinstance(index, slice) and self.in_order:
            start, stop, step = index.indices(len(self._source))
            if step == 1:
                out = np.empty((max(stop - start, 0), *self._source.shape[1:]), self._source.dtype)
                self.read(start, out)
                return out
        self.source_file.check()
        out = np.array(self._source[index])
        self._read += out.nbytes
        # Pages that were touched stay until memory is short, and count as this process's.
        if self._read > _PAGES and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)
            self._read = 0
        return out

    def read(self, start: int, out: np.ndarray) -> None:
        """Fills ``out`` with the rows from ``start`` on, without mapping their pages."""
        self.source_file.check()
        place = self._offset + start * self._source.strides[0]
        left = out.reshape(-1).view(np.uint8).data
        while len(left):
            # It may return less than was asked for.
            got = os.preadv(self._file, [left], place)
            if got == 0:
                raise OSError(f"{self.source_file.path!r} ends before its last row.")
            left, place = left[got:], place + got
