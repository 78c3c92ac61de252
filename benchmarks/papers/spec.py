"""NOT PRIVATE: an experiment as data: problems, methods, what is measured, drawn and claimed."""

import dataclasses
import difflib
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp

from dpjax import datasets
from dpjax.accounting import PrivacyBudget
from dpjax.algorithms import ALGORITHMS, ONE_RELEASE, Algorithm
from dpjax.datasets import Dataset
from dpjax.objectives import OBJECTIVES, Objective

FACTORIES = {**ALGORITHMS, **ONE_RELEASE}
"""Name on the command line -> factory of every method that can be compared."""

Array = jax.Array
Params = Any
Settings = Mapping[str, Any]
Relation = Literal["zero_out", "replace_one", "add_or_remove_one"]
SEED, QUICK_SEEDS = 2020, 2


def choice(kind: str, name: str, known: Iterable[str]) -> str:
    """Returns a name that is known, or raises a ValueError with the nearest one.

    >>> choice("figure", "fig3", ["fig2", "table1"])
    Traceback (most recent call last):
    ...
    ValueError: unknown figure 'fig3'; did you mean 'fig2'? Choose from: fig2, table1.
    """
    names = list(known)
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        guess = f"; did you mean {near[0]!r}?" if near else "."
        raise ValueError(f"unknown {kind} {name!r}{guess} Choose from: {', '.join(names)}.")
    return name


@dataclasses.dataclass(frozen=True)
class Problem:
    """Records, an objective, budgets, and what is measured on them.

    Args:
      data: what the records are called; a name of ``dpjax.datasets.load`` unless there are
        ``records``.
      objective: an ``Objective``, a name in ``OBJECTIVES``, or a function from the data's name.
      title: what the problem is called, with ``{data}`` for the data; unique in the experiment.
      records: a ``Dataset``, or a function that returns one; None for data that have a name.
      rows: so many of the first records; None for all.
      sizes: n of random subsets of them; 0 for all.
      epsilons: where the methods are compared.
      delta: of every budget; None for ``delta_times_n`` / n.
      delta_times_n: see ``delta``.
      relation: the neighbours.
      methods: labels of the methods that are compared; empty for all of the experiment's.
      settings: numbers that methods take from the problem; a ``batch_size`` is at most n / 7.
      keys: under which the methods' settings are looked up, the first one that is there.
      tries: how many settings of a grid are tried at most; None for all.
      start: from seed and data to the first parameters; None for 0.
      reference: name in ``metrics.REFERENCES`` of what outputs are held against; empty for none.
      known: the optimal value as known before, or None.
      starts: descents in a search for the optimum.
      metrics: names in ``metrics.METRICS`` of what is measured of every output.
      path_metrics: names of what is measured on the way too, if there are ``checkpoints``.
      checkpoints: how many iterates on the way are looked at.
      spacing: of their step numbers.
      traced: the only epsilons with checkpoints; empty for all.
      counted: records that training and test accuracy are measured on, the first so many.
      most_seeds: seeds at most, where a training takes long.
      timed: whether one training of each method is timed, at the first of ``traced``.
      note: from n to more words on the data for the page.
      quick: fields that a quick run changes.
      stand_in: fields that it changes where the data are not here; empty where they must be.
      stands_for: the data that these records are in place of.
    """

    data: str
    objective: Objective | str | Callable[[str], Objective]
    title: str = ""
    records: Dataset | Callable[[], Dataset] | None = None
    rows: int | None = None
    sizes: tuple[int, ...] = (0,)
    epsilons: tuple[float, ...] = (0.5, 1.0, 2.0)
    delta: float | None = None
    delta_times_n: float = 0.1
    relation: Relation = "zero_out"
    methods: tuple[str, ...] = ()
    settings: Settings = dataclasses.field(default_factory=dict)
    keys: tuple[str, ...] = ()
    tries: int | None = None
    start: Callable[[int, Dataset], Params] | None = None
    reference: str = ""
    known: float | None = None
    starts: int = 4
    metrics: tuple[str, ...] = ("exact_value", "epsilon_of_the_noise")
    path_metrics: tuple[str, ...] = ()
    checkpoints: int = 0
    spacing: Literal["log", "even"] = "log"
    traced: tuple[float, ...] = ()
    counted: int | None = None
    most_seeds: int | None = None
    timed: bool = False
    note: Callable[[int], str] | None = None
    quick: Settings = dataclasses.field(default_factory=dict)
    stand_in: Settings = dataclasses.field(default_factory=lambda: {"data": "randhie"})
    stands_for: str = ""

    @property
    def where(self) -> str:
        """The data, for people."""
        return f"{self.data} (for {self.stands_for})" if self.stands_for else self.data

    @property
    def name(self) -> str:
        """Data and objective, for people.

        >>> Problem("ijcnn1", "logistic").name
        'ijcnn1, logistic'
        """
        return (self.title or f"{{data}}, {self.loss.name}").format(data=self.where)

    @property
    def loss(self) -> Objective:
        """The objective, or a ValueError for a name that there is not."""
        if isinstance(self.objective, str):
            return OBJECTIVES[choice("objective", self.objective, OBJECTIVES)]()
        return (
            self.objective if isinstance(self.objective, Objective) else self.objective(self.data)
        )

    def load(self) -> Dataset:
        """Returns the records as JAX arrays.

        Raises:
          FileNotFoundError: naming what to set, if they are not on this machine.
        """
        whole = self.records() if callable(self.records) else self.records
        whole = datasets.load(self.data) if whole is None else whole
        few = dataclasses.replace(whole, x=whole.x[: self.rows], y=whole.y[: self.rows])
        parts = {name: getattr(few, name) for name in ("x", "y", "test_x", "test_y")}
        arrays = {n: jnp.asarray(part) for n, part in parts.items() if part is not None}
        return dataclasses.replace(few, **arrays)

    def first_params(self, seed: int, data: Dataset) -> Params:
        """Returns where a training starts."""
        if self.start is None:
            return jnp.zeros(self.loss.parameters(data.dimension))
        return self.start(seed, data)

    def budget(self, epsilon: float, size: int) -> PrivacyBudget:
        """Returns the budget of trainings on ``size`` records."""
        delta = self.delta_times_n / size if self.delta is None else self.delta
        return PrivacyBudget(epsilon, delta, self.relation)

    def made_quick(self) -> "Problem":
        """Returns the small version; on other records where its own are not on this machine."""
        small = dataclasses.replace(self, **self.quick)
        absent = {info.name for info in datasets.describe() if not info.available}
        if self.data not in absent or not self.stand_in:
            return small
        return dataclasses.replace(small, stands_for=self.data, **self.stand_in)


@dataclasses.dataclass(frozen=True)
class Method:
    """An algorithm with settings, as a line of a figure.

    Args:
      label: what legends and tables call it.
      factory: name in ``FACTORIES``, or a function that is called like one.
      settings: what the factory is given besides objective, budget and sizes.
      takes: arguments of the factory whose values are in ``Problem.settings``: by argument, the
        name there.
      grids: by one of ``Problem.keys``, or ``""`` for every problem: settings, of which the best
        is taken if there are several.
      refused: by one of ``Problem.keys``, why the method is not there.
      private: whether it has noise; if not, its outputs must not be released.
      about: what a page says beside the label.

    >>> Method("DP-TR", "dp-tr").make.__name__
    'dp_trust_region'
    """

    label: str
    factory: str | Callable[..., Algorithm]
    settings: Settings = dataclasses.field(default_factory=dict)
    takes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    grids: Mapping[str, tuple[Settings, ...]] = dataclasses.field(default_factory=dict)
    refused: Mapping[str, str] = dataclasses.field(default_factory=dict)
    private: bool = True
    about: str = ""

    @property
    def make(self) -> Callable[..., Algorithm]:
        """The factory, or a ValueError for a name that there is not."""
        if callable(self.factory):
            return self.factory
        return FACTORIES[choice("algorithm", self.factory, FACTORIES)]

    def grid(self, problem: Problem) -> tuple[Settings, ...]:
        """Returns the settings of which the best is taken; one of them may be empty."""
        return (_found(self.grids, (*problem.keys, "")) or ({},))[: problem.tries]

    def arguments(self, problem: Problem, size: int, chosen: Settings) -> dict[str, Any]:
        """Returns what the factory is given, with ``size`` records and one setting of the grid."""
        taken = {name: problem.settings[own] for name, own in self.takes.items()}
        if "batch_size" in taken:
            taken["batch_size"] = min(taken["batch_size"], max(size // 7, 1))
        return {**taken, **self.settings, **chosen}


def _found(by_key: Mapping[str, Any], keys: Sequence[str]) -> Any:
    return next((by_key[key] for key in keys if key in by_key), None)


def grid(names: str, every: str) -> tuple[Settings, ...]:
    """Returns settings from their names and values: 1 is a whole number, 1.0 is not.

    >>> grid("steps step_size", "8/1.0 16/0.5")
    ({'steps': 8, 'step_size': 1.0}, {'steps': 16, 'step_size': 0.5})
    """

    def value(word: str) -> Any:
        return int(word) if word.isdigit() else float(word) if word[0].isdigit() else word

    rows = (map(value, one.split("/")) for one in every.split())
    return tuple(dict(zip(names.split(), row, strict=True)) for row in rows)


@dataclasses.dataclass(frozen=True)
class Tuning:
    """How the best of a method's settings is found, by exact values: NOT PRIVATE.

    Args:
      metric: the name of what is compared, by its mean over the seeds.
      seeds: trainings of each setting, with seeds that no result has.
      largest: whether the largest is best.
      further: how many settings more are tried where the best is at an end of a grid of numbers.
    """

    metric: str = "exact_value"
    seeds: int = 4
    largest: bool = False
    further: int = 0


@dataclasses.dataclass(frozen=True)
class Figure:
    """A section of the page: a picture, tables and verdicts, all made from the results' table.

    Args:
      caption: one line.
      problems: what it shows.
      picture: a ``figures.Picture``, or None.
      sections: from results and problems to lines of Markdown, in order.
      claims: from results and problems to ``claims.Verdict``, such as ``claims.Smaller``.
      epsilons: the only ones that it needs; empty for all of the problems'.
    """

    caption: str
    problems: tuple[Problem, ...] = ()
    picture: Any = None
    sections: tuple[Callable[..., Iterable[str]], ...] = ()
    claims: tuple[Callable[..., Iterable], ...] = ()
    epsilons: tuple[float, ...] = ()


def split_keys(root: Array, seeds: int, tuning: bool | None) -> Array:
    """Returns the keys of trainings; those of the tuning are others; None where there is none."""
    own = root if tuning is None else jax.random.fold_in(root, 0 if tuning else 1)
    return jax.random.split(own, seeds)


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Methods, figures of problems, and the words of the page.

    Args:
      name: of the page and the table.
      title: of the page.
      methods: what is compared.
      figures: by name.
      reference: where the claims are from.
      conventions: of privacy, for the page.
      settings: how settings were chosen, for the page.
      trained: where trainings start, and which of them are private, for the page.
      seeds: runs of each point, unless asked for otherwise.
      tuning: how settings are chosen; None where no method has several.
      keys: from a root key, a number of seeds and whether they are for tuning, to keys.
      computed: in place of trainings: from whether the run is quick to rows of the table.
      quick: figures that a quick run of all keeps, each with the problems of these keys; None for
        all.

    Privacy: NOT PRIVATE: results hold exact values of the records.

    There is an example in the page on comparing algorithms.
    """

    name: str
    title: str
    methods: tuple[Method, ...]
    figures: Mapping[str, Figure]
    reference: str = ""
    conventions: str = ""
    settings: str = ""
    trained: str = "every training starts at 0 and is private at its epsilon by an exact accountant"
    seeds: int = 10
    tuning: Tuning | None = None
    keys: Callable[[Array, int, bool | None], Array] = split_keys
    computed: Callable[[bool], list] | None = None
    quick: tuple[str, ...] | None = None

    def methods_on(self, problem: Problem) -> tuple[Method, ...]:
        """Returns the methods that there are results of on ``problem``."""
        return tuple(
            method for method in self.methods
            if (not problem.methods or method.label in problem.methods)
            and _found(method.refused, problem.keys) is None
        )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Plan:
    """What will be made, checked before anything is computed.

    Args:
      experiment: what it is a part of.
      figures: by name.
      seeds: runs of each point.
      quick: whether this is the small version.
      left_out: figures that the small version leaves out, by name.
      words: the command that makes it, without its arguments; empty where Python does.
    """

    experiment: Experiment
    figures: Mapping[str, Figure]
    seeds: int
    quick: bool = False
    left_out: tuple[str, ...] = ()
    words: str = ""

    @property
    def whole(self) -> bool:
        """Whether all figures were asked for."""
        return len(self.figures) + len(self.left_out) == len(self.experiment.figures)

    @property
    def name(self) -> str:
        """Of table and page; one figure has its own, so that it leaves those of all as they are."""
        return self.experiment.name if self.whole else "-".join(self.figures)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Each problem once, in the order of the figures."""
        every = {problem.name: problem for f in self.figures.values() for problem in f.problems}
        return tuple(every.values())

    @property
    def command(self) -> str:
        """What makes this."""
        default = QUICK_SEEDS if self.quick else self.experiment.seeds
        words = [self.words, self.experiment.name, "all" if self.whole else self.name]
        words += ["--quick"] * self.quick + [f"--seeds {self.seeds}"] * (self.seeds != default)
        return " ".join(words) if self.words else "benchmarks.papers.files.run"

    def paths(self, folder: str | os.PathLike) -> list[pathlib.Path]:
        """Returns the pictures, the table and the page in a folder."""
        drawn = [f"{name}.png" for name, one in self.figures.items() if one.picture is not None]
        names = (*drawn, f"{self.name}.csv", f"{self.name}.md")
        return [pathlib.Path(folder, name) for name in names]

    def epsilons(self, problem: Problem) -> tuple[float, ...]:
        """Returns where ``problem`` is needed: a figure may take few epsilons."""
        needs = [f.epsilons for f in self.figures.values() if problem in f.problems]
        return problem.epsilons if () in needs else tuple(sorted(set().union(*needs)))

    def seeds_on(self, problem: Problem) -> int:
        """Returns how many runs each point of ``problem`` has."""
        return min(self.seeds, problem.most_seeds or self.seeds)

    @property
    def trainings(self) -> int:
        """How many trainings that is, if nothing is on the disk."""
        total, tuning = 0, self.experiment.tuning
        for problem in self.problems:
            seeds = self.seeds_on(problem)
            for method in self.experiment.methods_on(problem):
                tried = len(method.grid(problem))
                tuned = tuning.seeds * tried if tuning is not None and tried > 1 else 0
                total += len(self.epsilons(problem)) * len(problem.sizes) * (seeds + tuned)
        return total
