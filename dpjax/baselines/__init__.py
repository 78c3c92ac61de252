"""Baselines: methods of other papers, run like any algorithm."""

from dpjax.baselines.gauss_psgd import gauss_psgd
from dpjax.baselines.gradient_descent_selected import (
    dp_gradient_descent_with_selection,
)
from dpjax.baselines.newton import dp_newton
from dpjax.baselines.objective_perturbation import objective_perturbation
from dpjax.baselines.perturbation import output_perturbation
from dpjax.baselines.spiders import fixed_batch_spider, spider_boost
from dpjax.baselines.stochastic_gradient import dp_sgd

# The command line and the contract tests read this table beside ``dpjax.ALGORITHMS``.
BASELINES = {
    "dp-gd-selected": dp_gradient_descent_with_selection,
    "dp-newton": dp_newton,
    "dp-sgd": dp_sgd,
    "spider-fixed": fixed_batch_spider,
    "spider-boost": spider_boost,
    "gauss-psgd": gauss_psgd,
}

# These release once, and only for strongly convex losses of the margin; no steps are planned.
ONE_RELEASE = {
    "objective-perturbation": objective_perturbation,
    "output-perturbation": output_perturbation,
}

__all__ = [
    "BASELINES",
    "ONE_RELEASE",
    "dp_gradient_descent_with_selection",
    "dp_newton",
    "dp_sgd",
    "fixed_batch_spider",
    "gauss_psgd",
    "objective_perturbation",
    "output_perturbation",
    "spider_boost",
]
