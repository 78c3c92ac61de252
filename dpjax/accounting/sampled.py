"""Epsilon of events with sampling, selections or ball noise, by PLD or Renyi accounting."""

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import dp_accounting
import numpy as np

from dpjax._typing import Relation
from dpjax.accounting import losses, pld
from dpjax.accounting.release import Release

# Those of dp_accounting, whose own sums lose fractional ones for large probabilities.
ORDERS = (*(1 + x / 10 for x in range(1, 100)), *range(11, 64), 128, 256, 512, 1024)

# What the Fourier transforms of a T-fold composition get wrong is below T times this: 1.8e-13 was
# measured at T = 10^4, 1.9e-11 at 10^6 and 2.2e-9 at 10^8, against the closed form.
_ROUNDING = 2.0**-52
# Points of a grid: across one standard deviation of one loss, and at most in one and in all.
_FINENESS, _COARSEST, _LARGEST_ONE, _LARGEST = 32, 2.0**-9, 2.0**17, 2.0**21


class _Piece(NamedTuple):
    """``count`` releases whose losses have one distribution."""

    kind: Callable
    numbers: tuple[float, ...]
    count: int


def pld_epsilon(releases: Sequence[Release], relation: Relation, delta: float) -> float:
    """Returns the epsilon that ``releases`` spend together, from their privacy losses.

    Args:
      releases: at least one of them sampled, a selection or ball noise.
      relation: the one their multipliers refer to.
      delta: strictly between 0 and 1.

    Returns:
      An epsilon that is never below the true one: the losses are rounded such that they dominate,
      rounding in the transforms is charged to delta, and so is the overflow of the batches.
      Infinite where that charge leaves nothing of delta at any epsilon this noise could give.
      Ball noise of total variation t is dominated by losses 0 and infinity, so the profile of all
      is t + (1 - t) that of the others: t is charged to delta, whatever the epsilon.

    Raises:
      ValueError: if the charge exceeds delta whatever the noise.

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
    extra = _ROUNDING * composed + _constant_charge(releases) + certain

    def find(allowed: float) -> float:
        return max(profile.epsilon(allowed) for profile in profiles)

    return _with_failures(find, releases, delta, extra)


def pld_deltas(
    releases: Sequence[Release], relation: Relation, epsilons: np.ndarray, scale: float = 1.0
) -> np.ndarray:
    """Returns the delta that ``releases`` spend together at each of ``epsilons``.

    An upper bound, charged like that of ``pld_epsilon``. Epsilons are at least 0; ``scale`` is the
    noise, relative to that of the releases.

    >>> release = Release("gradient", 1, 1.0)
    >>> print(pld_deltas([release], "zero_out", np.array([4.3772])).round(7))
    [1.e-05]
    """
    lossy = [r.scaled(scale) for r in releases if r.privacy_loss(relation) is not None]
    delta = np.full(len(epsilons), _compose(r.certain_delta(scale) for r in releases))
    if lossy:
        profiles = _profiles(tuple(_pieces(lossy, relation)), relation == "replace_one")
        delta = delta + np.max([profile.delta(epsilons) for profile in profiles], axis=0)
        delta = delta + _ROUNDING * sum(r.count for r in lossy) + _constant_charge(lossy)
    failed = math.fsum(release.growing_charge for release in releases)
    return np.minimum(delta + (1 + np.exp(epsilons)) * failed, 1.0)


def rdp_epsilon(releases: Sequence[Release], relation: Relation, delta: float) -> float:
    """Returns the epsilon that ``releases`` spend together, from their Renyi divergences.

    Raises:
      ValueError: for Poisson batches under ``replace_one``, for which no Renyi bound is known, or
        if an order has no finite divergence.
    """
    divergences = renyi_divergences(releases, relation, np.array(ORDERS))

    def find(allowed: float) -> float:
        return float(dp_accounting.rdp.compute_epsilon(ORDERS, divergences.tolist(), allowed)[0])

    return _with_failures(find, releases, delta, _constant_charge(releases))


def renyi_divergences(
    releases: Sequence[Release], relation: Relation, orders: np.ndarray
) -> np.ndarray:
    """Returns the Renyi divergence of all ``releases`` together at each order.

    Raises:
      ValueError: for an order that is not above 1, for Poisson batches under ``replace_one`` or
        with an ``undrawn_shift``, or if an order has no finite divergence: no order is dropped.

    >>> releases = [Release("gradient", 4, noise_multiplier=2.0)]
    >>> renyi_divergences(releases, "zero_out", np.array([2.0, 8.0]))
    array([1., 4.])
    """
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
    find: Callable[[float], float], releases: Sequence[Release], delta: float, extra: float = 0.0
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


def _constant_charge(releases: Sequence[Release]) -> float:
    return math.fsum(release.constant_charge for release in releases)


def _pieces(releases: Sequence[Release], relation: Relation) -> list[_Piece]:
    counts: dict[tuple, int] = {}
    squares = 0.0
    for release in releases:
        if release.is_gaussian:
            squares += release.count / release.noise_multiplier**2
        elif loss := release.privacy_loss(relation):
            counts[loss] = counts.get(loss, 0) + release.count
    pieces = [_Piece(kind, numbers, count) for (kind, numbers), count in counts.items()]
    # Unsampled, the pair N(0, 1), N(mu, 1) does not know which relation gave mu.
    return pieces + ([_Piece(losses.gaussian, (math.sqrt(squares),), 1)] if squares else [])


def _gap(pieces: Sequence[_Piece]) -> float:
    """Distance of grid points: fine for one loss, and few enough of them."""
    known = [losses.deviation_and_span(p.kind, *p.numbers) for p in pieces]
    counts = [piece.count for piece in pieces]
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
        for kind, numbers, _ in pieces:
            single = kind(*numbers, gap)
            both = (single,) * 2 if isinstance(single, pld.PrivacyLossDistribution) else single
            for direction, loss in zip(directions, both, strict=False):
                direction.append(loss)
        counts = [piece.count for piece in pieces]
        width = max(sum(map(pld.width, direction, counts)) for direction in directions)
        if width <= _LARGEST:
            break
        # Noise so small that its losses need another scale: coarser is still an upper bound.
        gap *= 2.0 ** math.ceil(math.log2(width / _LARGEST))
    return [
        pld.profile(functools.reduce(pld.compose, map(pld.power, direction, counts)))
        for direction in directions
    ]
