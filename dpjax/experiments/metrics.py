"""NOT PRIVATE: what is measured of trainings, by name, and what outputs are held against."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import diagnostics
from dpjax._typing import Array, Params
from dpjax.accounting import epsilon
from dpjax.algorithms import Algorithm
from dpjax.algorithms.base import recount_accountant
from dpjax.datasets import Dataset
from dpjax.experiments.spec import Problem
from dpjax.objectives import Objective

# A descent on so many rows takes seconds: the first outputs stand for all.
_MANY_ROWS, _DESCENTS = 100_000, 3
# Images that a network looks at at once.
_IMAGES = 250


class Trained(NamedTuple):
    """Trainings of one algorithm, one for each seed.

    Args:
      algorithm: calibrated.
      private: whether it has noise.
      problem: what it was trained on.
      data: those records.
      whole: all records, of which those are some.
      reference: what ``REFERENCES`` gave.
      path: (seeds, m, ...) iterates.
      steps: (seeds, m) steps taken by then.
      read: (seeds, m) records read by then.
      output: (seeds, ...) parameters.
      held: what one metric computed for another.
    """

    algorithm: Algorithm
    private: bool
    problem: Problem
    data: Dataset
    whole: Dataset
    reference: dict[str, float]
    path: Params
    steps: np.ndarray
    read: np.ndarray
    output: Params
    held: dict[str, Any]


# Of parameters: (objective, problem, records, (m, ...) parameters) -> (m,) numbers.


def _each(function: Callable[[Params], Any], params: Params) -> np.ndarray:
    count = len(jax.tree.leaves(params)[0])
    picked = (jax.tree.map(lambda leaf, i=i: jnp.asarray(leaf[i]), params) for i in range(count))
    return np.array([float(function(one)) for one in picked])


def _value(objective: Objective, problem: Problem, data: Dataset, params: Params) -> np.ndarray:
    if objective.margin is None:
        return _each(lambda w: diagnostics.exact_objective(objective, w, data.examples), params)
    return diagnostics.exact_values(objective, params, data.examples)


def _norm(objective: Objective, problem: Problem, data: Dataset, params: Params) -> np.ndarray:
    if objective.margin is None:
        return _each(lambda w: diagnostics.exact_gradient_norm(objective, w, data.examples), params)
    return diagnostics.exact_gradient_norms(objective, params, data.examples)


def _lowest(objective: Objective, problem: Problem, data: Dataset, params: Params) -> np.ndarray:
    return _each(lambda w: diagnostics.exact_min_eigenvalue(objective, w, data.examples), params)


def _local(objective: Objective, problem: Problem, data: Dataset, params: Params) -> np.ndarray:
    some = _DESCENTS if data.size > _MANY_ROWS else len(params)
    found = [diagnostics.exact_descent(objective, one, data.examples)[1] for one in params[:some]]
    return np.array(found)


def _accuracy(part: str):
    def accuracy(
        objective: Objective, problem: Problem, data: Dataset, params: Params
    ) -> np.ndarray:
        tested = part == "test" or (not part and data.test_x is not None)
        x, y = (data.test_x, data.test_y) if tested else data.examples
        few = slice(problem.counted)
        return _each(lambda w: exact_share(objective, w, x[few], y[few]), params)

    return accuracy


def exact_share(objective: Objective, params: Params, x: Array, y: Array) -> float:
    """Returns the share of records whose label a model or a network predicts. NOT PRIVATE.

    Args:
      objective: with a prediction, or a ``cross_entropy`` of a network.
      params: parameters; those that are not finite predict nothing.
      x: features.
      y: labels.

    >>> from dpjax.objectives import cross_entropy
    >>> network = cross_entropy(lambda w, x: x * w)
    >>> exact_share(network, jnp.ones(2), jnp.eye(2), jnp.array([0.0, 0.0]))
    0.5
    """
    if objective.predicts:
        return float(diagnostics.exact_accuracy(objective, params, x, y))
    apply = objective.loss.apply  # pyright: ignore[reportFunctionMemberAccess]
    pieces = range(0, len(y), _IMAGES)
    hits = [_hits(apply, params, x[i : i + _IMAGES], y[i : i + _IMAGES]) for i in pieces]
    return sum(map(int, hits)) / len(y)


def _count_hits(apply: Callable[..., Array], params: Params, x: Array, y: Array) -> Array:
    logits = jax.vmap(lambda one: apply(params, one))(x)
    return jnp.sum((jnp.argmax(logits, axis=1) == y) & jnp.isfinite(logits).all(axis=1))


_hits = jax.jit(_count_hits, static_argnums=0)

POINT = {
    "exact_value": _value,
    "exact_gradient_norm": _norm,
    "exact_min_eigenvalue": _lowest,
    "exact_local_value": _local,
    "exact_accuracy": _accuracy(""),
    "exact_train_accuracy": _accuracy("train"),
    "exact_test_accuracy": _accuracy("test"),
}


# Of trainings: -> (seeds,) numbers.


def _out(trained: Trained) -> tuple[np.ndarray, np.ndarray]:
    """Whether each seed was below the value halfway to the minimum, and the first place it was."""
    if "out" not in trained.held:
        flat = np.asarray(trained.path)
        points = flat.reshape(-1, flat.shape[-1])
        values = _value(trained.problem.loss, trained.problem, trained.data, points)
        below = values.reshape(flat.shape[:2]) < trained.reference["halfway"]
        trained.held["out"] = below.any(axis=1), below.argmax(axis=1)
    return trained.held["out"]


def _until_out(counted: Callable[[Trained], np.ndarray]):
    def until(trained: Trained) -> np.ndarray:
        out, first = _out(trained)
        return np.where(out, counted(trained)[np.arange(len(first)), first], np.inf)

    return until


def _escaped(trained: Trained) -> np.ndarray:
    values = _value(trained.problem.loss, trained.problem, trained.data, trained.output)
    return (values < trained.reference["halfway"]).astype(float)


def _alpha(trained: Trained, data: Dataset) -> np.ndarray:
    objective, problem = trained.problem.loss, trained.problem
    norms = _norm(objective, problem, data, trained.output)
    lowest = _lowest(objective, problem, data, trained.output)
    return least_alpha(norms, lowest, trained.reference["hessian_lipschitz"])


def least_alpha(norms: np.ndarray, lowest: np.ndarray, hessian_lipschitz: float) -> np.ndarray:
    """Returns the least alpha with |g| <= alpha and lambda_min >= -sqrt(rho alpha).

    >>> print(least_alpha(np.array([0.1, 0.1]), np.array([0.3, -0.5]), 1.0))
    [0.1  0.25]
    """
    return np.maximum(norms, np.minimum(lowest, 0) ** 2 / hessian_lipschitz)


RUN: dict[str, Callable[[Trained], np.ndarray]] = {
    "exact_escaped": _escaped,
    "exact_iterations_until_out": _until_out(lambda trained: trained.steps),
    "exact_records_until_out": _until_out(lambda trained: trained.read),
    "exact_alpha": lambda trained: _alpha(trained, trained.data),
    "exact_alpha_on_all_records": lambda trained: _alpha(trained, trained.whole),
    "records": lambda trained: trained.read[:, -1],
}


# Of an algorithm: -> one number.


def _spent(algorithm: Algorithm) -> float:
    accountant = recount_accountant(algorithm.accountant)
    delta = float(algorithm.declared.delta)
    return float(epsilon(algorithm.event, delta, algorithm.relation, accountant))


def _first(algorithm: Algorithm) -> Any:
    return algorithm.queries[0]


def _promised(algorithm: Algorithm) -> float:
    tolerances = getattr(algorithm, "tolerances", None)
    return float("nan") if tolerances is None else float(tolerances[0])


COST: dict[str, Callable[[Algorithm], float]] = {
    "steps": lambda algorithm: int(algorithm.steps),
    "gradients": lambda algorithm: float(algorithm.evaluations.declared),
    "gradients_computed": lambda algorithm: float(algorithm.evaluations.padded),
    # A Hessian beside the gradient is no other pass.
    "passes": lambda algorithm: algorithm.evaluations.declared / _first(algorithm).data_size,
    "batch_size": lambda algorithm: float(_first(algorithm).divisor),
    "noise_multiplier": lambda algorithm: float(_first(algorithm).noise_multiplier),
    "promised_alpha": _promised,
    "epsilon_of_the_noise": _spent,
}

# Without noise there is no epsilon, nor a count that rests on its event.
_NOISELESS = {"epsilon_of_the_noise": math.inf, "noise_multiplier": 0.0, "gradients": math.nan}

METRICS = (*POINT, *RUN, *COST)
"""The names of what can be measured; ``exact_gap`` is ``exact_value`` minus the best one known."""


Measured = list[tuple[float, float, str, float]]
"""Seed, step, metric and value; NaN where a seed or a step means nothing."""


def measured(trained: Trained) -> Measured:
    """Returns what the problem asks for; values that belong to all seeds have none."""
    problem, objective, found = trained.problem, trained.problem.loss, []
    for name in problem.metrics:
        if name in COST:
            known = {} if trained.private else _NOISELESS
            value = known[name] if name in known else COST[name](trained.algorithm)
            found.append((np.nan, np.nan, name, float(value)))
            continue
        if name in POINT:
            values = POINT[name](objective, problem, trained.data, trained.output)
        else:
            values = RUN[name](trained)
        found += [(seed, np.nan, name, float(value)) for seed, value in enumerate(values)]
    for name in problem.path_metrics:
        for i in range(trained.steps.shape[1]):
            place = jax.tree.map(lambda leaf, i=i: leaf[:, i], trained.path)
            values = POINT[name](objective, problem, trained.data, place)
            steps = trained.steps[:, i].tolist()
            found += [(s, steps[s], name, float(value)) for s, value in enumerate(values)]
    return found


# What outputs are held against.


def _descents(problem: Problem, data: Dataset) -> dict[str, float]:
    objective = problem.loss
    params, value = diagnostics.exact_optimum(objective, data.examples, problem.starts)
    found = {"optimum": value, "searched": value}
    if objective.predicts:
        y = np.asarray(data.y if data.test_y is None else data.test_y)
        share = float(np.mean(y > 0))
        at = jnp.asarray(params, jnp.float32)[None]
        found["accuracy_of_the_optimum"] = float(_accuracy("")(objective, problem, data, at)[0])
        found["share_of_the_larger_class"] = max(share, 1 - share)
        found["tested"] = float(data.test_x is not None)
    return found


def _certified(problem: Problem, data: Dataset) -> dict[str, float]:
    found = diagnostics.exact_certified_optimum(problem.loss, data.examples)
    return {"optimum": found.value, "slack": found.slack}


def _landscape(problem: Problem, data: Dataset) -> dict[str, float]:
    objective, land = problem.loss, diagnostics.exact_landscape(problem.loss, data.examples)
    constants = objective.constants
    if constants is None:
        raise ValueError(f"{problem.name} has no Hessian-Lipschitz constant.")
    rho = float(constants.hessian_lipschitz)
    lowest = land.saddle.min_eigenvalue
    return {
        "optimum": land.minimum.value,
        "saddle": land.saddle.value,
        "saddle_gap": land.saddle.value - land.minimum.value,
        "saddle_min_eigenvalue": lowest,
        "minimum_min_eigenvalue": land.minimum.min_eigenvalue,
        "halfway": land.halfway,
        "hessian_lipschitz": rho,
        "saddle_alpha": float(least_alpha(np.array(0.0), np.array(lowest), rho)),
    }


REFERENCES: dict[str, Callable[[Problem, Dataset], dict[str, float]]] = {
    "descents": _descents,
    "certified": _certified,
    "landscape": _landscape,
}
"""Name -> function of problem and records: the best value that is known, and what comes with it."""
