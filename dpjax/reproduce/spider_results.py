"""NOT PRIVATE: when each run left the saddle, what it had read by then, and where it ended."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._typing import Array
from dpjax.accounting import PrivacyBudget
from dpjax.accounting import epsilon as epsilon_of
from dpjax.algorithms import Algorithm
from dpjax.algorithms.base import recount_accountant
from dpjax.datasets import Dataset
from dpjax.diagnostics import exact_landscape, exact_min_eigenvalue
from dpjax.driver import trajectory
from dpjax.objectives import Objective
from dpjax.reproduce import exact, spider
from dpjax.reproduce.cache import Cache
from dpjax.reproduce.escapes import Escapes
from dpjax.reproduce.results import SEED, common, gather
from dpjax.reproduce.study import Problem

_CHECKPOINTS = 72


def build(problem: Problem, method: spider.Method, data: Dataset, epsilon: float) -> Algorithm:
    """Returns the algorithm of one point, with delta = 1/(10 n)."""
    budget = PrivacyBudget(epsilon, 1 / (10 * data.size), problem.relation)
    return spider.FACTORIES[method.algorithm](
        problem.loss,
        budget,
        data_size=data.size,
        dimension=data.dimension,
        **method.chosen(problem, data.size),
    )


def results(
    problem: spider.Saddle,
    methods: tuple[spider.Method, ...],
    cache: Cache,
    *,
    seeds: int,
    one_by_one: bool = False,
    epsilons: tuple[float, ...] | None = None,
    advance: Callable[[str, int], None] = lambda what, seeds: None,
) -> Escapes:
    """Returns everything on one problem, computing what the cache does not hold.

    Args:
      problem: which one.
      methods: what is compared on it.
      cache: what was computed before.
      seeds: runs of each point.
      one_by_one: not used; all seeds of a point are one program here.
      epsilons: only these; None for all of the problem's.
      advance: told what is being done and how many more trainings are done.

    Raises:
      FileNotFoundError: if the data are not on this machine.

    Privacy: NOT PRIVATE.
    """
    del one_by_one
    whole = problem.load()
    order = np.random.default_rng(SEED).permutation(whole.size)
    lands, points = {}, {}
    for size in problem.sizes:
        data = whole if size == 0 else _subset(whole, order[:size])
        shared = common(problem, data) | {"of": whole.size, "seeds": seeds}
        one = dataclasses.replace(problem, sizes=(size,))
        advance(f"{problem.title}: n = {data.size:,}, the saddle and the minimum", 0)
        land = _landscape(problem.loss, data, cache, shared)
        found = gather(
            one,
            methods,
            cache,
            _configured(one, data, shared),
            _measured(one, data, whole, land, seeds),
            seeds=seeds,
            epsilons=epsilons or problem.epsilons,
            advance=advance,
        )
        lands[data.size] = land
        points |= {(label, epsilon, data.size): point for (label, epsilon), point in found.items()}
    constants = problem.loss.constants
    if constants is None:
        raise ValueError(f"{problem.title} has no Hessian-Lipschitz constant.")
    return Escapes(
        problem, whole.size, whole.dimension, float(constants.hessian_lipschitz), lands, points
    )


class Path(NamedTuple):
    """Where runs were after some of their steps, and what they gave.

    Args:
      params: (seeds, m, p) iterates.
      steps: (seeds, m) steps taken by then.
      read: (seeds, m) records read by then.
      output: (seeds, p).
    """

    params: Array
    steps: Array
    read: Array
    output: Array


def follow(algorithm: Algorithm, data: Dataset, keys: Array, at: Array) -> Path:
    """Returns the iterates after the steps ``at``, and the outputs, of a run with each key.

    Args:
      algorithm: calibrated.
      data: margins and labels as JAX arrays.
      keys: one per seed; all run together.
      at: (m,) step numbers, growing, the last one that of the algorithm.

    Privacy: iterates and outputs are covered by the guarantee of the run.

    >>> import dpjax
    >>> data = dpjax.Dataset(jnp.ones((50, 2)) / 2 ** 0.5, jnp.ones(50))
    >>> algorithm = dpjax.dp_trust_region(
    ...     dpjax.objectives.logistic(), dpjax.PrivacyBudget(1.0, 1e-3),
    ...     data_size=50, dimension=2, steps=4)
    >>> keys = jax.random.split(jax.random.key(0), 3)
    >>> print(follow(algorithm, data, keys, jnp.array([1, 4])).read[0])
    [ 50. 200.]
    """
    each = algorithm.evaluations.declared / int(algorithm.steps)
    return _follow(algorithm, data.examples, keys, at, each)


@jax.jit
def _follow(algorithm: Algorithm, examples: exact.Examples, keys: Array, at: Array, each: float):
    def one(key: Array) -> Path:
        params, solution = trajectory(algorithm, examples, key=key, at=at)
        steps = jnp.minimum(at, solution.steps)
        # A single pass tells what it read; any other reads as much at every step.
        used = getattr(solution.history, "used", None)
        read = steps * each if used is None else jnp.where(steps > 0, used[steps - 1], 0)
        return Path(params, steps, jnp.asarray(read, params.dtype), solution.params)

    return jax.vmap(one)(keys)


def checkpoints(steps: int) -> np.ndarray:
    """Returns step numbers, about evenly spaced on a logarithmic axis, the last being ``steps``.

    >>> checkpoints(10).tolist()
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    """
    return np.unique(np.geomspace(1, steps, _CHECKPOINTS).round().astype(int))


def measure(
    algorithm: Algorithm,
    data: Dataset,
    whole: Dataset,
    halfway: float,
    keys: Array,
) -> dict[str, Any]:
    """Returns one point, as JSON has it.

    Args:
      algorithm: calibrated.
      data: what it is trained on.
      whole: all records, of which those are some.
      halfway: the value below which a run has escaped.
      keys: one per seed.

    Privacy: NOT PRIVATE.
    """
    objective, at = algorithm.objective, checkpoints(int(algorithm.steps))
    path = follow(algorithm, data, keys, jnp.asarray(at))
    values = np.stack(
        [
            exact.exact_values(objective, path.params[:, i], data.examples)[0]
            for i in range(len(at))
        ],
        axis=1,
    )
    below = values < halfway
    first = below.argmax(axis=1)
    out = np.any(below, axis=1)
    seeds = np.arange(len(first))
    tolerances = getattr(algorithm, "tolerances", None)
    final = _exact(objective, path.output, data)
    return {
        **final,
        "escaped": [value < halfway for value in final["values"]],
        "first_steps": _where(out, np.asarray(path.steps)[seeds, first]),
        "first_read": _where(out, np.asarray(path.read)[seeds, first]),
        "of_all": _exact(objective, path.output, whole) if whole is not data else final,
        "steps": np.asarray(path.steps)[:, -1].tolist(),
        "read": np.asarray(path.read)[:, -1].tolist(),
        "promised": None if tolerances is None else float(tolerances[0]),
        "epsilon": epsilon_of(
            algorithm.event,
            float(algorithm.declared.delta),
            algorithm.relation,
            recount_accountant(algorithm.accountant),
        ),
    }


def _exact(objective: Objective, params: Array, data: Dataset) -> dict[str, list[float]]:
    values, norms = exact.exact_values(objective, params, data.examples)
    lowest = [float(exact_min_eigenvalue(objective, one, data.examples)) for one in params]
    return {
        "values": values.tolist(),
        "gradient_norms": norms.tolist(),
        "min_eigenvalues": lowest,
    }


def _where(known: np.ndarray, values: np.ndarray) -> list[float | None]:
    return [float(value) if yes else None for yes, value in zip(known, values, strict=True)]


def _configured(problem: spider.Saddle, data: Dataset, shared: dict[str, Any]):
    def configured(method: spider.Method, epsilon: float) -> dict[str, Any]:
        chosen = method.chosen(problem, data.size)
        return shared | {"algorithm": method.algorithm, "arguments": chosen, "epsilon": epsilon}

    return configured


def _measured(
    problem: spider.Saddle, data: Dataset, whole: Dataset, land: dict[str, float], seeds: int
):
    keys = jax.random.split(jax.random.key(SEED), seeds)

    def measured(
        method: spider.Method, epsilon: float, told: Callable[[int], None]
    ) -> dict[str, Any]:
        algorithm = build(problem, method, data, epsilon)
        point = measure(algorithm, data, whole, land["halfway"], keys)
        told(seeds)
        return point

    return measured


def _landscape(
    objective: Objective, data: Dataset, cache: Cache, shared: dict[str, Any]
) -> dict[str, float]:
    configuration = shared | {"landscape": True}
    found = cache.get(configuration)
    if found is None:
        land = exact_landscape(objective, data.examples)
        found = {
            "saddle": land.saddle.value,
            "saddle_eigenvalue": land.saddle.min_eigenvalue,
            "minimum": land.minimum.value,
            "minimum_eigenvalue": land.minimum.min_eigenvalue,
            "halfway": land.halfway,
        }
        cache.put(configuration, found)
    return found


def _subset(data: Dataset, chosen: np.ndarray) -> Dataset:
    return dataclasses.replace(data, x=data.x[chosen], y=data.y[chosen])
