"""Ghost clipping in two passes: norms first, then one backward pass of the weighted loss.

Here rounding has no bound: the weighted pass adds up over records and positions at once, in the
dtype of the parameters. Queries do not use it; it is for comparison, and for a user's own loops.
"""

import functools

import jax
import jax.numpy as jnp

from dpjax._typing import Array, Loss, Params, PyTree
from dpjax._wide import Expansion, wide_dtype
from dpjax.derivatives import clipping
from dpjax.derivatives.chunks import Chunk, common_length, sum_blocks
from dpjax.derivatives.ghost import bookkeeping
from dpjax.derivatives.integers import Summand


@functools.partial(jax.jit, static_argnames=("loss", "any_order", "rows"))
def gradient_sum(
    loss: Loss,
    params: Params,
    batch: PyTree,
    mask: Array | None,
    clip_norm: Array | float,
    any_order: bool,
    rows: int,
) -> Expansion:
    """Returns the clipped sum, with the arguments of ``bookkeeping.gradient_sum``.

    Raises:
      ValueError: for one clip norm for each layer, which no weighted loss can apply.

    Privacy: NOT a mechanism, and no bound: rounding may carry one record beyond the clip norm.
    """
    if jnp.ndim(clip_norm):
        raise ValueError(
            "method='two_pass' weights full gradients; per_layer needs 'book_keeping'."
        )
    n = common_length(batch, mask)
    reading, dtype = (
        bookkeeping.read(loss, params, batch, any_order),
        wide_dtype(params),
    )

    def contribution(chunk: Chunk, size: int) -> list[Array]:
        del size
        records, keep = bookkeeping.rows_of(chunk, batch, mask, n)
        squares, _ = bookkeeping.measured(loss, reading, params, records, chunk, dtype)
        factors, *_ = clipping.factors(squares, clip_norm, keep, dtype)
        # A dropped record may hold a NaN, and 0 times NaN is NaN: replace it by another record.
        good = jnp.argmax(factors > 0)
        usable = jax.tree.map(
            lambda leaf: jnp.where(_like(factors > 0, leaf), leaf, leaf[good]), records
        )

        def weighted(params: Params) -> Array:
            return jnp.sum(factors * jax.vmap(loss, (None, 0))(params, usable))

        sums = jax.tree.leaves(jax.grad(weighted)(params))
        some = jnp.any(factors > 0)
        return [jnp.where(some, leaf.astype(dtype), 0).ravel()[None] for leaf in sums]

    leaves = jax.tree.leaves(params)
    summands = [Summand((leaf.size,), dtype, bound=None) for leaf in leaves]
    sums = sum_blocks(n, rows, contribution, summands)
    return jax.tree.map(lambda *words: jnp.concatenate(words), *sums)


def _like(keep: Array, leaf: Array) -> Array:
    return keep.reshape(-1, *(1,) * (leaf.ndim - 1))
