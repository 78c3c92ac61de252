"""A first look: its bins, what a record adds, what is read off noisy counts, and what it spends."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax import auditing, statistics
from dpjax.algorithms.histogram import histograms
from dpjax.auditing import scenarios
from dpjax.cli.main import main
from dpjax.datasets.encoders import Numeric
from dpjax.oracles.counts import BinsLoss, HistogramQuery
from dpjax.statistics.bins import bins_of, project, summarize

SCHEMA = {
    "label": {"column": "ill", "classes": ["no", "yes"]},
    "columns": {
        "age": {"bounds": [0, 120], "missing": 40},
        "income": {"bounds": [0, 1e6]},
        "sex": {"levels": ["F", "M"]},
        "since": {"bounds": ["2015-01-01", "2025-01-01"]},
    },
}
N = 600
ADDED = dpjax.PrivacyBudget(1.0, 1e-5, "add_or_remove_one")


def table(n=N):
    rng = np.random.default_rng(3)
    age, income = rng.uniform(20, 80, n), rng.lognormal(9, 1, n)
    age[: n // 10] = np.nan
    sex = rng.choice(["F", "M", "?"], n, p=[0.5, 0.4, 0.1])
    days = np.datetime64("2016-01-01") + rng.integers(0, 3000, n).astype("timedelta64[D]")
    ill = rng.choice(["no", "yes"], n)
    return {"age": age, "income": income, "sex": sex, "since": days, "ill": ill}


@pytest.mark.parametrize(
    ("low", "high", "most"),
    [
        (0, 10, 5),
        (0, 1e6, 20),
        (-1e4, 1e5, 20),
        (-1e5, 0, 7),
        (1, 1e3, 1),
        (-5, -1, 3),
        (-9e3, 1, 2),
    ],
)
def test_bins_cover_the_declared_range_in_order(low, high, most):
    bins = bins_of(Numeric("x", low, high), most)
    edges = np.array(bins.edges)
    assert len(edges) == most + 1 and (np.diff(edges) > 0).all()
    np.testing.assert_allclose(edges[[0, -1]], [low, high])
    centers = bins.centers
    assert ((edges[:-1] <= centers) & (centers <= edges[1:])).all()
    cells = np.array([low - 1.0, high + 1.0, np.nan, np.inf, centers[0]])
    assert bins.place(cells).tolist() == [1, most, 0, 0, 1]


def test_small_examples_by_hand():
    assert bins_of(Numeric("age", 0, 120), 4).edges == (0.0, 30.0, 60.0, 90.0, 120.0)
    # Of wide bounds geometric.
    edges = bins_of(Numeric("income", 0, 1e6), 4).edges
    assert [round(edge, 3) for edge in edges] == [0.0, 1.0, 100.0, 1e4, 1e6]
    counts = np.array([0.0, 100, 300, 100, 0])
    found = summarize(bins_of(Numeric("age", 0, 100), 4), counts, 1.0, 500.0)
    assert round(found.mean.value, 1) == 37.5
    # A 1 for the bin in each column, then a further number as it is.
    record = jnp.array([1.0, 0.0, 0.5]), 0.0
    assert jax.grad(BinsLoss((3, 2)))(jnp.zeros(6), record).tolist() == [0, 1, 0, 1, 0, 0.5]


def test_a_look_with_hardly_any_noise_says_what_numpy_says():
    held = table()
    look = statistics.describe(
        held, schema=SCHEMA, epsilon=1e5, key=dpjax.random_key(), correlation=("age", "income")
    )
    of = {each.bins.name: each for each in look.columns}
    # Of a missing age training takes the declared number; a sex that is not declared is dropped.
    assert look.records.value == pytest.approx((held["sex"] != "?").sum(), abs=2.5)
    assert of["age"].missing.value == pytest.approx(0.1, abs=5e-3)
    assert of["sex"].levels["F"].value == pytest.approx((held["sex"] == "F").sum(), abs=2.5)
    assert of["ill"].levels["yes"].value == pytest.approx((held["ill"] == "yes").sum(), abs=2.5)
    assert of["age"].mean.value == pytest.approx(np.nanmean(held["age"]), abs=1)
    for name in ("age", "income"):
        edges = np.array(of[name].bins.edges)
        for level, found in of[name].quantiles.items():
            exact = np.nanquantile(held[name], level)
            places = np.searchsorted(edges, [exact, found.value])
            assert abs(places[0] - places[1]) <= 1 and found.lower <= exact <= found.upper
    assert abs(look.correlation["age, income"].value) < 0.2
    assert "2019" in repr(look) or "2020" in repr(look)
    assert look.to_json()["columns"][0]["bins"]["name"] == "age"


def test_persons_count_once_whatever_their_records():
    held = table() | {"who": np.r_[np.zeros(300, int), np.arange(1, 301)]}
    schema = SCHEMA | {"unit": {"column": "who", "max_records": 4}}
    look = statistics.describe(held, schema=schema, epsilon=1e5, key=dpjax.random_key())
    counted = (held["sex"] != "?")[np.r_[:4, 300:600]]
    assert look.records.value == pytest.approx(counted.sum(), abs=5)
    assert look.persons.value == pytest.approx(counted[4:].sum() + counted[:4].any(), abs=3)
    assert sum(look.columns[0].counts) == pytest.approx(301)


@pytest.mark.parametrize("relation", ["zero_out", "add_or_remove_one", "replace_one"])
@pytest.mark.parametrize("grouped", [False, True])
def test_one_record_or_person_moves_the_sums_by_the_sensitivity_at_most(relation, grouped):
    rng = np.random.default_rng(0)
    budget = dpjax.PrivacyBudget(1.0, 1e-5, relation)
    sizes, n, k = (5, 3, 2), 8, 3
    algorithm = histograms(sizes, budget, n, (1.0,), grouped)
    (query,) = algorithm.queries
    moved, params = [], jnp.zeros(algorithm.dimension)

    def answer(x):
        examples = (jnp.asarray(x), jnp.zeros(x.shape[:-1]))
        if grouped:
            examples = (examples, jnp.ones(x.shape[:2], bool))
        (total,) = query.exact(examples, params)
        return np.asarray(total.leading, np.float64)

    for _ in range(20):
        shape = (n, k) if grouped else (n,)
        x = np.stack([*(rng.integers(0, size, shape) for size in sizes), rng.random(shape)], -1)
        x = x.astype(np.float32)
        # Whatever a record holds, clipping bounds it.
        x[0, ..., -1] = 1e6
        other = x.copy()
        other[0] = rng.integers(0, 2, other[0].shape) if relation == "replace_one" else -1
        other[0, ..., -1] = 0
        moved.append(np.linalg.norm(answer(x) - answer(other)))
    assert max(moved) <= float(query.sensitivity) * n * (1 + 1e-5)
    least = 0.5 if relation == "replace_one" else 0.99
    assert max(moved) >= least * float(query.sensitivity) * n


@pytest.mark.parametrize("max_records", [1, 4])
def test_the_audit_stands_and_refutes_a_planted_bug(max_records, monkeypatch, request):
    how = {"name": "histogram", "gates": (4_000, 0.5), "key": jax.random.key(1)}
    assert auditing.registry.attack(scenarios.histogram(max_records), **how).passed
    # The sum is clipped at the norm of all columns, and the noise is of one.
    clipped = HistogramQuery.bound
    request.addfinalizer(jax.clear_caches)
    jax.clear_caches()
    monkeypatch.setattr(HistogramQuery, "bound", lambda *a, **k: clipped(*a, **k) / 3**0.5)
    assert auditing.registry.attack(scenarios.histogram(max_records), **how).refuted


def test_counts_are_projected_and_ranges_hold_what_there_is_without_noise():
    rng = np.random.default_rng(1)
    bins = bins_of(Numeric("x", 0, 10), 10)
    true = np.array([50, 0, 0, 100, 400, 300, 100, 40, 10, 0, 0.0])
    exact, held = summarize(bins, true, 1e-9, 1000.0), []
    for _ in range(100):
        noisy = true + 15 * rng.standard_normal(len(true))
        counts = project(noisy, 1000.0)
        assert (counts >= 0).all() and counts.sum() == pytest.approx(1000)
        found = summarize(bins, noisy, 15.0, 1000.0)
        held.append([e.lower <= t.value <= e.upper for e, t in (
            (found.mean, exact.mean), (found.missing, exact.missing),
            *((found.quantiles[q], exact.quantiles[q]) for q in found.quantiles))])  # fmt: skip
    # Of 100 runs at 95 %, fewer than 85 have probability 1e-4.
    assert (np.sum(held, axis=0) >= 85).all()


def test_it_is_booked_before_it_reads_and_the_guarantee_is_its_own(tmp_path):
    book = tmp_path / "book"
    dpjax.Ledger.create(book, dpjax.PrivacyBudget(0.25, 1e-4)).close()
    look = statistics.describe(
        table(), schema=SCHEMA, key=dpjax.random_key(), ledger=book,
        budget=dpjax.PrivacyBudget(0.2, 1e-5),
    )  # fmt: skip
    assert "0.2, 1e-05)-differentially private" in str(look.solution.guarantee())
    assert "histogram" in str(look.solution.guarantee())
    with pytest.raises(ValueError, match="budget"):
        statistics.describe(table(), schema=SCHEMA, key=dpjax.random_key(), ledger=book,
            budget=dpjax.PrivacyBudget(0.2, 1e-5))  # fmt: skip
    assert len(dpjax.Ledger.read(book).entries) == 1


def test_bins_depend_on_declarations_alone():
    held, other = table(), table(20)
    plans = [statistics.plan(each, 0.1, schema=SCHEMA, data_size=N) for each in (held, other)]
    assert plans[0].bins == plans[1].bins
    assert dataclasses.asdict(plans[0].algorithm.event.releases[0]) == dataclasses.asdict(
        plans[1].algorithm.event.releases[0]
    )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"schema": SCHEMA, "correlation": ("sex", "age")}, "column of numbers"),
        ({"schema": SCHEMA, "bins": 0}, "bins"),
        ({"label": "ill", "classes": ("no", "yes")}, "bounds"),
        ({"schema": SCHEMA | {"unit": {"column": "who", "max_records": 2}}}, "who"),
        ({"schema": SCHEMA, "budget": ADDED}, "n is private: declare data_size"),
    ],
)
def test_a_wrong_request_says_what_to_do(settings, words):
    with pytest.raises(ValueError, match=words):
        statistics.describe(table(), key=dpjax.random_key(), **settings)


def csv_of(held, path):
    rows = zip(*held.values(), strict=True)
    path.write_text("\n".join([",".join(held), *(",".join(map(str, row)) for row in rows)]))
    return str(path)


TOML = """
[label]
column = "ill"
classes = ["no", "yes"]
[columns.age]
bounds = [0, 120]
missing = 40
[columns.income]
bounds = [0, 1e6]
[columns.sex]
levels = ["F", "M"]
[columns.since]
bounds = ["2015-01-01", "2025-01-01"]
"""


def test_the_command_prints_what_python_returns_and_books_it(tmp_path, capsys):
    held, schema, book = csv_of(table(), tmp_path / "t.csv"), tmp_path / "s.toml", tmp_path / "b"
    schema.write_text(TOML)
    dpjax.Ledger.create(book, dpjax.PrivacyBudget(1.0, 1e-3)).close()
    words = ["describe", held, "--schema", str(schema), "--epsilon", "0.5", "--ledger", str(book)]
    assert main([*words, "--dry-run"]) == 0
    assert "nothing was spent" in capsys.readouterr().out
    page, content = tmp_path / "look.html", tmp_path / "look.json"
    how = ["--report", str(page), "--json", str(content), "--correlation", "age,income"]
    assert main([*words, *how]) == 0
    said = capsys.readouterr().out
    assert "records that count" in said and "-differentially private" in said
    assert "sex = F" in said and "correlation of age, income" in said
    read = json.loads(content.read_text())
    assert [column["bins"]["name"] for column in read["columns"]] == [
        "age", "income", "sex", "since", "ill",
    ]  # fmt: skip
    text = page.read_text()
    assert text.count("<svg") == 5 and "-differentially private" in text
    assert len(dpjax.Ledger.read(book).entries) == 1
    assert main([*words[:-2], "--unit", "who"]) == 2
    assert "schema" in capsys.readouterr().err


def test_a_range_of_a_correlation_holds_that_of_independent_columns():
    rng, held, n = np.random.default_rng(0), [], 5_000
    schema = {"label": {"column": "y", "classes": [0, 1]},
        "columns": {"a": {"bounds": [0, 10]}, "b": {"bounds": [0, 10]}}}  # fmt: skip
    # Far from the middle, so that noise on the means matters.
    columns = {"a": rng.normal(8, 1, n), "b": rng.normal(8.5, 1, n), "y": rng.integers(0, 2, n)}
    planned = statistics.plan(columns, 0.5, schema=schema, correlation=("a", "b"))
    for _ in range(40):
        found = planned.run(dpjax.random_key()).correlation["a, b"]
        held.append(found.lower <= 0 <= found.upper)
    # At 95 %, fewer than 31 of 40 have probability 1e-4.
    assert sum(held) >= 31
