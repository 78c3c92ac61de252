"""What noise drawn by integers adds to epsilon and delta, beside exact Gaussian noise.

Each noisy number lies in a cell of a public grid. Given what was released before, the probability
of a cell is the Gaussian's to a factor of e^eta, but for noise beyond 9.94 standard deviations, of
probability tau. Let P be the law of N numbers with exact noise, Q that of those drawn, and A the
logarithm of Q over P. Each number adds at most eta to |A|, and in the mean at most eta^2 under Q
and nothing under P. So by Azuma's inequality, with s = N eta^2 + eta sqrt(2 N log(1/beta)),
A > s under Q, and A < -s under P, each has probability at most b = beta + N tau. If exact noise is
(epsilon, delta)-private, then for neighbours, whose laws are marked by ', and all events E

  Q(E) <= e^s P(E) + b <= e^s (e^epsilon P'(E) + delta) + b
       <= e^(epsilon + 2 s) Q'(E) + e^s delta + (1 + e^(epsilon + s)) b.

Where batches, or all trainings of a search but one, stay hidden, N counts their numbers too, and
leaving them out is post-processing. For noise that is correlated between answers it is assumed that
independent draws this exact make sums as exact.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

RATIO = 2.0**-39
"""eta; ``benchmarks/noise_tables.py`` proves it."""
NUMBERS = 2**24
"""Numbers of noise in one release, where nobody says how many."""
_TAIL = 2.0**-75
# beta; at 2^-100 it is nothing beside the tails of as few as 2^-25 of one number.
_LOG_BETA = 100 * math.log(2)
# Part of delta that is set aside first, which is enough but for many numbers or a large epsilon.
_SET_ASIDE = 2.0**-36
_LARGEST_EPSILON = 700.0


class Charge(NamedTuple):
    """What N numbers cost; made by ``charge``."""

    epsilon: float
    """2 s."""
    shrunk: float
    """e^-s: what is left of delta."""
    failed: float
    """b: of delta, (1 + e^epsilon) times this."""


def charge(draws: int) -> Charge:
    """Returns what ``draws`` numbers of noise cost at most.

    >>> charge(0).epsilon, 2e-9 < charge(4617).epsilon < 3e-9
    (0.0, True)
    """
    s = draws * RATIO**2 + RATIO * math.sqrt(2 * draws * _LOG_BETA)
    return Charge(2 * s, math.exp(-s), (math.exp(-_LOG_BETA) + draws * _TAIL) if draws else 0.0)


def charged_epsilon(exact: Callable[[float], float], draws: int, delta: float) -> float:
    """Returns the epsilon at ``delta``, given that of exact noise as a function of delta.

    Infinite where the charge leaves nothing of delta.
    """
    if not draws:
        return exact(delta)
    cost, aside = charge(draws), _SET_ASIDE * delta
    while aside < delta / 2:
        spent = exact(cost.shrunk * (delta - aside)) + cost.epsilon
        if spent > _LARGEST_EPSILON:
            break
        # Of the epsilon with its charge, which is a little more than the proof asks for.
        needed = (1 + math.exp(spent)) * cost.failed
        if needed <= aside:
            return spent
        aside = 2 * needed
    return math.inf


def charged_deltas(
    exact: Callable[[np.ndarray], np.ndarray], draws: int, epsilons: np.ndarray
) -> np.ndarray:
    """Returns the deltas at ``epsilons``, given those of exact noise as a function of epsilons."""
    if not draws:
        return exact(epsilons)
    cost = charge(draws)
    inner = np.asarray(epsilons, np.float64) - cost.epsilon
    # Below 0, P - e^epsilon P' is P - P' and a part of P'.
    ideal = exact(np.maximum(inner, 0.0)) - np.expm1(np.minimum(inner, 0.0))
    failed = (1 + np.exp(np.minimum(epsilons, _LARGEST_EPSILON))) * cost.failed
    return np.minimum(ideal / cost.shrunk + failed, 1.0)
