"""Histograms of all columns of a table, released once by one Gaussian mechanism."""

import math
from collections.abc import Sequence

from dpjax.accounting import PrivacyBudget, gaussian_multiplier
from dpjax.algorithms import base
from dpjax.algorithms.perturbed_minimum import Perturbation, one_release
from dpjax.objectives import Objective
from dpjax.oracles.counts import BinsLoss, HistogramQuery


def histograms(
    sizes: Sequence[int],
    budget: PrivacyBudget,
    data_size: int,
    most: Sequence[float] = (),
    of_units: bool = False,
) -> Perturbation:
    """Returns the release of the share of records in each bin of each column, in place of params.

    ``sizes`` are the columns' numbers of bins, ``most`` what a record adds at most to each further
    sum, see ``BinsLoss``. Of units, ``data_size`` counts these, and of each the records' mean.

    Privacy: one Gaussian mechanism, see ``HistogramQuery``; sizes and most are public.
    """
    objective, dimension = Objective(BinsLoss(tuple(sizes)), name="bins"), sum(sizes) + len(most)
    objective = objective.of_units() if of_units else objective
    problem = base.check_problem(objective, budget, data_size, dimension, "pld")
    # Above what it bounds, also where float32 rounds it down.
    norm = (1 + 1e-6) * math.sqrt(len(sizes) + math.fsum(x * x for x in most))
    multiplier = gaussian_multiplier(budget, 1, noise_draws=dimension)
    setting, clip_norm = problem.setting, base.positive_leaf("norm", norm)
    query = HistogramQuery(setting=setting, noise_multiplier=multiplier, clip_norm=clip_norm)
    return one_release(problem, query, "first look at the data")
