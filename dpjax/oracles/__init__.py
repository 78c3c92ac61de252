"""Queries of the data, which answer with noise and know what they release."""

from dpjax._wide import Expansion, accumulate, zeros
from dpjax.oracles.ball import BallQuery
from dpjax.oracles.conditional import cond_under_vmap
from dpjax.oracles.counts import AccuracyQuery, CountQuery
from dpjax.oracles.difference import LEAST, DifferenceQuery
from dpjax.oracles.estimate import EstimateQuery
from dpjax.oracles.gradient import AnchorQuery, GradientQuery, NetworkQuery
from dpjax.oracles.hessian import HessianQuery, JointQuery, SecondOrderAnswer
from dpjax.oracles.minimizer import MinimizerQuery, iterations_of
from dpjax.oracles.newton import NewtonQuery
from dpjax.oracles.objective import ObjectiveQuery
from dpjax.oracles.query import Query
from dpjax.oracles.records import bind, check_examples, check_query
from dpjax.oracles.score import ScoreQuery, Scores
from dpjax.oracles.selection import SelectionQuery
from dpjax.oracles.setting import ClippedSums, Evaluations, Setting
from dpjax.oracles.subspace import SubspaceQuery
from dpjax.sampling.factories import (
    check_batch_size,
    poisson_sampler,
    single_passes,
    without_replacement_sampler,
)

__all__ = [
    "LEAST",
    "AccuracyQuery",
    "AnchorQuery",
    "BallQuery",
    "ClippedSums",
    "CountQuery",
    "DifferenceQuery",
    "EstimateQuery",
    "Evaluations",
    "Expansion",
    "GradientQuery",
    "HessianQuery",
    "JointQuery",
    "MinimizerQuery",
    "NetworkQuery",
    "NewtonQuery",
    "ObjectiveQuery",
    "Query",
    "ScoreQuery",
    "Scores",
    "SecondOrderAnswer",
    "SelectionQuery",
    "Setting",
    "SubspaceQuery",
    "accumulate",
    "bind",
    "check_batch_size",
    "check_examples",
    "check_query",
    "cond_under_vmap",
    "iterations_of",
    "poisson_sampler",
    "single_passes",
    "without_replacement_sampler",
    "zeros",
]
