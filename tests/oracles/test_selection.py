"""The private selection: its accounting, its noise, what one record moves, and what it chooses."""

import json

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from factories import mostly_ci
from scipy import optimize, stats

import dpjax
from dpjax.accounting import (
    RELATIONS,
    Event,
    PrivacyBudget,
    Release,
    SelectionRelease,
    compose,
    epsilon,
    gumbel_multiplier,
    gumbel_scale,
    renyi,
)
from dpjax.accounting.filters import Books
from dpjax.algorithms import dp_gradient_descent_with_selection
from dpjax.mechanisms import noisy_argmax, selection_error
from dpjax.mechanisms.fixed_point import FRACTION, gumbel_from_bits
from dpjax.oracles import SelectionQuery, Setting, bind

# Each statistical check fails by chance with this probability at most.
LEVEL = 1e-6
N, P, K = 8, 3, 4
DELTA = 1e-5


def selection(pure_epsilon, count=1, **more):
    multiplier = gumbel_multiplier(pure_epsilon)
    return SelectionRelease("selection", count, multiplier, **more)


def event(*releases, relation="zero_out"):
    return Event(releases, relation)


# Accounting.


def gaussian_delta(mu, eps):
    return stats.norm.cdf(-eps / mu + mu / 2) - np.exp(eps) * stats.norm.cdf(-eps / mu - mu / 2)


def two_outcomes(spread, t):
    """The losses t and t - spread, and their probabilities: the most that one pair can differ."""
    likely = np.expm1(t - spread) / np.expm1(-spread)
    return np.array([t, t - spread]), np.array([likely, 1 - likely])


def true_epsilon(mu, spread, t, delta):
    """By brute force, of Gaussians and one exponential mechanism of two outcomes."""
    losses, masses = two_outcomes(spread, t)

    def excess(eps):
        return masses @ gaussian_delta(mu, eps - losses) - delta

    return optimize.brentq(excess, 0, 60) if excess(0) > 0 else 0.0


def dominating_delta(mu, spread, epsilons):
    """The mean of the Gaussians' deltas over the losses of the dominating pair, by quadrature."""
    nodes, weights = np.polynomial.legendre.leggauss(200)
    losses = spread * nodes
    density = np.exp((losses - spread) / 2) / -np.expm1(-spread) / 2
    return gaussian_delta(mu, epsilons[:, None] - losses) @ (spread * weights * density)


@pytest.mark.parametrize("mu", [0.05, 0.3, 1.0])
@pytest.mark.parametrize("spread", [0.01, 0.1, 1.0, 4.0])
def test_a_composition_bounds_every_mechanism_by_brute_force(mu, spread):
    whole = event(Release("gradient", 4, 2 / mu), selection(spread))
    found = epsilon(whole, DELTA, "zero_out")
    worst = max(true_epsilon(mu, spread, t, DELTA) for t in np.linspace(0, spread, 41))
    assert worst <= found <= 1.02 * worst
    assert found <= epsilon(whole, DELTA, "zero_out", "rdp")
    # The same from the formula of the dominating pair, without a grid.
    at = dominating_delta(mu, spread, np.array([found, found * 0.999]))
    assert at[0] <= DELTA * (1 + 1e-6) and at[1] > DELTA * 0.99
    # Rejected: a selection booked at half its range, or not at all.
    for claimed in (
        event(Release("g", 4, 2 / mu), selection(spread / 2)),
        event(whole.releases[0]),
    ):
        assert spread < 0.1 or epsilon(claimed, DELTA, "zero_out") < worst


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0, 12.0])
def test_a_selection_alone_has_a_closed_form(spread, relation):
    exact = spread + 2 * np.log1p(-np.sqrt(DELTA * -np.expm1(-spread)))
    found = epsilon(event(selection(spread), relation=relation), DELTA, relation)
    assert exact <= found <= exact + 1e-3
    assert found < spread


def test_any_exponential_mechanism_keeps_to_its_range_and_divergence():
    """Random scores, each moved by the sensitivity at most; half the range would be broken."""
    random, spread, orders = np.random.default_rng(0), 1.0, (1.5, 4.0, 64.0)
    ranges, divergences = [], []
    for _ in range(500):
        scores, signs = random.normal(size=5), random.choice([-1.0, 1.0], 5)
        one, other = (s / 2 for s in (scores, scores + signs))  # scale 2, so that 2 D / 2 = 1
        logs = [s - np.log(np.exp(s).sum()) for s in (one, other)]
        ratio = logs[1] - logs[0]
        ranges.append(np.abs(ratio).max())
        divergences.append([np.log(np.exp(logs[0] + a * ratio).sum()) / (a - 1) for a in orders])
    allowed = [renyi(event(selection(spread)), a) for a in orders]
    halved = [renyi(event(selection(spread / 2)), a) for a in orders]
    worst = np.max(divergences, axis=0)
    assert spread / 2 < max(ranges) <= spread
    assert (worst <= allowed).all() and (worst > halved).all()


def test_composition_of_selections_and_gaussians():
    gradient = event(Release("gradient", 40, 20.0))
    both = compose([gradient, event(selection(0.1))])
    assert gradient.is_gaussian and not both.is_gaussian
    with pytest.raises(ValueError, match="select"):
        _ = both.gaussian_mu
    alone = epsilon(gradient, DELTA, "zero_out")
    assert alone < epsilon(both, DELTA, "zero_out") < alone + 0.1
    twice = epsilon(event(selection(1.0, 2)), DELTA, "zero_out")
    assert epsilon(event(selection(1.0)), DELTA, "zero_out") < twice < 2
    assert twice == epsilon(event(selection(1.0), selection(1.0)), DELTA, "zero_out")
    # The order 64 of pure epsilon 0.1: 64 0.01 / 8, and 0.1 at most.
    assert renyi(event(selection(0.1)), 4.0) == pytest.approx(0.005)
    assert renyi(event(selection(0.1)), 400.0) == pytest.approx(0.1)
    assert renyi(both, 4.0) == pytest.approx(renyi(gradient, 4.0) + 0.005)
    accountant = dp_accounting.rdp.RdpAccountant().compose(both.dp_event)
    library = accountant.get_epsilon(DELTA)
    assert epsilon(both, DELTA, "zero_out", "rdp") == pytest.approx(library, rel=1e-3)


def test_what_rounding_costs_is_charged_once_and_whatever_epsilon():
    exact, rounded = (
        [epsilon(event(selection(r, failure_probability=o)), 1e-9, "zero_out") for r in (0.1, 5.0)]
        for o in (0.0, selection_error(32))
    )
    assert all(0 < b - a < 1e-2 for a, b in zip(exact, rounded, strict=True))
    # As the coins of a batch it would be charged with e^epsilon, which ends at 25.
    chosen = selection(0.1, failure_probability=selection_error(32))
    whole = event(Release("gradient", 10, 0.1), chosen)
    assert 100 < epsilon(whole, 1e-6, "zero_out") < 1000
    with pytest.raises(ValueError, match="too small"):
        epsilon(whole, 1e-12, "zero_out")


def test_a_ledger_of_unsampled_runs_refuses_selections_and_one_of_all_books_them():
    budget = PrivacyBudget(1.0, 1e-6)
    chosen = selection(0.1, failure_probability=selection_error(32))
    both = event(Release("gradient", 40, 200.0), chosen)
    unsampled, books = Books(budget), Books(budget, 16.0)
    with pytest.raises(ValueError, match=r"samples or selects.*--unsampled"):
        unsampled.cost(both, unsampled.single)
    rho = 16 * 40 / (2 * 200**2) + 16 * 0.01 / 8
    assert books.cost(both, books.single)[1] == pytest.approx(rho / books.single.renyi)
    opened = Books(budget, None, True).limits(both)
    assert opened.own > 2 and opened.renyi > 0 and len(opened.steps) == 2


def test_a_release_says_how_it_was_made():
    written = selection(1.0, sensitivity=0.2).to_json()
    json.dumps(written)
    assert (written["mechanism"], written["std_of"]) == ("exponential", "score")
    assert written["stddev"] == pytest.approx(written["multiplier"] * written["sensitivity"])
    assert Release("gradient", 1, 1.0).to_json()["mechanism"] == "gaussian"
    assert gumbel_scale(gumbel_multiplier(0.5)) == pytest.approx(4.0)
    fields = {**Release("gradient", 1, 1.0).to_fields(), "mechanism": "exponentail"}
    with pytest.raises(ValueError, match=r"'exponentail'.*import the module"):
        Release.from_fields(fields)


# The noise.


def test_quantiles_are_those_of_the_gumbel_law_far_into_the_tail():
    """The lowest bit of the first word is the side, the others half of the tail's probability."""
    high, low = np.array([[0, 0, 2, 2**31, 2**32 - 2], [0, 7, 0, 0, 2**31]], np.uint32)
    middle = np.uint32([[2**31] * 5, [0] * 5])
    tails = ((high >> 1) * 2.0**-31 + low * 2.0**-63 + 2.0**-64) / 2
    for side, quantile in ((0, stats.gumbel_r.isf), (1, stats.gumbel_r.ppf)):
        found = np.asarray(gumbel_from_bits(np.stack([high | side, low]), middle)) * 2.0**-FRACTION
        np.testing.assert_allclose(found, quantile(tails), rtol=1e-12, atol=1e-15)
        # Float32 noise would end at 17: a place further behind would never be chosen.
        assert side or found.max() > 45


def follows(places, logits):
    """Whether a chi-square test at LEVEL accepts places as drawn by softmax(logits)."""
    expected = np.exp(logits - np.logaddexp.reduce(logits)) * len(places)
    counts = np.bincount(places, minlength=len(logits))
    return stats.chisquare(counts, expected).pvalue > LEVEL


def test_noisy_argmax_is_the_exponential_mechanism():
    scores = jnp.array([0.0, 1.0, -2.0, 3.0, -jnp.inf, jnp.nan])
    draw = jax.jit(jax.vmap(lambda key: noisy_argmax(key, scores, 2.0)))
    places = np.asarray(draw(jax.random.split(jax.random.key(0), 40_000)))
    logits = np.array([0.0, 1.0, -2.0, 3.0])
    assert places.dtype == np.int32
    assert follows(places, logits / 2)
    assert not follows(places, logits / 1.9) and not follows(places, logits / 2.1)


# The query.


def bent(params, example):
    """A Hessian of full rank, far above every clip norm, of the example's sign; no slope at 0."""
    return 1e4 * example * (params @ params) / 2


def steep(params):
    return -1e4 * (params @ params) / 2


def query_of(relation, pure_epsilon=1.0, regularizer=steep, **more):
    objective = dpjax.Objective(bent, regularizer)
    return SelectionQuery(
        setting=Setting(objective, N, relation),
        noise_multiplier=gumbel_multiplier(pure_epsilon),
        clip_norm=0.5,
        gradient_tolerance=0.1,
        curvature_tolerance=0.2,
        dimension=P,
        candidates=K,
        **more,
    )


def scores_of(query, rows, norms, filled=K):
    points = jnp.arange(K * P, dtype=jnp.float32).reshape(K, P) / 10
    found = query.exact(bind(query, rows), points, gradient_norms=norms, filled=filled)[0]
    return np.sum([np.asarray(word, float) for word in found.terms], axis=0)


@pytest.mark.parametrize("relation", RELATIONS)
def test_a_score_moves_by_its_sensitivity_and_no_more(relation):
    """One record turns a multiple C / sqrt(p) of I; the regularizer is 10^5 times larger."""
    query = query_of(relation)
    canary = np.ones(N, np.float32)
    other = {
        "zero_out": np.where(np.arange(N) == 3, 0, canary),
        "replace_one": np.where(np.arange(N) == 3, -canary, canary),
        "add_or_remove_one": canary[1:],
    }[relation].astype(np.float32)
    first, second = (scores_of(query, rows, jnp.zeros(K)) for rows in (canary, other))
    moved = np.abs(first - second)
    times = dpjax.accounting.records_moved(relation)
    assert (moved <= query.sensitivity).all()
    np.testing.assert_allclose(moved, times * 0.5 / np.sqrt(P) / N / 0.2, rtol=1e-4)
    assert query.sensitivity == pytest.approx(times * 0.5 / N / 0.2, rel=3e-3)


def test_where_the_gradient_decides_no_record_moves_the_score():
    query = query_of("zero_out", regularizer=None)
    norms = jnp.arange(1.0, K + 1)
    for rows in (jnp.zeros(N), jnp.ones(N)):
        np.testing.assert_allclose(scores_of(query, rows, norms), -10 * norms, rtol=1e-6)
    assert (scores_of(query, jnp.ones(N), norms, 2)[2:] == -np.inf).all()


def test_the_place_follows_the_exponential_mechanism():
    """With the scale that the event books, not the one that the program computes."""
    query = query_of("zero_out", pure_epsilon=0.5, regularizer=None)
    rows, norms = jnp.zeros(N), jnp.array([0.0, 0.1, 0.15, 0.3])
    points = jnp.zeros((K, P))
    records = bind(query, rows)
    draw = jax.jit(
        jax.vmap(lambda key: query.answer(key, records, points, gradient_norms=norms, filled=K))
    )
    places = np.asarray(draw(jax.random.split(jax.random.key(1), 20_000)))
    (release,) = query.event(1).releases
    scale = release.stddev * np.sqrt(6) / np.pi
    assert release.pure_epsilon == pytest.approx(0.5)
    assert scale == pytest.approx(2 * query.sensitivity / 0.5)
    assert follows(places, -10 * np.asarray(norms, float) / scale)
    assert not follows(places, -10 * np.asarray(norms, float) / (0.9 * scale))


def test_a_run_reads_hessians_once_and_all_steps_but_the_last_say_nothing():
    query = query_of("zero_out")
    draw = jax.jit(
        jax.vmap(
            lambda key, filled: query.answer(
                key,
                bind(query, jnp.ones(N)),
                jnp.zeros((K, P)),
                gradient_norms=jnp.zeros(K),
                filled=filled,
            ),
            (0, None),
        )
    )
    keys = jax.random.split(jax.random.key(2), 50)
    assert (draw(keys, 0) == 0).all() and len(np.unique(draw(keys, K))) == K
    algorithm = dp_gradient_descent_with_selection(
        dpjax.objectives.logistic(),
        PrivacyBudget(1.0, DELTA),
        data_size=N,
        dimension=P,
        steps=7,
        candidates=3,
    )
    asked, state = [], algorithm.init(jnp.zeros(P))

    def ask(query, params, **public):
        asked.append((query.name, public.get("filled")))
        return jnp.ones(P) if query.name == "gradient" else jnp.asarray(1, jnp.int32)

    seen = []
    for _ in range(7):
        seen.append(state.params)
        state, _ = algorithm.step(None, state, ask)
    assert [int(filled) for name, filled in asked if name == "selection"] == [0] * 6 + [3]
    # The last iterate of every third of the run.
    np.testing.assert_array_equal(state.candidates, [seen[2], seen[4], seen[6]])
    np.testing.assert_array_equal(algorithm.output(state), seen[4])


@pytest.mark.parametrize(("steps", "chosen"), [(1, 0), (2, 1), (7, 2)])
def test_at_epsilon_0_the_least_released_gradient_among_the_filled_is_selected(steps, chosen):
    algorithm = dp_gradient_descent_with_selection(
        dpjax.objectives.logistic(),
        PrivacyBudget(1.0, DELTA),
        data_size=N,
        dimension=P,
        steps=steps,
        selection_epsilon=0.0,
        candidates=3,
    )
    assert [release.name for release in algorithm.event.releases] == ["gradient"]
    state = algorithm.init(jnp.zeros(P))
    for step in range(steps):
        # Falling, but a NaN where the last of five steps is.
        gradient = jnp.full(P, 9.0 - step if step != 4 else jnp.nan)
        state, _ = algorithm.step(None, state, lambda *_, g=gradient, **__: g)
    assert int(state.selected) == chosen


def test_the_number_of_the_design():
    """PM 8: n = 35,000, M = 1/4, eps_s = 0.1, K = 40, replace-one: lambda_min errs by 1.9e-3."""
    algorithm = dp_gradient_descent_with_selection(
        dpjax.objectives.logistic_nonconvex(1e-3),
        PrivacyBudget(1.0, DELTA, "replace_one"),
        data_size=35_000,
        dimension=22,
        steps=40,
        selection_epsilon=0.1,
        candidates=40,
    )
    asked = algorithm.selection
    rho = 1 / (6 * np.sqrt(3)) + 6e-3 * np.cos(np.pi / 10) ** 5  # of the loss, of the regularizer
    tolerance = np.sqrt(0.1 * rho)
    assert asked.curvature_tolerance == pytest.approx(tolerance, rel=1e-6)
    assert asked.sensitivity * tolerance == pytest.approx(2 * 0.25 / 35_000, rel=2e-3)
    error = float(asked.gumbel_scale) * tolerance * np.log(40 / 0.05)
    assert error == pytest.approx(1.9e-3, rel=0.01)
    gradients, chosen = algorithm.event.releases
    assert chosen.pure_epsilon == pytest.approx(0.1, rel=1e-6)
    # Of the variance that the gradients could have had, the selection leaves all but 4 %.
    assert 1 < gradients.noise_multiplier * 0.268051 / np.sqrt(40) < 1.04


def test_a_saddle_is_not_chosen_where_a_minimum_is():
    """Gradients are small at both; only the curvature tells."""
    objective = dpjax.Objective(lambda w, x: x * (w[0] ** 4 / 4 - w[0] ** 2 / 2), None)
    n = 2_000
    query = SelectionQuery(
        setting=Setting(objective, n, "zero_out"),
        noise_multiplier=gumbel_multiplier(0.5),
        clip_norm=3.0,
        gradient_tolerance=0.1,
        curvature_tolerance=0.3,
        dimension=1,
        candidates=2,
    )
    records = bind(query, jnp.ones(n))
    points = jnp.array([[0.0], [1.0]])
    draw = jax.vmap(
        lambda key: query.answer(key, records, points, gradient_norms=jnp.zeros(2), filled=2)
    )
    assert (draw(jax.random.split(jax.random.key(3), 200)) == 1).all()


# The whole algorithm.


BAD = {
    "selection_epsilon below 0": ({"selection_epsilon": -1.0}, "selection_epsilon must be"),
    "all of the budget": ({"selection_epsilon": 1.0}, "below the budget's epsilon=1, got 1.0"),
    "candidates 0": ({"candidates": 0}, "candidates must be at least 1"),
    "alpha 0": ({"alpha": 0.0}, "alpha must be"),
    "rho negative": ({"hessian_lipschitz": -1.0}, "hessian_lipschitz must be"),
    "certify last_query": ({"certify": "last_query"}, "certify must be 'output'"),
    "hessian_clip_norm 0": ({"hessian_clip_norm": 0.0}, "hessian_clip_norm must be"),
    "steps 0": ({"steps": 0}, "steps must be at least 1"),
    "no constants": (
        {
            "objective": dpjax.Objective(bent),
            "clip_norm": 1.0,
            "hessian_clip_norm": 1.0,
            "step_size": 1.0,
        },
        "hessian_lipschitz is required",
    ),
}


@pytest.mark.parametrize(("bad", "message"), list(BAD.values()), ids=list(BAD))
def test_bad_arguments(bad, message):
    given = {"objective": dpjax.objectives.logistic(), "data_size": N, "dimension": P, "steps": 3}
    given |= bad
    with pytest.raises(ValueError, match=message):
        dp_gradient_descent_with_selection(
            given.pop("objective"), PrivacyBudget(1.0, DELTA), **given
        )


@pytest.mark.parametrize("selection_epsilon", mostly_ci([None, 0.0], [0.0]))
def test_the_certificate_holds_at_whatever_is_selected(selection_epsilon):
    """Chosen for its small noisy gradient, the bound of one iterate would fail too often."""
    n, steps, beta = 64, 12, 0.2
    random = np.random.default_rng(0)
    x = random.normal(size=(n, P)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = np.where(x[:, 0] > 0, 1.0, -1.0).astype(np.float32)
    objective = dpjax.objectives.logistic()
    algorithm = dp_gradient_descent_with_selection(
        objective,
        PrivacyBudget(8.0, 1e-3),
        data_size=n,
        dimension=P,
        steps=steps,
        step_size=1e-3,
        beta=beta,
        alpha=1e-3,
        selection_epsilon=selection_epsilon,
        candidates=steps,
    )
    data = dpjax.Dataset(x, y, unit="row", max_norm=1.0)
    keys = jax.random.split(jax.random.key(4), 1_000)
    runs = jax.vmap(lambda key: dpjax.solve(algorithm, data, key=key))(keys)
    gradient = jax.vmap(
        jax.grad(lambda w: jnp.mean(jax.vmap(objective.loss, (None, 0))(w, data.examples)))
    )
    exact = np.linalg.norm(gradient(runs.certified_params), axis=1)
    failed = (exact > runs.certificate.gradient_norm_upper).mean()
    assert runs.certificate.iterate == "output" and runs.certificate.scope == "objective"
    np.testing.assert_array_equal(runs.certified_params, runs.params)
    assert stats.binom.sf(failed * 1_000 - 1, 1_000, beta) > LEVEL
    # Not empty: without its noise the bound would fail.
    bare = np.asarray(runs.certificate.gradient_norm_upper) - float(algorithm.bounds.gradient)
    assert (exact > bare).mean() > beta
