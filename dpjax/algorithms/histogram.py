"""Histograms of all columns of a table, released once by one Gaussian mechanism."""

import math
from collections.abc import Sequence

from dpjax.accounting import PrivacyBudget, gaussian_multiplier
from dpjax.algorithms import base
from dpjax.algorithms.perturbed_minimum import Perturbation, one_release
from dpjax.objectives import Objective
from dpjax.oracles.histogram import BinsLoss, HistogramQuery


def histograms(
    sizes: Sequence[int],
    budget: PrivacyBudget,
    *,
    data_size: int,
    most: Sequence[float] = (),
    of_units: bool = False,
) -> Perturbation:
    """Returns the release of the share of records in each bin of each column, once and with noise.

    ``dpjax.statistics`` runs it. In the place of parameters it releases sums over n.

    Args:
      sizes: number of bins of each column; public.
      budget: what the release may spend.
      data_size: n, declared; of units where there are units.
      most: the most that a record adds to each further sum, see ``BinsLoss``; public.
      of_units: whether examples are units, of whose records the mean counts.

    Privacy: one Gaussian mechanism, see ``HistogramQuery``.

    >>> algorithm = histograms((21, 3), PrivacyBudget(0.1, 1e-6), data_size=10_000)
    >>> round(algorithm.event.releases[0].sensitivity * 10_000, 3)
    1.414
    """
    objective = Objective(BinsLoss(tuple(sizes)), name="histograms")
    objective = objective.of_units() if of_units else objective
    dimension = sum(sizes) + len(most)
    problem = base.check_problem(objective, budget, data_size, dimension, "pld")
    norm = math.sqrt(len(sizes) + math.fsum(x * x for x in most))
    query = HistogramQuery(
        setting=problem.setting,
        noise_multiplier=gaussian_multiplier(budget, 1, noise_draws=dimension),
        # Above what it bounds, also where float32 rounds it down.
        clip_norm=base.positive_leaf("norm", norm * (1 + 1e-6)),
    )
    return one_release(problem, query, "first look at the data")
