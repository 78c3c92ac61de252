"""Losses of one example with their constants, and the regularizers added after the noise."""

from dpjax.objectives.base import (
    Constants,
    Defaults,
    LinearModel,
    Model,
    Objective,
    Unlabelled,
)
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
    welsch,
)
from dpjax.objectives.proximal import prox_elastic_net, prox_l1, prox_l2, prox_zero
from dpjax.objectives.regularizers import L1, L2, ElasticNet, Nonconvex, Quartic
from dpjax.objectives.saddles import (
    LowRankLoss,
    PhaseLoss,
    TwoLayer,
    TwoLayerLoss,
    low_rank,
    pca,
    phase_retrieval,
    two_layer,
    welsch_regularization,
)

SADDLES = {
    "welsch": welsch,
    "phase-retrieval": phase_retrieval,
    "pca": pca,
    "two-layer": two_layer,
}
"""Factories of objectives with a strict saddle at 0, where the command line starts, by name."""

OBJECTIVES = {
    "logistic-nonconvex": logistic_nonconvex,
    "sigmoid-l2": sigmoid_l2,
    "logistic-l2": logistic_l2,
    "logistic-l1": logistic_l1,
    "logistic": logistic,
    **SADDLES,
}
"""Factories of all objectives of the command line, by name."""

__all__ = [
    "L1",
    "L2",
    "OBJECTIVES",
    "SADDLES",
    "Box",
    "Constants",
    "Defaults",
    "ElasticNet",
    "L1Ball",
    "L2Ball",
    "LinearModel",
    "LowRankLoss",
    "Model",
    "Nonconvex",
    "Objective",
    "PhaseLoss",
    "Quartic",
    "Simplex",
    "TwoLayer",
    "TwoLayerLoss",
    "Unlabelled",
    "cross_entropy",
    "free_hessian_ratio",
    "has_proven_constants",
    "logistic",
    "logistic_l1",
    "logistic_l2",
    "logistic_nonconvex",
    "low_rank",
    "margin_derivatives",
    "pca",
    "phase_retrieval",
    "prox_elastic_net",
    "prox_l1",
    "prox_l2",
    "prox_zero",
    "sigmoid_l2",
    "two_layer",
    "welsch",
    "welsch_regularization",
]
