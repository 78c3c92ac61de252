"""Calibration: the smallest noise scale or noise multiplier that meets a budget."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import optimize

from dpjax.accounting import events
from dpjax.accounting.budget import PrivacyBudget
from dpjax.accounting.noise_draws import NUMBERS

_LARGEST = 2.0**100
_TOLERANCE = 1e-9


def calibrate(
    make_event: Callable[[float], events.Event],
    budget: PrivacyBudget,
    accountant: str = "pld",
) -> float:
    """Returns the smallest noise scale whose event fits the budget.

    Args:
      make_event: scale -> ``Event``; its epsilon must fall as the scale grows.
      budget: the epsilon, delta and relation to meet.
      accountant: as in ``epsilon``.

    Returns:
      A scale, exactly representable in float32, with ``epsilon(make_event(scale)) <=
      budget.epsilon``: recomputed before it is returned.

    Raises:
      ValueError: if no scale up to 2^100 fits, or the event is of another relation.

    Privacy: accounting only, on the host, before any data is seen.

    >>> from dpjax.accounting import Event, Release
    >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-5)
    >>> def make_event(scale):
    ...     return Event((Release("gradient", 1, noise_multiplier=scale),), "zero_out")
    >>> round(calibrate(make_event, budget), 3)
    3.731
    """

    def over(scale: float) -> float:
        spent = events.epsilon(make_event(scale), budget.delta, budget.relation, accountant)
        return spent - budget.epsilon

    def fits(scale: float) -> bool:
        return over(scale) <= 0

    # Bracketed within a factor of 2: far too little noise needs a very large grid of losses.
    high = 1.0
    while not fits(high):
        high *= 2
        if high > _LARGEST:
            raise ValueError(
                f"no noise reaches epsilon={budget.epsilon:g} at delta={budget.delta:g} "
                f"({budget.relation}); raise epsilon or delta, or release less."
            )
    low = high / 2
    while fits(low):
        high, low = low, low / 2
        if low < 1 / _LARGEST:
            raise ValueError(
                f"epsilon={budget.epsilon:g} at delta={budget.delta:g} is met by arbitrarily "
                "little noise, so it is not a meaningful budget. Lower epsilon."
            )
    # In the logarithm of the scale, so that the tolerance is relative.
    ends = math.log(low), math.log(high)
    log_scale: Any = optimize.brentq(lambda log: over(math.exp(log)), *ends, xtol=_TOLERANCE)
    if not fits(math.exp(log_scale)):
        log_scale += _TOLERANCE
    # The search may end slightly below: the rounded scale is checked before it is returned.
    scale, step = round_up(math.exp(log_scale)), 1e-7
    while not fits(scale):
        # The grids of sampled events differ a little between scales: the step must outgrow that.
        scale, step = round_up(scale * (1 + step)), 2 * step
    return scale


def smallest(fits: Callable[[float], bool], largest: float, tolerance: float = 0.0) -> float:
    """Returns the smallest number that fits, rounded up, or infinity beyond about ``largest``."""
    low, high = 0.0, 1.0
    while not fits(high):
        low, high = high, 2 * high
        if high > largest:
            return math.inf
    while high - low > max(tolerance * high, 2.0**-100) and np.nextafter(low, high) < high:
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    # The upper end of the bracket, which was checked to fit.
    return high


def round_up(value: float) -> float:
    """Returns the smallest float32 that is not below ``value``, as a Python float.

    A noise scale passes through float32 arrays when algorithms are stacked or returned; rounded up
    here, once, it is the same number in the program and in the accounting.

    >>> round_up(0.1) >= 0.1
    True
    """
    with np.errstate(over="ignore"):
        rounded = np.float32(value)
    if float(rounded) < value:
        rounded = np.nextafter(rounded, np.float32(np.inf))
    return float(rounded)


def gaussian_multiplier(
    budget: PrivacyBudget,
    count: int,
    accountant: str = "pld",
    # One of dpjax.sampling, which imports this package.
    sampler: Any = None,
    noise_draws: int = NUMBERS,
) -> float:
    """Returns the noise multiplier at which ``count`` Gaussian releases fit the budget.

    Args:
      budget: epsilon, delta and relation to meet.
      count: number of releases of equal multiplier.
      accountant: as in ``epsilon``.
      sampler: draws the records of each release; None if every release reads all of them.
      noise_draws: numbers in each release, by default up to 2^24; see ``Release``.

    Returns:
      Standard deviation over sensitivity; with a sampler that draws, over C, see ``Release``.

    Raises:
      ValueError: as ``calibrate``, or if the sampler has no accounting for the budget's relation.

    Reference: sigma = sensitivity sqrt(T) / mu(epsilon, delta), the exact Gaussian composition.

    >>> budget = PrivacyBudget(epsilon=1.0, delta=1 / 35000, relation="replace_one")
    >>> round(gaussian_multiplier(budget, 40), 2)
    22.07
    """
    make_release: Any = events.Release
    if sampler is not None:
        make_release = functools.partial(sampler.release, relation=budget.relation)

    def event(scale: float) -> events.Event:
        release = make_release("gaussian", count, noise_multiplier=scale)
        release = dataclasses.replace(release, noise_draws=noise_draws)
        return events.Event((release,), budget.relation)

    return calibrate(event, budget, accountant)


def check_spent(event: events.Event, budget: PrivacyBudget, accountant: str, advice: str) -> float:
    """Returns the epsilon of ``event``, or raises if it exceeds the budget.

    Args:
      event: the releases of the algorithm.
      budget: its privacy budget.
      accountant: as in ``epsilon``.
      advice: a remedy for the user, appended to the error.

    Raises:
      ValueError: naming the epsilon that the noise really gives.

    >>> from dpjax.accounting import Event, Release
    >>> event = Event((Release("gradient", 1, noise_multiplier=1.0),), "zero_out")
    >>> check_spent(  # doctest: +ELLIPSIS
    ...     event, PrivacyBudget(1.0, 1e-5), "pld", "add noise.")
    Traceback (most recent call last):
    ...
    ValueError: this noise gives epsilon 4.377 at delta 1e-05 (zero_out), over the budget ...
    """
    spent = events.epsilon(event, budget.delta, budget.relation, accountant)
    if spent > budget.epsilon:
        raise ValueError(
            f"this noise gives epsilon {spent:.4g} at delta {budget.delta:g} ({budget.relation}), "
            f"over the budget of {budget.epsilon:g}; {advice}"
        )
    return spent
