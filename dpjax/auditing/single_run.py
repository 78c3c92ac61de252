"""A lower bound on epsilon from one training with canaries; NOT PRIVATE with regard to those.

Each of m canaries is in the data by a fair coin of its own. An attacker sees the output and guesses
r of the coins; C is how many guesses are right. Whoever guesses better than the claim allows
refutes it. The guesses are a function of the scores alone, and r is fixed beforehand.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy import stats

from dpjax import _validate
from dpjax._typing import Array
from dpjax.auditing.claims import Claim
from dpjax.auditing.estimators import LEVEL, largest_scale

# r / m where the attacker may abstain: the best for claims of epsilon 2 to 10 and m = 1,000.
_GUESSED = 5
# Where f(1 - h) is computed; in between h is rounded down, by 0.25 % at most.
_MASSES = np.geomspace(1e-9, 1, 2**13)
_PRECISION = 1e-3


class OneRun(NamedTuple):
    """What one training with canaries says of a claim; all bounds are of the ``delta`` given."""

    epsilon: float
    """Lower bound on epsilon that fails with probability ``level``: the largest of those below."""
    claimed: float
    """The epsilon of the claim at ``delta``."""
    refuted: bool
    """Whether the bound is above the claim."""
    epsilon_any: float
    """Of Steinke, Nasr and Jagielski (2023); it assumes nothing about the mechanism."""
    epsilon_curve: float
    """Of trade-off curves, within the claimed family, see ``curve_bound``."""
    epsilon_independent: float
    """Within the family and for independent noise; 0 where that is not claimed."""
    correct: int
    """Right guesses of all coins."""
    canaries: int
    """m."""
    delta: float
    """At which epsilon is bounded."""
    level: float
    """Probability that any of the bounds fails, at most."""

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

    Each bound fails with probability ``level`` over their number at most, so by the union bound all
    hold together, and so does the largest. The first two guess a fifth of the coins: the tenth with
    the largest scores is taken to be included, that with the least not to be.

    - Any mechanism: theorem 5.2 of Steinke, Nasr and Jagielski, see ``any_bound``.
    - Curves: no member of the claimed family with more noise than that of the bound explains the
      guesses, see ``curve_bound``.
    - Independent canaries: *all* coins are guessed, the larger half of the scores as included. If
      the curve is f, C is stochastically at most Binomial(m, (1 + v) / 2), v = 1 - min(a + f(a))
      the total variation. Proof: what is seen of canary i is z_i, of the coin x_i alone, and the
      z_i are independent given the coins. The output is a function of all z_i and of randomness
      independent of them and the coins. Given the z_i and that randomness, the coins are
      independent, and guess i is right with probability at most max P(x_i | z_i), whatever else
      was seen. These maxima are independent, each of mean (1 + v_i) / 2 with v_i <= v.

    Args:
      scores: (m,), larger where a canary seems to be included; of released values alone.
      included: bool (m,), the coins: fair, independent, and secret to whoever made the scores.
      claim: the attacked guarantee; ``Claim(solution.event)``.
      delta: at which epsilon is bounded, in (0, 1).
      level: probability, at most, that the result is above the true epsilon.
      independent: whether the claim implies the premise of the third bound. It does for canaries
        whose contributions are orthogonal, each drawn by coins of its own or always, in sums with
        spherical Gaussian noise: z_i is the noisy contribution of canary i alone, in all steps, and
        answer t is made of the z_i and the records at parameters that earlier answers determine. A
        refutation then says that the noise is too small, or that it is not independent.

    Raises:
      ValueError: for fewer than 20 canaries, arrays of other shapes, scores that are NaN, or coins
        that are not bool.

    Privacy: the coins are SECRET until the bound is made. Canaries are no one's data, so what is
      returned tells nothing of a record that the scores, made of released values, do not.

    Reference: Steinke, Nasr and Jagielski (2023), Privacy auditing with one (1) training run;
    Mahloujifar, Melis and Chaudhuri (2025), Auditing f-differential privacy in one run.

    >>> from dpjax.auditing.games import gaussian
    >>> claim = gaussian(noise_multiplier=1.0).claim  # epsilon 4.38 at 1e-5
    >>> rng = np.random.default_rng(0)
    >>> coins, noise = rng.random(1000) < 0.5, rng.normal(size=1000)
    >>> honest = one_run(coins + noise, coins, claim, 1e-5, independent=True)
    >>> print(honest)  # doctest: +ELLIPSIS
    epsilon is at least 2.56 at 99.9% confidence, ... claimed are 4.38: not refuted
    >>> one_run(coins + noise / 2, coins, claim, 1e-5, independent=True).refuted
    True
    """
    delta = _validate.open_unit("delta", delta)
    level = _validate.open_unit("level", level)
    scores, included = np.asarray(scores), np.asarray(included)
    if scores.shape != included.shape or scores.ndim != 1 or included.dtype != bool:
        raise ValueError(
            "scores (m,) of numbers and included (m,) of bool are one of each canary, got "
            f"{scores.dtype}{scores.shape} and {included.dtype}{included.shape}."
        )
    if np.isnan(scores).any():
        raise ValueError("scores must not be NaN, which says nothing of a coin: give 0.")
    if (size := scores.size) < 20:
        raise ValueError(f"{size} canaries can refute no claim; take at least 20, better 1,000.")
    share = level / (3 if independent else 2)
    guesses = 2 * max(5, size // (2 * _GUESSED))
    right, half = (_correct(scores, included, r) for r in (guesses, size - size % 2))
    found = {
        "epsilon_any": any_bound(size, guesses, right, delta, share),
        "epsilon_curve": _epsilon(claim, delta, curve_bound(size, guesses, right, claim, share)),
        "epsilon_independent": 0.0,
    }
    if independent:
        scale = independent_bound(size - size % 2, half, claim, share)
        found["epsilon_independent"] = _epsilon(claim, delta, scale)
    claimed, most = claim.epsilon(delta), max(found.values())
    others = {"correct": half, "canaries": size, "delta": delta, "level": level}
    return OneRun(epsilon=most, claimed=claimed, refuted=most > claimed, **found, **others)


def any_bound(canaries: int, guesses: int, correct: int, delta: float, level: float) -> float:
    """Returns a lower bound on epsilon at ``delta``, for any mechanism; it fails at ``level``.

    Where m coins decide and r are guessed, with W ~ Binomial(r, e^epsilon / (1 + e^epsilon)),

        P(C >= c) <= P(W >= c) + 2 m delta max_i P(c > W >= c - i) / i.

    Reference: Steinke, Nasr and Jagielski (2023), theorem 5.2.

    >>> round(any_bound(1000, 200, 190, 1e-5, 0.05), 2)
    2.39
    """
    losses = np.arange(1, correct + 1)

    def rejected(epsilon: float) -> bool:
        law = stats.binom(guesses, 1 / (1 + math.exp(-epsilon)))
        tail = law.sf(correct - 1)
        # P(c > W >= c - i), the numbers just below c.
        below = law.sf(correct - losses - 1) - tail
        leak = 2 * canaries * delta * np.max(below / losses, initial=0.0)
        return bool(tail + leak < level)

    low, high = 0.0, 1.0
    if not rejected(low):
        return 0.0
    while rejected(high):
        low, high = high, 2 * high
    while high > low + _PRECISION:
        middle = (low + high) / 2
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return low


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

    Returns:
      As ``estimators.audited_scale``.

    Reference: Mahloujifar, Melis and Chaudhuri (2025), whose argument this is; the recursion is in
    tails here, so that it is monotone without a further lemma.
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

    The test is of the right guesses among so many, by the third bound of ``one_run``; as
    ``estimators.audited_scale``.
    """

    def rejected(scale: float) -> bool:
        right = (1 + claim.delta(scale)) / 2
        return bool(stats.binom.sf(correct - 1, guesses, right) < level)

    return largest_scale(rejected)


def _correct(scores: np.ndarray, included: np.ndarray, guesses: int) -> int:
    """Right guesses: the larger scores are taken to be included, the smaller ones not to be."""
    order = np.argsort(scores, kind="stable")
    half = guesses // 2
    return int(included[order[-half:]].sum() + (~included[order[:half]]).sum())


def _epsilon(claim: Claim, delta: float, scale: float) -> float:
    return 0.0 if math.isinf(scale) else claim.epsilon(delta, scale)
