"""DP-STR as its paper describes it, in NumPy and CVXPY, and dpjax's timed beside it in one run.

Run ``python benchmarks/paper_stochastic_trust_region.py``. The paper (Wang and Xu 2020,
algorithm 2) draws two subsets a step, and solves the subproblem with CVX; its noise is corrected to
what its own lemmas need. ``--alpha`` takes its radius and stopping rule as well, in both, and
dpjax's form is then the paper's: a gradient and a Hessian release on batches of their own. Values
are NOT PRIVATE.
"""

import argparse
import math
import sys
import time
import warnings

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np

import dpjax
from dpjax.diagnostics import exact_gradient_norm, exact_min_eigenvalue, exact_values

REGULARIZATION = 1e-3
LIPSCHITZ, SMOOTHNESS = 1.0, 0.25


def paper_noise(n, dimension, steps, epsilon, delta):
    """Standard deviations of gradient and Hessian noise, replace-one, from the paper's lemmas.

    2 T mechanisms, each (e, delta / 4T) with e = epsilon / (2 sqrt(4 T ln(2 / delta))) by lemma 1;
    on a subset of b of n each may spend e n / 2 b by lemma 2; the batch's mean moves by 2 G / b. So
    sigma^2 = 512 G^2 T ln(5 T / delta) ln(2 / delta) / (n epsilon)^2, where the paper prints 256
    and no T; the Hessian's has p M^2 in place of G^2.
    """
    logs = math.log(5 * steps / delta) * math.log(2 / delta)
    unit = math.sqrt(512 * steps * logs) / (n * epsilon)
    return LIPSCHITZ * unit, SMOOTHNESS * math.sqrt(dimension) * unit


def gradient_of(w, x, y):
    slope = -y / (1 + np.exp(y * (x @ w)))
    return x.T @ slope / len(y) + REGULARIZATION * 2 * w / (1 + w**2) ** 2


def hessian_of(w, x, y):
    share = 1 / (1 + np.exp(-y * (x @ w)))
    weight = share * (1 - share) / len(y)
    own = REGULARIZATION * (2 - 6 * w**2) / (1 + w**2) ** 3
    return (x * weight[:, None]).T @ x + np.diag(own)


def subproblem(gradient, hessian, radius):
    """The global minimum over the ball and its multiplier, by CVXPY.

    An indefinite Hessian is lifted by its least eigenvalue, which moves the value on the sphere by
    a constant: the convex minimum, followed along that eigenvector to the sphere, is the global
    one.
    """
    values, vectors = np.linalg.eigh(hessian)
    lift = min(values[0], 0.0)
    root = vectors * np.sqrt(np.maximum(values - lift, 0.0))
    step = cp.Variable(len(gradient))
    objective = cp.Minimize(gradient @ step + cp.sum_squares(root.T @ step) / 2)
    ball = cp.norm(step) <= radius
    cp.Problem(objective, [ball]).solve(solver=cp.CLARABEL)
    move = step.value
    # Of |h| <= r the dual is the multiplier of |h|^2 / 2 times r.
    multiplier = float(ball.dual_value) / radius - lift
    if lift < 0:
        edge = vectors[:, 0]
        along = edge @ move
        room = max(radius**2 - move @ move, 0.0)
        # The nearer of the two ends: where the convex minimum is on the sphere, this is nothing.
        move = move + (math.copysign(math.sqrt(along**2 + room), along) - along) * edge
    return move, multiplier


def paper_stochastic_trust_region(x, y, *, sizes, steps, radius, stop, epsilon, delta, seed):
    """Algorithm 2 with a radius that may shrink; returns its output and the steps taken.

    ``sizes`` are |S| and |T|; it stops at a multiplier of at most ``stop``.
    """
    n, dimension = x.shape
    random = np.random.default_rng(seed)
    for_gradient, for_hessian = paper_noise(n, dimension, steps, epsilon, delta)
    w = np.zeros(dimension)
    decay = (radius[1] / radius[0]) ** (1 / max(steps - 1, 1))
    for k in range(steps):
        rows, others = (random.choice(n, size, replace=False) for size in sizes)
        gradient = gradient_of(w, x[rows], y[rows])
        gradient = gradient + for_gradient * random.standard_normal(dimension)
        upper = np.triu(for_hessian * random.standard_normal((dimension, dimension)))
        hessian = hessian_of(w, x[others], y[others]) + upper + np.triu(upper, 1).T
        move, multiplier = subproblem(gradient, hessian, radius[0] * decay**k)
        w = w + move
        if multiplier <= stop:
            return w, k + 1
    return w, steps


def least_alpha(objective, w, examples):
    """The least alpha with |gradient| <= alpha and no eigenvalue below -sqrt(rho alpha)."""
    w = jnp.asarray(w, jnp.float32)
    norm = float(exact_gradient_norm(objective, w, examples))
    lowest = min(float(exact_min_eigenvalue(objective, w, examples)), 0.0)
    return max(norm, lowest**2 / objective.hessian_lipschitz)


def main(name, batch, own_batch, hessian_batch, epsilon, alpha, repeats):
    data = dpjax.datasets.load(name)
    # In float64, as NumPy and CVXPY have it.
    x, y = np.asarray(data.x, np.float64), np.asarray(data.y, np.float64)
    examples = jnp.asarray(data.x), jnp.asarray(data.y)
    objective = dpjax.objectives.logistic_nonconvex(REGULARIZATION)
    budget = dpjax.PrivacyBudget(epsilon, 1 / data.size, "replace_one")
    form = {"batch_size": own_batch}
    if alpha is not None:
        papers = dpjax.paper_schedule(objective, alpha, dimension=data.dimension)
        form = papers | form | {"hessian_batch_size": hessian_batch}
    sizes = {"data_size": data.size, "dimension": data.dimension}
    ours = dpjax.dp_stochastic_trust_region(objective, budget, **sizes, **form)
    steps = int(ours.steps)
    radius = float(ours.radius), float(ours.radius * ours.radius_decay ** (steps - 1))
    jax.block_until_ready(dpjax.solve(ours, examples, key=jax.random.key(0)).params)
    spent, found, taken = ({"paper": [], "dpjax": []} for _ in range(3))
    for seed in range(1, repeats + 1):
        begin = time.perf_counter()
        w, count = paper_stochastic_trust_region(
            x,
            y,
            sizes=(batch, hessian_batch),
            steps=steps,
            radius=radius,
            stop=float(ours.stop_below),
            epsilon=epsilon,
            delta=budget.delta,
            seed=seed,
        )
        spent["paper"].append(time.perf_counter() - begin)
        found["paper"].append(w)
        taken["paper"].append(count)
        begin = time.perf_counter()
        solution = jax.block_until_ready(dpjax.solve(ours, examples, key=jax.random.key(seed)))
        spent["dpjax"].append(time.perf_counter() - begin)
        found["dpjax"].append(np.asarray(solution.params))
        taken["dpjax"].append(int(solution.steps))
    rule = "" if alpha is None else f", radius {radius[0]:.3g} and stop of alpha = {alpha:g}"
    print(
        f"{name}, n = {data.size:,}, {steps} steps{rule}, batches of {batch:,} and "
        f"{hessian_batch:,}, dpjax's of {own_batch:,}, "
        f"epsilon {epsilon:g}, replace_one, delta = 1/n; {repeats} runs each, taken in turn\n"
    )
    print("| | seconds, median | steps, mean | value, mean | alpha of its SOSP, mean and most |")
    print("|---|---|---|---|---|")
    words = {"paper": "the paper's DP-STR, NumPy + CVXPY", "dpjax": "dpjax's DP-STR"}
    for which, label in words.items():
        values = exact_values(objective, np.stack(found[which]), examples)
        alphas = [least_alpha(objective, w, examples) for w in found[which]]
        cells = (
            f"{np.median(spent[which]):.3f}",
            f"{np.mean(taken[which]):.1f}",
            f"{values.mean():.5f}",
            f"{np.mean(alphas):.3f}, {np.max(alphas):.3f}",
        )
        print(f"| {label} | {' | '.join(cells)} |")
    ratio = np.median(spent["dpjax"]) / np.median(spent["paper"])
    print(f"\ndpjax / paper: 1/{1 / ratio:.0f} [at most 1/30]")


if __name__ == "__main__":
    warnings.filterwarnings("ignore", module="cvxpy")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="covtype")
    parser.add_argument("--batch", type=int, default=50_000)
    parser.add_argument("--own-batch", type=int, help="dpjax's (default: the paper's)")
    parser.add_argument("--hessian-batch", type=int, help="|T| (default: the batch)")
    parser.add_argument("--alpha", type=float, help="of the paper's radius and stopping rule")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    try:
        main(
            arguments.data,
            arguments.batch,
            arguments.own_batch or arguments.batch,
            arguments.hessian_batch or arguments.batch,
            arguments.epsilon,
            arguments.alpha,
            arguments.repeats,
        )
    except FileNotFoundError as error:
        sys.exit(str(error))
