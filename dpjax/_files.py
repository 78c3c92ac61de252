"""Files that records are read from: the user's own, and a scratch file of rows that were mapped."""

import errno
import mmap
import os
import tempfile
import weakref
from typing import Any

import numpy as np

# A scratch file is made where this many times its size are free, so that it takes half at most.
_TIMES_FREE = 2
_PAGES = 2**26  # bytes of a file that stay mapped after they were read


class SourceFile:
    """A file that records are read from, which must keep its size."""

    def __init__(self, path: str | os.PathLike[str]):
        self.path = os.path.abspath(path)
        self._size = os.path.getsize(self.path)

    @property
    def folder(self) -> str:
        """The folder in which the file itself lies, wherever links to it are."""
        return os.path.dirname(os.path.realpath(self.path))

    def check(self) -> None:
        """Checks that the file has the size that it had, since its rows are others otherwise.

        Raises:
          OSError: if it has another one, or is gone.
        """
        if os.path.getsize(self.path) != self._size:
            raise OSError(f"the size of {self.path!r} changed while it was read.")


def fill(out: np.ndarray, file: int, place: int, path: str) -> None:
    """Fills an array with bytes of a file, without mapping its pages.

    ``out`` is contiguous, ``file`` a descriptor, ``place`` the first byte's; errors name ``path``.

    Raises:
      OSError: if it ends before that.
    """
    left = _bytes(out)
    while len(left):
        got = os.preadv(file, [left], place)
        if got == 0:
            raise OSError(f"{path!r} ends before its last row.")
        left, place = left[got:], place + got


class MappedFile:
    """The file of a memory map: what is read of it does not stay in memory.

    Attributes:
      source_file: its file.
      in_order: whether rows follow each other in the file, and can be read without mapping them.
    """

    def __init__(self, source: np.memmap):
        self._source = source
        self._map: mmap.mmap = source._mmap  # pyright: ignore[reportAttributeAccessIssue]
        self.source_file, self._read = SourceFile(str(source.filename)), 0
        self._file = os.open(self.source_file.path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)
        # A view of a map has the offset of the map, not its own.
        begin = np.frombuffer(self._map, np.uint8).ctypes.data
        self._offset = source.offset - source.offset % mmap.ALLOCATIONGRANULARITY
        self._offset += source.ctypes.data - begin
        self.in_order = source.flags.c_contiguous and hasattr(os, "preadv")

    def rows(self, index: slice | np.ndarray) -> np.ndarray:
        """Returns rows of the file.

        Raises:
          OSError: if it is shorter or longer than it was, since its rows are others now.
        """
        if isinstance(index, slice) and self.in_order:
            start, stop, step = index.indices(len(self._source))
            if step == 1:
                out = np.empty((max(stop - start, 0), *self._source.shape[1:]), self._source.dtype)
                self.read(start, out)
                return out
        self.source_file.check()
        found = np.array(self._source[index])
        self._read += found.nbytes
        if self._read > _PAGES and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)
            self._read = 0
        return found

    def read(self, start: int, out: np.ndarray) -> None:
        """Fills ``out`` with the rows from ``start`` on, without mapping their pages."""
        self.source_file.check()
        place = self._offset + start * self._source.strides[0]
        fill(out, self._file, place, self.source_file.path)


def is_mapped(source: Any) -> bool:
    """Returns whether rows are those of a file that is mapped."""
    held = isinstance(source, np.memmap) and source.filename is not None
    return held and getattr(source, "_mmap", None) is not None


class Scratch:
    """A file without a name, beside the source, that holds rows as a function mapped them.

    It is filled by ``append``, or by ``offer``: then rows are mapped in a first pass over the
    records and again in a second one, which writes them, so that whoever asks for one pass writes
    nothing. Later passes read them as they are. The file has no name from the start, hence ends
    with the process, whatever ends it. Where it cannot be made or written, there is none, and rows
    are mapped in each pass.

    Not for several threads at once.

    Args:
      source: what the rows are computed from; the file lies in its folder, and so on a disk that
        the user trusts with the records.

    Attributes:
      complete: whether it holds all rows. It is not read before.
      dropped: whether the file was given up.

    Privacy: raw data, readable by its owner alone.
    """

    def __init__(self, source: SourceFile, shape: tuple[int, ...], dtype: Any):
        self._source, self._rows = source, shape[0]
        self._row_bytes = int(np.prod(shape[1:], dtype=np.int64)) * np.dtype(dtype).itemsize
        # All rows before these were asked for in this pass, or are in the file.
        self._asked = self._written = 0
        self._passed, self._dropped = False, not hasattr(os, "preadv")
        self._file: Any = None

    @property
    def dropped(self) -> bool:
        return self._dropped

    @property
    def complete(self) -> bool:
        return self._file is not None and self._written == self._rows

    def offer(self, start: int, rows: np.ndarray) -> None:
        """Takes rows that were asked for, in the order in which they were; may write them.

        Their memory must stay as it is meanwhile; those after the last record are left out.
        """
        if self._dropped or self.complete:
            return
        stop = min(start + len(rows), self._rows)
        if self._passed and start <= self._written < stop:
            self.append(rows[self._written - start : stop - start])
        # A pass that was broken off, or that leaves rows out, counts for nothing.
        if start == 0:
            self._asked = stop
        elif start <= self._asked:
            self._asked = max(self._asked, stop)
        self._passed = self._passed or self._asked == self._rows

    def append(self, rows: np.ndarray) -> None:
        """Writes the rows that follow those that were written; those past the last are left out."""
        if self._dropped:
            return
        rows = rows[: self._rows - self._written]
        left, place = _bytes(rows), self._written * self._row_bytes
        try:
            if self._file is None:
                self._file = self._created()
            while len(left):
                put = os.pwrite(self._file.fileno(), left, place)
                left, place = left[put:], place + put
        except OSError:  # a folder that must not be written to, a disk that is full
            self.close()
        else:
            self._written += len(rows)

    def read(self, start: int, out: np.ndarray) -> int:
        """Fills ``out`` with the rows from ``start`` on; returns how many there are.

        Raises:
          OSError: if the source has changed its size, as where it is read itself.
        """
        self._source.check()
        rows = min(len(out), max(self._rows - start, 0))
        path = f"the scratch file in {self._source.folder}"
        fill(out[:rows], self._file.fileno(), start * self._row_bytes, path)
        return rows

    def close(self) -> None:
        """Closes the file, and so deletes it; there is none from then on."""
        self._dropped = True
        if self._file is not None:
            self._file.close()
            self._file = None

    def _created(self) -> Any:
        space, needed = os.statvfs(self._source.folder), self._rows * self._row_bytes
        if space.f_bavail * space.f_frsize < _TIMES_FREE * needed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return tempfile.TemporaryFile(dir=self._source.folder, buffering=0)


def _bytes(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data
