"""NOT PRIVATE: what is measured of trainings, by name, and what outputs are held against."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.papers.spec import Array, Params, Problem
from dpjax import diagnostics
from dpjax.accounting import epsilon
from dpjax.algorithms import Algorithm
from dpjax.datasets import Dataset
from dpjax.objectives import Objective
from dpjax.oracles import HessianQuery

# A descent on so many rows takes seconds: the first outputs stand for all.
_MANY_ROWS, DESCENTS = 100_000, 3
# Images that a network looks at at once.
_IMAGES = 250


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


@dataclasses.dataclass(frozen=True)
class Trained:
    """Trainings of one algorithm, one for each seed."""

    algorithm: Algorithm
    private: bool
    problem: Problem
    data: Dataset
    """The records that it was trained on."""
    whole: Dataset
    """All records, of which those are some."""
    reference: dict[str, float]
    path: Path

    def of_outputs(self, name: str, data: Dataset | None = None) -> np.ndarray:
        """Returns a metric of the outputs, (seeds,), on the records or on others."""
        return POINT[name](self.problem, self.data if data is None else data, self.path.output)

    def on_the_way(self, name: str) -> np.ndarray:
        """Returns a metric of the iterates, (seeds, m)."""
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), self.path.params)
        return POINT[name](self.problem, self.data, flat).reshape(self.path.steps.shape)

    @functools.cached_property
    def below(self) -> np.ndarray:
        """Which iterates are below the value halfway to the minimum."""
        return self.on_the_way("exact_value") < self.reference["halfway"]

    def until_out(self, counted: np.ndarray) -> np.ndarray:
        """Returns what each seed had counted when it was first below that value."""
        first = counted[np.arange(len(counted)), self.below.argmax(axis=1)]
        return np.where(self.below.any(axis=1), first, np.inf)

    def alpha(self, data: Dataset) -> np.ndarray:
        """Returns the least alpha of each output on some records."""
        names = ("exact_gradient_norm", "exact_min_eigenvalue")
        norms, lowest = (self.of_outputs(name, data) for name in names)
        return least_alpha(norms, lowest, self.reference["hessian_lipschitz"])


def _each(function: Callable[[Params], Any], params: Params) -> np.ndarray:
    count = len(jax.tree.leaves(params)[0])
    picked = (jax.tree.map(lambda leaf, i=i: jnp.asarray(leaf[i]), params) for i in range(count))
    return np.array([float(function(one)) for one in picked])


def _local(problem: Problem, data: Dataset, params: Params) -> np.ndarray:
    some = params[: DESCENTS if data.size > _MANY_ROWS else None]
    return _each(lambda w: diagnostics.exact_descent(problem.loss, w, data.examples)[1], some)


def _accuracy(part: str, problem: Problem, data: Dataset, params: Params) -> np.ndarray:
    tested = part == "test" or (not part and data.test_x is not None)
    x, y = (data.test_x, data.test_y) if tested else data.examples
    few = slice(problem.counted)
    return _each(lambda w: exact_share(problem.loss, w, x[few], y[few]), params)  # pyright: ignore


def exact_share(objective: Objective, params: Params, x: Array, y: Array) -> float:
    """Returns the share of records whose label a model or a network predicts. NOT PRIVATE.

    Parameters of a network that are not finite predict nothing.

    >>> from dpjax.objectives import cross_entropy
    >>> network = cross_entropy(lambda w, x: x * w)
    >>> exact_share(network, jnp.ones(2), jnp.eye(2), jnp.array([0.0, 0.0]))
    0.5
    """
    if objective.predicts:
        return float(diagnostics.exact_accuracy(objective, params, x, y))
    apply = objective.loss.apply  # pyright: ignore[reportFunctionMemberAccess]
    pieces = (slice(i, i + _IMAGES) for i in range(0, len(y), _IMAGES))
    return sum(int(_hits(apply, params, x[few], y[few])) for few in pieces) / len(y)


@functools.partial(jax.jit, static_argnums=0)
def _hits(apply: Callable[..., Array], params: Params, x: Array, y: Array) -> Array:
    logits = jax.vmap(functools.partial(apply, params))(x)
    return jnp.sum((jnp.argmax(logits, axis=1) == y) & jnp.isfinite(logits).all(axis=1))


# Of (m, ...) parameters: from problem and records to (m,) numbers.
POINT: dict[str, Callable[[Problem, Dataset, Params], np.ndarray]] = {
    "exact_value": lambda p, data, w: diagnostics.exact_values(p.loss, w, data.examples),
    "exact_gradient_norm": lambda p, data, w: diagnostics.exact_gradient_norms(
        p.loss, w, data.examples
    ),
    "exact_min_eigenvalue": lambda p, data, w: _each(
        lambda one: diagnostics.exact_min_eigenvalue(p.loss, one, data.examples), w
    ),
    "exact_local_value": _local,
    "exact_accuracy": functools.partial(_accuracy, ""),
    "exact_train_accuracy": functools.partial(_accuracy, "train"),
    "exact_test_accuracy": functools.partial(_accuracy, "test"),
}


def least_alpha(norms: Any, lowest: Any, hessian_lipschitz: float) -> Any:
    """Returns the least alpha with |g| <= alpha and lambda_min >= -sqrt(rho alpha).

    >>> print(least_alpha(np.array([0.1, 0.1]), np.array([0.3, -0.5]), 1.0))
    [0.1  0.25]
    """
    return np.maximum(norms, np.minimum(lowest, 0) ** 2 / hessian_lipschitz)


# Of trainings: (seeds,) numbers.
RUN: dict[str, Callable[[Trained], np.ndarray]] = {
    "exact_escaped": lambda t: t.of_outputs("exact_value") < t.reference["halfway"],
    "exact_iterations_until_out": lambda t: t.until_out(t.path.steps),
    "exact_passes_until_out": lambda t: t.until_out(t.path.read / t.data.size),
    "exact_alpha": lambda t: t.alpha(t.data),
    "exact_alpha_on_all_records": lambda t: t.alpha(t.whole),
    "records": lambda t: t.path.read[:, -1],
}


def _spent(algorithm: Algorithm) -> float:
    accountant, delta = algorithm.accountant, float(algorithm.declared.delta)
    return float(epsilon(algorithm.event, delta, algorithm.relation, accountant))


def _passes(algorithm: Any) -> float:
    """How often all records are read; a Hessian that is released by itself reads them once more."""
    queries = {query.name: query for query in algorithm.queries}
    parts = [part for release in algorithm.event.releases for part in release.parts()]
    alone = [part.count * float(queries[part.name].divisor) for part in parts
             if isinstance(queries.get(part.name), HessianQuery)]  # fmt: skip
    return (algorithm.evaluations.declared + sum(alone)) / algorithm.queries[0].data_size


# Of an algorithm: one number.
COST: dict[str, Callable[[Any], Any]] = {
    "steps": lambda algorithm: algorithm.steps,
    "gradients": lambda algorithm: algorithm.evaluations.declared,
    "gradients_computed": lambda algorithm: algorithm.evaluations.padded,
    "passes": _passes,
    "batch_size": lambda algorithm: algorithm.queries[0].divisor,
    "noise_multiplier": lambda algorithm: algorithm.queries[0].noise_multiplier,
    "promised_alpha": lambda algorithm: getattr(algorithm, "tolerances", [math.nan])[0],
    "epsilon_of_the_noise": _spent,
}
# Without noise there is no epsilon, nor a count that rests on its event.
_NOISELESS = {"epsilon_of_the_noise": math.inf, "noise_multiplier": 0.0, "gradients": math.nan}

METRICS = (*POINT, *RUN, *COST)
"""The names of what can be measured; ``exact_gap`` is ``exact_value`` minus the best one known."""

Measured = list[tuple[float, float, str, float]]
"""Seed, step, metric and value; NaN where a seed or a step means nothing."""


def measured(trained: Trained, metrics: Iterable[str], on_the_way: Iterable[str]) -> Measured:
    """Returns metrics of the outputs and of the iterates; a cost belongs to all seeds."""
    found: Measured = []
    for name in metrics:
        if name in COST:
            known = {} if trained.private else _NOISELESS
            value = known[name] if name in known else COST[name](trained.algorithm)
            found.append((math.nan, math.nan, name, float(value)))
        else:
            values = RUN[name](trained) if name in RUN else trained.of_outputs(name)
            found += [(seed, math.nan, name, float(value)) for seed, value in enumerate(values)]
    for name in on_the_way:
        for (seed, place), value in np.ndenumerate(trained.on_the_way(name)):
            found.append((seed, float(trained.path.steps[seed, place]), name, float(value)))
    return found


def _descents(problem: Problem, data: Dataset) -> dict[str, float]:
    params, value = diagnostics.exact_optimum(problem.loss, data.examples, problem.starts)
    found = {"optimum": value, "searched": value}
    if problem.loss.predicts:
        y = np.asarray(data.y if data.test_y is None else data.test_y)
        share = float(np.mean(y > 0))
        at = np.asarray(params, np.float32)[None]
        found["accuracy_of_the_optimum"] = float(_accuracy("", problem, data, at)[0])
        found["share_of_the_larger_class"] = max(share, 1 - share)
    return found


def _certified(problem: Problem, data: Dataset) -> dict[str, float]:
    found = diagnostics.exact_certified_optimum(problem.loss, data.examples)
    return {"optimum": found.value, "suboptimality": found.suboptimality}


def _landscape(problem: Problem, data: Dataset) -> dict[str, float]:
    if (rho := problem.loss.hessian_lipschitz) is None:
        raise ValueError(f"{problem.name} has no Hessian-Lipschitz constant.")
    land = diagnostics.exact_landscape(problem.loss, data.examples)
    saddle, minimum, lowest = land.saddle, land.minimum, land.saddle.min_eigenvalue
    return {
        "optimum": minimum.value,
        "saddle": saddle.value,
        "saddle_gap": saddle.value - minimum.value,
        "saddle_min_eigenvalue": lowest,
        "minimum_min_eigenvalue": minimum.min_eigenvalue,
        "halfway": land.halfway,
        "hessian_lipschitz": float(rho),
        "saddle_alpha": float(least_alpha(0.0, lowest, rho)),
    }


REFERENCES: dict[str, Callable[[Problem, Dataset], dict[str, float]]] = {
    "descents": _descents,
    "certified": _certified,
    "landscape": _landscape,
}
"""Name -> function of problem and records: the best value that is known, and what comes with it."""
