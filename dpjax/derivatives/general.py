"""Clipped sums of materialised per-example derivatives, for any loss."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from dpjax._typing import Array, Bool, Float, Loss, Params, PyTree, Shaped
from dpjax._wide import Expansion, wide_dtype
from dpjax.derivatives import chunks, clipping, rounding
from dpjax.derivatives.chunks import Chunk, blocks
from dpjax.derivatives.integers import Summand
from dpjax.derivatives.primitives import map_examples, vmap_mixes_examples

# As text: names of shapes are for type checkers and tests, which find them where they are used.
Tree: TypeAlias = 'PyTree[Float[jax.typing.ArrayLike, "?*leaf"], "Params"]'
TreeSum: TypeAlias = 'PyTree[Float[Array, "?*leaf"], "Params"]'
Batch: TypeAlias = 'PyTree[Shaped[jax.typing.ArrayLike, "n ..."]]'
Mask: TypeAlias = 'Bool[jax.typing.ArrayLike, " n"] | None'


def flatten(params: PyTree[Float[ArrayLike, "..."]]) -> tuple[Float[Array, " p"], Callable]:
    """Returns the parameters as one array (p,) of at least float32, and the inverse function.

    ``unflatten(flat, as_sum=True)`` keeps the wide dtype, as a sum over records needs.

    Raises:
      ValueError: if a leaf is not floating.
    """
    leaves, treedef = jax.tree.flatten(params)
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    if bad := [leaf.dtype for leaf in leaves if not jnp.issubdtype(leaf.dtype, jnp.floating)]:
        raise ValueError(f"params must be floating, got {bad[0]}; convert by astype('float32').")
    dtype = wide_dtype(leaves)
    ends = list(itertools.accumulate(leaf.size for leaf in leaves))

    def unflatten(flat: Array, as_sum: bool = False) -> Params:
        parts = jnp.split(flat, ends[:-1])
        shaped = [part.reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)]
        if not as_sum:
            shaped = [part.astype(leaf.dtype) for part, leaf in zip(shaped, leaves, strict=True)]
        return jax.tree.unflatten(treedef, shaped)

    return jnp.concatenate([leaf.ravel().astype(dtype) for leaf in leaves]), unflatten


def gradient_of_record(loss: Loss, params: Params) -> Callable[[PyTree], Array]:
    """Returns the function of one record that gives its gradient (p,), sanitized."""
    # In the flat parameters, so that one record gives one row of p numbers whatever the tree.
    flat, unflatten = flatten(params)
    gradient = jax.grad(lambda w, record: loss(unflatten(w), record))
    return lambda record: clipping.sanitize_nonfinite(gradient(flat, record))


def rows_at_once(n: int, size: int, most: int) -> int:
    """Returns of how many of n records ``gradient_sum`` holds gradients of ``size`` numbers."""
    # On a CPU as many as its cache holds; elsewhere memory is the only limit.
    cached = 2**20 if jax.default_backend() == "cpu" else most * size
    return chunks.rows_per_chunk(n, size, cached, most)


@functools.partial(jax.jit, static_argnames=("loss", "permutation_invariant", "most"))
def gradient_sum(
    loss: Loss,
    params: Params,
    batch: PyTree,
    mask: Array | None,
    clip_norm: Array | float,
    permutation_invariant: bool = False,
    most: int = 4096,
) -> Expansion:
    """Returns the sum (p,) of clipped gradients, of at most ``most`` records at once."""
    n = chunks.common_length(batch, mask)
    flat, _ = flatten(params)
    gradient = gradient_of_record(loss, params)
    sequential = vmap_mixes_examples(loss, params, batch)

    def contribution(chunk: Chunk) -> Array:
        # Stored before it is differentiated: a slice inside a fused loop keeps it from vectorising.
        records, keep = chunk.stored(batch, mask)
        rows = chunks.compute_once(chunk, lambda: map_examples(gradient, records, sequential))
        factors = blocks(clipping.clip_factors(clip_norm, (rows, 1.0), keep=keep))
        return rounding.block_products(factors, blocks(rows), permutation_invariant, axis=1)

    rows = rows_at_once(n, flat.size, most)
    # A norm within C bounds every coordinate by C, and the grid follows from that bound.
    return chunks.sum_chunks(n, rows, contribution, Summand(flat.shape, flat.dtype, clip_norm))


@functools.partial(jax.jit, static_argnames=("loss", "permutation_invariant"))
def second_order_sums(
    loss: Loss,
    params: Params,
    batch: PyTree,
    mask: Array | None,
    weights: tuple[Array | float | None, Array | float],
    clip_norm: Array | float,
    permutation_invariant: bool = False,
) -> tuple[Expansion | None, Expansion]:
    """Returns the sums (p,) and (p, p) of gradients and Hessians, clipped by one factor a record.

    ``weights`` are those of gradient and Hessian in the joint norm; without one for the gradient
    the Hessian's norm alone decides, and there is no sum of gradients, which would have no bound.
    """
    n = chunks.common_length(batch, mask)
    flat, unflatten = flatten(params)
    p = flat.size
    gradient_weight, hessian_weight = weights
    sequential = vmap_mixes_examples(loss, params, batch)

    def contribution(chunk: Chunk) -> list[Array]:
        # Stored before it is differentiated: a slice inside a fused loop keeps it from vectorising.
        records, keep = chunk.stored(batch, mask)
        gradients, hessians = _derivatives(chunk, loss, flat, unflatten, records, sequential)
        # The Hessian first: without a weight for the gradient it is all there is.
        parts = [(hessians, hessian_weight)]
        if gradient_weight is not None:
            parts.append((gradients, gradient_weight))
        factors = blocks(clipping.clip_factors(clip_norm, *parts, keep=keep))
        sums = [
            rounding.block_products(factors, blocks(rows), permutation_invariant, axis=1)
            for rows, _ in parts
        ]
        return [sums[0].reshape(-1, p, p), *sums[1:]]

    # The joint norm divides H by its weight, so that H itself is within C w_h.
    summands = [Summand((p, p), flat.dtype, clip_norm * hessian_weight, squares=1)]
    if gradient_weight is not None:
        summands.append(Summand((p,), flat.dtype, clip_norm * gradient_weight))
    rows = chunks.rows_per_chunk(n, p * p)
    hessian, *gradient = chunks.sum_chunks(n, rows, contribution, summands)
    return gradient[0] if gradient else None, hessian


def _derivatives(
    chunk: Chunk, loss: Loss, flat: Array, unflatten: Callable, records: PyTree, sequential: bool
) -> tuple[Array, Array]:
    """Per-example gradients (rows, p) and Hessians (rows, p * p), sanitized and stored."""
    # What the first pass saves has a structure that is known once it is traced.
    treedefs = []

    def linearized(record: PyTree) -> tuple[Array, list[Array]]:
        # Linearised, so that what the first pass saves is stored once for all p columns.
        gradient, push = jax.linearize(jax.grad(lambda w: loss(unflatten(w), record)), flat)
        residuals, treedef = jax.tree.flatten(push)
        treedefs.append(treedef)
        return clipping.sanitize_nonfinite(gradient), residuals

    gradients, residuals = chunks.compute_once(
        chunk, lambda: map_examples(linearized, records, sequential)
    )
    # The saved pass is linear: applied to the basis it gives the columns of the Hessian.
    basis = jnp.eye(flat.size, dtype=flat.dtype)

    def columns(residuals: list[Array]) -> Array:
        return clipping.sanitize_nonfinite(
            jax.vmap(jax.tree.unflatten(treedefs[-1], residuals))(basis)
        )

    # Of a loss whose Hessian is the same for every record nothing depends on the record.
    rows = gradients.shape[0]

    def of_all() -> Array:
        if sequential and residuals:
            return lax.map(columns, residuals)
        return jax.vmap(columns, axis_size=rows)(residuals)

    hessians = chunks.compute_once(chunk, of_all)
    return gradients, hessians.reshape(rows, -1)
