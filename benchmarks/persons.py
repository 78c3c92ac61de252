"""What protecting a person costs, who has several records, and what the cap on them does.

Run ``python benchmarks/persons.py [--quick] [--json FILE]``, or with ``--cost`` for times alone.
Made records of persons who have 1 to 20 (3 on average), or 5 each; a logistic model whose effects
are known. DP-TR at epsilon 1 a person: by units (``--unit`` of the command line), and by single
records with noise for ten of one person. Gaps are each over the minimum of what was minimised,
without privacy, on the same capped table; means over 20 seeds. With the package causaldata (``pip
install causaldata``) the same for its 27,178 inspections of 1,618 restaurants: does one pass with
95 points or more? NOT PRIVATE.
"""

import argparse
import json
import time
from pathlib import Path

import jax
import numpy as np
from scipy import optimize, stats

import dpjax

EPSILON, DELTA, L2, CAP = 1.0, 1e-6, 1e-3, 10
FEATURES = 8
EFFECTS = np.linspace(-4, 4, FEATURES)


def panel(persons, sizes, seed=0):
    """Records of persons, with known effects; a person's records are alike."""
    rng = np.random.default_rng(seed)
    if sizes == "unequal":
        several = np.minimum(rng.geometric(1 / 3, persons), 20)
    else:
        several = np.full(persons, 5)
    who = np.repeat(np.arange(persons), several)
    x = rng.normal(size=(persons, FEATURES))[who] + rng.normal(size=(len(who), FEATURES))
    x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    likely = 1 / (1 + np.exp(-x @ EFFECTS))
    y = np.where(rng.random(len(who)) < likely, 1, -1).astype(np.float32)
    order = rng.permutation(len(who))
    return who[order], dpjax.datasets.Dataset(x[order], y[order], max_norm=1.0, name=sizes)


def inspections():
    """Inspections of restaurants, whose chains have up to 349 of them."""
    from causaldata import restaurant_inspections

    table = restaurant_inspections.load_pandas().data
    data = dpjax.datasets.load(
        {
            "year": table["Year"],
            "locations": np.log(table["NumberofLocations"]),
            "weekend": table["Weekend"].astype(float),
            "passed": (table["inspection_score"] >= 95).astype(int),
        },
        label="passed",
        bounds={"year": (2000, 2020), "locations": (0, 7), "weekend": (0, 1)},
        intercept=True,
    )
    return table["business_name"].to_numpy().astype(str), data


def minimum(x, y, weights):
    """Least objective without privacy, and where."""

    def value(w):
        margin = y * (x @ w)
        slope = -y * weights / (1 + np.exp(margin))
        return np.sum(weights * np.logaddexp(0, -margin)) + L2 / 2 * w @ w, x.T @ slope + L2 * w

    found = optimize.minimize(value, np.zeros(x.shape[1]), jac=True, method="BFGS", tol=1e-9)
    return value, found.x


def weights_of(present, reduction):
    """What each record counts in the objective, a mean over units."""
    each = present / np.maximum(present.sum(axis=1, keepdims=True), 1)
    return (each if reduction == "mean" else present * 1.0) / len(present)


def trained(algorithm, data, seeds):
    keys = jax.random.split(jax.random.key(1), seeds)
    return np.float64(jax.vmap(lambda key: dpjax.solve(algorithm, data, key=key).params)(keys))


def gap(name, cap, algorithm, data, rows, seeds):
    """One line of the table; ``rows`` are (x, y, weight of each)."""
    x, y, weights = (np.float64(part) for part in rows)
    value, best = minimum(x, y, weights)
    found = trained(algorithm, data, seeds)
    gaps = [value(w)[0] - value(best)[0] for w in found]
    known = EFFECTS if x.shape[1] == FEATURES else np.nan
    return {
        "protects": name,
        "cap": cap,
        "gap": float(np.mean(gaps)),
        "standard_error": float(np.std(gaps, ddof=1) / len(gaps) ** 0.5),
        "effects_error": float(np.mean(np.linalg.norm(found - known, axis=1))),
        "effects_error_without_privacy": float(np.linalg.norm(best - known)),
    }


def by_person(who, data, cap, reduction, seeds):
    units = dpjax.datasets.group(data, who, cap)
    objective = dpjax.objectives.logistic_l2(L2).of_units(reduction)
    clip = {} if reduction == "mean" else {"clip_norm": 1.0, "hessian_clip_norm": 0.25}
    algorithm = dpjax.dp_trust_region(
        objective,
        dpjax.PrivacyBudget(EPSILON, DELTA),
        data_size=units.size,
        dimension=units.dimension,
        **clip,
    )
    kept = units.present
    rows = units.x[kept], units.y[kept], weights_of(kept, reduction)[kept]
    return gap(f"person, {reduction}", cap, algorithm, units, rows, seeds)


def by_record(who, data, cap, seeds):
    """Records protected one by one, by the noise that hides ``cap`` of them together."""
    units = dpjax.datasets.group(data, who, cap)
    kept = dpjax.datasets.Dataset(units.x[units.present], units.y[units.present], max_norm=1.0)
    algorithm = dpjax.dp_trust_region(
        dpjax.objectives.logistic_l2(L2),
        dpjax.PrivacyBudget(epsilon_of(mu_of(EPSILON) / cap), DELTA),
        data_size=kept.size,
        dimension=kept.dimension,
    )
    rows = kept.x, kept.y, np.full(kept.size, 1 / kept.size)
    return gap(f"record, noise x {cap}", cap, algorithm, kept, rows, seeds)


def delta_of(epsilon, mu):
    cdf = stats.norm.cdf
    return cdf(-epsilon / mu + mu / 2) - np.exp(epsilon) * cdf(-epsilon / mu - mu / 2)


def mu_of(epsilon):
    """The mu of Gaussian differential privacy that is (epsilon, DELTA)."""
    return optimize.brentq(lambda mu: delta_of(epsilon, mu) - DELTA, 1e-3, 10)


def epsilon_of(mu):
    return optimize.brentq(lambda epsilon: delta_of(epsilon, mu) - DELTA, 1e-6, 100)


def seconds_per_pass(objective, data, n, features):
    """Of DP-TR: the difference between runs of 14 and of 2 steps, each the least of four."""
    least = {}
    for steps in (2, 14):
        algorithm = dpjax.dp_trust_region(
            objective,
            dpjax.PrivacyBudget(EPSILON, 1e-9),
            data_size=n,
            dimension=features,
            steps=steps,
        )
        times = []
        for _ in range(4):
            begin = time.perf_counter()
            np.asarray(dpjax.solve(algorithm, data, seed=0).params)
            times.append(time.perf_counter() - begin)
        least[steps] = min(times)
    return (least[14] - least[2]) / 12


def cost(records=580_000, features=54):
    """A pass over persons beside one over the same records, each of nobody."""
    x = np.random.default_rng(0).normal(size=(records, features)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y, objective = np.sign(x[:, 0]), dpjax.objectives.logistic()
    alone = seconds_per_pass(objective, (x, y), records, features)
    print(f"records alone: {1e3 * alone:.0f} ms a pass")
    for most in (3, 5, 10, 20):
        n = records // most
        rows = x[: n * most].reshape(n, most, features), y[: n * most].reshape(n, most)
        grouped = (rows, np.ones((n, most), bool))
        took = seconds_per_pass(objective.of_units(), grouped, n, features)
        ratio = took / alone * records / (n * most)
        print(f"{most:2} a person: {1e3 * took:.0f} ms, {ratio:.2f} times as long", flush=True)


def main():
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--quick", action="store_true", help="a tenth of the persons, 5 seeds")
    words.add_argument("--json", metavar="FILE", help="write the figures")
    words.add_argument("--cost", action="store_true", help="times of a pass alone")
    arguments = words.parse_args()
    if arguments.cost:
        cost()
        return
    persons, seeds = (2_000, 5) if arguments.quick else (20_000, 20)
    tables = {sizes: panel(persons, sizes) for sizes in ("unequal", "five each")}
    try:
        tables["restaurants"] = inspections()
    except ImportError:
        print("causaldata is not installed: its panel is left out.")
    found = []
    for sizes, (who, data) in tables.items():
        units = len(np.unique(who))
        print(f"\n{sizes}: {units:,} units, {data.size:,} records, epsilon {EPSILON:g} a unit")
        print(
            f"{'protected':22} {'cap':>4} {'gap':>18} {'error of effects':>18} {'not private':>12}"
        )
        caps, cap = ((1, 5), 5) if sizes == "five each" else ((1, 3, 5, CAP, 20), CAP)
        every = [by_person(who, data, most, "mean", seeds) for most in caps]
        every.append(by_person(who, data, cap, "sum", seeds))
        every.append(by_record(who, data, cap, seeds))
        for one in every:
            print(
                f"{one['protects']:22} {one['cap']:4} {one['gap']:10.5f} +- "
                f"{one['standard_error']:.5f} {one['effects_error']:16.3f} "
                f"{one['effects_error_without_privacy']:12.3f}",
                flush=True,
            )
            found.append({"sizes": sizes, **one})
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
