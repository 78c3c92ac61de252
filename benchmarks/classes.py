"""Softmax regression on the seven classes of Covertype: DP-TR and DP-STR beside a tuned DP-Adam.

Run ``python benchmarks/classes.py``. A fifth of the rows, drawn with a public seed, is held out.
All methods have zero-out neighbours, delta = 1/(10 n) and the same objective; which classes there
are is declared, how many records each has is never read. DP-Adam is tuned on another seed, over
batch size, steps and step size; DP-TR and DP-STR have their defaults. Accuracies are NOT PRIVATE.
"""

import argparse
import itertools
import sys
import time

import jax
import numpy as np

import dpjax
from dpjax.diagnostics import exact_accuracy, exact_optimum

REGULARIZATION = 1e-5
CLASSES = 7
# Batch size over n, steps, step size.
GRID = tuple(itertools.product((0.005, 0.02), (500, 2_000), (0.1, 0.3, 1.0, 3.0)))


def split():
    """Training and held-out rows."""
    data = dpjax.datasets.load("covtype-7")
    x, y = np.asarray(data.x), np.asarray(data.y)
    order = np.random.default_rng(0).permutation(len(x))
    held, kept = np.split(order, [len(x) // 5])
    training = dpjax.Dataset(x[kept], y[kept], name="covtype-7", max_norm=1.0)
    return training, x[held], y[held]


def methods(n):
    """Name, factory, settings of what is compared with DP-Adam."""
    yield "DP-TR", dpjax.dp_trust_region, {}
    for share in (0.05, 0.02):
        batch = round(share * n)
        yield f"DP-STR, batch {batch:,}", dpjax.dp_stochastic_trust_region, {"batch_size": batch}


def adam(n, share, steps, step_size):
    return {"batch_size": round(share * n), "steps": steps, "step_size": step_size}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epsilons", nargs="+", type=float, default=[1.0, 3.0])
    chosen = parser.parse_args()
    training, x, y = split()
    n, objective = training.size, dpjax.objectives.softmax(CLASSES, REGULARIZATION)
    dimension = objective.parameters(training.dimension)

    def measure(make, settings, epsilon, seeds):
        budget = dpjax.PrivacyBudget(epsilon, 1 / (10 * n))
        algorithm = make(objective, budget, data_size=n, dimension=dimension, **settings)
        found, seconds = [], []
        for seed in seeds:
            begin = time.perf_counter()
            solution = dpjax.solve(algorithm, training, seed=seed)
            jax.block_until_ready(solution.params)
            seconds.append(time.perf_counter() - begin)
            found.append(float(exact_accuracy(objective, solution.params, x, y)))
        return found, algorithm.evaluations.declared / n, min(seconds)

    def line(name, epsilon, found, passes, seconds):
        spread = np.std(found, ddof=1) if len(found) > 1 else 0.0
        cells = (name, f"{epsilon:g}", f"{np.mean(found):.2%} ± {spread:.2%}")
        print(f"| {' | '.join(cells)} | {passes:.2f} | {seconds:.1f} |", flush=True)

    print(f"{n:,} rows, {len(x):,} held out, {dimension} parameters\n")
    print("| | epsilon | held-out accuracy | passes over the records | seconds |")
    print("|---|---|---|---|---|")
    begin = time.perf_counter()
    optimum, _ = exact_optimum(objective, training.examples, starts=1)
    reached = float(exact_accuracy(objective, np.float32(optimum), x, y))
    line("not private", np.inf, [reached], np.nan, time.perf_counter() - begin)
    for epsilon in chosen.epsilons:
        seeds = range(chosen.seeds)
        for name, make, settings in methods(n):
            line(name, epsilon, *measure(make, settings, epsilon, seeds))
        tuned = max(
            GRID, key=lambda one: measure(dpjax.dp_adam, adam(n, *one), epsilon, [99])[0][0]
        )
        best = measure(dpjax.dp_adam, adam(n, *tuned), epsilon, seeds)
        share, steps, step_size = tuned
        line(f"DP-Adam, batch {round(share * n):,}, {steps} steps of {step_size:g}", epsilon, *best)
        line("DP-Adam, defaults", epsilon, *measure(dpjax.dp_adam, {}, epsilon, seeds))


if __name__ == "__main__":
    try:
        main()
    except FileNotFoundError as error:
        sys.exit(str(error))
