"""Queries of the data, which answer with noise and know what they release."""

from dpjax._wide import Expansion, accumulate, zeros
from dpjax.oracles.counts import AccuracyQuery, CountQuery, NormsQuery
from dpjax.oracles.gradient import (
    LEAST,
    AnchorQuery,
    BallQuery,
    DifferenceQuery,
    EstimateQuery,
    GradientQuery,
    NetworkQuery,
    PreconditionedQuery,
)
from dpjax.oracles.hessian import (
    CovarianceQuery,
    FittedQuery,
    HessianQuery,
    JointQuery,
    MomentQuery,
    SecondOrderAnswer,
    SubspaceQuery,
    WeightedQuery,
)
from dpjax.oracles.minimizer import MinimizerQuery, ObjectiveQuery, iterations_of
from dpjax.oracles.query import Query, cond_under_vmap
from dpjax.oracles.records import bind, check_examples, check_query
from dpjax.oracles.score import NewtonQuery, ScoreQuery, Scores, SelectionQuery
from dpjax.oracles.setting import CanarySetting, ClippedSums, Evaluations, Setting
from dpjax.sampling.factories import (
    batch_sampler,
    check_batch_size,
    single_passes,
)

__all__ = [
    "LEAST",
    "AccuracyQuery",
    "AnchorQuery",
    "BallQuery",
    "CanarySetting",
    "ClippedSums",
    "CountQuery",
    "CovarianceQuery",
    "DifferenceQuery",
    "EstimateQuery",
    "Evaluations",
    "Expansion",
    "FittedQuery",
    "GradientQuery",
    "HessianQuery",
    "JointQuery",
    "MinimizerQuery",
    "MomentQuery",
    "NetworkQuery",
    "NewtonQuery",
    "NormsQuery",
    "ObjectiveQuery",
    "PreconditionedQuery",
    "Query",
    "ScoreQuery",
    "Scores",
    "SecondOrderAnswer",
    "SelectionQuery",
    "Setting",
    "SubspaceQuery",
    "WeightedQuery",
    "accumulate",
    "batch_sampler",
    "bind",
    "check_batch_size",
    "check_examples",
    "check_query",
    "cond_under_vmap",
    "iterations_of",
    "single_passes",
    "zeros",
]
