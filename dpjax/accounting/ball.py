"""Noise uniform in a ball: its releases, and their delta in closed form."""

import dataclasses
import math
from typing import ClassVar

import numpy as np
from scipy import special

from dpjax import _validate
from dpjax._typing import Relation
from dpjax.accounting.release import Release
from dpjax.accounting.sampled_releases import BatchRelease, Subsets

# More than the relative error of SciPy's incomplete beta function: 6e-16 was measured against 50
# digits, for distances from 1e-12 to 1.2 R and dimensions up to 10^5.
_ROUNDING = 1e-12


def ball_delta(distance: float, radius: float, dimension: int) -> float:
    """Returns the total variation between noise uniform in two balls: the delta of one release.

    The privacy loss is 0 where the balls overlap and infinite elsewhere, so this is delta at
    *every* epsilon: I_{(D / 2R)^2}(1/2, (d + 1)/2), the regularised incomplete beta function.

    Args:
      distance: D, between the centres: the l2 sensitivity.
      radius: R of both balls.
      dimension: d.

    Returns:
      From 0 to 1, not below the true number.

    Raises:
      ValueError: for balls that do not overlap, or a number out of range.

    Reference: Tholeti et al., "On the differentially private nature of perturbed gradient
      descent" (2021), equation 6.

    >>> round(ball_delta(0.5, 1.0, 10), 5)
    0.58993
    """
    distance = _validate.positive("distance", distance)
    radius = _validate.positive("radius", radius)
    dimension = _validate.positive_int("dimension", dimension)
    if distance >= 2 * radius:
        raise ValueError(
            f"radius={radius:g} is at most half of the distance {distance:g} between neighbours: "
            "their balls do not overlap, and every answer distinguishes the two data sets with "
            "certainty. Choose a larger radius."
        )
    delta = special.betainc(0.5, (dimension + 1) / 2, (distance / (2 * radius)) ** 2)
    return min(float(delta) * (1 + _ROUNDING), 1.0)


def ball_radius(distance: float, delta: float, dimension: int) -> float:
    """Returns the radius at which one release has this delta, about D sqrt(d / 2 pi) / delta.

    Args:
      distance: D, the l2 sensitivity.
      delta: strictly between 0 and 1.
      dimension: d.

    Returns:
      A radius, rounded up: ``ball_delta`` of it is at most ``delta``.

    Raises:
      ValueError: for a number out of range.

    >>> round(ball_radius(1.0, 1e-3, 22), 1)
    1892.6
    """
    distance = _validate.positive("distance", distance)
    delta = _validate.open_unit("delta", delta)
    dimension = _validate.positive_int("dimension", dimension)
    root = math.sqrt(float(special.betaincinv(0.5, (dimension + 1) / 2, delta)))
    # The inverse may underflow, or be off: then from the delta of small distances, which is larger.
    # I_x(1/2, b) <= 2 sqrt(x) / B(1/2, b) for b >= 1, so delta is met if sqrt(x) is at most this.
    least = delta * math.exp(float(special.betaln(0.5, (dimension + 1) / 2))) / 2
    radius = distance / (2 * min(max(root, least), 1 - 1e-12))
    # The step doubles, so that the loop ends however far off the inverse was.
    step = _ROUNDING
    while ball_delta(distance, radius, dimension) > delta:
        radius, step = radius * (1 + step), 2 * step
    return radius


def ball_composition(delta: float, count: int, probability: float = 1.0) -> float:
    """Returns the delta of ``count`` releases, 1 - (1 - q delta)^T, which is exact.

    Args:
      delta: of one release on a record that is drawn, from 0 to 1.
      count: T, each may be chosen after seeing the answers of those before.
      probability: q, with which a record is drawn.

    Reference: Kairouz, Oh and Viswanath, "The composition theorem for differential privacy" (2017).

    >>> round(ball_composition(ball_delta(0.1, 1.0, 22), 35_000, 1 / 35_000), 3)
    0.171
    """
    sampled = probability * delta
    # 1 - (1 - q delta)^T, computed so that a small delta keeps its digits.
    return 1.0 if sampled >= 1 else -math.expm1(count * math.log1p(-sampled))


def ball_share(total: float, count: int, probability: float = 1.0) -> float:
    """Returns the delta per release at which ``count`` releases compose to ``total``.

    Args:
      total: strictly between 0 and 1.
      count: T.
      probability: q, with which a record is drawn.

    Raises:
      ValueError: if a delta of 1 or more is allowed, so that any noise meets it.

    >>> share = ball_share(1e-5, 100, probability=0.1)
    >>> round(ball_composition(share, 100, probability=0.1), 12)
    1e-05
    """
    total = _validate.open_unit("total", total)
    share = -math.expm1(math.log1p(-total) / count) / probability
    if share >= 1:
        raise ValueError(
            f"delta={total:g} is met without any noise: {count} releases include each record with "
            f"probability {probability:.3g} only, so it is not a meaningful budget. Lower delta."
        )
    return share


@dataclasses.dataclass(frozen=True, kw_only=True)
class BallRelease(Release):
    """Noise uniform in a ball, added to a function of all records.

    Args:
      dimension: d of the ball, whose radius is sqrt(d + 2) standard deviations of a coordinate.
      the others: as ``Release``; ``sensitivity`` is the distance by which one record, if it is in
        the batch, moves the mean. Balls that do not overlap raise a ``ValueError``.

    >>> round(BallRelease("gradient", 1, 5.0, dimension=2).radius, 6)
    10.0
    """

    dimension: int

    mechanism: ClassVar[str] = "ball"
    fields_determine_loss: ClassVar[bool] = True
    is_gaussian: ClassVar[bool] = False
    is_lossless: ClassVar[bool] = True
    ledger_objection: ClassVar[str | None] = (
        "noise uniform in a ball has the same delta at every epsilon, and no additive Gaussian "
        "or Renyi cost that a ledger could record. Use Gaussian noise (dp_gradient_descent, "
        "dp_sgd), or run it without a ledger and account for its delta by hand."
    )

    def validate(self) -> None:
        super().validate()  # of a batch
        self._check(_validate.positive_int, "dimension")
        # It raises where the balls do not overlap.
        ball_delta(self.sensitivity, self.radius, self.dimension)

    @property
    def radius(self) -> float:
        """Radius of the ball that the noise on the mean is uniform in."""
        return self.stddev * math.sqrt(self.dimension + 2)

    @property
    def probability(self) -> float:
        """The probability with which a record is in a batch."""
        return getattr(self, "sampling_probability", 1.0)

    @property
    def total_variation(self) -> float:
        """Total variation between one release on neighbours: q I_{(D / 2R)^2}(...).

        It holds for any other records in the batch, by convexity. A mechanism of total variation t
        is dominated by the pair that has loss 0 with probability 1 - t and infinite loss else, in
        both directions, so this is all that accounting needs.
        """
        return ball_delta(self.sensitivity, self.radius, self.dimension) * self.probability

    def certain_delta(self, factor: float = 1.0) -> float:
        # Unlike the release itself, one of less noise may have balls that are apart.
        radius, delta = factor * self.radius, 1.0
        if self.sensitivity < 2 * radius:
            delta = ball_delta(self.sensitivity, radius, self.dimension)
        return ball_composition(delta * self.probability, self.count)

    def privacy_loss(self, relation: Relation) -> None:
        """Returns None: ``certain_delta`` is the whole loss."""

    def renyi(self, orders: np.ndarray, relation: Relation) -> np.ndarray:
        raise ValueError(
            f"ball noise, as of {self.name!r}, has no finite Renyi divergence: some answers "
            "distinguish neighbours with certainty. Use accountant='pld'."
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PoissonBallRelease(BallRelease, BatchRelease):
    """Noise uniform in a ball, on Poisson batches; all fields of both."""

    sampling: ClassVar[str] = "poisson"
    fields_determine_loss: ClassVar[bool] = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class SubsetBallRelease(Subsets, PoissonBallRelease):
    """Noise uniform in a ball, on uniformly random subsets; under ``replace_one`` alone."""

    sampling: ClassVar[str] = "without_replacement"
    fields_determine_loss: ClassVar[bool] = True
