"""Shared by methods with one query in each step: sampler, noise and checks."""

from typing import Any

from dpjax.accounting import gaussian_multiplier
from dpjax.algorithms import base
from dpjax.oracles import poisson_sampler

# Defaults of the first-order methods that draw batches.
STEPS = 600
_LARGEST_BATCH = 16_384
# Why DP-SGD has no ``accountant="paper"``, whoever makes its steps.
MOMENTS = "the moments accountant of its paper is what 'rdp' computes"


def _default_batch(data_size: int) -> int:
    """Returns the usual expected batch of a first-order method: n / 14, at most 16,384.

    >>> _default_batch(7_000), _default_batch(1_000_000)
    (500, 16384)
    """
    return min(max(data_size // 14, 1), _LARGEST_BATCH)


def calibrated_query(
    problem: base.Problem,
    kind: Any,
    steps: int,
    *,
    batch_size: int | None = None,
    capacity: int | None = None,
    multiplier: float | None = None,
    **fields: Any,
) -> Any:
    """Returns a query whose Gaussian noise lets it be asked ``steps`` times within the budget.

    Args:
      problem: from ``algorithms.base.check_problem``.
      kind: class of the query.
      steps: T.
      batch_size: expected size of a Poisson batch, or n for all records; by default n / 14, at most
        16,384.
      capacity: the most records a batch holds; by default the fewest that delta hardly notices.
      multiplier: of a paper's noise formula; by default the least that the accountant allows.
      **fields: what the kind has beside, as its clip norms.

    Raises:
      ValueError: for a batch or a capacity out of range, noise that float32 cannot hold, or a
        budget that is not met.
    """
    budget, n = problem.budget, problem.data_size
    if batch_size is None:
        batch_size = _default_batch(n)
    sampler = poisson_sampler(batch_size, n, budget, steps, capacity)
    setting = problem.setting.drawn_by(sampler)
    if multiplier is None:
        draws = kind(setting=setting, noise_multiplier=1.0, **fields).noise_draws
        multiplier = gaussian_multiplier(budget, steps, problem.accountant, sampler, draws)
    query = kind(setting=setting, noise_multiplier=multiplier, **fields)
    problem.check_spent(query.event(steps))
    return query
