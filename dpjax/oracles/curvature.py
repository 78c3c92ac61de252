"""The smallest eigenvalue of a mean of clipped Hessians, exact: noise is added afterwards."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from dpjax._typing import Array, Params
from dpjax._wide import float64, to_float64
from dpjax.derivatives import clipped_hessian, flatten
from dpjax.objectives import Objective

EIGENVALUE_ERROR = 2.0**-44
"""Of an eigenvalue in float64, per parameter and clip norm: 2^9 times the unit roundoff."""


def smallest_curvature(
    objective: Objective,
    params: Params,
    records: Any,
    *,
    clip_norm: Array | float,
    divisor: float,
    permutation_invariant: bool,
    dtype: jnp.dtype,
    mask: Array | None = None,
) -> Array:
    """Returns lambda_min of (sum of clipped Hessians) / divisor + the regularizer's, float64 ().

    ``clip_norm`` is C_H, on the Frobenius norm of one record's Hessian; the regularizer's Hessian
    is formed in ``dtype``. Records are as ``bind`` makes them.

    Privacy: NOT a mechanism: the eigenvalue is exact. By Weyl's inequality one record moves it by
      C_H / divisor at most, whatever p.
    """
    clipped = clipped_hessian(
        objective.data_term, clip_norm=clip_norm, permutation_invariant=permutation_invariant
    )
    total = clipped.wide(params, records, mask)
    size = flatten(params)[0].size
    # Added after clipping: the regularizer is exact and reads no record, so it has no sensitivity.
    regularizer = objective.regularize_hessian(jnp.zeros((size, size), dtype), params)
    with jax.enable_x64(True):
        mean = lax.div(to_float64(total), lax.full_like(to_float64(total), divisor))
        return _smallest_eigenvalue(mean + float64(regularizer))


def _smallest_eigenvalue(matrix: Array) -> Array:
    # In float32 it would err by as much as one record of a million moves it.
    return lax.linalg.eigh(matrix, sort_eigenvalues=True)[1][0]
