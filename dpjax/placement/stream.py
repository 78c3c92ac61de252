"""Records that do not fit a device: they stay on disk or in the host's memory, and chunks come in.

A program asks for rows by a callback, and the next chunk is read while it works on this one.
"""

import contextlib
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

from dpjax._typing import Array, PyTree, pytree_dataclass, static
from dpjax.datasets.rows import Rows

# References to an array that is in a list alone.
_UNUSED = max(map(sys.getrefcount, [np.empty(1)]))


@pytree_dataclass
class Streamed:
    """Records outside of the device, as a program of JAX holds them; secret."""

    token: Array
    """Int32 (1,), which reader serves them, so that one program serves all."""
    kinds: tuple[tuple[tuple[int, ...], str], ...] = static()
    structure: Any = static()
    size: int = static()

    @property
    def shapes(self) -> PyTree:
        """The shapes and dtypes of all records."""
        return self._shapes(self.size)

    def chunk(self, start: Array, rows: int) -> PyTree:
        """Returns ``rows`` records from ``start`` on; 0 for those past the last."""
        start = jnp.asarray(start, jnp.int32)
        return self._read(lambda reader, start: reader.chunk(int(start), rows), rows, start)

    def at(self, indices: Array) -> PyTree:
        """Returns the records at ``indices``."""
        rows = indices.shape[0]
        return self._read(lambda reader, indices: reader.at(np.asarray(indices)), rows, indices)

    def _read(self, read: Callable[["_Reader", Any], PyTree], rows: int, where: Array) -> PyTree:
        def on_host(token: Any, where: Any) -> PyTree:
            return read(_READERS[int(token[0])], where)

        shapes = self._shapes(rows)
        # Runs under vmap ask one after the other: the reader serves one chunk at a time.
        return jax.pure_callback(on_host, shapes, self.token, where, vmap_method="sequential")

    def _shapes(self, rows: int) -> PyTree:
        leaves = [jax.ShapeDtypeStruct((rows, *shape), dtype) for shape, dtype in self.kinds]
        return jax.tree.unflatten(self.structure, leaves)


class _Reader:
    """Reads chunks in order, one ahead; on the host."""

    def __init__(self, leaves: Sequence[Rows], dtypes: Sequence[Any], structure: Any):
        self._leaves, self._dtypes, self._structure = leaves, dtypes, structure
        self.size = leaves[0].shape[0]
        self._ahead: dict[tuple[int, int], Future] = {}
        self._pools: dict[int, list[list[np.ndarray]]] = {}
        # One: chunks of a file are read in its order.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dpjax-records")
        self.failed: BaseException | None = None
        self.rows_read = 0

    def chunk(self, start: int, rows: int) -> PyTree:
        """Returns rows from ``start`` on, and begins to read those that come next."""
        read = self._ahead.pop((start, rows), None) or self._read_later(start, rows)
        # Whatever else was read ahead belongs to a pass that has ended.
        self._ahead.clear()
        leaves = self._kept(read.result)
        # After the last chunk comes the first, of the next pass.
        follows = start + rows if start + rows < self.size else 0
        self._ahead[follows, rows] = self._read_later(follows, rows)
        self.rows_read += rows
        return jax.tree.unflatten(self._structure, leaves)

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

        self.rows_read += len(indices)
        return jax.tree.unflatten(self._structure, self._kept(read))

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _read_later(self, start: int, rows: int) -> Future:
        return self._thread.submit(self._read, start, rows)

    def _read(self, start: int, rows: int) -> list[np.ndarray]:
        leaves = self._unused(rows)
        for leaf, out in zip(self._leaves, leaves, strict=True):
            with np.errstate(all="ignore"):
                # Memory is used again: past the last record it holds rows of an earlier chunk.
                out[leaf.read(start, out) :] = 0
        return leaves

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
            # Kept, since JAX wraps what a callback raises in an error of its own.
            self.failed = error
            raise


_READERS: dict[int, _Reader] = {}
_TOKENS = itertools.count()
_LOCK = threading.Lock()


def is_streamed(examples: PyTree) -> bool:
    """Returns whether some records are to stay where they are."""
    return any(isinstance(leaf, Rows) for leaf in jax.tree.leaves(examples))


def shaped(examples: PyTree) -> PyTree:
    """Returns ``examples`` with shapes and dtypes in place of rows that are not read."""

    def shape_of(leaf: Any) -> Any:
        if not isinstance(leaf, Rows):
            return leaf
        return jax.ShapeDtypeStruct(leaf.shape, jax.dtypes.canonicalize_dtype(leaf.dtype))

    return jax.tree.map(shape_of, examples)


def stream(examples: PyTree) -> Streamed:
    """Returns ``examples`` as a program holds them; ``open_readers`` closes what it opens."""
    # Inside jit an operation on constants is traced too.
    if isinstance(jnp.zeros(1)[0], Tracer):
        raise ValueError(
            "records that stay on disk cannot be read inside jit, whose program runs later: call "
            "solve outside of it (it is one program already), or pass arrays."
        )
    leaves, structure = jax.tree.flatten(examples)
    leaves = [leaf if isinstance(leaf, Rows) else Rows(leaf) for leaf in leaves]
    dtypes = [jax.dtypes.canonicalize_dtype(leaf.dtype) for leaf in leaves]
    both = zip(leaves, dtypes, strict=True)
    kinds = tuple((tuple(leaf.shape[1:]), str(dtype)) for leaf, dtype in both)
    with _LOCK:
        # An int32 in the program.
        token = next(_TOKENS) % 2**31
        reader = _READERS[token] = _Reader(leaves, dtypes, structure)
    return Streamed(jnp.array([token], jnp.int32), kinds, structure, reader.size)


def rows_read(records: PyTree) -> int:
    """Returns how many records passes have read so far; 0 where none are streamed."""
    return _READERS[int(records.token[0])].rows_read if isinstance(records, Streamed) else 0


@contextlib.contextmanager
def _without_traces() -> Iterator[None]:
    """Keeps JAX from printing a trace beside the error that is raised."""
    logger = logging.getLogger("jax._src.callback")
    was, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = was


@contextlib.contextmanager
def open_readers(records: PyTree) -> Iterator[None]:
    """Closes the reader of ``records`` at the end, when what was computed from them is there."""
    if not isinstance(records, Streamed):
        yield
        return
    token = int(records.token[0])
    try:
        with _without_traces():
            yield
    except Exception as error:  # of a class that depends on when JAX notices
        # All reads went well, so that the error is not of the records.
        if (failed := _READERS[token].failed) is None:
            raise
        raise OSError(
            f"the records could not be read: {failed} What was begun is spent; with a checkpoint "
            "the same call goes on, once the records are what they were."
        ) from error
    finally:
        with _LOCK:
            _READERS.pop(token).close()
