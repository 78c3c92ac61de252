"""NOT PRIVATE: all the trainings on one problem, and its optimum; computed, or read from disk."""

import functools
import importlib.metadata
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.accounting import PrivacyBudget
from dpjax.algorithms import ALGORITHMS, Algorithm
from dpjax.datasets import Dataset
from dpjax.diagnostics import exact_accuracy
from dpjax.reproduce import exact
from dpjax.reproduce.cache import Cache
from dpjax.reproduce.runs import measure, seconds, tested_on
from dpjax.reproduce.study import RELATION, TRACED_EPSILON, Curve, Found, Problem

_SEED = 2020


def build(problem: Problem, curve: Curve, data: Dataset, epsilon: float) -> Algorithm:
    """Returns the algorithm of one point, under the paper's relation and with delta = 1/n."""
    budget = PrivacyBudget(epsilon, 1 / data.size, RELATION)
    more = curve.chosen(problem, data.size)
    return ALGORITHMS[curve.algorithm](
        problem.loss, budget, data_size=data.size, dimension=data.dimension, **more
    )


def results(
    problem: Problem,
    curves: tuple[Curve, ...],
    cache: Cache,
    *,
    seeds: int,
    one_by_one: bool = False,
    epsilons: tuple[float, ...] | None = None,
    advance: Callable[[str, int], None] = lambda what, seeds: None,
) -> Found:
    """Returns everything on one problem, computing what the cache does not hold.

    Args:
      problem: which one.
      curves: the methods.
      cache: what was computed before.
      seeds: runs of each point.
      one_by_one: see ``runs.measure``.
      epsilons: only these; None for all of the problem's.
      advance: told what is being done and how many more trainings are done.

    Raises:
      FileNotFoundError: if the data are not on this machine.

    Privacy: NOT PRIVATE.
    """
    data = problem.load()
    common = _common(problem, data)
    advance(f"{problem.title}: the optimum", 0)
    best = _optimum(problem, data, cache, common)
    points = {}
    for curve in curves:
        for epsilon in epsilons or problem.epsilons:
            what = f"{problem.title}: {curve.label}, epsilon {epsilon:g}"
            advance(what, 0)
            configuration = common | _named(curve, problem, data)
            configuration |= {
                "epsilon": epsilon,
                "seeds": seeds,
                "traced": problem.traced and epsilon == TRACED_EPSILON,
            }
            point = cache.get(configuration)
            if point is None:
                point = measure(
                    build(problem, curve, data, epsilon),
                    data,
                    jax.random.split(jax.random.key(_SEED), seeds),
                    traced=configuration["traced"],
                    one_by_one=one_by_one,
                    advance=functools.partial(advance, what),
                )
                cache.put(configuration, point)
            else:
                advance(what, seeds)
            points[curve.label, epsilon] = point
    times = {}
    if problem.traced:
        advance(f"{problem.title}: the times", 0)
        times = _times(problem, curves, data, cache, common)
    return Found(
        problem=problem,
        rows=data.size,
        dimension=data.dimension,
        optimum=min(best["value"], _least(points)),
        searched=best["value"],
        accuracy=best["accuracy"],
        majority=best["majority"],
        tested=data.test_x is not None,
        points=points,
        times=times,
    )


def _common(problem: Problem, data: Dataset) -> dict[str, Any]:
    return {
        "dpjax": importlib.metadata.version("dpjax"),
        "jax": jax.__version__,
        "data": problem.data,
        "rows": data.size,
        "objective": problem.objective,
    }


def _least(points: dict[tuple[str, float], dict[str, Any]]) -> float:
    # No search is sure to find the global minimum: a private output may lie below what was found.
    reached = [point["values"] + (point["local_values"] or []) for point in points.values()]
    return float(np.nanmin(np.concatenate(reached)))


def _named(curve: Curve, problem: Problem, data: Dataset) -> dict[str, Any]:
    return {"algorithm": curve.algorithm, "arguments": curve.chosen(problem, data.size)}


def _times(
    problem: Problem,
    curves: tuple[Curve, ...],
    data: Dataset,
    cache: Cache,
    common: dict[str, Any],
) -> dict[str, list[float]]:
    # In turn, and anew when a curve is added: times compare only within one run.
    configuration = common | {"timed": [_named(curve, problem, data) for curve in curves]}
    found = cache.get(configuration)
    if found is None:
        key = jax.random.key(_SEED)
        found = [
            seconds(build(problem, curve, data, TRACED_EPSILON), data, key) for curve in curves
        ]
        cache.put(configuration, found)
    return {curve.label: spent for curve, spent in zip(curves, found, strict=True)}


def _optimum(
    problem: Problem, data: Dataset, cache: Cache, common: dict[str, Any]
) -> dict[str, float]:
    configuration = common | {"optimum": problem.starts}
    found = cache.get(configuration)
    if found is None:
        params, value = exact.exact_optimum(problem.loss, data.examples, problem.starts)
        x, y = tested_on(data)
        share = float(np.mean(np.asarray(y) > 0))
        found = {
            "value": value,
            "accuracy": float(exact_accuracy(problem.loss, jnp.asarray(params), x, y)),
            "majority": max(share, 1 - share),
        }
        cache.put(configuration, found)
    return found
