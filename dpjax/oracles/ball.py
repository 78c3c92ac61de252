"""The gradient oracle of perturbed gradient descent, whose noise is uniform in a ball."""

import dataclasses
import math
from typing import Any

import jax

from dpjax._typing import Array, Params, pytree_dataclass, static
from dpjax._wide import Expansion, float64
from dpjax.accounting import Event, records_moved
from dpjax.accounting.wording import ReleaseWords
from dpjax.mechanisms.noise import Ball, Noise
from dpjax.oracles.base import Records, check_sampler
from dpjax.oracles.gradient import GradientQuery
from dpjax.sampling import FullBatch


@pytree_dataclass
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

    dimension: int = static(kw_only=True)

    @property
    def words(self) -> ReleaseWords:
        """What the guarantee says of a release beside its numbers."""
        return ReleaseWords(noise="noise uniform in a ball, on means of clipped contributions")

    @property
    def radius(self) -> Array | float:
        """Radius of the ball, in the units of the mean."""
        return self.stddev * math.sqrt(self.dimension + 2)

    def event(self, count: int) -> Event:
        """Returns what ``count`` answers release: a ball each, on draws of their own.

        Raises:
          ValueError: for balls that do not overlap.
        """
        check_sampler(self.sampler, self.data_size)
        # Sampled or not: what counts is how far apart the centres are where the record is drawn.
        release = (self.sampler or FullBatch(self.data_size)).release(
            self.name,
            count,
            noise_multiplier=float(self.noise_multiplier),
            relation=self.relation,
            record_norm=float(self.sensitivity) * float(self.divisor) / self._records,
            components=self.components,
            mechanism="ball",
            dimension=self.dimension,
        )
        release = dataclasses.replace(
            release, unsafe_fast_noise=self.unsafe_fast_noise, words=self.words
        )
        return Event((release,), self.relation)

    def exact(
        self, records: Records, params: Params, mask: Array | None = None, **public: Any
    ) -> tuple[Expansion, ...]:
        """Returns the sum of clipped gradients, (p,). NOT PRIVATE.

        Raises:
          ValueError: if the parameters are not as many as ``dimension`` says; delta depends on it.
        """
        (total,) = super().exact(records, params, mask, **public)
        if total.leading.size != self.dimension:
            raise ValueError(
                f"dimension={self.dimension} was declared, but there are {total.leading.size} "
                "parameters; the delta of ball noise depends on how many."
            )
        return (total,)

    def noises(self, **public: Any) -> tuple[tuple[str, Noise], ...]:
        """Returns noise uniform in a ball."""
        del public
        return ((self.purpose, Ball(self.unsafe_fast_noise)),)

    def stddevs(self, params: Params, **public: Any) -> tuple[Any, ...]:
        """Returns the standard deviation of a coordinate, in float64."""
        del params, public
        with jax.enable_x64(True):  # in float32 the ball could be smaller than accounted
            return (float64(self.noise_multiplier) * float64(self.clip_norm) * self._moved,)

    @property
    def _records(self) -> int:
        # A release of all records counts those that move, a drawn one each by itself.
        return records_moved(self.relation) if self.sampler is None else 1

    @property
    def _moved(self) -> float:
        return records_moved(self.relation) + self.slack

    def _of_mean(self, unit: Array | float) -> Array | float:
        # Sampled or not: of a ball the distance of the centres is what counts.
        return self._moved * unit / self.divisor
