"""DP-TR: it optimises, it escapes, its noise is the paper's or better, its certificate holds."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from factories import mostly_ci, quiet
from scipy import optimize, stats

import dpjax
from dpjax.accounting import epsilon, gaussian_multiplier
from dpjax.algorithms import trust_region

# Each statistical check fails by chance with this probability at most.
LEVEL = 1e-6
N, P = 300, 3
KEY = jax.random.key(3)
ALMOST_NO_NOISE = dpjax.PrivacyBudget(1e6, 1e-4)


@functools.cache
def bounded_rows(n=N, p=P):
    random = np.random.default_rng(n + p)
    x = random.normal(size=(n, p)) + np.eye(p)[0]
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = np.where(x @ np.ones(p) + 0.5 * random.normal(size=n) > 0, 1.0, -1.0)
    return dpjax.Dataset(x.astype(np.float32), y.astype(np.float32), name="made up", max_norm=1.0)


def build(objective=None, budget=ALMOST_NO_NOISE, **more):
    objective = dpjax.objectives.logistic_l2(0.01) if objective is None else objective
    return dpjax.dp_trust_region(objective, budget, **({"data_size": N, "dimension": P} | more))


# It optimises.


@pytest.mark.parametrize("release", mostly_ci(["joint", "separate"], ["joint"]))
@pytest.mark.parametrize("strength", [0.01, 0.1])
def test_with_almost_no_noise_it_reaches_the_optimum(release, strength):
    data = bounded_rows()
    x, y = np.float64(data.x), np.float64(data.y)

    def value(w):
        return np.logaddexp(0, -y * (x @ w)).mean() + strength / 2 * w @ w

    def slope(w):
        return -(x * (y / (1 + np.exp(y * (x @ w))))[:, None]).mean(0) + strength * w

    best = optimize.minimize(value, np.zeros(P), jac=slope, method="BFGS", options={"gtol": 1e-10})
    algorithm = quiet(build(dpjax.objectives.logistic_l2(strength), release=release))
    bounds = trust_region._noise_bounds(algorithm.queries, P, float(algorithm.beta))
    solution = dpjax.solve(dataclasses.replace(algorithm, bounds=bounds), data, key=KEY)
    assert value(np.float64(solution.params)) - best.fun < 1e-5
    np.testing.assert_allclose(solution.params, best.x, atol=0.02)
    assert solution.certificate.min_eigenvalue_lower > 0
    # The bound is not vacuous: clipping and noise together are far below the first gradient.
    assert solution.certificate.gradient_norm_upper < 0.01 * solution.history.gradient_norm[0]


def saddle_loss(w, example):
    """Gradient exactly 0 at w = 0 for every record; curvature -example there along w_0."""
    return example * (w[0] ** 4 / 4 - w[0] ** 2 / 2) + w[1] ** 2 / 2


@pytest.mark.parametrize("release", mostly_ci(["joint", "separate"], ["separate"]))
def test_it_escapes_a_saddle_of_a_plain_loss_where_descent_stays(release):
    objective = dpjax.Objective(saddle_loss)
    records = jnp.ones(N)
    clips = {"clip_norm": 1.0, "hessian_clip_norm": 2.0}
    common = {"radius": 0.5, "final_radius": 0.3, "dimension": 2, "steps": 20}
    algorithm = build(objective, **clips, **common, release=release)
    solution = dpjax.solve(algorithm, records, key=KEY)
    np.testing.assert_allclose(np.abs(solution.params), [1.0, 0.0], atol=0.02)
    assert float(solution.certificate.min_eigenvalue_lower) > 0.5
    # The first step goes to the boundary along the negative curvature: no gradient drives it.
    assert float(solution.history.multiplier[0]) == pytest.approx(1.0, abs=0.3)
    assert float(solution.history.step_norm[0]) == pytest.approx(0.5, rel=1e-3)
    descent = dpjax.dp_gradient_descent(
        objective,
        ALMOST_NO_NOISE,
        data_size=N,
        dimension=2,
        steps=5,
        clip_norm=1.0,
        step_size=0.5,
    )
    assert np.abs(dpjax.solve(descent, records, key=KEY).params).max() < 0.1


def test_damping_keeps_pure_noise_from_passing_for_negative_curvature():
    """Null records: everything seen is noise, and only the undamped model runs to its radius."""
    null = (jnp.zeros((N, P)), jnp.ones(N))
    budget = dpjax.PrivacyBudget(0.5, 1e-4)
    decrease = {}
    for damping in (0.0, 1.0):
        algorithm = build(
            dpjax.objectives.logistic(), budget, damping=damping, radius=5.0, final_radius=5.0
        )
        solution = dpjax.solve(algorithm, null, key=KEY)
        decrease[damping] = float(solution.history.model_decrease.mean())
    assert 0 < decrease[1.0] < decrease[0.0]


@pytest.mark.ci
def test_the_radius_shrinks_geometrically_between_its_ends():
    solution = dpjax.solve(build(radius=8.0, final_radius=0.5, steps=5), bounded_rows(), key=KEY)
    np.testing.assert_allclose(solution.history.radius, [8, 4, 2, 1, 0.5], rtol=1e-5)
    assert (solution.history.step_norm <= solution.history.radius * (1 + 1e-4)).all()


# Its accounting.


@pytest.mark.parametrize("steps", [1, 9, 32])
def test_the_event_of_a_joint_and_of_a_separate_release(steps):
    budget = dpjax.PrivacyBudget(1.0, 1e-5, "replace_one")
    joint = build(budget=budget, steps=steps, release="joint").event
    (release,) = joint.releases
    assert release.count == steps
    draws = P * (P + 1)
    assert release.noise_multiplier == gaussian_multiplier(budget, steps, noise_draws=draws)
    assert joint.gaussian_mu == pytest.approx(math.sqrt(steps) / release.noise_multiplier)
    separate = build(budget=budget, steps=steps, release="separate").event
    assert [one.count for one in separate.releases] == [steps, steps]
    squares = sum(1 / one.noise_multiplier**2 for one in separate.releases)
    assert separate.gaussian_mu == pytest.approx(math.sqrt(steps * squares))
    assert separate.gaussian_mu == pytest.approx(joint.gaussian_mu, rel=1e-5)


def test_the_joint_hessian_is_free():
    """The joint release's gradient is as accurate as if no Hessian were released at all."""
    budget = dpjax.PrivacyBudget(1.0, 1e-5)
    joint = build(budget=budget, steps=10).queries[0]
    alone = dpjax.dp_gradient_descent(
        dpjax.objectives.logistic_l2(0.01), budget, data_size=N, dimension=P, steps=10
    ).query
    assert joint.stddev == alone.stddev
    assert joint.hessian_stddev == pytest.approx(0.3003 * joint.stddev, rel=1e-3)


@pytest.mark.parametrize(("certify", "more"), [("last_query", 0), ("output", 1), (None, 0)])
@pytest.mark.parametrize("release", ["joint", "separate"])
def test_certifying_the_output_is_one_more_release(certify, more, release):
    budget = dpjax.PrivacyBudget(1.0, 1e-5)
    algorithm = build(budget=budget, steps=7, release=release, certify=certify)
    assert [one.count for one in algorithm.event.releases] == [7 + more] * len(algorithm.queries)
    assert 0.9999 < epsilon(algorithm.event, 1e-5, "zero_out") <= 1.0


# The stopping rule.


@pytest.mark.ci
def test_the_paper_schedule_stops_early_at_the_price_of_all_steps():
    objective = dpjax.objectives.logistic_nonconvex()
    schedule = dpjax.paper_schedule(objective)
    rho = 1 / (6 * math.sqrt(3)) + 4.6686e-3  # the loss's constant, and the regularizer's
    assert schedule["radius"] == schedule["final_radius"]
    assert schedule["radius"] == pytest.approx(math.sqrt(0.1 / rho), rel=1e-4)
    assert schedule["steps"] == math.ceil(6 * math.sqrt(rho) * math.log(2) / 0.1**1.5) == 42
    algorithm = quiet(build(objective, dpjax.PrivacyBudget(1.0, 1e-4), **schedule))
    solution = dpjax.solve(algorithm, bounded_rows(), key=KEY)
    steps = int(solution.steps)
    assert 0 < steps < 42
    assert dpjax.Status(int(solution.status)) is dpjax.Status.STOPPED
    assert "guarantee is still that of all steps" in dpjax.Status.STOPPED.message
    level = math.sqrt(0.1 * rho)
    multipliers = np.asarray(solution.history.multiplier)
    assert multipliers[steps - 1] <= level and (multipliers[: steps - 1] > level).all()
    assert np.isnan(multipliers[steps:]).all()
    assert [release.count for release in solution.event.releases] == [42]
    assert solution.event.gaussian_mu == pytest.approx(algorithm.event.gaussian_mu, rel=1e-6)
    assert solution.epsilon(1e-4) == algorithm.epsilon(1e-4)
    stopped = dpjax.run(algorithm, bounded_rows(), key=KEY, progress=False)
    np.testing.assert_array_equal(stopped.params, solution.params)
    assert int(stopped.status) == dpjax.Status.STOPPED


@pytest.mark.ci
def test_under_vmap_runs_stop_each_at_its_own_step():
    objective = dpjax.objectives.logistic_nonconvex()
    schedule = dpjax.paper_schedule(objective)
    schedule |= {"radius": 0.3, "final_radius": 0.3, "steps": 12}
    algorithm = build(objective, dpjax.PrivacyBudget(3.0, 1e-3), **schedule)
    keys = jax.random.split(KEY, 20)
    batch = jax.vmap(lambda key: dpjax.solve(algorithm, bounded_rows(), key=key))(keys)
    assert len(set(np.asarray(batch.steps).tolist())) > 1
    finished = np.isfinite(batch.history.gradient_norm).sum(axis=1)
    np.testing.assert_array_equal(finished, batch.steps)
    for i in (0, 7):
        one = dpjax.solve(algorithm, bounded_rows(), key=keys[i])
        assert int(one.steps) == int(batch.steps[i])
        np.testing.assert_allclose(one.params, batch.params[i], rtol=1e-3, atol=1e-4)


@pytest.mark.ci
def test_a_rule_that_never_fires_returns_the_last_iterate():
    algorithm = build(steps=4, stopping_alpha=1e-12, radius=0.01, final_radius=0.01)
    solution = dpjax.solve(algorithm, bounded_rows(), key=KEY)
    assert int(solution.steps) == 4
    assert dpjax.Status(int(solution.status)) is dpjax.Status.FIXED_HORIZON


# The certificate.


def descend(objective, budget, **more):
    return dpjax.dp_gradient_descent(
        objective, budget, **({"data_size": N, "dimension": P} | more), step_size=0.3
    )


def failures(algorithm, data, seeds):
    """How many runs have a bound that exact values break: as built, and with a planted bug.

    The bug reports the noisy values themselves, without the quantile of the noise.
    """
    keys = jax.random.split(jax.random.key(99), seeds)
    batch = jax.vmap(lambda key: dpjax.solve(algorithm, data, key=key))(keys)
    objective, at, examples = algorithm.objective, batch.certified_params, data.examples
    upper, lower = batch.certificate.gradient_norm_upper, batch.certificate.min_eigenvalue_lower
    norm = jax.vmap(lambda w: dpjax.diagnostics.exact_gradient_norm(objective, w, examples))(at)
    broken, planted = norm > upper, norm > upper - algorithm.bounds.gradient
    if lower is not None:
        exact = dpjax.diagnostics.exact_min_eigenvalue
        lowest = jax.vmap(lambda w: exact(objective, w, examples))(at)
        broken = broken | (lowest < lower)
        planted = planted | (lowest < lower + algorithm.bounds.hessian)
    assert batch.certificate.scope == "objective"
    return int(broken.sum()), int(planted.sum())


SMALL_STEPS = {"steps": 3, "radius": 0.2, "final_radius": 0.1}


@pytest.mark.parametrize(
    ("make", "more"),
    [
        pytest.param(build, SMALL_STEPS | {"damping": 5.0}, marks=pytest.mark.ci),
        (build, SMALL_STEPS | {"release": "separate"}),
        pytest.param(build, SMALL_STEPS | {"certify": "output"}, marks=pytest.mark.ci),
        pytest.param(build, SMALL_STEPS | {"stopping_alpha": 0.4}, marks=pytest.mark.ci),
        (descend, {"steps": 3}),
    ],
    ids=["joint, damped", "separate", "output", "stopping", "descent"],
)
def test_the_certificate_holds_and_one_without_the_quantile_is_caught(make, more):
    """600 runs; more failures than the binomial allows have probability at most LEVEL."""
    beta, seeds = 0.1, 600
    objective = dpjax.objectives.logistic_nonconvex()
    algorithm = make(objective, dpjax.PrivacyBudget(1.0, 1e-4), beta=beta, **more)
    allowed = stats.binom.isf(LEVEL, seeds, beta)
    failed, planted = failures(algorithm, bounded_rows(), seeds)
    assert failed <= allowed < planted


@pytest.mark.ci
def test_the_gradient_bound_is_tight_where_there_is_nothing_but_noise():
    """With null records the norm released is the noise, whose quantile must be the one claimed.

    The bound exceeds the quantile with probability beta / 2 exactly, but for the slack of clipping:
    a two-sided binomial test at LEVEL, on the norm that the certificate adds to.
    """
    budget = dpjax.PrivacyBudget(1.0, 1e-4, "replace_one")
    algorithm = build(dpjax.objectives.logistic(), budget, beta=0.5, steps=1, radius=1.0)
    null = (jnp.zeros((N, P)), jnp.ones(N))
    keys = jax.random.split(KEY, 2000)
    batch = jax.vmap(lambda key: dpjax.solve(algorithm, null, key=key))(keys)
    above = int((batch.history.gradient_norm[:, 0] > algorithm.bounds.gradient).sum())
    low, high = stats.binom.isf([1 - LEVEL / 2, LEVEL / 2], 2000, 0.25)
    assert low <= above <= high
    planted = int((batch.history.gradient_norm[:, 0] > 0.9 * algorithm.bounds.gradient).sum())
    assert planted > high


@pytest.mark.ci
def test_which_iterate_is_certified():
    data, budget = bounded_rows(), dpjax.PrivacyBudget(1.0, 1e-4)
    last, output, none = (
        dpjax.solve(build(budget=budget, certify=certify), data, key=KEY)
        for certify in ("last_query", "output", None)
    )
    assert last.certificate.iterate == "last_query"
    assert not np.array_equal(last.certified_params, last.params)
    moved = np.linalg.norm(last.params - last.certified_params)
    assert moved == pytest.approx(float(last.history.step_norm[-1]), rel=1e-3)
    assert output.certificate.iterate == "output"
    np.testing.assert_array_equal(output.certified_params, output.params)
    assert none.certificate is None and none.certified_params is None


def test_the_certificate_of_the_output_asks_with_fresh_noise():
    """Its gradient at an unmoved iterate differs from the last answer."""
    null = dpjax.Dataset(np.zeros((N, P), np.float32), np.ones(N, np.float32), max_norm=1.0)
    budget = dpjax.PrivacyBudget(1.0, 1e-4)
    algorithm = build(dpjax.objectives.logistic(), budget, steps=2, certify="output")
    solution = dpjax.solve(algorithm, null, key=KEY)
    released = float(solution.certificate.gradient_norm_upper) - algorithm.bounds.gradient
    assert released > 0
    for norm in np.asarray(solution.history.gradient_norm):
        assert abs(released - norm) > 1e-3 * norm


def test_a_stopping_rule_splits_beta_over_the_steps():
    """The rule looks at the noise to pick the iterate, so each one must be covered."""
    budget = dpjax.PrivacyBudget(1.0, 1e-4)
    fixed = build(budget=budget, steps=10, beta=0.05)
    picked = build(budget=budget, steps=10, beta=0.05, stopping_alpha=0.1)
    same = build(budget=budget, steps=10, beta=0.005)
    fresh = build(budget=budget, steps=9, beta=0.05, stopping_alpha=0.1, certify="output")
    assert picked.bounds == same.bounds
    assert picked.bounds.gradient > fixed.bounds.gradient
    assert fresh.bounds == fixed.bounds
    assert picked.beta == fixed.beta == 0.05


@pytest.mark.parametrize(
    ("more", "rows_are_unit", "scope"),
    [
        ({}, True, "objective"),
        ({}, False, "clipped objective"),
        ({"clip_norm": 0.5}, True, "clipped objective"),
        ({"clip_norm": 2.0}, True, "objective"),
        ({"hessian_clip_norm": 0.1}, True, "clipped objective"),
        ({"release": "separate"}, True, "objective"),
        ({"release": "separate", "hessian_clip_norm": 0.1}, True, "clipped objective"),
    ],
)
def test_the_scope_says_whether_clipping_may_act(more, rows_are_unit, scope):
    data = bounded_rows()
    given = data if rows_are_unit else data.examples
    algorithm = build(budget=dpjax.PrivacyBudget(1.0, 1e-4), steps=1, **more)
    # It depends on no number, so that nothing is run.
    solution = jax.eval_shape(lambda key: dpjax.solve(algorithm, given, key=key), KEY)
    assert solution.certificate.scope == scope
