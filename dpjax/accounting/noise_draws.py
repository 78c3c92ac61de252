"""What noise drawn by integers adds to epsilon and delta, beside exact Gaussian noise.

Each noisy number lies in a cell of a public grid. Given what was released before, the probability
of a cell is the Gaussian's to a factor of e^eta, up to 9.945 standard deviations from the exact
number; what lies beyond has probability tau. Let P be the law of N numbers with exact noise, Q that
of those drawn, A the logarithm of Q over P, and mark by ' what is of a neighbour. Each number adds
at most eta to |A|, and at most eta^2 in the mean, under P and Q. So by Azuma's inequality, with
s = N eta^2 + eta sqrt(2 N log(1/beta)), A > s, and likewise A < -s, has probability beta at most,
but for tails. Let T' be the event that a number lies beyond 9.945 standard deviations from that of
the neighbour. If exact noise is (epsilon, delta)-private, then for all events E

  Q(E) <= e^s P(E) + beta + N tau,         P(E) <= P(E without T') + P(T'),
  P(E without T') <= e^epsilon P'(E without T') + delta,
  P'(E without T') <= e^s Q'(E) + beta,    P(T') <= N tau e^(10.05 d),

where a record moves no number by more than d standard deviations: a tail falls by a factor of
e^10.05 a standard deviation at most. Of noise multiplier m, d <= 2 / m, as two records may differ.
Instead, P'(E) <= e^s Q'(E) + beta + N tau, so that e^(10.05 d) may be e^epsilon. In all

  Q(E) <= e^(epsilon + 2 s) Q'(E)
          + e^s (delta + (1 + e^epsilon) beta + (1 + min(e^epsilon, e^(20.1 / m))) N tau).

Where batches, or all trainings of a search but one, stay hidden, N counts their numbers too, and
leaving them out is post-processing. For noise that is correlated between answers it is assumed that
independent draws this exact make sums as exact. The tilt of objective perturbation lies in no cell;
that it is as exact is assumed too.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

RATIO = 2.0**-39
"""eta: a draw is exact to 2^-50, which moves the ends of a cell, 2^-9 wide or wider, so far out."""
NUMBERS = 2**24
"""Numbers of noise in one release, where nobody says how many."""
TAIL = 2.0**-75
"""tau."""
# beta: it is nothing beside the tails, which have 2^-75 each.
LOG_BETA = 100 * math.log(2)
_REACH = 20.1
# Part of delta that is set aside first, which is enough but for many numbers or a large epsilon.
_SET_ASIDE = 2.0**-36
_LARGEST_EPSILON = 700.0

Numbers = Sequence[tuple[int, float]]
"""Of each kind of release: how many numbers of noise, and the noise multiplier."""


class Charge(NamedTuple):
    """What N numbers cost, but for tails; made by ``charge``."""

    epsilon: float
    """2 s."""
    shrunk: float
    """e^-s: what is left of delta."""


def charge(draws: int) -> Charge:
    """Returns what ``draws`` numbers of noise cost at most, but for tails."""
    s = draws * RATIO**2 + RATIO * math.sqrt(2 * draws * LOG_BETA)
    return Charge(2 * s, math.exp(-s))


def tails(numbers: Numbers, epsilon: float) -> float:
    """Returns how many tails delta pays for at ``epsilon``; each is of probability ``TAIL``."""
    most = min(epsilon, _LARGEST_EPSILON)
    return math.fsum(n * (1 + math.exp(min(most, _REACH / noise))) for n, noise in numbers)


def _failed(numbers: Numbers, epsilon: float) -> float:
    """What delta pays beside that of exact noise, before e^s."""
    beta = (1 + math.exp(min(epsilon, _LARGEST_EPSILON))) * math.exp(-LOG_BETA)
    return beta + TAIL * tails(numbers, epsilon)


def charged_epsilon(exact: Callable[[float], float], numbers: Numbers, delta: float) -> float:
    """Returns the epsilon at ``delta``, given that of exact noise as a function of delta.

    Infinite where the charge leaves nothing of delta.
    """
    if not numbers:
        return exact(delta)
    cost, aside = charge(sum(n for n, _ in numbers)), _SET_ASIDE * delta
    # Setting more aside raises epsilon, and so the need: increase until both agree.
    while aside < delta / 2:
        spent = exact(cost.shrunk * (delta - aside)) + cost.epsilon
        # Of the epsilon with its charge, which is a little more than the proof asks for.
        needed = _failed(numbers, spent) / cost.shrunk
        if needed <= aside:
            return spent
        aside = 2 * needed
    return math.inf


def charged_deltas(
    exact: Callable[[np.ndarray], np.ndarray], numbers: Numbers, epsilons: np.ndarray
) -> np.ndarray:
    """Returns the deltas at ``epsilons``, given those of exact noise as a function of epsilons."""
    if not numbers:
        return exact(epsilons)
    cost = charge(sum(n for n, _ in numbers))
    inner = np.asarray(epsilons, np.float64) - cost.epsilon
    # Below 0, P - e^epsilon P' is P - P' and a part of P'.
    ideal = exact(np.maximum(inner, 0.0)) - np.expm1(np.minimum(inner, 0.0))
    failed = [_failed(numbers, epsilon) for epsilon in np.ravel(epsilons)]
    return np.minimum((ideal + np.reshape(failed, np.shape(ideal))) / cost.shrunk, 1.0)
