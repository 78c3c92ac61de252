"""Releases on sampled records: Poisson batches, uniform subsets, and single passes."""

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
from dpjax.accounting.release import PrivacyLoss, Release

# Logarithms of moments near 1 are up to this too small, relative to the order minus 1.
_LOG_ROUNDING = 2.0**-48


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchRelease(Release):
    """Releases on Poisson batches and on uniform subsets.

    Args:
      sampling_probability: of a record being drawn, exact.
      max_batch_size: the most records a batch holds.
      data_size: the declared n that is drawn from.
      failure_probability: bound on the total variation between an actual and an accounted draw,
        such as the probability that more than ``max_batch_size`` records were drawn.
    """

    sampling_probability: float
    max_batch_size: int
    data_size: int
    failure_probability: float = 0.0  # pyright: ignore[reportIncompatibleMethodOverride]

    is_gaussian: ClassVar[bool] = False
    is_subsampled: ClassVar[bool] = True

    def validate(self) -> None:
        self._check(_validate.non_negative, "failure_probability")
        self._check(_validate.positive_int, "max_batch_size", "data_size")
        self._check(_validate.open_unit, "sampling_probability")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PoissonRelease(BatchRelease):
    """Gaussian noise on Poisson batches: each record is drawn by its own Bernoulli trial.

    Args:
      undrawn_shift: from 0 to 1, how far a record that is not drawn moves the release, over the
        bound on one that is: where each release also holds an exact part of all records, such as
        the gradient at an anchor.
      the others: as ``Release``, and ``sampling_probability``, ``max_batch_size``, ``data_size``,
        ``failure_probability`` of the draw.
    """

    undrawn_shift: float = 0.0

    sampling: ClassVar[str] = "poisson"
    fields_determine_loss: ClassVar[bool] = True

    def validate(self) -> None:
        super().validate()
        self._check(_validate.closed_unit, "undrawn_shift")

    @property
    def ledger_objection(self) -> str | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        if not self.undrawn_shift:
            return None
        return (
            "this run combines its batches with an exact (un-noised) term over all records, for "
            "which a ledger has no additive bound. Add noise to it, or run without a ledger."
        )

    def check_relation(self, relation: Relation) -> None:
        super().check_relation(relation)
        if relation == "replace_one" and self.undrawn_shift:
            raise ValueError(
                "batches combined with an exact (un-noised) term over all records have no proven "
                "accounting under relation='replace_one': the natural dominating pair is not the "
                "worst case. Declare 'zero_out' or 'add_or_remove_one', or add noise to it."
            )

    def privacy_loss(self, relation: Relation) -> PrivacyLoss:
        """Returns the privacy loss; under ``replace_one`` that of two opposite records."""
        numbers = (self.sampling_probability, 1 / self.noise_multiplier)
        if self.undrawn_shift:
            return losses.anchored, (*numbers, self.undrawn_shift)
        return (losses.poisson_swap if relation == "replace_one" else losses.poisson), numbers

    def renyi(self, orders: np.ndarray, relation: Relation) -> np.ndarray:
        if self.undrawn_shift:
            raise ValueError(
                f"no Renyi bound is implemented for {self.name!r}, to which records contribute "
                "even when they are not sampled; use accountant='pld'."
            )
        if relation == "replace_one":
            raise ValueError(
                "no Renyi bound is known for Poisson batches under replace_one; use "
                "accountant='pld', relation='zero_out', or batches of fixed size."
            )
        integer, divergences = orders == np.floor(orders), np.empty(len(orders))
        # At integer orders dp_accounting has a finite sum; elsewhere its series may fail, see
        # ``_fractional``.
        if integer.any():
            accountant = dp_accounting.rdp.RdpAccountant(orders[integer].tolist())
            divergences[integer] = accountant.compose(self.dp_event).rdp
        if not integer.all():
            divergences[~integer] = _fractional(
                self.sampling_probability, 1 / self.noise_multiplier, orders[~integer]
            )
        # dp_accounting takes an epsilon of 0 from a negative divergence.
        return np.maximum(divergences, 0.0) + _LOG_ROUNDING / np.minimum(orders - 1, 1.0)

    @property
    def dp_event(self) -> "dp_accounting.DpEvent":
        q, multiplier = float(self.sampling_probability), float(self.noise_multiplier)
        if self.undrawn_shift:
            return dp_accounting.dp_event.MixtureOfGaussiansDpEvent(
                multiplier, [float(self.undrawn_shift), 1.0], [1 - q, q]
            )
        return dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(multiplier))


class Subsets:
    """Releases on uniformly random subsets, whose accounting is for ``replace_one`` alone."""

    refused: ClassVar[dict[str, str]] = dict.fromkeys(
        ("zero_out", "add_or_remove_one"),
        "sampling without replacement has an accounting under relation='replace_one' only: else "
        "a record that leaves lets another one in. Use Poisson batches, or declare replace_one.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SubsetRelease(Subsets, BatchRelease):
    """Gaussian noise on uniformly random subsets of ``max_batch_size`` records.

    Args:
      the others: as ``PoissonRelease``, without ``undrawn_shift``.
    """

    sampling: ClassVar[str] = "without_replacement"
    fields_determine_loss: ClassVar[bool] = True

    def validate(self) -> None:
        super().validate()
        if self.sampling_probability != self.max_batch_size / self.data_size:
            raise ValueError(
                f"a subset of {self.max_batch_size} of {self.data_size} records is drawn with "
                f"probability {self.max_batch_size}/{self.data_size}, got "
                f"{self.sampling_probability!r}."
            )

    def privacy_loss(self, relation: Relation) -> PrivacyLoss:
        """Returns the privacy loss, relative to 2 C, the bound on a difference of records."""
        return losses.subset_swap, (self.sampling_probability, 2 / self.noise_multiplier)

    def renyi(self, orders: np.ndarray, relation: Relation) -> np.ndarray:
        accountant = dp_accounting.rdp.RdpAccountant(
            orders.tolist(), dp_accounting.NeighboringRelation.REPLACE_ONE
        )
        return accountant.compose(self.dp_event).rdp

    @property
    def dp_event(self) -> "dp_accounting.DpEvent":
        # The one accountant that knows it reads the multiplier over 2 C.
        halved = dp_accounting.GaussianDpEvent(float(self.noise_multiplier) / 2)
        return dp_accounting.SampledWithoutReplacementDpEvent(
            self.data_size, self.max_batch_size, halved
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SinglePassRelease(Release):
    """One pass that uses each record in at most one answer, in an order independent of the data.

    To one record it is one Gaussian mechanism, however many answers there are.

    Args:
      data_size: the declared n.
      disjoint_parts: the releases on disjoint sets of records, made by ``parallel``.
      the others: as ``Release``; ``count`` is 1.
    """

    data_size: int
    disjoint_parts: tuple["SinglePassRelease", ...] = ()

    sampling: ClassVar[str] = "single_pass"
    fields_determine_loss: ClassVar[bool] = True
    ends_early: ClassVar[bool] = True
    refused: ClassVar[dict[str, str]] = {
        "add_or_remove_one": "a single pass reads each record at most once, in one random order: "
        "under relation='add_or_remove_one' removing a record shifts later ones into other "
        "batches, which has no accounting. Declare zero_out or replace_one, with public n."
    }

    def validate(self) -> None:
        self._check(_validate.positive_int, "data_size")
        if self.count != 1:
            raise ValueError(
                "a single pass is one Gaussian mechanism for each record, count=1, however many "
                f"queries there are; got count={self.count}."
            )
        for part in self.disjoint_parts:
            # Claiming less noise than a part has is safe; claiming more would understate the loss.
            if self.noise_multiplier > part.noise_multiplier:
                raise ValueError(
                    f"{self.name!r} claims more noise than its part {part.name!r} has; build it "
                    "with parallel(name, parts)."
                )
            if part.sampling != self.sampling or part.data_size != self.data_size:
                raise ValueError(
                    f"the part {part.name!r} must be a pass over the same {self.data_size} records."
                )

    def parts(self) -> Sequence["SinglePassRelease"]:
        """Returns the releases on disjoint sets of records; the pass itself if there is one set."""
        return self.disjoint_parts or (self,)

    def scaled(self, factor: float) -> "SinglePassRelease":
        # The parts change too, or the pass would claim more noise than they have.
        parts = tuple(part.scaled(factor) for part in self.disjoint_parts)
        multiplier = factor * self.noise_multiplier
        return dataclasses.replace(self, noise_multiplier=multiplier, disjoint_parts=parts)


def parallel(name: str, parts: Sequence[Release]) -> SinglePassRelease:
    """Returns the release of one pass whose answers use disjoint sets of records.

    Each record is in one set, chosen independently of the data, so only the release on that set
    costs it privacy. The largest loss of any part is that of the pass (parallel composition).

    Args:
      name: of the pass, as printed.
      parts: on the same data; at least one.

    Raises:
      ValueError: for other releases.

    Privacy: the caller must ensure that the sets are disjoint: a release does not name its records.

    Reference: McSherry (2009), theorem 4, for Gaussian differential privacy.

    >>> def part(name, multiplier):
    ...     return SinglePassRelease(name, 1, multiplier, data_size=100)
    >>> parallel("all", (part("first", 3.0), part("last", 2.0))).noise_multiplier
    2.0
    """
    if not parts:
        raise ValueError("parallel needs at least one release.")
    for part in parts:
        if not isinstance(part, SinglePassRelease):
            raise ValueError(
                f"parallel needs single passes, and the part {part.name!r} is not one: only a "
                "single pass reads disjoint records."
            )
    passes = tuple(part for part in parts if isinstance(part, SinglePassRelease))
    largest_loss = min(passes, key=lambda part: part.noise_multiplier)
    return dataclasses.replace(
        largest_loss,
        name=name,
        components=tuple(component for part in parts for component in part.components),
        # Every part draws noise, although a record pays for the loss of one part only.
        noise_draws=sum(part.count * part.noise_draws for part in passes),
        disjoint_parts=passes,
    )


def _fractional(q: float, mu: float, orders: np.ndarray) -> np.ndarray:
    """Log E[(1 - q + q e^(mu x - mu^2/2))^a] / (a - 1) over normal x, by the trapezoidal rule.

    It converges as e^(-1/step), for every order; the series of dp_accounting fails for some.
    """
    unsampled = orders * mu**2 / 2
    if mu > 8:  # sampling never loses privacy, so this is a bound; there is little to gain
        return unsampled
    # A tenth of the scale on which the integrand changes.
    step = 0.1 * min(1.0, 1 / mu)
    # At order a the integrand peaks at a mu or before; 12 deviations beyond it is negligible.
    x = np.arange(-12.0, 12.0 + orders.max() * mu, step)
    ratio = np.logaddexp(np.log1p(-q), np.log(q) + mu * x - mu**2 / 2)
    terms = orders[:, None] * ratio - x**2 / 2
    sums: Any = special.logsumexp(terms, axis=1)
    moments = sums + math.log(step / math.sqrt(2 * math.pi))
    return moments / (orders - 1)
