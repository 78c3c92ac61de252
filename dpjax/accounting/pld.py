"""Discretised privacy loss distributions, their composition by FFT, and their privacy profile.

A loss that is monotone along a line is discretised by "connect the dots": the mass between two grid
points is divided so that both distributions keep their totals. The result dominates the true pair.

Reference: Doroshenko et al., "Connect the dots: tighter discrete approximations of privacy loss
distributions" (2022).
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import special
from scipy.fft import next_fast_len
from scipy.linalg import blas

REACH = 9.5
"""Mass beyond this many standard deviations is 1e-21, and counts as an infinite loss."""
# Mass that a composition may drop, and then counts as an infinite loss.
_DROPPED = 1e-15


class PrivacyLossDistribution(NamedTuple):
    """Probabilities of the losses (low + k) gap for k = 0, 1, ..., and of an infinite loss."""

    gap: float
    low: int
    pmf: np.ndarray
    infinite: float


class Profile(NamedTuple):
    """Delta as a function of epsilon: reached - shrunk e^(e - start) on each grid interval."""

    gap: float
    start: float
    reached: np.ndarray
    shrunk: np.ndarray

    def epsilon(self, delta: float) -> float:
        """Returns the smallest epsilon >= 0 whose delta is at most ``delta``, or infinity."""
        above = np.flatnonzero(self.reached - self.shrunk > delta)
        if not len(above):
            return max(self.start, 0.0)
        cell = int(above[-1])
        if cell == len(self.reached) - 1 or self.reached[cell] <= delta:
            return math.inf
        loss = self.start + cell * self.gap
        # The cell's profile may have no digits left; its upper end is a bound.
        excess, fading = self.reached[cell] - delta, self.shrunk[cell]
        inside = math.log(excess / fading) if fading > excess * math.exp(-self.gap) else self.gap
        return max(loss + inside, 0.0)

    def delta(self, epsilons: np.ndarray) -> np.ndarray:
        """Returns delta at each of ``epsilons``, at least 0."""
        places = (epsilons - self.start) / self.gap
        cells = np.clip(np.floor(places), 0, len(self.reached) - 1).astype(int)
        inside = np.clip(epsilons - (self.start + cells * self.gap), 0, self.gap)
        found = self.reached[cells] - self.shrunk[cells] * np.exp(inside)
        # Below the first cell nothing is known but that it is a probability.
        return np.where(places < 0, 1.0, np.maximum(found, 0.0))


def profile(loss: PrivacyLossDistribution) -> Profile:
    """Returns the privacy profile of ``loss``."""
    # Losses below 0 matter to no epsilon; one cell of them is kept as a margin.
    skipped = max(-loss.low - 1, 0)
    pmf = loss.pmf[skipped:][::-1]
    beyond = np.append(0.0, pmf[:-1])
    reached = loss.infinite + np.cumsum(beyond)
    # V_k = sum over j > k of p_j e^(l_k - l_j), by recurrence: no exponential overflows.
    fade = math.exp(-loss.gap)
    bands = np.array([[1.0], [-fade]]).repeat(len(beyond), axis=1)
    # By BLAS: what SciPy filters signals with takes half a second to import.
    shrunk = blas.dtbsv(1, np.asfortranarray(bands), fade * beyond, lower=1, diag=1)  # pyright: ignore
    start = (loss.low + skipped) * loss.gap
    return Profile(loss.gap, start, reached[::-1], np.asarray(shrunk)[::-1])


def compose(
    first: PrivacyLossDistribution, second: PrivacyLossDistribution
) -> PrivacyLossDistribution:
    """Returns the loss distribution of two releases together, both on the same grid."""
    length = len(first.pmf) + len(second.pmf) - 1
    size = _fast(length)
    product = np.fft.rfft(first.pmf, size) * np.fft.rfft(second.pmf, size)
    low, infinite = first.low + second.low, first.infinite + second.infinite
    pmf = np.fft.irfft(product, size)[:length]
    return PrivacyLossDistribution(first.gap, low, pmf, infinite)


def power(loss: PrivacyLossDistribution, count: int) -> PrivacyLossDistribution:
    """Returns the loss distribution of ``count`` releases that each have this one."""
    if count == 1:
        return loss
    low, high = _bounds(loss.pmf, count)
    length = high - low + 1
    size = _fast(max(length, len(loss.pmf)))
    # What lies outside the bounds wraps around; it is at most _DROPPED, and charged.
    around = np.fft.irfft(np.fft.rfft(loss.pmf, size) ** count, size)
    infinite = _DROPPED - math.expm1(count * math.log1p(-loss.infinite))
    return PrivacyLossDistribution(
        loss.gap, count * loss.low + low, np.roll(around, -(low % size))[:length], infinite
    )


def width(loss: PrivacyLossDistribution, count: int) -> int:
    """Returns the number of grid points that the result of ``power`` has."""
    low, high = (0, len(loss.pmf) - 1) if count == 1 else _bounds(loss.pmf, count)
    return high - low + 1


def _bounds(pmf: np.ndarray, count: int) -> tuple[int, int]:
    """Chernoff bounds on the sum of ``count`` draws from ``pmf``, for all but ``_DROPPED``."""
    places = np.flatnonzero(pmf > 0)
    logs, weights = np.log(pmf[places]), pmf[places] / pmf[places].sum()
    mean = weights @ places
    deviation = math.sqrt(count * max(weights @ (places - mean) ** 2, 1e-12))
    needed = math.log(2 / _DROPPED)
    reach = [math.inf, math.inf]
    for side, sign in enumerate((-1, 1)):
        # The bound has one minimum in the order. Rare large losses put it far below that of a
        # normal distribution of the same deviation.
        for factor in 2.0 ** np.arange(4, -21, -1):
            order = factor * math.sqrt(2 * needed) / deviation
            terms = logs + sign * order * (places - mean)
            log_moment = terms.max() + math.log(np.exp(terms - terms.max()).sum())
            bound = (count * log_moment + needed) / order
            if bound > reach[side]:
                break
            reach[side] = bound
    low = max(0, math.floor(count * mean - reach[0]))
    return low, min((len(pmf) - 1) * count, math.ceil(count * mean + reach[1]))


def _fast(length: int) -> int:
    return int(next_fast_len(length, real=True) or length)


class IntervalMasses(NamedTuple):
    """Probabilities, under both distributions, of losses between neighbouring grid points."""

    low: int
    upper: np.ndarray
    lower: np.ndarray
    below: tuple[float, ...]
    above: tuple[float, ...]

    def flipped(self) -> "IntervalMasses":
        """Returns the masses with the two distributions exchanged: every loss changes its sign."""
        upper, lower = self.lower[::-1], self.upper[::-1]
        return IntervalMasses(
            -(self.low + len(upper)), upper, lower, self.above[::-1], self.below[::-1]
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
    by h: what the profile loses is of order h^2. ``point`` is the inverse of ``loss``; ``upper``
    and ``lower`` are weights and means of the normal mixtures in its numerator and denominator,
    ``mu`` the largest mean; ``positive`` leaves out losses below 0.
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
