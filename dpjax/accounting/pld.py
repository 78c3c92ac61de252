"""Discretised privacy loss distributions, their composition by FFT, and their privacy profile."""

import math
from typing import NamedTuple

import numpy as np
from scipy import signal
from scipy.fft import next_fast_len

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
    """Returns the privacy profile of ``loss``.

    >>> half = PrivacyLossDistribution(1.0, -1, np.array([0.25, 0.0, 0.75]), 0.0)
    >>> round(profile(half).epsilon(0.75 * (1 - math.exp(-0.5))), 6)
    0.5
    """
    # Losses below 0 matter to no epsilon; one cell of them is kept as a margin.
    skipped = max(-loss.low - 1, 0)
    pmf = loss.pmf[skipped:][::-1]
    beyond = np.append(0.0, pmf[:-1])
    reached = loss.infinite + np.cumsum(beyond)
    # V_k = sum over j > k of p_j e^(l_k - l_j), by recurrence: no exponential overflows.
    fade = math.exp(-loss.gap)
    shrunk = signal.lfilter([fade], [1.0, -fade], beyond)
    start = (loss.low + skipped) * loss.gap
    return Profile(loss.gap, start, reached[::-1], np.asarray(shrunk)[::-1])


def compose(
    first: PrivacyLossDistribution, second: PrivacyLossDistribution
) -> PrivacyLossDistribution:
    """Returns the loss distribution of two releases together, both on the same grid."""
    length = len(first.pmf) + len(second.pmf) - 1
    size = _fast(length)
    product = np.fft.rfft(first.pmf, size) * np.fft.rfft(second.pmf, size)
    return PrivacyLossDistribution(
        first.gap,
        first.low + second.low,
        np.fft.irfft(product, size)[:length],
        first.infinite + second.infinite,
    )


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
