"""The claim of ball noise, a delta at epsilon 0, and how an audit scores it; NOT PRIVATE."""

import dataclasses
from collections.abc import Callable

import numpy as np

from dpjax._typing import Relation
from dpjax.accounting import BallRelease, Event, ball_composition, ball_delta

# Log-density outside of a ball: finite, so that two of them cancel.


@dataclasses.dataclass(frozen=True)
class BallClaim:
    """Releases with noise uniform in a ball: f(a) = max(0, 1 - delta - a), exact.

    Its epsilon at a usual delta is infinite, so what is claimed and audited is delta at epsilon 0,
    the total variation between what is released on neighbours.

    Args:
      event: what the mechanism itself says it releases, balls alone.

    Raises:
      ValueError: for an event with other noise.

    >>> from dpjax.accounting import BallRelease
    >>> release = BallRelease("one", 1, 5.0, dimension=2)
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
        kept = 1.0
        for release in self._balls:
            radius = scale * release.radius
            apart = release.sensitivity >= 2 * radius
            own = 1.0 if apart else ball_delta(release.sensitivity, radius, release.dimension)
            kept *= 1 - ball_composition(own, release.count, release.probability)
        return min(1 - kept + 2 * self.event.failure_probability, 1.0)

    def epsilon(self, delta: float, scale: float = 1.0) -> float:
        """Returns 0, or infinity where ``delta`` is below that of the noise."""
        return 0.0 if self.delta(scale) <= delta else np.inf

    def curve(self, scale: float = 1.0) -> Callable[[np.ndarray], np.ndarray]:
        """Returns the curve of total variation ``delta(scale)``."""
        delta = self.delta(scale)
        return lambda alpha: np.maximum(0.0, 1 - delta - alpha)
