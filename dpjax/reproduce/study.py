"""NOT PRIVATE: what a problem, a curve, a figure is, and the results they are drawn from."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from dpjax import datasets
from dpjax._typing import Relation
from dpjax.datasets import Dataset
from dpjax.objectives import OBJECTIVES, L1Ball, Objective

# Where the time panels are drawn and the local minima are looked for.
TRACED_EPSILON = 1.0
RELATION: Relation = "replace_one"
# Seed of the data that are made.
_MADE = 2017


@dataclasses.dataclass(frozen=True)
class Problem:
    """A data set and an objective that figures are made of.

    Args:
      data: name of the data set.
      objective: name in ``OBJECTIVES``.
      batch: the paper's batch size on these data.
      epsilons: where the curves have points.
      known: the optimal value as known before, which the one found is held against, or None.
      traced: whether times and local minima are wanted, at ``TRACED_EPSILON``.
      rows: use so many of the first records; None for all.
      starts: descents in the search for the optimum.
      stands_for: the data set of the paper that ``data`` is here in place of, or None.
      relation: the neighbours.
      radius: of the l1 ball that the parameters stay in; None for all of space.
      features: p of data that are made; None for data that have a name.
      methods: labels of the curves that are drawn; empty for all of the paper's.
      settings: of each method's settings, try so many of the first at most; None for all.
    """

    data: str
    objective: str
    batch: int
    epsilons: tuple[float, ...]
    known: float | None = None
    traced: bool = True
    rows: int | None = None
    starts: int = 4
    stands_for: str | None = None
    relation: Relation = RELATION
    radius: float | None = None
    features: int | None = None
    methods: tuple[str, ...] = ()
    settings: int | None = None

    @property
    def where(self) -> str:
        """The data, for people."""
        return f"{self.data} (for {self.stands_for})" if self.stands_for else self.data

    @property
    def substitute(self) -> str:
        """The data where they stand in for others, with a verb, for people."""
        return f"the embedded {self.data} stands in"

    @property
    def kind(self) -> str:
        """The objective's name, or ``"ball"`` where there is one to stay in."""
        return self.objective if self.radius is None else "ball"

    @property
    def what(self) -> str:
        """The objective, for people."""
        ball = "" if self.radius is None else f" on the l1 ball of radius {self.radius:g}"
        return self.objective + ball

    @property
    def title(self) -> str:
        """Data and objective, for people."""
        return f"{self.where}, {self.what}"

    @property
    def loss(self) -> Objective:
        """The objective, with its set as the regularizer where it has one."""
        plain = OBJECTIVES[self.objective]()
        if self.radius is None:
            return plain
        return dataclasses.replace(plain, regularizer=L1Ball(self.radius), name=self.what)

    def load(self) -> Dataset:
        """Returns the records as JAX arrays.

        Raises:
          FileNotFoundError: naming what to set, if they are not on this machine.
        """
        if self.features is not None:
            return _made(self.rows or 0, self.features)
        data = datasets.load(self.data)
        kept = slice(self.rows)
        return dataclasses.replace(data, x=jnp.asarray(data.x[kept]), y=jnp.asarray(data.y[kept]))


def _made(rows: int, features: int) -> Dataset:
    data = datasets.sparse_high_dimensional(_MADE, rows, features)
    return dataclasses.replace(data, x=jnp.asarray(data.x), y=jnp.asarray(data.y))


@dataclasses.dataclass(frozen=True)
class Curve:
    """A method, as a figure shows it.

    Args:
      label: what the legend says.
      method: whose update rule; curves of one method share a colour.
      algorithm: name in ``dpjax.ALGORITHMS``.
      published: whether the noise is the paper's formula, corrected where it has to be.
      tuned: what the factory is given beside the problem, the budget and the batch, by the names
        of data set and objective.
      batched: whether it draws batches of the problem's size.
    """

    label: str
    method: str
    algorithm: str
    published: bool = False
    tuned: Mapping[tuple[str, str], Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    batched: bool = False

    def drawn(self, problem: Problem) -> bool:
        """Returns whether there are results of it on ``problem``."""
        return not problem.methods or self.label in problem.methods

    def trainings(self, problem: Problem, seeds: int) -> int:
        """Returns how many trainings one point takes."""
        del problem
        return seeds

    def chosen(self, problem: Problem, size: int) -> dict[str, Any]:
        """Returns the factory's arguments on ``problem``, with ``size`` records."""
        more = dict(self.tuned.get((problem.stands_for or problem.data, problem.objective), {}))
        if self.published:
            more["accountant"] = "paper"
        if self.batched:
            more["batch_size"] = min(problem.batch, size // 7)
        return more


@dataclasses.dataclass(frozen=True)
class Figure:
    """What is drawn: one picture a problem, or one picture of all of them.

    Args:
      kind: ``"panels"`` (gap, gradient norm, time), ``"accuracy"``, ``"table"``, or ``"risk"``
        (excess risk against gradient evaluations).
      problems: what it shows.
      caption: one line.
      epsilons: where a picture of the kind ``"risk"`` has panels.
    """

    kind: str
    problems: tuple[Problem, ...]
    caption: str
    epsilons: tuple[float, ...] = (TRACED_EPSILON,)


@dataclasses.dataclass(frozen=True)
class Found:
    """The results on one problem.

    Args:
      problem: which one.
      rows: n.
      dimension: p.
      optimum: the least value found, by descents from many starts or from an output.
      searched: the least value that the descents from the starts alone found.
      accuracy: at the optimum.
      majority: share of the larger class, where accuracy is measured.
      tested: whether accuracy is on a test set.
      points: by curve label and epsilon, what ``measure`` returned.
      times: by curve label, what ``seconds`` returned; all measured in turn.
    """

    problem: Problem
    rows: int
    dimension: int
    optimum: float
    searched: float
    accuracy: float
    majority: float
    tested: bool
    points: dict[tuple[str, float], dict[str, Any]]
    times: dict[str, list[float]]

    @property
    def epsilons(self) -> tuple[float, ...]:
        """Where there are points."""
        return tuple(sorted({epsilon for _, epsilon in self.points}))

    @property
    def optimum_line(self) -> str:
        """Where the optimum comes from, and whether it is the one known before."""
        text = (
            f"L* = {self.optimum:.5f}, the least value found by {self.problem.starts} exact "
            f"descents from fixed starts ({self.searched:.5f}) and from every output."
        )
        known = self.problem.known
        if known is None:
            return text
        off = self.optimum - known
        if abs(off) <= 1e-4:
            return f"{text} It agrees with the known {known:.5f}."
        return f"{text} It does NOT agree with the known {known:.5f}: off by {off:+.5f}."

    def gaps(self, label: str, epsilon: float) -> np.ndarray:
        """Gap of each seed to the best value known."""
        return np.array(self.points[label, epsilon]["values"]) - self.optimum

    def local_gaps(self, label: str, epsilon: float) -> np.ndarray | None:
        """Gap of each seed to the local minimum it lies at, where that was looked for."""
        point = self.points[label, epsilon]
        if point["local_values"] is None:
            return None
        return np.array(point["values"]) - np.array(point["local_values"])

    def norms(self, label: str, epsilon: float) -> np.ndarray:
        """Gradient norm of each seed."""
        return np.array(self.points[label, epsilon]["gradient_norms"])

    def accuracies(self, label: str, epsilon: float) -> np.ndarray:
        """Accuracy of each seed."""
        return np.array(self.points[label, epsilon]["accuracies"])

    def trace(self, label: str) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Steps, seconds, and gaps by step and seed, where they were recorded."""
        trace = self.points[label, TRACED_EPSILON]["trace"]
        if trace is None:
            return None
        gaps = np.array(trace["values"]) - self.optimum
        return np.array(trace["steps"]), np.array(self.times[label]), gaps
