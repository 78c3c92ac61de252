"""Which records the updates of a chain are made of, and the event of so many updates."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax._typing import Array, PyTree, Relation
from dpjax.accounting import Event
from dpjax.derivatives import keeps_positions, rounding
from dpjax.sampling import Sampler


@dataclasses.dataclass(frozen=True)
class Draws:
    """A sampler that draws the records of each update anew, under a relation.

    Raises:
      ValueError: for anything else than a sampler, or one that reads each record once.

    >>> from dpjax.sampling import full_batch
    >>> Draws(full_batch(417), "add_or_remove_one").any_order
    True
    """

    sampler: Sampler
    relation: Relation

    def __post_init__(self):
        if not isinstance(self.sampler, Sampler):
            raise ValueError(
                "sampler must be one of dpjax.sampling, such as poisson(...), got "
                f"{_validate.shown(self.sampler)}."
            )
        if self.sampler.by_place:
            raise ValueError(
                "a single pass over the records does not sample at each step; use add_tree_noise "
                "for it, or sampler=poisson(...)."
            )

    @property
    def expected(self) -> float:
        """The public divisor of sums."""
        return float(self.sampler.expected)

    @property
    def any_order(self) -> bool:
        """Whether rows are to be added in float64, since neighbours may have them elsewhere."""
        return not keeps_positions(self.relation)

    def slack(self, any_order: bool) -> float:
        """Returns ``rounding.sum_slack`` and ``rounding.shift_slack`` for the sums of one draw.

        Under ``add_or_remove_one`` n is private and may be more than was declared: there rounding
        is charged for twice the rows, and is within its bound up to twice the declared n.

        Args:
          any_order: whether the rows were added in float64, as those of a chain are, and those of
            a sum that was made elsewhere need not be.

        >>> from dpjax.sampling import full_batch
        >>> print(f"{Draws(full_batch(417), 'add_or_remove_one').slack(any_order=True):.5f}")
        0.00030
        """
        rows = (
            self.sampler.capacity if keeps_positions(self.relation) else 2 * self.sampler.capacity
        )
        slack = rounding.sum_slack(rows, self.relation, any_order)
        return slack + rounding.shift_slack(rows, self.relation)

    def moved(self, record_norm: float) -> float:
        """Returns what the noise multiplier is relative to, on the mean, see ``Sampler.scale``."""
        return float(self.sampler.scale(record_norm, self.relation))

    def event(self, name: str, count: int, **own: Any) -> Event:
        """Returns ``event_of`` updates that are made of these draws; arguments as there."""
        return event_of(name, count, sampler=self.sampler, relation=self.relation, **own)

    def check(self, updates: PyTree, mask: Array | None) -> None:
        """Raises if per-example gradients are not those of a draw.

        Raises:
          ValueError: for more rows than it draws, or where nobody says which hold a record.
        """
        if self.sampler.reads_all:
            return
        rows = jnp.shape(jax.tree.leaves(updates)[0])[0]
        # A batch from more records than declared has several times the slots; to refuse it would
        # tell.
        private = self.any_order and rows % self.sampler.capacity == 0
        if rows > self.sampler.capacity and not private:
            raise ValueError(
                "got gradients of more records than the sampler draws, "
                f"{self.sampler.capacity} at most; pass those of one draw."
            )
        if mask is None:
            raise ValueError(
                "mask must say which rows hold a record, got None: the others repeat row 0, which "
                "would count once for each. Pass update(..., mask=batch.mask)."
            )


def event_of(
    name: str, count: int, *, sampler: Sampler, relation: Relation, sensitivity: float, **own: Any
) -> Event:
    """Returns what ``count`` noisy updates release; all events of chains are built here.

    ``sensitivity`` is what the noise multiplier is relative to, in the units of ``components``;
    ``own`` are ``noise_multiplier``, ``noise_draws``, ``components``, and what else
    ``Sampler.released`` takes.

    Raises:
      ValueError: if the sampler has no accounting for the noise or under the relation.

    >>> from dpjax.sampling import full_batch
    >>> sampler = full_batch(10)
    >>> event = event_of("updates", 4, sampler=sampler, relation="zero_out", sensitivity=1.0,
    ...     noise_multiplier=2.0, components=(("updates", 2.0),))
    >>> event.gaussian_mu
    1.0
    """
    return Event((sampler.released(name, count, sensitivity=sensitivity, **own),), relation)
