"""Differentially private optimization of non-convex models in JAX."""

from dpjax import (
    accounting,
    datasets,
    derivatives,
    diagnostics,
    mechanisms,
    objectives,
    plotting,
)
from dpjax.accounting import Ledger, PrivacyBudget
from dpjax.algorithms import (
    ALGORITHMS,
    Certificate,
    Status,
    dp_gradient_descent,
    dp_trust_region,
    paper_schedule,
)
from dpjax.datasets import Dataset
from dpjax.derivatives import clipped_grad, clipped_hessian, joint_clipped
from dpjax.driver import ResumeMismatch, SavedSolution, Solution, load, run, save, solve
from dpjax.linalg import trust_region_step
from dpjax.mechanisms import random_key
from dpjax.objectives import Objective

__all__ = [
    "ALGORITHMS",
    "Certificate",
    "Dataset",
    "Ledger",
    "Objective",
    "PrivacyBudget",
    "ResumeMismatch",
    "SavedSolution",
    "Solution",
    "Status",
    "accounting",
    "clipped_grad",
    "clipped_hessian",
    "datasets",
    "derivatives",
    "diagnostics",
    "dp_gradient_descent",
    "dp_trust_region",
    "joint_clipped",
    "load",
    "mechanisms",
    "objectives",
    "paper_schedule",
    "plotting",
    "random_key",
    "run",
    "save",
    "solve",
    "trust_region_step",
]
