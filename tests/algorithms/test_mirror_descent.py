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
from dpjax import auditing
from dpjax.algorithms.mirror_descent import from_dual, map_of, p_norm, to_dual
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
            assert cost <= map_of(L1Ball(1.0), p).noise * (1 + 1e-6)
            assert cost > 0.5
    assert p_norm(p).q <= 2
    # No other p-norm function has a smaller range on the ball.
    log = math.log(p)
    ranges = [math.exp(2 * s * log) * (1 - s) / s for s in np.linspace(0.01, 0.5, 200)]
    assert 1 / psi.modulus <= min(ranges) * (1 + 1e-9)


# Maps of a user's own.


@dpjax.pytree_dataclass
class Sphere:
    """The l2 ball as a stranger writes it."""

    radius: float
    spread: float
    noise: float
    scale: float = 1.0

    def norm(self, x):
        return jnp.sqrt(x @ x)

    def value(self, x):
        return self.scale * (x @ x) / 2

    def gradient(self, x):
        return self.scale * x

    def step(self, dual):
        z = dual / self.scale
        z = z / jnp.maximum(1, self.norm(z) / self.radius)
        return z, self.gradient(z)


class Ellipsoid(Sphere):
    """Half axes 2, 1, 1, ...: R = 2, and psi = |x|^2 / 2 in the norm itself."""

    weights = jnp.r_[1.0, jnp.full(P - 1, 4.0)]

    def norm(self, x):
        return jnp.sqrt(jnp.sum(self.weights * x**2))

    def value(self, x):
        return self.norm(x) ** 2 / 2

    def gradient(self, x):
        return self.weights * x

    def step(self, dual):
        z = dual / self.weights
        z = z / jnp.maximum(1, self.norm(z) / self.radius)
        return z, self.gradient(z)


Ellipsoid = dpjax.pytree_dataclass(Ellipsoid)
SPHERE = Sphere(2.0, 2.0, float(P))


class Wrong(Sphere):
    """Its ``step`` leaves the ball."""

    def step(self, dual):
        return dual, dual


class Flat(Sphere):
    """|x|^4 / 4, which has no curvature at 0."""

    def value(self, x):
        return (x @ x) ** 2 / 4

    def gradient(self, x):
        return (x @ x) * x

    def step(self, dual):
        length = jnp.cbrt(self.norm(dual))
        z = dual / length**2 * jnp.minimum(1, self.radius / length)
        return z, self.gradient(z)


@each_ball
def test_the_built_in_map_passed_as_ones_own_gives_the_same_bits(ball):
    built_in = build(domain=BALLS[ball], steps=9)
    own = build(domain=None, mirror_map=map_of(BALLS[ball], P), steps=9)
    assert own.step_size == built_in.step_size and own.event == built_in.event
    ends = [dpjax.solve(one, records(), key=KEY).params for one in (own, built_in)]
    np.testing.assert_array_equal(*ends)


def test_a_map_of_ones_own_gives_what_the_built_in_gives():
    own = build(domain=None, mirror_map=SPHERE, steps=9)
    built_in = build(domain=BALLS["l2"], steps=9)
    assert own.step_size == built_in.step_size and own.event == built_in.event
    # Without noise: the key of a training follows from its classes.
    ends = [dpjax.solve(quiet(one), records(), key=KEY).params for one in (own, built_in)]
    np.testing.assert_allclose(*ends, rtol=1e-4, atol=1e-5)
    assert build(domain=None, mirror_map=SPHERE).steps == build(domain=BALLS["l2"]).steps


def test_in_an_ellipsoid_it_finds_the_optimum_on_the_boundary():
    own = Ellipsoid(2.0, 2.0, float(P))
    algorithm = quiet(build(domain=None, mirror_map=own, steps=512, step_size=4.0))
    end = dpjax.solve(algorithm, records(), key=KEY).params
    gradient = jax.grad(exact)(end)
    assert float(own.norm(end)) == pytest.approx(2.0, rel=1e-4)
    # KKT: minus the gradient is along the normal of the set, weights times the point.
    normal = own.weights * end
    cosine = -gradient @ normal / jnp.linalg.norm(gradient) / jnp.linalg.norm(normal)
    assert float(cosine) > 1 - 1e-4


def variant(**methods):
    return dpjax.pytree_dataclass(type("Variant", (Sphere,), methods))(1.0, 2.0, float(P))


def test_a_map_is_checked_while_a_training_is_traced():
    def end(key):
        algorithm = build(domain=None, mirror_map=SPHERE, steps=3)
        return dpjax.solve(algorithm, records(), key=key).params

    np.testing.assert_allclose(jax.jit(end)(KEY), end(KEY), rtol=1e-5)


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (dataclasses.replace(SPHERE, scale=0.9), "must be 1-strongly convex in its norm: at a"),
        (dpjax.pytree_dataclass(Flat)(2.0, 4.0, 1.0), "must be 1-strongly convex"),
        (dpjax.pytree_dataclass(Wrong)(2.0, 2.0, 1.0), "step must return the argmin"),
        (dataclasses.replace(SPHERE, spread=1.0), r"spread must be \S+ or more"),
        (dataclasses.replace(SPHERE, radius=float("nan")), "mirror_map.radius"),
        (dataclasses.replace(SPHERE, noise=0.0), "mirror_map.noise"),
        (dataclasses.replace(SPHERE, radius=jnp.ones(1)), "mirror_map.radius must be"),
        (object(), "must be a dpjax.pytree_dataclass"),
        ((1.0, 2.0), "with all that dpjax.algorithms.MirrorMap lists"),
        (variant(step=lambda self, dual: dual), "two arrays of shape"),
        (variant(norm=lambda self, x: jnp.abs(x)), "value and norm numbers"),
    ],
    ids=[
        "not convex enough",
        "flat",
        "outside the set",
        "spread",
        "radius",
        "noise",
        "radius of a shape",
        "no pytree",
        "a tuple",
        "one array",
        "norm of a shape",
    ],
)
def test_a_map_that_is_not_as_it_must_be_is_refused(own, message):
    with pytest.raises(ValueError, match=message):
        build(domain=None, mirror_map=own)


@pytest.mark.ci
def test_an_attack_through_a_map_of_ones_own_reaches_nine_tenths_of_the_claim():
    entry = dpjax.algorithms.ALL["dp-accmd"]
    own = {"domain": None, "mirror_map": Sphere(5.0, 12.5, 4.0)}
    scenario = dataclasses.replace(entry.scenario, settings=entry.scenario.settings | own)
    game = auditing.scenarios.full_run(entry, scenario)
    result = auditing.attack(game, name="own map", key=jax.random.key(0), gates=(100_000, 0.9))
    assert result.passed, result.verdict


def test_a_norm_below_the_l2_norm_needs_a_smoothness_of_its_own():
    own = variant(norm=lambda self, x: jnp.sqrt(x @ x) / 2)
    with pytest.raises(ValueError, match="norm must not be below the l2 norm"):
        build(domain=None, mirror_map=own)
    with pytest.raises(ValueError, match="give domain or mirror_map"):
        build(mirror_map=own)


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
        bound = 4 * map_of(domain, P).spread / 4 / (steps + 1) ** 2
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
    spread, noise = (getattr(map_of(domain, P), name) for name in ("spread", "noise"))
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
