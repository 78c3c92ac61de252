"""What a mechanism claims, as trade-off curves at any noise scale; NOT PRIVATE, as this room is.

A claim is a family of trade-off curves in one number, the noise *relative* to what is claimed: 1 is
the claim itself, 0.95 the curve of a mechanism that adds 5 % too little noise.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Protocol

import numpy as np
from dp_accounting.pld import privacy_loss_distribution
from scipy import stats

from dpjax._typing import Relation
from dpjax.accounting import Event, epsilon
from dpjax.sampling import FullBatch, Poisson

Curve = Callable[[np.ndarray], np.ndarray]

# Slopes of the lines under which a numerical trade-off curve lies, and the width of its cells.
_LOSSES = np.linspace(-12, 12, 1201)
_CELL = 4e-3


class Claim(Protocol):
    """A mechanism's guarantee as an attacker reads it."""

    @property
    def relation(self) -> Relation:
        """The neighbouring relation the claim speaks of."""
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
      event: what the mechanism itself says it releases.

    Reference: Dong, Roth and Su (2022), definition 2.6 and corollary 3.3.

    >>> from dpjax.accounting import Release
    >>> claim = GaussianClaim(Event((Release("one", 1, noise_multiplier=1.0),), "zero_out"))
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
        if scale == 1.0:
            return epsilon(self.event, delta, self.relation)
        releases = tuple(
            dataclasses.replace(release, noise_multiplier=scale * release.noise_multiplier)
            for release in self.event.releases
        )
        return epsilon(Event(releases, self.relation), delta, self.relation)

    def curve(self, scale: float = 1.0) -> Curve:
        """Returns the curve of Gaussian differential privacy at mu / scale."""
        mu = self.event.gaussian_mu / scale
        return lambda alpha: stats.norm.cdf(stats.norm.isf(alpha) - mu)


@dataclasses.dataclass(frozen=True)
class SampledGaussianClaim:
    """Gaussian releases of Poisson samples, from the privacy loss distribution of dp_accounting.

    Args:
      noise_multiplier: standard deviation over the norm of one record's contribution.
      sampling_probability: q, of each record in each release.
      count: number of releases.
      relation: one record more or less: ``"add_or_remove_one"`` or ``"zero_out"``.
      event: what the mechanism says of itself; None where it is a bare draw with noise.

    The curve is the upper envelope of the lines 1 - delta(epsilon) - e^epsilon a, with delta never
    below the true one: it lies under the true curve, so that no sound mechanism is called broken.

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
        return _sampled_losses(scale * self.noise_multiplier, self.sampling_probability, self.count)


def sampled_epsilon(claim: SampledGaussianClaim, delta: float) -> float:
    """Returns the epsilon that is claimed for ``claim``, by the accounting of the product.

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


@functools.lru_cache(maxsize=256)
def _sampled_losses(
    multiplier: float, probability: float, count: int
) -> tuple[np.ndarray, Callable[[float], float]]:
    losses = privacy_loss_distribution.from_gaussian_mechanism(
        multiplier, sampling_prob=probability, value_discretization_interval=_CELL
    )
    losses = losses.self_compose(count) if count > 1 else losses
    deltas = np.asarray(losses.get_delta_for_epsilon(_LOSSES))  # pyright: ignore
    return _envelope(deltas, np.exp(_LOSSES)), losses.get_epsilon_for_delta


def _envelope(deltas: np.ndarray, slopes: np.ndarray) -> np.ndarray:
    # Corners of the highest of the lines 1 - delta - slope a; steeper ones meet at smaller a. Left
    # of the last corner the curve is cut off flat, which is below it.
    alphas = np.minimum.accumulate(-np.diff(deltas) / np.diff(slopes))
    alphas = np.concatenate([[1.0], np.clip(alphas, 0, 1)])
    betas = 1 - deltas - slopes * alphas
    return np.stack([alphas, np.maximum(betas, 0)])[:, ::-1]
