"""Noisy Newton: intervals that hold a population's coefficients, and none where that is not so."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax import objectives
from dpjax.cli.main import main

N, P = 4_000, 3
TRUTH = np.array([2.0, -1.0, 0.0])


def draw(runs, seed=0):
    """Rows of norm at most 1 and labels of a logistic model, (runs, N, P) and (runs, N)."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (runs, N, P)) / np.sqrt(P)
    y = np.where(rng.random((runs, N)) < 1 / (1 + np.exp(-x @ TRUTH)), 1.0, -1.0)
    return np.float32(x), np.float32(y)


def algorithm(epsilon=4.0, objective=None, **settings):
    budget = dpjax.PrivacyBudget(epsilon, 1e-5)
    objective = objectives.logistic() if objective is None else objective
    sizes = {"data_size": N, "dimension": objective.parameters(P)}
    return dpjax.noisy_newton(objective, budget, **sizes, **settings)


def solved(made, runs):
    x, y = map(jnp.asarray, draw(runs))

    def solve(key, x, y):
        return dpjax.solve(made, dpjax.Dataset(x, y, max_norm=1.0), key=key).error_bars

    return jax.device_get(jax.jit(jax.vmap(solve))(jax.random.split(jax.random.key(1), runs), x, y))


def covered(bars):
    errors = np.abs(bars.estimate - TRUTH)
    return (errors <= 1.96 * bars.stddev).mean()


@pytest.mark.ci
def test_intervals_hold_the_truth_as_often_as_they_say_and_those_of_noise_alone_do_not():
    bars = solved(algorithm(), 200)
    assert (bars.strength > 1).all() and (bars.curvature < 0.1).all()
    assert 0.91 < covered(bars) < 0.985
    # A planted bug: the error of sampling is left out.
    assert covered(dataclasses.replace(bars, covariance=bars.noise_covariance)) < 0.85


def test_where_noise_drowns_the_curvature_no_interval_is_given_and_noise_is_finite():
    bars = jax.tree.map(lambda leaf: leaf[0], solved(algorithm(0.02), 1))
    assert "varies too little" in bars.refusal and "raise epsilon" in bars.refusal
    assert np.isfinite(bars.noise_stddev).all() and (bars.noise_stddev > 0).all()
    with pytest.raises(ValueError, match="no intervals for the population's coefficients"):
        bars.intervals()


def test_rows_without_a_declared_norm_have_no_interval():
    x, y = draw(1)
    solution = dpjax.solve(algorithm(), (x[0], y[0]), seed=0)
    assert "may have been clipped" in solution.error_bars.refusal


@pytest.mark.parametrize("units", [False, True])
@pytest.mark.parametrize("loss", ["huber", "tukey"])
def test_robust_losses_come_near_from_where_their_curvature_is_no_guide(loss, units):
    """Labels lie where at weights of 0 Huber's loss is straight and Tukey's is bent downwards."""
    x = np.hstack([draw(1)[0][0][:, :-1], np.full((N, 1), 0.5, np.float32)])
    y = np.float32(x @ [0.2, -0.1, 1.2] + np.random.default_rng(1).normal(0, 0.05, N))
    y[::10] = -1
    objective = getattr(objectives, loss)(0.0)
    data = dpjax.Dataset(x, y, max_norm=1.0)
    if units:
        objective, data = objective.of_units(), dpjax.datasets.group(data, np.arange(N), 1)
    bars = dpjax.solve(algorithm(30.0, objective), data, seed=0).error_bars
    assert bars.refusal is None
    # Newton's steps from 0 ended hundreds away.
    assert (np.abs(np.asarray(bars.estimate) - [0.2, -0.1, 1.2]) < [0.04, 0.04, 0.08]).all()


def test_a_shift_of_all_classes_is_no_direction_that_is_refused():
    made = algorithm(objective=objectives.softmax(3, 0.0))
    x, y = draw(1)
    data = dpjax.Dataset(x[0], (y[0] + 1).astype(np.float32), max_norm=1.0)
    bars = dpjax.solve(made, data, seed=0).error_bars
    assert bars.strength > 1
    # Steps are orthogonal to it, and so is their spread.
    assert np.abs(np.asarray(bars.estimate).reshape(3, P).sum(axis=0)).max() < 1e-3
    shift = np.kron(np.ones(3), np.eye(P)[0])
    assert shift @ bars.covariance @ shift < 1e-6 * np.trace(bars.covariance)


def test_parts_of_the_budget_are_all_of_it():
    for objective, queries in ((objectives.logistic(), 5), (objectives.least_squares(), 4)):
        made = algorithm(objective=objective)
        assert len(made.queries) == queries
        assert 3.99 < made.epsilon() <= 4.0
    assert len(algorithm(clip_norm=1.0).queries) == 4


def test_another_algorithm_has_no_such_intervals(capsys):
    assert main(["run", "dp-adam", "--inference"]) == 2
    assert "trains by noisy-newton: leave out dp-adam" in capsys.readouterr().err
