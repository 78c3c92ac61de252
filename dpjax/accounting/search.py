"""``SearchRelease``: the best of a random number of trainings, and what it spends.

One training is a mechanism Q: it draws a setting, trains, and releases all of the training with a
score. The search draws K, makes K independent trainings and releases the one with the largest
score. Let f(x) = E[x^K], and let u = Q(score below that of y), ties broken by a coin of their own.
The search releases y with density f'(u) Q(dy): K choices of the winner, the others below
(Papernot and Steinke 2022, lemma 7). For a neighbour it is f'(v) Q'(dy), with v the probability of
the same event under Q'. Nothing else is known of u and v than that Q is private: with h(e) the
privacy profile of one training, sup over events S of Q(S) - e^e Q'(S) <= h(e) for all real e, and
so v >= w(u) = max over e of e^-e (u - h(e)).

*Privacy profile.* For a = e^epsilon

  sup_S A(S) - a A'(S) = E_Q[(f'(u) - a f'(v) r)_+] <= E_Q[g(a r)],   r = dQ'/dQ,
  g(t) = max over u of (f'(u) - f'(w(u)) t)_+,

since f' does not fall. As a maximum of lines, g is convex, falls, and ends at 0. Over a grid of u,
with f' taken at the upper and w at the lower end of each cell, it has corners: g(t) = sum over k of
(A_k - B_k t)_+, whose A_k and B_k are at least 0, and E_Q[(A - B a r)_+] = A sup_S(Q(S) - a (B/A)
Q'(S)). So the search has the profile sum over k of A_k h(epsilon + log(B_k / A_k)).

*Renyi divergence.* E_Q[(f'(u))^l (f'(v) r)^(1-l)] is at most max over u of f'(u)^l f'(w(u))^(1-l)
times that of one training, so that one adds the logarithm of the maximum over (l - 1).

K may have any distribution on 1, 2, ...: a cap is part of f, and nothing is charged for it. The
trainings may differ in all that is public if h is the largest of their profiles, because the
profile of a mixture whose component is released is at most that. The theorems of Papernot and
Steinke follow from the same lemma by what Renyi divergences tell of (u, v), which is less: at
epsilon 1 and 10 expected trainings they take 2.2 times the noise of one training, this 1.5.
"""

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

import dp_accounting
import numpy as np
from scipy import special

from dpjax import _validate
from dpjax._typing import Relation
from dpjax.accounting import events
from dpjax.accounting.release import PrivacyLoss, Release
from dpjax.accounting.trials import NumberOfTrials
from dpjax.accounting.wording import LawWords

# Cells of u, evenly spread in the normal quantile of u; beyond it, one cell at either end.
_CELLS, _FARTHEST = 2_000, 8.3
# Epsilons at which the profile of one training bounds v: 0, and these on either side.
_EPSILONS = np.geomspace(1e-5, 60.0, 500)
# What one value of a profile, from 0 to 1, may lack by rounding.
_ROUNDING = 1e-14
_LARGEST_EPSILON = 700.0

_LAW = LawWords(
    accounting=(
        "a bound on the privacy profile of the search by that of one training, which is {one}"
    ),
    profile=(
        "from a bound on that of the best of K trainings; epsilon(delta) evaluates it at any delta."
    ),
    covered="every iterate and noisy answer of the released training, its setting and its score",
    tuning="the choice of the declared settings, other hyperparameter tuning on the same data",
)


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
      **others: as ``Release``; ``count`` is 1. ``SearchRelease.of`` sets those that follow.

    >>> one = Release("training", 1, noise_multiplier=10.0)
    >>> search = SearchRelease.of([(one,)], NumberOfTrials(10, 40), settings=32)
    >>> event = events.Event((search,), "zero_out")
    >>> print(round(events.epsilon(event, 1e-6, "zero_out"), 2))
    0.64
    """

    trainings: tuple[tuple[Release, ...], ...]
    trials: float
    cap: int
    shape: float
    settings: int
    public_score: bool = False

    mechanism: ClassVar[str] = "search"
    is_gaussian: ClassVar[bool] = False
    renyi_reason: ClassVar[str] = "is a private random search over settings"

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
          trainings: as the field; the first is printed, and of others those are kept whose loss
            may be larger.
          number: distribution of the number of trainings.
          settings: as the field.
          public_score: as the field.

        Raises:
          ValueError: if nothing is released, or for a search of searches.
        """
        kept: list[tuple[Release, ...]] = []
        for releases in map(tuple, trainings):
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
            noise_multiplier=min(release.noise_multiplier for release in released),
            unsafe_fast_noise=any(release.unsafe_fast_noise for release in released),
            words=released[0].words,
            trainings=tuple(kept),
            trials=number.mean,
            cap=number.cap,
            shape=number.shape,
            settings=settings,
            public_score=public_score,
        )

    def validate(self) -> None:
        """Raises for a number out of range."""
        _validate.positive_int("settings", self.settings)
        object.__setattr__(self, "trials", self.number.mean)
        if self.count != 1:
            raise ValueError(f"one search is one release, got count={self.count}.")
        for releases in self.trainings:
            if not releases or any(isinstance(release, SearchRelease) for release in releases):
                raise ValueError("a training releases something, and no other search.")

    def check_relation(self, relation: Relation) -> None:
        """Raises where a release of a training has no accounting under a relation."""
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
        """Bound on the total variation between an actual and an accounted search.

        That of one training times the expected number of them.
        """
        each = (
            math.fsum(release.count * release.failure_probability for release in releases)
            for releases in self.trainings
        )
        return self.number.mean * max(each)

    @property
    def draw_error(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Why actual trainings may differ from accounted ones."""
        return "; ".join(dict.fromkeys(r.draw_error for r in self._released if r.draw_error))

    @property
    def ledger_objection(self) -> str | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Why no ledger can book it."""
        objections = (release.ledger_objection for release in self._released)
        return next((words for words in objections if words is not None), None)

    def parts(self) -> Sequence[Release]:
        """Returns the releases of one training."""
        return self.trainings[0]

    def privacy_loss(self, relation: Relation) -> PrivacyLoss | None:
        """Raises ``ValueError``: no privacy loss distribution is known that composes."""
        del relation
        raise ValueError(_COMPOSES)

    def is_lossless(self, relation: Relation) -> bool:
        """False: a search has losses, though their distribution is not known."""
        del relation
        return False

    def whole_epsilon(
        self, releases: Sequence[Release], relation: Relation, delta: float, accountant: str
    ) -> float | None:
        """Returns the epsilon of the search alone, by its privacy profile; by Renyi DP, None."""
        if accountant == "rdp":
            return None
        _check_alone(releases)
        profile = _profile(self, relation)

        def delta_at(epsilon: float) -> float:
            return float(profile.delta(np.array([epsilon]))[0])

        if delta_at(0.0) <= delta:
            return 0.0
        low, high = 0.0, 1.0
        while delta_at(high) > delta:
            low, high = high, 2 * high
            if high > _LARGEST_EPSILON:
                return math.inf
        while high - low > 1e-9 * high:
            middle = (low + high) / 2
            low, high = (low, middle) if delta_at(middle) <= delta else (middle, high)
        return high

    def whole_deltas(
        self, releases: Sequence[Release], relation: Relation, epsilons: np.ndarray, scale: float
    ) -> np.ndarray:
        """Returns the deltas of the search alone."""
        _check_alone(releases)
        one = self if scale == 1.0 else self.scaled(scale)
        return np.minimum(_profile(one, relation).delta(np.asarray(epsilons)), 1.0)

    def renyi(self, orders: np.ndarray, relation: Relation) -> np.ndarray:
        """Returns the Renyi divergence of one search at each order.

        Raises:
          ValueError: if none is known for a release of a training.
        """
        cells = _cells(self, relation)
        with np.errstate(divide="ignore"):
            upper, lower = np.log(cells.upper), np.log(cells.lower)
        more = np.max(orders[:, None] * upper - (orders[:, None] - 1) * lower, axis=1)
        each = [
            sum(release.count * release.renyi(orders, relation) for release in releases)
            for releases in self.trainings
        ]
        return np.max(each, axis=0) + np.maximum(more, 0.0) / (orders - 1)

    def describe(self) -> str:
        """Returns the lines of the guarantee about the search and one training."""
        more = len(self.trainings) - 1
        lines = [
            f"search: once, the best of K trainings; each draws one of {self.settings:,} declared "
            "settings",
            f"the number K: {self.number.words}; {self.number.cap:,} trainings are made whatever K "
            "is",
            "the training with the largest score is released, with its setting and score; K and "
            "all others are secret",
            *["the score: from released parameters and public records"] * self.public_score,
            *(f"of each training, {release.describe()}" for release in self.trainings[0]),
            *["other settings have other noise, and the largest loss applies"] * (more > 0),
        ]
        return "\n  - ".join(lines)

    def sampling_words(self, data_size: int, relation: Relation) -> str:
        """Returns the sentence on the records of each release and the divisor of its sums."""
        words = {
            release.name.replace("_", " "): release.sampling_words(data_size, relation)
            for release in self.trainings[0]
        }
        if len(set(words.values())) == 1:
            return next(iter(words.values()))
        return "; ".join(f"{name}: {line}" for name, line in words.items())

    def law_words(self, releases: Sequence[Release]) -> LawWords:
        """Returns the text for an event with this release."""
        del releases
        gaussian = all(release.is_gaussian for release in self._released)
        one = "exact" if gaussian else "that of its privacy loss distributions, rounded up"
        return _LAW._replace(accounting=_LAW.accounting.format(one=one))

    @property
    def dp_event(self) -> dp_accounting.DpEvent:
        """The event of ``dp_accounting``, for comparison: without the cap, of the same r."""
        if not self.number.ratio < 1 and self.number.shape != math.inf:
            return dp_accounting.UnsupportedDpEvent()
        one = events.Event(self.trainings[0], "zero_out").dp_event
        return dp_accounting.dp_event.RepeatAndSelectDpEvent(
            one, float(_uncapped_mean(self.number)), float(self.number.shape)
        )

    def scaled(self, factor: float) -> "SearchRelease":
        """Returns the same search with ``factor`` times the noise in every training."""
        trainings = tuple(
            tuple(release.scaled(factor) for release in releases) for releases in self.trainings
        )
        multiplier = factor * self.noise_multiplier
        return dataclasses.replace(self, noise_multiplier=multiplier, trainings=trainings)

    def without_failures(self) -> "SearchRelease":
        """Returns the same search with draws that never differ from the accounted."""
        trainings = tuple(
            tuple(release.without_failures() for release in releases) for releases in self.trainings
        )
        return dataclasses.replace(self, trainings=trainings)

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
    "releases: account for them together by accountant='rdp', or by a ledger with a Renyi order. "
    "For the search alone 'pld' gives the epsilon of its privacy profile."
)


def _check_alone(releases: Sequence[Release]) -> None:
    if len(releases) != 1:
        raise ValueError(_COMPOSES)


# Of a release: what its accounting does not read.
_NOT_ACCOUNTED = {"name", "sensitivity", "components", "words", "unsafe_fast_noise"}


def accounting_key(releases: Iterable[Release], noise: bool = True) -> tuple:
    """Returns what tells the accounting of one training from that of another; hashable.

    Args:
      releases: of the training.
      noise: whether the amount of noise counts.

    >>> one, other = Release("gradient", 1, 2.0), Release("gradient", 1, 3.0, sensitivity=0.1)
    >>> accounting_key([one]) == accounting_key([other])
    False
    >>> accounting_key([one], noise=False) == accounting_key([other], noise=False)
    True
    """
    skipped = _NOT_ACCOUNTED | ({"noise_multiplier"} if not noise else set())

    def fields(release: Release) -> Iterable[Any]:
        yield type(release)
        for field in dataclasses.fields(release):
            value = getattr(release, field.name)
            if field.name == "disjoint_parts":
                yield accounting_key(value, noise)
            elif field.name not in skipped:
                yield value

    return tuple(tuple(fields(release)) for release in releases)


def _covers(one: tuple[Release, ...], other: tuple[Release, ...]) -> bool:
    """Whether the loss of ``other`` is provably at most that of ``one``."""
    if all(release.is_gaussian for release in one + other):
        return _mu_squared(other) <= _mu_squared(one)
    return accounting_key(one) == accounting_key(other)


def _mu_squared(releases: Iterable[Release]) -> float:
    return math.fsum(release.count / release.noise_multiplier**2 for release in releases)


def _uncapped_mean(number: NumberOfTrials) -> float:
    """The mean without the cap, for the same r."""
    gamma, shape = 1 - number.ratio, number.shape
    if shape == math.inf:
        return number.ratio
    if shape == 0:
        return (1 / gamma - 1) / -math.log(gamma)
    return shape * (1 - gamma) / (gamma * (1 - gamma**shape))


class _Cells(NamedTuple):
    """f' at the upper end of each cell of u, and at the least v of its lower end."""

    upper: np.ndarray
    lower: np.ndarray


class _Profile(NamedTuple):
    """Delta of a search: the sum of ``heights`` times that of one training, at shifted epsilons."""

    search: SearchRelease
    relation: Relation
    heights: np.ndarray
    shifts: np.ndarray

    def delta(self, epsilons: np.ndarray) -> np.ndarray:
        at = np.asarray(epsilons, np.float64)[:, None] + self.shifts
        return _one_training(self.search, self.relation, at) @ self.heights


@functools.lru_cache(maxsize=512)
def _cells(search: SearchRelease, relation: Relation) -> _Cells:
    quantiles = np.linspace(-_FARTHEST, _FARTHEST, _CELLS + 1)
    u = np.concatenate([[0.0], special.ndtr(quantiles), [1.0]])
    beyond = np.concatenate([[1.0], special.ndtr(-quantiles), [0.0]])
    v = _least(search, relation, u, beyond)
    return _Cells(search.number.derivative(u[1:]), search.number.derivative(v[:-1]))


@functools.lru_cache(maxsize=512)
def _profile(search: SearchRelease, relation: Relation) -> _Profile:
    corners = _corners(*_cells(search, relation))
    heights, falls = np.diff(corners, axis=1)
    with np.errstate(divide="ignore"):
        return _Profile(search, relation, heights, np.log(falls / heights))


def _least(
    search: SearchRelease, relation: Relation, u: np.ndarray, beyond: np.ndarray
) -> np.ndarray:
    """The least probability under Q' of an event of probability u under Q; ``beyond`` is 1 - u."""
    bounds = _one_training(search, relation, np.concatenate([[0.0], _EPSILONS]))
    least = u - bounds[0]
    for epsilon, delta in zip(_EPSILONS, bounds[1:], strict=True):
        # Of the event, and of its complement: 1 - v <= e^e (1 - u) + h(e).
        least = np.maximum(least, math.exp(-epsilon) * (u - delta))
        least = np.maximum(least, 1 - delta - math.exp(epsilon) * beyond)
    return np.clip(least - _ROUNDING, 0.0, 1.0)


def _one_training(search: SearchRelease, relation: Relation, epsilons: np.ndarray) -> np.ndarray:
    """sup_S Q(S) - e^e Q'(S) of one training, at any e, for either order of the neighbours."""
    sizes = np.minimum(np.abs(epsilons), _LARGEST_EPSILON)
    flat = sizes.ravel()
    largest = np.zeros(len(flat))
    for releases in search.trainings:
        event = events.Event(releases, relation)
        largest = np.maximum(largest, events.deltas(event, flat))
    found = np.minimum(largest + _ROUNDING, 1.0).reshape(sizes.shape)
    # Below 0, from the other order: 1 - e^e + e^e h(-e).
    return np.where(epsilons < 0, -np.expm1(-sizes) + np.exp(-sizes) * found, found)


def _corners(upper: np.ndarray, lower: np.ndarray) -> np.ndarray:
    """The lines (intercept, fall) that make up the largest of all, the flattest first: (2, m)."""
    lines = [(0.0, 0.0)]
    # Both grow from cell to cell.
    for intercept, fall in zip(upper.tolist(), lower.tolist(), strict=True):
        while intercept > lines[-1][0] and len(lines) > 1:
            (last, its_fall), (before, earlier) = lines[-1], lines[-2]
            # The last one is largest nowhere if this one meets it after that one did.
            crossed = (intercept - last) * (its_fall - earlier) >= (last - before) * (
                fall - its_fall
            )
            if not crossed:
                break
            lines.pop()
        if intercept > lines[-1][0]:
            lines.append((intercept, fall))
    return np.array(lines).T
