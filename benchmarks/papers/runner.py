"""NOT PRIVATE: the one runner: every cell of an experiment trained, measured, kept on disk."""

import dataclasses
import functools
import importlib.metadata
import math
import pathlib
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.papers.cache import cached, digest, program
from benchmarks.papers.metrics import COST, DESCENTS, REFERENCES, Measured, Path, Trained, measured
from benchmarks.papers.results import Row
from benchmarks.papers.spec import SEED, Array, Method, Params, Plan, Problem, Settings
from dpjax.accounting import PrivacyBudget
from dpjax.algorithms import Algorithm
from dpjax.datasets import Dataset
from dpjax.driver import trajectory
from dpjax.oracles import GradientQuery, MinimizerQuery

Advance = Callable[[str, int], None]
# A Hessian of so many rows keeps every core busy: seeds then gain nothing from vmap.
_BUSY_ROWS = 100_000
# A test of times needs several.
_ROUNDS = 6
_VALUES = ("exact_value", "exact_local_value")
_NAN = math.nan


class Bench(NamedTuple):
    """One problem at one n, and what its cells need."""

    plan: Plan
    problem: Problem
    data: Dataset
    """The records, or a random subset of them."""
    whole: Dataset
    folder: pathlib.Path | None
    """Where results are kept."""
    advance: Advance
    shared: dict[str, Any]
    """What every result depends on."""
    reference: dict[str, float]

    @property
    def dimension(self) -> int:
        """Number of parameters."""
        first = self.problem.first_params(0, self.data)
        return sum(leaf.size for leaf in jax.tree.leaves(first))


@dataclasses.dataclass(frozen=True)
class Cell:
    """A method with one setting at one epsilon; calibrated when it is first needed."""

    bench: Bench
    method: Method
    epsilon: float
    settings: Settings

    @property
    def arguments(self) -> dict[str, Any]:
        """What the factory is given besides budget and sizes."""
        return self.method.arguments(self.bench.problem, self.bench.data.size, self.settings)

    @property
    def budget(self) -> PrivacyBudget:
        """What all releases of one training may spend."""
        return self.bench.problem.budget(self.epsilon, self.bench.data.size)

    @functools.cached_property
    def algorithm(self) -> Algorithm:
        """The calibrated algorithm."""
        sizes = {"data_size": self.bench.data.size, "dimension": self.bench.dimension}
        loss, make = self.bench.problem.loss, self.method.make
        with warnings.catch_warnings():
            # A step size above a theorem's bound may be the best; the page says which was taken.
            warnings.filterwarnings("ignore", message="step_size", category=UserWarning)
            return make(loss, self.budget, **sizes, **self.arguments)


def problem_rows(
    plan: Plan, problem: Problem, folder: pathlib.Path | None, advance: Advance
) -> list[Row]:
    """Returns the rows of one problem, computing what the folder does not hold. NOT PRIVATE."""
    whole, rows = problem.load(), []
    order = np.random.default_rng(SEED).permutation(whole.size)
    for size in problem.sizes:
        chosen = order[:size]
        data = dataclasses.replace(whole, x=whole.x[chosen], y=whole.y[chosen]) if size else whole
        shared = {
            "versions": [importlib.metadata.version("dpjax"), jax.__version__],
            "data": digest((data, whole)),
            "objective": _objective_words(problem, data),
            "reference": [problem.reference, problem.starts],
        }
        advance(f"{problem.name}: n = {data.size:,}, what outputs are held against", 0)
        find = REFERENCES.get(problem.reference, lambda problem, data: {})
        reference = cached(folder, shared, functools.partial(find, problem, data))
        rows += _bench_rows(Bench(plan, problem, data, whole, folder, advance, shared, reference))
    return rows


def _bench_rows(bench: Bench) -> list[Row]:
    problem, reference = bench.problem, dict(bench.reference)
    cells: list[tuple[Cell, Measured]] = []
    timed: list[Cell] = []
    for method in bench.plan.experiment.methods_on(problem):
        for epsilon in bench.plan.epsilons(problem):
            tried, best = _tuned(bench, method, epsilon)
            cells += [*tried, (best, _trained(best))]
            timed += [best] if problem.timed and epsilon == problem.traced[0] else []
    if problem.reference == "descents":
        # No search is sure to find the global minimum: an output may lie below what was found.
        values = [value for _, found in cells for *_, name, value in found if name in _VALUES]
        reference["optimum"] = float(np.nanmin([reference["optimum"], *values]))
    cells += zip(timed, _timed(timed), strict=True) if timed else []
    place = (bench.plan.experiment.name, problem.name, bench.data.size, bench.dimension)
    rows = [Row(*place, "", "", _NAN, _NAN, _NAN, f"exact_{name}", value)
            for name, value in reference.items()]  # fmt: skip
    for cell, found in cells:
        settings = (cell.method.label, in_words(cell.arguments), cell.epsilon)
        values = {seed: value for seed, step, name, value in found
                  if name == "exact_value" and math.isnan(step)}  # fmt: skip
        for seed, step, name, value in found:
            if name == "exact_local_value":
                name, value = "exact_gap_to_local_minimum", values[seed] - value
            elif name == "exact_value" and "optimum" in reference:
                name, value = "exact_gap", value - reference["optimum"]
            rows.append(Row(*place, *settings, seed, step, name, value))
    return rows


def _tuned(
    bench: Bench, method: Method, epsilon: float
) -> tuple[list[tuple[Cell, Measured]], Cell]:
    """What was tried, and what is taken."""
    tuning = bench.plan.experiment.tuning
    grid = [Cell(bench, method, epsilon, settings) for settings in method.grid(bench.problem)]
    if len(grid) < 2 or tuning is None:
        return [], grid[0]
    tried, reached = [], []
    left = 0 if bench.problem.tries else tuning.further
    while grid:
        cell = grid.pop(0)
        tried.append((cell, _trained(cell, tuning.seeds)))
        mean = np.mean([value for *_, name, value in tried[-1][1] if name == tuning.metric])
        reached.append(float(np.nan_to_num(-mean if tuning.largest else mean, nan=np.inf)))
        if not grid and left:
            (name, _), *_ = cell.settings.items()
            beyond = further([one.settings[name] for one, _ in tried], reached)
            grid = [] if beyond is None else [Cell(bench, method, epsilon, {name: beyond})]
            left -= 1
    return tried, tried[int(np.argmin(reached))][0]


def further(numbers: list[float], reached: list[float]) -> float | None:
    """Returns where a grid of numbers goes on, if the best, of the least ``reached``, is at an end.

    >>> further([1.0, 2.0, 4.0], [3.0, 2.0, 1.0]), further([1.0, 2.0, 4.0], [3.0, 1.0, 2.0])
    (8.0, None)
    """
    grown, best = sorted(numbers), numbers[int(np.argmin(reached))]
    if best == grown[-1]:
        return best * grown[-1] / grown[-2]
    return best * grown[0] / grown[1] if best == grown[0] else None


def _trained(cell: Cell, tuning: int = 0) -> Measured:
    """What trainings of a cell gave, each group of seeds read from disk or put there."""
    bench, method, problem = cell.bench, cell.method, cell.bench.problem
    tuned = bench.plan.experiment.tuning
    seeds = tuning or bench.plan.seeds_on(problem)
    metrics, on_the_way, looks = problem.metrics, problem.path_metrics, problem.checkpoints
    if tuned and tuning:
        metrics, on_the_way, looks = (tuned.metric, "gradients"), (), 0
    elif looks and problem.traced and cell.epsilon not in problem.traced:
        metrics = tuple(name for name in metrics if name != "exact_local_value")
        on_the_way, looks = (), 0
    make_keys = bench.plan.experiment.keys
    keys = make_keys(jax.random.key(SEED), seeds, tuning > 0 if tuned else None)
    given = {name: repr(value) for name, value in cell.arguments.items()}
    configuration = bench.shared | {
        "method": [_place(method.factory), method.private, given],
        "budget": repr(cell.budget),
        "start": _place(problem.start),
        "keys": np.asarray(jax.random.key_data(keys)).tolist(),
        "measured": [metrics, on_the_way, problem.counted, looks, problem.spacing],
    }

    def train(group: range) -> Measured:
        first = group[0]
        start = None if problem.start is None else (
            problem.first_params(-1 if tuning else first, bench.data))  # fmt: skip
        at = checkpoints(int(cell.algorithm.steps), looks, problem.spacing)
        path = follow(cell.algorithm, bench.data.examples, keys[first : group[-1] + 1], at, start,
                      problem.checkpoints, method.private)  # fmt: skip
        # What belongs to all seeds is known from the first, and few descents do.
        left_out = {*(COST if first else ()), *(_VALUES[1:] if first >= DESCENTS else ())}
        trained = Trained(cell.algorithm, method.private, problem, bench.data, bench.whole,
                          bench.reference, path)  # fmt: skip
        found = measured(trained, [m for m in metrics if m not in left_out], on_the_way)
        return [(seed + first, step, name, value) for seed, step, name, value in found]

    # In a quick run one program for many seeds would be one more to compile.
    alone = problem.start is not None or bench.plan.quick
    if not alone and bench.data.size > _BUSY_ROWS:
        first_order = GradientQuery | MinimizerQuery
        alone = not all(isinstance(query, first_order) for query in cell.algorithm.queries)
    words = f"{problem.name}: {method.label}, epsilon {cell.epsilon:g}{', tuning' * (tuning > 0)}"
    found: Measured = []
    for first in range(0, seeds, 1 if alone else seeds):
        group = range(first, first + 1 if alone else seeds)
        bench.advance(words, 0)
        key = configuration | {"seeds": list(group)}
        found += cached(bench.folder, key, functools.partial(train, group))
        bench.advance(words, len(group))
    if not tuning:
        return found
    # Their seeds are -1, -2, ...; what belongs to all of them stands with the first.
    return [(-1.0 - np.nan_to_num(s), step, name, value) for s, step, name, value in found]


def follow(
    algorithm: Algorithm,
    examples: Any,
    keys: Array,
    at: list[int],
    start: Params | None = None,
    most: int = 0,
    private: bool = True,
) -> Path:
    """Returns the iterates after the steps ``at``, and the outputs, of a run with each key.

    The last step is that of the algorithm. Several keys are trained in one program, and one program
    serves up to ``most`` steps. Of a run without noise, records are not counted.

    Privacy: iterates and outputs are covered by the guarantee of the run.
    """
    each = algorithm.evaluations.declared / int(algorithm.steps) if private else _NAN
    padded = jnp.asarray(at + at[-1:] * (most - len(at)))
    followed = _follow(algorithm, examples, keys, padded, each, start)
    *path, output = jax.tree.map(np.asarray, followed)
    params, steps, read = jax.tree.map(lambda leaf: leaf[:, : len(at)], path)
    return Path(params, steps, read.astype(float), output)


@jax.jit
def _follow(algorithm: Algorithm, examples: Any, keys: Array, at: Array, each: float, start):
    def one(key: Array):
        params, solution = trajectory(algorithm, examples, key=key, at=at, params=start)
        steps = jnp.minimum(at, solution.steps)
        # A single pass tells what it read; any other reads as much at every step.
        used = getattr(solution.history, "used", None)
        read = steps * each if used is None else jnp.where(steps > 0, used[steps - 1], 0)
        return params, steps, read, solution.params

    if len(keys) > 1:
        return jax.vmap(one)(keys)
    # Not vmap of one: it makes other programs of convolutions, many times slower.
    return jax.tree.map(lambda leaf: leaf[None], one(keys[0]))


def checkpoints(steps: int, count: int, spacing: str = "log") -> list[int]:
    """Returns step numbers, evenly spaced or on a logarithmic axis, the last being ``steps``.

    >>> checkpoints(32, 12), checkpoints(32, 4, "even"), checkpoints(32, 0)
    ([1, 2, 3, 4, 5, 7, 9, 12, 17, 23, 32], [8, 16, 24, 32], [32])
    """
    if spacing == "even":
        return sorted({-(-steps * i // count) for i in range(1, count)} | {steps})
    return sorted({round(float(one)) for one in np.geomspace(1, steps, count)} | {steps})


def _timed(cells: list[Cell]) -> list[Measured]:
    """The seconds of one training: of all steps in each round, and the least to each checkpoint.

    All methods in turn in every round, and anew when one is added: times compare only within one
    run.
    """
    bench, key = cells[0].bench, jax.random.key(SEED)[None]
    looks = bench.problem.checkpoints
    bench.advance(f"{bench.problem.name}: the times", 0)

    def seconds(cell: Cell, until: int) -> float:
        # The same program, stopped earlier: the number of steps is a leaf.
        steps: Any = type(cell.algorithm.steps)(until)
        short = dataclasses.replace(cell.algorithm, steps=steps)
        begin = time.perf_counter()
        follow(short, bench.data.examples, key, [until], None, looks)
        return time.perf_counter() - begin

    def measure() -> list[list]:
        at = [checkpoints(int(cell.algorithm.steps), looks) for cell in cells]
        for cell, steps in zip(cells, at, strict=True):
            seconds(cell, steps[-1])  # compiles
        whole = [[seconds(cell, steps[-1]) for cell, steps in zip(cells, at, strict=True)]
                 for _ in range(_ROUNDS)]  # fmt: skip
        rows = []
        for cell, steps, runs in zip(cells, at, zip(*whole, strict=True), strict=True):
            least = [min(seconds(cell, step) for _ in range(2)) for step in steps[:-1]]
            least = np.maximum.accumulate([*least, min(runs)]).tolist()
            way = [(_NAN, step, "seconds", s) for step, s in zip(steps, least, strict=True)]
            rows.append([*way, *((i, _NAN, "seconds_of_a_run", s) for i, s in enumerate(runs))])
        return rows

    configuration = bench.shared | {"timed": [[c.method.label, repr(c.arguments)] for c in cells]}
    return cached(bench.folder, configuration, measure)


def in_words(settings: Settings) -> str:
    """Returns settings as a table shows them.

    >>> in_words({"steps": 32, "step_size": 8.0}), in_words({})
    ('steps 32, step_size 8', 'defaults')
    """
    shown = {n: f"{v:g}" if isinstance(v, float) else str(v) for n, v in settings.items()}
    return ", ".join(f"{name} {value}" for name, value in shown.items()) or "defaults"


def _place(function: Any) -> str:
    """What a function is called, and what is bound to it."""
    inner = getattr(function, "func", function)
    if not hasattr(inner, "__qualname__"):
        return str(inner)
    more = f" {function.args} {function.keywords}" if inner is not function else ""
    return f"{inner.__module__}.{inner.__qualname__}{more}"


def _objective_words(problem: Problem, data: Dataset) -> list[str]:
    """What the objective computes, not what it is called."""
    objective, params = problem.loss, problem.first_params(0, data)
    record = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), data.examples)
    computed = program(objective.loss, params, record)
    return [objective.name, computed, repr(objective.regularizer), repr(objective.constants)]
