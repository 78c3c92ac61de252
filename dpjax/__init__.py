"""Differentially private optimization of non-convex models in JAX."""

import importlib
import sys
from typing import TYPE_CHECKING, Any

# Before dpjax's other files: an import of fcntl would fail without giving the reason.
if sys.platform == "win32":
    raise ImportError("dpjax needs the file locks and forks of POSIX; on Windows, run it in WSL 2.")

if TYPE_CHECKING:  # each under its own name again, by which type checkers know that it is public
    from dpjax import accounting as accounting
    from dpjax import algorithms as algorithms
    from dpjax import auditing as auditing
    from dpjax import comparison as comparison
    from dpjax import datasets as datasets
    from dpjax import derivatives as derivatives
    from dpjax import diagnostics as diagnostics
    from dpjax import distributed as distributed
    from dpjax import estimators as estimators
    from dpjax import features as features
    from dpjax import linalg as linalg
    from dpjax import mechanisms as mechanisms
    from dpjax import models as models
    from dpjax import objectives as objectives
    from dpjax import oracles as oracles
    from dpjax import plotting as plotting
    from dpjax import reporting as reporting
    from dpjax import sampling as sampling
    from dpjax import statistics as statistics
    from dpjax import training as training
    from dpjax import transforms as transforms
    from dpjax import tuning as tuning
    from dpjax._typing import pytree_dataclass as pytree_dataclass
    from dpjax._typing import static as static
    from dpjax.accounting import Ledger as Ledger
    from dpjax.accounting import PrivacyBudget as PrivacyBudget
    from dpjax.algorithms import ALGORITHMS as ALGORITHMS
    from dpjax.algorithms import Certificate as Certificate
    from dpjax.algorithms import Status as Status
    from dpjax.algorithms import dp_accelerated_mirror_descent as dp_accelerated_mirror_descent
    from dpjax.algorithms import dp_adam as dp_adam
    from dpjax.algorithms import dp_feature_covariance as dp_feature_covariance
    from dpjax.algorithms import dp_gradient_descent as dp_gradient_descent
    from dpjax.algorithms import (
        dp_gradient_descent_with_selection as dp_gradient_descent_with_selection,
    )
    from dpjax.algorithms import dp_newton as dp_newton
    from dpjax.algorithms import dp_optimizer as dp_optimizer
    from dpjax.algorithms import dp_sgd as dp_sgd
    from dpjax.algorithms import dp_stochastic_trust_region as dp_stochastic_trust_region
    from dpjax.algorithms import dp_subspace_trust_region as dp_subspace_trust_region
    from dpjax.algorithms import dp_svrg as dp_svrg
    from dpjax.algorithms import dp_svrg_plus_plus as dp_svrg_plus_plus
    from dpjax.algorithms import dp_trust_region as dp_trust_region
    from dpjax.algorithms import dpagem as dpagem
    from dpjax.algorithms import noisy_newton as noisy_newton
    from dpjax.algorithms import objective_perturbation as objective_perturbation
    from dpjax.algorithms import output_perturbation as output_perturbation
    from dpjax.algorithms import paper_schedule as paper_schedule
    from dpjax.algorithms import perturbed_gradient_descent as perturbed_gradient_descent
    from dpjax.algorithms import stochastic_spider as stochastic_spider
    from dpjax.algorithms import with_accuracy as with_accuracy
    from dpjax.algorithms import with_count as with_count
    from dpjax.datasets import Dataset as Dataset
    from dpjax.derivatives import clipped_grad as clipped_grad
    from dpjax.derivatives import clipped_grad_difference as clipped_grad_difference
    from dpjax.derivatives import clipped_hessian as clipped_hessian
    from dpjax.derivatives import joint_clipped as joint_clipped
    from dpjax.driver import ResumeMismatch as ResumeMismatch
    from dpjax.driver import run as run
    from dpjax.driver import solve as solve
    from dpjax.linalg import trust_region_step as trust_region_step
    from dpjax.mechanisms import random_key as random_key
    from dpjax.objectives import Objective as Objective
    from dpjax.reporting import report as report
    from dpjax.results import SavedSolution as SavedSolution
    from dpjax.results import Solution as Solution
    from dpjax.results import load as load
    from dpjax.results import save as save
    from dpjax.training import Trained as Trained
    from dpjax.training import fit as fit
    from dpjax.tuning import Tuned as Tuned
    from dpjax.tuning import tune as tune

    __version__: str

# Imported when they are first named: whoever asks for help need not wait for JAX.
_ROOMS = (
    "accounting algorithms auditing comparison datasets derivatives diagnostics distributed "
    "estimators features linalg mechanisms models objectives oracles plotting reporting sampling "
    "statistics training transforms tuning"
)
_NAMES = {
    "_typing": "pytree_dataclass static",
    "accounting": "Ledger PrivacyBudget",
    "algorithms": (
        "ALGORITHMS Certificate Status dp_accelerated_mirror_descent dp_adam "
        "dp_feature_covariance dp_gradient_descent dp_gradient_descent_with_selection "
        "dp_newton dp_optimizer dp_sgd "
        "dp_stochastic_trust_region dp_subspace_trust_region dp_svrg dp_svrg_plus_plus "
        "dp_trust_region dpagem noisy_newton objective_perturbation output_perturbation "
        "paper_schedule perturbed_gradient_descent stochastic_spider with_accuracy with_count"
    ),
    "datasets": "Dataset",
    "derivatives": "clipped_grad clipped_grad_difference clipped_hessian joint_clipped",
    "driver": "ResumeMismatch run solve",
    "linalg": "trust_region_step",
    "mechanisms": "random_key",
    "objectives": "Objective",
    "reporting": "report",
    "results": "SavedSolution Solution load save",
    "training": "Trained fit",
    "tuning": "Tuned tune",
}
_MOVED = {
    "baselines": "dpjax.algorithms",
    "experiments": "dpjax.comparison, and benchmarks/papers of a checkout",
}
_ROOM_OF = {name: room for room, names in _NAMES.items() for name in names.split()}
__all__ = sorted([*_ROOMS.split(), *_ROOM_OF])  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value = importlib.import_module("importlib.metadata").version("dpjax")
    elif name in __all__ or name in _NAMES:
        room = importlib.import_module(f"dpjax.{_ROOM_OF.get(name, name)}")
        value = getattr(room, name) if name in _ROOM_OF else room
    else:
        # Tools ask for names such as __wrapped__, for which JAX need not be imported.
        value = None if name.startswith("_") else _factories().get(name)
        if value is None:
            where = f"; it is {_MOVED[name]} now" if name in _MOVED else ""
            raise AttributeError(f"module 'dpjax' has no attribute {name!r}{where}")
    # So that the next look is no call.
    globals()[name] = value
    return value


def _factories() -> dict[str, Any]:
    """Factories by their own names: one that is only a row of the registry is public too."""
    entries = importlib.import_module("dpjax.algorithms").ALL.values()
    return {entry.factory.__name__: entry.factory for entry in entries}


def __dir__() -> list[str]:
    # Without what this file imports for itself.
    return list(__all__)
