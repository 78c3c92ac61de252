"""Coverage and width of the intervals that ``dpjax run --inference`` prints.

Run ``python benchmarks/coverage.py`` for all settings, or with a word of their names for some, and
``--runs 200`` for fewer. In each run data and noise are new: columns as a schema declares them
(uniform, binary, two collinear, a lognormal and an exponential one, two without any effect), of
records, or of persons of 1 to 8 records with an intercept of their own. They pass through
``Preprocessing.encode``, the algorithm that the command line makes, and the printed coefficients.
The population's coefficients are those of 4 million records, or of 400,000 persons, without
privacy. "Given" is the share of runs with intervals; coverage and widths are of those, and widths
are over those of the sandwich without privacy.

``null`` is a table in which nothing has an effect: a cost that is independent of everything, and a
lognormal column with wide bounds.

``--one-release`` compares least squares with one release of (X'X, X'y) at the same budget, by the
covariance of its noise at the best weights: here, and for labels that fill their bounds.
"""

import argparse
import dataclasses
import sys
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np

import dpjax
from dpjax.cli import problem
from dpjax.cli import run as command
from dpjax.cli.main import parser as parser_of
from dpjax.datasets import Schema
from dpjax.datasets.units import group

RUNS = 1_000
LARGE = 4_000_000
NAMES = ("age", "dose", "smoker", "weight", "height", "income", "wait", "noise", "coin")
BOUNDS = ((20, 80), (0, 5), (0, 1), (40, 120), (140, 200), (0, 6), (0, 6), (0, 1), (0, 1))
EFFECTS = np.array([0.03, -0.25, 1.0, 0.02, -0.02, 0.25, -0.2, 0, 0])
PERSONS = 8


def columns(rng, n):
    """Cells of the nine columns, (n, 9)."""
    shared = rng.random(n)
    return np.stack(
        [
            20 + 60 * rng.random(n),
            5 * rng.random(n),
            rng.random(n) < 0.3,
            40 + 80 * shared,
            140 + 60 * (0.7 * shared + 0.3 * rng.random(n)),
            np.exp(0.5 * rng.standard_normal(n)),
            rng.exponential(1.0, n),
            rng.random(n),
            rng.random(n) < 0.5,
        ],
        axis=1,
    )


def labels(rng, cells, kind, own):
    """Classes 0 and 1, or a cost of 0 to 200 with an error of standard deviation 15 or more."""
    score = (cells - np.mean(BOUNDS, axis=1)) @ EFFECTS + 0.3
    if kind == "logistic":
        return (rng.random(len(score)) < 1 / (1 + np.exp(-score - 0.5 * own))).astype(float)
    noise = 15 * rng.standard_normal(len(score)) + 10 * own
    return 100 + 12 * score + noise


def declared(kind, persons):
    schema = {
        "label": {"column": "y", **({"classes": [0, 1]} if kind == "logistic" else {})},
        "columns": {
            name: {"bounds": [float(end) for end in ends]}
            for name, ends in zip(NAMES, BOUNDS, strict=True)
        },
    }
    if kind == "squares":
        schema["label"]["bounds"] = [0.0, 200.0]
    if persons:
        schema["unit"] = {"column": "id", "max_records": PERSONS}
    return schema


def null_columns(rng, n):
    return np.stack([20 + 60 * rng.random(n), rng.lognormal(0, 1, n), rng.random(n) < 0.4], axis=1)


NULL = {
    "label": {"column": "y", "bounds": [0.0, 100.0]},
    "columns": {
        "age": {"bounds": [0.0, 120.0]},
        "income": {"bounds": [0.0, 50.0]},
        "smoker": {"bounds": [0.0, 1.0]},
    },
}


def toml(schema):
    lines = []
    for section, held in schema.items():
        tables = held.items() if section == "columns" else [(None, held)]
        for name, entries in tables:
            lines.append(f"[{section}{'' if name is None else '.' + name}]")
            for key, value in entries.items():
                lines.append(f"{key} = {value!r}".replace("'", '"'))
    return "\n".join(lines)


class Table:
    """A setting: how records are drawn, encoded, and trained on as the command line does."""

    def __init__(self, kind, n, epsilon, persons=False, null=False):
        self.kind, self.n, self.persons, self.null = kind, n, persons, null
        schema = NULL if null else declared(kind, persons)
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write(toml(schema))
            file.flush()
            words = ["run", "--data", "t.csv", "--schema", file.name, "--inference"]
            arguments = parser_of().parse_args([*words, "--epsilon", str(epsilon)])
            command._infer(arguments)
            objective = problem.objective(arguments, n)
            self.scale = Schema.read(schema).for_inference().preprocessing
            dimension = objective.parameters(len(self.scale.features))
            setting = problem.configure(arguments, objective, n, dimension)
        self.algorithm, self.objective = setting.algorithm, objective

    def draw(self, rng, n):
        """A data set of n records or persons."""
        owner = None
        if self.persons:
            owner = np.repeat(np.arange(n), rng.integers(1, PERSONS + 1, n))
        size = n if owner is None else len(owner)
        own = np.zeros(size) if owner is None else rng.standard_normal(n)[owner]
        if self.null:
            cells, y = null_columns(rng, size), np.clip(10 + rng.exponential(8, size), 0, 100)
        else:
            cells = columns(rng, size)
            y = labels(rng, cells, self.kind, own)
        x = self.scale.encode([cells])
        if self.scale.label_bounds is None:
            y = 2 * y - 1
        else:
            low, high = self.scale.label_bounds
            y = 2 * (np.clip(y, low, high) - low) / (high - low) - 1
        data = dpjax.Dataset(x, np.float32(y), preprocessing=self.scale, max_norm=1.0)
        return data if owner is None else group(data, owner, PERSONS)

    def named(self, params, covariance):
        """Coefficients and standard errors in the units of the columns."""
        nothing = np.zeros_like(covariance)
        bars = dpjax.algorithms.PopulationBars(params, covariance, nothing, 9.0, 0.0, True)
        found = dpjax.results.coefficients.coefficients(
            params, self.scale, bars, numeric=self.scale.label_bounds is not None
        )
        return found.values, found.errors

    def exact(self, data):
        """Minimum without privacy or penalty, and its sandwich, by float64 Newton steps."""
        (x, y), present = (data.x, data.y), data.present
        x, y = np.float64(x), np.float64(y)
        if present is None:
            x, y, present = x[:, None], y[:, None], np.ones((len(x), 1), bool)
        weight = present / present.sum(axis=1, keepdims=True)
        w = np.zeros(x.shape[-1])
        for _ in range(1 if self.kind == "squares" else 12):
            slope, curve = self._derivatives(x @ w, y)
            gradients = np.einsum("nk,nkp->np", slope * weight, x)
            flat = x.reshape(-1, x.shape[-1])
            hessian = (flat * (curve * weight).reshape(-1, 1)).T @ flat / len(x)
            w = w - np.linalg.solve(hessian, gradients.mean(axis=0))
        slope, _ = self._derivatives(x @ w, y)
        gradients = np.einsum("nk,nkp->np", slope * weight, x)
        inverse = np.linalg.inv(hessian)
        return w, inverse @ (gradients.T @ gradients) @ inverse / len(x) ** 2

    def _derivatives(self, score, y):
        if self.kind == "squares":
            return score - y, np.ones_like(score)
        share = 1 / (1 + np.exp(-np.float64(score) * y))
        return -y * (1 - share), share * (1 - share)


def population(table):
    """Coefficients of a very large sample, in parts; also their standard errors."""
    size = LARGE // 10 if table.persons else LARGE // 4
    parts = [table.exact(table.draw(np.random.default_rng([7, i]), size))[0] for i in range(4)]
    w = np.mean(parts, axis=0)
    return table.named(w, np.eye(len(w)))[0]


def measure(name, kind, n, epsilon, runs, chunk=8, persons=False, null=False):
    begin = time.perf_counter()
    table = Table(kind, n, epsilon, persons, null)
    truth = population(table)

    @jax.jit
    def solve_all(keys, some):
        return jax.vmap(lambda key, data: dpjax.solve(table.algorithm, data, key=key))(keys, some)

    rng = np.random.default_rng([1, n, persons, null])
    errors, widths, given, reasons = [], [], [], {}
    for start in range(0, runs, chunk):
        drawn = [table.draw(rng, n) for _ in range(chunk)]
        some = jax.tree.map(lambda *leaves: jnp.stack(leaves), *drawn)
        keys = jax.random.split(jax.random.key(start), chunk)
        solutions = jax.device_get(solve_all(keys, some))
        for i, data in enumerate(drawn):
            solution = jax.tree.map(lambda leaf, i=i: leaf[i], solutions)
            bars = solution.error_bars
            found = dpjax.results.coefficients.coefficients(
                np.asarray(solution.params),
                table.scale,
                bars,
                numeric=table.scale.label_bounds is not None,
            )
            given.append(found.refusal is None)
            if found.refusal is not None:
                reasons[found.refusal[:40]] = reasons.get(found.refusal[:40], 0) + 1
                continue
            errors.append((found.lower <= truth) & (truth <= found.upper))
            widths.append(found.errors / table.named(*table.exact(data))[1])
    seconds = time.perf_counter() - begin
    print(f"\n{name}: n = {n:,}, epsilon {epsilon:g}, {runs} runs, {seconds:.0f} s")
    print(f"  given {np.mean(given):.3f} {reasons or ''}")
    if errors:
        by_column, wide = np.mean(errors, axis=0), np.median(widths, axis=0)
        print(f"  coverage pooled {by_column.mean():.4f}, by column", *by_column.round(3))
        print(f"  median width over the sandwich's {wide.max():.2f} at most:", *wide.round(2))
    sys.stdout.flush()


def one_release(n, epsilon, filled):
    """Noise and whole width of intervals by one release of (X'X, X'y), over those by Newton's step.

    A record moves (X'X, r X'y) by (1 + r^2)^(1/2) at most. Off the minimum w the noise E of X'X and
    z of X'y move it by (X'X)^-1 (z - E w). Of mu^2 both leave 13 % to the covariance of gradients.
    """
    table = Table("squares", n, epsilon)
    data = table.draw(np.random.default_rng(3), n)
    if filled:
        signs = np.random.default_rng(0).choice([-1, 1], n)
        data = dataclasses.replace(data, y=np.float32(signs))
    (w, sandwich), x = table.exact(data), np.float64(data.x)
    inverse, identity = np.linalg.inv(x.T @ x / n), np.eye(len(w))
    newton = np.float64(dpjax.solve(table.algorithm, data, seed=1).error_bars.noise_stddev) ** 2
    budget = dpjax.PrivacyBudget(epsilon, 1 / (10 * n))
    std = dpjax.accounting.gaussian_multiplier(budget, 1) / (n * np.sqrt(0.87))
    found = []
    for r in np.geomspace(0.05, 20, 60):
        of_both = (1 + r * r) * std**2
        moved = (w @ w) * identity + np.outer(w, w)
        found.append(inverse @ (of_both / r**2 * identity + of_both / 2 * moved) @ inverse)
    one, sampled = np.diag(min(found, key=np.trace)), np.diag(sandwich)
    print(f"one release: n = {n:,}, epsilon {epsilon:g}{', labels of -1 and 1' * filled}")
    print("  noise over Newton's", *np.sqrt(one / newton).round(2))
    print("  width over Newton's", *np.sqrt((sampled + one) / (sampled + newton)).round(2))


SETTINGS = {
    "rows-logistic-3": ("logistic", 20_000, 3.0),
    "rows-squares-3": ("squares", 20_000, 3.0),
    "rows-logistic-1": ("logistic", 60_000, 1.0),
    "rows-squares-1": ("squares", 60_000, 1.0),
    "rows-logistic-low": ("logistic", 20_000, 1.0),
    "persons-logistic-3": ("logistic", 20_000, 3.0),
    "persons-squares-3": ("squares", 20_000, 3.0),
    "persons-logistic-1": ("logistic", 60_000, 1.0),
    "persons-squares-1": ("squares", 60_000, 1.0),
    "null": ("squares", 20_000, 10.0),
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of the settings' names")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--chunk", type=int, default=8)
    parser.add_argument("--one-release", action="store_true")
    asked = parser.parse_args()
    if asked.one_release:
        for n, epsilon, filled in ((20_000, 3.0, 0), (60_000, 1.0, 0), (20_000, 3.0, 1)):
            one_release(n, epsilon, filled)
        sys.exit()
    for name, (kind, n, epsilon) in SETTINGS.items():
        if not asked.names or any(part in name for part in asked.names):
            persons, null = name.startswith("persons"), name == "null"
            runs = min(asked.runs, 200) if null else asked.runs
            measure(name, kind, n, epsilon, runs, asked.chunk, persons, null)
