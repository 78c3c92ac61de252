"""Clipped sums in closed form over units of several rows, for losses of several linear scores."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from dpjax._linear import LinearLoss
from dpjax._typing import Array
from dpjax._wide import Expansion
from dpjax.derivatives import linear_outputs, linear_units
from dpjax.derivatives.chunks import Chunk, compute_once, sum_chunks

if TYPE_CHECKING:
    from jaxtyping import Float, Real


@functools.partial(jax.jit, static_argnames=("linear",))
def unit_output_sums(
    linear: LinearLoss,
    units: linear_units.PreparedUnits,
    params: Float[Array, " k"],
    *,
    gradient_weight: Real[Array, ""] | float | None,
    hessian_weight: Real[Array, ""] | float | None,
    clip_norm: Real[Array, ""] | float,
) -> tuple[Float[Expansion, " k"] | None, Float[Expansion, "k k"] | None]:
    """Returns the sums of gradients and Hessians of units, clipped by one factor a unit.

    With directions z_i, a unit's gradient is g = sum a_i (x) z_i and its Hessian H = sum B_i (x)
    z_i z_i^T, so that |g|^2 and |H|_F^2 are the sums of <a_i, a_j> G_ij and <B_i, B_j> G_ij^2 over
    the Gram matrix G. What is said of rows that cancel in ``linear_units.unit_sums`` holds here.

    Args:
      linear: the loss of a row's K scores.
      units: from ``linear_units.prepare_units``.
      params: (k,), K rows of p weights.
      gradient_weight: w_g; None without a gradient.
      hessian_weight: w_h; None without a Hessian.
      clip_norm: bound on sqrt(|g|^2 / w_g^2 + |H|_F^2 / w_h^2) of one unit.

    Returns:
      Sums (k,) and (k, k), or None, in natural units.

    Privacy: one unit moves (g / w_g, svec(H) / w_h) by at most ``clip_norm``, however many rows it
      has and whatever they are.
    """
    blocks, p, size = units.directions.shape
    outputs, dtype = linear.outputs, units.directions.dtype
    weights = params.astype(dtype).reshape(outputs, p)
    norms: Any = (gradient_weight, hessian_weight)

    def contribution(chunk: Chunk) -> Array:
        z, r, v = units.of(chunk)
        label = None if units.label is None else chunk.of(units.label)
        gram = units.gram_of(chunk)

        def coefficients() -> list[Array]:
            both = linear_outputs.derivatives(linear, weights, z, r, label)
            counted = jnp.where(chunk.fresh[:, None], v, 0).reshape(-1, 1)
            return [
                jnp.where(counted > 0, value * counted, 0)
                for value, weight in zip(both, norms, strict=True)
                if weight is not None
            ]

        parts = compute_once(chunk, coefficients)
        kept = [
            (weight, power)
            for weight, power in zip(norms, (1, 2), strict=True)
            if weight is not None
        ]

        def factors() -> Array:
            asked = [
                (values.reshape(-1, size, values.shape[1]), weight, power)
                for values, (weight, power) in zip(parts, kept, strict=True)
            ]
            return linear_units.factors(gram, units, asked, clip_norm).reshape(-1)

        return linear_outputs.products(chunk, z, parts, factors, outputs, norms)

    made = linear_outputs.summand(outputs, p, dtype, norms, clip_norm)
    return linear_outputs.split(sum_chunks(blocks, units.width, contribution, made), outputs, norms)
