"""The convex paper's tables: certified optima, counted gradients, refusals, words from numbers."""

import csv
import dataclasses
import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.cli import main
from dpjax.objectives import L1Ball, logistic, logistic_l1, logistic_l2, sigmoid_l2
from dpjax.reproduce import erm, erm_claims, erm_page, erm_results, optimum
from dpjax.reproduce.risks import Risks
from dpjax.reproduce.study import Problem

BUDGET = dpjax.PrivacyBudget(1.0, 1e-3)
SIZES = {"data_size": 1_000, "dimension": 3}
BALL = dataclasses.replace(logistic(), regularizer=L1Ball(0.5))
OBJECTIVES = {"logistic-l2": logistic_l2(), "logistic": logistic(), "logistic-l1": logistic_l1()}
OBJECTIVES["ball"] = BALL


def records(n=200, p=3):
    random = np.random.default_rng(0)
    x = random.normal(size=(n, p)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = np.where(x[:, 0] + 0.5 * random.normal(size=n) > 0, 1.0, -1.0).astype(np.float32)
    return x, y


# Optima.


@pytest.mark.parametrize(
    "objective",
    [logistic(), logistic_l2(1e-2), logistic_l1(1e-2), BALL],
    ids=["smooth", "l2", "l1", "ball"],
)
def test_no_point_is_below_a_certified_optimum(objective):
    examples = records()
    found = optimum.certified_optimum(objective, examples)
    assert 0 <= found.slack < 1e-8
    random = np.random.default_rng(1).normal(size=(2_000, 3))
    near = found.params + random * np.geomspace(1e-4, 3, 2_000)[:, None]
    values = optimum.exact_risks(objective, near, examples)
    assert values.min() >= found.value - found.slack
    # Weak curvature: a point nearby is nearly as good, so the optimum is no accident of the draw.
    assert values.min() <= found.value + 1e-6 or objective is BALL
    at = optimum.exact_risks(objective, found.params[None], examples)[0]
    np.testing.assert_allclose(at, found.value, rtol=1e-12)


def test_a_wrong_optimum_is_not_certified():
    x, y = (leaf.astype(np.float64) for leaf in records())
    params = optimum.certified_optimum(logistic_l2(), (x, y)).params + 0.01
    margins = y * (x @ params)
    gradient = -(y / (1 + np.exp(margins))) @ x / len(y) + 1e-3 * params
    assert optimum._slack(params, gradient, 0.0, 1e-3, np.log(2)) > 1e-4


def test_exact_risks_are_those_of_the_diagnostics():
    params = np.random.default_rng(2).normal(size=(2, 3)).astype(np.float32)
    for objective in (logistic_l1(), sigmoid_l2()):
        values = optimum.exact_risks(objective, params, records())
        for value, one in zip(values, jnp.asarray(params), strict=True):
            expected = dpjax.diagnostics.exact_objective(objective, one, records())
            np.testing.assert_allclose(value, expected, rtol=1e-6)


# Gradients.


def test_declared_gradients_are_the_formulas():
    n, b = SIZES["data_size"], 50
    objective, shared = logistic_l2(), {"batch_size": b, "epoch_length": 7, "step_size": 1.0}
    for factory, steps in (("dp-svrg", 3 * 7), ("dp-svrg++", (2**4 - 2) * 7)):
        algorithm = dpjax.ALGORITHMS[factory](objective, BUDGET, epochs=3, **shared, **SIZES)
        declared, padded = algorithm.evaluations
        assert declared == pytest.approx(n * 3 + 2 * b * steps)
        capacity = algorithm.queries[0].sampler.capacity
        assert padded >= n * 3 + 2 * capacity * steps > declared
    algorithm = dpjax.baselines.dp_newton(objective, BUDGET, steps=5, **SIZES)
    assert algorithm.evaluations.declared == 5 * n
    algorithm = dpjax.baselines.output_perturbation(objective, BUDGET, **SIZES)
    assert algorithm.evaluations.declared == n * int(algorithm.query.iterations)


# What is compared.


def test_what_is_refused_is_refused_by_the_library():
    for method in erm.CURVES:
        for kind in method.refused:
            with pytest.raises(ValueError):
                erm.FACTORIES[method.algorithm](OBJECTIVES[kind], BUDGET, **SIZES)


def test_every_problem_has_settings_of_its_own_or_none_at_all():
    problems = [p for figure in erm.FIGURES.values() for p in figure.problems]
    for method in erm.CURVES:
        drawn = [problem for problem in problems if method.drawn(problem)]
        assert drawn, method.label
        for problem in drawn:
            assert len(method.tried(problem)) > 1 or not method.settings
        known = {p.kind for p in drawn} | {f"{p.data} {p.kind}" for p in drawn}
        assert method.settings.keys() <= known, method.label
    assert erm.FIGURES.keys() == {"table1", "table2", "table3"}
    assert {problem.relation for problem in problems} == {"zero_out"}


def made(means, costs, kind="logistic-l2", epsilons=(0.5, 1.0)):
    """Results in which each method has this excess risk at epsilon 1, falling as its square."""
    points = {
        (label, epsilon): {
            "values": [0.5 + mean / epsilon**2] * 2,
            "declared": cost,
            "padded": 2 * cost,
            "steps": 3,
            "epsilon": epsilon,
            "settings": {"steps": 3},
            "tried": [{"value": 0.5 + mean, "declared": cost / 2}],
        }
        for (label, mean), cost in zip(means.items(), costs, strict=True)
        for epsilon in epsilons
    }
    problem = Problem("made", kind, 10, epsilons, relation="zero_out", methods=tuple(means))
    return Risks(problem, 9, 2, 0.5, 1e-9, points)


@pytest.mark.parametrize(
    ("risks", "costs", "verdicts"),
    [
        ((1.0, 2.0, 1.0), (1, 9, 9), ["agrees"] * 5),
        ((1.0, 0.5, 1.0), (9, 1, 1), ["no", "no", "no", "no", "agrees"]),
        ((1.0, 2.0, 0.1), (1, 9, 9), ["agrees", "agrees", "no", "no", "agrees"]),
    ],
)
def test_verdicts_turn_with_the_numbers(risks, costs, verdicts):
    one = made(dict(zip((erm.SVRG, erm.SGD, erm.GD), risks, strict=True)), costs)
    claims = erm_claims.claims(erm.FIGURES["table1"], [one])
    expected = [word if word == "agrees" else "does not agree" for word in verdicts]
    assert [claim.verdict for claim in claims] == expected
    assert "DP-SVRG -2.00 (bound -2)" in claims[-1].detail


def test_the_front_and_the_refusals_are_told():
    one = made({erm.GD: 1.0, erm.SGD: 0.5, erm.PLUS: 2.0}, (9, 5, 1), kind="logistic-l1")
    assert erm_claims.dominated(one, 1.0) == [erm.GD]
    problem = dataclasses.replace(one.problem, methods=(*one.problem.methods, erm.TR))
    lines = erm_page.lines(
        erm.FIGURES["table2"], [dataclasses.replace(one, problem=problem)], erm.CURVES
    )
    assert any(line.startswith("- DP-TR: n/a, it has no proximal step") for line in lines)
    assert "| DP-GD | 4 (0.0e+00) | 1 (0.0e+00) |" in lines


def decades(axes):
    low, high = axes.get_ylim()
    return np.log10(high / low)


def test_a_method_that_diverged_does_not_squash_the_others(tmp_path, pictures):
    means = {erm.GD: 2e-6, erm.SGD: 1e-5, erm.TR: 1e-6, erm.NEWTON: 60.0}
    one = made(means, (9, 5, 2, 3), epsilons=(1.0,))
    erm_page.files(tmp_path, "table1", erm.FIGURES["table1"], [one], erm.CURVES)
    (axes,) = (axes for axes in pictures["table1"].axes if axes.has_data())
    assert decades(axes) <= 4
    assert "off the scale:\nDP-Newton 60" in [text.get_text() for text in axes.texts]


def test_the_front_is_drawn_and_the_best_is_named_first(tmp_path, pictures):
    means = {erm.GD: 0.5, erm.SGD: 1.0, erm.TR: 0.1}
    one = made(means, (5, 2, 9), epsilons=(1.0,))
    erm_page.files(tmp_path, "table1", erm.FIGURES["table1"], [one], erm.CURVES)
    (axes,) = (axes for axes in pictures["table1"].axes if axes.has_data())
    (front,) = (line for line in axes.lines if line.get_drawstyle() == "steps-post")
    assert list(front.get_xdata())[1:-1] == [2, 5, 9]
    (legend,) = pictures["table1"].legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts[:3] == [erm.TR, erm.GD, erm.SGD]


# A small run.


@pytest.fixture
def two_methods(monkeypatch):
    """Two methods of few steps on 200 embedded records; counts the points measured."""
    few = {"logistic-l2": ({"steps": 2, "step_size": 1.0}, {"steps": 3, "step_size": 4.0})}
    curves = (
        erm.Method(erm.GD, erm.GD, "dp-gd", settings=few),
        erm.Method(erm.OUTPUT, erm.OUTPUT, "output-perturbation"),
    )
    monkeypatch.setattr(erm, "CURVES", curves)
    whole = erm.quick
    monkeypatch.setattr(erm, "quick", lambda p: dataclasses.replace(whole(p), rows=200))
    calls, measure = [], erm_results.measure

    def counted(problem, method, *arguments, **more):
        calls.append(method.label)
        if len(calls) == counted.stop_at:
            raise KeyboardInterrupt
        return measure(problem, method, *arguments, **more)

    counted.stop_at, counted.calls = None, calls
    monkeypatch.setattr(erm_results, "measure", counted)
    return counted


def test_an_interrupted_run_goes_on(no_data, two_methods, tmp_path, capsys):
    command = ["reproduce", "erm", "table1", "--quick", "--out", str(tmp_path)]
    two_methods.stop_at = 3
    assert main(command) == 130
    two_methods.stop_at = None
    assert main(command) == 0 and main(command) == 0
    assert len(two_methods.calls) == 5
    assert "randhie stands in" in capsys.readouterr().out
    assert (tmp_path / "table1.png").read_bytes().startswith(b"\x89PNG")
    rows = list(csv.DictReader((tmp_path / "table1.csv").read_text().splitlines()))
    assert {row["method"] for row in rows} == {erm.GD, erm.OUTPUT}
    for row in rows:
        assert row["relation"] == "zero_out"
        assert float(row["epsilon_of_the_noise"]) <= float(row["epsilon"])
        assert float(row["exact_excess_risk"]) > 0 and float(row["gradient_evaluations"]) > 0
    text = (tmp_path / "table1.md").read_text()
    assert "NOT PRIVATE" in text.splitlines()[0] and "A quick run" in text
    assert "proven to be the least value" in text


def test_a_step_size_above_the_theorem_is_taken_in_silence():
    problem = dataclasses.replace(erm.FIGURES["table1"].problems[0], batch=50)
    (method,) = (one for one in erm.CURVES if one.label == erm.SVRG)
    data = dpjax.Dataset(*records(500))
    settings = {"epochs": 2, "epoch_length": 5, "step_size": 99.0}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        erm_results.build(problem, method, data, 1.0, settings)
    with pytest.warns(UserWarning, match="step_size"):
        dpjax.dp_svrg(logistic_l2(), BUDGET, **settings, **SIZES)
