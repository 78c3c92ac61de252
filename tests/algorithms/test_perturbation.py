"""One noisy minimiser: how far a record moves it, how near the minimum it is, and what it costs."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from factories import mostly_ci
from scipy import special, stats

import dpjax
from dpjax._wide import to_float64
from dpjax.accounting import events, records_moved
from dpjax.accounting.filters import Books
from dpjax.auditing import canaries
from dpjax.derivatives import distance_bound
from dpjax.oracles import MinimizerQuery, Setting, bind, iterations_of

N, P, MU = 16, 3, 0.05
OBJECTIVE = dpjax.objectives.logistic_l2(MU)
BUDGET = dpjax.PrivacyBudget(1.0, 1e-4)
FACTORIES = dpjax.algorithms.ONE_RELEASE
LEVEL = 1e-6

# The relations of a public n.
FIXED = ["zero_out", "replace_one"]

each = pytest.mark.parametrize("name", FACTORIES)


def build(name, **more):
    objective, budget = more.pop("objective", OBJECTIVE), more.pop("budget", BUDGET)
    return FACTORIES[name](objective, budget, **{"data_size": N, "dimension": P} | more)


def records(seed=0, n=N, p=P):
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, p)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x, np.where(x[:, 0] > 0.2, 1.0, -1.0).astype(np.float32)


def minimizer(relation, objective=OBJECTIVE, iterations=None):
    if iterations is None:
        iterations = iterations_of(objective, 5e-4 / N)
    return MinimizerQuery(
        setting=Setting(objective, N, relation), noise_multiplier=1.0, iterations=iterations
    )


def exact(query, data):
    (found,) = query.exact(bind(query, data), jnp.zeros(data[0].shape[1]))
    with jax.enable_x64(True):
        return np.asarray(to_float64(found))


def without_one(relation, x, y, instead):
    """A neighbour: the first record is null or replaced."""
    x = x.copy()
    x[0] = instead if relation == "replace_one" else 0
    return x, y


@pytest.mark.parametrize("relation", FIXED)
def test_one_record_moves_the_minimum_by_its_sensitivity(relation):
    """Whatever the features' length; a loss of constant slope moves it by all of that."""
    query = minimizer(relation)
    random = np.random.default_rng(1)
    for seed in range(4):
        x, y = records(seed)
        x[0] *= [1.0, 1e6, 1.0, 30.0][seed]
        other = without_one(relation, x, y, 1e3 * random.normal(size=P))
        moved = np.linalg.norm(exact(query, (x, y)) - exact(query, other))
        assert 0 < moved <= query.sensitivity
    worst = minimizer(relation, canaries.LOSSES["falling"])
    x, y = records(9, p=1)
    x[0] = 1
    y[0] = 1
    moved = np.linalg.norm(exact(worst, (x, y)) - exact(worst, without_one(relation, x, y, [-1])))
    assert 0.99 * worst.sensitivity < moved <= worst.sensitivity


def test_it_is_the_minimum():
    data = records()
    found = jnp.asarray(exact(minimizer("zero_out"), data), jnp.float32)
    assert dpjax.diagnostics.exact_gradient_norm(OBJECTIVE, found, data) < 1e-5
    # Features longer than 1 count as if they had length 1.
    longer = (data[0] * np.float32(7.0), data[1])
    np.testing.assert_allclose(exact(minimizer("zero_out"), longer), found, atol=1e-5)


@pytest.mark.parametrize("name", ["opposed", "aligned", "random"])
def test_it_is_as_near_the_minimum_as_was_proved(name):
    """Also after few steps, where the bound is large; a bound 1,000 times smaller is wrong."""
    x, y = records(3)
    if name != "random":
        x[:] = 0
        x[:, 0] = 1
        y[:] = 1 if name == "aligned" else np.where(np.arange(N) % 2, 1, -1)
    best, worst = exact(minimizer("zero_out", iterations=2_000), (x, y)), 0.0
    for iterations in (1, 5, 20, 60):
        query = minimizer("zero_out", iterations=iterations)
        distance = np.linalg.norm(exact(query, (x, y)) - best)
        bound = float(distance_bound(1.0, MU, 0.25, iterations, N))
        assert distance <= bound
        worst = max(worst, distance / bound)
    assert worst > 1e-3 or name == "opposed"  # whose minimum is where it starts


@each
def test_a_private_n_is_refused(name):
    """Of three times as many records as declared the solver would not find the minimum."""
    with pytest.raises(ValueError, match="cannot be released under relation='add_or_remove_one'"):
        build(name, budget=dpjax.PrivacyBudget(1.0, 1e-6, "add_or_remove_one"))


@each
@pytest.mark.parametrize("relation", FIXED)
def test_epsilon_is_within_the_budget_and_nothing_is_wasted(name, relation):
    for eps in (0.1, 1.0, 8.0):
        budget = dpjax.PrivacyBudget(eps, 1e-6, relation)
        algorithm = build(name, budget=budget, data_size=1_000)
        assert eps * (1 - 2e-3) < dpjax.accounting.epsilon(algorithm.event, 1e-6, relation) <= eps


def test_the_noise_added_is_the_noise_accounted():
    """A chi-squared test at LEVEL on the answers to null records, whose minimum is 0."""
    algorithm = build("output-perturbation")
    null = (jnp.zeros((N, P)), jnp.ones(N))
    keys = jax.random.split(jax.random.key(3), 4_000)
    params = jax.vmap(lambda key: dpjax.solve(algorithm, null, key=key).params)(keys)
    (release,) = algorithm.event.releases
    expected = records_moved("zero_out") / (N * MU) * release.noise_multiplier
    assert release.stddev == pytest.approx(expected, rel=2e-3)
    for scale, good in ((1.0, True), (0.95, False), (1 / 0.95, False)):
        squares = float(((np.asarray(params, float) * scale / release.stddev) ** 2).sum())
        p_value = stats.chi2(params.size).cdf(squares)
        assert (LEVEL / 2 < p_value < 1 - LEVEL / 2) == good


@pytest.mark.parametrize("name", mostly_ci(FACTORIES, ["objective-perturbation"]))
def test_it_runs_like_any_algorithm(name):
    algorithm, data, key = build(name), records(), jax.random.key(5)
    solution = dpjax.solve(algorithm, data, key=key)
    assert int(solution.steps) == 1 and solution.params.shape == (P,)
    assert solution.epsilon(BUDGET.delta) <= BUDGET.epsilon
    assert "is (1, 0.0001)-differentially private" in solution.guarantee()
    # Another epsilon is another leaf: one structure, so one program.
    louder = build(name, budget=dpjax.PrivacyBudget(3.0, 1e-5))
    assert jax.tree.structure(louder) == jax.tree.structure(algorithm)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), algorithm, louder)
    swept = jax.vmap(lambda one: dpjax.solve(one, data, key=key).params)(stacked)
    np.testing.assert_allclose(swept[0], solution.params, rtol=1e-4, atol=1e-5)
    assert not np.allclose(swept[1], solution.params, rtol=1e-2)


@each
def test_an_impossible_record_is_a_null_record(name):
    algorithm, (x, y), key = build(name), records(), jax.random.key(5)
    x[2] = 0
    expected = dpjax.solve(algorithm, (x, y), key=key).params
    for value in (np.nan, np.inf):
        x[2, 1] = value
        np.testing.assert_array_equal(dpjax.solve(algorithm, (x, y), key=key).params, expected)


SIGMOID = dpjax.objectives.sigmoid_l2(0.1)
TOO_FLAT = dataclasses.replace(OBJECTIVE, constants=(1.0, 0.1, 0.1))


@each
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"objective": dpjax.objectives.logistic()}, "strongly convex"),
        ({"objective": dpjax.objectives.logistic_l2(0.0)}, "strongly convex"),
        ({"objective": dpjax.objectives.logistic_nonconvex()}, "strongly convex"),
        ({"objective": SIGMOID}, "must be convex"),
        ({"objective": TOO_FLAT}, "must be convex with curvature at most"),
        ({"objective": dpjax.Objective(lambda w, e: 0.0)}, "needs a margin"),
        ({"data_size": 0}, "data_size must be"),
    ],
)
def test_bad_arguments(name, bad, message):
    with pytest.raises(ValueError, match=message):
        build(name, **bad)


# Objective perturbation: its law, and the bound on its privacy loss.


def test_the_tilt_has_the_noise_accounted():
    """The minimum over null records is -tilt / mu: a chi-squared test at LEVEL."""
    algorithm = build("objective-perturbation")
    null = (jnp.zeros((N, P)), jnp.ones(N))
    keys = jax.random.split(jax.random.key(4), 4_000)
    params = jax.vmap(lambda key: dpjax.solve(algorithm, null, key=key).params)(keys)
    tilted, hidden = algorithm.event.releases
    stddev = np.hypot(tilted.stddev / MU, hidden.stddev)
    assert tilted.stddev == pytest.approx(tilted.noise_multiplier / N)
    assert hidden.stddev < 0.02 * stddev
    for scale, good in ((1.0, True), (0.95, False), (1 / 0.95, False)):
        squares = float(((np.asarray(params, float) * scale / stddev) ** 2).sum())
        p_value = stats.chi2(params.size).cdf(squares)
        assert (LEVEL / 2 < p_value < 1 - LEVEL / 2) == good


def densities(stddev, strength, *worlds):
    """Those of exact objective perturbation in one dimension on a grid, and its step.

    Records are numbers z; the minimum of sum log(1 + e^(-z w)) + strength w^2 / 2 + b w.
    """
    w = np.linspace(-1, 1, 200_001) * (9 * stddev + 3) / strength
    found = []
    for records in worlds:
        slope, curvature = strength * w, np.full(w.shape, strength)
        for z in records:
            chance = special.expit(-z * w)
            slope = slope - z * chance
            curvature = curvature + z * z * chance * (1 - chance)
        found.append(stats.norm.pdf(slope, scale=stddev) * curvature)
        assert found[-1].sum() * (w[1] - w[0]) == pytest.approx(1, abs=1e-7)
    return *found, w[1] - w[0]


@pytest.mark.parametrize("relation", ["zero_out", "replace_one"])
def test_the_bound_on_delta_holds_and_needs_its_parts(relation):
    """Against the exact law; without the Hessian's part, or with half of the slope, it fails."""
    moved, bound, broken = records_moved(relation), dpjax.accounting.perturbed_delta, [0, 0]
    others = [0.3, -0.5]
    worlds = [1.0, *others], [-1.0, *others] if relation == "replace_one" else others
    for stddev, strength in itertools.product([0.5, 1.0, 3.0, 20.0], [0.05, 0.5]):
        release = dpjax.accounting.PerturbationRelease(
            "w",
            1,
            stddev / moved,
            log_shift=float(np.log1p(0.25 / strength)),
        )
        less = [
            dataclasses.replace(release, log_shift=0.0),
            dataclasses.replace(release, noise_multiplier=2 * stddev),
        ]
        p, q, step = densities(stddev, strength, *worlds)
        for epsilon in (0.0, 0.3, 1.0, 2.0, 4.0):
            for one, other in ((p, q), (q, p)):
                true = float(np.maximum(one - np.exp(epsilon) * other, 0).sum() * step)
                assert true <= bound(release, relation, epsilon) + 1e-6
                for i, wrong in enumerate(less):
                    broken[i] += true > bound(wrong, relation, epsilon) + 1e-5
    # For a replaced record there is room enough in the plane to hide the first fault.
    assert broken[1] and (broken[0] or relation == "replace_one")


@pytest.mark.parametrize("mu", [0.01, 0.8, 2.0, 6.0])
def test_deltas_beside_gaussians_are_no_less_than_theirs(mu):
    """Whatever the perturbation adds: here next to nothing."""
    tilt = dpjax.accounting.PerturbationRelease("tilt", 1, 1e6)
    beside = dpjax.accounting.Release("output", 4, 2 / mu)
    both = dpjax.accounting.Event((tilt, beside), "zero_out")
    alone = dpjax.accounting.Event((beside,), "zero_out")
    epsilons = np.linspace(0, mu**2 / 2 + 8 * mu, 40)
    least = events.deltas(alone, epsilons)
    assert (events.deltas(both, epsilons) >= (1 - 1e-9) * least).all()


def test_a_slope_that_rises_or_a_strength_too_small_is_refused():
    rising = dataclasses.replace(OBJECTIVE, margin=lambda m: jnp.logaddexp(m, -m) / 4)
    with pytest.raises(ValueError, match="must be non-increasing"):
        build("objective-perturbation", objective=rising)
    weak = dpjax.objectives.logistic_l2(1e-4)
    with pytest.raises(ValueError, match="strength must be at least"):
        build("objective-perturbation", objective=weak)


def test_other_accountings_refuse_it():
    event = build("objective-perturbation").event
    for ask in (
        lambda: dpjax.accounting.epsilon(event, 1e-4, "zero_out", "rdp"),
        lambda: dpjax.accounting.epsilon(
            dpjax.accounting.Event(event.releases * 2, "zero_out"), 1e-4, "zero_out"
        ),
        lambda: dpjax.accounting.renyi(event, 2.0),
        lambda: Books(BUDGET, None, True).limits(event),
        lambda: event.gaussian_mu,
        lambda: build("objective-perturbation", accountant="rdp"),
    ):
        with pytest.raises(ValueError, match=r"Renyi|beside|sampled releases|ledger"):
            ask()
