"""Records of a linear model in the layout that closed forms read: in memory, or by chunks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from dpjax._typing import Array, Bool, Float, PyTree, Real, pytree_dataclass, static
from dpjax._wide import float64, wide_dtype
from dpjax.derivatives import chunks, clipping, rounding
from dpjax.derivatives.chunks import Chunk
from dpjax.objectives.linear import Signs
from dpjax.placement.shard import SHARE
from dpjax.placement.stream import Streamed

Contribution = Callable[[Chunk, Array, Array, Array | None], PyTree]
Parts = tuple[Array, Array, Array | None]

# Chunks of features of this many numbers (1 MB in float32) stay in a core's cache.
_NUMBERS = 2**18
# Blocks of a chunk of a large batch, at most. Measured with 54 features: a block costs a quarter
# more in chunks of 8, and a tenth less in chunks of 32, of which more blocks would be empty.
_WIDTH = 16
# The same where one block leaves the cache: with 3,969 features a second moment takes 0.6 of the
# time that it takes with 1, and a gradient 0.8.
UNCACHED = 4
# Streamed chunks that come in at once hold so many numbers (8 MB in float32): each time costs a
# callback.
AT_ONCE = 2**21


@pytree_dataclass
class PreparedLinear:
    """Records of a linear model in the layout of the closed forms, prepared once; secret.

    Args:
      directions: (blocks, p, rows), x_i / |x_i| for the records of a block as columns, so that a
        block is a matrix with long rows; times y_i where labels are signs; 0 for a record that
        contributes nothing.
      radius: (blocks, rows), |x_i|; 0 for a record that contributes nothing, and after the last.
      width: blocks of a chunk, which divides their number.
      label: (blocks, rows), y_i, or None where labels are signs.
    """

    directions: Float[Array, "blocks p rows"]
    radius: Float[Array, "blocks rows"]
    width: int = static()
    label: Float[Array, "blocks rows *label"] | None = None

    @property
    def features(self) -> int:
        """Number of features."""
        return self.directions.shape[1]

    @property
    def dtype(self) -> jnp.dtype:
        """That of the sums."""
        return self.directions.dtype

    def sum(self, contribution: Contribution, summands: PyTree) -> PyTree:
        """Returns the sum of ``contribution(chunk, directions, radii, labels)`` over all chunks.

        Directions are (width, p, rows), radii and labels (width, rows).
        """

        def of_chunk(chunk: Chunk) -> PyTree:
            return contribution(chunk, *self.of(chunk))

        return chunks.sum_chunks(self.directions.shape[0], self.width, of_chunk, summands)

    def of(self, chunk: Chunk) -> Parts:
        """Returns the directions, radii and labels of a chunk."""
        label = None if self.label is None else chunk.of(self.label)
        return finite(chunk.of(self.directions)), chunk.of(self.radius), label

    def of_unit_length(self) -> "PreparedLinear":
        """Returns the records in float64, longer ones scaled to length 1."""
        with jax.enable_x64(True):
            # The direction has length 1 already: the radius alone is cut.
            radius = jnp.minimum(float64(self.radius), 1.0)
            label = None if self.label is None else float64(self.label)
            return PreparedLinear(float64(self.directions), radius, self.width, label)


@pytree_dataclass
class StreamedLinear:
    """Records of a linear model that come in, and are prepared, chunk by chunk; secret."""

    rows: Streamed
    """``(x, y)``, with x (n, p) floating and y (n,)."""
    width: int = static()
    labels: Signs = static(default=Signs())
    scaled: bool = static(default=False)
    """Whether in float64, longer ones scaled to length 1."""

    @property
    def features(self) -> int:
        """Number of features."""
        return self.rows.shapes[0].shape[1]

    @property
    def dtype(self) -> jnp.dtype:
        """That of the sums."""
        return jnp.dtype("float64") if self.scaled else wide_dtype(self.rows.shapes[0].dtype)

    def sum(self, contribution: Contribution, summands: PyTree) -> PyTree:
        """Returns the sum as ``PreparedLinear`` does; some chunks at a time come in together."""
        size = min(self.rows.size, rounding.BLOCK)
        rows = size * self.width
        count = -(-self.rows.size // rows)
        # As many chunks at once as ``AT_ONCE`` allows.
        together = max(1, min(count, AT_ONCE // (rows * self.features)))

        def load(blocks: Chunk) -> PreparedLinear:
            return self._prepared(blocks, size)

        def of_chunk(part: PreparedLinear, chunk: Chunk) -> PyTree:
            return contribution(chunk, *part.of(chunk))

        loads = -(-count // together)
        return chunks.sum_loads(loads, load, together, self.width, of_chunk, summands)

    def _prepared(self, blocks: Chunk, size: int) -> PreparedLinear:
        first, rows = blocks.start * size, blocks.fresh.shape[0] * size

        def computed() -> Parts:
            x, y = self.rows.chunk(first, rows)
            here = first + jnp.arange(rows) < self.rows.size
            return in_blocks(x, y, here, self.labels, size)

        # Stored: norm and sum must read the same numbers.
        directions, radius, label = chunks.compute_once(blocks, computed)
        prepared = PreparedLinear(directions, radius, self.width, label)
        return prepared.of_unit_length() if self.scaled else prepared

    def of_unit_length(self) -> "StreamedLinear":
        """Returns the records in float64, longer ones scaled to length 1."""
        return StreamedLinear(self.rows, self.width, self.labels, scaled=True)


Linear = PreparedLinear | StreamedLinear


def without_mask(prepared: Any, mask: Any) -> Any:
    """Returns prepared records or units, or raises where a mask comes with them."""
    if mask is not None:
        raise ValueError("prepared records take no mask; pass it to what prepares them.")
    return prepared


@functools.partial(jax.jit, static_argnames=("width", "labels"))
def prepare(
    batch: tuple[Real[ArrayLike, "n p"], Real[ArrayLike, "n ..."]],
    mask: Bool[ArrayLike, " n"] | None = None,
    width: int | None = None,
    labels: Signs | None = None,
) -> PreparedLinear:
    """Returns the records in the layout that closed forms read.

    ``width`` is by default one that a device's share of many rows has too; labels are -1 and +1.
    A record with a feature that is not finite, or a label that does not count, has direction,
    radius and label 0, hence contributes exactly zero at the same cost.

    Privacy: raw data; each column depends on one record alone.
    """
    x, y = map(jnp.asarray, batch)
    counted = None if mask is None else jnp.asarray(mask)
    kind = Signs() if labels is None else labels
    if (x.ndim, y.ndim) != (2, 1 + kind.axes):
        raise ValueError(f"x must have shape (n, p) and y (n,), got {x.ndim} and {y.ndim} axes.")
    chunks.common_length((x, y), mask)
    n, p = x.shape
    size = min(n, rounding.BLOCK)
    at_once = width or _any_width(n, p)
    # Whole chunks: blocks past the last record are empty.
    count = -(-n // (size * at_once)) * at_once

    def some_blocks(i: Array) -> PreparedLinear:
        positions = i * at_once * size + jnp.arange(at_once * size)
        # Past the last record that one is read again, and counts for nothing.
        row = jnp.minimum(positions, n - 1)
        here = positions < n
        if counted is not None:
            here = here & counted[row]
        directions, radius, label = in_blocks(x[row], y[row], here, kind, size)
        return PreparedLinear(directions, radius, at_once, label)

    return stacked(count, at_once, some_blocks)


def stacked(count: int, at_once: int, some: Callable[[Any], PyTree]) -> Any:
    """Returns arrays of ``count`` blocks, of which ``some(i)`` makes ``at_once`` at a time."""

    def put(i: Array, out: PyTree) -> PyTree:
        def into(whole: Array, part: Array) -> Array:
            return lax.dynamic_update_slice_in_dim(whole, part, i * at_once, axis=0)

        return jax.tree.map(into, out, some(i))

    # Part after part into one array, so that the layout is in memory once.
    shapes = jax.eval_shape(some, jnp.int32(0))
    empty = jax.tree.map(lambda leaf: jnp.zeros((count, *leaf.shape[1:]), leaf.dtype), shapes)
    return lax.fori_loop(0, count // at_once, put, empty)


def streamed(rows: Streamed, width: int | None, labels: Signs) -> StreamedLinear:
    """Returns records that come in by chunks, as ``prepare`` returns those that are there."""
    return StreamedLinear(rows, width or _any_width(*rows.shapes[0].shape), labels)


def _any_width(n: int, p: int) -> int:
    """Returns the blocks of a chunk; for many rows the same for any n, as a device has fewer."""
    if n < SHARE:
        return chunk_width(n, p)
    most = min(_WIDTH, _NUMBERS // (rounding.BLOCK * p) or UNCACHED)
    return 1 << (most.bit_length() - 1)


def chunk_width(n: int, p: int) -> int:
    """Returns the blocks of a chunk of ``n`` records of ``p`` features.

    Of many records it divides every device's share, and leaves few blocks of the last chunk empty.

    >>> chunk_width(6_000, 22), chunk_width(581_012, 54), chunk_width(100, 4)
    (16, 32, 1)
    """
    count = -(-n // rounding.BLOCK)
    if n < SHARE:
        return chunks.blocks_per_chunk(count, rounding.BLOCK * p, _NUMBERS)
    most = min(SHARE // rounding.BLOCK, _NUMBERS // (rounding.BLOCK * p) or UNCACHED)
    widths = [1 << bit for bit in range(most.bit_length())]
    # A chunk costs about a quarter of a block beside its blocks.
    return min(widths, key=lambda width: -(-count // width) * (width + 0.25))


def in_blocks(
    x: Real[Array, "rows p"],
    y: Real[Array, "rows ..."],
    here: Bool[Array, " rows"],
    labels: Signs,
    size: int,
) -> Parts:
    """Returns directions, radii and labels of a ``PreparedLinear`` for some rows.

    ``here`` is False past the last record; ``size``, the rows of a block, divides their number.
    """
    counts, x = here & labels.accepts(y), x.astype(wide_dtype(x.dtype))
    y = y.astype(x.dtype)
    unit, radius = polar(x, labels.sign(y), counts)
    # A label that does not count may be NaN, which no factor of 0 takes away.
    label = labels.beside(labels.known(y, counts))
    columns = unit.reshape(-1, size, x.shape[1]).swapaxes(1, 2)
    blocks = None if label is None else label.reshape(-1, size, *y.shape[1:])
    return columns, radius.reshape(-1, size), blocks


def polar(
    x: Float[Array, "rows p"], sign: Float[Array, " rows"], good: Bool[Array, " rows"]
) -> tuple[Float[Array, "rows p"], Float[Array, " rows"]]:
    """Returns sign x / |x| (rows, p) and |x| (rows,), both 0 where a record contributes nothing.

    That is where ``good`` is False, and where x is 0 or not finite. Numbers below the smallest
    normal one are 0: of them a compiler may make 0, x or a NaN.
    """
    tiny, largest = float(jnp.finfo(x.dtype).tiny), float(jnp.finfo(x.dtype).max)
    x = jnp.where(jnp.abs(x) < tiny, 0, x)
    good = good & jnp.all(jnp.abs(x) <= largest, axis=1)
    unit, radius = clipping.lengths(jnp.where(good[:, None], x, 0))
    # Finite entries may still have an infinite length.
    good = good & (radius <= largest)
    unit = jnp.where(good[:, None] & (jnp.abs(unit) >= tiny), unit * sign[:, None], 0)
    return finite(unit), jnp.where(good, radius, 0)


def finite(directions: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Returns unit vectors with 0 for an entry that is not finite.

    In a sum one NaN erases all records, even with a clip factor of 0. Hence every sum reads its
    directions through this, wherever they come from; the record alone loses its part.
    """
    return jnp.where(jnp.abs(directions) < 2, directions, 0)
