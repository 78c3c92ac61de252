"""NOT PRIVATE: networks trained with every method and seed, their accuracies on the way."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._typing import Array, Params
from dpjax.accounting import Event, PrivacyBudget
from dpjax.accounting import epsilon as epsilon_of
from dpjax.algorithms import Algorithm
from dpjax.algorithms.base import recount_accountant
from dpjax.datasets import Dataset
from dpjax.reproduce import dpagem, images
from dpjax.reproduce.accuracies import Accuracies
from dpjax.reproduce.cache import Cache
from dpjax.reproduce.networks import exact_share, train
from dpjax.reproduce.results import SEED, common
from dpjax.sampling import poisson

# Of the training that chooses a step size; the seeds reported are counted from 0.
_TUNING = -1
# Step sizes beyond a grid whose best is at its edge.
_FURTHER = 3
# What the paper says of its privacy with the constant at which it is usually read, and the length
# of 60 epochs of MNIST.
PAPER_CONSTANT, PAPER_STEPS = 2.0, 14_063
# Only so that the sampler can be made: what is spent is computed.
_LARGEST = 200.0


class Trial(NamedTuple):
    """A problem at hand, and whom to tell of it."""

    problem: dpagem.Network
    data: Dataset
    params: Params
    cache: Cache
    advance: Callable[[str, int], None]

    @property
    def dimension(self) -> int:
        """Number of parameters."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.params))


def results(
    problem: dpagem.Network,
    methods: tuple[dpagem.Method, ...],
    cache: Cache,
    *,
    seeds: int,
    one_by_one: bool = False,
    epsilons: tuple[float, ...] | None = None,
    advance: Callable[[str, int], None] = lambda what, trainings: None,
) -> Accuracies:
    """Returns everything on one problem, training what the cache does not hold.

    Args:
      problem: which one.
      methods: what is compared on it.
      cache: what was trained before; each training is put there as soon as it is done.
      seeds: runs of each point, at most as many as the problem has.
      one_by_one: not used; a network's step fills the machine alone.
      epsilons: only these; None for all of the problem's.
      advance: told what is being done and how many more trainings are done.

    Raises:
      FileNotFoundError: if the images are not on this machine.

    Privacy: NOT PRIVATE.
    """
    del one_by_one
    raw, title = images.load(problem.data, problem.rows)
    data = jax.tree.map(jnp.asarray, raw)
    test_y: Any = data.test_y
    trial = Trial(problem, data, starting_point(problem, data, 0), cache, advance)
    points, seeds = {}, min(seeds, problem.runs)
    epsilons = epsilons or problem.epsilons
    for method in methods:
        step_size, tried = _step_size(trial, method)
        for epsilon in epsilons:
            own = epsilon if method.private else problem.paper_epsilon
            runs = [_one(trial, method, own, step_size, seed) for seed in range(seeds)]
            fields = {field: [run[field] for run in runs] for field in ("train", "test")}
            points[method.label, epsilon] = (
                runs[0] | fields | {"step_size": step_size, "tried": tried}
            )
    return Accuracies(
        problem,
        title,
        data.size,
        (min(problem.looked_at, data.size), min(problem.looked_at, len(test_y))),
        trial.dimension,
        points,
        [published(problem, data.size, epsilon) for epsilon in epsilons],
    )


def published(problem: dpagem.Network, size: int, epsilon: float) -> dict[str, Any]:
    """Returns what the paper's noise, with c2 = 2, would really give.

    Args:
      problem: whose batch and steps.
      size: n.
      epsilon: that the formula is asked for.

    Returns:
      ``epsilon``, and a list ``runs`` of ``steps``, ``noise_multiplier`` (over the clip norm, as
      Poisson batches have it) and the exact epsilons of Poisson batches under ``zero_out`` and
      ``replace_one``: of these steps, and of 60 epochs of MNIST where it is that.

    Reference: Zhang et al. (2021), equation 4, for L = 1.
    """
    batch = min(problem.batch, max(size // 7, 1))
    lengths = [problem.steps] + [PAPER_STEPS] * (problem.data == "mnist" and problem.rows is None)
    runs = []
    for steps in lengths:
        spread = math.sqrt(steps * math.log(1 / dpagem.DELTA))
        multiplier = PAPER_CONSTANT * batch / size * spread / epsilon
        spent = {}
        for relation in ("zero_out", "replace_one"):
            # A batch that holds all records never overflows, so delta is charged nothing.
            budget = PrivacyBudget(_LARGEST, dpagem.DELTA, relation)
            sampler = poisson(batch, size, budget=budget, count=steps, capacity=size)
            release = sampler.release(
                "gradient", steps, noise_multiplier=multiplier, relation=relation
            )
            spent[relation] = epsilon_of(Event((release,), relation), dpagem.DELTA, relation)
        runs.append({"steps": steps, "noise_multiplier": multiplier} | spent)
    return {"epsilon": epsilon, "runs": runs}


def starting_point(problem: dpagem.Network, data: Dataset, seed: int) -> Params:
    """Returns the network's first parameters, drawn anew for each seed; public."""
    key = jax.random.fold_in(jax.random.key(SEED), seed + 1)
    return _init(dpagem.module(problem.network, "elu"), key, data.x[0] * 0)


@functools.partial(jax.jit, static_argnames="module")
def _init(module: Any, key: Array, image: Array) -> Params:
    return module.init(key, image)


def _step_size(trial: Trial, method: dpagem.Method) -> tuple[float, list[list[float]]]:
    """Returns the step size, and those tried with the training accuracy each one reached."""
    problem = trial.problem
    if not problem.tuned:
        return dpagem.UNTUNED * min(method.grid), []

    def reached(step: float) -> float:
        return _one(trial, method, problem.paper_epsilon, step, _TUNING)["train"][-1]

    whole = problem.settings is None
    return search(reached, method.grid[: problem.settings], _FURTHER if whole else 0)


def search(
    reached: Callable[[float], float], grid: tuple[float, ...], further: int
) -> tuple[float, list[list[float]]]:
    """Returns the best step size of a grid that goes on where the best is at its edge.

    Args:
      reached: the accuracy of a step size.
      grid: step sizes, growing, two at least where it may go on.
      further: how many more may be tried.

    Returns:
      The best, and pairs of a step size and its accuracy, growing.

    >>> search(lambda step: 9 - abs(step - 8), (1.0, 2.0), 3)
    (8.0, [[1.0, 2.0], [2.0, 3.0], [4.0, 5.0], [8.0, 9.0], [16.0, 1.0]])
    """
    tried = {step: reached(step) for step in grid}
    for _ in range(further):
        steps = sorted(tried)
        best = max(steps, key=tried.__getitem__)
        if best == steps[-1]:
            more = best * steps[-1] / steps[-2]
        elif best == steps[0]:
            more = best * steps[0] / steps[1]
        else:
            break
        tried[more] = reached(more)
    steps = sorted(tried)
    return max(steps, key=tried.__getitem__), [[step, tried[step]] for step in steps]


def _one(
    trial: Trial, method: dpagem.Method, epsilon: float, step_size: float, seed: int
) -> dict[str, Any]:
    problem, data = trial.problem, trial.data
    tuning = seed == _TUNING
    what = f"{problem.title}: {method.label}, epsilon {epsilon:g}, step size {step_size:g}"
    trial.advance(f"{what}, choosing" if tuning else what, 0)
    looks = 1 if tuning else problem.looks
    configuration = common(problem, data) | {
        "network": problem.network,
        "algorithm": method.algorithm,
        "private": method.private,
        "arguments": method.chosen(problem, data.size),
        "clip_norm": dpagem.CLIP_NORM if method.private else dpagem.UNCLIPPED,
        "delta": dpagem.DELTA,
        "relation": problem.relation,
        "epsilon": epsilon,
        "step_size": step_size,
        "seed": seed,
        "looks": looks,
        "looked_at": problem.looked_at,
    }
    found = trial.cache.get(configuration)
    if found is None:
        algorithm = dpagem.build(problem, method, data.size, trial.dimension, epsilon, step_size)
        found = measure(problem, algorithm, data, seed, looks, method.private)
        trial.cache.put(configuration, found)
    if not tuning:
        trial.advance(what, 1)
    return found


def measure(
    problem: dpagem.Network,
    algorithm: Algorithm,
    data: Dataset,
    seed: int,
    looks: int,
    private: bool = True,
) -> dict[str, Any]:
    """Returns one training, as JSON has it.

    Args:
      problem: whose network.
      algorithm: calibrated, or without noise.
      data: arrays of JAX.
      seed: of starting point, batches and noise.
      looks: how often accuracy is measured, evenly.
      private: whether there is an epsilon.

    Privacy: NOT PRIVATE.
    """
    steps = int(algorithm.steps)
    at = sorted({-(-steps * i // looks) for i in range(1, looks + 1)})
    apply = algorithm.objective.loss.apply  # pyright: ignore[reportFunctionMemberAccess]
    few = slice(problem.looked_at)
    arrays: Any = data
    where = (
        (arrays.x[few], arrays.y[few]),
        (arrays.test_x[few], arrays.test_y[few]),
    )

    def look(params: Params) -> list[float]:
        return [exact_share(apply, params, x, y) for x, y in where]

    params = starting_point(problem, data, seed)
    key = jax.random.fold_in(jax.random.key(SEED + 1), seed + 1)
    shares = np.array(train(algorithm, data, key, params, at, look)).T.tolist()
    query: Any = algorithm.queries[0]
    accountant = recount_accountant(algorithm.accountant)
    delta = float(algorithm.declared.delta)
    return {
        "iterations": at,
        "train": shares[0],
        "test": shares[1],
        "batch_size": float(query.divisor),
        "noise_multiplier": float(query.noise_multiplier) if private else None,
        "epsilon": epsilon_of(algorithm.event, delta, algorithm.relation, accountant)
        if private
        else None,
    }
