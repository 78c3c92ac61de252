"""One pass over the records in a random order: each record is used by at most one query."""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from dpjax._typing import Array, PyTree, Relation, pytree_dataclass, static
from dpjax.accounting import SinglePassRelease, records_moved
from dpjax.placement.shard import length, take
from dpjax.sampling.samplers import Sampler


class ShuffledRecords(NamedTuple):
    """Records and the order in which they are to be read.

    Args:
      rows: pytree whose leaves share their leading axis, n.
      order: int32 (n,), a permutation that depends on no record.
    """

    rows: PyTree
    order: Array


def ordered(key: Array, rows: PyTree) -> ShuffledRecords:
    """Returns ``rows`` with a uniformly random order, for which alone ``key`` is used.

    Privacy: the order is chance alone, and may be known to everybody.

    >>> sorted(ordered(jax.random.key(0), jnp.ones((4, 2))).order.tolist())
    [0, 1, 2, 3]
    """
    # Permute the places, not the rows, which would copy all of the data.
    return ShuffledRecords(rows, jax.random.permutation(key, length(rows)).astype(jnp.int32))


def as_shuffled(records: PyTree) -> ShuffledRecords:
    """Returns records with their order; those that were given none are read as they stand."""
    if isinstance(records, ShuffledRecords):
        return records
    return ShuffledRecords(records, jnp.arange(length(records), dtype=jnp.int32))


@pytree_dataclass
class SinglePass(Sampler):
    """Places ``first`` to ``last`` of a random order, each for one question.

    Args:
      data_size: the declared public n.
      first: the first place.
      last: the place after the last.

    Raises:
      ValueError: for places that are not among them.

    Privacy: to one record all questions are one Gaussian mechanism, because it is asked once at
      most, and which question that is no record decides. Under ``add_or_remove_one`` a record that
      leaves would shift those behind it into other batches; that has no accounting here.

    Reference: Liu and Talwar (2024), algorithm 3, which draws from the unused functions.

    >>> SinglePass(100, 0, 90).expected
    90.0
    """

    data_size: int = static()
    first: int = static()
    last: int = static()

    by_position: ClassVar[bool] = True
    sampling: ClassVar[str] = SinglePassRelease.sampling
    _drawn = ("data_size",)

    def __post_init__(self):
        if not 0 <= self.first < self.last <= self.data_size:
            raise ValueError(
                f"places {self.first} to {self.last} are not among data_size={self.data_size}."
            )

    @property
    def expected(self) -> float:
        return float(self.last - self.first)

    @property
    def max_batch_size(self) -> int:
        return self.last - self.first

    def sum_scale(self, record_norm: Any, relation: Relation, rounding_error: Any = 0.0) -> Any:
        # A record is in one batch at most, and may be replaced there: so both norms count at once.
        return records_moved(relation) * super().sum_scale(record_norm, relation, rounding_error)

    def prepare(self, key: Array, records: PyTree) -> ShuffledRecords:
        return ordered(key, records)

    def with_known_order(self, key: Array) -> "KnownOrder":
        # The order depends on the key and n alone, so any rows serve.
        order = ordered(key, jnp.zeros(self.data_size)).order
        return KnownOrder(self.data_size, self.first, self.last, order=order)

    def draw(self, key: Array, records: Any) -> tuple[Any, None]:
        # Each query names its own places, see ``minibatch``.
        return records, None

    def minibatch(
        self, records: ShuffledRecords, start: Array, size: Array, rows: int
    ) -> tuple[PyTree, Array]:
        """Returns ``rows`` records from place ``start`` on, and which of them are asked.

        At most ``size`` places are read; those after are masked, as are places past the last.

        Raises:
          ValueError: for another number of records than was declared: a place that is not there
            would be the last record, again and again.
        """
        if records.order.shape[0] != self.data_size:
            raise ValueError(
                f"a pass over {self.data_size} records was declared, but the data have another "
                "number of records; declare the public n."
            )
        places = start + jnp.arange(rows, dtype=jnp.int32)
        # Both ends are checked, because places beyond them belong to another release.
        mask = (places < start + size) & (places >= self.first) & (places < self.last)
        # A masked place reads record order[0], whose part the mask then makes 0.
        indices = records.order[jnp.where(mask, places, 0)]
        return take(records.rows, indices), mask


@pytree_dataclass
class KnownOrder(SinglePass):
    """A single pass in an ``order``, int32 (n,), drawn before, which an audit's attacker knows."""

    order: Array = dataclasses.field(kw_only=True)

    def prepare(self, key: Array, records: PyTree) -> ShuffledRecords:
        return ShuffledRecords(records, self.order)
