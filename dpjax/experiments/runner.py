"""NOT PRIVATE: the one runner: every cell of an experiment trained, measured, kept on disk."""

import dataclasses
import hashlib
import importlib.metadata
import math
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._program import trace
from dpjax._typing import Array, Params, PyTree
from dpjax.algorithms import Algorithm
from dpjax.datasets import Dataset
from dpjax.driver import trajectory
from dpjax.experiments.cache import Cache
from dpjax.experiments.metrics import COST, DESCENTS, REFERENCES, Measured, Trained, measured
from dpjax.experiments.results import Row
from dpjax.experiments.spec import SEED, Experiment, Method, Plan, Problem, Settings
from dpjax.oracles import GradientQuery, MinimizerQuery

Advance = Callable[[str, int], None]
# A Hessian of so many rows keeps every core busy: seeds then gain nothing from vmap.
_BUSY_ROWS = 100_000
_NAN = math.nan


class Bench(NamedTuple):
    """One problem at one n, and what its cells need."""

    plan: Plan
    problem: Problem
    data: Dataset
    """The records, or a random subset of them."""
    whole: Dataset
    cache: Cache
    advance: Advance
    shared: dict[str, Any]
    """What every result depends on."""
    reference: dict[str, float]

    @property
    def experiment(self) -> Experiment:
        """What it is a part of."""
        return self.plan.experiment

    @property
    def dimension(self) -> int:
        """Number of parameters."""
        first = self.problem.first_params(0, self.data)
        return sum(leaf.size for leaf in jax.tree.leaves(first))


def problem_rows(plan: Plan, problem: Problem, cache: Cache, advance: Advance) -> list[Row]:
    """Returns the rows of one problem, computing what the cache does not hold. NOT PRIVATE.

    Raises:
      FileNotFoundError: if the data are not on this machine.
    """
    whole, rows = problem.load(), []
    order = np.random.default_rng(SEED).permutation(whole.size)
    for size in problem.sizes:
        chosen = order[:size]
        data = dataclasses.replace(whole, x=whole.x[chosen], y=whole.y[chosen]) if size else whole
        shared = {
            "versions": [importlib.metadata.version("dpjax"), jax.__version__],
            "data": _digest((data, whole)),
            "objective": _objective_digest(problem, data),
            "reference": [problem.reference, problem.starts],
        }
        advance(f"{problem.name}: n = {data.size:,}, what outputs are held against", 0)
        find = REFERENCES.get(problem.reference, lambda problem, data: {})
        reference = cache.found(shared, lambda data=data, find=find: find(problem, data))
        bench = Bench(plan, problem, data, whole, cache, advance, shared, reference)
        rows += _bench_rows(bench)
    return rows


def _bench_rows(bench: Bench) -> list[Row]:
    problem, reference = bench.problem, dict(bench.reference)
    cells: list[tuple[Method, float, Settings, Measured]] = []
    chosen: list[tuple[Method, Settings]] = []
    for method in bench.experiment.methods_on(problem):
        for epsilon in bench.plan.epsilons(problem):
            tried, best = _tuned(bench, method, epsilon)
            cells += [(method, epsilon, settings, found) for settings, found in tried]
            cells.append((method, epsilon, best, _trained(bench, method, epsilon, best)))
            chosen += [(method, best)] if problem.timed and epsilon == problem.traced[0] else []
    if problem.reference == "descents":
        # No search is sure to find the global minimum: an output may lie below what was found.
        names = ("exact_value", "exact_local_value")
        values = [v for *_, found in cells for seed, _, name, v in found if name in names]
        reference["optimum"] = float(np.nanmin([reference["optimum"], *values]))
    best = reference.get("optimum")
    place = (bench.experiment.name, problem.name, bench.data.size, bench.dimension)
    rows = [Row(*place, "", "", _NAN, _NAN, _NAN, f"exact_{name}", value)
            for name, value in reference.items()]  # fmt: skip
    if chosen:
        spent = zip(chosen, _timed(bench, chosen), strict=True)
        cells += [(method, problem.traced[0], given, found) for (method, given), found in spent]
    for method, epsilon, settings, found in cells:
        words = in_words(method.arguments(problem, bench.data.size, settings))
        for seed, step, name, value in _as_gaps(found, best):
            rows.append(Row(*place, method.label, words, epsilon, seed, step, name, value))
    return rows


def _as_gaps(found: Measured, best: float | None) -> Iterable[tuple[float, float, str, float]]:
    """Values become gaps, to the local minimum and, where it is known, to the best value."""
    values = {seed: v for seed, step, name, v in found if name == "exact_value" and step != step}
    for seed, step, name, value in found:
        if name == "exact_local_value":
            yield seed, step, "exact_gap_to_local_minimum", values[seed] - value
        elif name == "exact_value" and best is not None:
            yield seed, step, "exact_gap", value - best
        else:
            yield seed, step, name, value


def _tuned(
    bench: Bench, method: Method, epsilon: float
) -> tuple[list[tuple[Settings, Measured]], Settings]:
    """What was tried, and the setting taken."""
    grid, tuning = list(method.grid(bench.problem)), bench.experiment.tuning
    if len(grid) < 2 or tuning is None:
        return [], grid[0]
    tried, reached = [], []
    left = 0 if bench.problem.tries else tuning.further
    while grid:
        settings = grid.pop(0)
        found = _trained(bench, method, epsilon, settings, tuning.seeds)
        mean = np.mean([value for *_, name, value in found if name == tuning.metric])
        tried.append((settings, found))
        reached.append(float(np.nan_to_num(-mean if tuning.largest else mean, nan=np.inf)))
        if not grid and left:
            (name, _), *_ = settings.items()
            beyond = further([one[name] for one, _ in tried], reached)
            grid, left = [] if beyond is None else [{name: beyond}], left - 1
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


def _trained(
    bench: Bench, method: Method, epsilon: float, settings: Settings, tuning: int = 0
) -> Measured:
    """What trainings with one setting gave, each group of seeds read from disk or put there."""
    problem, experiment = bench.problem, bench.experiment
    seeds = tuning or min(bench.plan.seeds, problem.most_seeds or bench.plan.seeds)
    arguments = method.arguments(problem, bench.data.size, settings)
    asked, looks = _asked(bench, epsilon, tuning)
    keys = experiment.keys(jax.random.key(SEED), seeds, tuning > 0 if experiment.tuning else None)
    configuration = bench.shared | {
        "method": [
            _place(method.factory),
            method.private,
            {n: repr(v) for n, v in arguments.items()},
        ],
        "budget": repr(problem.budget(epsilon, bench.data.size)),
        "start": _place(problem.start),
        "keys": np.asarray(jax.random.key_data(keys)).tolist(),
        "measured": [asked.metrics, asked.path_metrics, problem.counted, looks, problem.spacing],
    }
    made: list[Algorithm] = []

    def train(group: range) -> list:
        made.extend([] if made else [build(bench, method, epsilon, arguments)])
        start = None if problem.start is None else (
            problem.first_params(-1 if tuning else group[0], bench.data))  # fmt: skip
        at = checkpoints(int(made[0].steps), looks, problem.spacing)
        some, most = keys[group[0] : group[-1] + 1], problem.checkpoints
        path = follow(made[0], bench.data.examples, some, at, start, most, method.private)
        wanted = asked
        if group[0]:  # what belongs to all seeds is known from the first, and few descents do
            left_out = {*COST, *(["exact_local_value"] if group[0] >= DESCENTS else [])}
            own = tuple(name for name in asked.metrics if name not in left_out)
            wanted = dataclasses.replace(asked, metrics=own)
        trained = Trained(made[0], method.private, wanted, bench.data, bench.whole,
                          bench.reference, *path, {})  # fmt: skip
        return [[None if s != s else s + group[0], None if t != t else t, name, v]
                for s, t, name, v in measured(trained)]  # fmt: skip

    # In a quick run one program for many seeds would be one more to compile.
    alone = problem.start is not None or bench.plan.quick
    if not alone and bench.data.size > _BUSY_ROWS:
        made.append(build(bench, method, epsilon, arguments))
        alone = not all(isinstance(q, GradientQuery | MinimizerQuery) for q in made[0].queries)
    words = f"{problem.name}: {method.label}, epsilon {epsilon:g}{', tuning' * (tuning > 0)}"
    found: Measured = []
    for first in range(0, seeds, 1 if alone else seeds):
        group = range(first, first + 1 if alone else seeds)
        bench.advance(words, 0)
        rows = bench.cache.found(configuration | {"seeds": list(group)}, lambda g=group: train(g))
        bench.advance(words, len(group))
        for seed, step, name, value in rows:
            seed = (_NAN if seed is None else seed) if not tuning else -1.0 - (seed or 0)
            found.append((seed, _NAN if step is None else step, name, value))
    return found


def _asked(bench: Bench, epsilon: float, tuning: int) -> tuple[Problem, int]:
    """The problem with what is measured of a cell, and how many iterates are looked at."""
    problem = bench.problem
    looks = problem.checkpoints if not problem.traced or epsilon in problem.traced else 0
    if tuning:
        names = (bench.experiment.tuning.metric, "gradients")  # pyright: ignore
        return dataclasses.replace(problem, metrics=names, path_metrics=()), 0
    if not looks and problem.checkpoints:
        names = tuple(name for name in problem.metrics if name != "exact_local_value")
        return dataclasses.replace(problem, metrics=names, path_metrics=()), 0
    return problem, looks


def build(bench: Bench, method: Method, epsilon: float, arguments: Settings) -> Algorithm:
    """Returns the calibrated algorithm of one cell."""
    sizes = {"data_size": bench.data.size, "dimension": bench.dimension}
    budget = bench.problem.budget(epsilon, bench.data.size)
    with warnings.catch_warnings():
        # A step size above a theorem's bound may well be the best; the page says which was taken.
        warnings.filterwarnings("ignore", message="step_size", category=UserWarning)
        return method.make(bench.problem.loss, budget, **sizes, **arguments)


class Path(NamedTuple):
    """Where runs were after some of their steps, and what they gave; by seed."""

    params: Params
    """(seeds, m, ...) iterates."""
    steps: np.ndarray
    """(seeds, m) steps taken by then."""
    read: np.ndarray
    """(seeds, m) records read by then."""
    output: Params
    """(seeds, ...)"""


def follow(
    algorithm: Algorithm,
    examples: PyTree,
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

    >>> import dpjax
    >>> examples = jnp.ones((50, 2)) / 2 ** 0.5, jnp.ones(50)
    >>> algorithm = dpjax.dp_trust_region(
    ...     dpjax.objectives.logistic(), dpjax.PrivacyBudget(1.0, 1e-3),
    ...     data_size=50, dimension=2, steps=4)
    >>> path = follow(algorithm, examples, jax.random.split(jax.random.key(0), 3), [1, 4])
    >>> path.read[0].tolist()
    [50.0, 200.0]
    """
    each = algorithm.evaluations.declared / int(algorithm.steps) if private else _NAN
    padded = jnp.asarray(at + at[-1:] * (most - len(at)))
    *path, output = jax.tree.map(
        np.asarray, _follow(algorithm, examples, keys, padded, each, start)
    )
    params, steps, read = jax.tree.map(lambda leaf: leaf[:, : len(at)], path)
    return Path(params, steps, read.astype(float), output)


@jax.jit
def _follow(algorithm: Algorithm, examples: PyTree, keys: Array, at: Array, each: float, start):
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


def _timed(bench: Bench, chosen: list[tuple[Method, Settings]]) -> list[Measured]:
    """The seconds of one training to each checkpoint, the best of two.

    All methods in turn, and anew when one is added: times compare only within one run.
    """
    problem, size = bench.problem, bench.data.size
    cells = [(method, method.arguments(problem, size, settings)) for method, settings in chosen]
    bench.advance(f"{problem.name}: the times", 0)

    def seconds(method: Method, arguments: Settings) -> list:
        algorithm, spent = build(bench, method, problem.traced[0], arguments), []
        at = checkpoints(int(algorithm.steps), problem.checkpoints)
        for until in [at[-1], *at, *at]:  # the first one compiles
            # The same program, stopped earlier: the number of steps is a leaf.
            steps = type(algorithm.steps)(until)
            short = dataclasses.replace(algorithm, steps=steps)  # pyright: ignore[reportArgumentType]
            begin = time.perf_counter()
            follow(short, bench.data.examples, key, [until], None, problem.checkpoints)
            spent.append(time.perf_counter() - begin)
        best = np.maximum.accumulate(np.minimum(*np.reshape(spent[1:], (2, -1))))
        return list(zip(at, best.tolist(), strict=True))

    key = jax.random.key(SEED)[None]
    configuration = bench.shared | {"timed": [[m.label, repr(given)] for m, given in cells]}
    found = bench.cache.found(configuration, lambda: [seconds(*cell) for cell in cells])
    return [[(_NAN, step, "seconds", value) for step, value in one] for one in found]


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


def _digest(tree: PyTree) -> str:
    """A hash of records: another table of the same name has other results."""
    found = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        array = np.asarray(leaf)
        found.update(f"{array.dtype} {array.shape}".encode() + array.tobytes())
    return found.hexdigest()[:24]


def _objective_digest(problem: Problem, data: Dataset) -> list[str]:
    """What the objective computes, not what it is called."""
    objective, params = problem.loss, problem.first_params(0, data)
    record = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), data.examples)
    digest = trace(objective.loss, params, record).digest
    return [objective.name, digest, repr(objective.regularizer), repr(objective.constants)]
