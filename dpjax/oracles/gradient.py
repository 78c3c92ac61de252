"""Oracles of gradients: their noisy mean, with noise of a ball, or its change from an anchor."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from dpjax._typing import Array, Params, pytree_dataclass, static
from dpjax._wide import float64
from dpjax.accounting import Release
from dpjax.accounting.release import Quantity
from dpjax.derivatives import ClippedSum, clipped_grad
from dpjax.derivatives.difference import ClippedGradDifference, clipped_grad_difference
from dpjax.mechanisms.noise import Ball
from dpjax.oracles.query import Mask, Query, Records, Sums
from dpjax.oracles.setting import ClippedSums
from dpjax.sampling import FullBatch


@pytree_dataclass(kw_only=True)
class GradientQuery(Query):
    """Asks for (sum of clipped gradients) / divisor + N(0, stddev^2 I), the data term alone.

    Args:
      clip_norm: C, the bound on one record's gradient.
      **others: as ``Query``.

    Privacy: the Gaussian mechanism of multiplier ``noise_multiplier``; sensitivity ``sensitivity``
      holds for every data set, because clipping always runs.
    """

    clip_norm: Array | float

    name = "gradient"
    # Subclasses may share this purpose, since ``step_key`` derives from their names as well.
    purpose = "gradient"  # pyright: ignore[reportAssignmentType]
    closed_form_for_units = True

    sums = ClippedSums(reviewed="GradientQuery")

    def bound(self, params: Params | None = None, **public: Any) -> Array | float:
        return self.clip_norm

    def exact(self, records: Records, params: Params, mask: Mask = None, **public: Any) -> Sums:
        """Returns the sum of clipped gradients, (p,). NOT PRIVATE."""
        return (self._clipped.wide(params, records, mask),)

    @property
    def _clipped(self) -> ClippedSum:
        return self._clipped_by(clipped_grad, clip_norm=self.clip_norm)


@pytree_dataclass(kw_only=True)
class NetworkQuery(GradientQuery):
    """Asks what ``GradientQuery`` does, of a network: layers may be clipped each, memory limited.

    Args:
      per_layer: as in ``clipped_grad``; the joint bound stays ``clip_norm``.
      memory_limit: bytes, as in ``clipped_grad``.
      **others: as ``GradientQuery``.

    Privacy: as ``GradientQuery``; both change what is computed within the same bound.
    """

    per_layer: bool = static(default=False)
    memory_limit: int | None = static(default=None)

    sums = ClippedSums(reviewed="NetworkQuery")

    @property
    def _clipped(self) -> ClippedSum:
        options = {"per_layer": self.per_layer, "memory_limit": self.memory_limit}
        return self._clipped_by(clipped_grad, clip_norm=self.clip_norm, **options)


@pytree_dataclass(kw_only=True)
class AnchorQuery(GradientQuery):
    """Asks what ``GradientQuery`` does, at the few steps that renew an anchor.

    Privacy: as many Gaussian mechanisms as renewals; a step that renews nothing reads no record.
    """

    name = "anchor"
    sums = ClippedSums(reviewed="AnchorQuery")

    def is_asked(self, *, refresh: Array) -> Array:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Returns ``refresh``, bool (): public or of released values. Otherwise the answer is 0."""
        return refresh


@pytree_dataclass(kw_only=True)
class BallQuery(GradientQuery):
    """Asks for (sum of clipped gradients) / divisor plus noise uniform in a ball.

    Args:
      noise_multiplier: standard deviation of a coordinate over ``sensitivity``; the radius is
        sqrt(d + 2) times that.
      dimension: d, the number of parameters.
      **others: as ``GradientQuery``.

    Privacy: (0, delta) a question, see ``mechanisms.add_ball``; ``sensitivity`` is how far one
      record moves the mean where it is drawn, C / divisor or, under ``replace_one``, twice that.
    """

    dimension: int = static()

    noise = Ball()

    sums = ClippedSums(reviewed="BallQuery")

    @property
    def radius(self) -> Array | float:
        """Radius of the ball, in the units of the mean."""
        return self.stddev * math.sqrt(self.dimension + 2)

    def releases(self, count: int) -> tuple[Release, ...]:
        """Returns a ball an answer, on draws of their own, taken to be exact: in float64."""
        return (self._release(count, dimension=self.dimension, noise_draws=0),)

    def exact(self, records: Records, params: Params, mask: Mask = None, **public: Any) -> Sums:
        (total,) = super().exact(records, params, mask, **public)
        # Not only more: in fewer dimensions a ball of this radius has another delta.
        if total.leading.size != self.dimension:
            raise ValueError(
                f"dimension={self.dimension} was declared, but there are {total.leading.size} "
                "parameters; the delta of ball noise depends on how many."
            )
        return (total,)

    def stddevs(self, params: Params, **public: Any) -> tuple[Any, ...]:
        """Returns the standard deviation of a coordinate, in float64."""
        with jax.enable_x64(True):  # in float32 the ball could be smaller than accounted
            scale = float64(self.noise_multiplier) * float64(self.clip_norm)
            return (scale * self._sum_sensitivity(1.0),)

    def _sum_sensitivity(self, bound: Array | float) -> Array | float:
        # Sampled or not: of a ball the distance of the centres is what counts.
        self.sampler.sum_scale(bound, self.relation)  # raises where the draw has no accounting
        return FullBatch(self.data_size).sum_scale(bound, self.relation, self.rounding_error)


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
        bounds = {"smoothness": self.smoothness, "clip_norm": self.clip_norm}
        return self._clipped_by(clipped_grad_difference, **bounds)

    def stddev_at(self, params: Params, anchor: Params) -> Array:
        """Returns the standard deviation of the noise on the released mean; released itself."""
        bound = self.bound(params, anchor=anchor)
        return jnp.asarray(self.noise_multiplier * self._mean_sensitivity(bound))

    def exact(self, records: Records, params: Params, mask: Mask = None, **public: Any) -> Sums:
        """Returns the sum of clipped differences, (p,). NOT PRIVATE.

        ``public`` has ``anchor``, where the gradient is known; released before. At the anchor
        itself all is almost 0.
        """
        return (self.clipped.wide(params, public["anchor"], records, mask),)
