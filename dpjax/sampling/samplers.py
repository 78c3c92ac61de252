"""Samplers: which records a step uses, and the release that results.

Shapes are fixed. A batch is ``max_batch_size`` indices and a mask (Poisson batches from more
records than declared have more, see there); a masked index is 0, a row that is there, and whoever
reads the batch must make its part exactly zero. ``key`` is used for one draw alone, and for no
noise.
"""

import dataclasses
from typing import Any, ClassVar, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import core

from dpjax._typing import Array, PyTree, Relation, pytree_dataclass, static
from dpjax.accounting import PoissonRelease, Release, SubsetRelease, records_moved
from dpjax.placement.shard import draw, length
from dpjax.sampling import skips


class Batch(NamedTuple):
    """The records of one draw.

    Args:
      indices: int32, shape (slots,); 0 where masked.
      mask: bool, shape (slots,); False where there is no record.
    """

    indices: Array
    mask: Array


_Kind = TypeVar("_Kind", bound="Sampler")
# What the fields of a release that describe a draw are called in its sampler.
_DRAWN = {"sampling_probability": "probability", "failure_probability": "overflow"}
_DRAWN |= {name: name for name in ("max_batch_size", "data_size")}


class Sampler:
    """What all samplers have: ``sample`` draws, ``release`` says what an answer to a draw releases.

    A query that adds noise of ``noise_multiplier * sampler.scale(C, relation)`` to the mean is
    accounted for by ``release``.
    """

    reads_all: ClassVar[bool] = False
    """Whether every draw holds every record, as it stands."""
    draws_independently: ClassVar[bool] = False
    """Whether each record is drawn, or always read, whatever other records are."""
    by_position: ClassVar[bool] = False
    """Whether a question reads the places of an order that it is told, each at most once."""

    subset_size: int | None = None
    """The number of records of every draw, if it is less than all and always the same."""
    expected: Any
    """The public divisor of sums: the expected number of records of a draw, never the drawn."""
    max_batch_size: Any
    """The most records of a draw."""
    data_size: int
    sampling: ClassVar[str]
    """Names, with the mechanism of the noise, what an answer to a draw releases."""
    _drawn: ClassVar[tuple[str, ...]] = ()  # the fields of a release that describe the draw

    def scale(self, record_norm: Any, relation: Relation, rounding_error: Any = 0.0) -> Any:
        """Returns the standard deviation on the mean at noise multiplier 1.

        Args:
          record_norm: C, the bound on the norm of one record's part of the sum.
          relation: the neighbouring relation.
          rounding_error: what rounding adds to the distance of neighbouring sums, in units of C.

        Raises:
          ValueError: if the sampler has no accounting under the relation.
        """
        return self.sum_scale(record_norm, relation, rounding_error) / self.expected

    def sum_scale(self, record_norm: Any, relation: Relation, rounding_error: Any = 0.0) -> Any:
        """Returns that on the sum: the part of a record that is drawn, rounding included.

        Arguments and errors as in ``scale``.
        """
        # Raises for an unknown relation.
        records_moved(relation)
        refused = Release.kinds(self.sampling).get(Release.mechanism, Release).refused
        if relation in refused:
            raise ValueError(refused[relation])
        # One record's contribution even under ``replace_one``: the accounting of samples includes
        # the second.
        return record_norm * (1 + rounding_error)

    def sample(self, key: Array, n: int) -> Batch:
        """Returns one draw from ``n`` records, of which there is at least 1."""
        raise NotImplementedError

    def log_mixture(self, drawn: Array, undrawn: Array) -> Array:
        """Returns the log-likelihood ratio of an answer whose draw is not seen, for audits.

        Args:
          drawn: that where the canary, the only record that contributes, is drawn.
          undrawn: that where it is not.
        """
        # A sampler that draws every record hides nothing.
        return drawn

    def with_known_order(self, key: Array) -> "Sampler":
        """Returns this sampler with all that ``prepare`` draws drawn with ``key``: here nothing.

        An audit's attacker knows it, as everybody may.
        """
        return self

    def prepare(self, key: Array, records: PyTree) -> PyTree:
        """Returns the records as ``draw`` takes them, once per training: here unchanged."""
        return records

    def draw(self, key: Array, records: PyTree) -> tuple[PyTree, Array | None]:
        """Returns the records of one draw, for which alone ``key`` is, and which rows count."""
        batch = self.sample(key, length(records))
        return draw(records, batch.indices, batch.mask)

    def release(
        self,
        name: str,
        count: int,
        *,
        noise_multiplier: float,
        relation: Relation,
        record_norm: float = 1.0,
        components: tuple[tuple[str, float], ...] = (),
        mechanism: str = "gaussian",
        **own: Any,
    ) -> Release:
        """Returns what ``count`` answers release, each on a draw of its own; on the host.

        ``noise_multiplier`` is the standard deviation of the noise over ``scale(record_norm,
        relation)``. All that one draw is asked is one vector, and ``record_norm``, C, its joint
        norm. ``components`` are as in ``Release``, and ``own`` as in ``released``.

        Raises:
          ValueError: if the sampler has no accounting under the relation or for the noise.

        >>> sampler = WithoutReplacement(size=100, data_size=1000)
        >>> sampler.release("gradient", 5, noise_multiplier=2.0, relation="replace_one").stddev
        0.02
        >>> sampler.release("gradient", 5, noise_multiplier=2.0, relation="zero_out")
        ... # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        ValueError: sampling without replacement has an accounting under relation='replace_one' ...
        """
        return self.released(
            name,
            count,
            noise_multiplier=float(noise_multiplier),
            sensitivity=float(self.scale(record_norm, relation)),
            components=components,
            mechanism=mechanism,
            **own,
        )

    def released(
        self, name: str, count: int, *, mechanism: str = "gaussian", **own: Any
    ) -> Release:
        """Returns what ``release`` does, of noise relative to a ``sensitivity`` known already.

        ``own`` are ``noise_multiplier``, ``sensitivity`` of the mean, and what else a release of
        that mechanism has.

        Raises:
          ValueError: if the sampler has no accounting for the noise.
        """
        # Each class of release accounts for one kind of noise on one kind of draw.
        kinds = Release.kinds(self.sampling)
        if mechanism not in kinds:
            raise ValueError(
                f"{type(self).__name__} batches have no accounting for {mechanism} noise; take one "
                f"of {', '.join(kinds)}."
            )
        # A kind that lacks one of them, or an argument that says it again, is refused by Python.
        drawn = {field: getattr(self, _DRAWN[field]) for field in self._drawn}
        return kinds[mechanism](name, count, **drawn, **own)


@pytree_dataclass
class FullBatch(Sampler):
    """Every record at every step.

    Args:
      data_size: the declared public n, the divisor.

    Privacy: no amplification; the multiplier is over the sensitivity for the relation.

    >>> FullBatch(100).scale(1.0, "replace_one")
    0.02
    """

    data_size: int = static()

    reads_all: ClassVar[bool] = True
    draws_independently: ClassVar[bool] = True
    sampling: ClassVar[str] = Release.sampling
    probability: ClassVar[float] = 1.0
    overflow: ClassVar[float] = 0.0

    @property
    def expected(self) -> float:
        return float(self.data_size)

    @property
    def max_batch_size(self) -> int:
        return self.data_size

    def sum_scale(self, record_norm: Any, relation: Relation, rounding_error: Any = 0.0) -> Any:
        # Every record is read, so what counts is how far neighbouring sums are apart.
        return (records_moved(relation) + rounding_error) * record_norm

    def sample(self, key: Array, n: int) -> Batch:
        return Batch(jnp.arange(n, dtype=jnp.int32), jnp.ones(n, bool))

    def draw(self, key: Array, records: PyTree) -> tuple[PyTree, None]:
        # No copy and no mask, so that closed forms can use rows that were prepared once.
        return records, None


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
      with at most the exact tail of Binomial(``data_size``, q), at k >= 2 with Chernoff's bound,
      see ``skips.largest_overflow``, and ``overflow`` is the larger. Where k >= 2 every record
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

    draws_independently: ClassVar[bool] = True
    sampling: ClassVar[str] = PoissonRelease.sampling
    _drawn = tuple(_DRAWN)

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

        There may be any number; its shape is (max_batch_size,) per ``data_size`` or part of it.
        """
        crowds = max(1, -(-n // self.data_size))
        if self.table is None or crowds > 1:
            return Batch(
                *skips.bernoulli_mask(key, (self.high, self.low), crowds * self.max_batch_size, n)
            )
        return Batch(*skips.geometric_skips(key, self.table, self.max_batch_size, n))


@pytree_dataclass
class WithoutReplacement(Sampler):
    """A uniformly random subset of ``size`` records, unchecked: see ``without_replacement``.

    What is drawn is the smaller of the subset and its complement, so that time follows the batch.

    Args:
      size: number of records in every batch, the public divisor.
      data_size: the declared public n.

    Privacy: under ``replace_one`` only; elsewhere a record that leaves makes another one enter.
      Needs 2.0 to 2.3 times the noise of Poisson batches under ``zero_out``. What 64 bits miss of
      the uniform distribution is ``overflow``, charged to delta.
    """

    size: int = static()
    data_size: int = static()

    sampling: ClassVar[str] = SubsetRelease.sampling
    _drawn = tuple(_DRAWN)

    @property
    def expected(self) -> float:
        return float(self.size)

    @property
    def max_batch_size(self) -> int:
        return self.size

    @property
    def subset_size(self) -> int:
        return self.size

    @property
    def probability(self) -> float:
        """That of a record to be drawn."""
        return self.size / self.data_size

    @property
    def overflow(self) -> float:
        """Bound on the total variation between one draw and a uniform subset; on the host."""
        trials, failure = skips.distinct_trials(self._fewer, self.data_size)
        return failure + skips.uniform_error(trials, self.data_size)

    # Where the records beside the canary are as the one that it takes the place of.
    log_mixture = Poisson.log_mixture

    @property
    def _fewer(self) -> int:
        return min(self.size, self.data_size - self.size)

    def sample(self, key: Array, n: int) -> Batch:
        if n != self.data_size:
            raise ValueError(
                f"subsets of {self.data_size} records were declared, but the data have another "
                "number of records; declare the public n."
            )
        trials, _ = skips.distinct_trials(self._fewer, n)
        drawn, mask = skips.distinct(key, self._fewer, trials, n)
        if self._fewer == self.size:
            return Batch(drawn, mask)
        # Masked slots point at row n, which is not there and is dropped.
        left_out = jnp.zeros(n, bool).at[jnp.where(mask, drawn, n)].set(True, mode="drop")
        # If the draws hold too few distinct records, too many rows are left and the first are
        # taken; ``overflow`` includes this.
        holdout = jnp.nonzero(~left_out, size=self.size)[0].astype(jnp.int32)
        return Batch(holdout, jnp.ones(self.size, bool))


def expect(kind: type[_Kind], sampler: Sampler, name: str) -> _Kind:
    """Returns ``sampler``, or raises: a question may be accounted for under one kind alone.

    >>> expect(FullBatch, WithoutReplacement(size=2, data_size=4), "AccuracyQuery")
    Traceback (most recent call last):
    ...
    ValueError: AccuracyQuery needs the sampler FullBatch, got WithoutReplacement.
    """
    if not isinstance(sampler, kind):
        raise ValueError(f"{name} needs the sampler {kind.__name__}, got {type(sampler).__name__}.")
    return sampler


def _is_number(word: Any) -> bool:
    """Whether a word has a value, which those of a trace, a batch or a sharding have not."""
    if isinstance(word, np.ndarray | jax.Array):
        return not isinstance(word, core.Tracer) and word.ndim == 0
    return isinstance(word, int | np.integer)
