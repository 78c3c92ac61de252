"""Releases of no batch and no plain Gaussian: selections, perturbed objectives, other programs'."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from scipy import special

from dpjax import _validate
from dpjax._lazy import dp_accounting
from dpjax._typing import Relation
from dpjax.accounting import losses
from dpjax.accounting.budget import records_moved
from dpjax.accounting.calibrate import smallest
from dpjax.accounting.events import Event
from dpjax.accounting.release import PrivacyLoss, Release, mu_squared

GUMBEL = math.pi / math.sqrt(6)
"""Standard deviation of Gumbel noise of scale 1."""
# Part of delta spent on the Gaussian noise on the minimiser.
_SHARE = 1e-3
_REFUSALS = ArithmeticError, AssertionError, TypeError, ValueError
_GAUSSIAN = {"GaussianDpEvent", "ComposedDpEvent", "SelfComposedDpEvent"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelectionRelease(Release):
    """The index of the largest score plus Gumbel noise: the exponential mechanism.

    Args:
      failure_probability: bound on the total variation from a selection in real numbers.
      the others: as ``Release``; the multiplier is the standard deviation of the noise over the
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
        self._check(_validate.non_negative, "failure_probability")

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
        return losses.selection, (self.pure_epsilon,)

    def renyi(self, orders: np.ndarray, relation: Relation) -> np.ndarray:
        """Returns the smaller bound at order a: a r^2 / 8 (Cesar and Rogers 2021) or pure r."""
        return np.minimum(orders * self.pure_epsilon / 8, 1.0) * self.pure_epsilon

    @property
    def dp_event(self) -> "dp_accounting.DpEvent":
        """The zCDP event that bounds one selection; PLD does not know it."""
        return dp_accounting.ZCDpEvent(self.pure_epsilon**2 / 8)


def gumbel_multiplier(pure_epsilon: float) -> float:
    """Returns the noise multiplier of a selection of this pure epsilon.

    Args:
      pure_epsilon: of one selection, above 0: the range of its log-ratios.

    Raises:
      ValueError: if it is not a finite number above 0.

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class PerturbationRelease(Release):
    """Objective perturbation: the minimum of an objective with a random linear term.

    Args:
      log_shift: log(1 + M / (n mu)), the privacy loss through the determinant of the Hessian.
      the others: as ``Release``; ``count`` is 1.
    """

    log_shift: float = 0.0

    mechanism: ClassVar[str] = "objective"
    fields_determine_loss: ClassVar[bool] = True
    is_gaussian: ClassVar[bool] = False
    ledger_objection: ClassVar[str | None] = (
        "objective perturbation has no additive cost that a ledger could record, only an epsilon "
        "at each delta; account for it by hand, or use output_perturbation."
    )

    def validate(self) -> None:
        self._check(_validate.non_negative, "log_shift")

    def _beside(self, releases: Sequence[Release]) -> list[Release]:
        """The other releases of an event, which must be unsampled Gaussians."""
        # Not by identity: the same object may stand in the event twice.
        others = list(releases)
        others.remove(self)
        if self.count != 1 or not all(release.is_gaussian for release in others):
            raise ValueError(
                "one objective perturbation is accounted beside unsampled Gaussians only; compose "
                "the epsilon and delta of each run instead."
            )
        return others

    def whole_epsilon(
        self, releases: Sequence[Release], relation: Relation, delta: float, accountant: str
    ) -> float:
        """Returns the epsilon of this release together with Gaussian ones.

        Its epsilon at 0.999 delta plus theirs at 0.001 delta: basic composition, since the noise on
        the minimiser is chosen to cost next to nothing. Other releases raise, and so does "rdp".
        """
        if accountant != "pld":
            raise ValueError(
                "no Renyi bound is known for objective perturbation; take accountant='pld'."
            )
        spent, left = 0.0, delta
        if others := self._beside(releases):
            spent = losses.gaussian_epsilon(1 / math.sqrt(mu_squared(others)), _SHARE * delta)
            left = (1 - _SHARE) * delta
        return spent + smallest(lambda e: perturbed_delta(self, relation, e) <= left, 1e9)

    def whole_deltas(
        self, releases: Sequence[Release], relation: Relation, epsilons: np.ndarray, scale: float
    ) -> np.ndarray:
        """Returns the deltas of an event with this release and little noise on its minimizer."""
        # The Gaussians' loss is N(mu^2 / 2, mu^2): above this with probability Phi(-6) < 1e-9.
        square = mu_squared(release.scaled(scale) for release in self._beside(releases))
        extra = square / 2 + 6.0 * math.sqrt(square)
        own = dataclasses.replace(self, noise_multiplier=scale * self.noise_multiplier)
        return np.array([perturbed_delta(own, relation, e - extra) for e in epsilons]) + 1e-9


def perturbed_delta(release: PerturbationRelease, relation: Relation, epsilon: float) -> float:
    """Returns delta(epsilon) of one objective perturbation, an upper bound for either order.

    The objective is sum f_i(w) + n mu |w|^2 / 2 + <b, w>, b ~ N(0, s^2 I), with f_i(w) =
    phi(<z_i, w>), -G <= phi' <= 0 <= phi'' <= M and |z_i| <= 1. At the minimum b_D(w) = -(sum
    grad f_i(w) + n mu w), and w <-> b is one to one, so that w has the density N(b_D(w); 0, s^2 I)
    det(A_D(w)), A_D the Hessian, which is n mu I at least.

    Let D' lack the record z, a = phi'(<z, w>): b_D' = b_D + a z. If w comes from D, b = b_D is
    normal, and the log-ratio of the densities of D and D' is

      (|b + a z|^2 - |b|^2) / (2 s^2) + log det(A_D) / det(A_D').

    The last term is log(1 + phi'' <z, A_D'^-1 z>), between 0 and k = log(1 + M / (n mu)). In the
    first one a depends on b, but z does not: 2 a <b, z> + a^2 |z|^2 <= 2 G s X + G^2, X the
    positive part of the normal -<b, z> / s. So with t = G / s the loss is at most t X + t^2 / 2 +
    k; from D' to D the same holds without k. Hence delta(e) <= E (1 - exp(e - k - t^2/2 - t X))_+.
    From e = k + t^2/2 on this is the delta of the Gaussian mechanism at e - k.

    If a record is replaced, a z - a' z' has length at most 2 G and lies in a plane that does not
    depend on b: t = 2 G / s, and X has the Rayleigh distribution of the length of b / s in it.

    Args:
      release: 1 / t is its multiplier, k its ``log_shift``.
      relation: of the neighbours.
      epsilon: any number.

    Reference: Kifer, Smith and Thakurta (2012), for the density; Redberg, Koskela and Wang,
      "Improving the privacy and practicality of objective perturbation for differentially private
      linear learners" (2023), theorem 3.1, whose X is the normal's absolute value: they do not use
      that losses fall with the margin. The plane is how their argument reads for a replaced record.

    >>> release = PerturbationRelease("minimizer", 1, 1.0, log_shift=0.5)
    >>> gaussian = special.ndtr(-1.0) - math.exp(1.5) * special.ndtr(-2.0)
    >>> print(round(perturbed_delta(release, "zero_out", 2.0) / gaussian, 9))
    1.0
    """
    t = 1 / release.noise_multiplier
    over = epsilon - release.log_shift - t * t / 2
    at = max(over, 0.0) / t
    beyond = math.exp(over + t * t / 2 + special.log_ndtr(-at - t))
    if relation == "replace_one":
        # E (1 - e^(over - t X))_+ with density x e^(-x^2/2) of X.
        tail = math.sqrt(2 * math.pi) * t * beyond
        return tail if over > 0 else -math.expm1(over) + tail
    # E (1 - e^(over - t X))_+ for X = max(Z, 0), Z normal, so X is 0 with probability 1/2.
    if over > 0:
        return max(float(special.ndtr(-at)) - beyond, 0.0)
    return -math.expm1(over) / 2 + 0.5 - beyond


@dataclasses.dataclass(frozen=True)
class OutsideRelease(Release):
    """What another program released, of which Renyi divergences alone are read, or Gaussians."""

    dp: Any = dataclasses.field(default=None, compare=False)  # the name says what it is
    is_gaussian: bool = False  # pyright: ignore[reportIncompatibleVariableOverride]

    mechanism = "outside"

    def privacy_loss(self, relation: Relation) -> PrivacyLoss | None:
        raise ValueError(f"no privacy loss distribution is read from {self.name}.")

    def renyi(self, orders: np.ndarray, relation: Relation) -> np.ndarray:
        """Returns the least divergence that ``dp_accounting`` knows at each order or above it."""
        # It knows some at whole orders alone, and that of the best of several from all orders.
        grid = np.unique([*orders, *np.ceil(orders), *range(2, 65)])
        like = {"zero_out": "REPLACE_SPECIAL"}.get(relation, relation.upper())
        like = dp_accounting.NeighboringRelation[like]
        found = dp_accounting.rdp.RdpAccountant(grid.tolist(), like).compose(self.dp).rdp
        return np.fmin.accumulate(found[::-1])[::-1][np.searchsorted(grid, orders)]

    def scaled(self, factor: float) -> Release:
        return self


def outside(event: "dp_accounting.DpEvent", relation: Relation) -> Event:
    """Returns what another program released; see ``Ledger.spend``."""
    if not isinstance(event, dp_accounting.DpEvent):
        raise ValueError(
            f"event must be a DpEvent of dp_accounting, got {_validate.shown(event)}; a run of "
            "dpjax is booked by run(ledger=), or by reserve."
        )
    kinds: set[str] = set()
    try:
        dp = _over_sensitivity(event, records_moved(relation), kinds)
        release = OutsideRelease(repr(event), 1, 1.0, dp=dp)
        (divergence,) = release.renyi(np.array([2.0]), relation)
        if not 0 < divergence < np.inf:
            raise ValueError(f"its Renyi divergence at order 2 is {divergence:g}")
        if kinds <= _GAUSSIAN:
            # A Gaussian's divergence at order 2 is mu^2, so this is 1 / mu.
            release = OutsideRelease(release.name, 1, divergence**-0.5, dp=dp, is_gaussian=True)
    except (dp_accounting.UnsupportedEventError, *_REFUSALS) as error:
        raise ValueError(
            f"dp_accounting cannot account for {event!r} under {relation!r}: "
            f"{str(error).rstrip('.')}. If you know a bound, book that: "
            "dp_accounting.ZCDpEvent(rho), or with rho=0 and xi=epsilon one of epsilon alone."
        ) from None
    return Event((release,), relation)


def _over_sensitivity(value: Any, moved: float, kinds: set[str]) -> Any:
    """Returns an event as ``RdpAccountant`` reads it, and notes what kinds of events it holds.

    That takes multipliers to be over the sensitivity, which for a replaced record is twice the
    bound they are defined by; and it reads a batch with an integer among them as that one alone.
    """
    if isinstance(value, list | tuple):
        return [_over_sensitivity(one, moved, kinds) for one in value]
    if not isinstance(value, dp_accounting.DpEvent):
        return value
    kinds.add(type(value).__name__)
    names = [field.name for field in type(value).__attrs_attrs__]  # pyright: ignore
    fields = {name: _over_sensitivity(getattr(value, name), moved, kinds) for name in names}
    if (name := "noise_multiplier") in fields:
        fields[name] = _validate.positive(name, fields[name]) / moved
    if (name := "count") in fields:
        fields[name] = _validate.positive_int(name, fields[name])
    return type(value)(**fields)
