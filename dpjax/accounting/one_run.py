"""A lower bound on epsilon from one training with canaries; NOT PRIVATE with regard to those.

Each of m canaries is in the data by a fair coin of its own. An attacker sees the output and guesses
r of the coins; C is how many guesses are right. Whoever guesses better than the claim allows
refutes it. The guesses are a function of the scores alone, and r is fixed beforehand.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from dpjax import _validate
from dpjax._typing import Array
from dpjax.accounting.claims import Claim

LEVEL = 1e-3
"""Probability that a bound fails: 99.9 % confidence."""
LEAST = 20
"""Fewest canaries: fewer can refute next to nothing."""

# r / m where the attacker may abstain: the best for claims of epsilon 2 to 10 and m = 1,000.
_GUESSED = 5
# Where f(1 - h) is computed; in between h is rounded down, by 0.25 % at most.
_MASSES = np.geomspace(1e-9, 1, 2**13)
# Of the searches for a scale: they affect power, not validity.
_SMALLEST, _LARGEST = 0.125, 1024.0
_PRECISION = 3e-4


class OneRun(NamedTuple):
    """What one training with canaries says of a claim; both epsilons are at ``delta``.

    ``epsilon`` is a lower bound within the claimed family of trade-off curves, which fails with
    probability ``level``; the claim is ``refuted`` where the guesses contradict it. Of the coins of
    all ``canaries`` so many ``guesses`` were made, and ``correct`` of them were right.
    """

    epsilon: float
    claimed: float
    refuted: bool
    correct: int
    guesses: int
    canaries: int
    delta: float
    level: float

    def __str__(self) -> str:
        verdict = "refuted" if self.refuted else "not refuted"
        return (
            f"epsilon is at least {self.epsilon:.2f} at {1 - self.level:.1%} confidence, by "
            f"{self.canaries:,} canaries in this run; claimed are {self.claimed:.2f}: {verdict}"
        )


def one_run(
    scores: Array | np.ndarray,
    included: Array | np.ndarray,
    claim: Claim,
    delta: float,
    *,
    level: float = LEVEL,
    independent: bool = False,
) -> OneRun:
    """Returns a lower bound on epsilon from the scores of the canaries of one training.

    By ``curve_bound``, whatever the canaries share, a fifth of the coins are guessed: the tenth
    with the largest scores is taken to be included, that with the least not to be. By
    ``independent_bound``, which is far tighter, all are guessed, half of them each way.

    Args:
      scores: (m,), larger where a canary seems to be included; of released values alone.
      included: bool (m,), the coins: fair, independent, and secret to whoever made the scores.
      claim: the attacked guarantee; ``Claim(solution.event)``.
      delta: at which epsilon is bounded, in (0, 1).
      level: probability, at most, that the result is above the true epsilon.
      independent: whether the claim implies what ``independent_bound`` assumes.

    Raises:
      ValueError: for fewer than 20 canaries, arrays of other shapes, scores that are NaN, or coins
        that are not bool.

    Privacy: the coins are SECRET until the bound is made. Canaries are no one's data, so what is
      returned tells nothing of a record that the scores, made of released values, do not.

    Reference: Steinke, Nasr and Jagielski (2023), Privacy auditing with one (1) training run. Its
    theorem 5.2 is for any mechanism and weaker than ``curve_bound``.

    >>> from dpjax.accounting import Event, Release
    >>> claim = Claim(Event((Release("gaussian", 1, noise_multiplier=1.0),), "zero_out"))
    >>> rng = np.random.default_rng(0)
    >>> coins, noise = rng.random(1000) < 0.5, rng.normal(size=1000)
    >>> print(one_run(coins + noise, coins, claim, 1e-5, independent=True))
    ... # doctest: +ELLIPSIS
    epsilon is at least 2.68 at 99.9% confidence, ... claimed are 4.38: not refuted
    >>> one_run(coins + noise / 2, coins, claim, 1e-5, independent=True).refuted
    True
    """
    delta, level = _validate.open_unit("delta", delta), _validate.open_unit("level", level)
    scores, included = np.asarray(scores), np.asarray(included)
    if scores.shape != included.shape or scores.ndim != 1 or included.dtype != bool:
        raise ValueError(
            "scores (m,) of numbers and included (m,) of bool are one of each canary, got "
            f"{scores.dtype}{scores.shape} and {included.dtype}{included.shape}."
        )
    if np.isnan(scores).any():
        raise ValueError("scores must not be NaN, which says nothing of a coin: give 0.")
    if (size := scores.size) < LEAST:
        raise ValueError(f"{size} canaries can refute no claim: take {LEAST}, better 1,000.")
    half = size // 2 if independent else max(5, size // (2 * _GUESSED))
    correct = int(right_guesses(scores, included, half))
    return of_guesses(correct, 2 * half, size, claim, delta, level, independent)


def right_guesses(scores: Any, included: Any, half: int) -> Any:
    """Returns how many guesses are right, ``half`` of them each way; of NumPy's arrays or JAX's."""
    ranked = included[scores.argsort()]
    return ranked[-half:].sum() + (~ranked[:half]).sum()


@functools.lru_cache(maxsize=64)
def of_guesses(
    correct: int,
    guesses: int,
    canaries: int,
    claim: Claim,
    delta: float,
    level: float = LEVEL,
    independent: bool = False,
) -> OneRun:
    """Returns what ``one_run`` does, of ``right_guesses``; cached, as a curve takes a while."""
    if independent:
        scale = independent_bound(guesses, correct, claim, level)
    else:
        scale = curve_bound(canaries, guesses, correct, claim, level)
    refuted, claimed = scale < 1, claim.epsilon(delta)
    bound = 0.0 if math.isinf(scale) else claim.epsilon(delta, scale)
    # So little noise may have no epsilon that the accountant can resolve: a larger one bounds too.
    while math.isinf(bound) and scale < 1:
        scale = min(1.25 * scale, 1.0)
        bound = claim.epsilon(delta, scale)
    return OneRun(bound, claimed, refuted, correct, guesses, canaries, delta, level)


def curve_bound(canaries: int, guesses: int, correct: int, claim: Claim, level: float) -> float:
    """Returns the largest noise, relative to the claim, that does not explain the guesses.

    If each canary is protected by the symmetric trade-off curve f, a probability P(C >= c) = p
    forces others. Write T_k = P(C >= k) and S_k = sum of T_j over j > k. Let i be any canary, and A
    that guess i is made and right, and C >= k. With coin i turned, the same outputs have guess i
    wrong and C >= k - 1, for one guess less is right: so P(i wrong, C >= k - 1) >= f(1 - P(A)). The
    mean over all canaries and coins, as f is convex, is R >= f(1 - H) with

        H = E[C; C >= k] / m = (k T_k + S_k) / m,
        R = E[r - C; C >= k - 1] / m = ((r - k + 1) T_(k-1) - T_k - S_k) / m.

    So T_(k-1) is at least T_k and (m f(1 - H) + T_k + S_k) / (r - k + 1), and S_(k-1) is T_k + S_k.
    Both increase with T_k and S_k: begun at T_c = p and S_c >= 0, least values go down to T_0.
    Where that is above 1, P(C >= c) is below p.

    Reference: Mahloujifar, Melis and Chaudhuri (2025), Auditing f-differential privacy in one run,
    whose argument this is; in tails the recursion is monotone without a further lemma.
    """

    def rejected(scale: float) -> bool:
        # f(1 - h) rises with h, so that the next point below errs towards no rejection.
        least = np.append(0.0, claim.curve(scale)(1 - _MASSES))
        tail, above = level, 0.0
        for k in range(correct, 0, -1):
            below = np.searchsorted(_MASSES, (k * tail + above) / canaries, side="right")
            forced = canaries * least[below] + tail + above
            tail, above = max(tail, forced / (guesses - k + 1)), above + tail
            if tail > 1:
                return True
        return False

    return largest_scale(rejected)


def independent_bound(guesses: int, correct: int, claim: Claim, level: float) -> float:
    """Returns the largest noise, relative to the claim, that C ~ Binomial does not explain.

    If the curve is f, C is stochastically at most Binomial(r, (1 + v) / 2), v = 1 - min(a + f(a))
    the total variation, provided that

    - what is seen of canary i is z_i, of its coin x_i alone, and the z_i are independent; and
    - the output is a function of all z_i and of randomness independent of them and the coins.

    Proof: given the z_i and that randomness the coins are independent, and guess i is right with
    probability at most max P(x_i | z_i), whatever else was seen. These maxima are independent, each
    of mean (1 + v_i) / 2 with v_i <= v.

    That is so for contributions in coordinates of their own, each drawn by coins of its own or
    always, in sums with spherical Gaussian noise: z_i is the noisy contribution of canary i in all
    steps, and answer t is made of the z_i, and of the records at parameters that earlier answers
    determine. A refutation then says that the noise is too small, or not independent.
    """

    def rejected(scale: float) -> bool:
        return bool(stats.binom.sf(correct - 1, guesses, (1 + claim.delta(scale)) / 2) < level)

    return largest_scale(rejected)


def largest_scale(rejected: Callable[[float], bool]) -> float:
    """Returns the largest scale that is not ``rejected``, from 1/8, rounded up; or infinity."""
    # Curves are ordered by the scale: bracket the largest that is not rejected, then bisect.
    high = 1.0
    while not rejected(high):
        if high >= _LARGEST:
            return math.inf
        high *= 2
    low = high / 2
    while rejected(low):
        if low <= _SMALLEST:
            return _SMALLEST
        high, low = low, low / 2
    while high > low * (1 + _PRECISION):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if rejected(middle) else (middle, high)
    # The end that is rejected: rounded up, so that the epsilon errs towards 0.
    return high
