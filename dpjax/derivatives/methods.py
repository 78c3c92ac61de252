"""Clipped sums of gradients by the cheapest method within a memory limit."""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax

from dpjax._typing import Array, Loss, Params, PyTree
from dpjax._wide import Expansion, wide_dtype
from dpjax.derivatives import general
from dpjax.derivatives.chunks import common_length
from dpjax.derivatives.ghost import bookkeeping

METHODS = ("auto", "book_keeping", "per_example")
MEMORY_LIMIT = 2**30
"""Default memory of a clipped sum in bytes, beside data and parameters."""

# Gradients of fewer numbers are materialised for every record: they stay in the cache.
_SMALL = 2048
# Values at once that use the caches of a CPU best, and records below which its products suffer.
_CACHED, _FEW = 2**23, 16


@functools.partial(
    jax.jit,
    static_argnames=("loss", "permutation_invariant", "per_layer", "method", "memory_limit"),
)
def gradient_sum(
    loss: Loss,
    params: Params,
    batch: PyTree,
    mask: Array | None,
    clip_norm: Array | float,
    *,
    permutation_invariant: bool = False,
    per_layer: bool = False,
    method: str = "auto",
    memory_limit: int | None = None,
) -> Expansion:
    """Returns the sum (p,) of clipped gradients.

    The arguments are those of ``clipped_grad``; ``permutation_invariant`` is as in
    ``rounding.block_products``.

    Raises:
      ValueError: if ``memory_limit`` is below what one record needs.

    Privacy: NOT a mechanism: it is exact.
    """
    # For its errors, before a method is chosen from shapes.
    common_length(batch, mask)
    params, batch = (jax.tree.map(jnp.asarray, tree) for tree in (params, batch))
    size, leaves = general.flatten(params)[0].size, len(jax.tree.leaves(params))
    if method == "auto" and size <= _SMALL and not per_layer and memory_limit is None:
        method = "per_example"
    if method == "per_example" and memory_limit is None:
        return general.gradient_sum(loss, params, batch, mask, clip_norm, permutation_invariant)
    reading = bookkeeping.read(loss, params, batch, permutation_invariant)
    if method == "auto" and not (reading.saves or per_layer):
        method = "per_example"
    # From shapes: each value about once forward and once backward, and two copies of a gradient.
    per_record = reading.numbers if method != "per_example" else 2 * (reading.plan.numbers + size)
    rows = rows_within(per_record, wide_dtype(params).itemsize, memory_limit)
    if method == "per_example":
        return general.gradient_sum(
            loss, params, batch, mask, clip_norm, permutation_invariant, rows
        )
    keeping = functools.partial(
        bookkeeping.gradient_sum, loss, permutation_invariant=permutation_invariant, rows=rows
    )
    if per_layer:
        # L leaves within C / sqrt(L) each are within C together.
        return keeping(params, batch, mask, jnp.full(leaves, clip_norm / math.sqrt(leaves)))
    if method == "book_keeping":
        return keeping(params, batch, mask, clip_norm)
    # Norms without the gradients cancel, and need float64, which is fast on a CPU alone.
    needed = 2 * (reading.plan.numbers + size) * wide_dtype(params).itemsize
    most = max(1, min(MEMORY_LIMIT, memory_limit or MEMORY_LIMIT) // needed)
    whole = functools.partial(
        general.gradient_sum, loss, permutation_invariant=permutation_invariant, most=most
    )
    return lax.platform_dependent(params, batch, mask, clip_norm, cpu=keeping, default=whole)


def rows_within(numbers: int, itemsize: int, memory_limit: int | None) -> int:
    """Returns the number of records to compute at once, of ``numbers`` values each.

    ``memory_limit`` is in bytes, or None for ``MEMORY_LIMIT``, which a large record may exceed.

    Raises:
      ValueError: if one record needs more than a limit that is not None.

    >>> rows_within(1_000, 4, 4_000_000), rows_within(2**40, 4, None)
    (1000, 1)
    """
    needed = max(numbers, 1) * itemsize
    if memory_limit is not None and memory_limit < needed:
        raise ValueError(
            f"memory_limit={memory_limit} bytes is below what one example needs; raise it to "
            f"{needed} at least."
        )
    rows = max(1, (MEMORY_LIMIT if memory_limit is None else memory_limit) // needed)
    # The limit below is for the caches of a CPU.
    if jax.default_backend() != "cpu":
        return rows
    return min(rows, max(_FEW, _CACHED // max(numbers, 1)))
