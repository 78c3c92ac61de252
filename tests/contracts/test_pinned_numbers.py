"""The noise of every algorithm, and what it is accounted for, as numbers that no rewrite may move.

``pinned_numbers.json`` holds them: for each algorithm, relation and accountant the epsilon of
a whole run and the numbers of each release, or that it is refused; and the sensitivities of the
clipped functions. ``python tests/contracts/test_pinned_numbers.py`` compares to a relative 1e-9,
``--write`` writes the file anew: for a change that is meant to move a number, with its reason in
the changelog.
"""

import functools
import itertools
import json
import math
import pathlib
import sys
import types

import jax.numpy as jnp
import pytest

# Where this is run as a script: this checkout, whichever dpjax is installed, and what tests share.
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "harness"))
sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from factories import DELTA_ONLY, FACTORIES
from factories import make as usual
from test_contract import STEPS, N, build

import dpjax
from dpjax.accounting import ACCOUNTANTS, RELATIONS
from dpjax.algorithms.base import Declared

FILE = pathlib.Path(__file__).with_name("pinned_numbers.json")
# Budgets of the short run; the long one has the defaults of a real data set.
EPSILONS = (0.5, 4.0)
LONG = {"data_size": 35_000, "dimension": 22}
ONE_RELEASE = dpjax.algorithms.ONE_RELEASE
# Another processor may round logarithms and Fourier transforms otherwise.
TOLERANCE = 1e-6
ROWS = (1, 1_000, 10**6)


# Settings of which the numbers above say nothing.
VARIANTS = {
    "dp-tr, separate": ("dp-tr", {"release": "separate"}),
    "dp-tr, no certificate": ("dp-tr", {"certify": None}),
    "dp-tr, certified output": ("dp-tr", {"certify": "output"}),
    "dp-tr, weights": ("dp-tr", {"steps": 4, "weights": (0.1, 0.2, 0.3, 0.4)}),
    "dp-gd, batches": ("dp-gd", {"batch_size": N // 2}),
    "dp-gd, random iterate": ("dp-gd", {"output": "random", "certify": None}),
    "dp-str, fixed size": ("dp-str", {"sampling": "without_replacement"}),
    "dpagem, fixed size": ("dpagem", {"sampling": "without_replacement"}),
    "prgd, one index": ("prgd", {"sampling": "without_replacement", "batch_size": 1}),
    "dp-str, separate": ("dp-str", {"release": "separate", "hessian_batch_size": N // 4}),
    "spider, tree": ("spider", {"noise": "tree"}),
    "spider, independent": ("spider", {"noise": "independent"}),
}
TRANSFORMS = ("noisy_sgd", "adaptive")


def cases():
    short = itertools.product(FACTORIES, RELATIONS, ACCOUNTANTS, EPSILONS)
    long = itertools.product([*FACTORIES, *ONE_RELEASE], RELATIONS, ["pld"], [1.0])
    found = {"/".join(map(str, case)): functools.partial(made, *case) for case in short}
    found |= {
        "/".join((*map(str, case), "long")): functools.partial(long_run, *case) for case in long
    }
    for relation in RELATIONS:
        for title, (name, more) in VARIANTS.items():
            of = functools.partial(made, name, relation, "pld", 1.0, **more)
            found[f"{title}/{relation}"] = of
        found[f"dp-gd, accuracy/{relation}"] = functools.partial(measured, relation)
        for name in TRANSFORMS:
            found[f"{name}/{relation}"] = functools.partial(transformed, name, relation)
    return found


def made(name, relation, accountant, epsilon, **more):
    budget = dpjax.PrivacyBudget(epsilon, 1e-4, relation)
    return build(name, budget, accountant=accountant, **weak(name), **more)


def long_run(name, relation, accountant, epsilon):
    budget = dpjax.PrivacyBudget(epsilon, 1e-6, relation)
    if name in ONE_RELEASE:
        return ONE_RELEASE[name](dpjax.objectives.logistic_l2(), budget, **LONG)
    return usual(name, budget, accountant=accountant, **LONG, **weak(name))


def weak(name):
    return {"acknowledge_weak_delta": True} if name in DELTA_ONLY else {}


def measured(relation):
    budget = dpjax.PrivacyBudget(1.0, 1e-4, relation)
    return dpjax.algorithms.with_accuracy(lambda rest: build("dp-gd", rest), budget)


def transformed(name, relation):
    """A chain's event, in the place of an algorithm that has one."""
    sampler = dpjax.sampling.full_batch(N)
    if relation != "replace_one":
        budget = dpjax.PrivacyBudget(1.0, 1e-4, relation)
        sampler = dpjax.sampling.poisson(N // 2, N, budget=budget, count=STEPS)
    how = {"noise_multiplier": 2.0, "sampler": sampler, "relation": relation}
    if name == "adaptive":
        chain = dpjax.transforms.adaptive_clip_and_noise(1.0, key=dpjax.random_key(), **how)
    else:
        per_example = {} if relation == "replace_one" else {"per_example": True}
        how |= {"clip_norm": 0.7} | per_example
        chain = dpjax.transforms.noisy_sgd(0.1, key=dpjax.random_key(), **how)
    return types.SimpleNamespace(
        event=chain.event(STEPS), accountant="pld", relation=relation, declared=Declared(1.0, 1e-4)
    )


def numbers(make):
    """What is pinned of one algorithm; nothing but that it is refused, if it is."""
    try:
        algorithm = make()
    except ValueError:
        return "refused"
    recount = algorithm.accountant
    delta = float(algorithm.declared.delta)
    epsilon = dpjax.accounting.epsilon(algorithm.event, delta, algorithm.relation, recount)
    return {"epsilon": epsilon, "releases": list(map(of_release, algorithm.event.releases))}


# What some kinds of release have, and the fields that hold it.
OWN = {
    "sampling_probability": "sampling_probability",
    "largest_batch": "max_batch_size",
    "pure_epsilon": "log_shift",
    "undrawn_shift": "undrawn_shift",
    "dimension": "dimension",
}


def of_release(release):
    found = {
        "count": release.count,
        "noise_multiplier": release.noise_multiplier,
        "sensitivity": release.sensitivity,
        "stddevs": [stddev for _, stddev in release.components],
        "failure_probability": release.failure_probability,
        "parts": list(map(of_release, getattr(release, "disjoint_parts", ()))),
    }
    found |= {name: getattr(release, field, None) for name, field in OWN.items()}
    return {name: value for name, value in found.items() if value}


def sensitivities():
    """Of each clipped function, for each relation and number of rows."""

    def loss(params, example):
        return jnp.sum(params * example)

    clipped = {
        "clipped_grad": dpjax.clipped_grad(loss, clip_norm=0.7),
        "clipped_hessian": dpjax.clipped_hessian(loss, clip_norm=0.7),
        "joint_clipped": dpjax.joint_clipped(loss, gradient_weight=0.5, hessian_weight=0.3),
    }
    return {
        f"{name}/{relation}/{rows}": function.sensitivity(relation, rows=rows)
        for (name, function), relation, rows in itertools.product(clipped.items(), RELATIONS, ROWS)
    }


def differences(found, pinned, tolerance=TOLERANCE, at=""):
    """Where two trees of numbers differ."""
    if isinstance(pinned, dict) and isinstance(found, dict):
        if found.keys() != pinned.keys():
            return [f"{at}: {sorted(found)} instead of {sorted(pinned)}"]
        pairs = [(found[key], pinned[key], tolerance, f"{at}.{key}") for key in pinned]
        return [text for pair in pairs for text in differences(*pair)]
    if isinstance(pinned, list) and isinstance(found, list) and len(found) == len(pinned):
        places = [f"{at}[{place}]" for place in range(len(pinned))]
        pairs = zip(found, pinned, [tolerance] * len(pinned), places, strict=True)
        return [text for pair in pairs for text in differences(*pair)]
    if isinstance(pinned, float | int) and isinstance(found, float | int):
        same = math.isclose(found, pinned, rel_tol=tolerance, abs_tol=1e-300)
    else:
        same = found == pinned
    return [] if same else [f"{at}: {found!r} instead of {pinned!r}"]


CASES = cases()
PINNED = json.loads(FILE.read_text()) if FILE.exists() else {"algorithms": {}}


@pytest.mark.parametrize("case", CASES)
def test_no_number_moves(case):
    pinned = PINNED["algorithms"].get(case, "not pinned: run this file with --write")
    assert differences(numbers(CASES[case]), pinned) == []


def test_no_sensitivity_moves():
    assert differences(sensitivities(), PINNED["sensitivities"]) == []


def test_nothing_is_pinned_that_is_not_looked_at():
    assert set(PINNED["algorithms"]) == set(CASES)


def test_a_number_that_moves_is_seen():
    tree = {"a": [1.0, {"b": None}], "c": 3}
    assert differences(tree, tree) == []
    moved = [{"a": [1.0 + 1e-5, {"b": None}], "c": 3}, {"a": [1.0, {"b": 0.0}], "c": 3}, {"a": []}]
    assert all(differences(other, tree) for other in moved)


if __name__ == "__main__":
    found = {case: numbers(make) for case, make in CASES.items()}
    content = {"algorithms": found, "sensitivities": sensitivities()}
    moved = differences(json.loads(json.dumps(content)), json.loads(FILE.read_text()), 1e-9)
    if sys.argv[1:] == ["--write"]:
        FILE.write_text(json.dumps(content, indent=1) + "\n")
    print(*moved, f"{len(found)} cases, {len(moved)} numbers moved", sep="\n")
