"""Baselines: methods of other papers, run like any algorithm."""

from dpjax.algorithms import factories
from dpjax.baselines.gradient_descent_selected import dp_gradient_descent_with_selection
from dpjax.baselines.newton import dp_newton
from dpjax.baselines.objective_perturbation import objective_perturbation
from dpjax.baselines.perturbation import output_perturbation
from dpjax.baselines.registry import ENTRIES, EVERY
from dpjax.baselines.stochastic_gradient import dp_sgd

BASELINES = factories(ENTRIES)
"""Name on the command line -> factory of the baselines that take planned steps."""

ONE_RELEASE = factories(ENTRIES, one_release=True)
"""Name -> factory of those that release once, for strongly convex losses of the margin."""

# A factory that is not imported above, for want of a line, is here by its row alone.
globals().update({entry.factory.__name__: entry.factory for entry in ENTRIES})

__all__ = [
    "BASELINES",
    "EVERY",
    "ONE_RELEASE",
    "dp_gradient_descent_with_selection",
    "dp_newton",
    "dp_sgd",
    "objective_perturbation",
    "output_perturbation",
]
