"""NOT PRIVATE: excess risks and counted gradient evaluations of every method on one problem."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from dpjax.accounting import PrivacyBudget
from dpjax.accounting import epsilon as epsilon_of
from dpjax.algorithms import Algorithm
from dpjax.algorithms.base import recount_accountant
from dpjax.datasets import Dataset
from dpjax.objectives import OBJECTIVES, L1Ball
from dpjax.reproduce import erm
from dpjax.reproduce.cache import Cache
from dpjax.reproduce.optimum import certified_optimum, exact_risks
from dpjax.reproduce.results import SEED, common, gather
from dpjax.reproduce.risks import Risks
from dpjax.reproduce.runs import train_all
from dpjax.reproduce.study import Problem


def build(
    problem: Problem, method: erm.Method, data: Dataset, epsilon: float, tried: dict[str, Any]
) -> Algorithm:
    """Returns the algorithm of one point, with delta = 1/n and one of the method's settings."""
    budget = PrivacyBudget(epsilon, 1 / data.size, problem.relation)
    more = {**method.chosen(problem, data.size), **tried}
    objective = problem.loss
    if method.domain and problem.radius is not None:
        objective, more["domain"] = OBJECTIVES[problem.objective](), L1Ball(problem.radius)
    with warnings.catch_warnings():
        # A step size above a theorem's bound may well be the best; the page says which was taken.
        warnings.filterwarnings("ignore", message="step_size", category=UserWarning)
        return erm.FACTORIES[method.algorithm](
            objective, budget, data_size=data.size, dimension=data.dimension, **more
        )


def results(
    problem: Problem,
    methods: tuple[erm.Method, ...],
    cache: Cache,
    *,
    seeds: int,
    one_by_one: bool = False,
    epsilons: tuple[float, ...] | None = None,
    advance: Callable[[str, int], None] = lambda what, seeds: None,
) -> Risks:
    """Returns everything on one problem, computing what the cache does not hold.

    Args:
      problem: which one.
      methods: what is compared on it.
      cache: what was computed before.
      seeds: runs of each point.
      one_by_one: train the seeds one after another.
      epsilons: only these; None for all of the problem's.
      advance: told what is being done and how many more trainings are done.

    Raises:
      FileNotFoundError: if the data are not on this machine.

    Privacy: NOT PRIVATE.
    """
    data = problem.load()
    shared = common(problem, data) | {"radius": problem.radius, "relation": problem.relation}
    shared |= {"dimension": data.dimension, "delta": 1 / data.size}
    advance(f"{problem.title}: the optimum", 0)
    best = _optimum(problem, data, cache, shared)

    def configured(method: erm.Method, epsilon: float) -> dict[str, Any]:
        tried = [{**method.chosen(problem, data.size), **one} for one in method.tried(problem)]
        own = {"algorithm": method.algorithm, "tried": tried, "tuned_on": erm.TUNED_ON}
        return shared | own | {"epsilon": epsilon, "seeds": seeds}

    def measured(method: erm.Method, epsilon: float, told: Callable[[int], None]) -> dict[str, Any]:
        return measure(
            problem, method, data, epsilon, seeds=seeds, one_by_one=one_by_one, advance=told
        )

    points = gather(
        problem,
        methods,
        cache,
        configured,
        measured,
        seeds=seeds,
        epsilons=epsilons or problem.epsilons,
        advance=advance,
    )
    return Risks(problem, data.size, data.dimension, best["value"], best["slack"], points)


def measure(
    problem: Problem,
    method: erm.Method,
    data: Dataset,
    epsilon: float,
    *,
    seeds: int,
    one_by_one: bool = False,
    advance: Callable[[int], None] = lambda seeds: None,
) -> dict[str, Any]:
    """Returns one point, as JSON has it.

    Args:
      problem: which one.
      method: what is trained; of its settings the one with the least mean risk on seeds of their
        own is taken.
      data: margins and labels as JAX arrays, every row a valid record.
      epsilon: of the budget.
      seeds: runs, after the tuning.
      one_by_one: train the seeds one after another.
      advance: told how many more trainings are done.

    Returns:
      ``values`` by seed; the gradient evaluations ``declared`` and ``padded``; ``steps``; the
      ``epsilon`` that the noise gives; the ``settings`` taken; and of all that were ``tried`` the
      mean ``value`` on the seeds of the tuning, and the evaluations.

    Privacy: NOT PRIVATE.
    """
    root = jax.random.key(SEED)

    def risks(algorithm: Algorithm, purpose: int, runs: int) -> np.ndarray:
        keys = jax.random.split(jax.random.fold_in(root, purpose), runs)
        at = [int(algorithm.steps)]
        params = train_all(algorithm, data, keys, at, one_by_one=one_by_one, advance=advance)
        return exact_risks(problem.loss, params[:, -1], data.examples)

    tried = method.tried(problem)
    algorithms = [build(problem, method, data, epsilon, dict(one)) for one in tried]
    reached = [math.inf]
    if len(algorithms) > 1:
        reached = [float(risks(one, 0, erm.TUNED_ON).mean()) for one in algorithms]
    best = int(np.argmin(np.nan_to_num(reached, nan=np.inf)))
    algorithm = algorithms[best]
    declared, padded = algorithm.evaluations
    return {
        "values": risks(algorithm, 1, seeds).tolist(),
        "declared": float(declared),
        "padded": float(padded),
        "steps": int(algorithm.steps),
        "epsilon": epsilon_of(
            algorithm.event,
            float(algorithm.declared.delta),
            algorithm.relation,
            recount_accountant(algorithm.accountant),
        ),
        "settings": {**method.chosen(problem, data.size), **tried[best]},
        "tried": [
            {"value": value, "declared": float(one.evaluations.declared)}
            for one, value in zip(algorithms, reached, strict=True)
            if math.isfinite(value)
        ],
    }


def _optimum(
    problem: Problem, data: Dataset, cache: Cache, shared: dict[str, Any]
) -> dict[str, float]:
    configuration = shared | {"optimum": "certified"}
    found = cache.get(configuration)
    if found is None:
        optimum = certified_optimum(problem.loss, data.examples)
        found = {"value": optimum.value, "slack": optimum.slack}
        cache.put(configuration, found)
    return found
