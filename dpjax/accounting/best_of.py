"""The best of a random number of trainings: that number, its privacy profile and Renyi divergence.

One training is a mechanism Q: it draws a setting, trains, and releases all of the training with a
score. The search draws K, makes K independent trainings and releases the one with the largest
score. Let f(x) = E[x^K], and let u = Q(score below that of y), ties broken by a coin of their own.
The search releases y with density f'(u) Q(dy): K choices of the winner, the others below
(Papernot and Steinke 2022, lemma 7). For a neighbour it is f'(v) Q'(dy), with v the probability of
the same event under Q'. Nothing else is known of u and v than that Q is private: with h(e) the
privacy profile of one training, sup over events S of Q(S) - e^e Q'(S) <= h(e) for all real e, and
so v >= w(u) = max over e of e^-e (u - h(e)).

*Privacy profile.* For a = e^epsilon

  sup_S A(S) - a A'(S) = E_Q[(f'(u) - a f'(v) r)_+] <= E_Q[g(a r)],   r = dQ'/dQ,
  g(t) = max over u of (f'(u) - f'(w(u)) t)_+,

since f' does not fall. As a maximum of lines, g is convex, falls, and ends at 0. Over a grid of u,
with f' taken at the upper and w at the lower end of each cell, it has corners: g(t) = sum over k of
(A_k - B_k t)_+, whose A_k and B_k are at least 0, and E_Q[(A - B a r)_+] = A sup_S(Q(S) - a (B/A)
Q'(S)). So the search has the profile sum over k of A_k h(epsilon + log(B_k / A_k)).

*Renyi divergence.* E_Q[(f'(u))^l (f'(v) r)^(1-l)] is at most max over u of f'(u)^l f'(w(u))^(1-l)
times that of one training, so that one adds the logarithm of the maximum over (l - 1).

K may have any distribution on 1, 2, ...: a cap is part of f, and nothing is charged for it. The
trainings may differ in all that is public if h is the largest of their profiles, because the
profile of a mixture whose component is released is at most that. The theorems of Papernot and
Steinke follow from the same lemma by what Renyi divergences tell of (u, v), which is less: at
epsilon 1 and 10 expected trainings they take 2.2 times the noise of one training, this 1.5.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np
from scipy import optimize, special

from dpjax import _validate

BITS = 32
"""Probabilities are multiples of 2^-32, so that one random word draws them exactly."""
_MOST = 10_000
"""The largest cap: all of it is always run."""
_STEEPEST = 60.0  # of a tilt in logarithms: beyond it every mean that float64 tells apart is met
# Cells of u, evenly spread in the normal quantile of u; beyond it, one cell at either end.
_CELLS, _FARTHEST = 8_000, 5.5
# Epsilons at which the profile of one training bounds v: 0, and these on either side.
_EPSILONS = np.geomspace(1e-5, 60.0, 500)
# What one value of a profile, from 0 to 1, may lack by rounding.
_ROUNDING = 1e-14
# Profiles are read up to here, where e^epsilon is still a number; they fall.
_LARGEST_EPSILON = 700.0


@dataclasses.dataclass(frozen=True)
class NumberOfTrials:
    """The distribution of the number K of trainings, on 1 .. ``cap``.

    The probability of k is in proportion to r^k Gamma(k + shape) / k!, a truncated negative
    binomial: ``shape=1`` is the geometric distribution, 0 the logarithmic one. In proportion to
    r^k / k! it is Poisson's (``shape=math.inf``). The number r is the one of the declared mean. K
    is never 0, and never above the cap: what is accounted is this distribution, with its cap.

    Args:
      mean: expected number of trainings, above 1; ``expected`` is the one of what is drawn.
      cap: the largest number; so many are always run, so that time and memory do not tell K.
      shape: eta of the negative binomial, from 0, or infinity. Small ones cost less privacy for the
        same mean and make one training more often.

    Raises:
      ValueError: for a number out of range, or a cap that the mean is too close to.

    Privacy: a distribution, not a draw; it is public.

    >>> number = NumberOfTrials(mean=2.0, cap=3)
    >>> print(number.probabilities.round(3))
    [0.333 0.333 0.333]
    """

    mean: float
    cap: int
    shape: float = 1.0

    def __post_init__(self):
        mean = _validate.positive("trials", self.mean)
        cap = _validate.positive_int("cap", self.cap)
        shape = self.shape
        if shape != math.inf:
            shape = _validate.non_negative("shape", shape)
        if not 1 < mean < cap <= _MOST:
            raise ValueError(
                f"trials must be above 1 and below the cap, and cap at most {_MOST:,}, got "
                f"trials={mean:g} and cap={cap}."
            )
        for name, value in (("mean", mean), ("cap", cap), ("shape", float(shape))):
            object.__setattr__(self, name, value)
        if shape != math.inf and mean > (largest := _mean_of(_log_weights(cap, shape))):
            raise ValueError(
                f"trials={mean:g} is too close to cap={cap}: a truncated negative binomial of "
                f"shape {shape:g} has mean {largest:.4g} there at most. Raise the cap, such as to "
                f"{2 * cap}."
            )

    @property
    def weights(self) -> np.ndarray:
        """The probabilities of 1 .. ``cap`` times 2^32: int64 (cap,), each at least 1."""
        return _weights(self)

    @property
    def probabilities(self) -> np.ndarray:
        """Float64 (cap,), exact."""
        return self.weights / 2.0**BITS

    @property
    def expected(self) -> float:
        """The mean of what is drawn: rounding each weight up to 1 adds up over a large cap."""
        return float(self.weights @ np.arange(1, self.cap + 1)) / 2.0**BITS

    @property
    def ratio(self) -> float:
        """The number r; 1 - r is the gamma of Papernot and Steinke."""
        return math.exp(_tilt(self))

    @property
    def words(self) -> str:
        """The distribution in words."""
        kinds = {1.0: "geometric", 0.0: "logarithmic", math.inf: "Poisson"}
        kind = kinds.get(self.shape, f"negative binomial of shape {self.shape:g}")
        return f"{kind} with mean {self.expected:g}, conditioned on 1 to {self.cap:,}"

    def derivative(self, x: np.ndarray) -> np.ndarray:
        """Returns f'(x) of the probability generating function f(x) = E[x^K], x from 0 to 1."""
        return np.polyval((self.probabilities * np.arange(1, self.cap + 1))[::-1], x)


def default_cap(mean: float) -> int:
    """Returns the cap of a search whose caller names none: four times the expected number.

    At that cap the geometric distribution costs 1 % more noise than without one, for a third of the
    trainings that a cap with a tail of 1e-8 takes.
    """
    return math.ceil(4 * mean)


def _log_weights(cap: int, shape: float) -> np.ndarray:
    k = np.arange(1, cap + 1, dtype=np.float64)
    if shape == math.inf:
        return -special.gammaln(k + 1)
    # Gamma(k) / k! = 1 / k.
    if shape == 0:
        return -np.log(k)
    return special.gammaln(k + shape) - special.gammaln(k + 1)


def _normalised(logs: np.ndarray) -> np.ndarray:
    return np.exp(logs - special.logsumexp(logs))


def _mean_of(logs: np.ndarray) -> float:
    return float(_normalised(logs) @ np.arange(1, len(logs) + 1))


@functools.lru_cache(maxsize=64)
def _tilt(number: NumberOfTrials) -> float:
    """The logarithm of r, with which the mean grows."""
    logs, k = _log_weights(number.cap, number.shape), np.arange(1, number.cap + 1)

    def over(tilt: float) -> float:
        return _mean_of(logs + tilt * k) - number.mean

    # A negative binomial has a ratio of 1 at most; a Poisson distribution may have any.
    highest = _STEEPEST if number.shape == math.inf else 0.0
    if over(highest) <= 0:  # the uniform distribution, but for rounding
        return highest
    return float(optimize.brentq(over, -_STEEPEST, highest, xtol=1e-13))  # pyright: ignore


@functools.lru_cache(maxsize=64)
def _weights(number: NumberOfTrials) -> np.ndarray:
    logs = _log_weights(number.cap, number.shape)
    exact = _normalised(logs + _tilt(number) * np.arange(1, number.cap + 1)) * 2.0**BITS
    weights = np.maximum(np.floor(exact), 1).astype(np.int64)
    # The largest weight absorbs the rounding, so that the sum is exactly 2^32.
    weights[np.argmax(weights)] += 2**BITS - weights.sum()
    # The cache returns this very array to all callers.
    weights.flags.writeable = False
    return weights


@dataclasses.dataclass(frozen=True)
class BestOf:
    """What the best of K trainings spends; made by ``of``.

    Reference: Papernot and Steinke (2022), lemma 7; Koskela, Redberg and Wang (2024), who bound the
      profile by that of one training at one shift.
    """

    # The privacy profile h of one training, for either order of the neighbours: an array of
    # epsilons, at least 0, to deltas.
    training: Callable[[np.ndarray], np.ndarray]
    upper: np.ndarray  # f'(u) at the upper end of each cell of u
    lower: np.ndarray  # f'(w(u)) at its lower end
    heights: np.ndarray  # A_k of each corner of g
    shifts: np.ndarray  # log(B_k / A_k)

    @classmethod
    def of(cls, number: NumberOfTrials, training: Callable[[np.ndarray], np.ndarray]) -> "BestOf":
        """Returns the bounds for a distribution of K and the profile of one training."""
        quantiles = np.linspace(-_FARTHEST, _FARTHEST, _CELLS + 1)
        u = np.concatenate([[0.0], special.ndtr(quantiles), [1.0]])
        # 1 - u from the other tail, which keeps its digits where u is close to 1.
        beyond = np.concatenate([[1.0], special.ndtr(-quantiles), [0.0]])
        v = _least(training, u, beyond)
        upper, lower = number.derivative(u[1:]), number.derivative(v[:-1])
        heights, falls = np.diff(_corners(upper, lower), axis=1)
        with np.errstate(divide="ignore"):
            return cls(training, upper, lower, heights, np.log(falls / heights))

    def delta(self, epsilons: np.ndarray) -> np.ndarray:
        """Returns the privacy profile at epsilons (m,), which may be below 0."""
        at = np.asarray(epsilons, np.float64)[:, None] + self.shifts
        return _signed(self.training, at) @ self.heights

    def renyi_excess(self, orders: np.ndarray) -> np.ndarray:
        """Returns by how much the Renyi divergence is above that of one training, at most."""
        with np.errstate(divide="ignore"):
            upper, lower = np.log(self.upper), np.log(self.lower)
        at = np.asarray(orders, np.float64)[:, None]
        return np.max(at * upper - (at - 1) * lower, axis=1) / (at[:, 0] - 1)


def _least(
    training: Callable[[np.ndarray], np.ndarray], u: np.ndarray, beyond: np.ndarray
) -> np.ndarray:
    """The least probability under Q' of an event of probability u under Q; ``beyond`` is 1 - u."""
    bounds = _signed(training, np.concatenate([[0.0], _EPSILONS]))
    least = u - bounds[0]
    for epsilon, delta in zip(_EPSILONS, bounds[1:], strict=True):
        # Of the event, and of its complement: 1 - v <= e^e (1 - u) + h(e).
        least = np.maximum(least, math.exp(-epsilon) * (u - delta))
        least = np.maximum(least, 1 - delta - math.exp(epsilon) * beyond)
    return np.clip(least - _ROUNDING, 0.0, 1.0)


def _signed(training: Callable[[np.ndarray], np.ndarray], epsilons: np.ndarray) -> np.ndarray:
    """sup_S Q(S) - e^e Q'(S) of one training at any real e, for either order of the neighbours."""
    sizes = np.minimum(np.abs(epsilons), _LARGEST_EPSILON)
    deltas = np.minimum(training(sizes.ravel()) + _ROUNDING, 1.0).reshape(sizes.shape)
    # Below 0, from the other order: 1 - e^e + e^e h(-e).
    return np.where(epsilons < 0, -np.expm1(-sizes) + np.exp(-sizes) * deltas, deltas)


def _corners(upper: np.ndarray, lower: np.ndarray) -> np.ndarray:
    """The lines (intercept, fall) that make up the largest of all, the flattest first: (2, m)."""
    lines = [(0.0, 0.0)]
    # Both grow from cell to cell.
    for intercept, fall in zip(upper.tolist(), lower.tolist(), strict=True):
        while intercept > lines[-1][0] and len(lines) > 1:
            (last, its_fall), (before, earlier) = lines[-1], lines[-2]
            # The last one is largest nowhere if this one meets it after that one did.
            rise, rise_before = intercept - last, last - before
            if rise * (its_fall - earlier) < rise_before * (fall - its_fall):
                break
            lines.pop()
        if intercept > lines[-1][0]:
            lines.append((intercept, fall))
    return np.array(lines).T
