"""Privacy filters: the total that a ledger admits, and the cost of one run.

A filter is sound even if each run is chosen after seeing the results of earlier ones. Adding up
epsilons computed by other accountants is not.
"""

import functools
import math
from collections.abc import Iterable

import dp_accounting
import numpy as np

from dpjax import _validate
from dpjax.accounting.budget import PrivacyBudget
from dpjax.accounting.events import Event, Release, epsilon, renyi

# The root finders stop within 1e-12 on either side.
_SLACK = 4e-12
# Part of delta that a Renyi filter reserves for overflowing batches, which no divergence covers. It
# is fixed: a filter that moved delta between its two parts as runs go by would not be sound.
_OVERFLOW_SHARE = 0.01


class Filter:
    """The total cost that a budget admits, in a unit that adds up over adaptively chosen runs.

    Args:
      budget: the declared budget.
      renyi_order: alpha > 1 for runs that sample or select; None for unsampled Gaussians, which is
        exact.

    Raises:
      ValueError: for an order at which the budget admits nothing.

    Reference: Smith and Thakurta (2022), Gaussian DP filters; Feldman and Zrnic (2021), Renyi
      filters; the conversion is proposition 12 of Canonne, Kamath and Steinke (2020).

    >>> held = Filter(PrivacyBudget(epsilon=4.37718, delta=1e-5))
    >>> held.show(held.limit)
    'mu = 1'
    """

    def __init__(self, budget: PrivacyBudget, renyi_order: float | None = None):
        self._budget, self.order = budget, renyi_order
        self.limit = (
            _gaussian_limit(budget) if renyi_order is None else _renyi_limit(budget, renyi_order)
        )
        """Largest sum of costs for which the budget holds: mu^2 of Gaussian DP, or rho."""
        self.overflow_limit = (
            _OVERFLOW_SHARE * budget.delta / (1 + math.exp(min(budget.epsilon, 700.0)))
        )
        """Largest sum of probabilities that a batch overflows."""

    def cost(self, event: Event) -> float:
        """Returns the cost of ``event``, in the unit of ``limit``.

        Raises:
          ValueError: for an event of another relation, one of unsafe noise, ball noise or with a
            positive ``undrawn_shift``, or at a Gaussian filter one that samples or selects.

        >>> event = Event((Release("gradient", 16, noise_multiplier=20.0),), "zero_out")
        >>> Filter(PrivacyBudget(epsilon=1.0, delta=1e-5)).cost(event)
        0.04
        """
        if event.relation != self._budget.relation:
            raise ValueError(
                f"the ledger declares a budget under {self._budget.relation!r}, and this run is "
                f"calibrated under {event.relation!r}; they cannot be compared. Build the "
                "algorithm with a budget of the ledger's relation."
            )
        if any(release.unsafe_fast_noise for release in event.releases):
            raise ValueError(
                "this run uses unsafe_fast_noise, which has no privacy guarantee that a ledger "
                "could record. Run it without a ledger, or with safe noise."
            )
        for release in event.releases:
            if release.ledger_objection:
                raise ValueError(release.ledger_objection)
        if self.order is not None:
            return renyi(event, self.order)
        if not event.is_gaussian:
            reason = [r.renyi_reason for r in event.releases if not r.is_gaussian][-1]
            raise ValueError(
                f"this run {reason}, and this ledger admits unsampled Gaussian releases only; "
                "create one with a Renyi order: dpjax ledger create FILE ... --renyi-order ALPHA."
            )
        return math.fsum(r.count / r.noise_multiplier**2 for r in event.releases)

    def admits(self, costs: Iterable[float], overflows: Iterable[float]) -> bool:
        """Returns whether the budget holds for runs of these costs and overflows together.

        Args:
          costs: of every run.
          overflows: of every run, ``event.failure_probability``.
        """
        return math.fsum(costs) <= self.limit and math.fsum(overflows) <= self.overflow_limit

    def left(self, costs: Iterable[float]) -> float:
        """Returns the part of ``limit`` that remains after ``costs``."""
        return max(0.0, self.limit - math.fsum(costs))

    def further_epsilon(self, left: float) -> float:
        """Returns the epsilon, rounded down, of one unsampled release that costs ``left``.

        It is at the budget's delta.

        >>> held = Filter(PrivacyBudget(epsilon=1.0, delta=1e-5))
        >>> round(held.further_epsilon(held.limit), 6)
        1.0
        """
        return max(0.0, self._equivalent(left) - _SLACK)

    def advise(self, left: float) -> str:
        """Returns ``further_epsilon`` as a sentence; a run calibrated to its number fits.

        >>> held = Filter(PrivacyBudget(epsilon=1.0, delta=1e-5))
        >>> held.advise(held.limit)
        'one further unsampled release may have epsilon 1 at delta 1e-05'
        """
        number = _floor(self._equivalent(left))
        return (
            f"one further unsampled release may have epsilon {number:g} at delta "
            f"{self._budget.delta:g}"
        )

    def show(self, amount: float) -> str:
        """Returns an amount in the unit of ``limit`` as text."""
        if self.order is None:
            return f"mu = {math.sqrt(amount):.6g}"
        return f"rho({self.order:g}) = {amount:.6g}"

    def _equivalent(self, left: float) -> float:
        mu_squared = left if self.order is None else 2 * left / self.order
        if mu_squared <= 0:
            return 0.0
        return _gaussian_epsilon(math.sqrt(mu_squared), self._budget.delta)


def _floor(value: float) -> float:
    # Six digits, as {:g} prints them. The hair is below what rounding a multiplier up leaves.
    if value <= 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(value)) - 5)
    return float(f"{math.floor(value * (1 + 1e-10) / unit) * unit:.6g}")


def _renyi_limit(budget: PrivacyBudget, renyi_order: float) -> float:
    order = _validate.positive("renyi_order", renyi_order)
    delta = (1 - _OVERFLOW_SHARE) * budget.delta
    log = math.log(1 / delta)
    # dp_accounting does not convert at lower orders either.
    if order > 1.01:
        rho = budget.epsilon - math.log1p(-1 / order) - (log - math.log(order)) / (order - 1)
        while rho > 0 and _converted(order, rho, delta) > budget.epsilon:
            rho *= 1 - 1e-12
        if rho > 0:
            return rho
    raise ValueError(
        f"renyi_order={renyi_order:g} admits nothing at epsilon={budget.epsilon:g}, "
        f"delta={budget.delta:g}; an order near {1 + 2 * log / budget.epsilon:.3g} fits them best."
    )


@functools.lru_cache(maxsize=64)
def _gaussian_limit(budget: PrivacyBudget) -> float:
    def fits(mu: float) -> bool:
        return _gaussian_epsilon(mu, budget.delta) <= budget.epsilon

    with np.errstate(divide="ignore"):
        low = high = 1 / dp_accounting.get_sigma_gaussian(budget.epsilon, budget.delta)
    width = 1e-9
    while not fits(low):
        low *= 1 - width
        width *= 2
    width = 1e-9
    while fits(high):
        high *= 1 + width
        width *= 2
    while np.nextafter(low, high) < high:
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low**2


def _gaussian_epsilon(mu: float, delta: float) -> float:
    event = Event((Release("gaussian", 1, noise_multiplier=1 / mu),), "zero_out")
    return epsilon(event, delta, "zero_out")


def _converted(order: float, rho: float, delta: float) -> float:
    return float(dp_accounting.rdp.compute_epsilon([order], [rho], delta)[0])
