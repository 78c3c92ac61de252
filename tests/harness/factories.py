"""How the tests make any algorithm, the records they give it, and how they silence or kill it."""

import dataclasses
import functools
from concurrent import futures

import jax
import numpy as np
import pytest

import dpjax
from dpjax.accounting import ACCOUNTANTS, RELATIONS

ENTRIES = {name: dpjax.algorithms.ALL[name] for name in dpjax.ALGORITHMS}
FACTORIES = {name: entry.factory for name, entry in ENTRIES.items()}
EXAMPLES = {name: entry.example for name, entry in ENTRIES.items()}
BUDGET = dpjax.PrivacyBudget(1.0, 1e-4)
# Those that ask at an anchor, whose regularizer has a proximal operator.
ANCHORED = [name for name, example in EXAMPLES.items() if example.objective == "logistic-l2"]
PROXIMAL = dpjax.objectives.logistic_l2()
# Those that read each record once, in order: no accounting where a record may leave.
SPIDERS = ("spider",)
# Those that need a loss of linear scores.
LINEAR = ("dp-fc",)
# Those that have another's class and queries, with other numbers: what is of the program, and takes
# long, is tested of the other; tests/contracts/test_contract.py holds them to it.
SAME_PROGRAM = ("dp-sgd", "dp-svrg++")
# Those that have another's queries: what is of a query is tested of the other; the same test holds
# them to it.
SAME_QUERY = ("dp-accmd", "dpagem")
# Those whose guarantee is at epsilon 0, with all of delta spent: ball noise has no other epsilon.
DELTA_ONLY = ("prgd",)
_PASS = {"smoothness": 1.0, "hessian_lipschitz": 1.0, "initial_gap": 1.0, "step_size": 0.3}
_HESSIAN, _STEP = {"hessian_clip_norm": 1.0}, {"step_size": 0.1}
_ANCHOR = {"smoothness": 1.0, "step_size": 0.08}
# What a loss without constants needs beside a clip norm, and all that it needs.
_BESIDE = {
    **dict.fromkeys(SPIDERS, _PASS),
    **dict.fromkeys(("dp-tr", "dp-str", "dp-subspace-tr", "noisy-newton"), _HESSIAN),
    **dict.fromkeys(("dp-adam", "prgd", "dpagem", "dp-sgd"), _STEP),
    **dict.fromkeys(("dp-svrg", "dp-svrg++"), _ANCHOR),
    "dp-gd": {"step_size": 0.3},
    "dp-accmd": {"smoothness": 4.0},
    "dp-gd-selected": _HESSIAN | {"step_size": 0.3, "hessian_lipschitz": 1.0},
    "dp-newton": _HESSIAN | {"floor": 1.0},
}
PLAIN = {name: {"clip_norm": 1.0} | _BESIDE.get(name, {}) for name in ENTRIES}
# (relation, accountant) under which a factory has no noise, and words of its error. An absent
# record would move all that a single pass reads after it.
NO_RENYI = {("replace_one", "rdp"): "no Renyi bound is known"}
NO_ABSENCE = {("add_or_remove_one", way): "reads each record at most once" for way in ACCOUNTANTS}
NO_DIVERGENCE = {(relation, "rdp"): "no Renyi divergence" for relation in RELATIONS}


@functools.cache
def refuses(name):
    """What the algorithm of that name refuses, which follows from its sampling and its noise."""
    releases = toy(name).event.releases
    if any(release.mechanism == "ball" for release in releases):
        return NO_DIVERGENCE
    sampled = {release.sampling for release in releases}
    ways = {"single_pass": NO_ABSENCE, "poisson": NO_RENYI, "without_replacement": NO_RENYI}
    return next((refused for way, refused in ways.items() if way in sampled), {})


def make(name, budget=BUDGET, objective=None, **more):
    """The algorithm of that name, on its usual objective unless another is given."""
    example = EXAMPLES[name]
    if objective is None:
        objective = dpjax.objectives.OBJECTIVES[example.objective]()
    return FACTORIES[name](objective, budget, **(example.required | more))


# Files that train an algorithm of every name do so at one size, so that they share its programs.
N, P, STEPS = 64, 4, 6


def toy(name, budget=BUDGET, objective=None, **more):
    """The algorithm of that name for ``toy_records()``, with the settings of its example."""
    more = {"data_size": N, "dimension": P, "steps": STEPS} | EXAMPLES[name].settings | more
    return make(name, budget, objective, **more)


def toy_records(seed=0, n=N):
    """Rows of length 1 with noisy labels."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, P)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x, np.where(x[:, 0] + 0.3 * random.normal(size=n) > 0, 1.0, -1.0).astype(np.float32)


@functools.cache
def solved(name, seed=7):
    """What the algorithm of that name trains."""
    return dpjax.solve(toy(name), toy_records(), key=jax.random.key(seed))


def spent(name, epsilon):
    """The epsilon that the algorithm of that name has spent of a budget of ``epsilon``."""
    return 0.0 if name in DELTA_ONLY else epsilon


def noisy_norms(solution):
    """Norms of the noisy gradients, whether or not the history counts the regularizer in."""
    history = solution.history._asdict()
    return history.get("gradient_norm", history.get("data_gradient_norm"))


def unit_records(n, p, seed=0):
    """Rows of length 1, labelled by the sign of the first feature."""
    x = np.random.default_rng(seed).normal(size=(n, p)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x, np.where(x[:, 0] > 0, 1.0, -1.0).astype(np.float32)


def quiet(algorithm, **more):
    """The algorithm with hardly any noise in its queries, which no epsilon allows."""

    def is_query(part):
        return isinstance(part, dpjax.oracles.Query)

    def less(part):
        return dataclasses.replace(part, noise_multiplier=1e-7) if is_query(part) else part

    return dataclasses.replace(jax.tree.map(less, algorithm, is_leaf=is_query), **more)


def mostly_ci(cases, daily):
    """The cases of a test, of which those that are not among ``daily``, whose like is, are CI's."""

    def marked(case):
        values = case if isinstance(case, tuple) else (case,)
        return pytest.param(*values, marks=() if case in daily else pytest.mark.ci)

    return list(map(marked, cases))


class Crash(BaseException):
    """As sudden as a kill, as far as one process can be."""


def in_threads(*calls):
    """Returns what calls that begin together return, or the ValueError that each raises."""

    def result(call):
        try:
            return call()
        except ValueError as error:
            return error

    with futures.ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(result, calls))
