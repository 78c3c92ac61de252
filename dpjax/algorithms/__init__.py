"""One paper's update rule per file, as post-processing of noisy answers.

One name means one thing in all factories, those of ``dpjax.baselines`` included. ``step_size`` is a
number, of the first step where steps shrink; an optax transformation has a ``learning_rate``, a
number or a schedule. ``output`` is ``"last"``, ``"random"`` or ``"average"``, as ``OutputRule``
says. ``dimension`` is the number of parameters, and ``params`` the public starting point. In a
history ``gradient_norm`` includes the regularizer, and ``data_gradient_norm`` leaves it out.
"""

from dpjax.algorithms.accuracy import with_accuracy
from dpjax.algorithms.adam import dp_adam
from dpjax.algorithms.base import Algorithm, Status
from dpjax.algorithms.certificate import Certificate
from dpjax.algorithms.gradient_descent import dp_gradient_descent
from dpjax.algorithms.mirror_descent import dp_accelerated_mirror_descent
from dpjax.algorithms.optimizer import dp_optimizer
from dpjax.algorithms.perturbed import perturbed_gradient_descent
from dpjax.algorithms.spider import stochastic_spider
from dpjax.algorithms.stagewise import dpagem
from dpjax.algorithms.stochastic_trust_region import dp_stochastic_trust_region
from dpjax.algorithms.subspace_trust_region import dp_subspace_trust_region
from dpjax.algorithms.svrg import dp_svrg, dp_svrg_plus_plus
from dpjax.algorithms.trust_region import dp_trust_region, paper_schedule

# The command line, the contract tests and the plots read this table.
ALGORITHMS = {
    "dp-gd": dp_gradient_descent,
    "dp-tr": dp_trust_region,
    "dp-str": dp_stochastic_trust_region,
    "dp-adam": dp_adam,
    "dp-subspace-tr": dp_subspace_trust_region,
    "dp-svrg": dp_svrg,
    "dp-svrg++": dp_svrg_plus_plus,
    "dp-accmd": dp_accelerated_mirror_descent,
    "prgd": perturbed_gradient_descent,
    "spider": stochastic_spider,
    "dpagem": dpagem,
    "dp-optimizer": dp_optimizer,
}

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Certificate",
    "Status",
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
]
