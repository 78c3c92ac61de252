"""Claimed guarantees as trade-off curves at any noise scale; NOT PRIVATE.

A claim is a family of trade-off curves in one parameter, the noise *relative* to the claim: 1 is
the claim, 0.95 the curve of a mechanism that adds 5 % too little noise.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Protocol

import numpy as np
from scipy import stats

from dpjax._typing import Relation
from dpjax.accounting import (
    BallRelease,
    Event,
    PerturbationRelease,
    PoissonRelease,
    SelectionRelease,
    epsilon,
    perturbed_delta,
)
from dpjax.auditing.ball_claim import BallClaim
from dpjax.auditing.curves import LOSSES, composed_curve, envelope, sampled_losses
from dpjax.sampling import FullBatch, Poisson

Curve = Callable[[np.ndarray], np.ndarray]


class Claim(Protocol):
    """A mechanism's guarantee, as an audit tests it."""

    @property
    def relation(self) -> Relation:
        """The neighbouring relation of the claim."""
        ...

    def epsilon(self, delta: float, scale: float = 1.0) -> float:
        """Returns the epsilon at ``delta`` if the noise were ``scale`` times the claimed one."""
        ...

    def curve(self, scale: float = 1.0) -> Curve:
        """Returns f: least false negative rate of a test, given its false positive rate.

        It must not increase, and f at a larger scale must not lie below f at a smaller one.
        """
        ...


@dataclasses.dataclass(frozen=True)
class GaussianClaim:
    """Gaussian releases, adaptively composed: f(a) = Phi(Phi^-1(1 - a) - mu), exact.

    Args:
      event: the mechanism's event.

    Reference: Dong, Roth and Su (2022), definition 2.6 and corollary 3.3.

    >>> from dpjax.accounting import Release
    >>> claim = GaussianClaim(Event((Release("gaussian", 1, noise_multiplier=1.0),), "zero_out"))
    >>> round(claim.epsilon(1e-5), 3), round(float(claim.curve()(0.3085)), 3)
    (4.377, 0.309)
    """

    event: Event

    @property
    def relation(self) -> Relation:
        """The relation of the event."""
        return self.event.relation

    def epsilon(self, delta: float, scale: float = 1.0) -> float:
        """Returns the epsilon of the event with every multiplier ``scale`` times as large."""
        return epsilon(_scaled(self.event, scale), delta, self.relation)

    def curve(self, scale: float = 1.0) -> Curve:
        """Returns the curve of Gaussian differential privacy at mu / scale."""
        mu = self.event.gaussian_mu / scale
        return lambda alpha: stats.norm.cdf(stats.norm.isf(alpha) - mu)


@dataclasses.dataclass(frozen=True)
class SelectionClaim:
    """One selection by the exponential mechanism, composed with any number of Gaussian releases.

    Args:
      event: the mechanism's event.

    The profile is the mean of the Gaussians' over the losses of the pair that dominates a
    selection, by quadrature; the accounting of the product has it on a grid.

    Reference: Dong, Durfee and Rogers (2020); see ``dpjax.accounting.losses.selection``.

    >>> from dpjax.accounting import SelectionRelease, gumbel_multiplier
    >>> release = SelectionRelease("selection", 1, gumbel_multiplier(3.0))
    >>> claim = SelectionClaim(Event((release,), "zero_out"))
    >>> round(claim.epsilon(1e-5), 2), round(float(claim.curve()(0.5)), 3)
    (2.99, 0.047)
    """

    event: Event

    def __post_init__(self):
        selections = [r for r in self.event.releases if isinstance(r, SelectionRelease)]
        if [r.count for r in selections] != [1] or any(
            release.is_subsampled for release in self.event.releases
        ):
            raise ValueError("this claim is about one selection, and Gaussians without sampling.")

    @property
    def relation(self) -> Relation:
        """The relation of the event."""
        return self.event.relation

    def epsilon(self, delta: float, scale: float = 1.0) -> float:
        """Returns the epsilon of the event with every multiplier ``scale`` times as large."""
        return epsilon(_scaled(self.event, scale), delta, self.relation)

    def curve(self, scale: float = 1.0) -> Curve:
        """Returns a lower bound on the curve of the composition, for either order."""
        alphas, betas = envelope(self.delta(LOSSES, scale), np.exp(LOSSES))
        return lambda alpha: np.interp(alpha, alphas, betas)

    def delta(self, epsilons: np.ndarray, scale: float = 1.0) -> np.ndarray:
        """Returns delta at ``epsilons``, any numbers."""
        squares, spread = 0.0, 0.0
        for release in _scaled(self.event, scale).releases:
            if isinstance(release, SelectionRelease):
                spread = release.pure_epsilon
            else:
                squares += release.count / release.noise_multiplier**2
        if squares == 0:
            inside = np.expm1((np.clip(epsilons, -spread, spread) - spread) / 2) ** 2
            return np.where(epsilons < -spread, -np.expm1(epsilons), inside / -np.expm1(-spread))
        nodes, weights = np.polynomial.legendre.leggauss(200)
        losses = spread * nodes
        density = np.exp((losses - spread) / 2) / -np.expm1(-spread) / 2
        left = epsilons[:, None] - losses
        return _gaussian_delta(math.sqrt(squares), left) @ (spread * weights * density) + 1e-12


@dataclasses.dataclass(frozen=True)
class PerturbationClaim:
    """One objective perturbation, with little privacy spent on noise on its minimiser.

    Args:
      event: the mechanism's event, the perturbation first.

    Reference: see ``dpjax.accounting.perturbed_delta``.
    """

    event: Event

    @property
    def relation(self) -> Relation:
        """The relation of the event."""
        return self.event.relation

    def epsilon(self, delta: float, scale: float = 1.0) -> float:
        """Returns the epsilon of the event with every multiplier ``scale`` times as large."""
        return epsilon(_scaled(self.event, scale), delta, self.relation)

    def curve(self, scale: float = 1.0) -> Curve:
        """Returns a lower bound on the curve, for either order of the neighbours."""
        first, *others = _scaled(self.event, scale).releases
        assert isinstance(first, PerturbationRelease)  # see ``claim_of``
        # The privacy loss of the noise on the minimiser, for all but 1e-9 of its probability.
        extra = sum(6.0 * release.count / release.noise_multiplier for release in others)
        sizes = np.abs(LOSSES)
        deltas = np.array([perturbed_delta(first, self.relation, e - extra) for e in sizes]) + 1e-9
        # In the other order, at e^-e: 1 - e^-e + e^-e delta(e).
        deltas = np.where(LOSSES < 0, -np.expm1(-sizes) + np.exp(-sizes) * deltas, deltas)
        alphas, betas = envelope(deltas, np.exp(LOSSES))
        return lambda alpha: np.interp(alpha, alphas, betas)


def claim_of(event: Event) -> Claim:
    """Returns the claim of an event.

    Raises:
      ValueError: for an event whose trade-off curves are not known here.

    >>> from dpjax.accounting import Release
    >>> type(claim_of(Event((Release("gaussian", 1, noise_multiplier=1.0),), "zero_out"))).__name__
    'GaussianClaim'
    """
    release = event.releases[0]
    if any(isinstance(r, BallRelease) for r in event.releases):
        return BallClaim(event)
    if (
        len(event.releases) == 1
        and isinstance(release, PoissonRelease)
        and not release.undrawn_shift
    ):
        return SampledGaussianClaim(
            release.noise_multiplier,
            release.sampling_probability,
            release.count,
            event.relation,
            event,
        )
    if isinstance(release, PerturbationRelease):
        return PerturbationClaim(event)
    if any(isinstance(r, SelectionRelease) for r in event.releases):
        return SelectionClaim(event)
    return GaussianClaim(event) if event.is_gaussian else ComposedClaim(event)


def _scaled(event: Event, scale: float) -> Event:
    if scale == 1.0:
        return event
    return Event(tuple(release.scaled(scale) for release in event.releases), event.relation)


def _gaussian_delta(mu: float, epsilons: np.ndarray) -> np.ndarray:
    tail = np.exp(epsilons + stats.norm.logcdf(-epsilons / mu - mu / 2))
    return stats.norm.cdf(-epsilons / mu + mu / 2) - tail


@dataclasses.dataclass(frozen=True)
class SampledGaussianClaim:
    """Gaussian releases of Poisson samples, from the privacy loss distribution of dp_accounting.

    Args:
      noise_multiplier: standard deviation over the norm of one record's contribution.
      sampling_probability: q, of each record in each release.
      count: number of releases.
      relation: one record more or less: ``"add_or_remove_one"`` or ``"zero_out"``.
      event: the mechanism's event; None for a bare Poisson sample with noise.

    The curve is the upper envelope of the lines 1 - delta(epsilon) - e^epsilon a, with delta never
    below the true one. It lies under the true curve, so that no sound mechanism is refuted.

    >>> claim = SampledGaussianClaim(0.5, 0.1, 1)
    >>> round(claim.epsilon(1e-5), 2), round(float(claim.curve()(0.02)), 3)
    (6.58, 0.934)
    """

    noise_multiplier: float
    sampling_probability: float
    count: int
    relation: Relation = "add_or_remove_one"
    event: Event | None = None

    def __post_init__(self):
        if self.relation == "replace_one":
            raise ValueError(
                "relation='replace_one' moves two records of a sample, which this claim does not "
                "cover; use 'zero_out' or 'add_or_remove_one'."
            )

    def epsilon(self, delta: float, scale: float = 1.0) -> float:
        """Returns the epsilon of the privacy loss distribution, never below the true one."""
        return sampled_epsilon(self, delta) if scale == 1.0 else self._losses(scale)[1](delta)

    def curve(self, scale: float = 1.0) -> Curve:
        """Returns a lower bound on the exact curve, for either order of the neighbours."""
        alphas, betas = self._losses(scale)[0]
        return lambda alpha: np.interp(alpha, alphas, betas)

    def _losses(self, scale: float) -> tuple[np.ndarray, Callable[[float], float]]:
        return sampled_losses(scale * self.noise_multiplier, self.sampling_probability, self.count)


def sampled_epsilon(claim: SampledGaussianClaim, delta: float) -> float:
    """Returns the claimed epsilon of ``claim``, by dpjax's accounting.

    >>> round(sampled_epsilon(SampledGaussianClaim(0.5, 0.1, 1), 1e-5), 3)
    6.576
    """
    event = claim.event
    if event is None:
        sampler = FullBatch(1)
        if claim.sampling_probability < 1:
            threshold = round(claim.sampling_probability * 2**64)
            sampler = Poisson.of(threshold, 1.0, capacity=1, data_size=1)
        release = sampler.release(
            "gaussian",
            claim.count,
            noise_multiplier=claim.noise_multiplier,
            relation=claim.relation,
        )
        event = Event((release,), claim.relation)
    return epsilon(event, delta, claim.relation)


@dataclasses.dataclass(frozen=True)
class ComposedClaim(GaussianClaim):
    """Gaussian releases on Poisson samples, on all records, or on both.

    Args:
      event: the mechanism's event, not under ``replace_one``.

    Epsilon and curve are those of ``SampledGaussianClaim``, with all losses composed.
    """

    def curve(self, scale: float = 1.0) -> Curve:
        """Returns a lower bound on the exact curve, for either order of the neighbours."""
        alphas, betas = composed_curve(_scaled(self.event, scale))
        return lambda alpha: np.interp(alpha, alphas, betas)
