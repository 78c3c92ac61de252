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
from dpjax.reproduce.study import TRACED_EPSILON, Curve, Found, Problem

SEED = 2020


def build(problem: Problem, curve: Curve, data: Dataset, epsilon: float) -> Algorithm:
    """Returns the algorithm of one point, under the problem's relation and with delta = 1/n."""
    budget = PrivacyBudget(epsilon, 1 / data.size, problem.relation)
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
    shared = common(problem, data)
    advance(f"{problem.title}: the optimum", 0)
    best = _optimum(problem, data, cache, shared)
    keys = jax.random.split(jax.random.key(SEED), seeds)

    def configured(curve: Curve, epsilon: float) -> dict[str, Any]:
        traced = problem.traced and epsilon == TRACED_EPSILON
        own = {"epsilon": epsilon, "seeds": seeds, "traced": traced}
        return shared | _named(curve, problem, data) | own

    def measured(curve: Curve, epsilon: float, told: Callable[[int], None]) -> dict[str, Any]:
        return measure(
            build(problem, curve, data, epsilon),
            data,
            keys,
            traced=problem.traced and epsilon == TRACED_EPSILON,
            one_by_one=one_by_one,
            advance=told,
        )

    points = gather(
        problem,
        curves,
        cache,
        configured,
        measured,
        seeds=seeds,
        epsilons=epsilons or problem.epsilons,
        advance=advance,
    )
    times = {}
    if problem.traced:
        advance(f"{problem.title}: the times", 0)
        times = _times(problem, curves, data, cache, shared)
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


def gather(
    problem: Problem,
    curves: tuple[Curve, ...],
    cache: Cache,
    configured: Callable[[Any, float], dict[str, Any]],
    measured: Callable[[Any, float, Callable[[int], None]], dict[str, Any]],
    *,
    seeds: int,
    epsilons: tuple[float, ...],
    advance: Callable[[str, int], None],
) -> dict[tuple[str, float], dict[str, Any]]:
    """Returns a point for each curve and epsilon, measuring those that the cache does not hold.

    Args:
      problem: which one.
      curves: the methods.
      cache: what was computed before; a point is put there as soon as it is measured.
      configured: from curve and epsilon to all that the point depends on.
      measured: from curve, epsilon and whom to tell of trainings done to the point.
      seeds: runs of each point.
      epsilons: where.
      advance: told what is being done and how many more trainings are done.
    """
    points = {}
    for curve in curves:
        for epsilon in epsilons:
            what = f"{problem.title}: {curve.label}, epsilon {epsilon:g}"
            advance(what, 0)
            configuration = configured(curve, epsilon)
            point = cache.get(configuration)
            if point is None:
                point = measured(curve, epsilon, functools.partial(advance, what))
                cache.put(configuration, point)
            else:
                advance(what, curve.trainings(problem, seeds))
            points[curve.label, epsilon] = point
    return points


def common(problem: Problem, data: Dataset) -> dict[str, Any]:
    """Returns what every result on ``problem`` depends on."""
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
    shared: dict[str, Any],
) -> dict[str, list[float]]:
    # In turn, and anew when a curve is added: times compare only within one run.
    configuration = shared | {"timed": [_named(curve, problem, data) for curve in curves]}
    found = cache.get(configuration)
    if found is None:
        key = jax.random.key(SEED)
        found = [
            seconds(build(problem, curve, data, TRACED_EPSILON), data, key) for curve in curves
        ]
        cache.put(configuration, found)
    return {curve.label: spent for curve, spent in zip(curves, found, strict=True)}


def _optimum(
    problem: Problem, data: Dataset, cache: Cache, shared: dict[str, Any]
) -> dict[str, float]:
    configuration = shared | {"optimum": problem.starts}
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
