"""Trade-off curves from the privacy losses of dp_accounting; NOT PRIVATE."""

import functools
from collections.abc import Callable

import numpy as np
from dp_accounting.pld import privacy_loss_distribution

from dpjax.accounting import Event, Release, SubsetRelease

# Slopes of the lines under which a numerical trade-off curve lies, and the width of its cells.
LOSSES = np.linspace(-12, 12, 1201)
_CELL = 4e-3


@functools.lru_cache(maxsize=256)
def composed_curve(event: Event) -> np.ndarray:
    """Returns corners of a lower bound on the trade-off curve, false positive rates first.

    Raises:
      ValueError: for an event whose losses are not known here.
    """
    if event.relation == "replace_one" or any(isinstance(r, SubsetRelease) for r in event.releases):
        raise ValueError("this claim is about Poisson samples under zero_out or add_or_remove_one.")
    losses = [_losses(release).self_compose(release.count) for release in event.releases]
    composed = functools.reduce(lambda first, second: first.compose(second), losses)
    return envelope(np.asarray(composed.get_delta_for_epsilon(LOSSES)), np.exp(LOSSES))  # pyright: ignore


def _losses(release: Release) -> privacy_loss_distribution.PrivacyLossDistribution:
    probability = getattr(release, "sampling_probability", 1.0)
    if shift := getattr(release, "undrawn_shift", 0.0):
        return privacy_loss_distribution.from_mixture_gaussian_mechanism(
            release.noise_multiplier,
            sensitivities=[shift, 1.0],
            sampling_probs=[1 - probability, probability],
            value_discretization_interval=_CELL,
        )
    return privacy_loss_distribution.from_gaussian_mechanism(
        release.noise_multiplier,
        sampling_prob=probability,
        value_discretization_interval=_CELL,
    )


@functools.lru_cache(maxsize=256)
def sampled_losses(
    multiplier: float, probability: float, count: int
) -> tuple[np.ndarray, Callable[[float], float]]:
    """Returns the corners for Poisson samples alone, and epsilon as a function of delta."""
    losses = privacy_loss_distribution.from_gaussian_mechanism(
        multiplier, sampling_prob=probability, value_discretization_interval=_CELL
    )
    losses = losses.self_compose(count) if count > 1 else losses
    deltas = np.asarray(losses.get_delta_for_epsilon(LOSSES))  # pyright: ignore
    return envelope(deltas, np.exp(LOSSES)), losses.get_epsilon_for_delta


def envelope(deltas: np.ndarray, slopes: np.ndarray) -> np.ndarray:
    """Returns the corners of the maximum of the lines 1 - delta - slope a, by increasing a."""
    # Steeper lines meet at smaller a. Left of the last corner the curve is extended flat, a lower
    # bound.
    alphas = np.minimum.accumulate(-np.diff(deltas) / np.diff(slopes))
    alphas = np.concatenate([[1.0], np.clip(alphas, 0, 1)])
    betas = 1 - deltas - slopes * alphas
    return np.stack([alphas, np.maximum(betas, 0)])[:, ::-1]
