"""The numbers of docs/benchmarks.md that are about DP-STR: gaps, time beside DP-TR, time against n.

Run ``python -m benchmarks.stochastic_trust_region ijcnn1`` or ``covtype``. Gaps are NOT PRIVATE:
they compare with the optimum on public benchmark data.
"""

import argparse
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

import dpjax
from benchmarks.papers import noise

EPSILONS = (0.2, 0.5, 1.0, 2.0)
SEEDS = 10
OPTIMUM = {"ijcnn1": 0.20713, "covtype": 0.53800}
LIMITS = (0.018, 0.007, 0.003, 0.0014)
OBJECTIVE = dpjax.objectives.logistic_nonconvex(regularization=1e-3)


def build(factory, n, dimension, epsilon, relation, **more):
    budget = dpjax.PrivacyBudget(epsilon, 1 / n, relation)
    return factory(OBJECTIVE, budget, data_size=n, dimension=dimension, **more)


def gap_of(params, data, examples):
    value = dpjax.diagnostics.exact_objective(OBJECTIVE, params, examples)
    return float(value) - OPTIMUM[data.name]


def ijcnn1():
    data = dpjax.datasets.load("ijcnn1")
    examples = tuple(map(jnp.asarray, data.examples))
    keys = jax.random.split(jax.random.key(2020), SEEDS)
    rows = [
        ("DP-STR, zero-out", "zero_out", {}),
        ("DP-STR, replace-one", "replace_one", {}),
        ("DP-STR, replace-one, fixed size", "replace_one", {"sampling": "without_replacement"}),
        # With noise as large as the paper's, shorter steps may serve better: three, in hindsight.
        *(
            (f"the paper's noise, corrected, radius {radius:g}", "replace_one", more)
            for radius in (1.0, 3.0, 12.0)
            for more in [{"radius": radius, "final_radius": radius / 24}]
        ),
    ]
    print(f"IJCNN1, n = {data.size:,}, batch 5,000, delta = 1/n; {SEEDS} seeds, mean gap to the")
    print("optimum (NOT PRIVATE), limit in brackets\n")
    print("| | " + " | ".join(f"epsilon {e:g}" for e in EPSILONS) + " |")
    print("|---|" + "---|" * len(EPSILONS))
    for name, relation, more in rows:
        cells = []
        for epsilon, limit in zip(EPSILONS, LIMITS, strict=True):
            algorithm = build(
                noise.stochastic_trust_region
                if name.startswith("the paper's")
                else dpjax.dp_stochastic_trust_region,
                data.size,
                data.dimension,
                epsilon,
                relation,
                batch_size=5_000,
                **more,
            )
            found = jax.vmap(lambda key, a=algorithm: dpjax.solve(a, examples, key=key).params)
            gap = np.mean([gap_of(params, data, examples) for params in found(keys)])
            cells.append(f"{gap:.5f}" + (f" [{limit:g}]" if relation == "zero_out" else ""))
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def seconds(calls, repeats=9):
    """Least time of each call, taken in turn, after compiling."""
    for call in calls:
        jax.block_until_ready(call())
    spent = np.full((repeats, len(calls)), np.nan)
    for row in spent:
        for i, call in enumerate(calls):
            begin = time.perf_counter()
            jax.block_until_ready(call())
            row[i] = time.perf_counter() - begin
    return spent.min(axis=0)


def training(algorithm, examples):
    return lambda: dpjax.solve(algorithm, examples, key=jax.random.key(0)).params


def covtype():
    data = dpjax.datasets.load("covtype")
    examples = tuple(map(jnp.asarray, data.examples))
    p, n = data.dimension, data.size
    print(f"Covertype, n = {n:,}, p = {p}, delta = 1/n, epsilon 1; gaps are NOT PRIVATE\n")
    whole = build(dpjax.dp_trust_region, n, p, 1.0, "zero_out", certify=None)
    sampled = {
        batch: build(dpjax.dp_stochastic_trust_region, n, p, 1.0, "zero_out", batch_size=batch)
        for batch in (50_000, 10_000, 5_000)
    }
    spent = seconds([training(a, examples) for a in (whole, *sampled.values())], 5)
    print("| | seconds | over DP-TR's | gap, mean of 10 seeds [0.0020] |\n|---|---|---|---|")
    rows = zip(("DP-TR", *sampled), (whole, *sampled.values()), spent, strict=True)
    for name, algorithm, took in rows:
        gap = np.mean(
            [
                gap_of(
                    dpjax.solve(algorithm, examples, key=jax.random.key(i)).params, data, examples
                )
                for i in range(SEEDS)
            ]
        )
        label = name if name == "DP-TR" else f"DP-STR, batch {name:,}"
        print(f"| {label} | {took:.3f} | 1/{spent[0] / took:.1f} [1/5] | {gap:.5f} |", flush=True)
    few = tuple(leaf[:35_000] for leaf in examples)
    first = build(dpjax.dp_stochastic_trust_region, 35_000, p, 1.0, "zero_out", batch_size=5_000)
    many, small = seconds([training(sampled[5_000], examples), training(first, few)], 15)
    print(
        f"\n{int(first.steps)} steps of batch 5,000: {1e3 * many:.0f} ms on all {n:,} rows, "
        f"{1e3 * small:.0f} ms on the first 35,000: {many / small:.2f}x [1.3x]"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("which", choices=["ijcnn1", "covtype"])
    chosen = {"ijcnn1": ijcnn1, "covtype": covtype}[parser.parse_args().which]
    try:
        chosen()
    except FileNotFoundError as error:
        sys.exit(str(error))
