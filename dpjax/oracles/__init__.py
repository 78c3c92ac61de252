"""The one door to the data: queries that answer with noise and know what they spent."""

from dpjax.oracles.base import Query, bind, check_examples
from dpjax.oracles.gradient import GradientQuery
from dpjax.oracles.hessian import HessianQuery, JointQuery, SecondOrderAnswer
from dpjax.oracles.subspace import SubspaceQuery, poisson_batches

__all__ = [
    "GradientQuery",
    "HessianQuery",
    "JointQuery",
    "Query",
    "SecondOrderAnswer",
    "SubspaceQuery",
    "bind",
    "check_examples",
    "poisson_batches",
]
