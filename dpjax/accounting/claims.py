"""Claimed guarantees as trade-off curves at any noise scale; NOT PRIVATE.

A claim is a family of trade-off curves in one parameter, the noise *relative* to the claim: 1 is
the claim, 0.95 the curve of a mechanism that adds 5 % too little noise.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np
from scipy import stats

from dpjax._typing import Relation
from dpjax.accounting.events import Event, deltas, epsilon

Curve = Callable[[np.ndarray], np.ndarray]

# Slopes, in logarithms, of the lines under which a numerical trade-off curve lies.
_LOSSES = np.linspace(-12, 12, 1201)


@dataclasses.dataclass(frozen=True)
class Claim:
    """The guarantee of a mechanism, as an audit tests it.

    Args:
      event: the mechanism's event.

    The curve of Gaussians is exact, f(a) = Phi(Phi^-1(1 - a) - mu). That of anything else is the
    upper envelope of the lines 1 - delta(epsilon) - e^epsilon a, with delta never below the true
    one. It lies under the true curve, so that no sound mechanism is refuted.

    Reference: Dong, Roth and Su (2022), definition 2.6, corollary 3.3 and proposition 2.13.

    >>> from dpjax.accounting import Release
    >>> claim = Claim(Event((Release("gaussian", 1, noise_multiplier=1.0),), "zero_out"))
    >>> round(claim.epsilon(1e-5), 3), round(float(claim.curve()(0.3085)), 3)
    (4.377, 0.309)
    """

    event: Event

    @property
    def relation(self) -> Relation:
        """The neighbouring relation of the claim."""
        return self.event.relation

    @property
    def is_certain(self) -> bool:
        """Whether all that is claimed is a delta, the same at every epsilon, as of ball noise.

        Its epsilon at a usual delta is infinite, so the claim is ``delta``.
        """
        return all(each.is_lossless for each in self.event.releases)

    def delta(self, scale: float = 1.0) -> float:
        """Returns delta at epsilon 0, the total variation, if the noise were ``scale`` times it."""
        # A scale of infinity: no amount of noise was contradicted.
        if math.isinf(scale):
            return 0.0
        return float(deltas(self.event, np.zeros(1), scale)[0])

    def epsilon(self, delta: float, scale: float = 1.0) -> float:
        """Returns the epsilon at ``delta`` if the noise were ``scale`` times the claimed one.

        At another scale than 1 no failure of a draw is charged: of so little noise that e^epsilon
        is large, such a charge would be all of delta, and tell nothing of the noise.
        """
        if self.is_certain:
            return 0.0 if self.delta(scale) <= delta else math.inf
        return epsilon(_scaled(self.event, scale), delta, self.relation)

    def curve(self, scale: float = 1.0) -> Curve:
        """Returns f: least false negative rate of a test, given its false positive rate.

        For either order of the neighbours. f does not increase, and at a larger scale it does not
        lie below f at a smaller one.
        """
        if self.event.is_gaussian:
            mu = self.event.gaussian_mu / scale
            # The upper tail keeps the digits of a small alpha, which 1 - alpha would lose.
            return lambda alpha: stats.norm.cdf(stats.norm.isf(alpha) - mu)
        alphas, betas = _corners(self.event, scale)
        return lambda alpha: np.interp(alpha, alphas, betas)


def _scaled(event: Event, scale: float) -> Event:
    if scale == 1.0:
        return event
    return event.each(lambda release: release.without_failures().scaled(scale))


@functools.lru_cache(maxsize=256)
def _corners(event: Event, scale: float) -> np.ndarray:
    """The corners of a lower bound on the trade-off curve, false positive rates first."""
    sizes = np.abs(_LOSSES)
    bounds = deltas(event, sizes, scale)
    # In the other order, at e^-e: 1 - e^-e + e^-e delta(e).
    opposite = -np.expm1(-sizes) + np.exp(-sizes) * bounds
    bounds, slopes = np.where(_LOSSES < 0, opposite, bounds), np.exp(_LOSSES)
    # The maximum of the lines 1 - delta - slope a: steeper ones meet at smaller a. Left of the last
    # corner the curve is extended flat, a lower bound.
    alphas = np.minimum.accumulate(-np.diff(bounds) / np.diff(slopes))
    alphas = np.concatenate([[1.0], np.clip(alphas, 0, 1)])
    betas = 1 - bounds - slopes * alphas
    return np.stack([alphas, np.maximum(betas, 0)])[:, ::-1]
