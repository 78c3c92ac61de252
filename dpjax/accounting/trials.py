"""``NumberOfTrials``: how many trainings a private random search makes, drawn and kept secret."""

import dataclasses
import functools
import math

import numpy as np
from scipy import optimize, special

from dpjax import _validate

BITS = 32
"""Probabilities are multiples of 2^-32, so that one random word draws them exactly."""
_MOST = 10_000
"""The largest cap: all of it is always run."""
_STEEPEST = 60.0  # of a tilt in logarithms: beyond it every mean that float64 tells apart is met


@dataclasses.dataclass(frozen=True)
class NumberOfTrials:
    """The distribution of the number K of trainings, on 1 .. ``cap``.

    The probability of k is in proportion to r^k Gamma(k + shape) / k!, a truncated negative
    binomial: ``shape=1`` is the geometric distribution, 0 the logarithmic one. In proportion to
    r^k / k! it is Poisson's (``shape=math.inf``). The number r is the one of the declared mean. K
    is never 0, and never above the cap: what is accounted is this distribution, not the one without
    a cap.

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
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "cap", cap)
        object.__setattr__(self, "shape", float(shape))
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
        """Returns f'(x) of the probability generating function f(x) = E[x^K].

        Args:
          x: from 0 to 1.

        >>> print(NumberOfTrials(2.0, 3).derivative(np.array([0.0, 1.0])).round(6))
        [0.333333 2.      ]
        """
        coefficients = self.probabilities * np.arange(1, self.cap + 1)
        return np.polyval(coefficients[::-1], x)


def default_cap(mean: float) -> int:
    """Returns the cap of a search whose caller names none: four times the expected number.

    At that cap the geometric distribution costs 1 % more noise than without one, for a third of the
    trainings that a cap with a tail of 1e-8 takes.

    >>> default_cap(10)
    40
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
