"""``SearchRelease``: the best of a random number of trainings, all others secret."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from dpjax import _validate
from dpjax._lazy import dp_accounting
from dpjax._typing import Relation
from dpjax.accounting import events
from dpjax.accounting.best_of import BestOf, NumberOfTrials
from dpjax.accounting.calibrate import smallest
from dpjax.accounting.release import PrivacyLoss, Release, mu_squared

_LARGEST_EPSILON = 700.0
# Where a bound may be lower than at the order asked for.
_HIGHER_ORDERS = np.array([2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0])


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchRelease(Release):
    """The training with the largest score, of a random number of them; all others stay secret.

    Args:
      trainings: what one training releases, its score included. Where settings differ in what is
        accounted, one tuple for each; the guarantee is that of the largest loss.
      trials: mean of the number K of trainings, see ``NumberOfTrials``.
      cap: the largest K.
      shape: of its distribution.
      settings: how many settings are declared.
      public_score: whether the score is computed from the released parameters and public records.
      the others: as ``Release``; ``count`` is 1. ``SearchRelease.of`` sets those that follow.

    >>> one = Release("training", 1, noise_multiplier=10.0)
    >>> search = SearchRelease.of([(one,)], NumberOfTrials(10, 40), settings=32)
    >>> event = events.Event((search,), "zero_out")
    >>> print(round(events.epsilon(event, 1e-6, "zero_out"), 2))
    0.6
    """

    trainings: tuple[tuple[Release, ...], ...]
    trials: float
    cap: int
    shape: float
    settings: int
    public_score: bool = False

    mechanism: ClassVar[str] = "search"
    fields_determine_loss: ClassVar[bool] = True
    is_gaussian: ClassVar[bool] = False

    @classmethod
    def of(
        cls,
        trainings: Iterable[Iterable[Release]],
        number: NumberOfTrials,
        *,
        settings: int,
        public_score: bool = False,
    ) -> "SearchRelease":
        """Returns the release of a search whose trainings release these.

        Args:
          trainings: as the field; the first is printed, others are kept if they may lose more.
          number: distribution of the number of trainings.
          settings: as the field.
          public_score: as the field.

        Raises:
          ValueError: if nothing is released, or for a search of searches.
        """
        kept: list[tuple[Release, ...]] = []
        every = list(map(tuple, trainings))
        for releases in every:
            # A setting whose loss is covered by another needs no accounting of its own.
            if not any(_covers(other, releases) for other in kept):
                # The first is the one that is printed.
                kept = kept[:1] + [other for other in kept[1:] if not _covers(releases, other)]
                kept.append(releases)
        released = [release for releases in kept for release in releases]
        if not released:
            raise ValueError("a search needs the releases of at least one training.")
        return cls(
            "search",
            1,
            # The smallest multiplier, because the charge for the tails of the draws grows as noise
            # falls.
            noise_multiplier=min(one.noise_multiplier for each in every for one in each),
            # A search always runs as many trainings as the cap, and all of them draw noise.
            noise_draws=number.cap
            * max(sum(r.count * r.noise_draws for r in one) for one in every),
            trainings=tuple(kept),
            trials=number.mean,
            cap=number.cap,
            shape=number.shape,
            settings=settings,
            public_score=public_score,
        )

    def validate(self) -> None:
        _validate.positive_int("settings", self.settings)
        object.__setattr__(self, "trials", self.number.mean)
        if self.count != 1:
            raise ValueError(f"one search is one release, got count={self.count}.")
        for releases in self.trainings:
            if not releases or any(isinstance(release, SearchRelease) for release in releases):
                raise ValueError("a training releases something, and no other search.")

    def check_relation(self, relation: Relation) -> None:
        for release in self._released:
            release.check_relation(relation)

    @property
    def number(self) -> NumberOfTrials:
        """The distribution of the number of trainings."""
        return NumberOfTrials(self.trials, self.cap, self.shape)

    @property
    def _released(self) -> list[Release]:
        return [release for releases in self.trainings for release in releases]

    @property
    def failure_probability(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """That of one training times the expected number of them."""
        each = (math.fsum(r.count * r.failure_probability for r in one) for one in self.trainings)
        return self.number.expected * max(each)

    @property
    def ledger_objection(self) -> str | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        objections = (release.ledger_objection for release in self._released)
        return next((words for words in objections if words is not None), None)

    @property
    def ends_early(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return any(release.ends_early for release in self._released)

    def parts(self) -> Sequence[Release]:
        return self.trainings[0]

    def privacy_loss(self, relation: Relation) -> PrivacyLoss | None:
        raise ValueError(_COMPOSES)

    def whole_epsilon(
        self, releases: Sequence[Release], relation: Relation, delta: float, accountant: str
    ) -> float | None:
        """Returns the epsilon of the search alone, by its privacy profile; by Renyi DP, None."""
        if accountant == "rdp":
            return None
        _check_alone(releases)
        best = _best(self, relation)

        def fits(epsilon: float) -> bool:
            return float(best.delta(np.array([epsilon]))[0]) <= delta

        return 0.0 if fits(0.0) else smallest(fits, _LARGEST_EPSILON, tolerance=1e-9)

    def whole_deltas(
        self, releases: Sequence[Release], relation: Relation, epsilons: np.ndarray, scale: float
    ) -> np.ndarray:
        _check_alone(releases)
        one = self if scale == 1.0 else self.scaled(scale)
        return np.minimum(_best(one, relation).delta(np.asarray(epsilons, np.float64)), 1.0)

    def renyi(self, orders: np.ndarray, relation: Relation) -> np.ndarray:
        at = np.union1d(orders, _HIGHER_ORDERS)
        each = [
            np.sum([r.count * r.renyi(at, relation) for r in releases], axis=0)
            for releases in self.trainings
        ]
        bounds = np.max(each, axis=0) + _best(self, relation).renyi_excess(at)
        # A divergence does not fall with its order, so a bound at a higher one holds too.
        least = np.minimum.accumulate(bounds[::-1])[::-1]
        return least[np.searchsorted(at, orders)]

    @property
    def dp_event(self) -> "dp_accounting.DpEvent":
        """The event of ``dp_accounting``, for comparison: without the cap, of the same r."""
        # Without a cap a negative binomial needs a ratio below 1.
        if not self.number.ratio < 1 and self.number.shape != math.inf:
            return dp_accounting.UnsupportedDpEvent()
        one = events.Event(self.trainings[0], "zero_out").dp_event
        return dp_accounting.dp_event.RepeatAndSelectDpEvent(
            one, float(_uncapped_mean(self.number)), float(self.number.shape)
        )

    def scaled(self, factor: float) -> "SearchRelease":
        multiplier = factor * self.noise_multiplier
        return self._with(lambda one: one.scaled(factor), noise_multiplier=multiplier)

    def without_failures(self) -> "SearchRelease":
        return self._with(lambda one: one.without_failures())

    def _with(self, change: Callable[[Release], Release], **own: Any) -> "SearchRelease":
        trainings = tuple(tuple(map(change, releases)) for releases in self.trainings)
        return dataclasses.replace(self, trainings=trainings, **own)

    def to_json(self) -> dict[str, Any]:
        """Returns the release as the command line prints it; noise is that of each training."""
        own = {"stddev": None, "sensitivity": None, "multiplier": None}
        own |= {"components": {}, "parts": [release.to_json() for release in self.trainings[0]]}
        shape = "poisson" if self.shape == math.inf else self.shape
        more = {"trials": self.trials, "cap": self.cap, "shape": shape}
        more |= {"settings": self.settings, "public_score": self.public_score}
        return super().to_json() | own | more


_COMPOSES = (
    "a private random search has no privacy loss distribution that could be composed with other "
    "releases: account for them together by accountant='rdp', or by a ledger. "
    "For the search alone 'pld' gives the epsilon of its privacy profile."
)


def _check_alone(releases: Sequence[Release]) -> None:
    if len(releases) != 1:
        raise ValueError(_COMPOSES)


# Of a release: what its accounting does not read.
_NOT_ACCOUNTED = {"name", "sensitivity", "components", "quantity"}


def accounting_key(value: Any, noise: bool = True) -> Any:
    """Returns what tells the accounting of a training's releases from that of another; hashable."""
    if isinstance(value, Release):
        skipped = _NOT_ACCOUNTED | ({"noise_multiplier"} if not noise else set())
        names = (field.name for field in dataclasses.fields(value) if field.name not in skipped)
        return type(value), *(accounting_key(getattr(value, name), noise) for name in names)
    # The releases of a training, those that are a release's parts, or of each training of a search.
    if type(value) not in (list, tuple):
        return value
    return tuple(accounting_key(one, noise) for one in value)


def _covers(one: tuple[Release, ...], other: tuple[Release, ...]) -> bool:
    """Whether the loss of ``other`` is provably at most that of ``one``."""
    if all(release.is_gaussian for release in one + other):
        return mu_squared(other) <= mu_squared(one)
    return accounting_key(one) == accounting_key(other)


def _uncapped_mean(number: NumberOfTrials) -> float:
    """The mean without the cap, for the same r."""
    gamma, shape = 1 - number.ratio, number.shape
    if shape == math.inf:
        return number.ratio
    if shape == 0:
        return (1 / gamma - 1) / -math.log(gamma)
    return shape * (1 - gamma) / (gamma * (1 - gamma**shape))


@functools.lru_cache(maxsize=512)
def _best(search: SearchRelease, relation: Relation) -> BestOf:
    # The charge for drawing the noise is made once, for the whole search.
    trainings = [events.Event(each, relation).with_exact_noise for each in search.trainings]

    def largest(epsilons: np.ndarray) -> np.ndarray:
        return np.max([events.deltas(each, epsilons) for each in trainings], axis=0)

    return BestOf.of(search.number, largest)
