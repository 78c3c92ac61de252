"""Escapes from a saddle: runs that are those of solve, shares and slopes from the numbers alone."""

import csv
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.cli import main
from dpjax.objectives import welsch
from dpjax.reproduce import (
    escapes,
    paper,
    spider,
    spider_claims,
    spider_figure,
    spider_page,
    spider_rates,
    spider_results,
)

LAND = {
    "saddle": 1.0,
    "saddle_eigenvalue": -0.1,
    "minimum": 0.5,
    "minimum_eigenvalue": 0.1,
    "halfway": 0.75,
}
ESCAPE, RATES = (spider.FIGURES[name] for name in ("escape", "rates"))


def records(n, p=3, seed=0):
    """Unit rows that lean to the first axis: Welsch's saddle with regularization 0.5 is strict."""
    x = np.random.default_rng(seed).normal(size=(n, p)) * [3.0, *[1.0] * (p - 1)]
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return dpjax.Dataset(jnp.asarray(x, jnp.float32), jnp.ones(n))


def point(gap=0.01, steps=10, read=900.0, norm=0.01, lowest=0.1, escaped=(True, True)):
    """What one method gave, of two seeds."""
    final = {
        "values": [0.5 + gap if yes else 1.0 for yes in escaped],
        "gradient_norms": [norm] * 2,
        "min_eigenvalues": [lowest] * 2,
    }
    return final | {
        "escaped": list(escaped),
        "first_steps": [float(steps) if yes else None for yes in escaped],
        "first_read": [read if yes else None for yes in escaped],
        "of_all": final,
        "steps": [20, 20],
        "read": [2000.0, 2000.0],
        "promised": 0.2,
        "epsilon": 0.9,
    }


def made(points, sizes=(1_000,), epsilons=(1.0,)):
    """Results in which each method has these points, by n."""
    every = {
        (label, epsilon, size): one if isinstance(one, dict) else one(size)
        for label, one in points.items()
        for epsilon in epsilons
        for size in sizes
    }
    lands = dict.fromkeys(sizes, LAND)
    problem = dataclasses.replace(ESCAPE.problems[0], data="made", epsilons=epsilons)
    return escapes.Escapes(problem, max(sizes), 4, 2.0, lands, every)


# Runs.


@pytest.mark.parametrize("name", ["dp-tr", "spider", "dp-sgd"])
def test_what_is_followed_is_what_solve_runs(name):
    data, objective = records(700), welsch(0.5)
    algorithm = spider.FACTORIES[name](
        objective, dpjax.PrivacyBudget(4.0, 1e-3), data_size=700, dimension=3, steps=12
    )
    keys = jax.random.split(jax.random.key(3), 2)
    path = spider_results.follow(algorithm, data, keys, jnp.array([1, 5, 12]))
    assert path.params.shape == (2, 3, 3)
    for i, key in enumerate(keys):
        solution = dpjax.solve(algorithm, data.examples, key=key)
        np.testing.assert_allclose(path.output[i], solution.params, rtol=2e-3, atol=2e-4)
        assert int(path.steps[i, -1]) == int(solution.steps)
        if name == "spider":
            used = np.asarray(solution.history.used)
            np.testing.assert_array_equal(path.read[i, 0], used[0])
            assert path.read[i, -1] == np.nanmax(used)
        else:
            each = algorithm.evaluations.declared / int(algorithm.steps)
            np.testing.assert_allclose(path.read[i], each * np.array([1, 5, 12]), rtol=1e-6)


def test_the_first_iterate_below_halfway_is_found(monkeypatch):
    data, objective = records(200), welsch(0.5)
    algorithm = dpjax.dp_trust_region(
        objective, dpjax.PrivacyBudget(1.0, 1e-3), data_size=200, dimension=3, steps=4
    )
    land = dpjax.diagnostics.exact_landscape(objective, data.examples)
    low = np.asarray(land.minimum.params, np.float32)
    # Seed 0 is out at its third step; seed 1 is out on the way, and back at the end.
    way = jnp.asarray(np.stack([[0 * low, 0 * low, low, low], [0 * low, low, low, 0 * low]]))
    steps = jnp.broadcast_to(jnp.arange(1, 5), (2, 4))
    path = spider_results.Path(way, steps, 200.0 * steps, way[:, -1])
    monkeypatch.setattr(spider_results, "follow", lambda *arguments: path)
    found = spider_results.measure(
        algorithm, data, data, land.halfway, jax.random.split(jax.random.key(0), 2)
    )
    assert found["first_steps"] == [3, 2] and found["first_read"] == [600, 400]
    assert found["escaped"] == [True, False]
    np.testing.assert_allclose(found["min_eigenvalues"][1], land.saddle.min_eigenvalue, atol=1e-5)
    np.testing.assert_allclose(found["min_eigenvalues"][0], land.minimum.min_eigenvalue, atol=1e-5)
    # Planted: a threshold at the saddle's own value is passed by whatever moves at all.
    wrong = spider_results.measure(algorithm, data, data, 1.1, jax.random.split(jax.random.key(0)))
    assert wrong["escaped"] == [True, True] and wrong["first_steps"] == [1, 1]


# Theory and slopes.


@pytest.mark.parametrize("exponent", spider_rates.EXPONENTS.values())
def test_a_slope_is_found_again(exponent):
    sizes = np.array([1e3, 4e3, 3e4])
    alphas = sizes[:, None] ** -exponent * np.array([1.0, 2.0, 3.0])
    fit = spider_rates.slope(sizes, alphas)
    np.testing.assert_allclose([fit.value, fit.low, fit.high], exponent, rtol=1e-9)


def test_where_the_bounds_cross_is_where_algebra_says():
    ours = spider_rates.SPIDER_BOUND.alpha
    theirs = spider_rates.on_population(spider_rates.DESCENT_BOUND)
    ((at, wins),) = spider_rates.crossings(ours, theirs, 22, 1.0)
    # n^(-1/3) + d^(1/4) n^(-1/2) = 2 d^(1/2) n^(-1/2).
    assert not wins and at == pytest.approx((2 * 22**0.5 - 22**0.25) ** 6, rel=0.05)
    assert spider_rates.crossings(ours, ours, 22, 1.0) == []


def test_quartiles_and_alpha():
    assert escapes.quartiles(np.array([3.0, 1.0, 2.0, np.inf, np.inf]))[1] == 3.0
    one = made({spider.TR: point(norm=0.01, lowest=-0.2)})
    # rho = 2: lambda_min^2 / rho = 0.02 is above the gradient norm.
    np.testing.assert_allclose(one.alphas(spider.TR, 1.0), 0.02)
    np.testing.assert_allclose(one.saddle_alpha(1_000), 0.005)


# Claims.


@pytest.mark.parametrize(
    ("ours", "theirs", "held"),
    [
        (point(), point(gap=0.1, read=9e4, steps=9), [1, 1, 1, 1]),
        (point(read=9e4), point(gap=0.001), [1, 1, 0, 0]),
        (point(escaped=(False, False)), point(), [0, 0, 0, 0]),
    ],
    ids=["as said", "slow and high", "never out"],
)
def test_verdicts_turn_with_the_numbers(ours, theirs, held):
    never = point(escaped=(False, False))
    one = made({spider.SPIDER: ours, spider.BOOST: never, spider.GD: theirs})
    claims = spider_claims.claims(ESCAPE, [one])
    assert [claim.held for claim in claims] == held
    assert all(claim.made == 1 for claim in claims)


def test_alpha_that_falls_too_slowly_is_told():
    def falling(exponent):
        return lambda size: point(norm=float(size) ** -exponent)

    sizes = (1_000, 4_000, 16_000)
    one = made({spider.SPIDER: falling(0.5), spider.TR: falling(0.5)}, sizes)
    bounds = [c for c in spider_claims.claims(RATES, [one]) if "falls" in c.text]
    # n^(-1/3) is in Spider's bound; DP-TR's is n^(-4/7), which 1/2 does not reach.
    assert [claim.verdict for claim in bounds] == ["agrees", "does not agree"]
    # Bounds at n = 16,000 and d = 4: 0.051 of Spider and 0.025 of DP-TR; the measured are alike.
    (order,) = (c for c in spider_claims.claims(RATES, [one]) if "smaller bound" in c.text)
    assert order.held == 1
    stays = {spider.BOOST: lambda size: falling(0.5)(size) | {"escaped": [False, False]}}
    claims = spider_claims.claims(RATES, [made(stays, sizes)])
    assert [claim.verdict for claim in claims] == ["does not agree"]
    (nearest,) = (c for c in spider_claims.claims(RATES, [one]) if "no method" in c.text)
    assert nearest.held == 1
    rows = spider_page.slope_rows(one)
    assert [row["slope_of_medians"] for row in rows] == ["0.5", "0.5"]


def test_what_never_escaped_is_said_and_drawn(tmp_path, pictures):
    never = point(escaped=(False, False), norm=0.0)
    one = made({spider.SPIDER: point(), spider.PSGD: never}, (500, 1_000))
    text = "\n".join(spider_page.lines(ESCAPE, [one], spider.CURVES))
    assert "| Gauss-PSGD | each at most once | never |" in text
    assert "| Spider | 10 (10 to 10) |" not in text and "10 (10 to 10)" in text
    spider_page.files(tmp_path, "escape", ESCAPE, [one], spider.CURVES)
    steps = pictures["escape"].axes[1]
    assert [tick.get_text() for tick in steps.get_yticklabels()] == [spider.SPIDER, spider.PSGD]
    assert [text.get_text() for text in steps.texts] == ["never"]
    spider_page.files(tmp_path, "rates", RATES, [one], spider.CURVES)
    named = [text.get_text() for axes in pictures["rates"].axes for text in axes.texts]
    assert spider.SPIDER in named
    assert any(text.startswith(f"{spider.PSGD}: at the saddle") for text in named)
    assert "Where Spider's bound is below that of DP-GD" in "\n".join(
        spider_page.lines(RATES, [one], spider.CURVES)
    )


def test_every_method_is_in_the_pictures_and_has_a_factory():
    grouped = [label for group in spider_figure.GROUPS.values() for label in group]
    assert sorted(curve.label for curve in spider.CURVES) == sorted(grouped)
    assert all(curve.algorithm in spider.FACTORIES for curve in spider.CURVES)
    assert paper.plan("spider").seeds == 20 and paper.plan("spider", quick=True).seeds == 2
    assert paper.plan("spider").command == "dpjax reproduce spider all"
    assert paper.plan("spider", "escape").trainings == 20 * 10 * 4
    known = {label for bound in spider_rates.BOUNDS for label in bound.methods}
    assert known <= {curve.label for curve in spider.CURVES}


# A small run.


@pytest.fixture
def one_method(monkeypatch):
    """DP-TR of three steps on 300 embedded records; counts the points measured."""
    curves = (spider.Method(spider.TR, spider.TR, "dp-tr", settings={"steps": 3}),)
    monkeypatch.setattr(spider, "CURVES", curves)
    whole = spider.quick

    def smaller(problem):
        sizes = (150, 0) if len(problem.sizes) > 1 else (0,)
        return dataclasses.replace(whole(problem), rows=300, methods=(), sizes=sizes)

    monkeypatch.setattr(spider, "quick", smaller)
    calls, measure = [], spider_results.measure

    def counted(*arguments):
        calls.append(arguments[1].size)
        if len(calls) == counted.stop_at:
            raise KeyboardInterrupt
        return measure(*arguments)

    counted.stop_at, counted.calls = None, calls
    monkeypatch.setattr(spider_results, "measure", counted)
    return counted


def test_an_interrupted_run_goes_on(no_data, one_method, tmp_path, capsys):
    command = ["reproduce", "spider", "all", "--quick", "--out", str(tmp_path)]
    one_method.stop_at = 2
    assert main(command) == 130
    one_method.stop_at = None
    assert main(command) == 0 and main(command) == 0
    # The point on all records serves both figures.
    assert one_method.calls == [300, 150, 150]
    assert "randhie stands in" in capsys.readouterr().out
    for name in ("escape", "rates"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    rows = list(csv.DictReader((tmp_path / "rates.csv").read_text().splitlines()))
    assert [(row["n"], row["seed"]) for row in rows] == [
        (n, seed) for n in ("150", "300") for seed in "01"
    ]
    for row in rows:
        assert float(row["epsilon_of_the_noise"]) <= float(row["epsilon"])
        assert float(row["exact_alpha"]) >= float(row["exact_gradient_norm"])
        assert row["relation"] == "zero_out"
    assert len((tmp_path / "rates-slopes.csv").read_text().splitlines()) == 2
    text = (tmp_path / "spider.md").read_text()
    assert "NOT PRIVATE" in text.splitlines()[0] and "A quick run" in text
    assert "ijcnn1 is not on this machine" in text and "| DP-TR |" in text
