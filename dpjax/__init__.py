"""Differentially private optimization of non-convex models in JAX."""

import importlib
from typing import TYPE_CHECKING, Any

from dpjax import (
    accounting,
    baselines,
    datasets,
    derivatives,
    diagnostics,
    mechanisms,
    objectives,
    plotting,
    sampling,
    transforms,
)
from dpjax.accounting import Ledger, PrivacyBudget
from dpjax.algorithms import (
    ALGORITHMS,
    Certificate,
    Status,
    dp_accelerated_mirror_descent,
    dp_adam,
    dp_gradient_descent,
    dp_optimizer,
    dp_stochastic_trust_region,
    dp_subspace_trust_region,
    dp_svrg,
    dp_svrg_plus_plus,
    dp_trust_region,
    dpagem,
    paper_schedule,
    perturbed_gradient_descent,
    stochastic_spider,
    with_accuracy,
)
from dpjax.datasets import Dataset
from dpjax.derivatives import (
    clipped_grad,
    clipped_grad_difference,
    clipped_hessian,
    joint_clipped,
)
from dpjax.driver import ResumeMismatch, SavedSolution, Solution, load, run, save, solve
from dpjax.linalg import trust_region_step
from dpjax.mechanisms import random_key
from dpjax.objectives import Objective

if TYPE_CHECKING:
    from dpjax import auditing, estimators, models, reproduce, training
    from dpjax.training import Trained, fit

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
    "Trained",
    "accounting",
    "auditing",
    "baselines",
    "clipped_grad",
    "clipped_grad_difference",
    "clipped_hessian",
    "datasets",
    "derivatives",
    "diagnostics",
    "dp_accelerated_mirror_descent",
    "dp_adam",
    "dp_gradient_descent",
    "dp_optimizer",
    "dp_stochastic_trust_region",
    "dp_subspace_trust_region",
    "dp_svrg",
    "dp_svrg_plus_plus",
    "dp_trust_region",
    "dpagem",
    "estimators",
    "fit",
    "joint_clipped",
    "load",
    "mechanisms",
    "models",
    "objectives",
    "paper_schedule",
    "perturbed_gradient_descent",
    "plotting",
    "random_key",
    "reproduce",
    "run",
    "sampling",
    "save",
    "solve",
    "stochastic_spider",
    "training",
    "transforms",
    "trust_region_step",
    "with_accuracy",
]

# Rooms that training does not need, imported when they are first named.
_LAZY = {"auditing", "estimators", "models", "reproduce", "training"}
_TRAINING = {"Trained", "fit"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return importlib.import_module(f"dpjax.{name}")
    if name in _TRAINING:
        return getattr(importlib.import_module("dpjax.training"), name)
    raise AttributeError(f"module 'dpjax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *_TRAINING})
