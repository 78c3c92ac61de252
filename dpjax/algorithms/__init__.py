"""One paper's update rule per file, as post-processing of noisy answers.

One name means one thing in all factories, those of ``dpjax.baselines`` included. ``step_size`` is a
number, of the first step where steps shrink; an optax transformation has a ``learning_rate``, a
number or a schedule. ``output`` is ``"last"``, ``"random"`` or ``"average"``, as ``OutputRule``
says. ``dimension`` is the number of parameters, and ``params`` the public starting point. In a
history ``gradient_norm`` includes the regularizer, and ``data_gradient_norm`` leaves it out.
"""

from dpjax.algorithms.adam import dp_adam
from dpjax.algorithms.base import Algorithm, Status
from dpjax.algorithms.batches import calibrated_query
from dpjax.algorithms.certificate import Certificate
from dpjax.algorithms.common import Single
from dpjax.algorithms.descent import Descent, UpdateRule
from dpjax.algorithms.ending import with_accuracy, with_count
from dpjax.algorithms.entry import Entry, Example, Power, Scenario, factories
from dpjax.algorithms.error_bars import ErrorBars
from dpjax.algorithms.escape import EscapeRule
from dpjax.algorithms.gradient_descent import dp_gradient_descent
from dpjax.algorithms.mirror_descent import dp_accelerated_mirror_descent
from dpjax.algorithms.optimizer import dp_optimizer
from dpjax.algorithms.perturbed import perturbed_gradient_descent
from dpjax.algorithms.registry import ENTRIES
from dpjax.algorithms.spider import Spider, stochastic_spider
from dpjax.algorithms.stagewise import dpagem
from dpjax.algorithms.stochastic_trust_region import dp_stochastic_trust_region
from dpjax.algorithms.subspace_trust_region import dp_subspace_trust_region
from dpjax.algorithms.svrg import SvrgEpochs, dp_svrg, dp_svrg_plus_plus
from dpjax.algorithms.trust_region import dp_trust_region, paper_schedule

ALGORITHMS = factories(ENTRIES)
"""Name on the command line -> factory of dpjax's own algorithms."""

# A factory that is not imported above, for want of a line, is here by its row alone.
globals().update({entry.factory.__name__: entry.factory for entry in ENTRIES})

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Certificate",
    "Descent",
    "Entry",
    "ErrorBars",
    "EscapeRule",
    "Example",
    "Power",
    "Scenario",
    "Single",
    "Spider",
    "Status",
    "SvrgEpochs",
    "UpdateRule",
    "calibrated_query",
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
    "paper_schedule",
    "perturbed_gradient_descent",
    "stochastic_spider",
    "with_accuracy",
    "with_count",
]
