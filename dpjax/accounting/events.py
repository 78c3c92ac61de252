"""``Event``: all releases of a training, and ``epsilon``, which accounts for them."""

import dataclasses
import functools
import math
from collections.abc import Iterable

import dp_accounting
import numpy as np
from scipy import special

from dpjax import _validate
from dpjax._typing import Relation
from dpjax.accounting import budget as _budget
from dpjax.accounting import sampled as _sampled
from dpjax.accounting.noise_draws import charged_deltas, charged_epsilon
from dpjax.accounting.release import Release

ACCOUNTANTS = ("pld", "rdp")
"""Accountants of ``epsilon``: privacy loss distributions, and Renyi DP."""


@dataclasses.dataclass(frozen=True)
class Event:
    """All releases of a training, and the neighbouring relation they were built for.

    Args:
      releases: at least one ``Release``.
      relation: the neighbouring relation whose sensitivities the multipliers refer to.

    Privacy: accounting only; nothing is released here. An event answers for its own relation and
    raises for another one.

    >>> event = Event((Release("gradient", 16, noise_multiplier=20.0),), "zero_out")
    >>> event.gaussian_mu
    0.2
    """

    releases: tuple[Release, ...]
    relation: Relation

    def __post_init__(self):
        _validate.choice("relation", self.relation, _budget.RELATIONS)
        # A tuple, because events are keys of caches and must be hashable.
        object.__setattr__(self, "releases", tuple(self.releases))
        if not self.releases:
            raise ValueError("an event needs at least one release.")
        for release in self.releases:
            release.check_relation(self.relation)

    @property
    def is_gaussian(self) -> bool:
        """Whether all releases are unsampled Gaussians, so that ``gaussian_mu`` is exact."""
        return all(release.is_gaussian for release in self.releases)

    @property
    def gaussian_mu(self) -> float:
        """The mu of Gaussian differential privacy: sqrt(sum of count / multiplier^2), exact.

        Raises:
          ValueError: if a release is sampled, selects or has ball noise; its profile is
            not that of a Gaussian.
        """
        if not self.is_gaussian:
            raise ValueError(
                "sampled releases, selections and ball noise have no mu-GDP description that is "
                "exact; call epsilon(event, delta, relation)."
            )
        # fsum rounds once, so that the order of the releases does not change mu.
        return math.sqrt(math.fsum(r.count / r.noise_multiplier**2 for r in self.releases))

    @property
    def failure_probability(self) -> float:
        """Bound on the total variation between actual and accounted draws and selections.

        ``epsilon`` charges delta with (1 + e^epsilon) times this (for selections with (1 + e^r), r
        their own pure epsilon); whoever accounts by ``renyi`` alone must do the same.
        """
        return math.fsum(r.count * r.failure_probability for r in self.releases)

    @property
    def noise_draws(self) -> int:
        """How many numbers of noise there are at most, which ``epsilon`` is charged for."""
        return sum(n for n, _ in self.noise_numbers)

    @property
    def noise_numbers(self) -> tuple[tuple[int, float], ...]:
        """Of each release that draws noise: how many numbers, and its noise multiplier."""
        drawn = (release for release in self.releases if release.noise_draws)
        return tuple((one.count * one.noise_draws, one.noise_multiplier) for one in drawn)

    @property
    def with_exact_noise(self) -> "Event":
        """The same releases, nothing charged for how their noise is drawn."""
        exact = (dataclasses.replace(release, noise_draws=0) for release in self.releases)
        return Event(tuple(exact), self.relation)

    @property
    def dp_event(self) -> dp_accounting.DpEvent:
        """The equivalent ``dp_accounting`` event, for comparison under the event's relation.

        Multipliers are as in ``Release``, for subsets halved: the one accountant that knows them
        reads std over 2 C. Under ``replace_one`` PLD reads std over C for unsampled releases too,
        so no mixture means anything there; ``epsilon`` asks neither. A selection is the zCDP event
        that bounds it, which PLD does not know; ball noise has no event there.
        """
        return dp_accounting.ComposedDpEvent(
            [dp_accounting.SelfComposedDpEvent(r.dp_event, r.count) for r in self.releases]
        )


def compose(events: Iterable[Event]) -> Event:
    """Returns the composition of ``events``.

    Args:
      events: at least one; each may have been chosen after seeing the answers of those before.

    Raises:
      ValueError: if their relations differ.

    >>> event = Event((Release("gradient", 1, noise_multiplier=2.0),), "zero_out")
    >>> compose([event, event]).gaussian_mu == 2 ** 0.5 / 2
    True
    """
    events = list(events)
    relations = {event.relation for event in events}
    if len(relations) != 1:
        raise ValueError(
            "events built for different relations, and none at all, cannot be composed: "
            f"{sorted(relations)}."
        )
    return Event(tuple(r for event in events for r in event.releases), events[0].relation)


def epsilon(event: Event, delta: float, relation: Relation, accountant: str = "pld") -> float:
    """Returns the epsilon that ``event`` spends at ``delta``.

    Args:
      event: the releases.
      delta: strictly between 0 and 1.
      relation: must be the one the event was built for.
      accountant: ``"pld"`` (the closed form of Gaussian differential privacy while nothing is
        sampled or selected, exact; else privacy loss distributions, rounded up) or ``"rdp"``
        (Renyi, looser, from ``dp_accounting``; none is known for Poisson batches under
        ``replace_one``).

    Returns:
      An epsilon, never below the true one. Ball noise alone has 0 or, below its delta, infinity;
      beside others its delta is taken off theirs. Batches that may exceed their largest size charge
      delta with (1 + e^epsilon) times the probability that any does; infinite where that is all of
      delta.

    Raises:
      ValueError: for another relation than the event's, a delta out of range or below the charge at
        epsilon = 0, an unknown accountant, or one that has no bound for the event.

    Reference: Dong, Roth and Su, "Gaussian differential privacy" (2022), corollary 2.13.

    >>> event = Event((Release("gradient", 1, noise_multiplier=1.0),), "zero_out")
    >>> round(epsilon(event, 1e-5, "zero_out"), 4)
    4.3772
    """
    if not isinstance(event, Event):
        raise ValueError(
            "event must be a dpjax.accounting.Event, which carries its relation, got "
            f"{_validate.shown(event)}."
        )
    delta = _validate.open_unit("delta", delta)
    _validate.choice("relation", relation, _budget.RELATIONS)
    _validate.choice("accountant", accountant, ACCOUNTANTS)
    if relation != event.relation:
        raise ValueError(
            f"this event was built for relation {event.relation!r}; its multipliers mean something "
            f"else under {relation!r}. Build the algorithm with a budget of that relation."
        )
    return charged_epsilon(
        lambda left: _exact_epsilon(event, left, accountant), event.noise_numbers, delta
    )


@functools.lru_cache(maxsize=4096)
def _exact_epsilon(event: Event, delta: float, accountant: str) -> float:
    # A kind that does not compose, such as a search, accounts for the whole event itself.
    for release in event.releases:
        spent = release.whole_epsilon(event.releases, event.relation, delta, accountant)
        if spent is not None:
            return spent
    if accountant == "rdp" or not event.is_gaussian:
        account = _sampled.pld_epsilon if accountant == "pld" else _sampled.rdp_epsilon
        return account(event.releases, event.relation, delta)
    # On its way the root finder meets deltas too small to represent, and takes their log.
    with np.errstate(divide="ignore"):
        spent = dp_accounting.get_epsilon_gaussian(1 / event.gaussian_mu, delta)
    # It stops within 1e-12 on either side; the sum errs on the safe one.
    return spent + 2e-12


def deltas(event: Event, epsilons: np.ndarray, scale: float = 1.0) -> np.ndarray:
    """Returns an upper bound on the delta that ``event`` spends at each of ``epsilons``.

    Args:
      event: the releases.
      epsilons: at least 0.
      scale: the noise, relative to that of the event; audits ask how much there is.

    Returns:
      An array, for either order of the neighbours; exact for unsampled, exact Gaussians.

    Reference: as ``epsilon``.

    >>> event = Event((Release("gradient", 1, noise_multiplier=1.0),), "zero_out")
    >>> print(deltas(event, np.array([4.3772, 0.0])).round(6))
    [1.00000e-05 3.82925e-01]
    """
    # Tails are charged by the noise multiplier, which the scale changes too.
    scaled = [(n, scale * noise) for n, noise in event.noise_numbers]
    return charged_deltas(lambda at: _exact_deltas(event, at, scale), scaled, epsilons)


def _exact_deltas(event: Event, epsilons: np.ndarray, scale: float) -> np.ndarray:
    for release in event.releases:
        found = release.whole_deltas(event.releases, event.relation, epsilons, scale)
        if found is not None:
            return found
    if not event.is_gaussian:
        return _sampled.pld_deltas(event.releases, event.relation, epsilons, scale)
    mu = event.gaussian_mu / scale
    # In the logarithm, because e^epsilon overflows where the tail underflows.
    below = np.exp(epsilons + special.log_ndtr(-epsilons / mu - mu / 2))
    return np.maximum(special.ndtr(-epsilons / mu + mu / 2) - below, 0.0)


def renyi(event: Event, order: float) -> float:
    """Returns the Renyi divergence of an event at one order.

    Args:
      event: the releases.
      order: finite, above 1.

    Returns:
      order * mu^2 / 2 for unsampled Gaussians, the sum over releases for others. That batches
      and selections may fail is no part of it: charge delta with (1 + e^epsilon) times
      ``event.failure_probability``.

    Raises:
      ValueError: for an order out of range, for Poisson batches under ``replace_one`` (no bound is
        known), or if the divergence is not finite, as with ball noise.

    Reference: Mironov, Talwar and Zhang, "Renyi differential privacy of the sampled Gaussian
      mechanism" (2019); for subsets Wang, Balle and Kasiviswanathan (2019), theorem 27.

    >>> renyi(Event((Release("gradient", 16, noise_multiplier=4.0),), "zero_out"), 3.0)
    1.5
    """
    orders = np.array([_validate.positive("order", order)])
    return float(_sampled.renyi_divergences(event.releases, event.relation, orders)[0])
