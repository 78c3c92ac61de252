"""Sums over records in chunks of bounded memory; ``compute_once`` for values used twice."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from dpjax._typing import Array, Bool, Float, PyTree
from dpjax._wide import Expansion
from dpjax.derivatives import integers
from dpjax.derivatives.integers import Summand
from dpjax.derivatives.rounding import BLOCK, CHUNK
from dpjax.placement.shard import SHARE
from dpjax.placement.stream import Streamed


class Chunk(NamedTuple):
    """The rows of one chunk."""

    step: Array
    start: Array
    """Its first row, int32; the last chunk starts early enough to be full."""
    fresh: Array
    """Bool (rows,), False for rows that an earlier chunk has summed."""
    overlaps: bool = False
    """Whether the last chunk has such rows."""

    def of(self, array: Array, axis: int = 0) -> Array:
        """Returns the chunk's slice of ``array`` along ``axis``."""
        return lax.dynamic_slice_in_dim(array, self.start, self.fresh.shape[0], axis)

    def stored(self, batch: PyTree, mask: Array | None) -> tuple[PyTree, Array]:
        """Returns the rows, as arrays in memory, and which of them count: the fresh ones first.

        The rows of a block are then the same whatever comes after the last chunk.
        """

        def as_they_lie() -> tuple[PyTree, Array]:
            keep = self.fresh if mask is None else self.fresh & self.of(mask)
            if isinstance(batch, Streamed):
                return batch.chunk(self.start, self.fresh.shape[0]), keep
            return jax.tree.map(self.of, batch), keep

        if not self.overlaps:
            return compute_once(self, as_they_lie)
        # Rows that an earlier chunk has summed come first here; they are moved to the end.
        shift = jnp.sum(~self.fresh)

        def turned() -> tuple[PyTree, Array]:
            return jax.tree.map(lambda leaf: jnp.roll(leaf, -shift, axis=0), as_they_lie())

        # A branch stores its results, as in ``compute_once``.
        return lax.cond(shift > 0, turned, as_they_lie)


def rows_per_chunk(n: int, numbers_per_row: int, numbers: int = 2**21, most: int = 4096) -> int:
    """Returns the rows of a chunk that holds ``numbers`` values: a power of two, or n below 128.

    2^21 values are 8 MB in float32: smaller chunks stay on one core, larger ones leave the cache.
    """
    # Never above CHUNK: the float64 sum of a chunk is charged for at most so many rows.
    fitting = max(1, min(most, CHUNK, numbers // max(numbers_per_row, 1)))
    if n <= min(BLOCK, fitting):
        return n
    # A power of two, so that blocks hold the same rows whatever n is.
    return 1 << (min(n, fitting).bit_length() - 1)


def blocks_per_chunk(count: int, numbers_per_block: int, numbers: int) -> int:
    """Returns the blocks of a chunk that holds ``numbers`` values, nearly equal for all chunks."""
    # Never above CHUNK rows, for which the rounding is charged, whatever fits the cache.
    most = min(CHUNK // BLOCK, numbers // numbers_per_block)
    chunks = -(-count // max(1, most))
    # Spread evenly: the last chunk costs what the others do, however few blocks it needs.
    return -(-count // chunks)


def blocks(array: Array, axis: int = 0, size: int = BLOCK) -> Array:
    """Returns ``array`` with the rows at ``axis`` in blocks, each of which is added in float32."""
    shape, size = array.shape, min(size, array.shape[axis])
    return array.reshape(*shape[:axis], shape[axis] // size, size, *shape[axis + 1 :])


def sum_chunks(
    n: int, rows: int, contribution: Callable[[Chunk], PyTree], summands: PyTree
) -> PyTree:
    """Returns the sum of ``contribution`` over the chunks that cover rows 0 to n - 1.

    ``contribution`` returns sums over blocks of a chunk's fresh rows, with a leading axis of
    blocks; it must leave out the other rows. The result is an ``Expansion`` for each summand, the
    same bits for any ``rows``, at most n, that cut the same blocks.
    """

    def body(step, total):
        first = step * rows
        # Slices have one size: the last chunk starts early.
        start = jnp.minimum(first, n - rows)
        fresh = start + jnp.arange(rows) >= first
        chunk = Chunk(step, start, fresh, n % rows != 0)
        return _map(Summand.add, summands, total, contribution(chunk))

    return _finished(summands, lax.fori_loop(0, -(-n // rows), body, _zero(summands)))


def sum_loads(
    loads: int,
    load: Callable[[Chunk], PyTree],
    chunks: int,
    rows: int,
    contribution: Callable[[PyTree, Chunk], PyTree],
    summands: PyTree,
) -> PyTree:
    """Returns the sum of ``contribution`` over chunks of which some come in together.

    ``load`` returns what comes in, of a chunk of all its rows; ``contribution`` is of a load and
    one of its ``chunks``. All are full: what is past the last record contributes zero.
    """

    # Two loops: what comes in by one callback is enough for several chunks that fit the cache.
    def outer(i: Array, total: PyTree) -> PyTree:
        all_rows = jnp.ones(chunks * rows, bool)
        held = load(Chunk(i, i * chunks * rows, all_rows))

        def inner(j: Array, total: PyTree) -> PyTree:
            chunk = Chunk(i * chunks + j, j * rows, jnp.ones(rows, bool))
            return _map(Summand.add, summands, total, contribution(held, chunk))

        return lax.fori_loop(0, chunks, inner, total)

    return _finished(summands, lax.fori_loop(0, loads, outer, _zero(summands)))


def count_rows(
    batch: PyTree, mask: Bool[Array, " n"] | None, flags: Callable[[PyTree], Any]
) -> Float[Expansion, ""]:
    """Returns for how many rows ``flags`` is True, shape (), exactly; or their sum, up to rounding.

    ``batch`` has one row a record, of which ``mask`` (n,) leaves some out. ``flags`` is of some
    rows, bool or numbers from 0 to 1 (rows,), each of its own row alone.

    >>> float(count_rows(jnp.arange(5), None, lambda x: x > 2).leading)
    2.0
    """
    n = common_length(batch, mask)

    def contribution(chunk: Chunk) -> Array:
        rows, keep = chunk.stored(batch, mask)
        # 0 and 1 are multiples of the grid that a bound of 1 gives: nothing is rounded.
        return jnp.where(keep, flags(rows), 0)

    # A row is one flag here, so that only the rounding bound limits a chunk.
    return sum_chunks(n, min(n, CHUNK), contribution, integers.COUNT)


def even_rows(n: int, most: int) -> tuple[int, int, int]:
    """Returns the rows of a chunk of ``sum_blocks``, those of its blocks, and how many chunks."""
    most = max(1, min(most, CHUNK))
    if n >= SHARE:
        # As many as divide every device's share.
        rows = 1 << (min(most, SHARE).bit_length() - 1)
        return rows, min(rows, BLOCK), -(-n // rows)
    # Blocks of nearly equal size leave few rows of the last one empty.
    size = -(-n // -(-n // min(BLOCK, most)))
    count = -(-n // size)
    steps = -(-count // max(most // size, 1))
    return -(-count // steps) * size, size, steps


def sum_blocks(
    n: int, most: int, contribution: Callable[[Chunk, int], PyTree], summands: PyTree
) -> PyTree:
    """Returns the sum of ``contribution`` over blocks of even size that cover rows 0 to n - 1.

    Unlike ``sum_chunks`` it computes hardly any row twice, and needs no loop if all rows fit at
    once. ``contribution`` is also passed the size of the blocks.
    """
    rows, size, steps = even_rows(n, most)

    def body(step, total):
        start = step * rows
        fresh = start + jnp.arange(rows) < n
        return _map(Summand.add, summands, total, contribution(Chunk(step, start, fresh), size))

    if steps == 1:
        return _finished(summands, body(jnp.int32(0), _zero(summands)))
    return _finished(summands, lax.fori_loop(0, steps, body, _zero(summands)))


def _zero(summands: PyTree) -> PyTree:
    # First of all: what is charged for rounding holds up to so many numbers.
    integers.check(sum(jax.tree.leaves(_map(lambda each: math.prod(each.shape), summands))))
    return _map(Summand.zero, summands)


def _finished(summands: PyTree, total: PyTree) -> PyTree:
    # One collective for all parts of the sum, and of integers, so that it is exact.
    return _map(Summand.finish, summands, integers.over_shares(total))


def _map(function: Callable[..., Any], summands: PyTree, *trees: PyTree) -> PyTree:
    # Summands are tuples themselves: without ``is_leaf`` they would be taken apart.
    return jax.tree.map(function, summands, *trees, is_leaf=lambda leaf: isinstance(leaf, Summand))


def compute_once(chunk: Chunk, function: Callable[..., PyTree], *args: Any) -> PyTree:
    """Returns ``function(*args)`` as arrays in memory, which no consumer recomputes.

    A compiler may fuse a copy of the computation into each consumer and round it differently there:
    then the gradient that is measured is not the gradient that is added. On a CPU
    ``lax.optimization_barrier`` does not stop this. A branch that the compiler cannot decide does,
    as its results must be stored.
    """

    # The branch that is never taken; ``cond`` asks for the same shapes and dtypes.
    def zeros(*args):
        shapes = jax.eval_shape(function, *args)
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    # Depends on the loop alone, so that it stays one branch under vmap over parameters or data.
    always = lax.optimization_barrier(chunk.step) >= 0
    return lax.cond(always, function, zeros, *args)


def common_length(tree: PyTree, mask: ArrayLike | None, name: str = "batch") -> int:
    """Returns the length of the leading axis that all leaves share, or raises; also for a mask.

    Privacy: reads shapes and dtypes, no value. No message names n, which may be private.
    """
    if isinstance(tree, Streamed):
        return tree.size
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(tree)]
    if not shapes or any(not shape for shape in shapes):
        raise ValueError(f"{name} must be a pytree of arrays with one row per record.")
    lengths = {shape[0] for shape in shapes}
    if len(lengths) > 1:
        raise ValueError(f"all arrays of {name} must have the same number of rows.")
    (n,) = lengths
    if n == 0:
        raise ValueError(
            f"{name} must hold at least one record; for an empty batch pass rows with mask=False."
        )
    # Only bool: ``&`` with integers works bit by bit, and would drop a row marked 2.
    if mask is not None and (jnp.shape(mask) != (n,) or jnp.result_type(mask) != jnp.bool_):
        raise ValueError(
            f"mask must be a bool array of shape (n,), one entry for each row of {name}, got "
            f"{jnp.ndim(mask)} axes of {jnp.result_type(mask)}."
        )
    return n
