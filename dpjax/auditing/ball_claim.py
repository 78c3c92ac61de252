"""The claim of ball noise, a delta at epsilon 0, and its log-density; NOT PRIVATE."""

import dataclasses
from collections.abc import Callable

import numpy as np

from dpjax._typing import Relation
from dpjax.accounting import BallRelease, Event, ball_composition, ball_delta

# Log-density outside of a ball: finite, so that two of them cancel.


@dataclasses.dataclass(frozen=True)
class BallClaim:
    """Releases with noise uniform in a ball: f(a) = max(0, 1 - delta - a), exact.

    Its epsilon at a usual delta is infinite, so the claim is delta at epsilon 0,
    the total variation between the releases on neighbours.

    Args:
      event: the mechanism's event, with ball noise alone.

    Raises:
      ValueError: for an event with other noise.

    >>> from dpjax.accounting import BallRelease
    >>> release = BallRelease("ball", 1, 5.0, dimension=2)
    >>> claim = BallClaim(Event((release,), "zero_out"))
    >>> round(claim.delta(), 4), round(float(claim.curve()(0.5)), 4)
    (0.0636, 0.4364)
    """

    event: Event

    def __post_init__(self):
        if len(self._balls) < len(self.event.releases):
            raise ValueError("this claim is about ball noise alone.")

    @property
    def _balls(self) -> list[BallRelease]:
        return [release for release in self.event.releases if isinstance(release, BallRelease)]

    @property
    def relation(self) -> Relation:
        """The relation of the event."""
        return self.event.relation

    def delta(self, scale: float = 1.0) -> float:
        """Returns delta at epsilon 0 with radii ``scale`` times as large, overflows included."""
        if np.isinf(scale):
            return 0.0
        overlap = 1.0
        for release in self._balls:
            radius = scale * release.radius
            disjoint = release.sensitivity >= 2 * radius
            delta = 1.0 if disjoint else ball_delta(release.sensitivity, radius, release.dimension)
            overlap *= 1 - ball_composition(delta, release.count, release.probability)
        return min(1 - overlap + 2 * self.event.failure_probability, 1.0)

    def epsilon(self, delta: float, scale: float = 1.0) -> float:
        """Returns 0, or infinity where ``delta`` is below that of the noise."""
        return 0.0 if self.delta(scale) <= delta else np.inf

    def curve(self, scale: float = 1.0) -> Callable[[np.ndarray], np.ndarray]:
        """Returns the curve of total variation ``delta(scale)``."""
        delta = self.delta(scale)
        return lambda alpha: np.maximum(0.0, 1 - delta - alpha)
