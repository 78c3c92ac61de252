"""``dpjax compare``: algorithms side by side on a table of your own, by exact values."""

import csv
import dataclasses
import functools
import json
import math
import sys

import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.cli import main
from dpjax.comparison import Comparison, runner
from dpjax.comparison.results import Results, Row

# Options, and words of the message.
BAD = {
    "--algorithms dp-trr": "dp-trr dp-tr", "--algorithms dp-accmd": "domain",
    "--epsilons one": "--epsilons one", "--epsilons -1": "epsilon -1", "--seeds 0": "seeds 0",
    "--objective none": "none logistic",
}  # fmt: skip


@pytest.mark.parametrize(("words", "names"), BAD.items(), ids=BAD)
def test_bad_requests_name_what_there_is(words, names, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *words.split()]) == 2
    message = capsys.readouterr().err
    assert all(name in message for name in names.split()), message
    assert not list(tmp_path.iterdir())


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_algorithms_are_compared_on_a_table_in_one_line(tmp_path, monkeypatch, capsys, pictures):
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    lines = [f"{a:.3f},{b:.3f},{'yes' if a > b else 'no'}" for a, b in random.random((200, 2))]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,sick", *lines]) + "\n")
    (tmp_path / "b.json").write_text('{"a": [0, 1], "b": [0, 1]}')
    words = """compare --data t.csv --label sick --classes no,yes --bounds b.json --delta 1e-3
        --objective logistic --algorithms dp-gd,dp-tr --epsilons 1,4 --seeds 2 --out made"""
    assert main([*words.split(), "--json", "c.json"]) == 0
    printed = capsys.readouterr()
    assert "NOT PRIVATE" in printed.err and "a release" in printed.err
    assert "NOT PRIVATE: exact values" in printed.out and "accepted labels" in printed.out
    content = json.loads((tmp_path / "c.json").read_text())
    assert content["releasable"] is False and len(content["exact_results"]) == 2 * 2 * 3
    one, rows = content["exact_results"][0], read("made/compare.csv")
    assert (one["algorithm"], one["metric"]) == ("dp-gd", "exact_gap")
    own = [r for r in rows if (r["method"], r["epsilon"]) == ("dp-gd", "1")]
    gaps = [float(r["value"]) for r in own if r["metric"] == "exact_gap"]
    assert len(gaps) == 2 and min(gaps) >= 0 and one["mean"] == pytest.approx(np.mean(gaps))
    (spent,) = (float(r["value"]) for r in own if r["metric"] == "epsilon_of_the_noise")
    assert 0.99 < spent <= 1
    text = (tmp_path / "made/compare.md").read_text()
    assert "NOT PRIVATE" in text.splitlines()[0] and "untuned" in text and "one row" in text
    picture = pictures["compare"]
    assert "NOT PRIVATE" in picture._suptitle.get_text()
    assert [axes.get_xlabel() for axes in picture.axes] == ["epsilon"] * 3
    assert (tmp_path / "made/compare.png").read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def trainings(monkeypatch):
    """Counts the programs that train and stops one as Ctrl-C does; outputs are made up."""

    def counted(algorithm, examples, keys):
        counted.calls += 1
        if counted.calls == counted.stop_at:
            raise KeyboardInterrupt
        return 0.01 * counted.calls * np.ones((len(keys), algorithm.dimension), np.float32)

    counted.calls, counted.stop_at = 0, None
    monkeypatch.setattr(runner, "_train", counted)
    return counted


def records(seed=0):
    random = np.random.default_rng(seed)
    x = random.normal(size=(100, 2)).astype(np.float32)
    return dpjax.Dataset(x / 9, np.where(x[:, 0] > 0, 1.0, -1.0).astype(np.float32), name="made")


def compared(data=None, objective="logistic", seeds=2, **more):
    methods = {"one": functools.partial(dpjax.dp_gradient_descent, steps=3), "two": dpjax.dp_adam}
    return Comparison(data or records(), objective, methods, [1.0], delta=1e-3, seeds=seeds, **more)


@pytest.mark.ci
def test_an_interrupted_comparison_goes_on_where_it_was(tmp_path, trainings):
    trainings.stop_at = 2
    with pytest.raises(KeyboardInterrupt):
        compared().run(tmp_path)
    trainings.stop_at = None
    results = compared().run(tmp_path)
    assert trainings.calls == 3 and results.methods == ("one", "two")
    assert {row.settings for row in results.rows if row.method == "one"} == {"steps 3"}
    assert results.mean("exact_gap", method="one") != results.mean("exact_gap", method="two")
    assert compared().run(tmp_path).summary() == results.summary() and trainings.calls == 3
    # Whatever decides a result trains anew, and so does a torn file.
    changes = {"data": records(1)}, {"objective": "logistic-l2"}, {"relation": "replace_one"}
    for number, change in enumerate([*changes, {"seeds": 3}]):
        compared(**change).run(tmp_path)
        assert trainings.calls == 5 + 2 * number, change
    for file in (tmp_path / "cache").iterdir():
        file.write_text(file.read_text()[:20])
    compared().run(tmp_path)
    assert trainings.calls == 13


@pytest.mark.ci
def test_what_is_compared_is_what_solve_returns():
    comparison = compared(seeds=1)
    algorithm = comparison.algorithms["one", 1.0]
    key = runner.jax.random.split(runner.jax.random.key(2020), 1)[0]
    data = records()
    solution = dpjax.solve(algorithm, data.examples, key=key)
    value = dpjax.diagnostics.exact_objective(
        comparison.objective, solution.params, (jnp.asarray(data.x), jnp.asarray(data.y))
    )
    results = comparison.run()
    (gap,) = results.values("exact_gap", method="one")
    assert gap + results.values("exact_optimum")[0] == pytest.approx(float(value), rel=1e-5)


def test_an_objective_of_your_own_needs_no_margin(trainings):
    squares = dpjax.Objective(lambda w, example: jnp.sum((w - example[0]) ** 2), name="mean")
    make = functools.partial(dpjax.dp_gradient_descent, steps=2, clip_norm=1.0, step_size=0.1)
    results = Comparison(records(), squares, {"mine": make}, [1.0, 2.0], seeds=1).run()
    assert results.exact_metrics == ("exact_value", "exact_gradient_norm")
    assert np.isnan(results.error("exact_value", epsilon=1.0))


def test_records_in_units_are_refused():
    grouped = dataclasses.replace(records(), present=np.ones((100, 2), bool), unit="person")
    with pytest.raises(ValueError, match="load the table without a unit"):
        compared(grouped)


def made_up():
    cells = (("dp-gd", 0), ("a & b_1", 1))
    return Results(
        Row("compare", "50 % of_rows", 9, 2, method, "", epsilon, seed, math.nan, metric, value)
        for method, more in cells
        for epsilon in (0.5, 1.0)
        for seed in range(2)
        for metric, value in (("exact_gap", more + seed / 2), ("exact_accuracy", 0.75))
    )


def test_results_as_latex():
    gaps, accuracies, rest = made_up().to_latex().split("\\end{table}\n")
    assert not rest and r"Exact accuracy on 50 \% of\_rows (NOT PRIVATE)" in accuracies
    assert gaps.splitlines()[4:7] == [
        r" & epsilon 0.5 & epsilon 1 \\ \hline",
        r"dp-gd & 0.25 (0.25) & 0.25 (0.25) \\",
        r"a \& b\_1 & 1.25 (0.25) & 1.25 (0.25) \\",
    ]
    assert r"dp-gd & 75.0 \% & 75.0 \% \\" in accuracies


def test_results_as_a_data_frame(monkeypatch):
    pandas = pytest.importorskip("pandas")
    results = made_up()
    frame = results.to_pandas()
    assert list(frame.columns) == list(Row._fields) and len(frame) == len(results.rows)
    means = frame[frame.metric == "exact_gap"].groupby("method").value.mean()
    assert means["dp-gd"] == results.mean("exact_gap", method="dp-gd") == 0.25
    assert frame.step.isna().all() and frame.dtypes["value"] == "float64"
    monkeypatch.setitem(sys.modules, pandas.__name__, None)
    with pytest.raises(ImportError, match=r"to_pandas.* needs pandas: python -m pip install"):
        results.to_pandas()
