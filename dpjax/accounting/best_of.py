"""The best of a random number of trainings: its privacy profile and Renyi divergence.

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
import math
from collections.abc import Callable

import numpy as np
from scipy import special

from dpjax.accounting.trials import NumberOfTrials

# Cells of u, evenly spread in the normal quantile of u; beyond it, one cell at either end.
_CELLS, _FARTHEST = 8_000, 5.5
# Epsilons at which the profile of one training bounds v: 0, and these on either side.
_EPSILONS = np.geomspace(1e-5, 60.0, 500)
# What one value of a profile, from 0 to 1, may lack by rounding.
_ROUNDING = 1e-14
# Profiles are read up to here, where e^epsilon is still a number; they fall.
_LARGEST_EPSILON = 700.0


@dataclasses.dataclass(frozen=True)
class BestOf:
    """What the best of K trainings spends; made by ``of``.

    Args:
      training: the privacy profile h of one training, for either order of the neighbours: an array
        of epsilons, at least 0, to deltas.
      upper: f'(u) at the upper end of each cell of u.
      lower: f'(w(u)) at its lower end.
      heights: A_k of each corner of g.
      shifts: log(B_k / A_k).

    Reference: Papernot and Steinke (2022), lemma 7; Koskela, Redberg and Wang (2024), who bound the
      profile by that of one training at one shift.
    """

    training: Callable[[np.ndarray], np.ndarray]
    upper: np.ndarray
    lower: np.ndarray
    heights: np.ndarray
    shifts: np.ndarray

    @classmethod
    def of(cls, number: NumberOfTrials, training: Callable[[np.ndarray], np.ndarray]) -> "BestOf":
        """Returns the bounds for a distribution of K and the profile of one training.

        >>> best = BestOf.of(NumberOfTrials(10, 40), lambda epsilons: np.zeros(epsilons.shape))
        >>> print(best.delta(np.array([0.1])).round(9))
        [0.]
        """
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
            crossed = (intercept - last) * (its_fall - earlier) >= (last - before) * (
                fall - its_fall
            )
            if not crossed:
                break
            lines.pop()
        if intercept > lines[-1][0]:
            lines.append((intercept, fall))
    return np.array(lines).T
