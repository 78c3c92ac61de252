"""Losses of one example with their constants, and the regularizers added after the noise."""

from dpjax.objectives.base import Constants, Objective
from dpjax.objectives.classifier import cross_entropy
from dpjax.objectives.domains import Box, L1Ball, L2Ball, Simplex
from dpjax.objectives.margin import (
    free_hessian_ratio,
    has_proven_constants,
    logistic,
    logistic_l1,
    logistic_l2,
    logistic_nonconvex,
    margin_derivatives,
    sigmoid_l2,
)
from dpjax.objectives.proximal import prox_elastic_net, prox_l1, prox_l2, prox_zero
from dpjax.objectives.regularizers import L1, L2, ElasticNet, Nonconvex

OBJECTIVES = {
    "logistic-nonconvex": logistic_nonconvex,
    "sigmoid-l2": sigmoid_l2,
    "logistic-l2": logistic_l2,
    "logistic-l1": logistic_l1,
    "logistic": logistic,
}

__all__ = [
    "L1",
    "L2",
    "OBJECTIVES",
    "Box",
    "Constants",
    "ElasticNet",
    "L1Ball",
    "L2Ball",
    "Nonconvex",
    "Objective",
    "Simplex",
    "cross_entropy",
    "free_hessian_ratio",
    "has_proven_constants",
    "logistic",
    "logistic_l1",
    "logistic_l2",
    "logistic_nonconvex",
    "margin_derivatives",
    "prox_elastic_net",
    "prox_l1",
    "prox_l2",
    "prox_zero",
    "sigmoid_l2",
]
