"""The samplers: which records a step reads, and the release that such a step is.

Shapes are fixed. A batch is ``capacity`` indices and a mask; a masked index is 0, a row that is
there, and whoever reads the batch must make its part exactly zero. ``key`` is used for one draw
alone, and for no noise.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from dpjax._typing import Array, Relation, static
from dpjax.accounting import Release, records_moved

# The binomial tails of scipy are good to about 1e-12.
_UP = 1 + 1e-9


class Batch(NamedTuple):
    """The records of one draw.

    Args:
      indices: int32, shape (capacity,); 0 where masked.
      mask: bool, shape (capacity,); False where there is no record.
    """

    indices: Array
    mask: Array


class Sampler:
    """What all samplers have: ``sample`` draws, ``release`` says what an answer to a draw releases.

    ``expected`` is the public divisor of sums, never the size drawn. ``scale`` is the standard
    deviation of the noise on the mean at noise multiplier 1, so that a query which adds noise of
    ``noise_multiplier * sampler.scale(C, relation)`` is accounted for by ``release``.
    """

    expected: Any
    capacity: Any
    data_size: int

    def scale(self, record_norm: Any, relation: Relation) -> Any:
        """Returns the standard deviation on the mean at noise multiplier 1.

        Args:
          record_norm: C, the bound on the norm of one record's part of the sum.
          relation: the neighbouring relation.

        Raises:
          ValueError: if the sampler has no accounting under the relation.
        """
        records_moved(relation)
        return record_norm / self.expected

    def sample(self, key: Array, n: int) -> Batch:
        """Returns one draw from ``n`` records, of which there is at least 1."""
        raise NotImplementedError

    def release(
        self,
        name: str,
        count: int,
        *,
        noise_multiplier: float,
        relation: Relation,
        record_norm: float = 1.0,
        components: tuple[tuple[str, float], ...] = (),
    ) -> Release:
        """Returns what ``count`` answers release, each on a draw of its own; on the host.

        Args:
          name: what is released.
          count: number of answers.
          noise_multiplier: standard deviation of the noise over ``scale(record_norm, relation)``.
          relation: the neighbouring relation.
          record_norm: C. All that one draw is asked is one vector, so this is its joint norm.
          components: as in ``Release``.

        Raises:
          ValueError: if the sampler has no accounting under the relation.

        >>> sampler = FixedSize(size=100, data_size=1000)
        >>> sampler.release("gradient", 5, noise_multiplier=2.0, relation="replace_one").stddev
        0.02
        >>> sampler.release("gradient", 5, noise_multiplier=2.0, relation="zero_out")
        ... # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        ValueError: batches of fixed size have an accounting under relation='replace_one' only, ...
        """
        return Release(
            name,
            count,
            noise_multiplier=float(noise_multiplier),
            sensitivity=float(self.scale(record_norm, relation)),
            components=components,
            **self._drawn(),
        )

    def _drawn(self) -> dict[str, Any]:
        """The fields of ``Release`` that describe the draw."""
        return {}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FullBatch(Sampler):
    """Every record at every step.

    Args:
      data_size: the declared public n, the divisor.

    Privacy: no amplification; the multiplier is over the sensitivity for the relation.

    >>> FullBatch(100).scale(1.0, "replace_one")
    0.02
    """

    data_size: int = static()

    @property
    def expected(self) -> float:
        """The public divisor of sums."""
        return float(self.data_size)

    @property
    def capacity(self) -> int:
        """The most records a batch holds: all."""
        return self.data_size

    def scale(self, record_norm: Any, relation: Relation) -> Any:
        """Returns the l2 sensitivity of the mean; arguments as in ``Sampler``."""
        return records_moved(relation) * record_norm / self.expected

    def sample(self, key: Array, n: int) -> Batch:
        """Returns all of ``n`` records; the key is not used."""
        del key
        return Batch(jnp.arange(n, dtype=jnp.int32), jnp.ones(n, bool))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Poisson(Sampler):
    """Each record by its own coin, of exact probability; ``poisson`` makes one that is checked.

    Args:
      high: upper 32 bits of the threshold, uint32; a record is drawn where 64 random bits are below
        it. A float32 coin turns the probability 1.2e-7 into 2.4e-7.
      low: lower 32 bits, uint32.
      expected: the declared expected batch, the public divisor.
      capacity: the most records a batch holds; where more are drawn the first are kept.
      data_size: the declared n; where n is private, a declared upper bound on it.

    Privacy: exactly Poisson sampling, except where more than ``capacity`` records are drawn, which
      each draw does with probability at most ``overflow`` while n is at most ``data_size``. That
      probability is charged to delta. Where n is private the bound is the user's declaration: with
      more records than that the charge does not hold.
    """

    high: Array | np.uint32
    low: Array | np.uint32
    expected: Array | float
    capacity: int = static()
    data_size: int = static()

    @property
    def probability(self) -> float:
        """The probability of a record, threshold / 2^64, exact; on the host."""
        return ((int(self.high) << 32) | int(self.low)) / 2**64

    @property
    def overflow(self) -> float:
        """P(Binomial(data_size, probability) > capacity), rounded up; on the host."""
        return overflow_probability(self.probability, self.capacity, self.data_size)

    def sample(self, key: Array, n: int) -> Batch:
        """Returns one draw, of shape (capacity,); it may be empty, and is released all the same.

        Args:
          key: see the file's first lines.
          n: number of records there are.

        >>> sampler = Poisson(np.uint32(2**31), np.uint32(0), 2.0, capacity=4, data_size=4)
        >>> sampler.sample(jax.random.key(1), 4).indices.shape
        (4,)
        """
        bits = jax.random.bits(key, (2, n), jnp.uint32)
        drawn = (bits[0] < self.high) | ((bits[0] == self.high) & (bits[1] < self.low))
        rank = jnp.cumsum(drawn, dtype=jnp.int32)
        place = jnp.arange(self.capacity, dtype=jnp.int32)
        mask = place < rank[-1]
        # The first record at which the number of drawn ones reaches place + 1.
        indices = jnp.searchsorted(rank, place + 1).astype(jnp.int32)
        return Batch(jnp.where(mask, indices, 0), mask)

    def _drawn(self) -> dict[str, Any]:
        return {
            "sampling": "poisson",
            "sampling_probability": self.probability,
            "capacity": self.capacity,
            "data_size": self.data_size,
            "overflow": self.overflow,
        }


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FixedSize(Sampler):
    """A uniformly random subset of ``size`` records; ``fixed_size`` makes one that is checked.

    Args:
      size: number of records in every batch, the public divisor.
      data_size: the declared public n.

    Privacy: under ``replace_one`` only; elsewhere a record that leaves makes another one enter.
      Needs 2.0 to 2.2 times the noise of Poisson batches under ``zero_out``. A tie of 64 bits at
      the edge of the subset would bias it: ``overflow``, charged to delta.
    """

    size: int = static()
    data_size: int = static()

    @property
    def expected(self) -> float:
        """The public divisor of sums."""
        return float(self.size)

    @property
    def capacity(self) -> int:
        """The most records a batch holds: always as many."""
        return self.size

    @property
    def probability(self) -> float:
        """The probability of a record being drawn."""
        return self.size / self.data_size

    @property
    def overflow(self) -> float:
        """Bound on the total variation between one draw and a uniform subset."""
        return self.data_size / 2**64

    def scale(self, record_norm: Any, relation: Relation) -> Any:
        """Returns C over the batch size; arguments and errors as in ``Sampler``."""
        if relation != "replace_one":
            raise ValueError(
                "batches of fixed size have an accounting under relation='replace_one' only, got "
                f"{relation!r}; take Poisson batches, or declare replace_one."
            )
        return record_norm / self.expected

    def sample(self, key: Array, n: int) -> Batch:
        """Returns one draw; the order of its indices is random.

        Args:
          key: see the file's first lines.
          n: number of records there are, which must be ``data_size``.

        Raises:
          ValueError: for another n.
        """
        if n != self.data_size:
            raise ValueError(
                f"subsets of {self.data_size} records were declared, but there are {n}; declare "
                "the public n."
            )
        bits = jax.random.bits(key, (2, n), jnp.uint32)
        records = jnp.arange(n, dtype=jnp.int32)
        shuffled = jax.lax.sort((bits[0], bits[1], records), num_keys=2)[2]
        return Batch(shuffled[: self.size], jnp.ones(self.size, bool))

    def _drawn(self) -> dict[str, Any]:
        return {
            "sampling": "fixed_size",
            "sampling_probability": self.probability,
            "capacity": self.size,
            "data_size": self.data_size,
            "overflow": self.overflow,
        }


def overflow_probability(probability: float, capacity: int, n: int) -> float:
    """Returns P(Binomial(n, probability) > capacity), rounded up.

    >>> print(round(overflow_probability(0.5, 1, 2), 6))
    0.25
    """
    if capacity >= n:
        return 0.0
    tail = float(stats.binom.sf(capacity, n, probability))
    return min(1.0, max(tail * _UP, float(np.finfo(float).tiny)))
