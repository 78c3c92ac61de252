"""Discretisation of a privacy loss that is monotone along a line, by "connect the dots".

The mass between two grid points is divided between them so that both distributions keep their
totals. The result dominates the true pair.

Reference: Doroshenko et al., "Connect the dots: tighter discrete approximations of privacy loss
distributions" (2022).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import special

from dpjax.accounting.pld import PrivacyLossDistribution

REACH = 9.5
"""Mass beyond this many standard deviations is 1e-21, and counts as an infinite loss."""


class IntervalMasses(NamedTuple):
    """Probabilities, under both distributions, of losses between neighbouring grid points."""

    low: int
    upper: np.ndarray
    lower: np.ndarray
    below: tuple[float, ...]
    above: tuple[float, ...]

    def flipped(self) -> "IntervalMasses":
        """Returns the masses with the two distributions exchanged: every loss changes its sign."""
        return IntervalMasses(
            -(self.low + len(self.upper)),
            self.lower[::-1],
            self.upper[::-1],
            self.above[::-1],
            self.below[::-1],
        )


def discretize(
    loss: Callable[[np.ndarray], np.ndarray],
    point: Callable[[np.ndarray], np.ndarray],
    upper: list[tuple[float, float]],
    lower: list[tuple[float, float]],
    mu: float,
    gap: float,
    positive: bool = False,
) -> IntervalMasses:
    """Returns the masses of the intervals between points where the increasing loss is on the grid.

    A point that is off by so little that its loss errs by h shifts mass of order h whose losses err
    by h: what the profile loses is of order h^2.

    Args:
      loss: x -> loss.
      point: its inverse, of any losses.
      upper: weights and means of the normal mixture in the numerator of the loss.
      lower: weights and means of the mixture in the denominator.
      mu: largest mean.
      gap: distance of the grid points.
      positive: whether to leave out losses below 0.
    """
    bottom = min(mean for _, mean in lower)
    first, last = loss(np.array([bottom - REACH, mu + REACH])) / gap
    low = 0 if positive else int(np.floor(first))
    high = max(int(np.ceil(last)), low + 1)
    x = point(np.arange(low, high + 1) * gap)

    def masses(
        mixture: list[tuple[float, float]], left: np.ndarray, right: np.ndarray
    ) -> np.ndarray:
        total = np.zeros(left.shape)
        for weight, mean in mixture:
            a, b = left - mean, right - mean
            # Differences of the smaller tail keep their digits.
            total = total + weight * np.where(
                a > 0, special.ndtr(-a) - special.ndtr(-b), special.ndtr(b) - special.ndtr(a)
            )
        return total

    ends = np.array([-np.inf]), x[:1], x[-1:], np.array([np.inf])
    below, above = (
        (float(masses(upper, *pair)[0]), float(masses(lower, *pair)[0]))
        for pair in (ends[:2], ends[2:])
    )
    return IntervalMasses(
        low, masses(upper, x[:-1], x[1:]), masses(lower, x[:-1], x[1:]), below, above
    )


def connect_dots(
    intervals: IntervalMasses, gap: float, atom: float = 0.0
) -> PrivacyLossDistribution:
    """Returns the distribution of the loss on the grid, with an extra mass ``atom`` at loss 0."""
    left = (intervals.low + np.arange(len(intervals.upper))) * gap
    # Of an interval's mass m, ``up`` goes to the right end such that the other distribution keeps
    # its mass: (m - up) e^-left + up e^-(left + gap) = lower.
    with np.errstate(over="ignore", invalid="ignore"):
        up = (intervals.upper - intervals.lower * np.exp(left)) / -np.expm1(-gap)
    # Where the other distribution has no mass left the loss is rounded up.
    up = np.where(np.isfinite(up), np.clip(up, 0, intervals.upper), intervals.upper)
    probabilities = np.append(intervals.upper - up, 0.0)
    probabilities[1:] += up
    # Losses below the grid are rounded up to its first point.
    probabilities[0] += intervals.below[0]
    if atom:
        probabilities[-intervals.low] += atom
    # Losses above the grid count as infinite.
    return PrivacyLossDistribution(gap, intervals.low, probabilities, intervals.above[0])
