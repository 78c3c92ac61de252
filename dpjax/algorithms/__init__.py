"""One paper's update rule per file, as post-processing of noisy answers.

A factory ``(objective, budget, *, data_size, dimension, ...)`` returns a frozen pytree for
``solve`` and ``run``, whose noise meets the budget. It raises ``ValueError`` for an argument out of
range, a constant that is missing, or a budget that no noise reaches. Its docstring says what is
special to it; one name means one thing in all factories:

- ``objective``: what to minimise.
- ``budget``: what a whole run may spend.
- ``data_size``: the declared public number of records n.
- ``dimension``: the number of parameters p; ``params`` are the public starting point.
- ``steps``: T, the planned steps, all of which are charged; by default 600 or as a factory says.
- ``step_size``: a number, of the first step where steps shrink; an optax transformation has a
  ``learning_rate``, a number or a schedule.
- ``batch_size``: size of a batch, of a Poisson one expected; by default n / 14, at most 16,384.
  ``data_size`` asks every record at every step.
- ``sampling``: ``"poisson"`` or ``"without_replacement"``, uniformly random subsets of
  ``batch_size`` records: ``replace_one`` only, and for Gaussian noise 2.0 to 2.3 times as much.
- ``max_batch_size``: the most records a batch holds; by default the fewest that delta hardly
  notices.
- ``clip_norm``: bound on one record's gradient; by default the objective's Lipschitz constant.
- ``hessian_clip_norm``: bound on the Frobenius norm of one record's Hessian; by default the
  objective's smoothness, which that of a margin loss never exceeds on rows |x| <= 1. Where gradient
  and Hessian are one release it is the Hessian's weight in their joint norm, by default the least
  at which a margin loss's Hessian adds nothing to it.
- ``radius``: of the trust region in the first iteration, in the units of the parameters; by default
  12, or 1 for a robust loss of a residual. Or an optax schedule: a function of the step alone,
  from 0, of public numbers, which has its own last radius; it becomes its T values.
- ``final_radius``: that of the last iteration, geometric in between; by default 0.5, or ``radius``
  if that is less.
- ``damping``: kappa, at least 0, a number or such a schedule; kappa times the noise's spectral
  scale is added to the noisy Hessian so that noise is not taken for negative curvature.
- ``subproblem``: ``linalg.Exact()``, ``linalg.Lanczos()``, or by default ``linalg.BySize()``; the
  solver of ``trust_region_step``.
- ``initial_gap``: public bound on L(w0) - min L, which theory sets T by; by default that of w0 = 0,
  the largest loss of a record at w = 0.
- ``output``: ``"last"``; ``"random"``, an iterate drawn uniformly from w_1 .. w_T by the run's key,
  after which no step is taken; or ``"average"``, the mean of w_1 .. w_T. All T steps are charged.
- ``average_decay``: of ``output="average"``; by default 1, all iterates with equal weights. Below 1
  the first 1 / (1 - average_decay) steps have equal weights, and from then on older iterates lose
  weight by that factor a step.
- ``accountant``: ``"pld"`` or ``"rdp"``.
- ``beta``: bound on the probability that the certificate fails.

In a history ``gradient_norm`` includes the regularizer, and ``data_gradient_norm`` leaves it out.
"""

from dpjax.algorithms.base import Algorithm, SingleQueryAlgorithm, Status, calibrated_query
from dpjax.algorithms.certificate import Bars, Certificate, ErrorBars, PopulationBars
from dpjax.algorithms.descent import Descent, UpdateRule
from dpjax.algorithms.ending import with_accuracy, with_canaries, with_count
from dpjax.algorithms.feature_covariance import dp_feature_covariance
from dpjax.algorithms.gradient_descent import dp_gradient_descent
from dpjax.algorithms.gradient_descent_selected import dp_gradient_descent_with_selection
from dpjax.algorithms.mirror_descent import MirrorMap, dp_accelerated_mirror_descent
from dpjax.algorithms.newton import dp_newton
from dpjax.algorithms.newton_inference import noisy_newton
from dpjax.algorithms.perturbed_descent import perturbed_gradient_descent
from dpjax.algorithms.perturbed_minimum import objective_perturbation, output_perturbation
from dpjax.algorithms.registry import (
    ALGORITHMS,
    ALL,
    ENTRIES,
    ONE_RELEASE,
    Entry,
    Example,
    Scenario,
)
from dpjax.algorithms.spider import Spider, stochastic_spider
from dpjax.algorithms.spider_theory import EscapeRule, gaussian_push
from dpjax.algorithms.stagewise import dpagem, paper_stages
from dpjax.algorithms.stochastic_gradient import dp_adam, dp_optimizer, dp_sgd
from dpjax.algorithms.stochastic_trust_region import dp_stochastic_trust_region
from dpjax.algorithms.subspace_trust_region import dp_subspace_trust_region
from dpjax.algorithms.svrg import SvrgEpochs, dp_svrg, dp_svrg_plus_plus
from dpjax.algorithms.trust_region import dp_trust_region, paper_schedule

# So a new algorithm is one file and one row of the registry; those above are for type checkers.
globals().update({entry.factory.__name__: entry.factory for entry in ENTRIES})

__all__ = [
    "ALGORITHMS",
    "ALL",
    "ONE_RELEASE",
    "Algorithm",
    "Bars",
    "Certificate",
    "Descent",
    "Entry",
    "ErrorBars",
    "EscapeRule",
    "Example",
    "MirrorMap",
    "PopulationBars",
    "Scenario",
    "SingleQueryAlgorithm",
    "Spider",
    "Status",
    "SvrgEpochs",
    "UpdateRule",
    "calibrated_query",
    "dp_accelerated_mirror_descent",
    "dp_adam",
    "dp_feature_covariance",
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
    "gaussian_push",
    "noisy_newton",
    "objective_perturbation",
    "output_perturbation",
    "paper_schedule",
    "paper_stages",
    "perturbed_gradient_descent",
    "stochastic_spider",
    "with_accuracy",
    "with_canaries",
    "with_count",
]
