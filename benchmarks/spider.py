"""What an adaptive batch costs: a run's time against the records it reads; NOT PRIVATE.

Run ``python benchmarks/spider.py``: Stochastic Spider from the Welsch saddle, beside the same
records read in large fixed batches (every step a fresh gradient). ``--data`` names the data set;
made records of its size stand in for Covertype where that is not at hand. Both run in turn.
"""

import argparse
import dataclasses
import time

import jax
import jax.numpy as jnp
import numpy as np

import dpjax


def load(name):
    """The examples, and the regularization that makes w = 0 a saddle."""
    try:
        data = dpjax.datasets.load(name)
        return data.examples, dpjax.objectives.welsch_regularization(name)
    except FileNotFoundError:
        random = np.random.default_rng(0)
        x = random.normal(size=(581_012, 54)).astype(np.float32) * np.linspace(3, 1, 54)
        x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
        first, second = np.linalg.eigvalsh(x.T @ x / len(x))[-1:-3:-1]
        return (x, np.ones(len(x), np.float32)), (first + second) / 2


def timed(algorithms, data, repeats):
    """For each algorithm the least seconds of a run, the records it read and its steps."""
    least, read = np.full(len(algorithms), np.inf), {}
    for repeat in range(repeats + 1):  # the first compiles
        for i, algorithm in enumerate(algorithms):
            begin = time.perf_counter()
            solution = jax.block_until_ready(dpjax.solve(algorithm, data, seed=17))
            if repeat:
                least[i] = min(least[i], time.perf_counter() - begin)
            read[i] = float(np.nanmax(solution.history.used)), int(solution.steps)
    return [(seconds, *read[i]) for i, seconds in enumerate(least)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="covtype", help="data set (default: covtype)")
    parser.add_argument("--epsilon", type=float, default=2.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--horizons", type=int, nargs="*", default=[64, 256, 512])
    arguments = parser.parse_args()
    (x, y), regularization = load(arguments.data)
    data = jnp.asarray(x), jnp.asarray(y)
    budget = dpjax.PrivacyBudget(arguments.epsilon, 1 / (10 * len(x)))
    objective = dpjax.objectives.welsch(regularization)
    print(f"{arguments.data}, n = {len(x):,}, p = {x.shape[1]}, {jax.devices()[0].platform}\n")
    print("| horizon | steps | records | time | records x time of one | ratio |")
    print("|---|---|---|---|---|---|")
    for horizon in arguments.horizons:
        adaptive = dpjax.stochastic_spider(
            objective,
            budget,
            data_size=len(x),
            dimension=x.shape[1],
            horizon=horizon,
            candidates=0,
        )
        large = dataclasses.replace(adaptive, drift_threshold=1e-30)
        (seconds, used, steps), (whole, read, _) = timed((adaptive, large), data, arguments.repeats)
        least = whole / read * used
        print(
            f"| {horizon} | {steps} | {used:,.0f} | {seconds:.3f} s | {least:.3f} s | "
            f"{seconds / least:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
