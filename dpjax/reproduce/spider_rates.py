"""NOT PRIVATE: rates that theory promises for a stationary point, and the slopes measured."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np


@dataclasses.dataclass(frozen=True)
class Bound:
    """How small an alpha is promised, its constants and logarithms taken as 1.

    Args:
      source: whose bound.
      words: the bound, in words.
      exponent: of 1/n in the term that privacy costs.
      population: whether it is of the population's objective; else of the records' own.
      alpha: of n, d and epsilon.
      methods: labels of the methods here that it is a bound of, or of the nearest to one.
    """

    source: str
    words: str
    exponent: float
    population: bool
    alpha: Callable[[float, int, float], float]
    methods: tuple[str, ...]


def _root(n: float, d: int, epsilon: float) -> float:
    return math.sqrt(d) / (n * epsilon)


SAMPLING = 1 / 3
"""Exponent of 1/n in the term that sampling costs in every bound for the population."""

BOUNDS = (
    Bound(
        "Liu and Talwar 2024, theorem 3.11 (as Arora et al. 2023 to first order)",
        "n^(-1/3) + (sqrt(d)/(n epsilon))^(1/2)",
        1 / 2,
        True,
        lambda n, d, e: n**-SAMPLING + _root(n, d, e) ** (1 / 2),
        ("Spider", "SpiderBoost"),
    ),
    Bound(
        "Ganesh et al. 2023",
        "n^(-1/3) + (sqrt(d)/(n epsilon))^(3/7)",
        3 / 7,
        True,
        lambda n, d, e: n**-SAMPLING + _root(n, d, e) ** (3 / 7),
        ("Spider, fixed batches",),
    ),
    Bound(
        "Wang and Xu 2020, theorems 2 and 4",
        "(d/(n epsilon))^(4/7)",
        4 / 7,
        False,
        lambda n, d, e: (d / (n * e)) ** (4 / 7),
        ("DP-TR", "DP-STR"),
    ),
    Bound(
        "Wang, Chen and Xu 2019, as Wang and Xu 2020 quote it",
        "(d/(n epsilon))^(1/2)",
        1 / 2,
        False,
        lambda n, d, e: (d / (n * e)) ** (1 / 2),
        ("DP-GD",),
    ),
)
SPIDER_BOUND, FIXED_BOUND, TRUST_REGION_BOUND, DESCENT_BOUND = BOUNDS
EXPONENTS = {"1/3": 1 / 3, "3/7": 3 / 7, "1/2": 1 / 2, "4/7": 4 / 7}


def on_population(bound: Bound) -> Callable[[float, int, float], float]:
    """Returns a bound for the population: one for the records alone takes sqrt(d/n) more.

    Gradients of the two objectives are that near each other uniformly, as section 4 of Liu and
    Talwar says; constants and logarithms are 1.

    >>> round(on_population(DESCENT_BOUND)(10_000, 25, 1.0), 6)
    0.1
    """
    if bound.population:
        return bound.alpha
    return lambda n, d, e: bound.alpha(n, d, e) + math.sqrt(d / n)


def crossings(
    first: Callable[[float, int, float], float],
    second: Callable[[float, int, float], float],
    dimension: int,
    epsilon: float,
) -> list[tuple[float, bool]]:
    """Returns each n from 1 to 10^15 where two bounds cross, and whether the first wins beyond it.

    Args:
      first: bound of n, d and epsilon.
      second: likewise.
      dimension: d.
      epsilon: of the guarantee.

    >>> crossings(lambda n, d, e: n**-0.5, lambda n, d, e: 0.1 * n**-0.25, 1, 1.0)
    [(10000.0, True)]
    """
    at = np.geomspace(1, 1e15, 6001)
    better = np.array([first(n, dimension, epsilon) < second(n, dimension, epsilon) for n in at])
    changes = np.flatnonzero(better[1:] != better[:-1])
    return [(float(f"{math.sqrt(at[i] * at[i + 1]):.2g}"), bool(better[i + 1])) for i in changes]


@dataclasses.dataclass(frozen=True)
class Slope:
    """How fast alpha falls with n.

    Args:
      value: of the medians over seeds, by least squares on logarithms; 0.5 is n^(-1/2).
      low: of the slopes of single seeds, the quantile 0.1.
      high: the quantile 0.9.
    """

    value: float
    low: float
    high: float


def slope(sizes: np.ndarray, alphas: np.ndarray) -> Slope:
    """Returns the exponent of 1/n that fits ``alphas`` best.

    Args:
      sizes: (m,) n.
      alphas: (m, seeds), above 0.

    >>> print(round(slope(np.array([1.0, 4.0, 16.0]), np.array([[4.0], [2.0], [1.0]])).value, 6))
    0.5
    """
    logs = np.log(sizes)
    whole = -float(np.polyfit(logs, np.log(np.median(alphas, axis=1)), 1)[0])
    each = -np.polyfit(logs, np.log(alphas), 1)[0]
    return Slope(whole, float(np.quantile(each, 0.1)), float(np.quantile(each, 0.9)))
