"""Clipped sums of gradients and Hessians in a subspace, for large models."""

from __future__ import annotations

import functools
from typing import Any

import jax
from jax.typing import ArrayLike

from dpjax._typing import (
    Array,
    Bool,
    Float,
    Loss,
    Params,
    PyTree,
    Real,
    Relation,
    Shaped,
    pytree_dataclass,
    static,
)
from dpjax._wide import Expansion, on_device
from dpjax.derivatives import clipping, directions, general, rounding
from dpjax.derivatives.batching import example_of, map_examples, vmap_mixes_examples
from dpjax.derivatives.chunks import (
    Chunk,
    blocks,
    common_length,
    compute_once,
    rows_per_chunk,
    sum_chunks,
)
from dpjax.derivatives.integers import Summand
from dpjax.derivatives.per_example import JointSum


@pytree_dataclass
class SubspaceClipped:
    """The function that ``subspace_clipped`` returns."""

    gradient_weight: Real[Array, ""] | float
    hessian_weight: Real[Array, ""] | float
    loss: Any = static()
    permutation_invariant: bool = static(default=False)

    def __call__(
        self,
        params: PyTree[Float[ArrayLike, "?*leaf"], "Params"],
        batch: PyTree[Shaped[ArrayLike, "n ..."]],
        sketch: Float[Array, "k p"],
        mask: Bool[ArrayLike, " n"] | None = None,
    ) -> JointSum:
        """Returns the sums of S g, shape (k,), and S H S^T, shape (k, k)."""
        total = self.wide(params, batch, sketch, mask)
        return JointSum(*(each.leading for each in total))

    def wide(
        self,
        params: PyTree[Float[ArrayLike, "?*leaf"], "Params"],
        batch: PyTree[Shaped[ArrayLike, "n ..."]],
        sketch: Float[Array, "k p"],
        mask: Bool[ArrayLike, " n"] | None = None,
    ) -> JointSum:
        """Returns the result of a call in float64, as ``Expansion``."""
        weights, batch = (self.gradient_weight, self.hessian_weight), on_device(batch)
        order = self.permutation_invariant
        return JointSum(*_sums(self.loss, params, sketch, batch, mask, weights, order))

    def sensitivity(self, relation: Relation, *, rows: int) -> Real[Array, ""] | float:
        """Returns the l2 sensitivity of (S g / gradient_weight, svec(S H S^T) / hessian_weight).

        Arguments as in ``clipped_grad``; rounding is included.
        """
        # The weights are the bounds, so that C is 1.
        return rounding.sum_sensitivity(1.0, relation, rows, self.permutation_invariant)


def subspace_clipped(
    loss: Loss,
    *,
    gradient_weight: Real[Array, ""] | float,
    hessian_weight: Real[Array, ""] | float,
    permutation_invariant: bool = False,
) -> SubspaceClipped:
    """Returns ``f(params, batch, sketch, mask=None)``: derivatives in a subspace, jointly clipped.

    One record's vector is (S g / gradient_weight, svec(S H S^T) / hessian_weight) for a public
    sketch S (k, p); one factor brings it to norm 1. It costs about k gradients, and memory for the
    derivatives of a chunk of records along k directions: neither p x p nor rows x p numbers.

    Args:
      loss: ``loss(params, example) -> scalar`` sees one example.
      gradient_weight: w_g, above 0.
      hessian_weight: w_h, above 0.
      permutation_invariant: add in float64 too, for neighbours whose common rows lie elsewhere.

    Returns:
      A callable with ``.sensitivity(relation, rows=)``; its result is a ``JointSum`` in natural
      units.

    Raises:
      ValueError: if a weight is not above 0.

    Privacy: NOT a mechanism. The sensitivity holds for every sketch that does not depend on the
      records, orthonormal or not, since the projected vector is clipped.

    >>> import jax.numpy as jnp
    >>> total = subspace_clipped(
    ...     lambda w, x: (w @ x) ** 2 / 2, gradient_weight=1.0, hessian_weight=1.0)
    >>> sketch = jnp.array([[0.6, 0.8]])
    >>> print(total(jnp.zeros(2), jnp.array([[0.6, 0.8], [30.0, 40.0]]), sketch).hessian.round(3))
    [[2.]]
    """
    return SubspaceClipped(
        clipping.positive_number("gradient_weight", gradient_weight),
        clipping.positive_number("hessian_weight", hessian_weight),
        loss,
        permutation_invariant,
    )


@functools.partial(jax.jit, static_argnames=("loss", "permutation_invariant"))
def _sums(
    loss: Loss,
    params: Params,
    sketch: Array,
    batch: PyTree,
    mask: Array | None,
    weights: tuple[Array | float, Array | float],
    permutation_invariant: bool,
) -> tuple[Expansion, Expansion]:
    n = common_length(batch, mask)
    flat, unflatten = general.flatten(params)
    if sketch.ndim != 2 or sketch.shape[1] != flat.size:
        raise ValueError(f"sketch must have shape (k, {flat.size}), got {sketch.shape}.")
    k, sketch = sketch.shape[0], sketch.astype(flat.dtype)

    def of_flat(point: Array, record: PyTree) -> Array:
        return loss(unflatten(point), record)

    sequential = vmap_mixes_examples(loss, params, batch)

    def contribution(chunk: Chunk) -> tuple[Array, Array]:
        records, keep = chunk.stored(batch, mask)

        # Without storing them a compiler would compute derivatives anew for every use.
        def store(value: Array) -> Array:
            return compute_once(chunk, lambda: value)

        def rows() -> tuple[Array, Array]:
            gradients, hessians = map_examples(
                lambda record: directions.derivatives(of_flat, flat, sketch, record, store),
                records,
                sequential,
            )
            hessians = hessians.reshape(-1, k * k)
            return clipping.sanitize_nonfinite(gradients), clipping.sanitize_nonfinite(hessians)

        # Stored: norm and sum must read the same numbers.
        gradients, hessians = compute_once(chunk, rows)
        # The weights are the bounds, so that the joint norm is clipped to 1.
        factors = clipping.clip_factors(
            1.0, (gradients, weights[0]), (hessians, weights[1]), keep=keep
        )
        first, second = (
            rounding.block_products(blocks(factors), blocks(rows), permutation_invariant, axis=1)
            for rows in (gradients, hessians)
        )
        return first, second.reshape(-1, k, k)

    # The derivatives along all k directions are what fills the memory.
    numbers = k * directions.widest(of_flat, flat, example_of(batch))
    # Only the Hessian is a square, which is made exactly symmetric.
    summands = tuple(
        Summand(shape, flat.dtype, weight, squares)
        for shape, weight, squares in zip(((k,), (k, k)), weights, (0, 1), strict=True)
    )
    gradient, hessian = sum_chunks(n, rows_per_chunk(n, numbers), contribution, summands)
    return gradient, hessian
