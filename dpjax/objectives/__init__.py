"""Losses of one example with their constants, and the regularizers added after the noise."""

from dpjax.objectives.classifier import cross_entropy, softmax
from dpjax.objectives.linear import LinearLoss, free_hessian_ratio, margin_derivatives
from dpjax.objectives.margin import (
    has_proven_constants,
    logistic,
    logistic_l1,
    logistic_l2,
    logistic_nonconvex,
    sigmoid_l2,
    welsch,
)
from dpjax.objectives.model import (
    LinearClassifier,
    LinearModel,
    LinearRegression,
    Model,
    Unlabelled,
)
from dpjax.objectives.objective import (
    Constants,
    Defaults,
    LossOfScores,
    Objective,
)
from dpjax.objectives.regression import huber, least_squares, tukey, welsch_residual
from dpjax.objectives.regularizers import (
    L1,
    L2,
    Box,
    ElasticNet,
    ExceptIntercept,
    L1Ball,
    L2Ball,
    Nonconvex,
    Quartic,
    Simplex,
    default_penalty,
    describe_penalty,
    prox_elastic_net,
    prox_l1,
    prox_l2,
    prox_zero,
)
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

SADDLES = {"welsch": welsch, "phase-retrieval": phase_retrieval, "pca": pca, "two-layer": two_layer}
"""Factories of objectives with a strict saddle at 0, where the command line starts, by name."""

MARGINS = {
    "logistic-nonconvex": logistic_nonconvex,
    "sigmoid-l2": sigmoid_l2,
    "logistic-l2": logistic_l2,
    "logistic-l1": logistic_l1,
    "logistic": logistic,
}
"""Factories of objectives that tell two classes apart, by name."""

RESIDUALS = {
    "least-squares": least_squares,
    "huber": huber,
    "tukey": tukey,
    "welsch-residual": welsch_residual,
}
"""Factories of objectives for labels that are numbers from -1 to 1, by name."""

OBJECTIVES = {**MARGINS, **RESIDUALS, **SADDLES}
"""Factories of the objectives that take no number of classes, by name."""

__all__ = [
    "L1",
    "L2",
    "MARGINS",
    "OBJECTIVES",
    "RESIDUALS",
    "SADDLES",
    "Box",
    "Constants",
    "Defaults",
    "ElasticNet",
    "ExceptIntercept",
    "L1Ball",
    "L2Ball",
    "LinearClassifier",
    "LinearLoss",
    "LinearModel",
    "LinearRegression",
    "LossOfScores",
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
    "default_penalty",
    "describe_penalty",
    "free_hessian_ratio",
    "has_proven_constants",
    "huber",
    "least_squares",
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
    "softmax",
    "tukey",
    "two_layer",
    "welsch",
    "welsch_regularization",
    "welsch_residual",
]
