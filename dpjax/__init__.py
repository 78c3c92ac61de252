"""Differentially private optimization of non-convex models in JAX."""

import importlib
import sys
from typing import TYPE_CHECKING, Any

# Before dpjax's other files: an import of fcntl would fail without giving the reason.
if sys.platform == "win32":
    raise ImportError("dpjax needs the file locks and forks of POSIX; on Windows, run it in WSL 2.")

if TYPE_CHECKING:
    from dpjax import (
        accounting,
        algorithms,
        auditing,
        comparison,
        datasets,
        derivatives,
        diagnostics,
        distributed,
        estimators,
        linalg,
        mechanisms,
        models,
        objectives,
        oracles,
        plotting,
        reporting,
        sampling,
        training,
        transforms,
        tuning,
    )
    from dpjax._typing import pytree_dataclass, static
    from dpjax.accounting import Ledger, PrivacyBudget
    from dpjax.algorithms import (
        ALGORITHMS,
        Certificate,
        Status,
        dp_accelerated_mirror_descent,
        dp_adam,
        dp_gradient_descent,
        dp_gradient_descent_with_selection,
        dp_newton,
        dp_optimizer,
        dp_sgd,
        dp_stochastic_trust_region,
        dp_subspace_trust_region,
        dp_svrg,
        dp_svrg_plus_plus,
        dp_trust_region,
        dpagem,
        objective_perturbation,
        output_perturbation,
        paper_schedule,
        perturbed_gradient_descent,
        stochastic_spider,
        with_accuracy,
        with_count,
    )
    from dpjax.datasets import Dataset
    from dpjax.derivatives import (
        clipped_grad,
        clipped_grad_difference,
        clipped_hessian,
        joint_clipped,
    )
    from dpjax.driver import ResumeMismatch, run, solve
    from dpjax.linalg import trust_region_step
    from dpjax.mechanisms import random_key
    from dpjax.objectives import Objective
    from dpjax.reporting import report
    from dpjax.results import SavedSolution, Solution, load, save
    from dpjax.training import Trained, fit
    from dpjax.tuning import Tuned, tune

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
    "Tuned",
    "accounting",
    "algorithms",
    "auditing",
    "clipped_grad",
    "clipped_grad_difference",
    "clipped_hessian",
    "comparison",
    "datasets",
    "derivatives",
    "diagnostics",
    "distributed",
    "dp_accelerated_mirror_descent",
    "dp_adam",
    "dp_gradient_descent",
    "dp_gradient_descent_with_selection",
    "dp_newton",
    "dp_optimizer",
    "dp_sgd",
    "dp_stochastic_trust_region",
    "dp_subspace_trust_region",
    "dp_svrg",
    "dp_svrg_plus_plus",
    "dp_trust_region",
    "dpagem",
    "estimators",
    "fit",
    "joint_clipped",
    "linalg",
    "load",
    "mechanisms",
    "models",
    "objective_perturbation",
    "objectives",
    "oracles",
    "output_perturbation",
    "paper_schedule",
    "perturbed_gradient_descent",
    "plotting",
    "pytree_dataclass",
    "random_key",
    "report",
    "reporting",
    "run",
    "sampling",
    "save",
    "solve",
    "static",
    "stochastic_spider",
    "training",
    "transforms",
    "trust_region_step",
    "tune",
    "tuning",
    "with_accuracy",
    "with_count",
]

# Imported when they are first named: whoever asks for help need not wait for JAX.
_NAMES = {
    "_typing": "pytree_dataclass static",
    "accounting": "Ledger PrivacyBudget",
    "algorithms": (
        "ALGORITHMS Certificate Status dp_accelerated_mirror_descent dp_adam "
        "dp_gradient_descent dp_gradient_descent_with_selection dp_newton dp_optimizer dp_sgd "
        "dp_stochastic_trust_region dp_subspace_trust_region dp_svrg dp_svrg_plus_plus "
        "dp_trust_region dpagem objective_perturbation output_perturbation paper_schedule "
        "perturbed_gradient_descent stochastic_spider with_accuracy with_count"
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


def __getattr__(name: str) -> Any:
    if name in __all__ or name in _NAMES:
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
