"""DP-TR, DP-STR, DP-Adam and DP-GD at equal epsilon, delta and neighbours, each tuned alike.

Run ``python benchmarks/fair.py``: IJCNN1, logistic loss with the nonconvex regularizer. Every
method gets 48 configurations, printed with what they reached; the best on the tuning seeds is
judged on 20 others. Gaps are NOT PRIVATE, nor is the tuning, which makes the comparison fair.
"""

import argparse
import collections
import itertools
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

import dpjax
from dpjax.reproduce.exact import exact_optimum, exact_values

TUNED_ON, JUDGED_ON = 4, 20
CONFIGURATIONS = 48
# So many trainings at once: more gains nothing and takes memory.
TOGETHER = 96


def grid(**choices):
    """Every combination, as arguments of a factory."""
    return [
        dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())
    ]


GRIDS = {
    "DP-TR": (
        "dp-tr",
        grid(
            steps=[20, 32, 48, 64],
            radius=[5.0, 8.0, 12.0],
            final_radius=[0.25, 0.5],
            damping=[0.5, 1.0],
        ),
    ),
    "DP-STR": (
        "dp-str",
        grid(
            batch_size=[5_000, 10_000, 15_000],
            steps=[30, 50],
            radius=[5.0, 8.0],
            final_radius=[0.25, 0.5],
            damping=[0.5, 1.0],
        ),
    ),
    "DP-Adam": (
        "dp-adam",
        grid(
            batch_size=[1_250, 2_500, 5_000],
            steps=[200, 400, 800, 1_600],
            learning_rate=[0.6, 1.2, 2.4, 4.8],
        ),
    ),
    "DP-GD": (
        "dp-gd",
        grid(
            steps=[192, 256, 384, 512, 768, 1_152],
            step_size=[16.0, 24.0, 32.0, 40.0, 48.0, 64.0, 80.0, 96.0],
        ),
    ),
}


def gaps(name, configurations, budget, data, keys, optimum):
    """(configurations, seeds) gaps; what shares a program is trained together."""
    objective = dpjax.objectives.logistic_nonconvex(1e-3)
    groups = collections.defaultdict(list)
    for i, more in enumerate(configurations):
        if name in ("dp-tr", "dp-gd"):
            more = {**more, "certify": None}
        algorithm = dpjax.ALGORITHMS[name](
            objective, budget, data_size=data.size, dimension=data.dimension, **more
        )
        groups[jax.tree.structure(algorithm), int(algorithm.steps)].append((i, algorithm))
    found = np.full((len(configurations), len(keys)), np.nan)
    for members in groups.values():
        rows = max(1, TOGETHER // len(keys))
        for first in range(0, len(members), rows):
            some = members[first : first + rows]
            stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(a for _, a in some))
            params = many(stacked, data.examples, keys)
            for (i, _), one in zip(some, params, strict=True):
                found[i] = exact_values(objective, one, data.examples)[0] - optimum
    return found


@jax.jit
def many(algorithms, examples, keys):
    each = jax.vmap(lambda a, k: dpjax.solve(a, examples, key=k).params, in_axes=(None, 0))
    return jax.vmap(each, in_axes=(0, None))(algorithms, keys)


def interval(ours, theirs, seed=0):
    """Ratio of the mean gaps, and its paired 95 % bootstrap interval over seeds."""
    random = np.random.default_rng(seed)
    drawn = random.integers(0, len(ours), (10_000, len(ours)))
    ratios = ours[drawn].mean(axis=1) / theirs[drawn].mean(axis=1)
    return ours.mean() / theirs.mean(), *np.quantile(ratios, [0.025, 0.975])


def words(more):
    return ", ".join(f"{name} {value:g}" for name, value in more.items())


def compare(epsilon, relation, chosen):
    data = dpjax.datasets.load("ijcnn1")
    data = dpjax.Dataset(jnp.asarray(data.x), jnp.asarray(data.y), name=data.name)
    optimum = exact_optimum(dpjax.objectives.logistic_nonconvex(1e-3), data.examples)[1]
    budget = dpjax.PrivacyBudget(epsilon, 1 / data.size, relation)
    root = jax.random.key(2020)
    tuning = jax.random.split(jax.random.fold_in(root, 0), TUNED_ON)
    judging = jax.random.split(jax.random.fold_in(root, 1), JUDGED_ON)
    print(
        f"\n## epsilon {epsilon:g}, {relation}, delta = 1/n\n\nIJCNN1, n = {data.size:,}, "
        f"L* = {optimum:.5f}; tuned on {TUNED_ON} seeds, judged on {JUDGED_ON} others; gaps, mean\n"
    )
    judged = {}
    for method in chosen:
        name, configurations = GRIDS[method]
        assert len(configurations) == CONFIGURATIONS
        begin = time.perf_counter()
        reached = gaps(name, configurations, budget, data, tuning, optimum).mean(axis=1)
        best = int(np.nanargmin(reached))
        judged[method] = gaps(name, [configurations[best]], budget, data, judging, optimum)[0]
        print(f"### {method}: the grid, best first ({time.perf_counter() - begin:.0f} s)\n")
        print("| configuration | gap on the tuning seeds |\n|---|---|")
        for i in np.argsort(reached):
            print(f"| {words(configurations[i])} | {reached[i]:.5f} |")
        print(flush=True)
    print("| method | gap on the judging seeds | standard error |\n|---|---|---|")
    for method, values in judged.items():
        print(f"| {method} | {values.mean():.5f} | {values.std(ddof=1) / len(values) ** 0.5:.5f} |")
    print()
    for other, limit in (("DP-Adam", "reaches 1.1 or below"), ("DP-GD", "at most 1/2")):
        if "DP-TR" in judged and other in judged:
            ratio, low, high = interval(judged["DP-TR"], judged[other])
            print(
                f"DP-TR / {other}: {ratio:.2f}, paired 95 % interval {low:.2f} to {high:.2f} "
                f"[{limit}]"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0])
    parser.add_argument("--relation", default="zero_out")
    parser.add_argument("--methods", nargs="+", default=list(GRIDS), choices=list(GRIDS))
    arguments = parser.parse_args()
    try:
        for one in arguments.epsilon:
            compare(one, arguments.relation, arguments.methods)
    except FileNotFoundError as error:
        sys.exit(str(error))
