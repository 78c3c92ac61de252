"""DP-SVRG and DP-SVRG++: differences that are right and bounded, epochs, anchors and accounting."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from factories import quiet

import dpjax
from dpjax.accounting import RELATIONS
from dpjax.auditing import canaries
from dpjax.derivatives import clipped_grad, clipped_grad_difference
from dpjax.oracles import (
    AnchorQuery,
    DifferenceQuery,
    GradientQuery,
    Setting,
    bind,
    cond_under_vmap,
)

N, P, CLIP = 37, 4, 0.3
LOGISTIC = dpjax.objectives.logistic_l2(0.1)
PLAIN = dpjax.Objective(LOGISTIC.loss)


def records(n=N):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, P)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return jnp.asarray(x), jnp.where(x[:, 0] > 0, 1.0, -1.0)


def reference(params, anchor, data, keep, bound):
    """One record after another, in NumPy."""
    slope, total = jax.jit(jax.grad(LOGISTIC.loss)), np.zeros(P)
    for i in np.flatnonzero(keep):
        pair = [np.asarray(slope(w, (data[0][i], data[1][i])), float) for w in (params, anchor)]
        here, there = (g * min(1, CLIP / np.linalg.norm(g)) for g in pair)
        change = here - there
        total += change * min(1, bound / max(np.linalg.norm(change), 1e-30))
    return total


@pytest.mark.parametrize("objective", [LOGISTIC, PLAIN], ids=["closed", "general"])
def test_differences_are_those_of_one_record_after_another(objective):
    data, keep = records(), np.arange(N) % 3 > 0
    params, anchor = jnp.full(P, 2.0), jnp.zeros(P)
    for smoothness in (0.25, 0.01):  # only some clipped at the distance, and all
        total = clipped_grad_difference(objective, smoothness=smoothness, clip_norm=CLIP)
        bound, differences = min(2 * CLIP, 4 * smoothness), jax.jit(total)
        expected = reference(params, anchor, data, keep, bound)
        got = differences(params, anchor, data, keep)
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
        for relation, moved in (("zero_out", 1), ("replace_one", 2)):
            found = total.sensitivity(relation, distance=4.0, rows=N)
            assert moved * bound < found < 1.003 * moved * bound
        every = np.ones(N, bool)
        assert not np.any(differences(params, params, data, every))  # at the anchor exactly 0
        loud = (data[0].at[3].set(jnp.nan), data[1])
        keep[3] = False
        dropped = differences(params, anchor, data, keep)
        np.testing.assert_array_equal(differences(params, anchor, loud, keep), dropped)
        keep[3] = True
        with_nan = differences(params, anchor, loud, keep)
        np.testing.assert_allclose(with_nan, dropped, atol=1e-6)


def test_no_record_exceeds_what_the_distance_allows():
    canary = canaries.LOSSES["winding"]
    for move in (0.0, 1e-20, 1e-3, 1.0, jnp.inf):
        params = jnp.full(P, move)
        total = clipped_grad_difference(canary, smoothness=0.5, clip_norm=CLIP)
        size = float(jnp.linalg.norm(total(params, jnp.zeros(P), jnp.ones((1, 1)))))
        assert size <= float(total.bound(params, jnp.zeros(P))) <= 2.0001 * CLIP
    assert float(total.bound(jnp.full(P, jnp.nan), jnp.zeros(P))) == np.float32(2 * CLIP)


def test_at_the_anchor_there_is_almost_no_noise_and_far_from_it_all():
    algorithm = dpjax.dp_svrg(
        LOGISTIC, dpjax.PrivacyBudget(1.0, 1e-4), data_size=N, dimension=P, epochs=2,
        epoch_length=3, batch_size=8,
    )  # fmt: skip
    query = algorithm.difference
    at = query.stddev_at(jnp.ones(P), jnp.ones(P))
    assert 0 < at < 1e-15 * query.stddev
    assert float(query.stddev_at(jnp.full(P, 1e4), jnp.ones(P))) == pytest.approx(query.stddev)
    near = jax.jit(query.answer)(jax.random.key(0), records(), jnp.ones(P), anchor=jnp.ones(P))
    assert np.abs(near).max() < 1e-15


def test_a_step_that_renews_no_anchor_reads_no_record():
    query = AnchorQuery(
        setting=Setting(LOGISTIC, N, "zero_out"), noise_multiplier=1.0, clip_norm=CLIP
    )
    data = bind(query, records())

    def ask(refresh):
        return query.answer(jax.random.key(0), data, jnp.ones(P), refresh=refresh)

    both = jax.jit(jax.vmap(ask))(jnp.array([True, False]))
    asked = GradientQuery(
        setting=Setting(LOGISTIC, N, "zero_out"), noise_multiplier=1.0, clip_norm=CLIP
    )
    plain = jax.jit(asked.answer)(jax.random.key(0), data, jnp.ones(P))
    np.testing.assert_allclose(both[0], plain, rtol=1e-5)
    assert not np.any(both[1])


@pytest.mark.parametrize("runs", [1, 2])
def test_what_a_step_does_not_ask_for_is_not_computed_before_it_all_the_same(runs):
    """XLA moves what a loop does not change out of it: every step passed over all records."""

    def run(start, rows, steps):
        def step(i, total):
            asked = cond_under_vmap(
                i == 0, lambda w: jnp.tanh(rows @ w).sum(), start, jnp.zeros(())
            )
            return total + asked

        return jax.lax.fori_loop(0, steps, step, jnp.zeros(()))

    every = jax.jit(jax.vmap(run, in_axes=(0, None, None)))
    compiled = every.lower(jnp.ones((runs, 3)), jnp.ones((1_000, 3)), 10).compile().as_text()
    loops, entry = compiled.split("\nENTRY")
    assert "tanh" in loops
    assert "tanh" not in entry


def without_noise(factory, **more):
    budget = dpjax.PrivacyBudget(1.0, 1e-4)
    sizes = {"data_size": N, "dimension": P, "batch_size": N}
    return quiet(factory(LOGISTIC, budget, **sizes, step_size=1.0, **more))


gradient = jax.jit(clipped_grad(LOGISTIC, clip_norm=1.0))


def exact_run(lengths, restarts):
    """Algorithms 1 and 2 on all records: proximal gradient steps and averages."""
    data, x, anchor = records(), jnp.zeros(P), jnp.zeros(P)
    for length in lengths:
        x, iterates = (anchor if restarts else x), []
        for _ in range(length):
            x = LOGISTIC.prox(x - gradient(x, data) / N, 1.0)
            iterates.append(x)
        anchor = jnp.mean(jnp.stack(iterates), axis=0)
    return anchor


@pytest.mark.parametrize(
    ("factory", "lengths"),
    [
        (dpjax.dp_svrg, [4, 4, 4]),
        pytest.param(dpjax.dp_svrg_plus_plus, [4, 8, 16], marks=pytest.mark.ci),
    ],
    ids=["svrg", "svrg++"],
)
def test_epochs_anchors_and_averages_are_the_papers(factory, lengths):
    restarts = factory is dpjax.dp_svrg
    algorithm = without_noise(factory, epochs=3, epoch_length=4 if restarts else 2)
    assert algorithm.steps == sum(lengths)
    solution = dpjax.solve(algorithm, records(), key=jax.random.key(0))
    np.testing.assert_allclose(solution.params, exact_run(lengths, restarts), atol=2e-4)
    # Planted: the other algorithm's restarts.
    assert np.abs(solution.params - exact_run(lengths, not restarts)).max() > 2e-3
    distance = np.asarray(solution.history.distance[: sum(lengths)])
    starts = np.cumsum([0, *lengths[:-1]])
    assert not distance[starts].any() if restarts else distance[starts[1:]].all()


def test_gradient_evaluations_are_those_of_the_formulas():
    common = {"data_size": 1000, "dimension": P, "batch_size": 50}
    budget = dpjax.PrivacyBudget(1.0, 1e-4)
    svrg = dpjax.dp_svrg(LOGISTIC, budget, epochs=3, epoch_length=7, **common)
    assert svrg.evaluations.declared == 1000 * 3 + 2 * 50 * 7 * 3
    twice = dpjax.dp_svrg_plus_plus(LOGISTIC, budget, epochs=3, epoch_length=7, **common)
    assert twice.evaluations.declared == 1000 * 3 + 2 * 50 * (2**4 - 2) * 7
    max_batch_size = svrg.difference.sampler.max_batch_size
    assert svrg.evaluations.padded >= 1024 * 3 + 2 * max_batch_size * 7 * 3


def test_a_step_above_the_theorems_bound_is_warned_of():
    budget = dpjax.PrivacyBudget(1.0, 1e-4)
    common = {"data_size": 1000, "dimension": P, "batch_size": 1, "steps": 4, "epoch_length": 4}
    with pytest.warns(UserWarning, match="step_size=0.5 is above 0.3333"):
        dpjax.dp_svrg(LOGISTIC, budget, step_size=0.5, **common)
    with pytest.warns(UserWarning, match="step_size=0.32 is above 0.3077"):
        dpjax.dp_svrg_plus_plus(LOGISTIC, budget, step_size=0.32, **common)


def test_what_theory_chooses_satisfies_inequality_4():
    for n, batch in ((35_000, None), (35_000, 1)):
        made = dpjax.dp_svrg(
            LOGISTIC, dpjax.PrivacyBudget(1.0, 1e-4), data_size=n, dimension=P, batch_size=batch,
            epochs=1,
        )  # fmt: skip
        eta, m, mu, smooth = float(made.step_size), made.epoch_length, 0.1, 0.25
        theta = 8 * eta * smooth / made.difference.divisor

        rates = [
            (1 / (eta * mu * k) + theta * (k + 1) / k) / (1 - theta) for k in (m, max(m - 1, 1))
        ]
        assert rates[0] < 0.5 <= rates[1]


def test_many_steps_of_one_record_fit_the_budget_and_waste_nothing():
    n = 35_000
    budget = dpjax.PrivacyBudget(1.0, 1 / n)
    made = dpjax.dp_svrg(
        LOGISTIC, budget, data_size=n, dimension=P, epochs=1, epoch_length=2_000, batch_size=1
    )
    assert 0.99 < dpjax.accounting.epsilon(made.event, 1 / n, "zero_out") <= 1.0


@pytest.mark.parametrize("relation", RELATIONS)
def test_noise_near_an_anchor_fits_what_a_record_moves_there(relation):
    loss = dpjax.Objective(lambda w, e: 50 * e[0] * w @ w)
    query = DifferenceQuery(
        setting=Setting(loss, N, relation), noise_multiplier=1e-6, clip_norm=CLIP, smoothness=1.0
    )
    params, anchor, key = jnp.full(P, 1e-3), jnp.zeros(P), jax.random.key(0)
    canary, nulled = np.ones((N, 1), np.float32), np.ones((N, 1), np.float32)
    nulled[-1] = -1.0 if relation == "replace_one" else 0.0
    other = nulled[:-1] if relation == "add_or_remove_one" else nulled
    ask = jax.jit(lambda rows: query.answer(key, bind(query, rows), params, anchor=anchor))
    answers = [ask(rows) for rows in (canary, other)]
    moved = float(jnp.linalg.norm(answers[0] - answers[1]))
    allowed = float(query.stddev_at(params, anchor)) / query.noise_multiplier
    assert allowed < query.sensitivity / 100
    assert 0.99 * allowed < moved < 1.001 * allowed


@pytest.mark.parametrize("factory", [dpjax.dp_svrg, dpjax.dp_svrg_plus_plus])
def test_every_anchor_that_a_changed_configuration_asks_for_is_paid(factory):
    """Planted: the anchors of the configuration as it was made."""
    budget = dpjax.PrivacyBudget(1.0, 1e-4)
    made = factory(LOGISTIC, budget, data_size=N, dimension=P, epochs=2, epoch_length=3)
    for change in ({"steps": 60}, {"epoch_length": 1}, {"doubling": not made.doubling}):
        changed = dataclasses.replace(made, **change)
        state, anchors = changed.init(jnp.zeros(P)), 0
        for _ in range(changed.steps):
            state, refresh = changed._entered(state)
            anchors += bool(refresh)
            state = state._replace(count=state.count + 1)
        assert changed.event.releases[0].count == anchors
    assert dataclasses.replace(made, steps=60).event.releases[0].count != made.epochs


def test_a_clip_norm_whose_noise_at_an_anchor_is_lost_is_refused():
    budget = dpjax.PrivacyBudget(1.0, 1e-4)
    with pytest.raises(ValueError, match="difference has standard deviation"):
        dpjax.dp_svrg(LOGISTIC, budget, data_size=N, dimension=P, steps=3, clip_norm=1e-25)


@pytest.mark.ci
def test_by_default_steps_read_as_much_as_anchors():
    budget = dpjax.PrivacyBudget(1.0, 1e-7)
    steep = dpjax.Objective(LOGISTIC.loss, regularizer=LOGISTIC.regularizer)
    common = {"data_size": 1_000_000, "dimension": P, "epochs": 2, "clip_norm": 1.0}
    common |= {"smoothness": 50.0, "strong_convexity": 0.1}
    doubling = dict(list(common.items())[:-1])
    for made in (
        dpjax.dp_svrg(steep, budget, step_size=0.01, **common),
        dpjax.dp_svrg_plus_plus(steep, budget, **doubling),
    ):
        steps = 2 * made.steps * float(made.difference.divisor)
        assert 0.8 < steps / (made.epochs * 1_000_000) < 1.25
