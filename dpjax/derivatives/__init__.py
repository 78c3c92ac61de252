"""Clipped sums of per-example gradients, their changes, and Hessians; no noise."""

from dpjax.derivatives import clipping, linear
from dpjax.derivatives.chunks import count_rows
from dpjax.derivatives.difference import ClippedGradDifference, clipped_grad_difference
from dpjax.derivatives.general import flatten
from dpjax.derivatives.minimum import distance_bound, iterations_for, ridge_minimum
from dpjax.derivatives.per_example import (
    ClippedSum,
    JointSum,
    clipped_grad,
    clipped_hessian,
    joint_clipped,
)
from dpjax.derivatives.rounding import (
    keeps_positions,
    most_rows,
    rounding_error,
    shift_rounding_error,
    sum_rounding_error,
)
from dpjax.derivatives.subspace import SubspaceClipped, subspace_clipped

__all__ = [
    "ClippedGradDifference",
    "ClippedSum",
    "JointSum",
    "SubspaceClipped",
    "clipped_grad",
    "clipped_grad_difference",
    "clipped_hessian",
    "clipping",
    "count_rows",
    "distance_bound",
    "flatten",
    "iterations_for",
    "joint_clipped",
    "keeps_positions",
    "linear",
    "most_rows",
    "ridge_minimum",
    "rounding_error",
    "shift_rounding_error",
    "subspace_clipped",
    "sum_rounding_error",
]
