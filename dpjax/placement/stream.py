"""Records that do not fit a device: they stay on disk or in the host's memory, and chunks come in.

A program asks for rows by a callback, and the next chunk is read while it works on this one.
"""

import contextlib
import dataclasses
import itertools
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from dpjax._files import MappedFile, Scratch, SourceFile, is_mapped
from dpjax._typing import Array, PyTree, pytree_dataclass, static

# References to an array that is in a list alone.
_UNUSED = max(map(sys.getrefcount, [np.empty(1)]))


class Rows:
    """An array-like whose rows are read when they are asked for: ``rows[5:9]``, ``rows[indices]``.

    Args:
      source: what gives rows for a slice or an array of indices: a memory map, or an object with
        ``shape`` and ``dtype``.
      function: maps each row by itself; identity by default.
      shape: of one row after it.
      dtype: after it.

    Attributes:
      source_file: from which the rows come in the end, if from one.

    Privacy: raw data.
    """

    def __init__(
        self,
        source: Any,
        function: Callable[[np.ndarray], np.ndarray] | None = None,
        shape: tuple[int, ...] | None = None,
        dtype: Any = None,
    ):
        self._source, self._function = source, function
        self.shape: tuple[int, ...] = (
            source.shape[0],
            *(source.shape[1:] if shape is None else shape),
        )
        self.dtype = np.dtype(source.dtype if dtype is None else dtype)
        self._file = MappedFile(source) if is_mapped(source) else None
        held = source if self._file is None else self._file
        self.source_file: SourceFile | None = getattr(held, "source_file", None)

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
        if self._file is not None:
            rows = self._file.rows(index)
        else:
            # A function may work in place. Those of other ``Rows`` are nobody else's.
            rows = np.array(self._source[index], copy=not isinstance(self._source, Rows) or None)
        return rows if self._function is None else self._function(rows)

    @property
    def computed_from(self) -> SourceFile | None:
        """The file whose rows are mapped or decoded; None for bytes of a file, or of memory."""
        return None if self._file is not None and self._function is None else self.source_file

    def read(self, start: int, out: np.ndarray) -> int:
        """Fills ``out`` with the rows from ``start`` on; returns how many there are."""
        rows = min(len(out), max(self.shape[0] - start, 0))
        plain = self._file is not None and self._function is None and out.dtype == self.dtype
        if plain and self._file.in_order:  # pyright: ignore[reportOptionalMemberAccess]
            self._file.read(start, out[:rows])  # pyright: ignore[reportOptionalMemberAccess]
        else:
            out[:rows] = self[start : start + rows]
        return rows

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        del copy
        return self[:].astype(self.dtype if dtype is None else dtype, copy=False)

    def __repr__(self) -> str:
        # Without the number of rows, which may be private.
        return f"Rows(row={self.shape[1:]}, dtype={self.dtype})"


@pytree_dataclass
class Streamed:
    """Records outside of the device, as a program of JAX holds them; secret.

    Args:
      token: int32 (1,), which reader serves them, so that one program serves all.
      prepared: the same records in the form that their sums read, where they were prepared once.
    """

    token: Array
    kinds: tuple[tuple[tuple[int, ...], str], ...] = static()
    structure: Any = static()
    size: int = static()
    prepared: "Streamed | None" = None

    @property
    def shapes(self) -> PyTree:
        """The shapes and dtypes of all records."""
        return self._shapes(self.size)

    def chunk(self, start: Array, rows: int) -> PyTree:
        """Returns ``rows`` records from ``start`` on; 0 for those past the last."""
        asked = self.token, jnp.asarray(start, jnp.int32)
        return jax.pure_callback(
            lambda token, start: _READERS[int(token[0])].chunk(int(start), rows),
            self._shapes(rows),
            *asked,
            vmap_method="sequential",
        )

    def at(self, indices: Array) -> PyTree:
        """Returns the records at ``indices``."""
        return jax.pure_callback(
            lambda token, indices: _READERS[int(token[0])].at(np.asarray(indices)),
            self._shapes(indices.shape[0]),
            self.token,
            indices,
            vmap_method="sequential",
        )

    def _shapes(self, rows: int) -> PyTree:
        leaves = [jax.ShapeDtypeStruct((rows, *shape), dtype) for shape, dtype in self.kinds]
        return jax.tree.unflatten(self.structure, leaves)


class _Reader:
    """Reads chunks in order, one ahead; on the host.

    Args:
      scratches: files that hold the rows already, in place of leaves, of which the shapes count.
    """

    def __init__(
        self,
        leaves: Sequence[Any],
        dtypes: Sequence[Any],
        structure: Any,
        scratches: Sequence[Scratch] | None = None,
    ):
        self._leaves, self._dtypes, self.structure = leaves, dtypes, structure
        self._scratches: Sequence[Scratch | None] = scratches or [
            _scratch(*both) for both in zip(leaves, dtypes, strict=True)
        ]
        self.size = leaves[0].shape[0]
        self._ahead: dict[tuple[int, int], Future] = {}
        self._pools: dict[int, list[list[np.ndarray]]] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dpjax-records")
        self.failed: BaseException | None = None
        self.served = 0
        self.beside: list[int] = []  # tokens of readers that are closed with this one

    @property
    def kinds(self) -> tuple[tuple[tuple[int, ...], str], ...]:
        """Shape and dtype of a row of each leaf."""
        both = zip(self._leaves, self._dtypes, strict=True)
        return tuple((tuple(leaf.shape[1:]), str(dtype)) for leaf, dtype in both)

    @property
    def computed_from(self) -> SourceFile | None:
        """The one file from which all leaves come, if some of them are mapped or decoded."""
        computed = next(filter(None, (leaf.computed_from for leaf in self._leaves)), None)
        files = (leaf.source_file for leaf in self._leaves)
        same = all(file and computed and file.path == computed.path for file in files)
        return computed if same else None

    def rest(self) -> None:
        """Forgets what was read ahead and counted, and frees the memory for it."""
        self._ahead.clear()
        self._pools.clear()
        self.served = 0

    def chunk(self, start: int, rows: int) -> PyTree:
        """Returns rows from ``start`` on, and begins to read those that come next."""
        found = self._ahead.pop((start, rows), None) or self._read_later(start, rows)
        self._ahead.clear()
        leaves = self._kept(found.result)
        if any(self._scratches):
            self._thread.submit(self._offer, start, leaves)
        # After the last chunk comes the first, of the next pass.
        follows = start + rows if start + rows < self.size else 0
        self._ahead[follows, rows] = self._read_later(follows, rows)
        self.served += rows
        return jax.tree.unflatten(self.structure, leaves)

    def at(self, indices: np.ndarray) -> PyTree:
        """Returns the rows at ``indices``."""
        order = np.argsort(indices, kind="stable")  # a file is read from front to back

        def read() -> list[np.ndarray]:
            leaves = []
            for leaf, dtype in zip(self._leaves, self._dtypes, strict=True):
                rows = np.empty((len(indices), *leaf.shape[1:]), dtype)
                with np.errstate(all="ignore"):
                    rows[order] = leaf[indices[order]]
                leaves.append(rows)
            return leaves

        self.served += len(indices)
        return jax.tree.unflatten(self.structure, self._kept(read))

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
        for scratch in filter(None, self._scratches):
            scratch.close()

    def _read_later(self, start: int, rows: int) -> Future:
        return self._thread.submit(self._read, start, rows)

    def _read(self, start: int, rows: int) -> list[np.ndarray]:
        found = self._unused(rows)
        for leaf, scratch, out in zip(self._leaves, self._scratches, found, strict=True):
            source = scratch if scratch is not None and scratch.complete else leaf
            with np.errstate(all="ignore"):
                out[source.read(start, out) :] = 0
        return found

    def _offer(self, start: int, found: list[np.ndarray]) -> None:
        for scratch, rows in zip(self._scratches, found, strict=True):
            if scratch is not None:
                scratch.offer(start, rows)

    def _unused(self, rows: int) -> list[np.ndarray]:
        """Memory for so many rows that nobody refers to: new memory costs as much as reading."""
        pool = self._pools.setdefault(rows, [])
        for held in pool:
            if max(map(sys.getrefcount, held)) <= _UNUSED:
                return list(held)
        both = zip(self._leaves, self._dtypes, strict=True)
        pool.append([np.empty((rows, *leaf.shape[1:]), dtype) for leaf, dtype in both])
        return list(pool[-1])

    def _kept(self, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except BaseException as error:
            self.failed = error
            raise


def _scratch(leaf: Rows, dtype: Any) -> Scratch | None:
    source = leaf.computed_from
    return None if source is None else Scratch(source, leaf.shape, dtype)


_READERS: dict[int, _Reader] = {}
_TOKENS = itertools.count()
_LOCK = threading.Lock()


def is_streamed(examples: PyTree) -> bool:
    """Returns whether some records are to stay where they are.

    >>> is_streamed((np.ones(2), Rows(np.ones(2))))
    True
    """
    return any(isinstance(leaf, Rows) for leaf in jax.tree.leaves(examples))


def shaped(examples: PyTree) -> PyTree:
    """Returns ``examples`` with shapes and dtypes in place of rows that are not read."""

    def one(leaf: Any) -> Any:
        if not isinstance(leaf, Rows):
            return leaf
        return jax.ShapeDtypeStruct(leaf.shape, jax.dtypes.canonicalize_dtype(leaf.dtype))

    return jax.tree.map(one, examples)


def stream(examples: PyTree) -> Streamed:
    """Returns ``examples`` as a program holds them; ``reading`` closes what it opens.

    Raises:
      ValueError: inside ``jit``, which runs when ``reading`` has ended.
    """
    if isinstance(jnp.zeros(1)[0], Tracer):
        raise ValueError(
            "records that stay on disk cannot be read inside jit, whose program runs later: call "
            "solve outside of it (it is one program already), or pass arrays."
        )
    leaves, structure = jax.tree.flatten(examples)
    leaves = [leaf if isinstance(leaf, Rows) else Rows(leaf) for leaf in leaves]
    dtypes = [jax.dtypes.canonicalize_dtype(leaf.dtype) for leaf in leaves]
    return _streamed(_Reader(leaves, dtypes, structure))


def _streamed(reader: _Reader) -> Streamed:
    with _LOCK:
        token = next(_TOKENS) % 2**31
        _READERS[token] = reader
    return Streamed(jnp.array([token], jnp.int32), reader.kinds, reader.structure, reader.size)


def computed_from(records: Streamed) -> SourceFile | None:
    """Returns the file from which records are mapped or decoded.

    None where they are read as they are, or where some lie elsewhere.
    """
    return _READERS[int(records.token[0])].computed_from


def chunks(records: Streamed, rows: int) -> Iterator[tuple[int, PyTree]]:
    """Yields where each chunk of ``rows`` records begins, and the chunk as ``Streamed.chunk``.

    Not counted in ``served``.
    """
    reader = _READERS[int(records.token[0])]
    try:
        for start in range(0, records.size, rows):
            yield start, reader.chunk(start, rows)
    finally:
        reader.rest()


def with_prepared(records: Streamed, prepared: PyTree, scratches: Sequence[Scratch]) -> Streamed:
    """Returns ``records`` with their prepared form, which ``reading`` closes with them.

    Each of ``scratches`` holds a leaf of it, whose shapes and dtypes ``prepared`` gives.
    """
    leaves, structure = jax.tree.flatten(prepared)
    dtypes = [leaf.dtype for leaf in leaves]
    held = _streamed(_Reader(leaves, dtypes, structure, scratches))
    _READERS[int(records.token[0])].beside.append(int(held.token[0]))
    return dataclasses.replace(records, prepared=held)


def served(records: PyTree) -> int:
    """Returns how many records passes have read so far; 0 where none are streamed."""
    if not isinstance(records, Streamed):
        return 0
    if records.prepared is None:
        return _READERS[int(records.token[0])].served
    per_row = -(-records.size // records.prepared.size)
    return per_row * _READERS[int(records.prepared.token[0])].served


def finished(records: PyTree, result: PyTree) -> None:
    """Waits for what is computed from ``records``, where they are still to be read."""
    if isinstance(records, Streamed):
        jax.block_until_ready(result)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps JAX from printing a trace beside the error that is raised."""
    logger = logging.getLogger("jax._src.callback")
    was, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = was


@contextlib.contextmanager
def reading(records: PyTree) -> Iterator[None]:
    """Closes the reader of ``records`` at the end, when what was computed from them is there.

    Raises:
      OSError: if they could not be read, such as a file that changed.
    """
    if not isinstance(records, Streamed):
        yield
        return
    first = int(records.token[0])
    try:
        with _quiet():
            yield
    except Exception as error:  # of a class that depends on when JAX notices
        readers = [_READERS[token] for token in (first, *_READERS[first].beside)]
        failed = next((reader.failed for reader in readers if reader.failed is not None), None)
        if failed is None:
            raise
        raise OSError(
            f"the records could not be read: {failed} What was begun is spent; with a checkpoint "
            "the same call goes on, once the records are what they were."
        ) from error
    finally:
        with _LOCK:
            for token in (first, *_READERS[first].beside):
                _READERS.pop(token).close()
