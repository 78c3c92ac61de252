"""One paper's update rule per file, as post-processing of noisy answers.

One name means one thing in all factories. ``step_size`` is a number, of the first step where steps
shrink; an optax transformation has a ``learning_rate``, a number or a schedule. ``output`` is
``"last"``, ``"random"`` or ``"average"``, as ``OutputRule`` says. ``dimension`` is the number of
parameters, and ``params`` the public starting point. In a history ``gradient_norm`` includes the
regularizer, and ``data_gradient_norm`` leaves it out.
"""

from dpjax.algorithms.adam import dp_adam
from dpjax.algorithms.base import Algorithm, SingleQueryAlgorithm, Status, calibrated_query
from dpjax.algorithms.certificate import Certificate
from dpjax.algorithms.descent import Descent, UpdateRule
from dpjax.algorithms.ending import with_accuracy, with_count
from dpjax.algorithms.error_bars import ErrorBars
from dpjax.algorithms.gradient_descent import dp_gradient_descent
from dpjax.algorithms.gradient_descent_selected import dp_gradient_descent_with_selection
from dpjax.algorithms.mirror_descent import dp_accelerated_mirror_descent
from dpjax.algorithms.newton import dp_newton
from dpjax.algorithms.optimizer import dp_optimizer
from dpjax.algorithms.perturbation import objective_perturbation, output_perturbation
from dpjax.algorithms.perturbed import perturbed_gradient_descent
from dpjax.algorithms.registry import (
    ALGORITHMS,
    ALL,
    ENTRIES,
    ONE_RELEASE,
    Entry,
    Example,
    Scenario,
)
from dpjax.algorithms.spider import stochastic_spider
from dpjax.algorithms.stagewise import dpagem
from dpjax.algorithms.stochastic_gradient import dp_sgd
from dpjax.algorithms.stochastic_trust_region import dp_stochastic_trust_region
from dpjax.algorithms.subspace_trust_region import dp_subspace_trust_region
from dpjax.algorithms.svrg import dp_svrg, dp_svrg_plus_plus
from dpjax.algorithms.trust_region import dp_trust_region, paper_schedule

# A factory that is not imported above, for want of a line, is here by its row alone.
globals().update({entry.factory.__name__: entry.factory for entry in ENTRIES})

__all__ = [
    "ALGORITHMS",
    "ALL",
    "ONE_RELEASE",
    "Algorithm",
    "Certificate",
    "Descent",
    "Entry",
    "ErrorBars",
    "Example",
    "Scenario",
    "SingleQueryAlgorithm",
    "Status",
    "UpdateRule",
    "calibrated_query",
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
    "objective_perturbation",
    "output_perturbation",
    "paper_schedule",
    "perturbed_gradient_descent",
    "stochastic_spider",
    "with_accuracy",
    "with_count",
]
