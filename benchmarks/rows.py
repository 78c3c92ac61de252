"""Accuracy with rows divided by norms of their own, and by one public constant.

Run ``python benchmarks/rows.py``. Tables with classes as the label: three named data sets, with
their columns as a schema and as 54 or 22 bounds, and a made-up census (14 columns, of which eight
have 101 levels, as a9a was made from). Logistic regression by DP-TR with its defaults, penalty 2 /
(n epsilon), delta = 1 / (10 n); mean and standard error of the accuracy on a fifth held out (NOT
PRIVATE) over ten seeds.
"""

import jax
import numpy as np

import dpjax
from dpjax.datasets import registry

SEEDS = 10
LEVELS = (9, 16, 7, 15, 6, 5, 2, 41)  # of adult's columns


def census(n=32_561, seed=0):
    """Columns of numbers in [0, 1], and places of levels, of a census in adult's proportions."""
    rng = np.random.default_rng(seed)
    latent = rng.normal(size=(n, 4))
    age = np.clip(0.3 + 0.19 * latent[:, 0], 0, 1)
    school = np.clip(0.6 + 0.16 * latent[:, 1], 0, 1)
    hours = np.clip(0.4 + 0.12 * latent[:, 2], 0, 1)
    weight = np.clip(rng.lognormal(-2.2, 0.5, n), 0, 1)
    gain = np.where(rng.uniform(size=n) < 0.08, np.clip(rng.lognormal(-2.6, 0.8, n), 0, 1), 0)
    loss = np.where(rng.uniform(size=n) < 0.05, np.clip(0.42 + 0.08 * rng.normal(size=n), 0, 1), 0)
    score = 3 * (age - 0.3) + 5 * (school - 0.6) + 4 * (hours - 0.4) + 20 * gain + 1.5 * loss
    places = []
    for k in LEVELS:
        # Levels follow the latent numbers a little, and are as unequal as those of a census.
        logits = 1.2 * rng.normal(size=k) + latent @ (0.5 * rng.normal(size=(4, k)))
        place = np.argmax(logits + rng.gumbel(size=(n, k)), axis=1)
        places.append(place)
        score = score + 0.8 * rng.normal(size=k)[place]
    score = 1.5 * (score - np.quantile(score, 0.76))
    y = np.where(rng.uniform(size=n) < 1 / (1 + np.exp(-score)), 1.0, -1.0)
    return np.stack([age, school, hours, weight, gain, loss], 1), places, y


def tables():
    """Names, numbers in [0, 1], places of levels, and labels."""
    yield "census, 14 columns", *census()
    numbers, places, y = census()
    ones = np.concatenate([np.eye(k)[p] for k, p in zip(LEVELS, places, strict=True)], axis=1)
    yield "census, 107 bounds", np.concatenate([numbers, ones], axis=1), [], y
    spec = registry.spec("covtype-12")
    source, _, _ = registry.read_named(spec)
    low, high = np.array(list(registry.COVTYPE_RANGES.values())).T
    x = (source.numbers(slice(None), spec.columns) - low) / (high - low)
    y = np.asarray(dpjax.datasets.load("covtype-12").y)
    places = [np.argmax(x[:, 10:14], axis=1), np.argmax(x[:, 14:], axis=1)]
    yield "covtype-12, 12 columns", x[:, :10], places, y
    yield "covtype-12, 54 bounds", x, [], y
    spec = registry.spec("randhie")
    source, _, _ = registry.read_named(spec)
    low, high = np.array(list(registry.RANDHIE_RANGES.values())).T
    x = (source.numbers(slice(None), spec.columns) - low) / (high - low)
    yield "randhie, 9 columns", np.clip(x, 0, 1), [], np.asarray(dpjax.datasets.load("randhie").y)
    spec = registry.spec("ijcnn1")
    source, _, _ = registry.read_named(spec)
    x = np.clip((source.numbers(slice(None), spec.columns) + 1) / 2, 0, 1)
    yield "ijcnn1, 22 columns", x, [], np.asarray(dpjax.datasets.load("ijcnn1").y)


def rows(numbers, places, own, most=None):
    """Rows with an intercept, divided by their own norms or by one constant."""
    levels = [np.eye(p.max() + 1)[p] for p in places]
    scaled = numbers if own else 2 * numbers - 1
    x = np.concatenate([scaled, *levels, np.ones((len(numbers), 1))], axis=1)
    norm = np.linalg.norm(x, axis=1, keepdims=True)
    constant = np.sqrt(numbers.shape[1] + len(places) + 1)
    return (x / (norm if own else np.maximum(norm, min(constant, most or constant)))).astype("f4")


def accuracy(x, y, epsilon, held):
    """Accuracies (seeds,) on held-out rows."""
    kept = ~held
    n = int(kept.sum())
    objective = dpjax.objectives.logistic_l2(2 / (n * epsilon))
    if hasattr(objective, "free_intercept"):
        objective = objective.free_intercept()
    algorithm = dpjax.dp_trust_region(
        objective, dpjax.PrivacyBudget(epsilon, 1 / (10 * n)), data_size=n, dimension=x.shape[1]
    )
    data = (x[kept], y[kept])
    keys = jax.random.split(jax.random.key(0), SEEDS)
    params = np.stack([np.asarray(dpjax.solve(algorithm, data, key=key).params) for key in keys])
    return np.mean(np.where(x[held] @ params.T >= 0, 1, -1) == y[held, None], axis=0)


def main():
    """Prints a table."""
    print("| table | epsilon | own norms | one constant | one constant, norm at most 2 |")
    print("|---|---|---|---|---|")
    for name, numbers, places, y in tables():
        held = np.random.default_rng(0).uniform(size=len(y)) < 0.2
        encoded = [rows(numbers, places, *how) for how in ((True,), (False,), (False, 2.0))]
        for epsilon in (0.5, 1.0, 3.0):
            found = [accuracy(x, y, epsilon, held) for x in encoded]
            cells = [f"{a.mean():.4f} ± {a.std() / SEEDS**0.5:.4f}" for a in found]
            print(f"| {name} | {epsilon:g} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
