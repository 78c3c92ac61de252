"""``Event``: all releases of a training, and ``epsilon``, which accounts for them."""

import collections
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from scipy import special

from dpjax import _validate
from dpjax._lazy import dp_accounting
from dpjax._typing import Relation
from dpjax.accounting import budget as _budget
from dpjax.accounting import losses, pld
from dpjax.accounting.noise_draws import charged_deltas, charged_epsilon
from dpjax.accounting.release import PrivacyLoss, Release, mu_squared

ACCOUNTANTS = ("pld", "rdp")
"""Accountants of ``epsilon``: privacy loss distributions, and Renyi DP."""
# Those of dp_accounting, whose own sums lose fractional ones for large probabilities.
ORDERS = (*(1 + x / 10 for x in range(1, 100)), *range(11, 64), 128, 256, 512, 1024)

# What the Fourier transforms of a T-fold composition get wrong is below T times this: 1.8e-13 was
# measured at T = 10^4, 1.9e-11 at 10^6 and 2.2e-9 at 10^8, against the closed form.
_ROUNDING = 2.0**-52
# Points of a grid: across one standard deviation of one loss, and at most in one and in all.
_FINENESS, _COARSEST, _LARGEST_ONE, _LARGEST = 32, 2.0**-9, 2.0**17, 2.0**21


@dataclasses.dataclass(frozen=True)
class Event:
    """All releases of a training, and the neighbouring relation they were built for.

    Args:
      releases: at least one ``Release``.
      relation: the neighbouring relation whose sensitivities the multipliers refer to.

    Privacy: accounting only; nothing is released. An event answers for its own relation alone.

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
        """Exact mu of GDP, sqrt(sum of count / multiplier^2); raises unless ``is_gaussian``."""
        if not self.is_gaussian:
            raise ValueError(
                "sampled releases, selections and ball noise have no mu-GDP description that is "
                "exact; call epsilon(event, delta, relation)."
            )
        return math.sqrt(mu_squared(self.releases))

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

    def each(self, change: Callable[[Release], Release]) -> "Event":
        """Returns the event of what ``change`` makes of each release."""
        return Event(tuple(map(change, self.releases)), self.relation)

    @property
    def with_exact_noise(self) -> "Event":
        """The same releases, nothing charged for how their noise is drawn."""
        return self.each(lambda release: dataclasses.replace(release, noise_draws=0))

    @property
    def dp_event(self) -> "dp_accounting.DpEvent":
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
            f"events of different relations, and none at all, do not compose: {sorted(relations)}."
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
        (Renyi, looser, from ``dp_accounting``; none for Poisson batches under ``replace_one``).

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
        account = pld_epsilon if accountant == "pld" else rdp_epsilon
        return account(event.releases, event.relation, delta)
    return losses.gaussian_epsilon(1 / event.gaussian_mu, delta)


def deltas(event: Event, epsilons: np.ndarray, scale: float = 1.0) -> np.ndarray:
    """Returns an upper bound on the delta that ``event`` spends at each of ``epsilons``, from 0 on.

    For either order of the neighbours; exact for unsampled, exact Gaussians. ``scale`` is the
    noise, relative to that of the event: audits ask how much there is.
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
        return pld_deltas(event.releases, event.relation, epsilons, scale)
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
    return float(renyi_divergences(event.releases, event.relation, orders)[0])


_Piece = tuple[PrivacyLoss, int]
"""A loss, and how many releases have it."""


def pld_epsilon(releases: Sequence[Release], relation: Relation, delta: float) -> float:
    """Returns the epsilon that ``releases`` spend together, never below the true one.

    Privacy losses are rounded such that they dominate, rounding in the
    transforms is charged to delta, and so is the overflow of the batches. Infinite where that
    charge leaves nothing of delta at any epsilon this noise could give; an error where it exceeds
    delta whatever the noise. Ball noise of total variation t is dominated by losses 0 and infinity,
    so the profile of all is t + (1 - t) that of the others: t is charged to delta.

    Reference: selections have the pair of ``losses.selection``. Under ``replace_one``, Poisson
      batches have that of ``losses.poisson_swap``, whose multiplier is relative to one record's
      bound C; subsets that of ``losses.subset_swap``, relative to 2 C.
    """
    certain = _compose(release.certain_delta() for release in releases)
    pieces = _pieces(releases, relation)
    if not pieces or certain >= delta:
        # At epsilon 0, where (1 + e^epsilon) is 2; a larger one does not reduce the certain part.
        failed = 2 * math.fsum(release.growing_charge for release in releases)
        return 0.0 if not pieces and certain + failed <= delta else math.inf
    profiles = _profiles(tuple(pieces), relation == "replace_one")
    composed = sum(release.count for release in releases if release.privacy_loss(relation))
    extra = _ROUNDING * composed + math.fsum(r.constant_charge for r in releases) + certain

    def find(allowed: float) -> float:
        return max(profile.epsilon(allowed) for profile in profiles)

    return _with_failures(find, releases, delta, extra)


def pld_deltas(
    releases: Sequence[Release], relation: Relation, epsilons: np.ndarray, scale: float = 1.0
) -> np.ndarray:
    """Returns the delta that ``releases`` spend together at each of ``epsilons``.

    Charged like that of ``pld_epsilon``; the other arguments are those of ``deltas``.
    """
    lossy = [r.scaled(scale) for r in releases if r.privacy_loss(relation) is not None]
    delta = np.full(len(epsilons), _compose(r.certain_delta(scale) for r in releases))
    if lossy:
        profiles = _profiles(tuple(_pieces(lossy, relation)), relation == "replace_one")
        delta = delta + np.max([profile.delta(epsilons) for profile in profiles], axis=0)
        delta = delta + _ROUNDING * sum(r.count for r in lossy)
        delta = delta + math.fsum(r.constant_charge for r in lossy)
    failed = math.fsum(release.growing_charge for release in releases)
    return np.minimum(delta + (1 + np.exp(epsilons)) * failed, 1.0)


def rdp_epsilon(releases: Sequence[Release], relation: Relation, delta: float) -> float:
    """Returns the epsilon that ``releases`` spend together, from their Renyi divergences."""
    divergences = renyi_divergences(releases, relation, np.array(ORDERS))

    def find(allowed: float) -> float:
        return float(dp_accounting.rdp.compute_epsilon(ORDERS, divergences.tolist(), allowed)[0])

    return _with_failures(find, releases, delta, math.fsum(r.constant_charge for r in releases))


def renyi_divergences(
    releases: Sequence[Release], relation: Relation, orders: np.ndarray
) -> np.ndarray:
    """Returns the Renyi divergence of all ``releases`` at each order, of which none is dropped."""
    if not np.all(np.isfinite(orders) & (orders > 1)):
        raise ValueError(f"order must be a finite number above 1, got {orders!r}.")
    total = np.zeros(len(orders))
    for release in releases:
        total = total + release.count * release.renyi(orders, relation)
    if not np.all(np.isfinite(total)):
        raise ValueError(
            f"no finite Renyi divergence at orders {orders[~np.isfinite(total)]}; the noise "
            "multiplier is too small for Renyi accounting, take accountant='pld'."
        )
    return total


def _with_failures(
    find: Callable[[float], float], releases: Sequence[Release], delta: float, extra: float
) -> float:
    """The smallest e with delta(e) + slack + (1 + exp(e)) sum of failures <= delta."""
    overflow = math.fsum(release.growing_charge for release in releases)
    if 2 * overflow + extra >= delta:
        raise ValueError(
            f"delta={delta:g} is too small: actual draws differ from ideal ones with probability "
            f"{overflow:.3g} in total, and discretisation of the accounting adds up to "
            f"{extra:.3g}; raise max_batch_size of the sampler, or delta."
        )
    epsilon = 0.0
    while True:
        charge = extra + ((1 + math.exp(epsilon)) * overflow if overflow else 0.0)
        if charge >= delta:
            return math.inf
        larger = find(delta - charge)
        if larger <= epsilon or overflow == 0:
            return max(larger, epsilon)
        if larger > 700:  # e^epsilon of any overflow is more than delta
            return math.inf
        # A little above, so that it ends: where the next is not above it, it fits with its charge.
        epsilon = larger * (1 + 1e-9) + 1e-12


def _compose(certain: Iterable[float]) -> float:
    """The probability that all releases together distinguish neighbours with certainty."""
    deltas = [delta for delta in certain if delta]
    if max(deltas, default=0.0) >= 1:
        return 1.0
    # Composed like releases of one kind, and rounded up: every part errs on that side already.
    return -math.expm1(math.fsum(math.log1p(-delta) for delta in deltas)) if deltas else 0.0


def _pieces(releases: Sequence[Release], relation: Relation) -> list[_Piece]:
    counts = collections.Counter[PrivacyLoss]()
    squares = 0.0
    for release in releases:
        if release.is_gaussian:
            squares += release.count / release.noise_multiplier**2
        elif loss := release.privacy_loss(relation):
            counts[loss] += release.count
    # Unsampled, the pair N(0, 1), N(mu, 1) does not know which relation gave mu.
    gaussian = losses.gaussian, (math.sqrt(squares),)
    return [*counts.items(), *([(gaussian, 1)] if squares else [])]


def _gap(pieces: Sequence[_Piece]) -> float:
    """Distance of grid points: fine for one loss, and few enough of them."""
    known = [losses.deviation_and_span(kind, *numbers) for (kind, numbers), _ in pieces]
    counts = [count for _, count in pieces]
    variance = math.fsum(c * d**2 for c, (d, _) in zip(counts, known, strict=True)) / sum(counts)
    fine = min(math.sqrt(variance) / _FINENESS, _COARSEST)
    gap = max(fine, max(span for _, span in known) / _LARGEST_ONE)
    # A power of two: grids are equal for nearby noise, and their points exact.
    return 2.0 ** math.floor(math.log2(gap))


@functools.lru_cache(maxsize=8)
def _profiles(pieces: tuple[_Piece, ...], symmetric: bool) -> list[pld.Profile]:
    gap = _gap(pieces)
    while True:
        directions: list[list[pld.PrivacyLossDistribution]] = [[]] if symmetric else [[], []]
        for (kind, numbers), _ in pieces:
            single = kind(*numbers, gap)
            both = (single,) * 2 if isinstance(single, pld.PrivacyLossDistribution) else single
            for direction, loss in zip(directions, both, strict=False):
                direction.append(loss)
        counts = [count for _, count in pieces]
        width = max(sum(map(pld.width, direction, counts)) for direction in directions)
        if width <= _LARGEST:
            break
        # Noise so small that its losses need another scale: coarser is still an upper bound.
        gap *= 2.0 ** math.ceil(math.log2(width / _LARGEST))
    return [
        pld.profile(functools.reduce(pld.compose, map(pld.power, direction, counts)))
        for direction in directions
    ]
