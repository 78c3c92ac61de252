"""Losses of one example with their constants, and the regularizers added after the noise."""

from dpjax.objectives.base import Constants, Objective
from dpjax.objectives.classifier import cross_entropy
from dpjax.objectives.margin import (
    free_hessian_ratio,
    has_proven_constants,
    logistic,
    logistic_l2,
    logistic_nonconvex,
    sigmoid_l2,
)
from dpjax.objectives.regularizers import L2, Nonconvex

OBJECTIVES = {
    "logistic-nonconvex": logistic_nonconvex,
    "sigmoid-l2": sigmoid_l2,
    "logistic-l2": logistic_l2,
    "logistic": logistic,
}

__all__ = [
    "L2",
    "OBJECTIVES",
    "Constants",
    "Nonconvex",
    "Objective",
    "cross_entropy",
    "free_hessian_ratio",
    "has_proven_constants",
    "logistic",
    "logistic_l2",
    "logistic_nonconvex",
    "sigmoid_l2",
]
