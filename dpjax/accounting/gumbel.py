"""Selections by the exponential mechanism: the release, and noise multipliers of Gumbel noise."""

import dataclasses
import math
from typing import Any, ClassVar

import dp_accounting
import numpy as np

from dpjax import _validate
from dpjax._typing import Relation
from dpjax.accounting import losses
from dpjax.accounting.release import PrivacyLoss, Release

GUMBEL = math.pi / math.sqrt(6)
"""Standard deviation of Gumbel noise of scale 1."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelectionRelease(Release):
    """The index of the largest score plus Gumbel noise: the exponential mechanism.

    Args:
      failure_probability: bound on the total variation between a selection in floating point and
        one in real numbers.
      **others: as ``Release``; the multiplier is the standard deviation of the noise over the
        sensitivity of every score.

    >>> round(SelectionRelease("selection", 1, gumbel_multiplier(0.5)).pure_epsilon, 9)
    0.5
    """

    failure_probability: float = 0.0  # pyright: ignore[reportIncompatibleMethodOverride]

    mechanism: ClassVar[str] = "exponential"
    fields_determine_loss: ClassVar[bool] = True
    std_of: ClassVar[str] = "score"
    is_gaussian: ClassVar[bool] = False

    def validate(self) -> None:
        failure = _validate.non_negative("failure_probability", self.failure_probability)
        object.__setattr__(self, "failure_probability", failure)

    @property
    def pure_epsilon(self) -> float:
        """The pure epsilon of one selection: the range of its log-likelihood ratios.

        Two neighbours move every score by the sensitivity at most, so the log-ratios of all
        outcomes lie within 2 sensitivity / scale of each other, rounded up.
        """
        return 2 * GUMBEL / self.noise_multiplier * (1 + 1e-15)

    @property
    def growing_charge(self) -> float:
        # ``constant_charge`` has all of it: beyond the pure epsilon the charge grows no further.
        return 0.0

    @property
    def constant_charge(self) -> float:
        """The part of delta charged for rounding in all selections, at any epsilon.

        With t the total variation between a selection as made and as accounted, whose pure epsilon
        is r, its profile rises by t (1 + e^e) at most while e <= r, and above r it was 0 and only
        falls: by t (1 + e^r) everywhere, and so does the profile of any composition with it.
        """
        # e^700 is still a float64.
        grown = 1 + math.exp(min(self.pure_epsilon, 700))
        return self.count * self.failure_probability * grown

    def privacy_loss(self, relation: Relation) -> PrivacyLoss:
        """Returns the loss of a pair that dominates every exponential mechanism of this range."""
        return losses.selection, (self.pure_epsilon,)

    def renyi(self, orders: np.ndarray, relation: Relation) -> np.ndarray:
        """Returns the bound of Cesar and Rogers (2021) for log-ratios of this range."""
        # The smaller of two bounds at order a: a r^2 / 8 (zCDP), and r, the pure epsilon.
        return np.minimum(orders * self.pure_epsilon / 8, 1.0) * self.pure_epsilon

    @property
    def dp_event(self) -> dp_accounting.DpEvent:
        """The zCDP event that bounds one selection; PLD does not know it."""
        return dp_accounting.ZCDpEvent(self.pure_epsilon**2 / 8)


def gumbel_multiplier(pure_epsilon: float) -> float:
    """Returns the noise multiplier of a selection whose log-ratios have this range.

    >>> round(gumbel_multiplier(1.0), 4)
    2.5651
    """
    return 2 * GUMBEL / _validate.positive("pure_epsilon", pure_epsilon)


def gumbel_scale(noise_multiplier: Any) -> Any:
    """Returns the scale of the Gumbel noise over the sensitivity; the multiplier may be traced.

    >>> round(gumbel_scale(gumbel_multiplier(1.0)), 9)
    2.0
    """
    return noise_multiplier / GUMBEL
