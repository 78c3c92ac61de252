"""Exact Poisson sampling, by geometric skips between included records."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import core

from dpjax._typing import Array, pytree_dataclass, static
from dpjax.accounting import PoissonRelease
from dpjax.sampling import skips
from dpjax.sampling.samplers import Batch, Sampler


@pytree_dataclass
class Poisson(Sampler):
    """Exact Poisson sampling by geometric skips; ``poisson`` makes one that is checked.

    The skips lead from one included record to the next, so that the cost scales with the batch and
    not with n; the 2^-64 discretisation error is added to delta.

    Args:
      high: upper 32 bits of 2^64 times the probability of a record, uint32. A float32 trial turns
        the probability 1.2e-7 into 2.4e-7.
      low: lower 32 bits, uint32.
      table: that of ``skips.skip_table`` for this probability, made anew where another is passed;
        None for a Bernoulli trial of each record, exact and slow.
      expected: the declared expected batch, the public divisor.
      max_batch_size: the most records that a batch from at most ``data_size`` records holds.
      data_size: the declared n; it need not bound the number of records present.

    Privacy: Poisson sampling of any number n of records, to the last of 64 bits, except where a
      batch is full, which a draw is with probability at most ``overflow``; that is charged to
      delta. A full batch keeps the first records drawn, so that a record could make another one
      enter or leave: therefore none may be full, however many records there are. A batch of n
      records has k ``max_batch_size`` slots, k = ceil(n / ``data_size``). At k = 1 more are drawn
      with at most the exact tail of Binomial(``data_size``, q), at k >= 2 with
      ``skips.crowd_probability`` at most, and ``overflow`` is the larger. Where k >= 2 every record
      has its own trial, so that what 64 bits miss of the gaps does not grow with n. The number of
      slots depends on n, and so do time and memory; no answer does, but for rounding where a loss
      has no closed form: there n is taken to be at most ``data_size``, as the guarantee says.
    """

    high: Array | np.uint32
    low: Array | np.uint32
    # Not compared: it follows from the words, and the comparison of two arrays is no single bool.
    table: Array | np.ndarray | None = dataclasses.field(compare=False)
    expected: Array | float
    max_batch_size: int = static()
    data_size: int = static()

    sampling: ClassVar[str] = PoissonRelease.sampling

    def __post_init__(self):
        if self.table is None or not (_is_number(self.high) and _is_number(self.low)):
            return
        # The table follows from the words, also where ``dataclasses.replace`` has changed them.
        threshold = (int(self.high) << 32) | int(self.low)
        if threshold > 0:
            table = skips.skip_table(threshold, self.data_size)
            # The cache returns one object, so mostly no number is compared.
            if self.table is not table and not np.array_equal(self.table, table):
                object.__setattr__(self, "table", table)

    @classmethod
    def of(
        cls,
        threshold: int,
        expected: float,
        max_batch_size: int,
        data_size: int,
        exact: bool = False,
    ) -> "Poisson":
        """Returns the sampler of probability threshold / 2^64, unchecked; on the host."""
        words = np.uint32(threshold >> 32), np.uint32(threshold & 0xFFFFFFFF)
        table = None if exact else skips.skip_table(threshold, data_size)
        return cls(*words, table, expected, max_batch_size, data_size)

    @property
    def probability(self) -> float:
        """The probability of a record, exact; on the host."""
        return ((int(self.high) << 32) | int(self.low)) / 2**64

    @property
    def overflow(self) -> float:
        """Bound on P(a batch is full), for any number of records, and what 64 bits miss."""
        tail = skips.largest_overflow(self.probability, self.max_batch_size, self.data_size)
        return tail + skips.skip_error(self.table, self.max_batch_size)

    def log_mixture(self, drawn: Array, undrawn: Array) -> Array:
        # Not ``probability``, which needs the words on the host; here they may be traced.
        q = self.expected / self.data_size
        return jnp.logaddexp(jnp.log1p(-q) + undrawn, jnp.log(q) + drawn)

    def sample(self, key: Array, n: int) -> Batch:
        """Returns one draw; it may be empty, and is released all the same.

        There may be any number of records; the shape is (max_batch_size,) for each ``data_size`` of
        them or part of it.
        """
        crowds = max(1, -(-n // self.data_size))
        if self.table is None or crowds > 1:
            return Batch(
                *skips.bernoulli_mask(key, (self.high, self.low), crowds * self.max_batch_size, n)
            )
        return Batch(*skips.geometric_skips(key, self.table, self.max_batch_size, n))

    def _drawn(self) -> dict[str, Any]:
        return {
            "sampling_probability": self.probability,
            "max_batch_size": self.max_batch_size,
            "data_size": self.data_size,
            "failure_probability": self.overflow,
        }


def _is_number(word: Any) -> bool:
    """Whether a word has a value, which those of a trace, a batch or a sharding have not."""
    if isinstance(word, np.ndarray | jax.Array):
        return not isinstance(word, core.Tracer) and word.ndim == 0
    return isinstance(word, int | np.integer)
