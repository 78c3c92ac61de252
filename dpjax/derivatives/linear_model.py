"""Closed forms for losses that see a record only through its margin m = y <x, w>."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dpjax._typing import Array
from dpjax.derivatives import clipping
from dpjax.derivatives.chunks import Chunk, common_length, compute_once, rows_per_chunk, sum_chunks

Margin = Callable[[Array], Array]

# Chunks of features of this many numbers (1 MB in float32) stay in a core's cache.
_NUMBERS = 2**18
_EXACT = lax.Precision.HIGHEST


class PreparedLinear(NamedTuple):
    """Records of a linear model, made once per training; secret.

    Args:
      directions: (p, n), column i is y_i x_i / |x_i|: transposed, so that a chunk of records is a
        matrix with long rows; 0 for a record that contributes nothing.
      radius: (n,), |x_i|; 0 for a record that contributes nothing.
    """

    directions: Array
    radius: Array


@jax.jit
def prepare(batch: tuple[Array, Array], mask: Array | None = None) -> PreparedLinear:
    """Returns the records in the form that ``linear_sums`` reads.

    Args:
      batch: ``(x, y)`` with x (n, p) floating and y (n,).
      mask: (n,) bool; False rows contribute nothing.

    Returns:
      A ``PreparedLinear``. A record with a feature that is not finite, or a label other than -1 and
      +1, has direction and radius 0, hence contributes exactly zero at the same cost.

    Raises:
      ValueError: if shapes do not fit.

    Privacy: raw data; each column depends on its own record alone.

    >>> prepare((jnp.array([[3.0, 4.0], [jnp.nan, 1.0]]), jnp.array([-1.0, 1.0]))).radius
    Array([5., 0.], dtype=float32)
    """
    x, y = map(jnp.asarray, batch)
    if x.ndim != 2 or y.shape != x.shape[:1]:
        raise ValueError(f"x must have shape (n, p) and y (n,), got {x.shape} and {y.shape}.")
    common_length(x, mask)
    dtype = jnp.promote_types(x.dtype, jnp.float32)
    n, p = x.shape
    rows = rows_per_chunk(n, p, _NUMBERS)
    valid = jnp.abs(y) == 1
    if mask is not None:
        valid = valid & mask

    def one_chunk(i: Array, out: PreparedLinear) -> PreparedLinear:
        # The last chunk starts early enough to be full; rows it meets twice come out the same.
        start = jnp.minimum(i * rows, n - rows)
        block = lax.dynamic_slice(x, (start, 0), (rows, p)).astype(dtype)
        sign = lax.dynamic_slice(y, (start,), (rows,)).astype(dtype)
        good = lax.dynamic_slice(valid, (start,), (rows,))
        largest = clipping.tree_reduce(jnp.maximum, jnp.abs(block))
        safe = jnp.where(largest > 0, largest, 1)
        scaled = block / safe[:, None]
        length = jnp.sqrt(clipping.tree_reduce(jnp.add, scaled**2))
        keep = good & jnp.isfinite(length) & (largest > 0) & jnp.isfinite(largest * length)
        unit = scaled * (sign / jnp.where(keep, length, 1))[:, None]
        unit = jnp.where(keep[:, None], unit, 0)
        radius = jnp.where(keep, largest * length, 0)
        return PreparedLinear(
            lax.dynamic_update_slice(out.directions, unit.T, (0, start)),
            lax.dynamic_update_slice(out.radius, radius, (start,)),
        )

    empty = PreparedLinear(jnp.zeros((p, n), dtype), jnp.zeros((n,), dtype))
    return lax.fori_loop(0, -(-n // rows), one_chunk, empty)


@functools.partial(jax.jit, static_argnums=0)
def linear_sums(
    phi: Margin,
    records: PreparedLinear,
    params: Array,
    *,
    gradient_weight: Array | float,
    hessian_weight: Array | float,
    clip_norm: Array | float,
) -> tuple[Array, Array]:
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

    Returns:
      Sums (p,) and (p, p), in natural units.

    Privacy: one record moves (g / w_g, svec(H) / w_h) by at most ``clip_norm``.

    >>> records = prepare((jnp.eye(2), jnp.ones(2)))
    >>> g, h = linear_sums(lambda m: m**2 / 2 - m, records, jnp.zeros(2),
    ...     gradient_weight=1.0, hessian_weight=1.0, clip_norm=10.0)
    >>> g, h[0]
    (Array([-1., -1.], dtype=float32), Array([1., 0.], dtype=float32))
    """

    def coefficients(first: Array, second: Array) -> tuple[Array, Array]:
        norm = clipping.hypot(first / gradient_weight, second / hessian_weight)
        factor = clipping.scalar_factor(norm, clip_norm)
        return _times(factor, first), _times(factor, second)

    total = _accumulate(phi, records, params, coefficients)
    p = records.directions.shape[0]
    return total[p], clipping.symmetrize(total[:p])


@functools.partial(jax.jit, static_argnums=0)
def gradient_sum(
    phi: Margin, records: PreparedLinear, params: Array, clip_norm: Array | float
) -> Array:
    """Returns the sum (p,) of clipped gradients; as ``linear_sums`` without the Hessian."""

    def chunk(z: Array, first: Array, second: Array) -> Array:
        del second
        factor = clipping.scalar_factor(jnp.abs(first), clip_norm)
        return jnp.matmul(z, _times(factor, first), precision=_EXACT)

    return _over_chunks(phi, records, params, chunk, jnp.zeros_like(records.directions[:, 0]))


@functools.partial(jax.jit, static_argnums=0)
def hessian_sum(
    phi: Margin, records: PreparedLinear, params: Array, clip_norm: Array | float
) -> Array:
    """Returns the sum (p, p) of Frobenius-clipped Hessians; as ``linear_sums`` alone."""

    def coefficients(first: Array, second: Array) -> tuple[Array, Array]:
        del first
        factor = clipping.scalar_factor(jnp.abs(second), clip_norm)
        return jnp.zeros_like(second), _times(factor, second)

    total = _accumulate(phi, records, params, coefficients)[:-1]
    return clipping.symmetrize(total)


def _times(factor: Array, value: Array) -> Array:
    # A dropped record has factor 0 but may have an infinite value, and 0 times infinity is NaN.
    return jnp.where(factor > 0, factor * value, 0)


def _accumulate(
    phi: Margin, records: PreparedLinear, params: Array, coefficients: Callable
) -> Array:
    def chunk(z: Array, first: Array, second: Array) -> Array:
        for_gradient, for_hessian = coefficients(first, second)
        # The gradient rides along as one more row of the weighted product.
        left = jnp.concatenate([z * for_hessian[None], for_gradient[None]])
        return jnp.matmul(left, z.T, precision=_EXACT)

    p = records.directions.shape[0]
    zero = jnp.zeros((p + 1, p), records.directions.dtype)
    return _over_chunks(phi, records, params, chunk, zero)


def _over_chunks(
    phi: Margin, records: PreparedLinear, params: Array, part: Callable, zero: Array
) -> Array:
    """Sums ``part(z, phi'(m) r, phi''(m) r^2)``; the scalars are 0 for rows already summed."""
    p, n = records.directions.shape
    slope = jax.vmap(jax.grad(phi))
    curvature = jax.vmap(jax.grad(jax.grad(phi)))

    def contribution(chunk: Chunk) -> Array:
        z = chunk.of(records.directions, axis=1)
        r = chunk.of(records.radius)

        def scalars() -> tuple[Array, Array]:
            m = r * jnp.matmul(params.astype(z.dtype), z, precision=_EXACT)
            first, second = slope(m) * r, curvature(m) * r * r
            return jnp.where(chunk.fresh, first, 0), jnp.where(chunk.fresh, second, 0)

        return part(z, *compute_once(chunk, scalars))

    return sum_chunks(n, rows_per_chunk(n, p, _NUMBERS), contribution, zero)
