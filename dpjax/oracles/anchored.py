"""The anchored oracle: exact-anchor SVRG's gradient; the exact anchor gradient stays secret."""

import dataclasses
from typing import Any

import jax

from dpjax._typing import Array, Params, pytree_dataclass
from dpjax._wide import Expansion, float64, from_float64, to_float64
from dpjax.accounting import Release
from dpjax.derivatives import clipped_grad, most_rows
from dpjax.oracles.base import ClippedSums, Query, Records


@pytree_dataclass(kw_only=True)
class AnchoredQuery(Query):
    """Asks for (how clipped gradients of a batch change from the anchor) / B + their mean there.

    That mean is over all n records and exact, one secret computed at each anchor by ``memory``
    and handed back by the driver; noise N(0, stddev^2 I) is added to the whole at every step.

    Args:
      noise_multiplier: standard deviation over what a record that is drawn moves the mean.
      clip_norm: C, the bound on one record's gradient at either point.
      setting: n is the divisor of the mean at the anchor; the relation ``"zero_out"`` or
        ``"add_or_remove_one"``, no other has an accounting; the sampler ``Poisson``, of expected
        size B.

    Privacy: every step moves by C / n with a record that is not drawn, and by 2 C / B + C / n at
      most with one that is: a mixture of Gaussians. The two parts of a record's gradient at the
      anchor, - 1 / B and 1 / n, are not counted as cancelling: two programs compute them, which
      may round otherwise. The secret is un-noised and must never be released.

    Reference: Wang, Ye and Xu (2017), algorithm 1, line 6.
    """

    clip_norm: Array | float

    gradients_per_record = 2  # at the parameters and at the anchor

    sums = ClippedSums()

    @property
    def name(self) -> str:
        return "anchored"

    def bound(self, params: Params | None = None, **public: Any) -> Array | float:
        """What a drawn record adds to B times the release at most."""
        del params, public
        return (2 + self._share) * self.clip_norm

    @property
    def charged_rows(self) -> int:
        """Of the sum at the anchor; a batch has no more rows than it."""
        return most_rows(self.data_size, self.relation, self.in_any_row)

    @property
    def idle(self) -> Array | float:
        """What a record that is not drawn adds, over ``bound``, rounding of both included."""
        alone = self._share * (1 + self._slack_of(self.data_size))
        # A record that shifts others makes a batch round otherwise even where it is not drawn.
        alone = alone + (2 * self._batch_slack if self.any_order else 0.0)
        return alone / ((2 + self._share) * (1 + self.slack))

    @property
    def slack(self) -> Array | float:
        """What rounding adds to the distance of neighbouring sums, in contributions."""
        whole = self._slack_of(self.data_size)
        return (2 * self._batch_slack + self._share * whole) / (2 + self._share)

    @property
    def components(self) -> tuple[tuple[str, float], ...]:
        return (("gradient", float(self.stddev)),)

    def releases(self, count: int) -> tuple[Release, ...]:
        """Returns one Gaussian an answer, which also moves with a record that is not drawn.

        Raises:
          ValueError: without Poisson batches, or under ``replace_one``.
        """
        return (dataclasses.replace(self._release(count), undrawn_shift=float(self.idle)),)

    def memory(self, records: Records, params: Params, **public: Any) -> Expansion:
        """Returns the exact sum of clipped gradients at ``anchor``, (p,): SECRET."""
        del params
        return self._clipped.wide(public["anchor"], records)

    def renews(self, **public: Any) -> Array | bool:
        """Returns ``renew``, bool (): whether ``anchor`` is another one than at the step before."""
        return public["renew"]

    def exact(
        self, records: Records, params: Params, mask: Array | None = None, **public: Any
    ) -> tuple[Expansion, ...]:
        """Returns the sum of how gradients change, plus the exact anchor's share. NOT PRIVATE.

        ``public`` has ``anchor``, where ``memory`` was computed, released before; ``memory``, with
        all its digits; and ``renew``, see ``renews``.
        """
        here, there = (
            self._clipped.wide(point, records, mask) for point in (params, public["anchor"])
        )
        # One sum before the noise: apart, the exact part would need noise of its own.
        with jax.enable_x64(True):
            share = float64(self._share)
            total = to_float64(here) - to_float64(there) + share * to_float64(public["memory"])
            return (from_float64(total, here.leading.dtype),)

    @property
    def _clipped(self):
        return clipped_grad(
            self.objective.data_term, clip_norm=self.clip_norm, any_order=self.any_order
        )

    @property
    def _share(self) -> Array | float:
        return self.divisor / self.data_size

    @property
    def _batch_slack(self) -> float:
        return self._slack_of(self.sampler.capacity)
