"""Discretised privacy loss distributions of one sampled release or selection, rounded up.

Every function takes ``mu``, one over the noise multiplier of the pair (for a selection, the range
of its log-ratios), and ``gap``, the distance of the grid points.
"""

import functools
import math
from collections.abc import Callable

import numpy as np
from scipy import optimize, special

from dpjax.accounting.pld import (
    REACH,
    IntervalMasses,
    PrivacyLossDistribution,
    connect_dots,
    discretize,
)

# Newton's method ends where a loss is met up to this, or it is lost in rounding.
_EXCESS, _ITERATIONS = 1e-13, 200
# Grid on which the spread of an unknown loss is measured, by which the grid of its sum is chosen.
_COARSE = 2.0**-8


def gaussian_log_delta(stddev: float, epsilon: float) -> float:
    """Returns the logarithm of the delta of Gaussian noise, in units of the sensitivity.

    Reference: Balle and Wang, "Improving the Gaussian mechanism" (2018), theorem 8.
    """
    middle = epsilon * stddev + 1 / (2 * stddev)
    above = special.log_ndtr(1 / stddev - middle)
    below = epsilon + special.log_ndtr(-middle)
    # Deltas too small to represent have the logarithm -inf.
    with np.errstate(divide="ignore"):
        return float(above + np.log1p(-np.exp(below - above))) if below <= above else -math.inf


def gaussian_epsilon(stddev: float, delta: float) -> float:
    """Returns the epsilon of such noise, rounded up: the same as that of ``dp_accounting``."""
    if delta == 0:
        return math.inf
    low, high, log = 0.0, 1.0, math.log(delta)
    if gaussian_log_delta(stddev, 0.0) < log:
        return 0.0
    while gaussian_log_delta(stddev, high) > log:
        low, high = high, 10 * high
    over = optimize.brentq(lambda e: gaussian_log_delta(stddev, e) - log, low, high, xtol=1e-12)
    # It stops within 1e-12 on either side; the sum errs on the safe one.
    return float(over) + 2e-12  # pyright: ignore[reportArgumentType]


def gaussian(mu: float, gap: float) -> PrivacyLossDistribution:
    """Returns the loss of N(mu, 1) against N(0, 1), the same in both directions."""
    return connect_dots(_removal(1.0, mu, gap), gap)


def poisson(
    probability: float, mu: float, gap: float
) -> tuple[PrivacyLossDistribution, PrivacyLossDistribution]:
    """Returns the losses of removing and of adding a record that is sampled with ``probability``.

    (1 - q) N(0, 1) + q N(mu, 1) against N(0, 1), and the other way round. Between two data sets
    the direction is the same at every step, so each is composed with itself.
    """
    intervals = _removal(probability, mu, gap)
    return connect_dots(intervals, gap), connect_dots(intervals.flipped(), gap)


def anchored(
    probability: float, mu: float, undrawn_shift: float, gap: float
) -> tuple[PrivacyLossDistribution, PrivacyLossDistribution]:
    """Returns the losses of a record that shifts every release, and shifts it more when drawn.

    (1 - q) N(u mu, 1) + q N(mu, 1) against N(0, 1), and the other way round, each composed with
    itself as in ``poisson``. For vectors the pair dominates whatever the directions of the two
    moves: the likelihood ratio is largest in convex order where they are parallel.

    The shift u by a record that is not drawn, over ``mu``, is from 0 to 1.
    """
    if undrawn_shift == 0:
        return poisson(probability, mu, gap)
    q, small = probability, undrawn_shift * mu

    def parts(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.log1p(-q) + small * (x - small / 2), np.log(q) + mu * (x - mu / 2)

    def point(losses: np.ndarray) -> np.ndarray:
        undrawn, drawn = parts(np.zeros(()))
        # Each part alone is below the loss, so the point is left of both of theirs; from the right
        # Newton's method descends on a convex function.
        x = np.minimum((losses - undrawn) / small, (losses - drawn) / mu)
        for _ in range(_ITERATIONS):
            undrawn, drawn = parts(x)
            total = np.logaddexp(undrawn, drawn)
            # From the right the loss decreases to its target; rounding may take it below, which
            # counts as met.
            excess = np.maximum(total - losses, 0)
            if np.all(excess <= _EXCESS * (1 + np.abs(losses))):
                break
            # The slope of the log of a mixture: the slopes of its parts, weighted by their shares
            # of the density.
            x = x - excess / (small * np.exp(undrawn - total) + mu * np.exp(drawn - total))
        return x

    upper = [(1 - q, small), (q, mu)]
    loss = functools.partial(_mixture_loss, q, mu, shift=undrawn_shift)
    intervals = discretize(loss, point, upper, [(1.0, 0.0)], mu, gap)
    return connect_dots(intervals, gap), connect_dots(intervals.flipped(), gap)


def poisson_swap(probability: float, mu: float, gap: float) -> PrivacyLossDistribution:
    """Returns the loss of replacing a record that is sampled with ``probability``.

    (1 - q) N(0, 1) + q N(mu, 1) against (1 - q) N(0, 1) + q N(-mu, 1), with mu the bound on *one*
    record over the standard deviation; the same in both directions. That opposite records of full
    norm are the worst pair is what dp_accounting assumes too; it is proved for parallel ones.
    """
    q = probability
    # log(a) of e^loss = (a + e^(mu x)) / (a + e^(-mu x)), which sinh inverts.
    log_a = np.log1p(-q) - np.log(q) + mu**2 / 2

    def point(loss: np.ndarray) -> np.ndarray:
        size = np.abs(loss)
        with np.errstate(divide="ignore"):
            # log sinh(size / 2) without overflow; -inf at a loss of 0, whose point is 0.
            log_sinh = log_a + size / 2 + np.log(-np.expm1(-size)) - np.log(2)
        return (loss / 2 + np.sign(loss) * _asinh_exp(log_sinh)) / mu

    def loss(x: np.ndarray) -> np.ndarray:
        return _mixture_loss(q, mu, x) - _mixture_loss(q, mu, -x)

    intervals = discretize(loss, point, [(1 - q, 0.0), (q, mu)], [(1 - q, 0.0), (q, -mu)], mu, gap)
    return connect_dots(intervals, gap)


def subset_swap(fraction: float, mu: float, gap: float) -> PrivacyLossDistribution:
    """Returns the loss of replacing a record where each batch is a uniformly random subset.

    The symmetric profile h(a) = H_a((1 - q) N(0, 1) + q N(mu, 1) || N(0, 1)) for a >= 1 and
    h(a) = 1 - a + a h(1/a) below, with mu the bound on a *difference* of two records, 2 C, over the
    standard deviation. The direction may change from step to step, which the symmetry allows for.

    Reference: Zhu, Dong and Wang, "Optimal accounting of differential privacy via characteristic
      function" (2022), theorem 11.
    """
    # Losses above 0; those below mirror them, with the two distributions exchanged.
    half = _removal(fraction, mu, gap, positive=True)
    other = half.flipped()
    upper, lower = np.append(other.upper, half.upper), np.append(other.lower, half.lower)
    both = IntervalMasses(other.low, upper, lower, other.below, half.above)
    # The symmetric profile has a kink at a = 1: the remaining mass is an atom at loss 0.
    atom = 1 - both.upper.sum() - both.below[0] - both.above[0]
    return connect_dots(both, gap, atom=max(atom, 0.0))


def selection(pure_epsilon: float, gap: float) -> PrivacyLossDistribution:
    """Returns the loss of an exponential mechanism, the same in both directions.

    The log-ratios of its outcomes lie within some [t - r, t], r the pure epsilon, 0 <= t <= r. So
    for one t its profile is at most that of losses t and t - r alone, (1 - e^(t - r))
    (1 - e^(e - t)) / (1 - e^-r), which t = (e + r) / 2 maximises. A profile is bounded at every e
    at once by

      delta(e) = (1 - e^((e - r) / 2))^2 / (1 - e^-r) for |e| <= r.

    It is convex in e^e, hence itself that of a pair, which dominates every such mechanism: also
    where t is chosen after seeing what was released before. That pair's losses have no atoms:
    P(loss > e) = (1 - e^((e - r) / 2)) / (1 - e^-r), and 1 - P(loss > -e) under the other one.

    Reference: Dong, Durfee and Rogers, "Optimal differential privacy composition for exponential
      mechanisms" (2020), lemma 3.2 for one t; Zhu, Dong and Wang (2022), for the pair.
    """
    high = int(np.ceil(pure_epsilon / gap))
    edges = np.clip(np.arange(-high, high + 1) * gap, -pure_epsilon, pure_epsilon)
    # Masses of intervals by differences that keep their digits.
    widths = -np.expm1(-np.diff(edges) / 2)
    upper = np.exp((edges[1:] - pure_epsilon) / 2) * widths / -np.expm1(-pure_epsilon)
    lower = np.exp((-edges[:-1] - pure_epsilon) / 2) * widths / -np.expm1(-pure_epsilon)
    return connect_dots(IntervalMasses(-high, upper, lower, (0.0, 0.0), (0.0, 0.0)), gap)


def deviation_and_span(kind: Callable, *numbers: float) -> tuple[float, float]:
    """Returns the standard deviation of a loss and the width of its range.

    ``kind`` is a function above, or one like them from outside; ``numbers`` lack the gap alone.
    """
    # In the absence of the record; in its presence the deviation is larger.
    if kind is selection:
        # The deviation of a uniform loss on [-r, r], which is close enough to choose a grid.
        return numbers[0] / float(np.sqrt(3)), 2 * numbers[0]
    if kind not in (gaussian, poisson, anchored, poisson_swap, subset_swap):
        single = kind(*numbers, _COARSE)
        single = single if isinstance(single, PrivacyLossDistribution) else single[0]
        losses = single.gap * (single.low + np.arange(len(single.pmf)))
        weight = single.pmf / single.pmf.sum()
        deviation = float(np.sqrt(weight @ (losses - weight @ losses) ** 2))
        return deviation, single.gap * len(single.pmf)
    q, mu, shift = (1.0, *numbers, 0.0) if kind is gaussian else (*numbers, 0.0)[:3]
    x = np.linspace(-REACH, REACH, 2001)
    weight = np.exp(-(x**2) / 2)
    weight /= weight.sum()
    swap = kind is poisson_swap
    ends = np.array([-REACH - (mu if swap else 0), mu + REACH])
    loss, (first, last) = (
        _mixture_loss(q, mu, at, shift) - (_mixture_loss(q, mu, -at) if swap else 0)
        for at in (x, ends)
    )
    mean = weight @ loss
    return float(np.sqrt(weight @ (loss - mean) ** 2)), float(last - first)


def _removal(q: float, mu: float, gap: float, positive: bool = False) -> IntervalMasses:
    def point(loss: np.ndarray) -> np.ndarray:
        # log((e^loss - 1 + q) / q), without overflow; losses below log(1 - q) are never taken.
        with np.errstate(divide="ignore", invalid="ignore"):
            inside = np.where(
                loss > 0,
                loss + np.log1p(-(1 - q) * np.exp(-np.abs(loss))),
                np.log(np.maximum(np.expm1(np.minimum(loss, 0)) + q, 0)),
            )
        return (inside - np.log(q)) / mu + mu / 2

    loss = functools.partial(_mixture_loss, q, mu)
    return discretize(loss, point, [(1 - q, 0.0), (q, mu)], [(1.0, 0.0)], mu, gap, positive)


def _mixture_loss(q: float, mu: float, x: np.ndarray, shift: float = 0.0) -> np.ndarray:
    """The log of ((1 - q) N(u mu, 1) + q N(mu, 1)) / N(0, 1) at x."""
    shifted = mu * (x - mu / 2)
    if q == 1:
        return shifted
    return np.logaddexp(np.log1p(-q) + shift * mu * (x - shift * mu / 2), np.log(q) + shifted)


def _asinh_exp(log_value: np.ndarray) -> np.ndarray:
    """The inverse hyperbolic sine of e^log_value, without overflow."""
    large = np.maximum(log_value, 0)
    return np.where(
        log_value > 0,
        large + np.log1p(np.sqrt(1 + np.exp(-2 * large))),
        np.arcsinh(np.exp(np.minimum(log_value, 0))),
    )
