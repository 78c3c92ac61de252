"""Clipped sums of per-example gradients and Hessians; no noise."""

from dpjax.derivatives import clipping, linear_model
from dpjax.derivatives.per_example import (
    ClippedGrad,
    ClippedHessian,
    JointClipped,
    JointSum,
    clipped_grad,
    clipped_hessian,
    joint_clipped,
)

__all__ = [
    "ClippedGrad",
    "ClippedHessian",
    "JointClipped",
    "JointSum",
    "clipped_grad",
    "clipped_hessian",
    "clipping",
    "joint_clipped",
    "linear_model",
]
