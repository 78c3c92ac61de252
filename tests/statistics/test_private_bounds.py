"""Bounds that are found privately: what is declared, what is spent, and where it is booked."""

import functools

import numpy as np
import pytest

import dpjax
from dpjax import statistics
from dpjax.cli.main import main
from dpjax.datasets.encoders import Numeric
from dpjax.statistics.bins import bins_of
from dpjax.statistics.description import _ends

N = 4_000
SCHEMA = {
    "label": {"column": "y", "classes": [0, 1]},
    "columns": {
        "cost": {"bounds": "private", "limits": [0, 1e8], "missing": 0},
        "age": {"bounds": [0, 100]},
    },
}
BUDGET = dpjax.PrivacyBudget(2.0, 1e-5)


def table():
    rng = np.random.default_rng(0)
    cost = rng.lognormal(7, 0.5, N)
    return {"cost": cost, "age": rng.uniform(0, 100, N), "y": (cost > 1_100).astype(int)}


def maker(data):
    return functools.partial(
        dpjax.dp_gradient_descent,
        dpjax.objectives.logistic(),
        data_size=data.size,
        dimension=data.dimension,
        steps=4,
    )


def test_both_releases_are_one_event_within_the_budget_and_one_line_of_a_ledger(tmp_path):
    book = tmp_path / "book"
    dpjax.Ledger.create(book, dpjax.PrivacyBudget(2.5, 1e-4)).close()
    private = statistics.PrivateBounds.of(table(), SCHEMA)
    algorithm = private.configure(maker(private.data), BUDGET, 0.3, N)
    assert [each.name for each in algorithm.event.releases] == ["histogram", "gradient"]
    assert 1.9 < algorithm.epsilon() <= BUDGET.epsilon
    data = private.find(key=dpjax.random_key(), ledger=book)
    assert len(dpjax.Ledger.read(book).entries) == 1
    assert dpjax.Ledger.read(book).remaining < 0.5
    cost, age = data.preprocessing.encoders
    exact = np.quantile(table()["cost"], [0.005, 0.995])
    # Within a factor of 2 of the quantiles, far inside of the limits.
    assert exact[0] / 2 < cost.low < cost.high < 2 * exact[1]
    assert cost.low == cost.missing and (age.low, age.high) == (0, 100)
    solution = dpjax.run(algorithm, data, key=dpjax.random_key(), progress=False)
    text = str(solution.guarantee())
    assert "DP-GD is (2," in text and "histogram: once" in text and "gradient: 4 times" in text
    dpjax.save(tmp_path / "model", solution)
    loaded = dpjax.load(tmp_path / "model")
    assert loaded.preprocessing.encoders[0] == cost
    assert len(loaded.event.releases) == 2


def test_bounds_are_never_narrower_than_a_bin_and_the_limits_where_noise_hides_all():
    bins = bins_of(Numeric("x", 0, 10), 10)
    one = np.eye(10)[3]
    assert _ends(bins, one, 0.01) == (3.0, 4.0)
    assert _ends(bins, one, 1.0) == (0.0, 10.0)
    shares = np.array([0.02, 0.004, 0.3, 0.3, 0.3, 0, 0.07, 0.003, 0.003, 0])
    assert _ends(bins, shares, 1e-9) == (0.0, 8.0)
    assert _ends(bins, shares, 0.005) == (0.0, 7.0)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"cost": {"bounds": "private"}}, "limits"),
        ({"cost": {"bounds": [0, 1], "limits": [0, 2]}}, "limits"),
        ({"cost": {"bounds": "private", "limits": [2, 1]}}, "low < high"),
        ({}, "PrivateBounds"),
    ],
)
def test_what_is_not_declared_is_refused(columns, words):
    schema = SCHEMA | {"columns": SCHEMA["columns"] | columns}
    with pytest.raises(ValueError, match=words):
        dpjax.datasets.load(table(), schema=schema)


def test_epsilon_of_the_bounds_is_a_part_of_the_budget():
    private = statistics.PrivateBounds.of(table(), SCHEMA)
    with pytest.raises(ValueError, match="epsilon of the bounds"):
        private.configure(maker(private.data), BUDGET, 2.0, N)
    # Else the event of the first training would hold another release of bounds than that of find.
    private.configure(maker(private.data), BUDGET, 0.2, N)
    with pytest.raises(ValueError, match="open the table anew"):
        private.configure(maker(private.data), BUDGET, 1.9, N)


def test_bounds_are_released_once_for_one_claim():
    private = statistics.PrivateBounds.of(table(), SCHEMA)
    with pytest.raises(ValueError, match="after configure"):
        private.find(key=dpjax.random_key())
    private.configure(maker(private.data), BUDGET, 0.2, N)
    private.find(key=dpjax.random_key())
    with pytest.raises(ValueError, match="open the table anew"):
        private.find(key=dpjax.random_key())


def test_the_command_finds_bounds_trains_and_says_both(tmp_path, capsys):
    held, path = table(), tmp_path / "t.csv"
    rows = zip(*held.values(), strict=True)
    path.write_text("\n".join([",".join(held), *(",".join(map(str, row)) for row in rows)]))
    (tmp_path / "s.toml").write_text(
        '[label]\ncolumn = "y"\nclasses = [0, 1]\n[columns."[a]*"]\nbounds = [0, 100]\n'
        '[columns."c*"]\nbounds = "private"\nlimits = [0, 1e8]\n'
    )
    words = ["run", "dp-gd", "--data", str(path), "--schema", str(tmp_path / "s.toml")]
    words += ["--steps", "3", "--save", str(tmp_path / "model")]
    assert main([*words, "--bounds-epsilon", "0.2"]) == 0
    assert "histogram: once" in capsys.readouterr().out
    cost = dpjax.load(tmp_path / "model").preprocessing.encoders[-1]
    assert cost.name == "cost" and cost.high < 1e5
    assert main([*words, "--checkpoint", str(tmp_path / "c")]) == 2
    assert "checkpoint" in capsys.readouterr().err
