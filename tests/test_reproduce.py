"""Reproductions: resumed from disk, written from the numbers alone, exact values that are exact."""

import csv
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.cli import main
from dpjax.reproduce import (
    exact,
    page,
    paper,
    perturbed,
    results,
    runs,
    trust_region,
    trust_region_page,
)
from dpjax.reproduce.cache import Cache
from dpjax.reproduce.study import Curve, Figure, Found, Problem

FEW = {("ijcnn1", "logistic-nonconvex"): {"steps": 3}}
GD, TR, STR = "DP-GD, published noise", "DP-TR, published noise", trust_region.CURVES[4].label
PROBLEM = Problem("made", "logistic-nonconvex", 10, (0.5, 1.0))


def small(problem):
    stands_for = problem.stands_for or problem.data
    return Problem(
        "randhie", problem.objective, 100, (0.5, 1.0), rows=300, starts=1, stands_for=stands_for
    )


@pytest.fixture
def two_curves(monkeypatch):
    """Two methods of three steps on 300 embedded records; counts the trainings."""
    curves = tuple(
        dataclasses.replace(curve, tuned=FEW)
        for curve in trust_region.CURVES
        if curve.method == "DP-GD"
    )
    monkeypatch.setattr(trust_region, "CURVES", curves)
    monkeypatch.setattr(trust_region, "quick", small)
    calls = []

    def counted(*arguments, **more):
        calls.append(arguments[0].declared.epsilon)
        if len(calls) == counted.stop_at:
            raise KeyboardInterrupt
        return runs.measure(*arguments, **more)

    counted.stop_at = None
    monkeypatch.setattr(results, "measure", counted)
    counted.calls = calls
    return counted


def found(gaps, seconds=(1.0, 1.0, 1.0), known=None, searched=0.5):
    """Results in which each curve has these gaps at every epsilon."""
    points, times = {}, {}
    for (label, gap), spent in zip(gaps.items(), seconds, strict=True):
        for epsilon in PROBLEM.epsilons:
            points[label, epsilon] = {
                "values": [0.5 + gap, 0.5 + gap],
                "gradient_norms": [gap, gap],
                "accuracies": [1 - gap, 1 - gap],
                "steps": 3,
                "passes": 3.0,
                "epsilon": epsilon,
                "local_values": [0.5, 0.5],
                "trace": {"steps": [3], "values": [[0.5 + gap, 0.5 + gap]]},
            }
        times[label] = [spent]
    problem = dataclasses.replace(PROBLEM, known=known)
    return Found(problem, 9, 2, 0.5, searched, 0.9, 0.8, True, points, times)


# What is asked for.


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["trust-region", "fig3"], ["fig3", "fig2", "fig10", "table1", "all"]),
        (["trust-regio"], ["trust-regio", "trust-region"]),
        (["erm", "table4"], ["table4", "table1", "table3", "all"]),
        (["trust-region", "fig6", "--seeds", "0"], ["seeds", "0"]),
    ],
)
def test_bad_requests_name_what_there_is(words, names, capsys):
    assert main(["reproduce", *words]) == 2
    message = capsys.readouterr().err
    assert all(name in message for name in names), message


def test_without_the_data_the_error_says_how_to_get_them(no_data, tmp_path):
    chosen = paper.plan("trust-region", "fig6")
    with pytest.raises(FileNotFoundError, match="set DPJAX_DATA"):
        paper.reproduce(chosen, tmp_path)


def test_the_quick_run_of_all_leaves_out_other_problems_by_name():
    chosen = paper.plan("trust-region", "all", quick=True)
    assert chosen.left_out == ("fig2", "fig4", "fig8", "fig10")
    assert {problem.stands_for or problem.data for problem in chosen.problems} == {"ijcnn1"}
    assert paper.plan("trust-region", "fig4", quick=True).figures.keys() == {"fig4"}


def test_the_figures_are_the_papers():
    assert list(trust_region.FIGURES) == ["fig2", "fig4", "fig6", "fig8", "fig10", "table1"]
    for curve in trust_region.CURVES:
        assert curve.algorithm in ("dp-gd", "dp-tr", "dp-str", "dp-adam")
        tuned = {(p.data, p.objective) for f in trust_region.FIGURES.values() for p in f.problems}
        assert not curve.tuned or curve.tuned.keys() == tuned


# A whole small run, interrupted and resumed, on a machine without the data.


def test_an_interrupted_run_goes_on_and_nothing_is_computed_twice(
    no_data, two_curves, tmp_path, capsys
):
    command = ["reproduce", "trust-region", "fig6", "--quick", "--out", str(tmp_path)]
    two_curves.stop_at = 3
    assert main(command) == 130
    two_curves.stop_at = None
    assert main(command) == 0
    assert two_curves.calls == [0.5, 1.0, 0.5, 0.5, 1.0]
    assert "randhie stands in" in capsys.readouterr().out
    assert main(command) == 0 and len(two_curves.calls) == 5
    # From the tables alone: neither the cache nor a training is needed.
    for path in [*(tmp_path / "cache").iterdir(), tmp_path / "fig6.png"]:
        path.unlink()
    assert main([*command, "--redraw"]) == 0 and len(two_curves.calls) == 5
    assert (tmp_path / "fig6.png").read_bytes().startswith(b"\x89PNG")
    rows = list(csv.DictReader((tmp_path / "fig6.csv").read_text().splitlines()))
    assert len(rows) == 2 * 2 * 2
    assert list(rows[0]) == [
        "data",
        "n",
        "p",
        "objective",
        "curve",
        "epsilon",
        "epsilon_of_the_noise",
        "seed",
        "exact_gap",
        "exact_gap_to_local_minimum",
        "exact_gradient_norm",
        "exact_accuracy",
        "steps",
        "passes",
    ]
    assert all(float(row["epsilon_of_the_noise"]) <= float(row["epsilon"]) for row in rows)
    assert all(float(row["exact_gap"]) >= 0 for row in rows)
    times = list(csv.DictReader((tmp_path / "fig6-time.csv").read_text().splitlines()))
    assert {(row["step"], row["seed"]) for row in times} >= {("1", "0"), ("3", "1")}
    text = (tmp_path / "fig6.md").read_text()
    assert "A quick run" in text and "ijcnn1 is not on this machine" in text
    mean = np.mean(
        [float(r["exact_gap"]) for r in rows if r["curve"] == GD and r["epsilon"] == "1.0"]
    )
    assert f"| {GD} |" in text and page.number(mean) in text


def test_the_cache_gives_back_what_belongs_to_a_configuration_alone(tmp_path):
    cache = Cache(tmp_path)
    cache.put({"epsilon": 1.0, "arguments": {"steps": 3}}, [1.5])
    assert cache.get({"epsilon": 1.0, "arguments": {"steps": 3}}) == [1.5]
    assert cache.get({"epsilon": 1.0, "arguments": {"steps": 4}}) is None
    (file,) = tmp_path.glob("*.json")
    file.write_text(file.read_text()[:20])  # torn
    assert cache.get({"epsilon": 1.0, "arguments": {"steps": 3}}) is None


# The text follows the numbers.


@pytest.mark.parametrize(
    ("gaps", "seconds", "verdicts"),
    [
        ((0.2, 0.1, 0.3), (2.0, 3.0, 1.0), ["agrees"] * 5),
        ((0.1, 0.2, 0.3), (2.0, 1.0, 3.0), ["no", "no", "agrees", "agrees", "no"]),
        ((0.2, 0.1, 0.05), (1.0, 2.0, 3.0), ["agrees", "agrees", "no", "no", "no"]),
    ],
)
def test_verdicts_turn_with_the_numbers(gaps, seconds, verdicts):
    one = found(dict(zip((GD, TR, STR), gaps, strict=True)), seconds)
    claims = trust_region.claims(Figure("panels", (PROBLEM,), ""), (one,))
    expected = [word if word == "agrees" else "does not agree" for word in verdicts]
    assert [claim.verdict for claim in claims] == expected
    assert page.number(gaps[1]) in claims[0].detail


@pytest.mark.parametrize(("known", "word"), [(0.50001, " agrees"), (0.6, "NOT agree")])
def test_the_page_says_whether_the_optimum_is_the_known_one(known, word):
    assert word in found({GD: 0.1}, (1.0,), known).optimum_line


def test_accuracy_is_held_against_the_majority_class():
    one = found({GD: 0.05, TR: 0.05, STR: 0.3})
    claims = trust_region.claims(Figure("accuracy", (PROBLEM,), ""), (one,))
    texts = page.claim_lines(claims)
    assert any("within a point" in line and "agrees in 2 of 3" in line for line in texts)


def test_accuracy_is_drawn_beside_what_needs_no_training(tmp_path, pictures):
    one = found({GD: 0.05, TR: 0.05, STR: 0.3})
    chosen = tuple(curve for curve in trust_region.CURVES if curve.published)
    wanted = Figure("accuracy", (PROBLEM,), "")
    files = trust_region_page.files(tmp_path, "accuracy", wanted, (one,), chosen)
    assert {path.name for path in files} == {
        "accuracy.png",
        "accuracy.csv",
        "accuracy-baselines.csv",
    }
    (axes,) = (axes for axes in pictures["accuracy"].axes if axes.has_data())
    lines = {line.get_label(): line.get_ydata()[-1] for line in axes.lines}
    assert lines == pytest.approx(
        {GD: 0.95, TR: 0.95, STR: 0.7, "non-private optimum": 0.9, "majority class": 0.8}
    )


def test_the_legend_lists_curves_as_they_lie(tmp_path, pictures):
    one = found({TR: 0.01, GD: 0.1, STR: 0.05})
    chosen = tuple(curve for curve in trust_region.CURVES if curve.published)
    wanted = Figure("panels", (PROBLEM,), "")
    trust_region_page.files(tmp_path, "fig6", wanted, (one,), chosen)
    (legend,) = pictures["fig6"].legends
    assert [text.get_text() for text in legend.get_texts()] == [GD, STR, TR]


# Perturbed gradient descent: a figure of closed forms.


@pytest.fixture(scope="module")
def few():
    return dataclasses.replace(perturbed.FIGURES["fig2"], draws=2_000, points=4)


def test_a_figure_without_problems_is_made_by_the_same_command(monkeypatch, few, tmp_path, capsys):
    monkeypatch.setattr(perturbed, "quick", lambda one: few)
    command = ["reproduce", "perturbed", "fig2", "--quick", "--out", str(tmp_path)]
    assert main(command) == 0
    assert "0 trainings" in capsys.readouterr().out
    assert (tmp_path / "fig2.png").read_bytes().startswith(b"\x89PNG")
    rows = list(csv.DictReader((tmp_path / "fig2.csv").read_text().splitlines()))
    assert len(rows) == 6 * 4
    for row in rows:
        d, distance = int(row["dimension"]), float(row["distance"])
        delta, drawn = float(row["delta"]), float(row["delta_drawn"])
        assert delta == pytest.approx(dpjax.accounting.ball_delta(distance, 1.0, d))
        # Fails by chance with probability 24 * 6e-7 at most, where the normal law holds.
        assert abs(drawn - delta) < 5 * float(row["standard_error"]) + 3 / few.draws
        gaussian = [float(row[f"gaussian_delta_at_epsilon_{e}"]) for e in (0, 1)]
        assert gaussian[1] <= gaussian[0]
    steps = list(csv.DictReader((tmp_path / "fig2-steps.csv").read_text().splitlines()))
    assert {int(row["dimension"]) for row in steps} == set(perturbed.DIMENSIONS)
    assert all(float(r["delta"]) <= float(r["delta_of_publishing_as_many_records"]) for r in steps)
    text = (tmp_path / "perturbed.md").read_text()
    assert "A quick run: few draws" in text and "seeds" not in text
    assert "**does not agree**: The noise that escapes" in text


def test_the_gaussian_beside_is_that_of_the_accounting():
    for distance, dimension in ((0.1, 3), (0.5, 10)):
        noise = dpjax.accounting.Release("one", 1, (dimension + 2) ** -0.5 / distance)
        event = dpjax.accounting.Event((noise,), "replace_one")
        delta = perturbed.gaussian_delta(distance, dimension, 1.0)
        found = dpjax.accounting.epsilon(event, delta, "replace_one")
        assert found == pytest.approx(1.0, abs=1e-8)


def test_noise_of_another_law_is_found_out(few, monkeypatch):
    honest = perturbed.claims(few, ())[0]
    assert honest.held == honest.made == 24
    one = perturbed.deltas(few)[0]
    assert (one.dimension, one.distance) == (1, 0.4)
    whole = perturbed._noise
    perturbed.deltas.cache_clear()
    # Planted: a radius that is 10 % too large.

    def larger(dimension, draws):
        squares, along = whole(dimension, draws)
        return 1.21 * squares, 1.1 * along

    monkeypatch.setattr(perturbed, "_noise", larger)
    try:
        assert perturbed.claims(few, ())[0].held < 24
    finally:
        perturbed.deltas.cache_clear()


# Exact values.


def records(n=200, p=3):
    random = np.random.default_rng(0)
    x = random.normal(size=(n, p)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = np.where(x[:, 0] + 0.5 * random.normal(size=n) > 0, 1.0, -1.0).astype(np.float32)
    return jnp.asarray(x), jnp.asarray(y)


def test_exact_values_are_those_of_the_diagnostics():
    objective, examples = dpjax.objectives.sigmoid_l2(), records()
    params = np.random.default_rng(1).normal(size=(2, 3)).astype(np.float32)
    values, norms = exact.exact_values(objective, params, examples)
    for value, norm, one in zip(values, norms, jnp.asarray(params), strict=True):
        expected = dpjax.diagnostics.exact_objective(objective, one, examples)
        np.testing.assert_allclose(value, expected, rtol=1e-6)
        expected = dpjax.diagnostics.exact_gradient_norm(objective, one, examples)
        np.testing.assert_allclose(norm, expected, rtol=1e-5)


def test_a_descent_ends_at_a_minimum_and_never_above_its_start():
    objective, examples = dpjax.objectives.logistic_nonconvex(), records()
    start = np.array([3.0, -2.0, 1.0], np.float32)
    params, value = exact.exact_descent(objective, start, examples)
    assert exact.exact_values(objective, params[None], examples)[1] < 1e-4
    assert value < exact.exact_values(objective, start[None], examples)[0]
    assert dpjax.diagnostics.exact_min_eigenvalue(objective, jnp.asarray(params), examples) > 0


def test_the_known_optimum_of_ijcnn1_is_found(real_data):
    data = Problem("ijcnn1", "logistic-nonconvex", 5_000, (1.0,)).load()
    objective = dpjax.objectives.logistic_nonconvex()
    assert abs(exact.exact_optimum(objective, data.examples, starts=1)[1] - 0.20713) < 1e-4


# Trainings.


def test_a_traced_training_is_the_one_that_solve_runs():
    examples, keys = records(), jax.random.split(jax.random.key(4), 2)
    budget = dpjax.PrivacyBudget(1.0, 1e-3, "replace_one")
    algorithm = dpjax.dp_gradient_descent(
        dpjax.objectives.logistic_nonconvex(), budget, data_size=200, dimension=3, steps=5
    )
    params, seconds = runs.train(algorithm, examples, keys, [2, 5])
    assert params.shape == (2, 2, 3) and seconds == sorted(seconds)
    for key, one in zip(keys, params, strict=True):
        expected = dpjax.solve(algorithm, examples, key=key).params
        np.testing.assert_allclose(one[-1], expected, rtol=1e-3, atol=1e-4)
        assert np.abs(one[0] - expected).max() > 1e-3


def test_a_traced_single_pass_reads_in_the_order_that_solve_draws():
    examples, keys = records(600), jax.random.split(jax.random.key(4), 2)
    budget = dpjax.PrivacyBudget(4.0, 1e-3, "replace_one")
    algorithm = dpjax.stochastic_spider(
        dpjax.objectives.logistic_nonconvex(), budget, data_size=600, dimension=3, candidates=0
    )
    params, _ = runs.train(algorithm, examples, keys, [3, int(algorithm.steps)])
    for key, one in zip(keys, params, strict=True):
        expected = dpjax.solve(algorithm, examples, key=key).params
        np.testing.assert_allclose(one[-1], expected, rtol=1e-3, atol=1e-4)


def test_a_batch_is_counted_as_its_share_of_a_pass():
    curve = Curve("DP-STR", "DP-STR", "dp-str", batched=True)
    problem = dataclasses.replace(PROBLEM, batch=50)
    budget = dpjax.PrivacyBudget(1.0, 1e-3, "replace_one")
    data = dpjax.Dataset(*records(500))
    algorithm = results.build(problem, curve, data, 1.0)
    assert runs.passes(algorithm) == pytest.approx(int(algorithm.steps) * 50 / 500)
    assert algorithm.relation == budget.relation
