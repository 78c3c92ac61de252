"""What an adaptive batch costs: a run's time against the records it reads; NOT PRIVATE.

Run ``python benchmarks/spider.py``: Stochastic Spider from the Welsch saddle, beside the same
records read in large fixed batches (every step a fresh gradient), and beside a program whose every
step reads the largest batch behind a mask. ``--data`` names the data set; made records of its size
stand in for Covertype where that is not at hand.
"""

import argparse
import dataclasses
import time

import jax
import jax.numpy as jnp
import numpy as np

import dpjax
from dpjax._typing import pytree_dataclass
from dpjax.oracles import EstimateQuery


@pytree_dataclass
class Masked(EstimateQuery):
    """The same answers, from as many micro-batches as the largest batch has, at every step."""

    def _passes(self, size):
        return super()._passes(jnp.asarray(self.batch_size, jnp.int32))


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


def timed(algorithm, data, repeats):
    """Least seconds of a run, the records it read and its steps."""
    least = np.inf
    for seed in range(repeats + 1):  # the first compiles
        begin = time.perf_counter()
        solution = jax.block_until_ready(dpjax.solve(algorithm, data, seed=17))
        if seed:
            least = min(least, time.perf_counter() - begin)
    return least, float(np.nanmax(solution.history.used)), int(solution.steps)


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
    print("| horizon | steps | records | time | records x time of one | ratio | masked, ratio |")
    print("|---|---|---|---|---|---|---|")
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
        own = adaptive.estimate
        fields = {field.name: getattr(own, field.name) for field in dataclasses.fields(own)}
        masked = dataclasses.replace(adaptive, estimate=Masked(**fields))
        seconds, used, steps = timed(adaptive, data, arguments.repeats)
        whole, read, _ = timed(large, data, arguments.repeats)
        slow, _, _ = timed(masked, data, 1)
        least = whole / read * used
        print(
            f"| {horizon} | {steps} | {used:,.0f} | {seconds:.3f} s | {least:.3f} s | "
            f"{seconds / least:.2f} | {slow:.1f} s, {slow / least:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
