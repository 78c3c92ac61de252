"""Epsilon of everything but plain Gaussians, by privacy loss distributions or Renyi accounting."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import dp_accounting
import numpy as np
from scipy import special

from dpjax._typing import Relation
from dpjax.accounting import grids, losses
from dpjax.accounting.ball import ball_composition
from dpjax.accounting.release import Release

# Those of dp_accounting, whose own sums lose fractional ones for large probabilities.
ORDERS = (*(1 + x / 10 for x in range(1, 100)), *range(11, 64), 128, 256, 512, 1024)

# What the Fourier transforms of a T-fold composition get wrong is below T times this: 1.8e-13 was
# measured at T = 10^4, 1.9e-11 at 10^6 and 2.2e-9 at 10^8, against the closed form.
_ROUNDING = 2.0**-52
_LOG_ROUNDING = 2.0**-48
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
    surely = _ball_delta(releases)
    rest = [release for release in releases if release.mechanism != "ball"]
    if not rest or surely >= delta:
        overflow = math.fsum(release.count * release.overflow for release in releases)
        # At epsilon 0, where (1 + e^epsilon) is 2; a larger one helps balls in nothing.
        return 0.0 if not rest and surely + 2 * overflow <= delta else math.inf
    profiles = _profiles(tuple(_pieces(rest, relation)), relation == "replace_one")
    slack = _ROUNDING * sum(release.count for release in rest) + _selection_slack(rest) + surely

    def find(allowed: float) -> float:
        return max(profile.epsilon(allowed) for profile in profiles)

    return _with_overflow(find, releases, delta, slack)


def rdp_epsilon(releases: Sequence[Release], relation: Relation, delta: float) -> float:
    """Returns the epsilon that ``releases`` spend together, from their Renyi divergences.

    Args:
      releases: see ``pld_epsilon``.
      relation: the one their multipliers refer to.
      delta: strictly between 0 and 1.

    Raises:
      ValueError: for Poisson batches under ``replace_one``, for which no Renyi bound is known, or
        if an order has no finite divergence.
    """
    divergences = renyi_divergences(releases, relation, np.array(ORDERS))

    def find(allowed: float) -> float:
        found = dp_accounting.rdp.compute_epsilon(ORDERS, divergences.tolist(), allowed)
        return float(found[0])

    return _with_overflow(find, releases, delta, _selection_slack(releases))


def renyi_divergences(
    releases: Sequence[Release], relation: Relation, orders: np.ndarray
) -> np.ndarray:
    """Returns the Renyi divergence of all ``releases`` together at each order.

    Args:
      releases: any.
      relation: the one their multipliers refer to.
      orders: above 1.

    Raises:
      ValueError: for an order that is not above 1, for Poisson batches under ``replace_one`` or
        with an ``idle`` part, or if an order has no finite divergence: none is dropped silently.

    >>> releases = [Release("gradient", 4, noise_multiplier=2.0)]
    >>> renyi_divergences(releases, "zero_out", np.array([2.0, 8.0]))
    array([1., 4.])
    """
    if not np.all(np.isfinite(orders) & (orders > 1)):
        raise ValueError(f"order must be a finite number above 1, got {orders!r}.")
    total = np.zeros(len(orders))
    for release in releases:
        if release.mechanism == "ball":
            raise ValueError(
                f"ball noise, as of {release.name!r}, has no finite Renyi divergence: some "
                "answers distinguish neighbours with certainty. Use accountant='pld'."
            )
        if release.idle:
            raise ValueError(
                f"no Renyi bound is implemented for {release.name!r}, to which records contribute "
                "even when they are not sampled; take accountant='pld'."
            )
        if release.sampling == "poisson" and relation == "replace_one":
            raise ValueError(
                "no Renyi bound is known for Poisson batches under replace_one; take "
                "accountant='pld', relation='zero_out', or batches of fixed size."
            )
        if release.mechanism == "exponential":
            # What Cesar and Rogers (2021) prove for any spread of log-ratios, and never above it.
            each = np.minimum(orders * release.log_range / 8, 1.0) * release.log_range
        elif not release.drawn:
            each = orders / (2 * release.noise_multiplier**2)
        elif release.sampling == "poisson":
            each = _poisson_divergences(release, orders)
        else:
            each = _subset_divergences(release, orders)
        total = total + release.count * each
    if not np.all(np.isfinite(total)):
        raise ValueError(
            f"no finite Renyi divergence at orders {orders[~np.isfinite(total)]}; the noise "
            "multiplier is too small for Renyi accounting, take accountant='pld'."
        )
    return total


def _with_overflow(
    find: Callable[[float], float], releases: Sequence[Release], delta: float, slack: float = 0.0
) -> float:
    """The smallest e with delta(e) + slack + (1 + exp(e)) sum of overflows <= delta."""
    overflow = math.fsum(r.count * r.overflow for r in releases if r.mechanism != "exponential")
    if 2 * overflow + slack >= delta:
        raise ValueError(
            f"delta={delta:g} is too small: actual draws differ from ideal ones with probability "
            f"{overflow:.3g} in total, and discretisation of the accounting adds up to "
            f"{slack:.3g}; raise the capacity of the sampler, or delta."
        )
    epsilon = 0.0
    while True:
        charge = slack + ((1 + math.exp(epsilon)) * overflow if overflow else 0.0)
        if charge >= delta:
            return math.inf
        found = find(delta - charge)
        if found <= epsilon or overflow == 0:
            return max(found, epsilon)
        if found > 700:  # e^epsilon of any overflow is more than delta
            return math.inf
        # A little above, so that it ends: where the next is not above it, it fits with its charge.
        epsilon = found * (1 + 1e-9) + 1e-12


def _ball_delta(releases: Sequence[Release]) -> float:
    """What releases of ball noise tell apart by, all of them together."""
    balls = [release for release in releases if release.mechanism == "ball"]
    each = [ball_composition(release.total_variation, release.count) for release in balls]
    if max(each, default=0.0) >= 1:
        return 1.0
    # Composed like releases of one kind, and rounded up: every part errs on that side already.
    return -math.expm1(math.fsum(math.log1p(-share) for share in each)) if each else 0.0


def _selection_slack(releases: Sequence[Release]) -> float:
    """What rounding in selections costs of delta, whatever the epsilon of the whole.

    With t the total variation between a selection as made and as accounted, whose pure epsilon is
    r, its profile rises by t (1 + e^e) at most while e <= r, and above r it was 0 and only falls:
    by t (1 + e^r) everywhere, and so does the profile of any composition with it.
    """
    chosen = [release for release in releases if release.mechanism == "exponential"]
    return math.fsum(r.count * r.overflow * (1 + math.exp(min(r.log_range, 700))) for r in chosen)


def _pieces(releases: Sequence[Release], relation: Relation) -> list[_Piece]:
    counts: dict[tuple, int] = {}
    squares = 0.0
    for release in releases:
        mu, probability = 1 / release.noise_multiplier, release.sampling_probability
        if release.mechanism == "gaussian" and not release.drawn:
            squares += release.count * mu**2
            continue
        if release.mechanism == "exponential":
            key = (losses.selection, (release.log_range,))
        elif release.sampling == "fixed_size":
            key = (losses.subset_swap, (probability, 2 * mu))
        elif release.idle:
            if relation == "replace_one":
                raise AssertionError("an event does not allow it")
            key = (losses.anchored, (probability, mu, release.idle))
        elif relation == "replace_one":
            key = (losses.poisson_swap, (probability, mu))
        else:
            key = (losses.poisson, (probability, mu))
        counts[key] = counts.get(key, 0) + release.count
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
def _profiles(pieces: tuple[_Piece, ...], symmetric: bool) -> list[grids.Profile]:
    gap = _gap(pieces)
    while True:
        directions: list[list[grids.Loss]] = [[]] if symmetric else [[], []]
        for kind, numbers, _ in pieces:
            single = kind(*numbers, gap)
            both = (single,) * 2 if isinstance(single, grids.Loss) else single
            for direction, loss in zip(directions, both, strict=False):
                direction.append(loss)
        counts = [piece.count for piece in pieces]
        width = max(sum(map(grids.width, direction, counts)) for direction in directions)
        if width <= _LARGEST:
            break
        # Noise so small that its losses need another scale: coarser is still an upper bound.
        gap *= 2.0 ** math.ceil(math.log2(width / _LARGEST))
    return [
        grids.profile(functools.reduce(grids.compose, map(grids.power, direction, counts)))
        for direction in directions
    ]


def _poisson_divergences(release: Release, orders: np.ndarray) -> np.ndarray:
    probability = release.sampling_probability or 0.0
    whole = orders == np.floor(orders)
    event = dp_accounting.PoissonSampledDpEvent(
        probability, dp_accounting.GaussianDpEvent(float(release.noise_multiplier))
    )
    found = np.empty(len(orders))
    if whole.any():
        accountant = dp_accounting.rdp.RdpAccountant(orders[whole].tolist())
        found[whole] = accountant.compose(event).rdp
    if not whole.all():
        found[~whole] = _fractional(probability, 1 / release.noise_multiplier, orders[~whole])
    # Logarithms of moments near 1 are up to 1e-15 too small; dp_accounting takes an epsilon of 0
    # from a negative one.
    return np.maximum(found, 0.0) + _LOG_ROUNDING / np.minimum(orders - 1, 1.0)


def _fractional(q: float, mu: float, orders: np.ndarray) -> np.ndarray:
    """Log E[(1 - q + q e^(mu x - mu^2/2))^a] / (a - 1) over normal x, by the trapezoidal rule.

    The rule converges as e^(-1/step) here, for every order, where the series of dp_accounting
    fails for some and drops them.
    """
    unsampled = orders * mu**2 / 2
    if mu > 8:  # sampling never loses privacy, and there is none to speak of
        return unsampled
    step = 0.1 * min(1.0, 1 / mu)
    x = np.arange(-12.0, 12.0 + orders.max() * mu, step)
    ratio = np.logaddexp(np.log1p(-q), np.log(q) + mu * x - mu**2 / 2)
    terms = orders[:, None] * ratio - x**2 / 2
    moments = special.logsumexp(terms, axis=1) + math.log(step / math.sqrt(2 * math.pi))
    return moments / (orders - 1)


def _subset_divergences(release: Release, orders: np.ndarray) -> np.ndarray:
    # This accountant reads the multiplier over the sensitivity, which is 2 C (its PLD one: C).
    event = dp_accounting.SampledWithoutReplacementDpEvent(
        release.data_size,  # pyright: ignore[reportArgumentType] # set where a subset is drawn
        release.capacity,  # pyright: ignore[reportArgumentType]
        dp_accounting.GaussianDpEvent(float(release.noise_multiplier / 2)),
    )
    accountant = dp_accounting.rdp.RdpAccountant(
        orders.tolist(), dp_accounting.NeighboringRelation.REPLACE_ONE
    )
    return accountant.compose(event).rdp
