"""The gradient oracle of perturbed gradient descent, whose noise is uniform in a ball."""

import math
from typing import Any

import jax

from dpjax._typing import Array, Params, pytree_dataclass, static
from dpjax._wide import Expansion, float64
from dpjax.accounting import Release
from dpjax.mechanisms.noise import Ball
from dpjax.oracles.gradient import GradientQuery
from dpjax.oracles.query import Records
from dpjax.oracles.setting import ClippedSums
from dpjax.sampling import FullBatch


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

    def exact(
        self, records: Records, params: Params, mask: Array | None = None, **public: Any
    ) -> tuple[Expansion, ...]:
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
            return (
                float64(self.noise_multiplier)
                * float64(self.clip_norm)
                * self._sum_sensitivity(1.0),
            )

    def _sum_sensitivity(self, bound: Array | float) -> Array | float:
        # Sampled or not: of a ball the distance of the centres is what counts.
        self.sampler.sum_scale(bound, self.relation)  # raises where the draw has no accounting
        return FullBatch(self.data_size).sum_scale(bound, self.relation, self.rounding_error)
