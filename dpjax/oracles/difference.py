"""The difference oracle: the mean gradient difference from an anchor, with noise in proportion."""

from typing import Any

import jax.numpy as jnp

from dpjax._typing import Array, Params, pytree_dataclass
from dpjax._wide import Expansion
from dpjax.accounting.release import Quantity
from dpjax.derivatives import ClippedGradDifference, clipped_grad_difference
from dpjax.oracles.query import Query, Records
from dpjax.oracles.setting import ClippedSums

LEAST = 2.0**-60
"""The least noise over the largest, which float32 must hold.

It is nearer to 0 than any rounding error of the parameters that it is added to.
"""


@pytree_dataclass(kw_only=True)
class DifferenceQuery(Query):
    """Asks for (sum of clipped gradient differences) / divisor + N(0, stddev_at^2 I).

    Args:
      noise_multiplier: standard deviation over what one record contributes at most, at any
        distance from the anchor.
      clip_norm: C, the bound on one record's gradient at either point.
      smoothness: L; a record's difference is clipped to min(2 C, L |params - anchor|).
      **others: as ``Query``.

    Privacy: the Gaussian mechanism of multiplier ``noise_multiplier``, on its sample. The noise
      falls with the sensitivity, so the event is the same whatever the path; ``sensitivity`` and
      ``stddev`` are those of the largest bound, 2 C, and the noise added is at most that.

    Reference: Wang, Ye and Xu (2017), algorithm 1, line 6, with the noise of the anchor apart.
    """

    clip_norm: Array | float
    smoothness: Array | float

    name = "difference"
    gradients_per_record = 2  # here and at the anchor
    # Near the anchor two gradients almost cancel, and rounding is a large part of the difference.
    _jumps = True

    sums = ClippedSums(reviewed="DifferenceQuery")

    @property
    def quantity(self) -> Quantity:
        # The bound is 2 C min(1, slope |params - anchor|); the guarantee prints this number.
        slope = float(self.smoothness / (2 * self.clip_norm))
        return Quantity("difference", (("slope", slope),))

    def bound(self, params: Params | None = None, **public: Any) -> Array | float:
        """Returns what the distance from ``anchor`` allows; at most twice the clip norm."""
        largest = 2 * self.clip_norm
        if params is None:
            return largest
        # At the anchor itself the bound is 0, and noise of scale 0 would release the exact sum.
        return jnp.maximum(self.clipped.bound(params, public["anchor"]), LEAST * largest)

    @property
    def clipped(self) -> ClippedGradDifference:
        """The sum that is asked for, without noise."""
        return clipped_grad_difference(
            self.objective.data_term,
            smoothness=self.smoothness,
            clip_norm=self.clip_norm,
            permutation_invariant=self.permutation_invariant,
        )

    def stddev_at(self, params: Params, anchor: Params) -> Array:
        """Returns the standard deviation of the noise on the released mean; released itself."""
        return jnp.asarray(
            self.noise_multiplier * self._mean_sensitivity(self.bound(params, anchor=anchor))
        )

    def exact(
        self, records: Records, params: Params, mask: Array | None = None, **public: Any
    ) -> tuple[Expansion, ...]:
        """Returns the sum of clipped differences, (p,). NOT PRIVATE.

        ``public`` has ``anchor``, where the gradient is known; released before. At the anchor
        itself all is almost 0.
        """
        return (self.clipped.wide(params, public["anchor"], records, mask),)
