"""Clipped sums in closed form for losses of one linear score, such as the margin y <x, w>."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from dpjax._linear import LinearLoss
from dpjax._typing import Array, PyTree
from dpjax._wide import Expansion, float64
from dpjax.derivatives import clipping, rounding
from dpjax.derivatives.chunks import Chunk, compute_once
from dpjax.derivatives.integers import Summand
from dpjax.derivatives.linear_records import Linear, PreparedLinear

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Real

EXACT = lax.Precision.HIGHEST
# Rows of a panel: of 1,000 features the panels are ten sixteenths of the product.
_PANEL = 256


@functools.partial(jax.jit, static_argnames=("linear", "any_order"))
def linear_sums(
    linear: LinearLoss,
    records: Linear,
    params: Float[Array, " p"],
    *,
    gradient_weight: Real[Array, ""] | float,
    hessian_weight: Real[Array, ""] | float,
    clip_norm: Real[Array, ""] | float,
    any_order: bool = False,
) -> tuple[Float[Expansion, " p"], Float[Expansion, "p p"]]:
    """Returns the sums of jointly clipped gradients and Hessians of a loss of one score.

    The gradient of one record is psi' r z and its Hessian psi'' r^2 z z^T with |z| = 1, so both
    norms are scalars and the sums are one weighted product.

    ``clip_norm`` bounds sqrt(|g|^2 / w_g^2 + |H|_F^2 / w_h^2) of one record; records are prepared
    with the labels of the loss.

    Returns:
      Sums (p,) and (p, p), in natural units.

    Privacy: one record moves (g / w_g, svec(H) / w_h) by at most ``clip_norm``.

    >>> from dpjax._linear import Margin
    >>> from dpjax.derivatives.linear_records import prepare
    >>> records = prepare((jnp.eye(2), jnp.ones(2)))
    >>> g, h = linear_sums(Margin(lambda m: m**2 / 2 - m), records, jnp.zeros(2),
    ...     gradient_weight=1.0, hessian_weight=1.0, clip_norm=10.0)
    >>> g.leading, h.leading[0]
    (Array([-1., -1.], dtype=float32), Array([1., 0.], dtype=float32))
    """

    def coefficients(first: Array, second: Array) -> tuple[Array, Array]:
        norm = clipping.hypot(first / gradient_weight, second / hessian_weight)
        factor = clipping.scalar_factor(norm, clip_norm)
        return times(factor, first), times(factor, second)

    bounds = (clip_norm * gradient_weight, clip_norm * hessian_weight)
    return _accumulate(linear, records, params, coefficients, bounds, any_order)


@functools.partial(jax.jit, static_argnames=("linear", "any_order"))
def gradient_sum(
    linear: LinearLoss,
    records: Linear,
    params: Float[Array, " p"],
    clip_norm: Real[Array, ""] | float,
    any_order: bool = False,
) -> Float[Expansion, " p"]:
    """Returns the sum (p,) of clipped gradients; the arguments are those of ``linear_sums``."""

    def chunk(z: Array, first: Array, second: Array) -> Array:
        del second
        factor = clipping.scalar_factor(jnp.abs(first), clip_norm)
        return rounding.block_products(z, times(factor, first), any_order)

    p, dtype = records.features, records.dtype
    summand = Summand((p,), dtype, clip_norm)
    return _over_chunks(linear, records, params, chunk, summand, any_order)


@functools.partial(jax.jit, static_argnames=("linear", "any_order"))
def hessian_sum(
    linear: LinearLoss,
    records: Linear,
    params: Float[Array, " p"],
    clip_norm: Real[Array, ""] | float,
    any_order: bool = False,
) -> Float[Expansion, "p p"]:
    """Returns the sum (p, p) of Frobenius-clipped Hessians; arguments as in ``linear_sums``."""

    def coefficients(first: Array, second: Array) -> tuple[Array, Array]:
        del first
        factor = clipping.scalar_factor(jnp.abs(second), clip_norm)
        return jnp.zeros_like(second), times(factor, second)

    bounds = (clip_norm, clip_norm)
    return _accumulate(linear, records, params, coefficients, bounds, any_order)[1]


def count(records: Linear, flags: Callable[[PreparedLinear], Any]) -> Float[Expansion, ""]:
    """Returns for how many records of a linear model ``flags`` is True, (), exactly.

    ``flags`` returns bool (blocks, rows) of some records, each of its own record alone.

    Privacy: one record moves it by 1 at most.

    >>> from dpjax.derivatives.linear_records import prepare
    >>> records = prepare((2 * jnp.eye(2), jnp.array([1.0, jnp.nan])))
    >>> float(count(records, lambda some: some.radius > 0).leading)
    1.0
    """

    def contribution(chunk: Chunk, z: Array, r: Array, label: Array | None) -> Array:
        del chunk
        return flags(PreparedLinear(z, r, 1, label)).ravel()

    one = Summand((), jnp.dtype("float32"), bound=1.0)
    return records.sum(contribution, one)


def are_correct(
    linear: LinearLoss, records: PreparedLinear, params: Float[Array, " k"]
) -> Bool[Array, "blocks rows"]:
    """Returns for which records the scores give the label; False where one contributes nothing.

    Parameters are K rows of p weights for K scores.

    Privacy: raw data; each number depends on one record alone.
    """
    weights = params.astype(records.dtype).reshape(linear.outputs, -1)
    # Scores over |x|, of which the order and the sign are those of the scores.
    scores = jnp.einsum("kp,bpr->brk", weights, records.directions, precision=EXACT)
    scores = scores if linear.outputs > 1 else scores[..., 0]
    return linear.labels.correct(scores, records.label) & (records.radius > 0)


def times(factor: Float[Array, "*shape"], value: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Returns the product, 0 where the factor is."""
    # A dropped record has factor 0 but may have an infinite value, and 0 times infinity is NaN.
    return jnp.where(factor > 0, factor * value, 0)


def _accumulate(
    linear: LinearLoss,
    records: Linear,
    params: Array,
    coefficients: Callable,
    bounds: tuple[Array | float, Array | float],
    any_order: bool,
) -> tuple[Expansion, Expansion]:
    """Returns the sums of gradients (p,) and of Hessians (p, p).

    A large Hessian is made in panels of rows, each from its diagonal on: the upper triangle is all
    that there is. Rounding is bounded entry by entry, alike for an entry and its mirror image.
    ``bounds`` are those on a row's gradient and Hessian.
    """
    p, dtype = records.features, records.dtype
    starts = range(0, p, _PANEL if p >= 2 * _PANEL else p)
    ends = [*starts[1:], p]

    def chunk(z: Array, first: Array, second: Array) -> list[Array]:
        for_gradient, for_hessian = coefficients(first, second)
        left = z * for_hessian[:, None]
        rows = [left[:, start:end] for start, end in zip(starts, ends, strict=True)]
        # The gradient rides along as one more row of the weighted product.
        rows[0] = jnp.concatenate([rows[0], for_gradient[:, None]], axis=1)
        return [
            rounding.block_products(some, z[:, start:], any_order)
            for some, start in zip(rows, starts, strict=True)
        ]

    of_gradient, of_hessian = (jnp.asarray(bound, dtype) for bound in bounds)
    summands = [
        Summand((end - start, p - start), dtype, of_hessian)
        for start, end in zip(starts, ends, strict=True)
    ]
    shape = (ends[0] + 1, p)
    bound = jnp.full((shape[0], 1), of_hessian).at[-1].set(of_gradient)
    summands[0] = Summand(shape, dtype, bound, squares=int(len(starts) == 1))
    total = _over_chunks(linear, records, params, chunk, summands, any_order)
    gradient = jax.tree.map(lambda term: term[-1], total[0])
    total[0] = jax.tree.map(lambda term: term[:-1], total[0])
    if len(starts) == 1:
        return gradient, total[0]
    return gradient, jax.tree.map(lambda *panels: _mirrored(panels, starts), *total)


def _mirrored(panels: Sequence[Array], starts: Sequence[int]) -> Array:
    """The symmetric (p, p) matrix whose rows from the diagonal on are those of the panels."""
    rows = [
        jnp.pad(panel, ((0, 0), (start, 0))) for panel, start in zip(panels, starts, strict=True)
    ]
    upper = jnp.concatenate(rows)
    return jnp.triu(upper) + jnp.triu(upper, 1).T


def inner(
    params: Float[Array, " p"], z: Float[Array, "blocks p rows"], any_order: bool
) -> Float[Array, "blocks rows"]:
    """Returns the inner products of ``params`` with the columns of ``z``."""
    if not any_order:
        return jnp.einsum("p,bpr->br", params, z, precision=EXACT)
    # In float64 the order of a batched product, which may depend on the position, rounds away.
    dimensions = (((0,), (1,)), ((), ()))
    with jax.enable_x64(True):
        product = lax.dot_general(float64(params), float64(z), dimensions, lax.Precision.HIGHEST)
        return lax.convert_element_type(product, z.dtype)


def _over_chunks(
    linear: LinearLoss,
    records: Linear,
    params: Array,
    part: Callable,
    summands: PyTree,
    any_order: bool,
) -> PyTree:
    """Sums ``part(z, psi' r, psi'' r^2)``; the scalars are 0 for blocks already summed."""
    derivatives = jax.vmap(jax.vmap(linear.derivatives))

    def contribution(chunk: Chunk, z: Array, r: Array, label: Array | None) -> Array:
        def scalars() -> tuple[Array, Array]:
            slope, curve = derivatives(r * inner(params.astype(z.dtype), z, any_order), label)
            fresh = chunk.fresh[:, None]
            return jnp.where(fresh, slope * r, 0), jnp.where(fresh, curve * r * r, 0)

        return part(z, *compute_once(chunk, scalars))

    return records.sum(contribution, summands)
