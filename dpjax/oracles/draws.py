"""Makes samplers from an algorithm's arguments, with errors that name those arguments."""

from dpjax import _validate
from dpjax.accounting import PrivacyBudget
from dpjax.sampling import FixedSize, Poisson, SinglePass, fixed_size, poisson


def poisson_sampler(
    batch_size: int, data_size: int, budget: PrivacyBudget, count: int, capacity: int | None = None
) -> Poisson | None:
    """Returns the sampler of Poisson batches, or None where every record is asked.

    Args:
      batch_size: expected number of records of a batch, at most ``data_size``.
      data_size: the declared n.
      budget: what the whole training may spend.
      count: number of draws it makes.
      capacity: as in ``sampling.poisson``.

    Raises:
      ValueError: for a batch above n, or a capacity that costs all of delta.

    >>> budget = PrivacyBudget(1.0, 1e-6)
    >>> poisson_sampler(100, 100, budget, 1) is None
    True
    """
    if check_batch_size(batch_size, data_size) == data_size:
        if capacity is not None:
            raise ValueError(
                f"capacity={capacity} is for sampled batches, but batch_size={batch_size} "
                "uses all records; leave capacity out."
            )
        return None
    return poisson(batch_size, data_size, budget=budget, count=count, capacity=capacity)


def fixed_size_sampler(batch_size: int, data_size: int) -> FixedSize | None:
    """Returns the sampler of uniformly random subsets, or None where every record is asked.

    Raises:
      ValueError: for a batch above n.

    >>> fixed_size_sampler(10, 100).probability
    0.1
    """
    if check_batch_size(batch_size, data_size) == data_size:
        return None
    return fixed_size(batch_size, data_size)


def single_passes(data_size: int, kept: int) -> tuple[SinglePass, SinglePass | None]:
    """Returns who is read by training, and the ``kept`` records at the end of the order, or None.

    >>> first, last = single_passes(100, 10)
    >>> first.expected, last.expected
    (90.0, 10.0)
    """
    split = data_size - kept
    last = SinglePass(data_size, split, data_size) if kept else None
    return SinglePass(data_size, 0, split), last


def check_batch_size(batch_size: int, data_size: int) -> int:
    """Returns ``batch_size``, or raises.

    Raises:
      ValueError: if it is not a whole number from 1 to ``data_size``.
    """
    if _validate.positive_int("batch_size", batch_size) > data_size:
        raise ValueError(
            f"batch_size must be at most data_size={data_size}, got {batch_size}; take "
            f"batch_size={data_size} to use all records at every step."
        )
    return int(batch_size)
