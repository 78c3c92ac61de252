"""DP-GD in full: proximal steps, a random iterate, batches, and T by Polyak-Lojasiewicz."""

import dataclasses
import functools
import inspect
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from factories import FACTORIES, make, mostly_ci
from scipy import stats

import dpjax
from dpjax.accounting import gaussian_multiplier
from dpjax.objectives import L1, L1Ball, Nonconvex

N, P = 200, 5
BUDGET = dpjax.PrivacyBudget(1.0, 1e-4)
KEY = jax.random.key(3)


# Every factory that leaves the choice of an output to its caller.
WITH_OUTPUT = [
    name for name, one in FACTORIES.items() if "output" in inspect.signature(one).parameters
]


def build(objective=None, budget=BUDGET, **more):
    objective = dpjax.objectives.logistic() if objective is None else objective
    return dpjax.dp_gradient_descent(objective, budget, **({"data_size": N, "dimension": P} | more))


def records():
    random = np.random.default_rng(0)
    x = random.normal(size=(N, P)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x, np.where(x[:, 0] + 0.3 * random.normal(size=N) > 0, 1.0, -1.0).astype(np.float32)


def with_regularizer(regularizer):
    return dataclasses.replace(dpjax.objectives.logistic(), regularizer=regularizer)


# Proximal steps.


def subgradient_gap(w, strength):
    """Distance from 0 to the subdifferential of the l1-regularized loss at ``w``."""
    x, y = (np.asarray(part, np.float64) for part in records())
    gradient = -(y / (1 + np.exp(y * (x @ w)))) @ x / N
    at_zero = np.maximum(np.abs(gradient) - strength, 0)
    return np.abs(np.where(w == 0, at_zero, gradient + strength * np.sign(w))).max()


def test_without_noise_a_proximal_run_ends_at_the_lasso_with_exact_zeros():
    strength = 0.05
    algorithm = build(dpjax.objectives.logistic_l1(strength), steps=400)
    algorithm = dataclasses.replace(
        algorithm, query=dataclasses.replace(algorithm.query, noise_multiplier=1e-6)
    )
    assert float(algorithm.rule.step_size) == 4.0
    w = np.asarray(dpjax.solve(algorithm, records(), key=KEY).params)
    assert subgradient_gap(w, strength) < 1e-5
    assert 0 < (w == 0).sum() < P
    # Another strength's solution is seen to be one.
    assert subgradient_gap(w, 0.9 * strength) > 1e-3


@pytest.mark.parametrize("regularizer", [L1Ball(0.5)])
def test_noisy_iterates_stay_in_the_set_and_have_no_certificate(regularizer):
    algorithm = build(with_regularizer(regularizer), steps=5)
    solution = dpjax.solve(algorithm, records(), key=KEY)
    assert solution.certificate is None
    assert float(regularizer.excess(solution.params)) <= 1e-6
    steps = np.asarray(solution.history.step_norm[:5])
    assert (steps <= 4.0 * np.asarray(solution.history.data_gradient_norm[:5])).all()


def test_smooth_penalties_are_differentiated_and_an_unknown_one_asks_for_its_step():
    assert float(build(dpjax.objectives.logistic_l2(0.5)).rule.step_size) == pytest.approx(4 / 3)
    for regularizer, fine in [(L1(0.1), True), (Nonconvex(0.1), True), (jnp.sum, False)]:
        if fine:
            build(with_regularizer(regularizer))
        else:
            with pytest.raises(ValueError, match="neither smoothness nor a prox"):
                build(with_regularizer(regularizer))


@pytest.mark.parametrize(
    "factory",
    [
        dpjax.dp_trust_region,
        dpjax.dp_stochastic_trust_region,
        dpjax.dp_adam,
        dpjax.dpagem,
        dpjax.dp_newton,
        dpjax.dp_gradient_descent_with_selection,
    ],
)
def test_a_set_is_refused_by_methods_that_would_leave_it(factory):
    inside = with_regularizer(dpjax.objectives.L2Ball(0.1))
    with pytest.raises(ValueError, match=r"needs a smooth regularizer.*L2Ball"):
        factory(inside, BUDGET, data_size=N, dimension=P)


@pytest.mark.parametrize("step_size", [-1, 0, "a"])
def test_a_step_size_that_is_none_is_named(step_size):
    with pytest.raises(ValueError, match="step_size must be"):
        build(step_size=step_size)


def test_a_step_above_the_theorems_bound_is_warned_of_where_it_chooses_the_steps():
    with pytest.warns(UserWarning, match="step_size=8 is above 1 / smoothness = 4"):
        build(dpjax.objectives.logistic(), step_size=8.0, pl_constant=1e-3)
    build(dpjax.objectives.logistic(), step_size=8.0, steps=3)


# The random iterate.


def test_the_iterate_drawn_is_uniform_and_the_run_ends_there():
    """A chi-square test, wrong with probability 1e-6; a range of 0 .. T - 1 is rejected by it."""
    whole, drawn = build(steps=4), build(steps=4, output="random")
    assert drawn.event == whole.event and drawn.epsilon() == whole.epsilon()
    keys, data = jax.random.split(KEY, 120), records()
    ends = jax.vmap(lambda key: dpjax.solve(drawn, data, key=key))(keys)
    counts = np.bincount(np.asarray(ends.steps), minlength=6)
    assert counts[0] == counts[5] == 0
    assert stats.chisquare(counts[1:5]).pvalue > 1e-6
    taken = np.isfinite(ends.history.step_norm).sum(axis=1)
    np.testing.assert_array_equal(taken, ends.steps)


@pytest.mark.parametrize("name", mostly_ci(WITH_OUTPUT, WITH_OUTPUT[:1]))
def test_an_output_means_the_same_in_every_factory(name):
    """With one step there is one iterate, and with several the average is another."""
    build_one = functools.partial(make, name, data_size=N, dimension=P, batch_size=N)
    last, average = (build_one(output=output, steps=4) for output in ("last", "average"))
    first, mean = (dpjax.solve(one, records(), key=KEY).params for one in (last, average))
    assert last.epsilon() == average.epsilon() and not np.allclose(first, mean)
    for output in ("random", "average"):
        one = dpjax.solve(build_one(output=output, steps=1), records(), key=KEY)
        moved = np.linalg.norm(one.params)
        assert int(one.steps) == 1 and moved == pytest.approx(float(one.history.step_norm[0]))
    several = dpjax.solve(build_one(output="random", steps=64), records(), key=KEY)
    assert several.algorithm.event.releases[0].count == 64 > int(several.steps) > 0
    with pytest.raises(ValueError, match=r"average_decay=0\.5 is for output='average'"):
        build_one(average_decay=0.5)


# Polyak-Lojasiewicz.


def test_t_minimises_the_bound_and_grows_like_its_logarithm():
    found = {}
    for n in (2_000, 20_000, 200_000):
        algorithm = build(data_size=n, pl_constant=0.05)
        one = gaussian_multiplier(BUDGET, 1) * float(algorithm.query.sensitivity)
        rate = 1 - 0.05 * 4

        def bound(steps, one=one, rate=rate):
            left = rate**steps
            return left * math.log(2) + (1 - left) * steps * P * one**2 / (2 * 0.05)

        assert bound(algorithm.steps) == min(map(bound, range(1, 400)))
        found[n] = algorithm.steps
    first, second, third = found.values()
    assert first < second < third < 120
    # Ten times the data add 2 ln 10 / (mu eta) steps, less what ln T takes.
    assert third - second == pytest.approx(2 * math.log(10) / -math.log(rate), abs=3)


def test_the_bound_holds_on_a_strongly_convex_problem():
    """Mean of 64 runs, a tenth of the bound; by chance above it with probability below 1e-9.

    Noise six times as large is at three times the bound, 7 standard errors away.
    """
    objective = dpjax.objectives.logistic_l2(0.05)
    algorithm = build(objective, pl_constant=0.05, budget=dpjax.PrivacyBudget(8.0, 1e-4))
    exact = functools.partial(dpjax.diagnostics.exact_objective, objective, examples=records())

    def ends(times, keys, steps=algorithm.steps):
        query = dataclasses.replace(
            algorithm.query, noise_multiplier=times * algorithm.query.noise_multiplier
        )
        changed = dataclasses.replace(algorithm, query=query, steps=steps)
        return jax.vmap(lambda key: dpjax.solve(changed, records(), key=key).params)(keys)

    keys = jax.random.split(KEY, 64)
    least = exact(ends(1e-7, keys[:1], 1000)[0])
    gap, loud = (float(jnp.mean(jax.vmap(exact)(ends(times, keys)))) - least for times in (1, 6))
    left = (1 - 0.05 / 0.3) ** algorithm.steps
    bound = left * math.log(2) + (1 - left) * P * float(algorithm.query.stddev) ** 2 / (2 * 0.05)
    assert 0 < gap < bound < loud


# Batches, and bad input.


def test_batches_cost_less_noise_a_step_and_drop_the_certificate():
    drawn, whole = build(steps=20, batch_size=10), build(steps=20)
    (release,) = drawn.event.releases
    assert (release.sampling, release.sampling_probability) == ("poisson", pytest.approx(0.05))
    assert release.noise_multiplier < whole.event.releases[0].noise_multiplier / 2
    assert drawn.query.divisor == pytest.approx(10) and drawn.bounds is None
    solution = dpjax.solve(drawn, records(), key=KEY)
    assert solution.certificate is None and solution.epsilon(1e-4) <= 1.0


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"pl_constant": 0.0}, "pl_constant must be a finite number above 0"),
        ({"pl_constant": -1.0}, "pl_constant must be"),
        ({"pl_constant": 1.0}, "pl_constant must be at most 0.25"),
        ({"output": "best"}, "unknown output 'best'"),
        ({"output": "average", "average_decay": 2.0}, "average_decay must be from 0 to 1"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"batch_size": N + 1}, f"batch_size must be at most data_size={N}"),
    ],
)
def test_bad_arguments(bad, message):
    with pytest.raises(ValueError, match=message):
        build(**bad)
