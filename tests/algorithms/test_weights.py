"""Shares of the budget that differ between the steps of DP-TR: noise, accounting, error bars."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from factories import BUDGET, STEPS, toy, toy_records

import dpjax
from dpjax.accounting import ACCOUNTANTS, epsilon
from dpjax.algorithms import certificate
from dpjax.algorithms.trust_region import TrustRegion
from dpjax.oracles import SecondOrderAnswer, bind

RECORDS = toy_records()
GROWING = np.arange(1, STEPS + 1) / np.arange(1, STEPS + 1).sum()
EQUAL = np.full(STEPS, 1 / STEPS)


def mu(algorithm):
    return sum(r.count / r.noise_multiplier**2 for r in algorithm.event.releases) ** 0.5


def multipliers(algorithm):
    query = algorithm.queries[0]
    return float(query.noise_multiplier) * np.asarray(query.factors, np.float64)


def walk(algorithm):
    """The last iterate, where the answers are given: they differ, as a filter weighs them."""
    state = algorithm.init(jnp.zeros(4))
    for step in range(STEPS):
        vector = jnp.array([0.0, 0.1, 0.6, 0.8]) / (step + 1)
        answer = SecondOrderAnswer(vector, jnp.diag(vector))
        state, _ = algorithm.step(None, state, lambda *_, _answer=answer, **__: _answer)
    return np.asarray(state.params)


@jax.jit
def asked(query, keys, step):
    records = bind(query, RECORDS)
    return jax.vmap(lambda key: query.answer(key, records, jnp.zeros(4), iteration=step))(keys)


def test_equal_weights_are_none():
    plain, equal = toy("dp-tr"), toy("dp-tr", weights=EQUAL)
    assert equal.event == plain.event
    np.testing.assert_array_equal(walk(plain), walk(equal))
    assert np.abs(walk(plain) - walk(toy("dp-tr", weights=GROWING))).max() > 1e-3


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@pytest.mark.parametrize("certify", ["last_query", "output"])
def test_the_steps_have_their_shares_of_one_budget(accountant, certify):
    settings = {"accountant": accountant, "certify": certify}
    plain, weighted = (toy("dp-tr", **settings, **more) for more in ({}, {"weights": GROWING}))
    assert mu(weighted) == pytest.approx(mu(plain), rel=1e-6) and mu(weighted) <= mu(plain)
    spent = epsilon(weighted.event, BUDGET.delta, BUDGET.relation, accountant=accountant)
    assert 0.999 * BUDGET.epsilon < spent <= BUDGET.epsilon
    shares = 1 / multipliers(weighted) ** 2
    wanted = np.append(GROWING, GROWING[-1:] if certify == "output" else [])
    np.testing.assert_allclose(shares / shares.sum(), wanted / wanted.sum(), rtol=1e-5)
    assert [release.count for release in weighted.event.releases][-1] == len(wanted) - STEPS + 1


def test_each_step_has_the_noise_that_is_booked_for_it():
    algorithm = toy("dp-tr", weights=GROWING)
    (query,) = algorithm.queries
    keys = jax.random.split(jax.random.key(0), 4_000)
    for step, release in enumerate(algorithm.event.releases):
        answers = asked(query, keys, step)
        stds = dict(release.components)
        assert np.std(answers.gradient, 0) == pytest.approx(np.full(4, stds["gradient"]), rel=0.05)
        diagonal = np.diagonal(answers.hessian, axis1=1, axis2=2)
        assert np.std(diagonal, 0) == pytest.approx(np.full(4, stds["hessian"]), rel=0.05)


def test_filter_and_damping_know_the_noise_of_each_step():
    plain, weighted = (
        toy("dp-tr", weights=GROWING, filtering=filtering) for filtering in (False, True)
    )
    stds = [float(dict(release.components)["hessian"]) for release in plain.event.releases]
    seen = []
    for step in range(STEPS):
        assert float(plain._damping(None, jnp.array(step))) == pytest.approx(
            float(plain.damping) * stds[step] / stds[-1], rel=1e-5
        )
        seen.append(float(weighted._stddevs(jnp.array(step))[1]))
    np.testing.assert_allclose(seen, stds, rtol=1e-5)


def test_error_bars_know_that_the_answer_before_had_more_noise():
    algorithm = toy("dp-tr", dpjax.PrivacyBudget(50.0, 1e-4), dpjax.objectives.logistic())
    answer = SecondOrderAnswer(jnp.full(4, 1e-6), jnp.eye(4))
    state = algorithm.init(jnp.zeros(4))._replace(answer=answer)
    found = [certificate.error_bars(algorithm, state, True, before) for before in (1.0, 3.0)]
    near, far = (bars for bars in found if bars is not None)
    # The bound on what is left out is of second order in the distance to the minimum.
    assert float(far.shift) == pytest.approx(9 * float(near.shift), rel=1e-5) and near.shift > 0
    assert np.all(np.diag(far.covariance) > np.diag(near.covariance))


def test_every_answer_of_a_training_has_its_own_noise_and_the_last_one_the_certificate():
    nothing = np.zeros_like(RECORDS[0]), RECORDS[1]
    settings = {"weights": GROWING, "filtering": False, "certify": "output"}
    algorithm = toy("dp-tr", objective=dpjax.objectives.logistic(), **settings)
    keys = jax.random.split(jax.random.key(1), 2_000)
    train = jax.jit(jax.vmap(lambda key: dpjax.solve(algorithm, nothing, key=key)))
    solutions = train(keys)
    norms = np.asarray(solutions.history.gradient_norm)[:, :STEPS]
    booked = [part["gradient"] for part in (dict(r.components) for r in algorithm.event.releases)]
    np.testing.assert_allclose(np.sqrt(np.mean(norms**2, 0) / 4), booked[:STEPS], rtol=0.05)
    last = np.asarray(solutions.certificate.gradient_norm_upper) - float(algorithm.bounds.gradient)
    np.testing.assert_allclose(np.sqrt(np.mean(last**2) / 4), booked[-1], rtol=0.05)


REFUSED = {
    "a sum above one": (EQUAL * 1.01, "must sum to one, got 1.01: divide them by their sum"),
    "a sum below one": (EQUAL * 0.5, "must sum to one, got 0.5"),
    "too few": (EQUAL[1:], f"a sequence of {STEPS} numbers"),
    "a number": (0.5, f"a sequence of {STEPS} numbers"),
    "a schedule": (lambda step: 0.1, f"a sequence of {STEPS} numbers"),
    "a table": (EQUAL[:, None], f"a sequence of {STEPS} numbers"),
    "nothing for a step": ([0.0, *EQUAL[1:]], r"weights\[0\] must be a finite number above 0"),
    "a ragged list": ([[0.5], *EQUAL[1:].tolist()], f"a sequence of {STEPS} numbers"),
    "next to nothing": ([1e-9, 1.0, *[1e-9] * (STEPS - 2)], "1e-08 times the largest.*leave"),
    "no number": ([np.nan, *EQUAL[1:]], r"weights\[0\] must be a finite number above 0"),
}


@pytest.mark.parametrize(("weights", "words"), REFUSED.values(), ids=REFUSED)
def test_weights_that_are_none_are_refused(weights, words):
    with pytest.raises(ValueError, match=words):
        toy("dp-tr", weights=weights)


@pytest.mark.parametrize("more", [{"release": "separate"}, {"stopping_alpha": 0.1}])
def test_weights_are_of_joint_releases_that_are_all_asked(more):
    with pytest.raises(ValueError, match="release='joint' and no stopping_alpha"):
        toy("dp-tr", weights=EQUAL, **more)


def test_a_model_of_many_shares_is_saved_and_loaded(tmp_path):
    weights = 1.001 ** np.arange(200)
    algorithm = toy("dp-tr", steps=200, weights=weights / weights.sum())
    solution = dpjax.solve(algorithm, RECORDS, seed=0)
    dpjax.save(tmp_path / "model.npz", solution)
    assert dpjax.load(tmp_path / "model.npz").event == solution.event


def test_an_event_that_leaves_out_some_answers_is_refused():
    class Cheap(TrustRegion):
        @property
        def event(self):
            event = super().event
            return dataclasses.replace(event, releases=event.releases[:1])

    algorithm = toy("dp-tr", weights=GROWING)
    fields = {field.name: getattr(algorithm, field.name) for field in dataclasses.fields(algorithm)}
    with pytest.raises(ValueError, match=f"counts 1 releases .* count {STEPS}"):
        dpjax.solve(dpjax.pytree_dataclass(Cheap)(**fields), RECORDS, seed=0)


def test_weights_of_records_are_refused_while_tracing():
    with pytest.raises(ValueError, match=r"weights\[0\] must be"):
        jax.jit(lambda w: toy("dp-tr", weights=w).queries[0].factors)(jnp.asarray(EQUAL))
