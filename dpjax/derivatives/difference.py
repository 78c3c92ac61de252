"""Clipped sums over records of gradient differences between the parameters and an anchor."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from dpjax._typing import Array, Float, Loss, Real, Relation, pytree_dataclass, static
from dpjax._wide import Expansion, on_device
from dpjax.derivatives import chunks, clipping, general, rounding
from dpjax.derivatives.chunks import Chunk, blocks
from dpjax.derivatives.general import Batch, Mask, Tree, TreeSum
from dpjax.derivatives.integers import Summand
from dpjax.derivatives.linear import prepared
from dpjax.derivatives.linear.sums import output_difference, score_difference
from dpjax.derivatives.primitives import map_examples, vmap_mixes_examples
from dpjax.objectives.linear import linear_of


@pytree_dataclass
class ClippedGradDifference:
    """The function that ``clipped_grad_difference`` returns."""

    smoothness: Real[Array, ""] | float
    clip_norm: Real[Array, ""] | float
    loss: Any = static()
    limit: Real[Array, ""] | float = math.inf
    """Bound on one record's contribution at any distance between parameters and anchor."""
    permutation_invariant: bool = static(default=False)

    def __call__(self, params: Tree, anchor: Tree, batch: Batch, mask: Mask = None) -> TreeSum:
        """Returns the sum of clipped differences, a pytree like ``params``."""
        total = self.wide(params, anchor, batch, mask).leading
        return general.flatten(params)[1](total, as_sum=True)

    def wide(
        self, params: Tree, anchor: Tree, batch: Batch, mask: Mask = None
    ) -> Float[Expansion, " p"]:
        """Returns the sum (p,) over the flattened parameters in float64, as an ``Expansion``."""
        batch = on_device(batch)
        bounds = (self.clip_norm, self.bound(params, anchor))
        if (linear := linear_of(self.loss)) is not None:
            records = prepared(linear, batch, mask)
            points = jnp.asarray(params), jnp.asarray(anchor)
            of_scores = output_difference if linear.outputs > 1 else score_difference
            return of_scores(linear, records, *points, bounds, self.permutation_invariant)
        return _general_sum(
            self.loss, params, anchor, batch, mask, bounds, self.permutation_invariant
        )

    def bound(self, params: Tree, anchor: Tree) -> Float[Array, ""]:
        """Returns the bound on one record's contribution, shape (): min(2 C, L |params - anchor|).

        All programs agree on it to a few roundings, which the margin left by clipping covers.
        """
        here, there = general.flatten(params)[0], general.flatten(anchor)[0]
        # As one row of a batch: no square leaves the range.
        _, distance = clipping.lengths((here - there)[None])
        # The limit comes last: it holds at any distance, also at one that is NaN.
        limit = jnp.asarray(self.limit, here.dtype)
        return jnp.minimum(self._of_distance(distance[0], jnp.where).astype(here.dtype), limit)

    def sensitivity(
        self, relation: Relation, distance: Real[Array, ""] | float, *, rows: int
    ) -> Real[Array, ""] | float:
        """Returns the l2 sensitivity of the sum at |params - anchor| = ``distance``.

        The other arguments as in ``clipped_grad``; rounding is included.
        """
        # On the host, where no ``where`` is needed.
        bound = self._of_distance(distance, lambda short, a, b: a if short else b)
        # A shift's error is assumed relative to C, and near the anchor the bound is far below C.
        if not rounding.keeps_positions(relation) and linear_of(self.loss) is None:
            raise ValueError(
                f"under {relation!r} a record shifts those behind it, whose gradients may then "
                "round otherwise, and their differences by more than is small. Use 'zero_out'."
            )
        return rounding.sum_sensitivity(
            min(bound, self.limit), relation, rows, self.permutation_invariant
        )

    def _of_distance(self, distance: Any, where: Any) -> Any:
        # The triangle inequality: each of the two gradients is within C.
        largest = 2 * self.clip_norm
        by_distance = self.smoothness * distance
        # A NaN distance gives no bound, but the bound by clipping still holds.
        return where(by_distance < largest, by_distance, where(largest < math.inf, largest, 0.0))


def clipped_grad_difference(
    loss: Loss,
    *,
    smoothness: Real[Array, ""] | float,
    clip_norm: Real[Array, ""] | float | None = None,
    permutation_invariant: bool = False,
) -> ClippedGradDifference:
    """Returns ``f(params, anchor, batch, mask=None)``: the sum of clipped gradient differences.

    Of each record both gradients are clipped to C, and their difference then to min(2 C,
    L |params - anchor|): near the anchor a record contributes little, and little noise suffices.

    Args:
      loss: ``loss(params, example) -> scalar`` sees one example, row i of every leaf of ``batch``;
        or an ``Objective``, whose margin turns on the closed form.
      smoothness: L, above 0; if the loss is L-smooth for every record, this bound never clips.
      clip_norm: C, above 0; by default the two gradients are not clipped.
      permutation_invariant: add in float64 too, for neighbours whose common rows lie elsewhere.

    Returns:
      A callable with ``.sensitivity(relation, distance=, rows=)``. ``mask`` (n,) bool leaves rows
      out.

    Raises:
      ValueError: if a number is not above 0.

    Privacy: NOT a mechanism: the sum is exact. Its l2 sensitivity, for parameters and anchor that
      are public or released, is that of ``.sensitivity`` for all data: a record with a
      gradient that is not finite contributes zero, and at the anchor the sum is zero.

    Reference: Wang, Ye and Xu (2017), algorithms 1 and 2, line 6, without the noise.

    >>> total = clipped_grad_difference(lambda w, x: (w @ x) ** 2 / 2, smoothness=1.0)
    >>> records = jnp.array([[0.6, 0.8], [6.0, 8.0]])
    >>> summed = total(jnp.array([0.3, 0.4]), jnp.zeros(2), records)
    >>> print([round(float(entry), 3) for entry in summed])
    [0.6, 0.8]
    >>> print(round(total.sensitivity("zero_out", distance=0.5, rows=2), 3))
    0.501
    """
    norm = math.inf if clip_norm is None else clipping.positive_number("clip_norm", clip_norm)
    smooth = clipping.positive_number("smoothness", smoothness)
    return ClippedGradDifference(smooth, norm, loss, permutation_invariant=permutation_invariant)


@functools.partial(jax.jit, static_argnames=("loss", "permutation_invariant"))
def _general_sum(
    loss: Loss,
    params: Tree,
    anchor: Tree,
    batch: Batch,
    mask: Array | None,
    bounds: tuple[Array | float, Array],
    permutation_invariant: bool,
) -> Expansion:
    n = chunks.common_length(batch, mask)
    flat, unflatten = general.flatten(params)
    flat_anchor = general.flatten(anchor)[0]
    gradient = jax.grad(lambda w, record: loss(unflatten(w), record))
    clip_norm, bound = bounds
    sequential = vmap_mixes_examples(loss, params, batch)

    def contribution(chunk: Chunk) -> Array:
        records, keep = chunk.stored(batch, mask)

        def clipped(w: Array) -> tuple[Array, Array]:
            rows = clipping.sanitize_nonfinite(
                map_examples(lambda r: gradient(w, r), records, sequential)
            )
            factors = clipping.clip_factors(clip_norm, (rows, 1.0), keep=keep)
            # A factor of 0 marks a record that is dropped, which must then be so at both points.
            return factors[:, None] * rows, factors > 0

        def differences() -> tuple[Array, Array]:
            (here, usable), (there, usable_there) = clipped(flat), clipped(flat_anchor)
            # Without a clip norm the difference of two finite gradients may still overflow.
            return clipping.sanitize_nonfinite(here - there), usable & usable_there

        # Stored: norm and sum must read the same numbers.
        change, usable = chunks.compute_once(chunk, differences)
        factors = clipping.clip_factors(bound, (change, 1.0), keep=usable)
        return rounding.block_products(
            blocks(factors), blocks(change), permutation_invariant, axis=1
        )

    rows = chunks.rows_per_chunk(n, flat.size, numbers=2**20)
    # The grid follows the bound, which is public, and so is finer near the anchor.
    return chunks.sum_chunks(n, rows, contribution, Summand(flat.shape, flat.dtype, bound))
