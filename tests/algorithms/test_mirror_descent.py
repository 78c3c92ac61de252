"""DP-AccMD: its mirror maps, its rate and optimum without noise, its bound with it, its inputs."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, special

import dpjax
from dpjax.algorithms.mirror_descent import from_dual, geometry, p_norm, to_dual
from dpjax.objectives import Box, L1Ball, L2Ball, Simplex

N, P = 60, 20
BUDGET = dpjax.PrivacyBudget(1.0, 1e-4)
KEY = jax.random.key(5)
BALLS = {"l1": L1Ball(3.0), "l2": L2Ball(2.0)}
each_ball = pytest.mark.parametrize("ball", BALLS)


def build(**more):
    objective = more.pop("objective", dpjax.objectives.logistic())
    budget = more.pop("budget", BUDGET)
    more = {"data_size": N, "dimension": P, "domain": BALLS["l1"]} | more
    return dpjax.dp_accelerated_mirror_descent(objective, budget, **more)


def quiet(algorithm, times=1e-7, **more):
    multiplier = times * algorithm.query.noise_multiplier
    query = dataclasses.replace(algorithm.query, noise_multiplier=multiplier)
    return dataclasses.replace(algorithm, query=query, **more)


@functools.cache
def records():
    random = np.random.default_rng(1)
    x = random.normal(size=(N, P)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x, np.where(x[:, 0] - x[:, 1] + 0.1 * random.normal(size=N) > 0, 1, -1).astype("f4")


exact = functools.partial(
    dpjax.diagnostics.exact_objective, dpjax.objectives.logistic(), examples=records()
)


@functools.cache
def least(ball):
    """The optimum in a ball, by SciPy in float64 and to 1e-9."""
    x, y = (np.asarray(part, np.float64) for part in records())

    def value(v):
        w = v[:P] - v[P:]
        slope = -(y / (1 + np.exp(y * (x @ w)))) @ x / N
        return np.logaddexp(0, -y * (x @ w)).mean(), np.concatenate([slope, -slope])

    radius = BALLS[ball].radius
    inside = {
        "l1": lambda v: radius - v.sum(),
        "l2": lambda v: radius**2 - np.sum((v[:P] - v[P:]) ** 2),
    }[ball]
    found = optimize.minimize(
        value,
        np.full(2 * P, 1e-3),
        jac=True,
        bounds=[(0, None)] * (2 * P),
        constraints={"type": "ineq", "fun": inside},
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 500},
    )
    return float(found.fun)


# Mirror maps.


@pytest.mark.parametrize("p", [1, 4000])
def test_the_way_back_into_the_ball_solves_its_problem(p):
    """KKT: the gradient of psi differs from the dual by one threshold, on the sphere."""
    psi, random = p_norm(p), np.random.default_rng(p)
    dual = jnp.asarray(random.normal(size=p) * 50, jnp.float32)
    for radius in (0.5, 1e6):
        point, kept = from_dual(dual, psi, radius)
        there = np.asarray(point) != 0  # the gradient is kept beside the point, which underflows
        np.testing.assert_allclose(to_dual(point, psi)[there], kept[there], rtol=2e-3)
        assert np.abs(kept[~there]).max(initial=0) <= 0.01 * np.abs(kept).max()
        assert float(jnp.abs(point).sum()) <= radius * (1 + 1e-5)
        moved = np.asarray(jnp.abs(dual) - jnp.abs(kept))
        threshold = moved.max()
        np.testing.assert_allclose(moved[np.asarray(kept) != 0], threshold, atol=2e-4)
        assert (np.abs(dual)[np.asarray(kept) == 0] <= threshold + 2e-4).all()
        if radius == 0.5 and p > 1:
            assert threshold > 1 and float(jnp.abs(point).sum()) > radius * (1 - 1e-5)
        if radius == 1e6:
            assert threshold < 1e-3  # inside already: nothing is moved
    assert all(float(jnp.abs(part).max()) == 0 for part in from_dual(0 * dual, psi, 1.0))


@pytest.mark.parametrize("p", [4, 8, 20_000])
def test_the_p_norm_function_is_1_strongly_convex_in_the_l1_norm(p):
    """On random pairs, and tight between flat ones, where a hundredth less would fail."""
    psi, random = p_norm(p), np.random.default_rng(p)

    def divergence(a, b):
        value = lambda v: np.sum(np.abs(v) ** psi.q) ** (2 / psi.q) / (2 * psi.modulus)  # noqa: E731
        return value(a) - value(b) - np.asarray(to_dual(jnp.asarray(b), psi)) @ (a - b)

    with jax.enable_x64(True):
        for _ in range(20):
            a, b = random.normal(size=(2, p)) * 10 ** random.uniform(-2, 2, size=(2, 1))
            assert divergence(a, b) >= 0.5 * np.abs(a - b).sum() ** 2
        flat, swing = np.ones(p), 1e-3 * np.resize([1.0, -1.0], p)
        assert divergence(flat + swing, flat) == pytest.approx(0.5e-6 * p**2, rel=1e-3)
        # What noise costs to first order: the trace of the inverse Hessian, largest at flat points.
        for point in (flat, np.arange(1.0, p + 1)) if p < 10 else ():
            moves = 1e-5 * np.eye(p)
            ahead, behind = (
                np.array([to_dual(jnp.asarray(point + sign * move), psi) for move in moves])
                for sign in (1, -1)
            )
            cost = np.trace(np.linalg.inv((ahead - behind) / 2e-5))
            assert cost <= geometry(L1Ball(1.0), p).noise * (1 + 1e-6)
            assert cost > 0.5
    assert p_norm(p).q <= 2
    # No other p-norm function has a smaller range on the ball.
    log = math.log(p)
    ranges = [math.exp(2 * s * log) * (1 - s) / s for s in np.linspace(0.01, 0.5, 200)]
    assert 1 / psi.modulus <= min(ranges) * (1 + 1e-9)


# Without noise.


@each_ball
def test_without_noise_it_converges_to_the_optimum_like_one_over_t_squared(ball):
    """The bound 4 D L / (T + 1)^2 holds at every T, and plain descent's rate is left behind."""
    domain = BALLS[ball]
    gaps = {}
    for steps in (1, 4, 16, 64, 256, 1024):
        algorithm = quiet(build(domain=domain, steps=1024, step_size=4.0), steps=steps)
        solution = dpjax.solve(algorithm, records(), key=KEY)
        assert float(domain.norm(solution.params)) <= 1 + 1e-5
        gaps[steps] = float(exact(solution.params)) - least(ball)
        bound = 4 * geometry(domain, P).spread / 4 / (steps + 1) ** 2
        assert gaps[steps] <= bound + 2e-6
    assert abs(gaps[1024]) < 5e-5
    assert gaps[1] > 1e-2 and gaps[64] < gaps[4] / 20


def test_a_start_outside_is_brought_back_along_its_ray():
    for domain in BALLS.values():
        state = build(domain=domain).init(jnp.full(P, -7.0))
        assert float(domain.norm(state.params)) == pytest.approx(1, rel=1e-5)
        np.testing.assert_allclose(state.params, np.full(P, state.params[0]))
        inside = jnp.linspace(-0.1, 0.1, P)
        np.testing.assert_array_equal(build(domain=domain).init(inside).params, inside)


# With noise.


def test_the_mean_gap_is_within_the_bound():
    """Mean of 64 runs, a quarter of the bound; above a third with probability below 1e-9.

    Noise thirty times as large is above that third.
    """
    domain = BALLS["l1"]
    algorithm = build(domain=domain, steps=30, budget=dpjax.PrivacyBudget(50.0, 1e-3))
    stddev, h = float(algorithm.query.stddev), float(algorithm.step_size)
    spread, noise = geometry(domain, P)
    # The Gaussian width of the unit ball, E max_i |b_i|: the integral over t of 1 - P(|b| < t)^p.
    t = np.linspace(0, 40, 400_001)
    width = np.trapezoid(1 - special.erf(t / np.sqrt(2)) ** P, t)
    worst = width**2 + 1
    squares = sum(j**2 for j in range(2, 32))

    def bound(h, noise):
        return (4 * spread / h + h * noise * stddev**2 * squares / (2 * (1 - h / 4))) / 31**2

    assert bound(h, noise) <= min(bound(h * 0.99, noise), bound(h * 1.01, noise))
    assert bound(h, noise) <= bound(h, worst)
    keys = jax.random.split(KEY, 64)

    def gap(algorithm):
        ends = jax.vmap(lambda key: dpjax.solve(algorithm, records(), key=key).params)(keys)
        return float(jax.vmap(exact)(ends).mean()) - least("l1")

    gaps = gap(algorithm), gap(quiet(algorithm, 30.0))
    assert 0 < gaps[0] < bound(h, worst) / 3 < gaps[1]


def test_a_radius_and_a_step_size_are_leaves():
    algorithms = [build(domain=L1Ball(radius), steps=5) for radius in (0.1, 1.0, 10.0)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *algorithms)
    ends = jax.vmap(lambda one: dpjax.solve(one, records(), key=KEY).params)(stacked)
    lengths = np.abs(ends).sum(1)
    assert (lengths <= np.array([0.1, 1.0, 10.0]) * (1 + 1e-5)).all()
    assert lengths[2] > 0.1


# Made data, and bad input.


def test_made_data_are_what_they_are_said_to_be():
    data = dpjax.datasets.sparse_high_dimensional(3, 300, 900, informative=5, active=9)
    np.testing.assert_allclose(np.linalg.norm(data.x, axis=1), 1, rtol=1e-6)
    assert set(np.unique(np.abs(data.x))) == {np.float32(0), np.float32(1 / 3)}
    assert ((data.x != 0).sum(1) == 9).all() and set(np.unique(data.y)) == {-1, 1}
    again = dpjax.datasets.sparse_high_dimensional(3, 300, 900, informative=5, active=9)
    np.testing.assert_array_equal(data.x, again.x)
    other = dpjax.datasets.sparse_high_dimensional(4, 300, 900, informative=5, active=9)
    assert not np.array_equal(data.x, other.x)
    # The first words are frequent, and they decide.
    frequent = (data.x != 0).mean(0)
    assert frequent[:5].mean() > 20 * frequent[500:].mean()
    correlation = np.abs(data.x.T @ data.y) / np.sqrt((data.x != 0).sum(0) + 1)
    assert set(np.argsort(correlation)[-3:]) <= set(range(5))
    with pytest.raises(ValueError, match="active must be at most dimension=4"):
        dpjax.datasets.sparse_high_dimensional(0, 5, 4, informative=2)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"domain": None}, "domain is required: DP-AccMD stays in a bounded set"),
        ({"domain": Box(-1.0, 1.0)}, r"domain must be an L2Ball or an L1Ball.*Box\(lower"),
        ({"domain": Simplex()}, "Simplex"),
        ({"domain": 3.0}, "domain must be"),
        ({"objective": dpjax.objectives.logistic_l1()}, "must be smooth"),
        ({"objective": dpjax.Objective(lambda w, e: w @ e)}, "clip_norm is required"),
        (
            {"objective": dpjax.Objective(lambda w, e: w @ e), "clip_norm": 1.0},
            "smoothness is required",
        ),
        ({"smoothness": 0.0}, "smoothness must be"),
        ({"step_size": -1.0}, "step_size must be"),
        ({"steps": 0}, "steps must be"),
    ],
)
def test_bad_arguments(bad, message):
    with pytest.raises(ValueError, match=message):
        build(**bad)


def test_an_unbounded_ball_is_none_and_a_long_step_is_named():
    with pytest.raises(ValueError, match="radius must be a finite number"):
        L1Ball(float("inf"))
    with pytest.warns(UserWarning, match="step_size=5 is above 1 / smoothness = 4"):
        build(step_size=5.0)
