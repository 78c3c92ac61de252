"""Clipped sums in closed form of linear models: of one score, such as the margin, or of several."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpjax._typing import Array, Bool, Float, Real
from dpjax._wide import Expansion, float64
from dpjax.derivatives import clipping, rounding
from dpjax.derivatives.chunks import Chunk, compute_once
from dpjax.derivatives.integers import COUNT, Summand
from dpjax.derivatives.linear.scaled_rows import (
    UNCACHED,
    Linear,
    PreparedLinear,
    finite,
    polar,
    stacked,
)
from dpjax.objectives.linear import LinearLoss

EXACT = lax.Precision.HIGHEST
# Rows of a panel: of 1,000 features the panels are ten sixteenths of the product.
_PANEL = 256

Weights = tuple[Any, Any]
"""Those of gradient and Hessian in the joint norm; None for a sum that is not wanted."""


@functools.partial(jax.jit, static_argnames=("linear", "permutation_invariant"))
def score_sums(
    linear: LinearLoss,
    records: Linear,
    params: Float[Array, " p"],
    weights: Weights,
    clip_norm: Real[Array, ""] | float,
    permutation_invariant: bool = False,
) -> tuple[Float[Expansion, " p"] | None, Float[Expansion, "p p"] | None]:
    """Returns the sums of gradients and Hessians of a loss of one score, clipped jointly.

    The gradient of one record is psi' r z and its Hessian psi'' r^2 z z^T with |z| = 1, so both
    norms are scalars and the sums are one weighted product.

    A large Hessian is made in panels of rows, each from its diagonal on: the upper triangle is all
    that there is. Rounding is bounded entry by entry, alike for an entry and its mirror image.

    Args:
      linear: the loss.
      records: prepared with its labels.
      params: (p,).
      weights: w_g and w_h; None without a gradient or a Hessian.
      clip_norm: bound on sqrt(|g|^2 / w_g^2 + |H|_F^2 / w_h^2) of one record.
      permutation_invariant: as in ``rounding.block_products``.

    Returns:
      Sums (p,) and (p, p), or None, in natural units.

    Privacy: one record moves (g / w_g, svec(H) / w_h) by at most ``clip_norm``.

    >>> from dpjax.derivatives.linear.scaled_rows import prepare
    >>> from dpjax.objectives.linear import Margin
    >>> records = prepare((jnp.eye(2), jnp.ones(2)))
    >>> g, h = score_sums(Margin(lambda m: m**2 / 2 - m), records, jnp.zeros(2),
    ...     weights=(1.0, 1.0), clip_norm=10.0)
    >>> g.leading, h.leading[0]
    (Array([-1., -1.], dtype=float32), Array([1., 0.], dtype=float32))
    """
    p = records.features
    starts = range(0, p, _PANEL if p >= 2 * _PANEL else p)
    ends = [*starts[1:], p]
    gradient_weight, hessian_weight = weights
    one_score = jax.vmap(jax.vmap(linear.derivatives))

    def contribution(chunk: Chunk, z: Array, r: Array, label: Array | None) -> Any:
        def scalars() -> tuple[Array, Array]:
            # The score of r z and not of x: the norm must be that of what is added.
            slope, curve = one_score(
                r * inner(params.astype(z.dtype), z, permutation_invariant), label
            )
            fresh = chunk.fresh[:, None]  # of the others the scalars are 0
            return jnp.where(fresh, slope * r, 0), jnp.where(fresh, curve * r * r, 0)

        first, second = compute_once(chunk, scalars)
        factor = _score_factor(first, second, weights, clip_norm)
        if hessian_weight is None:
            return rounding.block_products(z, times(factor, first), permutation_invariant)
        no_gradient = gradient_weight is None
        for_gradient = jnp.zeros_like(second) if no_gradient else times(factor, first)
        # The factor multiplies one side only: z z^T is then added once a record.
        left = z * times(factor, second)[:, None]
        rows = [left[:, start:end] for start, end in zip(starts, ends, strict=True)]
        # The gradient rides along as one more row of the weighted product.
        rows[0] = jnp.concatenate([rows[0], for_gradient[:, None]], axis=1)
        return [
            rounding.block_products(some, z[:, start:], permutation_invariant)
            for some, start in zip(rows, starts, strict=True)
        ]

    if hessian_weight is None:
        assert gradient_weight is not None
        summand = Summand((p,), records.dtype, clip_norm * gradient_weight)
        return records.sum(contribution, summand), None
    total = records.sum(contribution, _panels(starts, ends, records.dtype, weights, clip_norm))
    # The last row of the first panel is the gradient, see ``_panels``.
    gradient = jax.tree.map(lambda term: term[-1], total[0])
    total[0] = jax.tree.map(lambda term: term[:-1], total[0])
    hessian = total[0]
    if len(starts) > 1:
        hessian = jax.tree.map(lambda *panels: _mirrored(panels, starts), *total)
    return (None if gradient_weight is None else gradient), hessian


def _score_factor(
    first: Array, second: Array, weights: Weights, clip_norm: Real[Array, ""] | float
) -> Array:
    """Clip factors of records whose gradients and Hessians have the norms |first| and |second|."""
    gradient_weight, hessian_weight = weights
    if hessian_weight is None:
        return clipping.scalar_factor(jnp.abs(first), clip_norm * gradient_weight)
    if gradient_weight is None:
        return clipping.scalar_factor(jnp.abs(second), clip_norm * hessian_weight)
    norm = clipping.hypot(first / gradient_weight, second / hessian_weight)
    return clipping.scalar_factor(norm, clip_norm)


def _panels(
    starts: Sequence[int], ends: Sequence[int], dtype: jnp.dtype, weights: Weights, clip_norm: Any
) -> list[Summand]:
    """What is known of the sum in each panel; the first has the gradient as its last row."""
    gradient_weight, hessian_weight = weights
    p = ends[-1]
    of_hessian = jnp.asarray(clip_norm * hessian_weight, dtype)
    summands = [
        Summand((end - start, p - start), dtype, of_hessian)
        for start, end in zip(starts, ends, strict=True)
    ]
    shape = (ends[0] + 1, p)
    # By row, so that the gradient has a grid of its own.
    bound = jnp.full((shape[0], 1), of_hessian)
    if gradient_weight is not None:
        bound = bound.at[-1].set(jnp.asarray(clip_norm * gradient_weight, dtype))
    # One panel is a whole product, symmetric up to rounding; of several ``_mirrored`` makes it so.
    summands[0] = Summand(shape, dtype, bound, squares=int(len(starts) == 1))
    return summands


def _mirrored(panels: Sequence[Array], starts: Sequence[int]) -> Array:
    """The symmetric (p, p) matrix whose rows from the diagonal on are those of the panels."""
    rows = [
        jnp.pad(panel, ((0, 0), (start, 0))) for panel, start in zip(panels, starts, strict=True)
    ]
    upper = jnp.concatenate(rows)
    return jnp.triu(upper) + jnp.triu(upper, 1).T


def times(
    factor: Float[Array, "*#shape"], value: Float[Array, "*#shape"]
) -> Float[Array, "*#shape"]:
    """Returns the product, 0 where the factor is."""
    # A dropped record has factor 0 but may have an infinite value, and 0 times infinity is NaN.
    return jnp.where(factor > 0, factor * value, 0)


def inner(
    params: Float[Array, "*outputs p"],
    z: Float[Array, "blocks p rows"],
    permutation_invariant: bool,
) -> Float[Array, "blocks rows *outputs"]:
    """Returns the inner products of ``params``, (p,) or (K, p), with the columns of ``z``."""
    if not permutation_invariant:
        # Of few blocks and outputs: plain products, turned together, take half of the time or less.
        if params.ndim == 2 and len(z) <= UNCACHED and len(params) < rounding.BLOCK:
            scores = [jnp.dot(params, block, precision=EXACT) for block in z]
            return jnp.stack(scores).swapaxes(1, 2)
        return jnp.einsum("...p,bpr->br...", params, z, precision=EXACT)
    # In float64 the order of a batched product, which may depend on the position, rounds away.
    with jax.enable_x64(True):
        both = [(float64(params), params.ndim - 1), (float64(z), 1)]
        (left, i), (right, j) = both if params.ndim == 1 else both[::-1]
        product = lax.dot_general(left, right, (((i,), (j,)), ((), ())), EXACT)
        return lax.convert_element_type(product, z.dtype)


@functools.partial(jax.jit, static_argnames="permutation_invariant")
def transformed(
    records: PreparedLinear, matrix: Float[Array, "q p"], permutation_invariant: bool = False
) -> PreparedLinear:
    """Returns the records with A x in place of x; one whose A x is not finite counts for nothing.

    Privacy: raw data; each column depends on one record, and on ``matrix``, A, alone.
    """
    at_once, matrix = records.width, matrix.astype(records.dtype)

    def some_blocks(i: Array) -> PreparedLinear:
        both = finite(records.directions), records.radius
        z, r = (lax.dynamic_slice_in_dim(leaf, i * at_once, at_once) for leaf in both)
        x = r[..., None] * inner(matrix, z, permutation_invariant)
        rows, counts = x.reshape(-1, x.shape[-1]), (r > 0).ravel()
        unit, radius = polar(rows, jnp.ones_like(rows[:, 0]), counts)
        columns = unit.reshape(x.shape).swapaxes(1, 2)
        return PreparedLinear(columns, radius.reshape(r.shape), at_once)

    made = stacked(records.radius.shape[0], at_once, some_blocks)
    return dataclasses.replace(made, label=records.label)


@functools.partial(jax.jit, static_argnames=("linear", "permutation_invariant"))
def output_sums(
    linear: LinearLoss,
    records: Linear,
    params: Float[Array, " k"],
    weights: Weights,
    clip_norm: Real[Array, ""] | float,
    permutation_invariant: bool = False,
) -> tuple[Float[Expansion, " k"] | None, Float[Expansion, "k k"] | None]:
    """Returns the sums (k,) and (k, k) that ``score_sums`` returns, for a loss of K scores.

    With K scores W x the gradient of a record is a (x) r z for a = psi' (K,) and |z| = 1, and its
    Hessian B (x) r^2 z z^T for B = psi'' (K, K): their norms are |a| r and |B|_F r^2. The sum of
    Hessians has a block of p columns for each pair of scores, of which one half is computed.

    ``params`` are the K rows of W, of p weights each; the other arguments, and what one record
    moves, are the same.
    """
    outputs, p, dtype = linear.outputs, records.features, records.dtype
    matrix = params.astype(dtype).reshape(outputs, p)

    def contribution(chunk: Chunk, z: Array, r: Array, label: Array | None) -> Array:
        def coefficients() -> list[Array]:
            both = derivatives(linear, matrix, z, r, label, permutation_invariant)
            return [clipping.sanitize_nonfinite(part) for part in wanted(both, weights)]

        parts = compute_once(chunk, coefficients)

        def factors() -> Array:
            fresh = jnp.repeat(chunk.fresh, z.shape[2])
            weighted = zip(parts, wanted(weights, weights), strict=True)
            return clipping.clip_factors(clip_norm, *weighted, keep=fresh)

        return products(chunk, z, parts, factors, outputs, weights, permutation_invariant)

    total = records.sum(contribution, summand(outputs, p, dtype, weights, clip_norm))
    return split(total, outputs, weights)


def wanted(both: Sequence[Any], weights: Weights) -> list[Any]:
    """Returns what belongs to the gradient and to the Hessian, without one that has no weight."""
    return [part for part, weight in zip(both, weights, strict=True) if weight is not None]


def products(
    chunk: Chunk,
    z: Float[Array, "blocks p rows"],
    parts: list[Float[Array, "records _"]],
    factors: Callable[[], Float[Array, " records"]],
    outputs: int,
    weights: Weights,
    permutation_invariant: bool = False,
) -> Float[Array, "blocks _ p"]:
    """Returns for each block the sums of what ``split`` takes apart.

    ``parts`` are those ``wanted`` of psi' r (records, K) and psi'' r^2 (records, K K);
    ``factors`` returns what each record's are multiplied by.
    """
    blocks, _, rows = z.shape
    first, second = np.triu_indices(outputs)
    square = weights[1] is not None

    def clipped() -> list[Array]:
        # A Hessian is symmetric: of each pair of scores one block is enough.
        distinct = [*parts[:-1], parts[-1][:, first * outputs + second]] if square else parts
        factor = factors()[:, None]
        # (blocks, numbers, rows), as the directions are.
        return [times(factor, part).reshape(blocks, rows, -1).swapaxes(1, 2) for part in distinct]

    # Stored: fused into the product, they would be picked anew for each feature.
    *left, last = compute_once(chunk, clipped)
    if square:
        last = (last[:, :, None] * z[:, None]).reshape(blocks, -1, rows)
    if outputs == 1 and not square:  # the gradient alone: a product with a vector
        return rounding.block_products(z, last[:, 0], permutation_invariant)[:, None]
    return rounding.block_products(jnp.concatenate([last, *left], axis=1), z, permutation_invariant)


def summand(
    outputs: int, p: int, dtype: jnp.dtype, weights: Weights, clip_norm: Real[Array, ""] | float
) -> Summand:
    """Returns what is known of the sum of ``products``; arguments as there."""
    bounds = [
        jnp.full((count, 1), clip_norm * weight, dtype)
        for count, weight in zip(_counts(outputs, p), weights[::-1], strict=True)
        if weight is not None
    ]
    bound = jnp.concatenate(bounds)
    pairs = 0 if weights[1] is None else _counts(outputs, p)[0] // p
    return Summand((len(bound), p), dtype, bound, squares=pairs)


def split(
    total: Float[Expansion, "_ p"], outputs: int, weights: Weights
) -> tuple[Float[Expansion, " k"] | None, Float[Expansion, "k k"] | None]:
    """Returns gradient (k,) and Hessian (k, k) of a sum of ``products``, or None."""
    p, gradient, hessian = total.shape[1], None, None
    pairs = _counts(outputs, p)[0] if weights[1] is not None else 0
    if weights[0] is not None:
        gradient = jax.tree.map(lambda term: term[pairs:].reshape(-1), total)
    if weights[1] is not None:
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
    label: Float[Array, "blocks rows *label"] | None,
    permutation_invariant: bool = False,
) -> tuple[Float[Array, "records outputs"], Float[Array, "records _"]]:
    """Returns psi' r (records, K) and psi'' r^2 (records, K K) of each record."""
    if linear.outputs == 1:
        scores = r * inner(weights[0], z, permutation_invariant)
    else:
        scores = r[..., None] * inner(weights, z, permutation_invariant)
    slope, curve = jax.vmap(jax.vmap(linear.derivatives))(scores, label)
    radius = r.reshape(-1, 1)
    slope, curve = (part.reshape(r.size, -1) for part in (slope, curve))
    return slope * radius, curve * radius * radius


def _square(blocks: Array, outputs: int) -> Array:
    """(K p, K p) of the blocks (pairs, p, p) on and above the diagonal."""
    # The number of the block that each pair of scores has, mirrored below the diagonal.
    place = np.zeros((outputs, outputs), int)
    place[np.triu_indices(outputs)] = np.arange(len(blocks))
    place = np.maximum(place, place.T)
    p = blocks.shape[-1]
    return blocks[place].swapaxes(1, 2).reshape(outputs * p, outputs * p)


@functools.partial(jax.jit, static_argnames=("linear", "permutation_invariant"))
def score_difference(
    linear: LinearLoss,
    records: Linear,
    params: Float[Array, " p"],
    anchor: Float[Array, " p"],
    bounds: tuple[Real[Array, ""] | float, Float[Array, ""]],
    permutation_invariant: bool = False,
) -> Float[Expansion, " p"]:
    """Returns the sum (p,) of clipped differences of gradients at ``params`` and ``anchor``.

    ``bounds`` are those on the norm of each gradient, and on that of the difference. Both gradients
    of a record lie along its features: their difference is one scalar.

    Privacy: one record moves it by at most the second bound.
    """
    one_score = jax.vmap(jax.vmap(linear.derivatives))
    clip_norm, bound = bounds

    def contribution(chunk: Chunk, z: Array, r: Array, label: Array | None) -> Array:
        def clipped(w: Array) -> tuple[Array, Array]:
            scores = r * inner(w.astype(z.dtype), z, permutation_invariant)
            first = one_score(scores, label)[0] * r
            factor = clipping.scalar_factor(jnp.abs(first), clip_norm)
            return times(factor, first), factor > 0

        def differences() -> Array:
            (here, usable), (there, usable_there) = clipped(params), clipped(anchor)
            # Dropped at one point, a record is dropped: the gradient at the other alone has no
            # small bound.
            return jnp.where(chunk.fresh[:, None] & usable & usable_there, here - there, 0)

        change = compute_once(chunk, differences)
        factor = clipping.scalar_factor(jnp.abs(change), bound.astype(z.dtype))
        return rounding.block_products(z, times(factor, change), permutation_invariant)

    summand = Summand((records.features,), records.dtype, bound)
    return records.sum(contribution, summand)


@functools.partial(jax.jit, static_argnames=("linear", "permutation_invariant"))
def output_difference(
    linear: LinearLoss,
    records: Linear,
    params: Float[Array, " k"],
    anchor: Float[Array, " k"],
    bounds: tuple[Real[Array, ""] | float, Float[Array, ""]],
    permutation_invariant: bool = False,
) -> Float[Expansion, " k"]:
    """Returns the sum (k,) that ``score_difference`` returns, for a loss of several scores."""
    outputs, p, dtype = linear.outputs, records.features, records.dtype
    clip_norm, bound = bounds

    def contribution(chunk: Chunk, z: Array, r: Array, label: Array | None) -> Array:
        blocks, _, rows = z.shape
        fresh = jnp.repeat(chunk.fresh, rows)

        def clipped(w: Array) -> tuple[Array, Array]:
            weights = w.astype(dtype).reshape(outputs, p)
            slope, _ = derivatives(linear, weights, z, r, label, permutation_invariant)
            slope = clipping.sanitize_nonfinite(slope)
            factors = clipping.clip_factors(clip_norm, (slope, 1.0), keep=fresh)
            return factors[:, None] * slope, factors > 0

        def differences() -> tuple[Array, Array]:
            (here, usable), (there, usable_there) = clipped(params), clipped(anchor)
            return clipping.sanitize_nonfinite(here - there), usable & usable_there

        change, usable = compute_once(chunk, differences)
        factors = clipping.clip_factors(bound, (change, 1.0), keep=usable)
        left = (factors[:, None] * change).reshape(blocks, rows, outputs).swapaxes(1, 2)
        return rounding.block_products(left, z, permutation_invariant)

    total = records.sum(contribution, Summand((outputs, p), dtype, bound))
    return jax.tree.map(lambda term: term.reshape(-1), total)


def count(records: Linear, flags: Callable[[PreparedLinear], Any]) -> Float[Expansion, ""]:
    """Returns for how many records of a linear model ``flags`` is True, (), exactly.

    ``flags`` returns bool (blocks, rows) of some records, each of its own record alone.

    Privacy: one record moves it by 1 at most.

    >>> from dpjax.derivatives.linear.scaled_rows import prepare
    >>> records = prepare((2 * jnp.eye(2), jnp.array([1.0, jnp.nan])))
    >>> float(count(records, lambda some: some.radius > 0).leading)
    1.0
    """

    def contribution(chunk: Chunk, z: Array, r: Array, label: Array | None) -> Array:
        return flags(PreparedLinear(z, r, 1, label)).ravel()

    return records.sum(contribution, COUNT)


def are_correct(
    linear: LinearLoss, records: PreparedLinear, params: Float[Array, " k"]
) -> Bool[Array, "blocks rows"]:
    """Returns for which records the scores give the label; False where one contributes nothing.

    Parameters are K rows of p weights for K scores.

    Privacy: raw data; each number depends on one record alone.
    """
    weights = params.astype(records.dtype).reshape(linear.outputs, -1)
    # Scores over |x|, of which the order and the sign are those of the scores.
    scores = inner(weights, records.directions, permutation_invariant=False)
    scores = scores if linear.outputs > 1 else scores[..., 0]
    return linear.labels.correct(scores, records.label) & (records.radius > 0)
