"""Who is asked at each step, from a batch size: the sampler that a calibration needs."""

from dpjax import _validate
from dpjax.accounting import PrivacyBudget
from dpjax.sampling import Sampler, poisson

_COUNT = 4096


def poisson_sampler(
    batch_size: float, data_size: int, budget: PrivacyBudget, count: int, capacity: int | None
) -> Sampler | None:
    """Returns the Poisson sampler of ``count`` draws, or None where a batch is all records.

    Args:
      batch_size: the declared expected batch, at most ``data_size``.
      data_size: the declared public n.
      budget: what the whole training may spend.
      count: number of draws it makes.
      capacity: the most records a batch holds; None for few that delta hardly notices, the same
        for all budgets of epsilon up to 10 and delta from 1e-9.

    Raises:
      ValueError: for a batch size that is not between 0 and ``data_size``, or a capacity that does
        not go with it.

    Privacy: public numbers only.

    >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-6)
    >>> poisson_sampler(1_000, 1_000, budget, 10, None) is None
    True
    >>> poisson_sampler(100, 1_000, budget, 10, None).expected
    100.0
    """
    n = _validate.positive_int("data_size", data_size)
    if _validate.positive("batch_size", batch_size) > n:
        raise ValueError(f"batch_size must be at most data_size={n}, got {batch_size!r}.")
    if batch_size < n:
        if capacity is None:
            # Of a coarse budget: a shape that does not change with epsilon, delta or the steps.
            coarse = PrivacyBudget(max(budget.epsilon, 10.0), min(budget.delta, 1e-9))
            capacity = poisson(batch_size, n, budget=coarse, count=max(count, _COUNT)).capacity
        return poisson(batch_size, n, budget=budget, count=count, capacity=capacity)
    if capacity is not None:
        raise ValueError(
            f"capacity={capacity!r} is for drawn batches; batch_size={batch_size!r} is all records."
        )
    return None
