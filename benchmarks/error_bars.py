"""How often intervals for the effect of privacy noise are printed, and what they cover.

Run ``python benchmarks/error_bars.py [--runs 1000] [--json FILE]``; about two minutes. On the
embedded data: logistic regression on whether there was a visit, and least squares on the number of
visits, in the units of the columns. Printed is the share of trainings whose intervals are not
refused; covered, of these, the share of 95 % intervals that hold the coefficient of the minimum
without noise, over all coefficients and for the worst of them. NOT PRIVATE: the minimum is exact.
"""

import argparse
import json
import time
from pathlib import Path

import jax
import numpy as np

import dpjax
from dpjax.datasets import RANDHIE_RANGES, registry
from dpjax.datasets.registry import spec
from dpjax.diagnostics import exact_optimum
from dpjax.results.coefficients import coefficients

CONFIDENCE, TOGETHER = 0.95, 100
# Objective, whether on the number of visits, epsilon, and steps.
SETTINGS = [
    ("logistic_l2", False, 3.0, 32),
    ("logistic_l2", False, 1.0, 8),
    ("logistic_l2", False, 1.0, 32),
    ("logistic_nonconvex", False, 3.0, 32),
    ("logistic_nonconvex", False, 1.0, 8),
    ("logistic_nonconvex", False, 1.0, 32),
    ("least_squares", True, 3.0, 1),
    ("least_squares", True, 1.0, 1),
]


def visits():
    """The embedded data with the number of visits in a year as the label, from 0 to 80."""
    held = registry.arrays(spec("randhie"))
    columns = dict(zip(RANDHIE_RANGES, held["x"].T, strict=True))
    bounds = {name: {"bounds": pair} for name, pair in RANDHIE_RANGES.items()}
    schema = {"label": {"column": "visits", "bounds": [0, 80]}, "columns": bounds}
    return dpjax.datasets.load({**columns, "visits": held["mdvis"]}, schema=schema)


def bars_of(algorithm, data, runs):
    """The error bars of so many trainings, one by one."""
    solve = jax.jit(jax.vmap(lambda key: dpjax.solve(algorithm, data, key=key).error_bars))
    keys = jax.random.split(jax.random.key(0), runs)
    for first in range(0, runs, TOGETHER):
        some = jax.device_get(solve(keys[first : first + TOGETHER]))
        yield from (
            jax.tree.map(lambda leaf, at=at: leaf[at], some) for at in range(len(some.shift))
        )


def measure(name, numeric, epsilon, steps, runs, data):
    """One line of the table."""
    objective = getattr(dpjax.objectives, name)(1e-3)
    budget = dpjax.PrivacyBudget(epsilon, 1 / (10 * data.size))
    algorithm = dpjax.dp_trust_region(
        objective, budget, data_size=data.size, dimension=data.dimension, steps=steps
    )
    begin = time.perf_counter()
    optimum = exact_optimum(objective, data.examples, starts=1)[0]
    truth = coefficients(optimum, data.preprocessing, None, numeric=numeric).values
    inside = []
    for bars in bars_of(algorithm, data, runs):
        found = coefficients(
            bars.estimate, data.preprocessing, bars, numeric=numeric, confidence=CONFIDENCE
        )
        if found.refusal is None:
            inside.append((found.lower <= truth) & (truth <= found.upper))
    each = np.mean(inside, axis=0) if inside else None
    return {
        "objective": name,
        "epsilon": epsilon,
        "steps": steps,
        "runs": runs,
        "printed": len(inside) / runs,
        "covered": None if each is None else float(np.mean(each)),
        "least_covered": None if each is None else float(np.min(each)),
        "most_covered": None if each is None else float(np.max(each)),
        "seconds": time.perf_counter() - begin,
    }


def main():
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--runs", type=int, default=1000, help="trainings for each line")
    words.add_argument("--json", metavar="FILE", help="write the figures")
    arguments = words.parse_args()
    data = {False: dpjax.datasets.load("randhie"), True: visits()}
    print(f"| objective | epsilon | steps | printed | covered | each coefficient |\n{'|---' * 6}|")
    found = []
    for name, numeric, epsilon, steps in SETTINGS:
        one = measure(name, numeric, epsilon, steps, arguments.runs, data[numeric])
        found.append(one)
        covered, worst = "none printed", ""
        if one["printed"]:
            covered = f"{100 * one['covered']:.1f} %"
            worst = f"{100 * one['least_covered']:.1f} to {100 * one['most_covered']:.1f} %"
        print(
            f"| {name.replace('_', '-')} | {epsilon:g} | {steps} | {100 * one['printed']:.1f} % | "
            f"{covered} | {worst} |",
            flush=True,
        )
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
