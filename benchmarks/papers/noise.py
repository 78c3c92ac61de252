"""NOT PRIVATE by itself: the noise that the papers' formulas give, and the epsilon it really is.

The functions are called like the factories of dpjax and return the same algorithms, with the noise
of a paper's formula in place of what the budget needs. ``algorithm.epsilon()`` is what that noise
spends, counted exactly; where it is more than the budget, they raise. Neighbours are
``replace_one``, as in the papers, and there is no certificate.
"""

import dataclasses
import math
from typing import Any

from dpjax.accounting import PrivacyBudget, check_spent, round_up
from dpjax.algorithms import (
    Algorithm,
    base,
    dp_gradient_descent,
    dp_stochastic_trust_region,
    dp_trust_region,
    paper_schedule,
)
from dpjax.objectives import Objective
from dpjax.oracles import batch_sampler


def erm_multiplier(budget: PrivacyBudget, steps: int) -> float:
    """Returns the noise of Wang, Ye and Xu (2017), theorems 5.3 and 6.1, over the sensitivity.

    The theorems leave a constant open; 8 + 4 epsilon / ln(1/delta) always suffices.

    >>> round(erm_multiplier(PrivacyBudget(1.0, 1e-5, "replace_one"), 100), 1)
    49.0
    """
    # sigma^2 = c G^2 T ln(1/delta) / (n epsilon)^2 over the sensitivity 2 G / n.
    log = math.log(1 / budget.delta)
    constant = 8 + 4 * budget.epsilon / log
    return round_up(math.sqrt(constant * steps * log) / (2 * budget.epsilon))


def trust_region_multiplier(budget: PrivacyBudget, steps: int) -> float:
    """Returns the gradient's noise of Wang and Xu (2020), algorithm 1, over the sensitivity.

    The Hessian's is sqrt(p) times that.
    """
    # sigma^2 = 4 G^2 T / (n^2 phi) over 2 G / n, and sigma_2^2 = 4 p M^2 T / (n^2 phi) over the
    # Frobenius sensitivity 2 M / n that clipping enforces.
    log = math.log(1 / budget.delta)
    phi = (math.sqrt(budget.epsilon + log) - math.sqrt(log)) ** 2
    return math.sqrt(steps / phi)


def spider_multiplier(budget: PrivacyBudget, horizon: int, sensitivity: float) -> float:
    """Returns the noise of Liu and Talwar (2024), theorem 2.2, over a tree's ``sensitivity``."""
    # sigma = 4 s sqrt(ln K ln(1 / delta)) / epsilon on every node.
    logs = math.log(max(horizon, 2)) * math.log(1 / budget.delta)
    return round_up(4 * math.sqrt(logs) / budget.epsilon / sensitivity)


def gradient_descent(objective: Objective, budget: PrivacyBudget, **settings: Any) -> Algorithm:
    """Returns DP-GD with the noise of theorem 6.1; arguments as in ``dp_gradient_descent``."""
    settings = settings | {"certify": None}
    made = dp_gradient_descent(objective, _replace_one(budget), **settings)
    if not made.query.sampler.reads_all:
        raise ValueError("the formula is for all records at every step; leave batch_size out.")
    multiplier = erm_multiplier(budget, int(made.steps))
    query = dataclasses.replace(made.query, noise_multiplier=multiplier)
    return _within(dataclasses.replace(made, query=query), budget)


def trust_region(
    objective: Objective, budget: PrivacyBudget, *, damping: float | None = None, **settings: Any
) -> Algorithm:
    """Returns DP-TR with the noise of algorithm 1; arguments as in ``dp_trust_region``."""
    settings = settings | {"release": "separate", "certify": None, "damping": 0.0}
    made = dp_trust_region(objective, _replace_one(budget), **settings)
    gradient, hessian = made.queries[0], made.queries[-1]
    multiplier = trust_region_multiplier(budget, int(made.steps))
    queries = (
        dataclasses.replace(gradient, noise_multiplier=round_up(multiplier)),
        dataclasses.replace(
            hessian,
            noise_multiplier=round_up(multiplier * math.sqrt(made.dimension)),
            isometric=False,
        ),
    )
    usual = 0.5 if objective.averaged is None else objective.averaged.region.damping
    kappa = usual if damping is None else damping
    scale = base.to_leaf(kappa * _spectral_scale(queries, made.dimension))
    return _within(dataclasses.replace(made, queries=queries, damping=scale), budget)


def theorem_2(
    objective: Objective, budget: PrivacyBudget, *, alpha: float = 0.1, **settings: Any
) -> Algorithm:
    """Returns DP-TR as algorithm 1 and theorem 2 have it: their noise, radius, stop and T."""
    return trust_region(objective, budget, **paper_schedule(objective, alpha), **settings)


def stochastic_trust_region(
    objective: Objective,
    budget: PrivacyBudget,
    *,
    data_size: int,
    dimension: int,
    batch_size: int | None = None,
    hessian_batch_size: int | None = None,
    steps: int = 40,
    damping: float = 0.5,
    literal: bool = False,
    **settings: Any,
) -> Algorithm:
    """Returns DP-STR with the noise of algorithm 2; arguments as in ``dp_stochastic_trust_region``.

    Gradient and Hessian are asked on batches of fixed size of their own, |S| and |T|. As printed
    the gradient's variance lacks the factor T of its own composition, so that its epsilon has no
    bound as T grows:
    here it has the factor, unless ``literal`` asks for the print, whatever it spends.
    """
    sizes = {"data_size": data_size, "dimension": dimension, "steps": steps}
    settings |= {"release": "separate"}
    # All records are quickly calibrated; their noise and samplers are replaced.
    made = dp_stochastic_trust_region(
        objective,
        _replace_one(budget),
        batch_size=data_size,
        damping=0.0,
        **sizes,
        **settings,
    )
    batch = max(1, round(data_size / 7)) if batch_size is None else batch_size
    batches = (batch, batch if hessian_batch_size is None else hessian_batch_size)
    # sigma^2 = 256 G^2 T ln(5T/delta) ln(2/delta) / (n epsilon)^2 on the mean over the batch, and
    # p M^2 in place of G^2 for the Hessian. The paper's lemmas give 512 for 2 T mechanisms; the
    # recount shows that 256 is far more than enough wherever batches are not tiny, and less noise
    # is the fairer comparison.
    logs = math.log(5 * steps / budget.delta) * math.log(2 / budget.delta)
    mean = 16 * math.sqrt(steps * logs) / (data_size * budget.epsilon)
    of_gradient = mean / math.sqrt(steps) if literal else mean

    def query(query: Any, batch: int, stddev: float, **more: Any) -> Any:
        sampler = batch_sampler(
            batch, data_size, _replace_one(budget), steps, sampling="without_replacement"
        )
        setting = query.setting.drawn_by(sampler)
        unit = dataclasses.replace(query, setting=setting, noise_multiplier=1.0, **more)
        stddev *= query.clip_norm
        return dataclasses.replace(unit, noise_multiplier=round_up(stddev / float(unit.stddev)))

    of_hessian = math.sqrt(dimension) * mean
    gradient, hessian = made.queries
    queries = (
        query(gradient, batches[0], of_gradient),
        query(hessian, batches[1], of_hessian, isometric=False),
    )
    scale = base.to_leaf(damping * _spectral_scale(queries, dimension))
    made = dataclasses.replace(made, stages=(queries,), damping=(scale,))
    return made if literal else _within(made, budget)


def theorem_4(
    objective: Objective,
    budget: PrivacyBudget,
    *,
    dimension: int,
    alpha: float = 0.1,
    **settings: Any,
) -> Algorithm:
    """Returns DP-STR as algorithm 2 and theorem 4 have it, on two batches of one size."""
    settings = paper_schedule(objective, alpha, dimension=dimension) | settings
    settings["hessian_batch_size"] = None
    return stochastic_trust_region(objective, budget, dimension=dimension, **settings)


def _spectral_scale(queries: tuple, dimension: int) -> float:
    # Noise alike on and off the diagonal has sqrt(2) the spectral norm of the isometric one.
    return float(queries[-1].hessian_stddev) * math.sqrt(2 * dimension) * math.sqrt(2)


def _replace_one(budget: PrivacyBudget) -> PrivacyBudget:
    if budget.relation != "replace_one":
        raise ValueError(
            "the papers' formulas are for replace-one neighbours; declare PrivacyBudget(..., "
            f"relation='replace_one'), not {budget.relation!r}."
        )
    return budget


def _within(algorithm: Any, budget: PrivacyBudget) -> Any:
    check_spent(algorithm.event, budget, "pld", "take the noise of the factory itself.")
    return algorithm
