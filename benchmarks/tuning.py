"""Methods tuned alike on IJCNN1, for ``fair.py`` and ``newton.py``; NOT PRIVATE, as they are."""

import collections
import itertools
import time

import jax
import jax.numpy as jnp
import numpy as np

import dpjax
from dpjax.diagnostics import exact_optimum, exact_values

CONFIGURATIONS, TUNED_ON = 48, 4
# So many trainings at once: more gains nothing and takes memory.
TOGETHER = 96
FACTORIES = dpjax.ALGORITHMS


def grid(**choices):
    """Every combination, as arguments of a factory."""
    return [
        dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())
    ]


def gaps(name, configurations, objective, budget, data, keys, optimum):
    """(configurations, seeds) gaps; what shares a program is trained together."""
    groups = collections.defaultdict(list)
    for i, more in enumerate(configurations):
        algorithm = FACTORIES[name](
            objective, budget, data_size=data.size, dimension=data.dimension, **more
        )
        groups[jax.tree.structure(algorithm), int(algorithm.steps)].append((i, algorithm))
    found = np.full((len(configurations), len(keys)), np.nan)
    for members in groups.values():
        rows = max(1, TOGETHER // len(keys))
        for first in range(0, len(members), rows):
            some = members[first : first + rows]
            stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(a for _, a in some))
            for (i, _), one in zip(some, many(stacked, data.examples, keys), strict=True):
                found[i] = exact_values(objective, one, data.examples) - optimum
    return found


@jax.jit
def many(algorithms, examples, keys):
    each = jax.vmap(lambda a, k: dpjax.solve(a, examples, key=k).params, in_axes=(None, 0))
    return jax.vmap(each, in_axes=(0, None))(algorithms, keys)


def words(more):
    return ", ".join(
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in more.items()
    )


def judge(methods, objective, epsilon, relation, *, seed, judged_on):
    """Gaps of each method's best configuration on seeds of their own, by label; prints the grids.

    ``methods`` maps a label to the name of a factory and its configurations.
    """
    loaded = dpjax.datasets.load("ijcnn1")
    data = dpjax.Dataset(jnp.asarray(loaded.x), jnp.asarray(loaded.y), name=loaded.name)
    optimum = exact_optimum(objective, data.examples)[1]
    budget = dpjax.PrivacyBudget(epsilon, 1 / data.size, relation)
    root = jax.random.key(seed)
    tuning = jax.random.split(jax.random.fold_in(root, 0), TUNED_ON)
    judging = jax.random.split(jax.random.fold_in(root, 1), judged_on)
    print(
        f"\n## epsilon {epsilon:g}, {relation}, delta = 1/n\n\nIJCNN1, n = {data.size:,}, "
        f"L* = {optimum:.6f}; tuned on {TUNED_ON} seeds, judged on {judged_on} others; mean gaps\n"
    )
    judged = {}
    for label, (name, configurations) in methods.items():
        assert len(configurations) == CONFIGURATIONS
        begin = time.perf_counter()
        shared = (objective, budget, data)
        reached = gaps(name, configurations, *shared, tuning, optimum).mean(axis=1)
        best = int(np.nanargmin(reached))
        judged[label] = gaps(name, [configurations[best]], *shared, judging, optimum)[0]
        print(f"### {label}: the grid, best first ({time.perf_counter() - begin:.0f} s)\n")
        print("| configuration | gap on the tuning seeds |\n|---|---|")
        for i in np.argsort(reached):
            print(f"| {words(configurations[i])} | {reached[i]:.5f} |")
        print(flush=True)
    print("| method | gap on the judging seeds | standard error |\n|---|---|---|")
    for label, values in judged.items():
        print(f"| {label} | {values.mean():.5f} | {values.std(ddof=1) / len(values) ** 0.5:.5f} |")
    return judged
