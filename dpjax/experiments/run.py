"""NOT PRIVATE: the one runner: every cell of an experiment trained, measured, and kept on disk."""

import dataclasses
import hashlib
import importlib.metadata
import math
import time
import warnings
from collections.abc import Callable
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
from dpjax.experiments.metrics import COST, REFERENCES, Trained, measured
from dpjax.experiments.results import Row
from dpjax.experiments.spec import Experiment, Method, Problem, Settings
from dpjax.oracles import GradientQuery, MinimizerQuery

SEED = 2020
"""Of all keys."""
Advance = Callable[[str, int], None]

# A Hessian of so many rows keeps every core busy: seeds then gain nothing from vmap.
_BUSY_ROWS = 100_000
_NAN = float("nan")


class Bench(NamedTuple):
    """One problem at one n, and what its cells need.

    Args:
      experiment: what it is a part of.
      problem: which one.
      data: its records, or a random subset of them.
      whole: all of its records.
      reference: what outputs are held against.
      shared: what every result depends on.
      cache: what was computed before.
      seeds: runs of each cell.
      together: whether seeds may be trained in one program.
      advance: told what is being done and how many more trainings are done.
    """

    experiment: Experiment
    problem: Problem
    data: Dataset
    whole: Dataset
    reference: dict[str, float]
    shared: dict[str, Any]
    cache: Cache
    seeds: int
    together: bool
    advance: Advance

    @property
    def dimension(self) -> int:
        """Number of parameters."""
        if self.problem.start is None:
            return self.problem.loss.parameters(self.data.dimension)
        return sum(leaf.size for leaf in jax.tree.leaves(self.start(0)))

    def start(self, seed: int) -> Params:
        """Returns the first parameters."""
        if self.problem.start is None:
            return jnp.zeros(self.dimension)
        return self.problem.start(seed, self.data)


def problem_rows(
    experiment: Experiment,
    problem: Problem,
    epsilons: tuple[float, ...],
    cache: Cache,
    *,
    seeds: int,
    together: bool,
    advance: Advance,
) -> list[Row]:
    """Returns the rows of one problem, computing what the cache does not hold.

    Args:
      experiment: with the methods.
      problem: which one.
      epsilons: where.
      cache: what was computed before; a result is put there as soon as it is there.
      seeds: runs of each cell.
      together: whether seeds may be trained in one program; in a quick run that would be one
        program more to compile.
      advance: told what is being done and how many more trainings are done.

    Raises:
      FileNotFoundError: if the data are not on this machine.

    Privacy: NOT PRIVATE.
    """
    whole = problem.load()
    order = np.random.default_rng(SEED).permutation(whole.size)
    rows = []
    for size in problem.sizes:
        chosen = order[:size]
        data = dataclasses.replace(whole, x=whole.x[chosen], y=whole.y[chosen]) if size else whole
        shared = {
            "dpjax": importlib.metadata.version("dpjax"),
            "jax": jax.__version__,
            "data": _digest((data, whole)),
            "objective": _objective_digest(problem, data),
            "counted": problem.counted,
        }
        advance(f"{problem.name}: n = {data.size:,}, what outputs are held against", 0)
        reference = cache.found(
            shared | {"reference": problem.reference, "starts": problem.starts},
            lambda data=data: _reference(problem, data),
        )
        bench = Bench(
            experiment,
            problem,
            data,
            whole,
            reference,
            shared,
            cache,
            min(seeds, problem.most_seeds or seeds),
            together,
            advance,
        )
        rows += _bench_rows(bench, epsilons)
    return rows


def _bench_rows(bench: Bench, epsilons: tuple[float, ...]) -> list[Row]:
    methods = bench.experiment.methods_on(bench.problem)
    cells = [
        (method, epsilon, *_tuned(bench, method, epsilon))
        for method in methods
        for epsilon in epsilons
    ]
    reference = dict(bench.reference)
    values = [
        value
        for *_, runs in cells
        for run in runs
        for name in ("exact_value", "exact_local_value")
        for value in run["final"].get(name, ())
    ]
    if bench.problem.reference == "descents":
        # No search is sure to find the global minimum: an output may lie below what was found.
        reference["optimum"] = float(np.nanmin([reference["optimum"], *values]))
    best = reference.get("optimum")
    new = _Rows(bench)
    for name, value in reference.items():
        new.add("", "", _NAN, _NAN, _NAN, f"exact_{name}", value)
    for method, epsilon, tried, chosen, runs in cells:
        for settings, found in tried:
            new.results(method, epsilon, settings, found, best, tuning=True)
        new.results(method, epsilon, chosen, runs, best)
    if bench.problem.timed:
        _time(bench, [(one[0], one[3]) for one in cells if one[1] == bench.problem.traced[0]], new)
    return new.rows


class _Rows:
    """The rows of a bench."""

    def __init__(self, bench: Bench):
        self.rows: list[Row] = []
        self._bench, self._dimension = bench, bench.dimension

    def add(self, method: str, words: str, epsilon: float, seed: float, step: float, metric: str,
            value: float) -> None:  # fmt: skip
        bench = self._bench
        sizes = bench.data.size, self._dimension
        self.rows.append(
            Row(bench.experiment.name, bench.problem.name, *sizes, method, words, epsilon, seed,
                step, metric, float(value))
        )  # fmt: skip

    def results(
        self,
        method: Method,
        epsilon: float,
        settings: Settings,
        runs: list[dict[str, Any]],
        best: float | None,
        tuning: bool = False,
    ) -> None:
        """Adds what trainings gave; values become gaps where the best one is known."""
        words = in_words(method.arguments(self._bench.problem, self._bench.data.size, settings))

        def add(seed: float, step: float, name: str, value: float) -> None:
            if name == "exact_value" and best is not None:
                name, value = "exact_gap", value - best
            self.add(method.label, words, epsilon, seed, step, name, value)

        cost = runs[0]["cost"]
        for name, value in cost.items():
            add(-1.0 if tuning else _NAN, _NAN, name, value)
        seed = -1 if tuning else 0
        for run in runs:
            final, path = dict(run["final"]), dict(run["path"])
            values, local = final.get("exact_value"), final.pop("exact_local_value", None)
            if local and values and not np.isnan(local).all():
                final["exact_gap_to_local_minimum"] = np.subtract(values, local).tolist()
            if tuning:
                final, path = {self._bench.experiment.tuning.metric: run["tuned"]}, {}  # pyright: ignore
            steps = path.pop("steps", [])
            for i in range(len(run["seeds"])):
                for name, numbers in final.items():
                    add(seed, _NAN, name, numbers[i])
                for name, numbers in path.items():
                    for step, value in zip(steps[i], numbers[i], strict=True):
                        add(seed, step, name, value)
                seed += -1 if tuning else 1


Runs = list[dict[str, Any]]


def _tuned(
    bench: Bench, method: Method, epsilon: float
) -> tuple[list[tuple[Settings, Runs]], Settings, Runs]:
    """What was tried, the setting taken, and the trainings with it."""
    grid, tuning = list(method.grid(bench.problem)), bench.experiment.tuning
    if len(grid) < 2 or tuning is None:
        return [], grid[0], _runs(bench, method, epsilon, grid[0])
    reached: list[float] = []
    tried: list[tuple[Settings, Runs]] = []

    def attempt(settings: Settings) -> None:
        runs = _runs(bench, method, epsilon, settings, tuning.seeds)
        mean = float(np.mean(np.concatenate([run["tuned"] for run in runs])))
        reached.append((-mean if tuning.largest else mean) if np.isfinite(mean) else np.inf)
        tried.append((settings, runs))

    for settings in grid:
        attempt(settings)
    for _ in range(0 if bench.problem.tries else tuning.further):
        beyond = further([next(iter(one.values())) for one, _ in tried], reached)
        if beyond is None:
            break
        attempt({next(iter(grid[0])): beyond})
    best = tried[int(np.argmin(reached))][0]
    return tried, best, _runs(bench, method, epsilon, best)


def further(numbers: list[float], reached: list[float]) -> float | None:
    """Returns where a grid goes on, if its best is at an end of it.

    Args:
      numbers: tried so far, two at least.
      reached: by each of them; less is better.

    >>> further([1.0, 2.0, 4.0], [3.0, 2.0, 1.0]), further([1.0, 2.0, 4.0], [3.0, 1.0, 2.0])
    (8.0, None)
    """
    order = np.argsort(numbers)
    grown = [numbers[i] for i in order]
    best = numbers[int(np.argmin(reached))]
    if best == grown[-1]:
        return best * grown[-1] / grown[-2]
    return best * grown[0] / grown[1] if best == grown[0] else None


def _runs(
    bench: Bench, method: Method, epsilon: float, settings: Settings, tuning: int = 0
) -> Runs:
    """Trainings of one setting, each group of them read from disk or put there."""
    problem, seeds = bench.problem, tuning or bench.seeds
    arguments = method.arguments(problem, bench.data.size, settings)
    made: list[Algorithm] = []

    def algorithm() -> Algorithm:
        if not made:
            made.append(build(bench, method, epsilon, arguments))
        return made[0]

    root = jax.random.key(SEED)
    keys = bench.experiment.keys(
        root, seeds, None if bench.experiment.tuning is None else tuning > 0
    )
    alone = problem.start is not None or not bench.together
    alone = alone or (bench.data.size > _BUSY_ROWS and _heavy(algorithm()))
    configuration = bench.shared | {
        "factory": method.factory if isinstance(method.factory, str) else _place(method.factory),
        "private": method.private,
        "arguments": {name: repr(value) for name, value in arguments.items()},
        "budget": [epsilon, problem.budget(epsilon, bench.data.size).delta, problem.relation],
        "start": None if problem.start is None else _place(problem.start),
        "keys": [SEED, _place(bench.experiment.keys)],
        "tuning": dataclasses.asdict(bench.experiment.tuning) if tuning else None,  # pyright: ignore
        "measured": [problem.metrics, problem.path_metrics, problem.reference],
        "looked": [_looks(problem, epsilon), problem.spacing],
    }
    runs = []
    words = f"{problem.name}: {method.label}, epsilon {epsilon:g}{', tuning' * (tuning > 0)}"
    for first in range(0, seeds, 1 if alone else seeds):
        group = list(range(first, first + 1 if alone else seeds))
        bench.advance(words, 0)
        runs.append(
            bench.cache.found(
                configuration | {"seeds": group, "of": seeds},
                lambda group=group: _train(bench, method, epsilon, algorithm(), keys, group, tuning),
            )
        )
        bench.advance(words, len(group))
    return runs


def build(bench: Bench, method: Method, epsilon: float, arguments: dict[str, Any]) -> Algorithm:
    """Returns the calibrated algorithm of one cell.

    Args:
      bench: problem and records.
      method: with the factory.
      epsilon: of the budget.
      arguments: what the factory is given besides objective, budget and sizes.
    """
    budget = bench.problem.budget(epsilon, bench.data.size)
    with warnings.catch_warnings():
        # A step size above a theorem's bound may well be the best; the page says which was taken.
        warnings.filterwarnings("ignore", message="step_size", category=UserWarning)
        return method.make(
            bench.problem.loss,
            budget,
            data_size=bench.data.size,
            dimension=bench.dimension,
            **arguments,
        )


def _train(
    bench: Bench,
    method: Method,
    epsilon: float,
    algorithm: Algorithm,
    keys: Array,
    group: list[int],
    tuning: int,
) -> dict[str, Any]:
    """What the trainings of one group of seeds gave, as JSON has it."""
    problem, steps = bench.problem, int(algorithm.steps)
    at = checkpoints(steps, 0 if tuning else _looks(problem, epsilon), problem.spacing)
    start = None if problem.start is None else bench.start(-1 if tuning else group[0])
    some = keys[group[0] : group[-1] + 1]
    examples, most = bench.data.examples, problem.checkpoints
    path = follow(algorithm, examples, some, at, start, most, method.private)
    trained = Trained(
        algorithm, method.private, problem, bench.data, bench.whole, bench.reference, *path, {}
    )
    wanted, on_the_way = problem.metrics, problem.path_metrics
    if tuning:
        name = bench.experiment.tuning.metric  # pyright: ignore
        wanted, on_the_way = (name, *(n for n in wanted if n == "gradients")), ()
    elif not _looks(problem, epsilon):
        wanted, on_the_way = tuple(n for n in wanted if n != "exact_local_value"), ()
    if group[0]:  # what belongs to all seeds is known from the first
        wanted = tuple(name for name in wanted if name not in COST)
    asked = dataclasses.replace(problem, metrics=wanted, path_metrics=on_the_way)
    result = measured(trained._replace(problem=asked)) | {"seeds": group}
    return result | ({"tuned": result["final"][wanted[0]]} if tuning else {})


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

    Args:
      algorithm: calibrated.
      examples: the records.
      keys: one per seed; several are trained in one program.
      at: step numbers, growing, the last one that of the algorithm.
      start: first parameters; None for 0.
      most: step numbers that one program is to serve.
      private: whether it has noise; of a run without any, records are not counted.

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
    each = algorithm.evaluations.declared / int(algorithm.steps) if private else math.nan
    padded = jnp.asarray(at + at[-1:] * (most - len(at)))
    *path, output = jax.tree.map(np.asarray, _follow(algorithm, examples, keys, padded, each, start))
    params, steps, read = jax.tree.map(lambda leaf: leaf[:, : len(at)], path)
    return Path(params, steps, read.astype(float), output)


@jax.jit
def _follow(
    algorithm: Algorithm, examples: PyTree, keys: Array, at: Array, each: float, start: Params
):
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
        return sorted({-(-steps * i // max(count, 1)) for i in range(1, max(count, 1) + 1)})
    return sorted({round(float(one)) for one in np.geomspace(1, steps, count)} | {steps})


def _looks(problem: Problem, epsilon: float) -> int:
    return problem.checkpoints if not problem.traced or epsilon in problem.traced else 0


def _time(bench: Bench, chosen: list[tuple[Method, Settings]], new: _Rows) -> None:
    """Adds the seconds of one training to each checkpoint, of all methods in one run.

    In turn, and anew when a method is added: times compare only within one run.
    """
    problem, epsilon = bench.problem, bench.problem.traced[0]
    size = bench.data.size
    bench.advance(f"{problem.name}: the times", 0)
    named = [[m.label, {n: repr(v) for n, v in m.arguments(problem, size, s).items()}]
             for m, s in chosen]  # fmt: skip
    key = jax.random.key(SEED)[None]

    def timed() -> list[tuple[list[int], list[float]]]:
        every = []
        for method, settings in chosen:
            algorithm = build(bench, method, epsilon, method.arguments(problem, size, settings))
            at = checkpoints(int(algorithm.steps), problem.checkpoints)
            spent = []
            for until in [at[-1], *at, *at]:  # the first one compiles
                # The same program, stopped earlier: the number of steps is a leaf.
                short = dataclasses.replace(algorithm, steps=type(algorithm.steps)(until))
                begin = time.perf_counter()
                follow(short, bench.data.examples, key, [until], None, problem.checkpoints)
                spent.append(time.perf_counter() - begin)
            best = np.minimum(*np.reshape(spent[1:], (2, -1)))
            every.append((at, np.maximum.accumulate(best).tolist()))
        return every

    configuration = bench.shared | {"timed": named, "epsilon": epsilon}
    for (method, settings), (at, seconds) in zip(
        chosen, bench.cache.found(configuration, timed), strict=True
    ):
        words = in_words(method.arguments(problem, size, settings))
        for step, second in zip(at, seconds, strict=True):
            new.add(method.label, words, epsilon, _NAN, step, "seconds", second)


def _reference(problem: Problem, data: Dataset) -> dict[str, float]:
    return REFERENCES[problem.reference](problem, data) if problem.reference else {}


def _heavy(algorithm: Algorithm) -> bool:
    return not all(isinstance(q, GradientQuery | MinimizerQuery) for q in algorithm.queries)


def in_words(settings: Settings) -> str:
    """Returns settings as a table shows them.

    >>> in_words({"steps": 32, "step_size": 8.0}), in_words({})
    ('steps 32, step_size 8', 'defaults')
    """
    return (
        ", ".join(
            f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in settings.items()
        )
        or "defaults"
    )


def _place(function: Any) -> str:
    inner = getattr(function, "func", function)  # of a partial
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
    objective = problem.loss
    params = jnp.zeros(objective.parameters(data.dimension)) if problem.start is None else (
        problem.start(0, data)
    )  # fmt: skip
    record = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), data.examples)
    words = [objective.name, trace(objective.loss, params, record).digest]
    return [*words, repr(objective.regularizer), repr(objective.constants)]
