"""How near a private first look comes: counts, quantiles; private bounds beside declared ones.

``python benchmarks/describe.py [look | bounds]``; exact values of made-up and published data.
"""

import functools
import sys

import numpy as np

import dpjax
from dpjax import statistics
from dpjax.datasets import registry
from dpjax.datasets.scaling import read_ranges

N, RUNS, EPSILON = 20_000, 200, 0.1


def made_up(rng):
    """Ten columns as a hospital has them, and their declarations."""
    table = {
        "age": rng.normal(52, 19, N).clip(0, 105),
        "height": rng.normal(170, 10, N),
        "stay": rng.exponential(6, N),
        "cost": rng.lognormal(8, 1.1, N),
        "income": rng.lognormal(10, 0.7, N),
        "creatinine": rng.lognormal(0, 0.5, N),
        "balance": rng.normal(0, 500, N) * rng.exponential(1, N),
        "sex": rng.choice(["F", "M"], N),
        "ward": rng.choice(list("abcdef"), N, p=[0.4, 0.3, 0.15, 0.1, 0.04, 0.01]),
        "ill": rng.choice(["no", "yes"], N, p=[0.9, 0.1]),
    }
    for name in ("height", "creatinine"):
        table[name][rng.random(N) < 0.05] = np.nan
    bounds = {
        "age": [0, 120], "height": [100, 220], "stay": [0, 100], "cost": [0, 1e6],
        "income": [0, 1e7], "creatinine": [0.05, 50], "balance": [-1e5, 1e6],
    }  # fmt: skip
    columns: dict = {name: {"bounds": ends, "missing": ends[0]} for name, ends in bounds.items()}
    columns |= {"sex": {"levels": ["F", "M"]}, "ward": {"levels": list("abcdef")}}
    return table, {"label": {"column": "ill", "classes": ["no", "yes"]}, "columns": columns}


def look():
    """Prints the share of runs, new data and new noise in each, in which numbers are near."""
    counts, near, held, missing = [], {}, {}, []
    for run in range(RUNS):
        table, schema = made_up(np.random.default_rng(run))
        found = statistics.describe(table, schema=schema, epsilon=EPSILON, key=dpjax.random_key())
        counts.append(abs(found.records.value / N - 1))
        for each in found.columns:
            cells = table[each.bins.name]
            if each.bins.levels:
                continue
            missing.append(abs(each.missing.value - np.isnan(cells).mean()))
            for level, estimate in each.quantiles.items():
                exact = np.nanquantile(cells, level)
                inner = each.bins.edges[1:-1]
                apart = np.diff(np.searchsorted(inner, [exact, estimate.value]))[0]
                near.setdefault((each.bins.name, level), []).append(abs(apart) <= 1)
                covered = estimate.lower <= exact <= estimate.upper
                held.setdefault((each.bins.name, level), []).append(covered)
    print(f"{RUNS} runs, n = {N:,}, epsilon {EPSILON}, 10 columns of at most 20 bins")
    print(f"count within 1.5 %: {np.mean(np.array(counts) <= 0.015):.1%} of runs; "
          f"95 % of them within {np.quantile(counts, 0.95):.2%}")  # fmt: skip
    print(f"missing share: 95 % within {np.quantile(missing, 0.95):.2%}")
    shares = {key: float(np.mean(each)) for key, each in near.items()}
    print(f"quantiles within one bin: {np.mean([*near.values()]):.1%} of all, in the worst of "
          f"{len(near)}, {min(shares, key=shares.get)}, {min(shares.values()):.1%}")  # fmt: skip
    together = np.array([*near.values()])
    print(f"runs with all {len(near)} within one bin: {together.all(axis=0).mean():.1%}")
    shares = {key: float(np.mean(each)) for key, each in held.items()}
    print(f"their ranges hold the exact one: {np.mean([*held.values()]):.1%}, at worst "
          f"{min(shares, key=shares.get)}, {min(shares.values()):.1%}")  # fmt: skip


def real(name, most):
    """A published table as columns, half of whose rows are held out, and its published ranges."""
    spec = registry.spec(name)
    source, _, classes = registry.read_named(spec)
    names = [*spec.columns]
    *cells, labels = source.at(slice(0, source.size), [*names, "label"], {*names})
    places = np.random.default_rng(0).permutation(source.size)[: 2 * most]
    columns = {key: np.asarray(held)[places] for key, held in zip(names, cells, strict=True)}
    columns["label"] = np.asarray(labels)[places]
    ends = zip(
        *(np.asarray(each).tolist() for each in read_ranges(spec.ranges, names)), strict=True
    )
    half = len(places) // 2
    parts = [{key: held[part] for key, held in columns.items()}
             for part in (slice(half), slice(half, None))]  # fmt: skip
    return *parts, list(classes), dict(zip(names, ends, strict=True))


def bounds():
    """Prints the accuracy on held-out rows with declared and with private bounds."""
    seeds, epsilon, loss = 10, 1.0, dpjax.objectives.logistic_nonconvex()
    for name, most in (("randhie", 10_000), ("covtype", 50_000)):
        train, test, classes, ranges = real(name, most)
        label, found = {"column": "label", "classes": classes}, {"declared": [], "private": []}
        kinds = {key: {"bounds": [low, high]} for key, (low, high) in ranges.items()}
        # Limits ten times as wide as what is published; of 0 and 1 nothing is to be found.
        outer = {key: part if part["bounds"] == [0, 1] else {
            "bounds": "private", "limits": [10 * min(part["bounds"][0], 0), 10 * part["bounds"][1]]}
            for key, part in kinds.items()}  # fmt: skip
        wide = {k: part if "limits" not in part else {"bounds": part["limits"]}
                for k, part in outer.items()}  # fmt: skip
        found["the limits as bounds"] = []
        n = len(train["label"])
        budget = dpjax.PrivacyBudget(epsilon, 1 / (10 * n))
        for _ in range(seeds):
            for how, columns in zip(found, (kinds, outer, wide), strict=True):
                schema = {"label": label, "columns": columns}
                private = statistics.PrivateBounds.of(train, schema) if how == "private" else None
                data = (
                    dpjax.datasets.load(train, schema=schema) if private is None else private.data
                )
                make = functools.partial(dpjax.dp_trust_region, loss, data_size=n,
                                         dimension=data.dimension)  # fmt: skip
                algorithm = make(budget)
                if private is not None:
                    algorithm = private.configure(make, budget, epsilon / 10, n)
                    data = private.find(key=dpjax.random_key())
                solution = dpjax.run(algorithm, data, key=dpjax.random_key(), progress=False)
                said = solution.predict(test)
                found[how].append(np.mean(np.asarray(said) == test["label"]))
        count = sum("limits" in part for part in outer.values())
        print(f"{name}, {n:,} rows, epsilon {epsilon:g}, {count} of {len(kinds)} columns private, "
              f"mean of {seeds}: "
              + ", ".join(f"{how} {np.mean(each):.2%} (std {np.std(each):.2%})"
                          for how, each in found.items()))  # fmt: skip


if __name__ == "__main__":
    for name in sys.argv[1:] or ["look", "bounds"]:
        {"look": look, "bounds": bounds}[name]()
