"""Clipped sums in closed form for losses of the margin m = y <x, w>."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from dpjax._sharding import SHARE
from dpjax._streaming import Streamed
from dpjax._typing import Array, PyTree, pytree_dataclass, static
from dpjax._wide import Expansion, float64, wide_dtype
from dpjax.derivatives import clipping, rounding
from dpjax.derivatives.chunks import (
    Chunk,
    blocks_per_chunk,
    common_length,
    compute_once,
    sum_chunks,
    sum_loads,
)
from dpjax.derivatives.integers import Summand

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Real

Margin = Callable[[Array], Array]
Contribution = Callable[[Chunk, Array, Array], PyTree]

# Chunks of features of this many numbers (1 MB in float32) stay in a core's cache.
_NUMBERS = 2**18
# Blocks of a chunk of a large batch: few are empty, and a chunk costs little beside its blocks.
_WIDTH = 8
# Streamed chunks that come in at once hold so many numbers (8 MB in float32): each time costs a
# callback.
_AT_ONCE = 2**21
_EXACT = lax.Precision.HIGHEST


@pytree_dataclass
class PreparedLinear:
    """Records of a linear model in the layout of the closed forms, prepared once; secret.

    Args:
      directions: (blocks, p, rows), y_i x_i / |x_i| for the records of a block as columns, so that
        a block is a matrix with long rows; 0 for a record that contributes nothing.
      radius: (blocks, rows), |x_i|; 0 for a record that contributes nothing, and after the last.
      width: blocks of a chunk, which divides their number.
    """

    directions: Float[Array, "blocks p rows"]
    radius: Float[Array, "blocks rows"]
    width: int = static()

    @property
    def features(self) -> int:
        """Number of features."""
        return self.directions.shape[1]

    @property
    def dtype(self) -> jnp.dtype:
        """That of the sums."""
        return self.directions.dtype

    def sum(self, contribution: Contribution, summands: PyTree) -> PyTree:
        """Returns the sum of ``contribution(chunk, directions, radii)`` over all chunks.

        Args:
          contribution: as in ``sum_chunks``, of a chunk's directions (width, p, rows) and radii
            (width, rows).
          summands: as in ``sum_chunks``.
        """

        def of_chunk(chunk: Chunk) -> PyTree:
            return contribution(chunk, chunk.of(self.directions), chunk.of(self.radius))

        return sum_chunks(self.directions.shape[0], self.width, of_chunk, summands)

    def of_unit_length(self) -> "PreparedLinear":
        """Returns the records in float64, longer ones scaled to length 1."""
        with jax.enable_x64(True):
            radius = jnp.minimum(float64(self.radius), 1.0)
            return PreparedLinear(float64(self.directions), radius, self.width)


@pytree_dataclass
class StreamedLinear:
    """Records of a linear model that come in, and are prepared, chunk by chunk; secret.

    Args:
      rows: ``(x, y)``, with x (n, p) floating and y (n,).
      width: blocks of a chunk.
      scaled: whether in float64, longer ones scaled to length 1.
    """

    rows: Streamed
    width: int = static()
    scaled: bool = static(default=False)

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
        chunks = -(-self.rows.size // rows)
        together = max(1, min(chunks, _AT_ONCE // (rows * self.features)))

        def load(blocks: Chunk) -> PreparedLinear:
            return self._prepared(blocks, size)

        def of_chunk(part: PreparedLinear, chunk: Chunk) -> PyTree:
            return contribution(chunk, chunk.of(part.directions), chunk.of(part.radius))

        return sum_loads(-(-chunks // together), load, together, self.width, of_chunk, summands)

    def _prepared(self, blocks: Chunk, size: int) -> PreparedLinear:
        first, rows = blocks.start * size, blocks.fresh.shape[0] * size
        dtype = wide_dtype(self.rows.shapes[0].dtype)

        def computed() -> tuple[Array, Array]:
            x, y = self.rows.chunk(first, rows)
            here = first + jnp.arange(rows) < self.rows.size
            unit, radius = _polar(x.astype(dtype), y.astype(dtype), (jnp.abs(y) == 1) & here)
            columns = unit.reshape(-1, size, self.features).swapaxes(1, 2)
            return columns, radius.reshape(-1, size)

        columns, radius = compute_once(blocks, computed)
        prepared = PreparedLinear(columns, radius, self.width)
        return prepared.of_unit_length() if self.scaled else prepared

    def of_unit_length(self) -> "StreamedLinear":
        """Returns the records in float64, longer ones scaled to length 1."""
        return StreamedLinear(self.rows, self.width, scaled=True)


Linear = PreparedLinear | StreamedLinear


@functools.partial(jax.jit, static_argnames=("width",))
def prepare(
    batch: tuple[Real[ArrayLike, "n p"], Real[ArrayLike, " n"]],
    mask: Bool[ArrayLike, " n"] | None = None,
    width: int | None = None,
) -> PreparedLinear:
    """Returns the records in the layout that ``linear_sums`` reads.

    Args:
      batch: ``(x, y)`` with x (n, p) floating and y (n,).
      mask: (n,) bool; False rows contribute nothing.
      width: of chunks; by default one that a device's share of many rows has too.

    Returns:
      A ``PreparedLinear``. A record with a feature that is not finite, or a label other than -1 and
      +1, has direction and radius 0, hence contributes exactly zero at the same cost.

    Raises:
      ValueError: if shapes do not fit.

    Privacy: raw data; each column depends on one record alone.

    >>> prepare((jnp.array([[3.0, 4.0], [jnp.nan, 1.0]]), jnp.array([-1.0, 1.0]))).radius
    Array([[5., 0.]], dtype=float32)
    """
    x, y = map(jnp.asarray, batch)
    if (x.ndim, y.ndim) != (2, 1):
        raise ValueError(f"x must have shape (n, p) and y (n,), got {x.ndim} and {y.ndim} axes.")
    common_length((x, y), mask)
    dtype = wide_dtype(x.dtype)
    n, p = x.shape
    size = min(n, rounding.BLOCK)
    at_once = width or _any_width(n, p)
    count = -(-n // (size * at_once)) * at_once
    valid = jnp.abs(y) == 1
    if mask is not None:
        valid = valid & mask

    def some_blocks(i: Array, out: PreparedLinear) -> PreparedLinear:
        first = i * at_once
        positions = first * size + jnp.arange(at_once * size)
        row = jnp.minimum(positions, n - 1)
        unit, radius = _polar(
            x[row].astype(dtype), y[row].astype(dtype), valid[row] & (positions < n)
        )
        columns = unit.reshape(at_once, size, p).swapaxes(1, 2)
        return PreparedLinear(
            lax.dynamic_update_slice(out.directions, columns, (first, 0, 0)),
            lax.dynamic_update_slice(out.radius, radius.reshape(at_once, size), (first, 0)),
            at_once,
        )

    empty = (jnp.zeros((count, p, size), dtype), jnp.zeros((count, size), dtype))
    return lax.fori_loop(0, count // at_once, some_blocks, PreparedLinear(*empty, at_once))


def streamed(rows: Streamed, width: int | None = None) -> StreamedLinear:
    """Returns records that come in by chunks, as ``prepare`` returns those that are there.

    Args:
      rows: ``(x, y)``, as in ``prepare``.
      width: as in ``prepare``.
    """
    return StreamedLinear(rows, width or _any_width(*rows.shapes[0].shape))


def _any_width(n: int, p: int) -> int:
    return _WIDTH if n >= SHARE else chunk_width(n, p)


def chunk_width(n: int, p: int) -> int:
    """Returns the blocks of a chunk of ``n`` records of ``p`` features.

    Of many records it divides every device's share, and leaves few blocks of the last chunk empty.

    >>> chunk_width(6_000, 22), chunk_width(581_012, 54), chunk_width(100, 4)
    (16, 32, 1)
    """
    count = -(-n // rounding.BLOCK)
    if n < SHARE:
        return blocks_per_chunk(count, rounding.BLOCK * p, _NUMBERS)
    most = max(1, min(SHARE // rounding.BLOCK, _NUMBERS // (rounding.BLOCK * p)))
    widths = [1 << bit for bit in range(most.bit_length())]
    # A chunk costs about a quarter of a block beside its blocks.
    return min(widths, key=lambda width: -(-count // width) * (width + 0.25))


def _polar(x: Array, sign: Array, good: Array) -> tuple[Array, Array]:
    """Returns y x / |x| (rows, p) and |x| (rows,), both 0 where a record contributes nothing."""
    largest = float(jnp.finfo(x.dtype).max)
    with jax.enable_x64(True):
        wide = float64(x)
        length = jnp.sqrt(clipping.tree_sum(wide * wide))
        good = good & (length > 0) & (length <= largest)  # False for NaN
        scale = jnp.where(good, float64(sign) / jnp.where(good, length, 1), 0)
        unit = jnp.where(good[:, None], wide, 0) * scale[:, None]
        radius = jnp.where(good, length, 0)
        return lax.convert_element_type(unit, x.dtype), lax.convert_element_type(radius, x.dtype)


@functools.partial(jax.jit, static_argnames=("phi", "any_order"))
def linear_sums(
    phi: Margin,
    records: Linear,
    params: Float[Array, " p"],
    *,
    gradient_weight: Real[Array, ""] | float,
    hessian_weight: Real[Array, ""] | float,
    clip_norm: Real[Array, ""] | float,
    any_order: bool = False,
) -> tuple[Float[Expansion, " p"], Float[Expansion, "p p"]]:
    """Returns the sums of jointly clipped gradients and Hessians of a margin loss.

    The gradient of one record is phi'(m) r z and its Hessian phi''(m) r^2 z z^T with |z| = 1, so
    both norms are scalars and the sums are one weighted product.

    Args:
      phi: scalar function of the margin, twice differentiable.
      records: from ``prepare``.
      params: (p,).
      gradient_weight: w_g.
      hessian_weight: w_h.
      clip_norm: bound on sqrt(|g|^2 / w_g^2 + |H|_F^2 / w_h^2) of one record.
      any_order: as in ``rounding.block_products``.

    Returns:
      Sums (p,) and (p, p), in natural units.

    Privacy: one record moves (g / w_g, svec(H) / w_h) by at most ``clip_norm``.

    >>> records = prepare((jnp.eye(2), jnp.ones(2)))
    >>> g, h = linear_sums(lambda m: m**2 / 2 - m, records, jnp.zeros(2),
    ...     gradient_weight=1.0, hessian_weight=1.0, clip_norm=10.0)
    >>> g.leading, h.leading[0]
    (Array([-1., -1.], dtype=float32), Array([1., 0.], dtype=float32))
    """

    def coefficients(first: Array, second: Array) -> tuple[Array, Array]:
        norm = clipping.hypot(first / gradient_weight, second / hessian_weight)
        factor = clipping.scalar_factor(norm, clip_norm)
        return _times(factor, first), _times(factor, second)

    bounds = (clip_norm * gradient_weight, clip_norm * hessian_weight)
    total = _accumulate(phi, records, params, coefficients, bounds, any_order)
    p = records.features
    gradient = jax.tree.map(lambda term: term[p], total)
    return gradient, clipping.symmetrize(jax.tree.map(lambda term: term[:p], total))


@functools.partial(jax.jit, static_argnames=("phi", "any_order"))
def gradient_sum(
    phi: Margin,
    records: Linear,
    params: Float[Array, " p"],
    clip_norm: Real[Array, ""] | float,
    any_order: bool = False,
) -> Float[Expansion, " p"]:
    """Returns the sum (p,) of clipped gradients; the arguments are those of ``linear_sums``."""

    def chunk(z: Array, first: Array, second: Array) -> Array:
        del second
        factor = clipping.scalar_factor(jnp.abs(first), clip_norm)
        return rounding.block_products(z, _times(factor, first), any_order)

    p, dtype = records.features, records.dtype
    summand = Summand((p,), dtype, clip_norm)
    return _over_chunks(phi, records, params, chunk, summand, any_order)


@functools.partial(jax.jit, static_argnames=("phi", "any_order"))
def hessian_sum(
    phi: Margin,
    records: Linear,
    params: Float[Array, " p"],
    clip_norm: Real[Array, ""] | float,
    any_order: bool = False,
) -> Float[Expansion, "p p"]:
    """Returns the sum (p, p) of Frobenius-clipped Hessians; arguments as in ``linear_sums``."""

    def coefficients(first: Array, second: Array) -> tuple[Array, Array]:
        del first
        factor = clipping.scalar_factor(jnp.abs(second), clip_norm)
        return jnp.zeros_like(second), _times(factor, second)

    bounds = (clip_norm, clip_norm)
    total = _accumulate(phi, records, params, coefficients, bounds, any_order)
    return clipping.symmetrize(jax.tree.map(lambda term: term[:-1], total))


def unit_margins(
    records: PreparedLinear, params: Float[Array, " p"]
) -> Float[Array, "blocks rows"]:
    """Returns y <x, w> / |x|, (blocks, rows); 0 for a record that contributes nothing.

    Privacy: raw data; each number depends on one record alone.

    >>> print(unit_margins(prepare((2 * jnp.eye(2), jnp.array([1.0, -1.0]))), jnp.ones(2)))
    [[ 1. -1.]]
    """
    return _inner(params.astype(records.directions.dtype), records.directions, any_order=False)


@jax.jit
def positive_margins(records: Linear, params: Float[Array, " p"]) -> Float[Expansion, ""]:
    """Returns how many records have a positive margin, shape (), exactly.

    Privacy: one record moves it by 1 at most.

    >>> records = prepare((2 * jnp.eye(2), jnp.array([1.0, -1.0])))
    >>> float(positive_margins(records, jnp.ones(2)).leading)
    1.0
    """

    def contribution(chunk: Chunk, z: Array, _: Array) -> Array:
        del chunk
        return (_inner(params.astype(z.dtype), z, any_order=False) > 0).ravel()

    one = Summand((), jnp.dtype("float32"), bound=1.0)
    return records.sum(contribution, one)


def _times(factor: Array, value: Array) -> Array:
    # A dropped record has factor 0 but may have an infinite value, and 0 times infinity is NaN.
    return jnp.where(factor > 0, factor * value, 0)


def _accumulate(
    phi: Margin,
    records: Linear,
    params: Array,
    coefficients: Callable,
    bounds: tuple[Array | float, Array | float],
    any_order: bool,
) -> Expansion:
    """Returns the sums of Hessians (p, p) and, as one more row, of gradients.

    ``bounds`` are those on a row's gradient and Hessian.
    """

    def chunk(z: Array, first: Array, second: Array) -> Array:
        for_gradient, for_hessian = coefficients(first, second)
        # The gradient rides along as one more row of the weighted product.
        left = jnp.concatenate([z * for_hessian[:, None], for_gradient[:, None]], axis=1)
        return rounding.block_products(left, z, any_order)

    p, dtype = records.features, records.dtype
    of_gradient, of_hessian = (jnp.asarray(bound, dtype) for bound in bounds)
    bound = jnp.full((p + 1, 1), of_hessian).at[p].set(of_gradient)
    summand = Summand((p + 1, p), dtype, bound)
    return _over_chunks(phi, records, params, chunk, summand, any_order)


def _inner(params: Array, z: Array, any_order: bool) -> Array:
    """Inner products (blocks, rows) of ``params`` (p,) with the columns of ``z``."""
    if not any_order:
        return jnp.einsum("p,bpr->br", params, z, precision=_EXACT)
    # In float64 the order of a batched product, which may depend on the position, rounds away.
    dimensions = (((0,), (1,)), ((), ()))
    with jax.enable_x64(True):
        product = lax.dot_general(float64(params), float64(z), dimensions, lax.Precision.HIGHEST)
        return lax.convert_element_type(product, z.dtype)


def _over_chunks(
    phi: Margin,
    records: Linear,
    params: Array,
    part: Callable,
    summand: Summand,
    any_order: bool,
) -> Expansion:
    """Sums ``part(z, phi'(m) r, phi''(m) r^2)``; the scalars are 0 for blocks already summed."""
    derivative = jax.vmap(jax.vmap(jax.grad(phi)))
    curvature = jax.vmap(jax.vmap(jax.grad(jax.grad(phi))))

    def contribution(chunk: Chunk, z: Array, r: Array) -> Array:
        def scalars() -> tuple[Array, Array]:
            m = r * _inner(params.astype(z.dtype), z, any_order)
            first, second = derivative(m) * r, curvature(m) * r * r
            fresh = chunk.fresh[:, None]
            return jnp.where(fresh, first, 0), jnp.where(fresh, second, 0)

        return part(z, *compute_once(chunk, scalars))

    return records.sum(contribution, summand)
