"""Samplers from public numbers, checked: ``full_batch``, ``poisson`` and ``without_replacement``.

Those of an algorithm's ``batch_size``, which its errors name, are at the end.
"""

import bisect
import math

import numpy as np

from dpjax import _validate
from dpjax.accounting import PrivacyBudget
from dpjax.sampling.samplers import FullBatch, Poisson, WithoutReplacement
from dpjax.sampling.single_pass import SinglePass
from dpjax.sampling.skips import largest_overflow, skip_error

SAMPLINGS = ("poisson", "without_replacement")
# So rare that no budget in use asks for less, and the shape of a batch depends on none.
_RARE = 1e-20


def full_batch(data_size: int) -> FullBatch:
    """Returns the sampler that reads every record.

    Args:
      data_size: the declared public n, the divisor.

    Raises:
      ValueError: if it is not a whole number of at least 1.

    >>> full_batch(100).expected
    100.0
    """
    return FullBatch(_validate.int32_count("data_size", data_size))


def poisson(
    expected_batch: float,
    data_size: int,
    *,
    budget: PrivacyBudget,
    count: int,
    delta_share: float = 1e-3,
    max_batch_size: int | None = None,
) -> Poisson:
    """Returns a Poisson sampler whose batches overflow so rarely that delta hardly notices.

    Args:
      expected_batch: the declared expected number of records, above 0 and below ``data_size``.
      data_size: the declared n. Under ``add_or_remove_one``, where n is private, the guarantee
        holds for any number of records present: declare about how many you expect, since batches
        from more take more memory and time.
      budget: what the whole training may spend.
      count: number of draws it makes.
      delta_share: part of delta that overflows may cost, (1 + e^epsilon) count P(overflow).
      max_batch_size: the most records a batch from ``data_size`` records holds; by default the
        fewest of which more are drawn with probability 1e-20 at most, and cost at most half of
        ``delta_share``.

    Raises:
      ValueError: for a number out of range, or a max_batch_size that costs all of delta.

    Privacy: public numbers only. The charge is part of every epsilon computed from the releases.

    >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-6)
    >>> sampler = poisson(256, 60_000, budget=budget, count=10_000)
    >>> sampler.probability == 256 / 60_000, sampler.max_batch_size
    (True, 417)
    """
    n = _validate.int32_count("data_size", data_size)
    # In float32, as in the program, so that the divisor charged is the one used.
    expected = float(np.float32(_validate.positive("expected_batch", expected_batch)))
    PrivacyBudget.check(budget)
    # A multiple of 2^-64, which the draw compares with random words: the accounting uses this
    # number.
    threshold = round(_validate.positive("expected_batch", expected_batch) / n * 2**64)
    if not 1 <= threshold < 2**64:
        raise ValueError(
            f"expected_batch must be above 0 and below data_size={n}, got {expected_batch!r}; "
            "take FullBatch to read every record."
        )
    probability = threshold / 2**64
    # What one unit of failure probability costs of delta, over all draws; e^700 is a float64.
    draws = (1 + math.exp(min(budget.epsilon, 700.0))) * _validate.positive_int("count", count)
    if max_batch_size is None:
        # Half of the share: what 64 bits miss of the gaps is charged beside it.
        allowed = _validate.open_unit("delta_share", delta_share) * budget.delta / draws
        max_batch_size = _max_batch_size(probability, n, min(allowed / 2, _RARE))
    # More slots than records would never be filled.
    max_batch_size = min(_validate.positive_int("max_batch_size", max_batch_size), n)
    sampler = Poisson.of(threshold, expected, max_batch_size, n)
    if draws * skip_error(sampler.table, max_batch_size) >= budget.delta / 2:
        # An epsilon that multiplies what 64 bits miss to more than delta: draw without that error.
        sampler = Poisson.of(threshold, expected, max_batch_size, n, exact=True)
    if (cost := draws * sampler.overflow) >= budget.delta:
        enough = _max_batch_size(probability, n, 1e-3 * budget.delta / draws)
        raise ValueError(
            f"batches above max_batch_size={max_batch_size} have probability "
            f"{sampler.overflow:.3g} a draw, which would add {min(1.0, cost):.3g} to "
            f"delta={budget.delta:g}; raise max_batch_size to {enough}."
        )
    return sampler


def without_replacement(size: int, data_size: int) -> WithoutReplacement:
    """Returns a sampler of uniformly random subsets, for ``replace_one``.

    Args:
      size: number of records in every batch, below ``data_size``.
      data_size: the declared public n.

    Raises:
      ValueError: if ``size`` is not between 1 and ``data_size`` - 1.

    >>> without_replacement(100, 1000).probability
    0.1
    """
    n = _validate.int32_count("data_size", data_size)
    if _validate.positive_int("size", size) >= n:
        raise ValueError(
            f"size must be below data_size={n}, got {size}; take FullBatch to read every record."
        )
    return WithoutReplacement(int(size), n)


def batch_sampler(
    batch_size: int,
    data_size: int,
    budget: PrivacyBudget,
    count: int,
    max_batch_size: int | None = None,
    sampling: str = "poisson",
) -> Poisson | WithoutReplacement | FullBatch:
    """Returns the sampler of a factory's ``sampling``, or that of all records where a batch is n.

    A training of ``budget`` makes ``count`` draws; ``max_batch_size`` is as for ``poisson``.

    Raises:
      ValueError: for a batch above n, or a max_batch_size that costs all of delta; for subsets with
        a max_batch_size, or under a relation in which they have no accounting.

    >>> budget = PrivacyBudget(1.0, 1e-6, "replace_one")
    >>> batch_sampler(100, 100, budget, 1)
    FullBatch(data_size=100)
    >>> batch_sampler(1, 100, budget, 50, sampling="without_replacement")
    WithoutReplacement(size=1, data_size=100)
    """
    is_poisson = _validate.choice("sampling", sampling, SAMPLINGS) == "poisson"
    if max_batch_size is not None and not is_poisson:
        raise ValueError("max_batch_size is for Poisson batches; a fixed size never overflows.")
    # Every step then reads every record, and there is no sampling to account for.
    if check_batch_size(batch_size, data_size) == data_size:
        if max_batch_size is not None:
            raise ValueError(
                f"max_batch_size={max_batch_size} is for sampled batches, but "
                f"batch_size={batch_size} uses all records; leave max_batch_size out."
            )
        return FullBatch(data_size)
    if is_poisson:
        more = {"budget": budget, "count": count, "max_batch_size": max_batch_size}
        return poisson(batch_size, data_size, **more)
    subsets = without_replacement(batch_size, data_size)
    subsets.sum_scale(1.0, budget.relation)  # raises where the draw has no accounting
    return subsets


def single_passes(data_size: int, holdout: int) -> tuple[SinglePass, SinglePass | None]:
    """Returns the samplers of training and of the last ``holdout`` records, None for no record.

    >>> first, last = single_passes(100, 10)
    >>> first.expected, last.expected
    (90.0, 10.0)
    """
    # These are places of the random order, so both sets are random.
    split = data_size - holdout
    last = SinglePass(data_size, split, data_size) if holdout else None
    return SinglePass(data_size, 0, split), last


def check_batch_size(batch_size: int, data_size: int, name: str = "batch_size") -> int:
    """Returns ``batch_size``, the argument of that name, or raises.

    Raises:
      ValueError: if it is not a whole number from 1 to ``data_size``.
    """
    if _validate.positive_int(name, batch_size) > data_size:
        raise ValueError(
            f"{name} must be at most data_size={data_size}, got {batch_size}; take "
            f"{name}={data_size} to use all records at every step."
        )
    return int(batch_size)


def _max_batch_size(probability: float, n: int, allowed: float) -> int:
    def fits(size: int) -> bool:
        return largest_overflow(probability, size, n) <= allowed

    return bisect.bisect_left(range(n), True, lo=1, key=fits)
