"""The numbers of the README's table that are about DP-TR as a whole: gap, time, memory, seeds.

Run ``python benchmarks/trust_region.py ijcnn1``, ``covtype`` or ``seeds``. Gaps are NOT PRIVATE:
they compare with the optimum on public benchmark data.
"""

import argparse
import os
import resource
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

import dpjax

EPSILONS = (0.2, 0.5, 1.0, 2.0)
SEEDS = 10
# Optima of the logistic loss with the nonconvex regularizer at 1e-3, best of many starts.
OPTIMUM = {"ijcnn1": 0.20713, "covtype": 0.53800}
LIMITS = {
    "zero_out": (0.014, 0.0045, 0.0010, 0.0005),
    "replace_one": (0.030, 0.010, 0.0050, 0.0012),
}


def build(factory, data, epsilon, relation, **more):
    objective = dpjax.objectives.logistic_nonconvex(regularization=1e-3)
    budget = dpjax.PrivacyBudget(epsilon, 1 / data.size, relation)
    return factory(
        objective, budget, data_size=data.size, dimension=data.dimension, certify=None, **more
    )


def gaps(algorithm, data, examples, keys):
    """Mean optimality gap of every seed, seeds vmapped."""
    solutions = jax.vmap(lambda key: dpjax.solve(algorithm, data, key=key))(keys)
    values = [
        dpjax.diagnostics.exact_objective(algorithm.objective, params, examples)
        for params in solutions.params
    ]
    return np.asarray(values) - OPTIMUM[data.name], np.asarray(solutions.steps)


def ijcnn1():
    data = dpjax.datasets.load("ijcnn1")
    examples = tuple(map(jnp.asarray, data.examples))
    keys = jax.random.split(jax.random.key(2020), SEEDS)
    objective = dpjax.objectives.logistic_nonconvex(1e-3)
    tr, gd = dpjax.dp_trust_region, dpjax.dp_gradient_descent
    paper = {"accountant": "paper"}
    rows = [
        ("DP-TR, zero-out", tr, "zero_out", {}),
        ("DP-TR, replace-one", tr, "replace_one", {}),
        ("DP-TR, replace-one, separate releases", tr, "replace_one", {"release": "separate"}),
        ("paper's noise, same schedule", tr, "replace_one", paper),
        (
            "paper's noise, radius and stopping rule",
            tr,
            "replace_one",
            {**paper, **dpjax.paper_schedule(objective, alpha=0.1)},
        ),
        ("DP-GD, zero-out", gd, "zero_out", {}),
        ("DP-GD, replace-one", gd, "replace_one", {}),
    ]
    print(f"IJCNN1, n = {data.size:,}, delta = 1/n, f* = {OPTIMUM['ijcnn1']}; {SEEDS} seeds, mean")
    print("gap to the optimum (NOT PRIVATE), limit in brackets\n")
    print("| | " + " | ".join(f"epsilon {e:g}" for e in EPSILONS) + " | steps |")
    print("|---|" + "---|" * (len(EPSILONS) + 1))
    for name, factory, relation, more in rows:
        limits = LIMITS[relation] if name in ("DP-TR, zero-out", "DP-TR, replace-one") else None
        cells, steps = [], []
        for i, epsilon in enumerate(EPSILONS):
            gap, taken = gaps(build(factory, data, epsilon, relation, **more), data, examples, keys)
            cells.append(f"{gap.mean():.5f}" + (f" [{limits[i]:g}]" if limits else ""))
            steps.append(taken.mean())
        span = f"{min(steps):g}-{max(steps):g}" if min(steps) < max(steps) else f"{steps[0]:g}"
        print(f"| {name} | " + " | ".join(cells) + f" | {span} |", flush=True)


def median_seconds(call, repeats):
    jax.block_until_ready(call())
    spent = []
    for _ in range(repeats):
        begin = time.perf_counter()
        jax.block_until_ready(call())
        spent.append(time.perf_counter() - begin)
    return float(np.median(spent))


def covtype():
    data = dpjax.datasets.load("covtype")
    examples = tuple(map(jnp.asarray, data.examples))
    print(f"Covertype, n = {data.size:,}, p = {data.dimension}, delta = 1/n, epsilon 1\n")
    for relation in ("zero_out", "replace_one"):
        algorithm = build(dpjax.dp_trust_region, data, 1.0, relation)
        values = [
            float(dpjax.diagnostics.exact_objective(algorithm.objective, solution.params, examples))
            for solution in (
                dpjax.solve(algorithm, examples, key=jax.random.key(seed)) for seed in range(SEEDS)
            )
        ]
        gap = np.mean(values) - OPTIMUM["covtype"]
        print(f"gap, {relation}: {gap:.5f} [0.0020] (NOT PRIVATE, mean of {SEEDS} seeds)")
    algorithm = build(dpjax.dp_trust_region, data, 1.0, "zero_out")
    whole = median_seconds(
        lambda: dpjax.solve(algorithm, examples, key=jax.random.key(0)).params, 5
    )
    # The floor: as many weighted products X^T diag(a) X as there are steps, by the faster of two.
    x, weight = np.asarray(data.x), np.random.default_rng(0).random(data.size).astype(np.float32)
    weighted = jax.jit(lambda x, a: (x * a[:, None]).T @ x)
    numpy_s = median_seconds(lambda: (x * weight[:, None]).T @ x, 5)
    jax_s = median_seconds(lambda: weighted(examples[0], weight), 5)
    floor = int(algorithm.steps) * min(numpy_s, jax_s)
    print(
        f"whole run: {whole:.2f} s, floor {floor:.2f} s ({int(algorithm.steps)} products of "
        f"{1e3 * min(numpy_s, jax_s):.0f} ms): ratio {whole / floor:.2f} [3]"
    )
    print(f"peak memory of a process that loads and trains: {peak_mb():.0f} MB [1000]")


def peak_mb():
    """Peak resident memory of one ``dpjax run`` as its own process."""
    command = [sys.executable, "-m", "dpjax", "run", "--data", "covtype"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def seeds():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1000, 10)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = np.where(x @ np.ones(10) + rng.standard_normal(1000) > 0, 1.0, -1.0).astype(np.float32)
    data = dpjax.Dataset(jnp.asarray(x), jnp.asarray(y), name="made", max_norm=1.0)
    algorithm = build(dpjax.dp_trust_region, data, 1.0, "zero_out", steps=20)
    keys = jax.random.split(jax.random.key(0), 1000)
    one = jax.jit(lambda data, key: dpjax.solve(algorithm, data, key=key).params)
    many = jax.jit(jax.vmap(one, in_axes=(None, 0)))
    together = median_seconds(lambda: many(data, keys), 3)
    each = list(keys)
    apart = median_seconds(lambda: [one(data, key) for key in each], 3)
    print(
        f"1,000 seeds of 20 steps on 1,000 x 10: vmapped {together:.2f} s, Python loop over the "
        f"jitted solve {apart:.2f} s: {apart / together:.2f}x faster [1]"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("which", choices=["ijcnn1", "covtype", "seeds"])
    chosen = {"ijcnn1": ijcnn1, "covtype": covtype, "seeds": seeds}[parser.parse_args().which]
    try:
        chosen()
    except FileNotFoundError as error:
        sys.exit(str(error))
