"""The epsilon of objective perturbation, from a bound on its privacy loss in closed form."""

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar

import dp_accounting
import numpy as np
from scipy import special

from dpjax import _validate
from dpjax._typing import Relation
from dpjax.accounting.release import Release

# Part of delta spent on the Gaussian noise on the minimiser.
_SHARE = 1e-3


@dataclasses.dataclass(frozen=True, kw_only=True)
class PerturbationRelease(Release):
    """Objective perturbation: the minimum of an objective with a random linear term.

    Args:
      log_shift: log(1 + M / (n mu)), the privacy loss through the determinant of the Hessian.
      **others: as ``Release``; ``count`` is 1.
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
        shift = _validate.non_negative("log_shift", self.log_shift)
        object.__setattr__(self, "log_shift", shift)

    def whole_epsilon(
        self, releases: Sequence[Release], relation: Relation, delta: float, accountant: str
    ) -> float:
        return perturbed_epsilon(self, releases, relation, delta, accountant)

    def whole_deltas(
        self, releases: Sequence[Release], relation: Relation, epsilons: np.ndarray, scale: float
    ) -> np.ndarray:
        """Returns the deltas of an event with this release and little noise on its minimizer."""
        others = [release.scaled(scale) for release in _beside(self, releases)]
        # The Gaussians' loss is N(mu^2 / 2, mu^2): above this with probability Phi(-6) < 1e-9.
        square = math.fsum(release.count / release.noise_multiplier**2 for release in others)
        extra = square / 2 + 6.0 * math.sqrt(square)
        own = dataclasses.replace(self, noise_multiplier=scale * self.noise_multiplier)
        return np.array([perturbed_delta(own, relation, e - extra) for e in epsilons]) + 1e-9

    def renyi(self, orders: np.ndarray, relation: Relation) -> np.ndarray:
        raise ValueError("no Renyi bound is known for objective perturbation.")

    @property
    def dp_event(self) -> dp_accounting.DpEvent:
        return dp_accounting.UnsupportedDpEvent()


def perturbed_epsilon(
    perturbed: PerturbationRelease,
    releases: Sequence[Release],
    relation: Relation,
    delta: float,
    accountant: str,
) -> float:
    """Returns the epsilon of one objective perturbation together with Gaussian releases.

    The epsilon of the former at 0.999 delta plus that of the latter at 0.001 delta: basic
    composition, since the noise on the minimiser is chosen to cost next to nothing. Other releases
    than ``perturbed`` and unsampled Gaussians raise, and so does ``"rdp"``.
    """
    if accountant != "pld":
        raise ValueError(
            "no Renyi bound is known for objective perturbation; take accountant='pld'."
        )
    others = _beside(perturbed, releases)
    spent, left = 0.0, delta
    if others:
        mu = math.sqrt(math.fsum(r.count / r.noise_multiplier**2 for r in others))
        with np.errstate(divide="ignore"):
            spent = dp_accounting.get_epsilon_gaussian(1 / mu, _SHARE * delta) + 2e-12
        left = (1 - _SHARE) * delta
    low, high = 0.0, 1.0
    while perturbed_delta(perturbed, relation, high) > left:
        low, high = high, 2 * high
        if high > 1e9:
            return math.inf
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (
            (low, middle)
            if perturbed_delta(perturbed, relation, middle) <= left
            else (middle, high)
        )
    # The upper end of the bracket, which was checked to fit.
    return high + spent


def _beside(perturbed: PerturbationRelease, releases: Sequence[Release]) -> list[Release]:
    """The other releases of an event, which must be unsampled Gaussians."""
    # Not by identity: the same object may stand in the event twice.
    others = list(releases)
    others.remove(perturbed)
    if perturbed.count != 1 or not all(release.is_gaussian for release in others):
        raise ValueError(
            "one objective perturbation is accounted beside unsampled Gaussians only; compose "
            "the epsilon and delta of each run instead."
        )
    return others


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
    if relation == "replace_one":
        # E (1 - e^(over - t X))_+ with density x e^(-x^2/2) of X.
        tail = math.sqrt(2 * math.pi) * t * math.exp(over + t * t / 2 + special.log_ndtr(-at - t))
        if over > 0:
            return tail
        return -math.expm1(over) + tail
    # E (1 - e^(over - t X))_+ for X = max(Z, 0), Z normal, so X is 0 with probability 1/2.
    beyond = math.exp(over + t * t / 2 + special.log_ndtr(-at - t))
    if over > 0:
        return max(float(special.ndtr(-at)) - beyond, 0.0)
    return -math.expm1(over) / 2 + 0.5 - beyond
