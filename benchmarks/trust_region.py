"""The numbers of docs/benchmarks.md that are about DP-TR as a whole: gap, time, memory, seeds.

Run ``python -m benchmarks.trust_region ijcnn1``, ``covtype``, ``seeds`` or ``time``. Gaps are NOT
PRIVATE: they compare with the optimum on public benchmark data.

``time`` holds a whole run against its floor: as many steps of one weighted product X^T diag(a) X,
one product X^T a and one Cholesky factorisation, as one program, by the faster of two layouts of X.
It does so alone and beside one process that keeps a core busy. For another version of dpjax, put
its folder on PYTHONPATH. ``time --rows 6000 --dimensions 124 200`` takes part of the table.
"""

import argparse
import contextlib
import functools
import os
import resource
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

import dpjax
from benchmarks.papers import noise

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
    rows = [
        ("DP-TR, zero-out", tr, "zero_out", {}),
        ("DP-TR, replace-one", tr, "replace_one", {}),
        ("DP-TR, replace-one, separate releases", tr, "replace_one", {"release": "separate"}),
        ("paper's noise, same schedule", noise.trust_region, "replace_one", {}),
        (
            "paper's noise, radius and stopping rule",
            noise.trust_region,
            "replace_one",
            dpjax.paper_schedule(objective, alpha=0.1),
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


# Steps and rounds of a timed run: a step on 581,012 rows of 500 features takes seconds.
TIMED = {6_000: (32, 7), 581_012: (4, 3)}
DIMENSIONS = (22, 60, 124, 200, 500)


@functools.partial(jax.jit, static_argnums=(0, 1))
def made_rows(n, p):
    """Rows of norm 1 with noisy linear labels, made on the device."""
    x = jax.random.normal(jax.random.key(0), (n, p))
    x = x / jnp.linalg.norm(x, axis=1, keepdims=True)
    noise = jax.random.normal(jax.random.key(1), (n,)) / jnp.sqrt(p)
    return x, jnp.where(x @ jnp.ones(p) / jnp.sqrt(p) + noise > 0, 1.0, -1.0)


@functools.partial(jax.jit, static_argnames=("steps", "columns"))
def floor_run(x, scale, steps, columns):
    """The products and factorisations of a run; each step needs the one before."""
    n, p = scale.size, x.size // scale.size

    def step(_, w):
        a = scale * (1 + w[0])
        if columns:
            hessian, gradient = (x * a) @ x.T, x @ a
        else:
            hessian, gradient = (x * a[:, None]).T @ x, a @ x
        factor = jnp.linalg.cholesky(hessian / n + jnp.eye(p))
        return (gradient + jnp.diagonal(factor)) / n

    return jax.lax.fori_loop(0, steps, step, jnp.zeros(p))


@contextlib.contextmanager
def busy_process():
    """One other process that keeps a core busy."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def in_turn(calls, rounds):
    """Median seconds of each call, taken in turn."""
    for call in calls:
        jax.block_until_ready(call())
    spent = [[] for _ in calls]
    for _ in range(rounds):
        for call, times in zip(calls, spent, strict=True):
            begin = time.perf_counter()
            jax.block_until_ready(call())
            times.append(time.perf_counter() - begin)
    return [float(np.median(times)) for times in spent]


def timed_row(n, p):
    """Seconds of a run and of its floor, alone and beside a busy process."""
    steps, rounds = TIMED[n]
    x, y = made_rows(n, p)
    objective, budget = dpjax.objectives.logistic_nonconvex(1e-3), dpjax.PrivacyBudget(1.0, 0.1 / n)
    algorithm = dpjax.dp_trust_region(objective, budget, data_size=n, dimension=p, steps=steps)
    turned, scale = x.T.copy(), jnp.full(n, 0.25)
    seed = iter(range(10**6))
    calls = [
        lambda: dpjax.solve(algorithm, (x, y), key=jax.random.key(next(seed))).params,
        lambda: floor_run(x, scale, steps, False),
        lambda: floor_run(turned, scale, steps, True),
    ]
    found = []
    for beside in (contextlib.nullcontext(), busy_process()):
        with beside:
            run, *floors = in_turn(calls, rounds)
        found.append((run, min(floors)))
    return found


def runs(rows, dimensions):
    each = ", ".join(f"{steps} steps on {n:,} rows" for n, (steps, _) in TIMED.items())
    print(f"DP-TR, epsilon 1, logistic_nonconvex; {each}. Medians, run and floor in turn.\n")
    print(
        "| n | p | run, s | floor, s | ratio | beside a busy process: run, s | floor, s | ratio |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for n in rows:
        for p in dimensions:
            cells = [
                f"{run:.3f} | {floor:.3f} | {run / floor:.1f} [3]" for run, floor in timed_row(n, p)
            ]
            print(f"| {n:,} | {p} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("which", choices=["ijcnn1", "covtype", "seeds", "time"])
    parser.add_argument("--rows", type=int, nargs="+", choices=list(TIMED), default=list(TIMED))
    parser.add_argument("--dimensions", type=int, nargs="+", default=DIMENSIONS)
    arguments = parser.parse_args()
    chosen = {
        "ijcnn1": ijcnn1,
        "covtype": covtype,
        "seeds": seeds,
        "time": lambda: runs(arguments.rows, arguments.dimensions),
    }[arguments.which]
    try:
        chosen()
    except FileNotFoundError as error:
        sys.exit(str(error))
