"""Lower bounds on epsilon from the scores of an attacker; NOT PRIVATE, for synthetic records only.

An attacker sees one output, knows that it came from D or from D', and decides for D' if a score
exceeds a threshold. A false positive is D taken for D', a false negative D' taken for D. Any
(epsilon, delta)-private mechanism forces

    1 - false_negative <= e^epsilon false_positive + delta, and the same with the two exchanged,

and a mechanism of trade-off curve f forces false_negative >= f(false_positive).

In all functions ``counts`` are errors at a threshold fixed beforehand, ``delta`` is that of the
claim, and ``level`` the probability, at most, that a bound fails.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy import ndimage, stats

from dpjax import _validate
from dpjax.accounting.claims import Claim
from dpjax.accounting.one_run import LEVEL, largest_scale
from dpjax.auditing.counts import Counts, count_errors, upper_rate

# Constants of the searches for thresholds and scales: they affect power, not validity.
_CANDIDATES = 400
_STEP = 1.1
_WINDOW = 61
# Steps of 2 % make the p-value of a curve at most 2 % too large.
_P_VALUES = np.geomspace(0.98, 1e-12, 1400)


def clopper_pearson_epsilon(counts: Counts, delta: float, level: float = LEVEL) -> np.ndarray:
    """Returns a lower bound on epsilon at ``delta`` that assumes nothing about the mechanism.

    With a and b upper bounds on the two error rates, both at level / 2, epsilon is at least
    log((1 - b - delta) / a) and log((1 - a - delta) / b).

    Reference: Jagielski, Ullman and Oprea (2020), section 3.

    >>> print(clopper_pearson_epsilon(Counts(10, 10_000, 5_000, 10_000), 1e-5).round(2))
    5.26
    """
    # Both directions use the same two bounds, and fail together: the level is not divided again.
    return np.max(_directions(counts, delta, level), axis=0)


def curve_p_value(counts: Counts, claim: Claim, scale: float = 1.0) -> float:
    """Returns a p-value of 'the mechanism keeps to the claimed trade-off curve at this scale'.

    The two counts come from different runs. For true error rates (alpha, beta) the p-values
    P1 = P(Bin(m, alpha) <= false positives) and P2 = P(Bin(n, beta) <= false negatives) are
    independent and no smaller than uniform, so x = P1 P2 is at most t with probability
    t (1 - log t) at most (Fisher). The mechanism keeps to f if beta >= f(alpha); P2 falls with
    beta, so the largest x that the claim allows lies on the curve, and x (1 - log x) there is a
    p-value whatever alpha is. Between grid points x is bounded by monotony: P1 by its value at the
    left end, P2 and f by theirs at the right end.

    Reference: Fisher (1932), Statistical methods for research workers, section 21.1.

    >>> from dpjax.auditing.games import gaussian
    >>> claim = gaussian(noise_multiplier=1.0).claim
    >>> curve_p_value(Counts(3_000, 10_000, 3_000, 10_000), claim) < 0.1
    True
    >>> curve_p_value(Counts(3_085, 10_000, 3_085, 10_000), claim) > 0.5
    True
    """
    left = np.append(1.0, _P_VALUES[:-1])
    alpha = upper_rate(counts.false_positives, counts.negatives, _P_VALUES)
    beta = claim.curve(scale)(alpha)
    right = stats.binom.cdf(counts.false_negatives, counts.positives, np.clip(beta, 0, 1))
    # Past the end of the grid P1, hence the product, is at most its last value.
    product = max(float(np.max(left * right)), float(_P_VALUES[-1]))
    return float(product * (1 - np.log(product)))


def rejects(counts: Counts, claim: Claim, level: float = LEVEL, scale: float = 1.0) -> bool:
    """Returns whether the errors contradict the claimed trade-off curve at ``scale``.

    At scale 1 a sound mechanism is rejected with probability ``level`` at most.
    """
    return curve_p_value(counts, claim, scale) < level


def audited_scale(counts: Counts, claim: Claim, level: float = LEVEL) -> float:
    """Returns the largest noise, relative to the claim, whose trade-off curve is not rejected.

    Curves rise with the noise, so those rejected are all above some scale s. If the mechanism is
    one of the family, at scale t, then except with probability ``level`` its own curve is not among
    them: t <= s, and its epsilon is *at least* that of scale s. That s < 1 refutes the claim does
    not need the mechanism to be of the family.

    Returns:
      From 1/8, rounded up, so that the epsilon errs towards 0; infinity, for an epsilon of 0,
      where not even 1024 times the noise is contradicted.

    Reference: Nasr et al. (2023), Tight auditing of differentially private machine learning.
    """
    return largest_scale(lambda scale: rejects(counts, claim, level, scale))


class Thresholds(NamedTuple):
    """Thresholds for the curve, and for the two directions of the assumption-free bound."""

    curve: float
    directions: tuple[float, float]


def choose_thresholds(
    scores: np.ndarray, other: np.ndarray, claim: Claim, delta: float, level: float = LEVEL
) -> Thresholds:
    """Returns the best thresholds on these runs; errors must be counted on other runs."""
    pooled = np.sort(np.concatenate([scores, other]))
    candidates = pooled[_spread(pooled.size, _CANDIDATES)]
    counts = count_errors(scores, other, candidates)
    # At half the level, as each direction will be tested at a threshold of its own.
    directions = _directions(counts, delta, level / 2)
    false_positive, false_negative = counts.upper_rates(level)
    # The scale at which each candidate's curve would just be rejected, by linear interpolation.
    near = claim.curve()(false_positive) - false_negative
    far = claim.curve(_STEP)(false_positive) - false_negative
    scale = 1 - (_STEP - 1) * near / np.maximum(far - near, 1e-12)
    # Neighbouring thresholds share most of their errors: a moving mean is less noisy. Where some
    # answers are certain the best threshold is their edge, which a mean would miss.
    window = 1 if claim.is_certain else _WINDOW
    best = ndimage.uniform_filter1d(np.clip(scale, 0, 10), window, mode="nearest").argmin()
    return Thresholds(
        float(candidates[best]),
        (float(candidates[directions[0].argmax()]), float(candidates[directions[1].argmax()])),
    )


class Estimate(NamedTuple):
    """Lower bounds on epsilon from an attack."""

    epsilon_clopper_pearson: float
    """Lower bound that assumes nothing."""
    epsilon_curve: float
    """Lower bound within the claimed family of curves."""
    scale: float
    """The noise of ``epsilon_curve``, relative to the claim."""
    counts: Counts
    """Errors at the threshold of the curve."""
    false_positive_rates: np.ndarray
    """Measured, at thresholds all along the scores."""
    false_negative_rates: np.ndarray
    """Measured, at the same thresholds."""


def estimate(
    scores: np.ndarray, other: np.ndarray, claim: Claim, delta: float, level: float = LEVEL
) -> Estimate:
    """Returns lower bounds on epsilon from an attacker's scores.

    The first half of the runs chooses the thresholds, the second counts the errors. Each of the
    two bounds holds with confidence 1 - level; that of Clopper and Pearson divides its level
    between its two thresholds.

    Args:
      scores: of independent runs on D, shape (m,), m at least 2; NaN counts as the largest score.
      other: of independent runs on D', shape (n,), n at least 2.
      claim: the attacked guarantee.
      delta: at which epsilon is bounded.
      level: see above.

    Raises:
      ValueError: for fewer than 2 runs, or a level or delta that is not strictly between 0 and 1.

    Privacy: NOT PRIVATE; run it on synthetic records.

    >>> from dpjax.auditing.games import gaussian
    >>> claim = gaussian(noise_multiplier=1.0).claim
    >>> draws = np.random.default_rng(0).normal(size=(2, 100_000))
    >>> 0.9 < estimate(draws[0], draws[1] + 1, claim, 1e-5).epsilon_curve / 4.377 < 1
    True
    """
    delta = _validate.open_unit("delta", delta)
    # Not dropped: that a run ends in NaN may itself tell D from D'.
    scores, other = (
        np.where(np.isnan(values), np.inf, values)
        for values in (np.asarray(scores), np.asarray(other))
    )
    if min(scores.size, other.size) < 2:
        raise ValueError("an audit needs at least 2 runs on each data set; raise runs.")
    half, other_half = scores.size // 2, other.size // 2
    thresholds = choose_thresholds(scores[:half], other[:other_half], claim, delta, level)
    second_half = scores[half:], other[other_half:]
    assumption_free = [
        clopper_pearson_epsilon(count_errors(*second_half, threshold), delta, level / 2)
        for threshold in thresholds.directions
    ]
    counts = count_errors(*second_half, thresholds.curve)
    scale = audited_scale(counts, claim, level)
    pooled = np.sort(np.concatenate(second_half))
    along = pooled[_spread(pooled.size, 60)]
    return Estimate(
        float(max(assumption_free)),
        0.0 if math.isinf(scale) else claim.epsilon(delta, scale),
        scale,
        counts,
        *count_errors(*second_half, along).rates(),
    )


def _directions(counts: Counts, delta: float, level: float) -> np.ndarray:
    false_positive, false_negative = counts.upper_rates(level)
    with np.errstate(divide="ignore", invalid="ignore"):
        first = np.log((1 - false_negative - delta) / false_positive)
        second = np.log((1 - false_positive - delta) / false_negative)
    # The logarithm of a negative number is NaN: that direction says nothing.
    return np.nan_to_num(np.maximum([first, second], 0), nan=0.0)


def _spread(size: int, count: int) -> np.ndarray:
    # Ranks all along, denser towards the ends, which matter most where nothing is assumed.
    even = np.linspace(0, size - 1, count).astype(int)
    ends = np.geomspace(1, size, count // 3).astype(int) - 1
    return np.unique(np.concatenate([even, ends, size - 1 - ends]))
