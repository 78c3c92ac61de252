"""Readers of files of columns, read piece by piece: NPY, Parquet, and NPZ with labels beside."""

import contextlib
import functools
import pathlib
import struct
import threading
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from tokenize import TokenError
from typing import Any

import numpy as np

from dpjax import _validate
from dpjax.datasets.cells import Kind, arrow_cells, kind_of, stated, to_numbers
from dpjax.datasets.forms import PLAIN
from dpjax.datasets.rows import Rows, SourceFile
from dpjax.datasets.source import NO_FORMS, Forms, OpenTable, Source, check_unique, few

# Errors of NumPy for a file that is not an archive of plain arrays.
DAMAGED = (EOFError, OSError, TypeError, ValueError, zipfile.BadZipFile, zlib.error, TokenError)
DECLARED = "dpjax.json"  # the member that tells a file of scaled rows from a table
# Names of the arrays of an NPZ: features, labels, features and labels for testing.
_NAMES = (
    ("x", "y", "test_x", "test_y"),
    ("X", "y", "X_test", "y_test"),
    ("X_train", "y_train", "X_test", "y_test"),
    ("x_train", "y_train", "x_test", "y_test"),
)
_LOCAL_HEADER = 30  # bytes of a ZIP member's own header, before its name
_Columns = tuple[tuple[str, bool], ...]  # names of columns, and whether each is read as float64


class Matrix(Source):
    """The columns of an array (n, p), by default "0", "1", ..., and others (n,) ``beside`` them."""

    def __init__(self, where: str, array: Any, names: Sequence[str] = (), beside: Any = None):
        self.where, self._array, self._beside = where, array, beside or {}
        columns = names or map(str, range(array.shape[1]))
        self._places = {name: place for place, name in enumerate(columns)}
        arrays = dict.fromkeys(self._places, array) | self._beside
        self.names, self.stated = (*arrays,), {name: stated(held) for name, held in arrays.items()}
        self.kinds = {name: kind_of(held) for name, held in arrays.items()}
        if array.dtype.kind in "USTO":  # it may hold numbers and words, as a CSV does
            self.kinds |= dict.fromkeys(self._places, Kind.MIXED)
        self.size = array.shape[0]

    def at(
        self, index: slice | np.ndarray, wanted: Sequence[str], numeric: Forms = NO_FORMS
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
            raise ImportError(_validate.install("reading Parquet", "pyarrow") + ".") from None
        try:
            self._reader = held = parquet.ParquetFile(path)
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
        # Features and labels are read in turn: of each the row group read last is kept.
        self._held: dict[_Columns, tuple[int, list[np.ndarray]]] = {}
        # Rows are read ahead in another thread.
        self._lock = threading.Lock()

    def at(
        self, index: slice | np.ndarray, wanted: Sequence[str], numeric: Forms = NO_FORMS
    ) -> list[np.ndarray]:
        # Text in another form stays text, which its encoder reads.
        columns = tuple((name, numeric.get(name) == PLAIN) for name in wanted)
        if isinstance(index, slice):
            index = np.arange(*index.indices(self.size))
        # Each row group is read once, whatever the order of the indices.
        groups = np.searchsorted(self._ends, index, side="right") - 1
        parts = []
        with self._lock:
            for group in np.unique(groups):
                places = index[groups == group] - self._ends[group]
                parts.append([column[places] for column in self._group(int(group), columns)])
        if len(parts) < 2:
            return parts[0] if parts else [np.empty(0, object) for _ in wanted]
        order = np.argsort(np.argsort(groups, kind="stable"))
        # An integer column is of objects in those groups that lack a cell.
        return [np.concatenate(pieces)[order] for pieces in zip(*parts, strict=True)]

    def _group(self, group: int, columns: _Columns) -> list[np.ndarray]:
        import pyarrow
        from pyarrow import parquet

        # Where the group is held too: a file that changed holds other records.
        self._file.check()
        if columns not in self._held or self._held[columns][0] != group:
            names = [name for name, _ in columns]
            try:
                table = self._reader.read_row_group(group, columns=names)
            except pyarrow.ArrowInvalid:
                # Categories of which one is not UTF-8. That would be an error by one record.
                plain = parquet.ParquetFile(self._file.path, binary_type=pyarrow.large_binary())
                table = plain.read_row_group(group, columns=names)
            read = [_floats if numeric else arrow_cells for _, numeric in columns]
            cells = [convert(table.column(n)) for convert, n in zip(read, names, strict=True)]
            self._held[columns] = group, cells
        return self._held[columns][1]


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


@contextlib.contextmanager
def opened(path: pathlib.Path) -> Iterator[Any]:
    """Opens an archive of plain arrays; what is none raises, there or where an array is read."""
    try:
        # Opened here, because numpy leaves a damaged archive's file open.
        with path.open("rb") as file, np.lib.npyio.NpzFile(file) as archive:
            yield archive
    except DAMAGED as error:
        raise ValueError(f"{str(path)!r} is not an archive of plain arrays: {error}.") from None


def open_archive(path: pathlib.Path, label: str | None, memory_limit: int | None) -> OpenTable:
    """Returns the arrays of an NPZ, whose columns are "0", "1", ..., and its labels.

    Privacy: a strange *record* raises nothing; errors depend on the names, shapes and
      dtypes of arrays only, which are taken as public.
    """
    # The size of an uncompressed archive is that of its arrays.
    on_disk = memory_limit is not None and path.stat().st_size > memory_limit
    held, names, arrays = _read(path, label, on_disk)
    where, (features, label, *of_test) = repr(str(path)), names
    _check_held(path, held, features, label)
    for name, array in arrays.items():
        if array is None:
            raise ValueError(
                f"{name!r} of {where} is compressed, so it is read as a whole, which is "
                "above memory_limit: save it by numpy.savez, or as NPY or Parquet."
            )
    present = [name in arrays for name in of_test]
    if present[0] != present[1]:
        raise ValueError(f"{where} must have both {of_test[0]!r} and {of_test[1]!r}, or neither.")
    sources = []
    for x, y in ((features, label), of_test)[: 1 + present[0]]:
        cells, labels = arrays[x], arrays[y]
        if cells.ndim != 2 or labels.shape != cells.shape[:1]:
            axes = (cells.ndim, labels.ndim)
            # Without n, which is private where records are added or removed.
            given = "two lengths" if axes == (2, 1) else f"{axes[0]} and {axes[1]} axes"
            raise ValueError(f"{x!r} of {where} must be (n, p) and {y!r} (n,), got {given}.")
        if cells.dtype.kind not in "biuf":
            raise ValueError(f"{x!r} of {where} must be numbers, got {cells.dtype}.")
        if cells.shape[1] != (width := arrays[features].shape[1]):
            raise ValueError(f"{x!r} of {where} must have {width} columns, as {features!r} has.")
        if on_disk:
            cells, labels = Rows(cells), Rows(labels)
        sources.append(Matrix(where, cells, beside={label: labels}))
    return OpenTable(*sources, on_disk=on_disk, label=label)


def read_features(path: pathlib.Path) -> np.ndarray:
    """Returns the array of features of an NPZ, which may have no labels."""
    held, (features, *_), arrays = _read(path, None, False)
    _check_held(path, held, features)
    return arrays[features]


def _read(
    path: pathlib.Path, label: str | None, mapped: bool
) -> tuple[list[str], tuple[str, str, str, str], dict[str, Any]]:
    """Returns which arrays there are, which are wanted, and those of them that there are."""
    with opened(path) as archive:
        held = archive.files
        names = next((names for names in _NAMES if names[0] in held), _NAMES[0])
        if label not in (None, names[1]):
            # Labels of another name have their test labels under a name like it.
            names = (names[0], label, names[2], f"test_{label}")
        read = functools.partial(mapped_member, path) if mapped else archive.__getitem__
        return held, names, {name: read(name) for name in names if name in held}


def _check_held(path: pathlib.Path, held: Sequence[str], *names: str) -> None:
    if DECLARED in held:
        raise ValueError(
            f"{str(path)!r} holds scaled rows, which dpjax.datasets.load reads: here give the "
            "table that they were made of."
        )
    roles = ("the features", "the labels (label=... names another)")
    for name, role in zip(names, roles, strict=False):
        if name not in held:
            raise ValueError(f"{str(path)!r} lacks {name!r}, {role}; it has {few(held)}.")
