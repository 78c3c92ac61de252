"""``plan``: the noise of a search for a budget, its guarantee and its price; nothing is spent."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import jax

from dpjax import _validate
from dpjax.accounting import Event, NumberOfTrials, PrivacyBudget, Release, calibrate, epsilon
from dpjax.accounting.best_of import default_cap
from dpjax.accounting.search import SearchRelease, accounting_key
from dpjax.algorithms import Algorithm, with_accuracy
from dpjax.algorithms.base import Declared
from dpjax.display.cards import Card, HasCard, ceil
from dpjax.tuning.score import ACCURACY, public_score
from dpjax.tuning.tuned import Searched

Settings = Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]]
"""A grid, name -> values; or every setting by itself. One that is listed twice is drawn twice as
often."""

Make = Callable[..., Algorithm]
"""``make(budget, **setting) -> algorithm``."""

# Of the epsilon of a training. Gaussian noise adds up in squares: the training keeps sqrt(1 - s^2)
# of its signal, 95 %, and the accuracy of 20,000 records is known to about 0.001 at epsilon 1.
SCORE_SHARE = 0.3
# How far below the budget a calibrated search may end, and in how many rounds.
_TOLERANCE, _ROUNDS = 5e-4, 40
# Each setting is calibrated, and held as an algorithm of its own.
_MOST = 4_096


@dataclasses.dataclass(frozen=True)
class SearchPlan(HasCard):
    """A search that is calibrated to a budget; made by ``plan``, of public numbers alone."""

    settings: tuple[dict[str, Any], ...]
    """Every setting that may be drawn."""
    algorithms: tuple[Algorithm, ...]
    """One for each, of one structure."""
    release: SearchRelease
    budget: PrivacyBudget
    """Of the whole search."""
    training_budget: PrivacyBudget
    """What one training is calibrated to, its score included."""
    score: Any
    """None for the noisy accuracy, or the public score."""

    @property
    def event(self) -> Event:
        """The search as one release."""
        return Event((self.release,), self.budget.relation)

    def algorithm(self, setting: int = 0) -> Algorithm:
        """Returns the algorithm of a setting as the search releases it, for its guarantee."""
        one = self.algorithms[setting]
        # The one that is released is printed, and the others are accounted.
        release = SearchRelease.of(
            [one.event.releases, *self.release.trainings],
            self.release.number,
            settings=len(self.settings),
            public_score=self.release.public_score,
        )
        # ``of`` counts anew, from these trainings alone: the search's own numbers are accounted.
        draws, noise = self.release.noise_draws, self.release.noise_multiplier
        release = dataclasses.replace(release, noise_draws=draws, noise_multiplier=noise)
        declared = Declared(self.budget.epsilon, self.budget.delta)
        # The rest of an algorithm the training says.
        return cast(Algorithm, Searched(one, declared, release))

    @property
    def epsilon(self) -> float:
        """What the whole search spends at the budget's delta, by its privacy profile."""
        return epsilon(self.event, self.budget.delta, self.budget.relation)

    @property
    def noise_multiplier(self) -> float:
        """Noise multiplier of a training with the first setting, of what it releases first."""
        return self._releases[0].noise_multiplier

    @property
    def _releases(self) -> tuple[Release, ...]:
        """What a training with the first setting releases, its score last."""
        return self.algorithms[0].event.releases

    @functools.cached_property
    def noise_ratio(self) -> float:
        """How many times the noise of one such training, to which the whole budget would go.

        That training needs no score.
        """
        # A noisy score is the last release, and a training without a search needs none.
        training = self._releases if self.score is not None else self._releases[:-1]
        return 1 / self._scale(training)

    @functools.cached_property
    def composition_ratio(self) -> float:
        """The same if every setting were trained and scored once, and all of it released."""
        return self._scale(self._releases * len(self.settings)) * self.noise_ratio

    def _scale(self, releases: tuple[Release, ...]) -> float:
        """The factor on the noise at which these have the budget to themselves."""
        event = Event(releases, self.budget.relation)
        return calibrate(lambda scale: event.each(lambda one: one.scaled(scale)), self.budget)

    def _card(self) -> Card:
        rows = (
            ("epsilon", ceil(self.epsilon)),
            ("delta", ceil(self.budget.delta)),
            ("relation", self.budget.relation),
            ("settings", f"{len(self.settings):,} of {', '.join(self.settings[0])}"),
            ("trainings", self.release.number.words),
            ("noise", f"{self.noise_ratio:.2f} times that of one training"),
        )
        return Card(f"Private random search of {self.algorithms[0].title}", rows)

    def advice(self) -> list[str]:
        """Returns the price of the search in sentences: against no search, and composition."""
        number, settings = self.release.number, len(self.settings)
        alone = self.noise_multiplier / self.noise_ratio
        lines = [
            f"search: {settings:,} settings of {', '.join(self.settings[0])}; the number of "
            f"trainings is {number.words}",
            f"noise multiplier of each training: {self.noise_multiplier:.5g}; of one training with "
            f"the whole budget: {alone:.5g}; so the search costs {self.noise_ratio:.2f} times the "
            "noise",
            f"all {settings:,} settings trained once and released (plain composition): "
            f"{self.composition_ratio:.2f} times the noise",
        ]
        if self.composition_ratio <= self.noise_ratio:
            lines.append(
                f"the search costs more than training all {settings:,} settings: train each once "
                "with its part of the budget, or let more settings be drawn."
            )
        else:
            lines.append(
                "the search pays only where the best settings gain more than that noise costs, "
                f"which is about what training on {1 / self.noise_ratio:.0%} of the records costs."
            )
        return lines


def plan(
    make: Make,
    settings: Settings,
    budget: PrivacyBudget,
    *,
    trials: float = 10.0,
    cap: int | None = None,
    shape: float = 1.0,
    score: Any = ACCURACY,
    score_share: float = SCORE_SHARE,
) -> SearchPlan:
    """Returns a search whose whole cost is the budget; see ``tune`` for the arguments.

    Raises:
      ValueError: as ``tune``.

    Privacy: accounting alone; nothing is read or spent.

    >>> import functools
    >>> from dpjax import algorithms, objectives
    >>> make = functools.partial(algorithms.dp_trust_region, objectives.logistic(),
    ...     data_size=10_000, dimension=10)
    >>> search = plan(make, {"radius": [3.0, 6.0, 12.0]}, PrivacyBudget(epsilon=1.0, delta=1e-6))
    >>> 0.999 < search.epsilon <= 1.0, round(search.noise_ratio, 1)
    (True, 1.5)
    """
    PrivacyBudget.check(budget)
    cap = default_cap(_validate.positive("trials", trials)) if cap is None else cap
    number = NumberOfTrials(trials, cap, shape)
    every = expand(settings)
    scored = public_score(score)
    # A public score spends nothing.
    share = _validate.open_unit("score_share", score_share) if scored is None else None
    build = functools.partial(_build, make, share=share)
    training = _training_budget(build, every, number, budget)
    # Calibration looked at one setting of each kind; here all of them are accounted.
    while True:
        algorithms = tuple(build(setting, training) for setting in every)
        trainings, public = [each.event.releases for each in algorithms], scored is not None
        release = SearchRelease.of(trainings, number, settings=len(every), public_score=public)
        event = Event((release,), budget.relation)
        if epsilon(event, budget.delta, budget.relation) <= budget.epsilon:
            break
        # Settings of one kind may differ in their noise by what calibration rounds.
        training = dataclasses.replace(training, epsilon=training.epsilon * (1 - _TOLERANCE))
    algorithms = _of_one_program(algorithms, every)
    return SearchPlan(every, algorithms, release, budget, training, scored)


def _build(
    make: Make, setting: dict[str, Any], budget: PrivacyBudget, *, share: float | None
) -> Algorithm:
    """Returns the algorithm of one setting, which releases its score as well."""
    own = functools.partial(make, **setting)
    try:
        if share is None:
            algorithm = own(budget)
        else:
            algorithm = with_accuracy(own, budget, epsilon=share * budget.epsilon)
    except (ValueError, TypeError) as error:
        said = f"the setting {setting} cannot be searched: {error}"
        if share is not None and "accuracy" in str(error):
            said += " Or score on public records: pass score=, on the command line --public FILE."
        raise ValueError(said) from error
    if algorithm.relation != budget.relation:
        raise ValueError(
            f"make(budget) returned an algorithm for {algorithm.relation!r}, and the budget is for "
            f"{budget.relation!r}: calibrate it to the budget that make is given."
        )
    return algorithm


def _training_budget(
    build: Callable[..., Algorithm],
    settings: tuple[dict[str, Any], ...],
    number: NumberOfTrials,
    budget: PrivacyBudget,
) -> PrivacyBudget:
    """Returns the largest budget of one training, up to a tolerance, whose search fits."""
    # What a search spends grows with the budget of a training: bracket it, then aim at the budget.
    least, most = 0.0, budget.epsilon
    guess, kinds = most / 2, settings
    for _ in range(_ROUNDS):
        if guess < budget.delta:  # such a training is none; ball noise ends here
            break
        training = dataclasses.replace(budget, epsilon=guess)
        trainings = [build(setting, training).event.releases for setting in kinds]
        if kinds is settings:
            # Those that differ in nothing but their noise are calibrated alike.
            keys = [accounting_key(releases, noise=False) for releases in trainings]
            kinds = tuple(dict(zip(keys, settings, strict=True)).values())
        release = SearchRelease.of(trainings, number, settings=len(settings))
        event = Event((release,), budget.relation)
        spent = epsilon(event, budget.delta, budget.relation)
        if spent <= budget.epsilon:
            least = guess
            if spent >= (1 - _TOLERANCE) * budget.epsilon:
                break
        else:
            most = guess
        # As if the cost were proportional to the budget; halves where that leaves the bracket.
        aim = guess * (1 - _TOLERANCE / 2) * budget.epsilon / spent if spent else most
        guess = aim if least < aim < most else (least + most) / 2
    if least == 0:
        raise ValueError(
            f"no noise makes a training private enough for a search of epsilon={budget.epsilon:g} "
            f"at delta={budget.delta:g}: lower trials, or raise the budget. Noise in a ball, whose "
            "trainings spend all of delta, cannot be searched."
        )
    return dataclasses.replace(budget, epsilon=least)


def _of_one_program(
    algorithms: tuple[Algorithm, ...], settings: tuple[dict[str, Any], ...]
) -> tuple[Algorithm, ...]:
    """Returns the algorithms with one structure, so that one program trains them all."""
    structures = list(map(jax.tree.structure, algorithms))
    # Some clip norms never clip, and certify the plain objective: that is another structure.
    if len(set(structures)) > 1:
        algorithms = tuple(map(_certified_as_clipped, algorithms))
        structures = list(map(jax.tree.structure, algorithms))
    for setting, structure in zip(settings, structures, strict=True):
        if structure != structures[0]:
            raise ValueError(
                f"the settings {settings[0]} and {setting} need different programs, and a search "
                "trains all with one, so that neither time nor memory tells which were drawn. "
                "Search numbers such as step sizes, radii, clip norms or penalties, and fix what "
                "changes shapes, such as batch_size, steps, noise or output."
            )
    return algorithms


def _certified_as_clipped(algorithm: Any) -> Any:
    """The algorithm with its certificate for the clipped objective, whatever its clip norm is."""
    names = {field.name for field in dataclasses.fields(algorithm)}
    changes: dict[str, Any] = {"unclipped": False} if "unclipped" in names else {}
    # A wrapper, such as that of the noisy accuracy, holds the training.
    if "algorithm" in names:
        changes["algorithm"] = _certified_as_clipped(algorithm.algorithm)
    return dataclasses.replace(algorithm, **changes) if changes else algorithm


def expand(settings: Settings) -> tuple[dict[str, Any], ...]:
    """Returns every setting of a grid, or those of a list, as dictionaries of arguments.

    Args:
      settings: name -> values, of which all combinations are taken; or a sequence of dictionaries.

    Raises:
      ValueError: for what is neither, an empty list, or more than 4,096 settings.

    Privacy: public; a grid that was chosen after looking at the data is a release.

    >>> expand({"radius": [3, 12], "damping": [0.5]})
    ({'radius': 3, 'damping': 0.5}, {'radius': 12, 'damping': 0.5})
    """
    if isinstance(settings, Mapping):
        grid: list[list[Any]] = []
        for name, values in settings.items():
            if isinstance(values, str) or not hasattr(values, "__iter__"):
                raise ValueError(
                    f"settings of {name!r} must be a sequence of values, such as [0.3, 1], got "
                    f"{values!r}."
                )
            # Values of an array become plain numbers, which factories check.
            grid.append([value.item() if hasattr(value, "item") else value for value in values])
        found = [dict(zip(settings, each, strict=True)) for each in itertools.product(*grid)]
    else:
        # Anything but a dictionary is left out here, and the count below reveals it.
        listed = list(settings) if hasattr(settings, "__iter__") else [settings]
        found = [dict(setting) for setting in listed if isinstance(setting, Mapping)]
        if len(found) != len(listed):
            raise ValueError(
                "settings must be a dict of names and values, such as {'radius': [3, 12]}, or a "
                f"list of dicts, got {_validate.shown(settings)}."
            )
    if not found or not all(found):
        raise ValueError("settings name nothing to vary: give each name at least one value.")
    if len(found) > _MOST:
        raise ValueError(
            f"settings are {len(found):,} in all, more than {_MOST:,}: leave some values out. A "
            "search sees a few of them only."
        )
    return tuple(found)


def default_settings(grid: Mapping[str, Sequence[Any]], name: str) -> dict[str, list[Any]]:
    """Returns the grid that a registry row declares for its algorithm.

    Raises:
      ValueError: if it declares none.

    >>> default_settings({"radius": (3.0, 12.0)}, "dp-tr")
    {'radius': [3.0, 12.0]}
    """
    if not grid:
        raise ValueError(
            f"{name} has no settings that a search takes by default: name them, such as "
            "step_size=0.1,0.3,1."
        )
    return {parameter: list(values) for parameter, values in grid.items()}
