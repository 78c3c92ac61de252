"""Clipped sums in closed form for losses of several linear scores, such as softmax regression."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpjax._linear import LinearLoss
from dpjax._typing import Array
from dpjax._wide import Expansion, float64
from dpjax.derivatives import clipping, rounding
from dpjax.derivatives.chunks import Chunk, compute_once
from dpjax.derivatives.integers import Summand
from dpjax.derivatives.linear_model import EXACT
from dpjax.derivatives.linear_records import Linear

if TYPE_CHECKING:
    from jaxtyping import Float, Real


@functools.partial(jax.jit, static_argnames=("linear", "any_order"))
def output_sums(
    linear: LinearLoss,
    records: Linear,
    params: Float[Array, " k"],
    *,
    gradient_weight: Real[Array, ""] | float | None,
    hessian_weight: Real[Array, ""] | float | None,
    clip_norm: Real[Array, ""] | float,
    any_order: bool = False,
) -> tuple[Float[Expansion, " k"] | None, Float[Expansion, "k k"] | None]:
    """Returns the sums of gradients and Hessians, clipped by one factor a record.

    With K scores W x the gradient of a record is a (x) r z for a = psi' (K,) and |z| = 1, and its
    Hessian B (x) r^2 z z^T for B = psi'' (K, K): their norms are |a| r and |B|_F r^2. The sum of
    Hessians has a block of p columns for each pair of scores, of which one half is computed.

    ``params`` are the K rows of W, of p weights each. ``clip_norm`` bounds sqrt(|g|^2 / w_g^2 +
    |H|_F^2 / w_h^2) of one record; a weight that is None asks for no such sum.

    Returns:
      Sums (k,) and (k, k), or None, in natural units.

    Privacy: one record moves (g / w_g, svec(H) / w_h) by at most ``clip_norm``.
    """
    outputs, p, dtype = linear.outputs, records.features, records.dtype
    weights = params.astype(dtype).reshape(outputs, p)
    norms = (gradient_weight, hessian_weight)

    def contribution(chunk: Chunk, z: Array, r: Array, label: Array | None) -> Array:
        def coefficients() -> list[Array]:
            both = derivatives(linear, weights, z, r, label, any_order)
            return [value for value, weight in zip(both, norms, strict=True) if weight is not None]

        parts = compute_once(chunk, coefficients)

        def factors() -> Array:
            fresh = jnp.repeat(chunk.fresh, z.shape[2])
            weighted: Any = zip(parts, (w for w in norms if w is not None), strict=True)
            return clipping.clip_factors(clip_norm, *weighted, keep=fresh)

        return products(chunk, z, parts, factors, outputs, norms, any_order)

    total = records.sum(contribution, summand(outputs, p, dtype, norms, clip_norm))
    return split(total, outputs, norms)


Weights = tuple[Any, Any]


def products(
    chunk: Chunk,
    z: Float[Array, "blocks p rows"],
    parts: list[Float[Array, "records _"]],
    factors: Callable[[], Float[Array, " records"]],
    outputs: int,
    norms: Weights,
    any_order: bool = False,
) -> Float[Array, "blocks _ p"]:
    """Returns for each block the sums of what ``split`` takes apart.

    ``parts`` are psi' r (records, K) and psi'' r^2 (records, K K), those that are asked;
    ``factors`` returns what each record's are multiplied by.
    """
    blocks, _, rows = z.shape
    first, second = np.triu_indices(outputs)
    square = norms[1] is not None

    def clipped() -> list[Array]:
        kept = [*parts[:-1], parts[-1][:, first * outputs + second]] if square else parts
        factor = factors()[:, None]
        # (blocks, numbers, rows), as the directions are.
        return [(factor * values).reshape(blocks, rows, -1).swapaxes(1, 2) for values in kept]

    # Stored: fused into the product, they would be picked anew for each feature.
    *left, last = compute_once(chunk, clipped)
    if square:
        last = (last[:, :, None] * z[:, None]).reshape(blocks, -1, rows)
    return rounding.block_products(jnp.concatenate([last, *left], axis=1), z, any_order)


def summand(
    outputs: int, p: int, dtype: jnp.dtype, norms: Weights, clip_norm: Real[Array, ""] | float
) -> Summand:
    """Returns what is known of the sum of ``products``; arguments as there."""
    bounds = [
        jnp.full((count, 1), clip_norm * weight, dtype)
        for count, weight in zip(_counts(outputs, p), norms[::-1], strict=True)
        if weight is not None
    ]
    bound = jnp.concatenate(bounds)
    pairs = 0 if norms[1] is None else _counts(outputs, p)[0] // p
    return Summand((len(bound), p), dtype, bound, squares=pairs)


def split(
    total: Float[Expansion, "_ p"], outputs: int, norms: Weights
) -> tuple[Float[Expansion, " k"] | None, Float[Expansion, "k k"] | None]:
    """Returns gradient (k,) and Hessian (k, k) of a sum of ``products``; None for one not asked."""
    p, gradient, hessian = total.shape[1], None, None
    pairs = _counts(outputs, p)[0] if norms[1] is not None else 0
    if norms[0] is not None:
        gradient = jax.tree.map(lambda term: term[pairs:].reshape(-1), total)
    if norms[1] is not None:
        blocks = jax.tree.map(lambda term: term[:pairs].reshape(-1, p, p), total)
        hessian = jax.tree.map(lambda term: _square(term, outputs), blocks)
    return gradient, hessian


def _counts(outputs: int, p: int) -> tuple[int, int]:
    """Rows of the product: a block of the Hessian for each pair of scores, and the gradient's."""
    return outputs * (outputs + 1) // 2 * p, outputs


def derivatives(
    linear: LinearLoss,
    weights: Float[Array, "outputs p"],
    z: Float[Array, "blocks p rows"],
    r: Float[Array, "blocks rows"],
    label: Float[Array, "blocks rows"] | None,
    any_order: bool = False,
) -> tuple[Float[Array, "records outputs"], Float[Array, "records _"]]:
    """Returns psi' r (records, K) and psi'' r^2 (records, K K) of each record, sanitized."""
    scores = r[..., None] * _scores(weights, z, any_order)
    slope, curve = jax.vmap(jax.vmap(linear.derivatives))(scores, label)
    count, outputs = r.size, linear.outputs
    radius = r.reshape(count, 1)
    slope, curve = slope.reshape(count, outputs), curve.reshape(count, -1)
    sanitize = clipping.sanitize_nonfinite
    return sanitize(slope * radius), sanitize(curve * radius * radius)


def _scores(weights: Array, z: Array, any_order: bool) -> Array:
    """Inner products (blocks, rows, K) of the rows of ``weights`` with the columns of ``z``."""
    if not any_order:
        return jnp.einsum("kp,bpr->brk", weights, z, precision=EXACT)
    # In float64 the order of a batched product, which may depend on the position, rounds away.
    dimensions = (((1,), (1,)), ((), ()))
    with jax.enable_x64(True):
        product = lax.dot_general(float64(z), float64(weights), dimensions, EXACT)
        return lax.convert_element_type(product, z.dtype)


def _square(blocks: Array, outputs: int) -> Array:
    """(K p, K p) of the blocks (pairs, p, p) on and above the diagonal."""
    place = np.zeros((outputs, outputs), int)
    place[np.triu_indices(outputs)] = np.arange(len(blocks))
    place = np.maximum(place, place.T)
    p = blocks.shape[-1]
    return blocks[place].swapaxes(1, 2).reshape(outputs * p, outputs * p)


@functools.partial(jax.jit, static_argnames=("linear", "any_order"))
def output_difference(
    linear: LinearLoss,
    records: Linear,
    params: Float[Array, " k"],
    anchor: Float[Array, " k"],
    bounds: tuple[Real[Array, ""] | float, Float[Array, ""]],
    any_order: bool = False,
) -> Float[Expansion, " k"]:
    """Returns the sum (k,) of clipped differences of gradients at ``params`` and ``anchor``.

    The arguments are those of ``output_sums``; ``bounds`` are those on the norm of each gradient,
    and on that of the difference.

    Privacy: one record moves it by at most the second bound.
    """
    outputs, p, dtype = linear.outputs, records.features, records.dtype
    clip_norm, bound = bounds

    def contribution(chunk: Chunk, z: Array, r: Array, label: Array | None) -> Array:
        blocks, _, rows = z.shape
        fresh = jnp.repeat(chunk.fresh, rows)

        def clipped(w: Array) -> tuple[Array, Array]:
            weights = w.astype(dtype).reshape(outputs, p)
            slope, _ = derivatives(linear, weights, z, r, label, any_order)
            factors = clipping.clip_factors(clip_norm, (slope, 1.0), keep=fresh)
            return factors[:, None] * slope, factors > 0

        def differences() -> tuple[Array, Array]:
            (here, usable), (there, usable_there) = clipped(params), clipped(anchor)
            return clipping.sanitize_nonfinite(here - there), usable & usable_there

        change, usable = compute_once(chunk, differences)
        factors = clipping.clip_factors(bound, (change, 1.0), keep=usable)
        left = (factors[:, None] * change).reshape(blocks, rows, outputs).swapaxes(1, 2)
        return rounding.block_products(left, z, any_order)

    total = records.sum(contribution, Summand((outputs, p), dtype, bound))
    return jax.tree.map(lambda term: term.reshape(-1), total)
