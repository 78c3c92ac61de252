"""Queries that draw a batch: bounded, divided by public numbers, accounted by their sampler."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from factories import mostly_ci

import dpjax
from dpjax.accounting import epsilon
from dpjax.derivatives import clipped_grad, joint_clipped
from dpjax.oracles import GradientQuery, HessianQuery, JointQuery, Setting, bind, check_examples
from dpjax.sampling import poisson, without_replacement

N, P = 200, 3
KEY = jax.random.key(3)
BUDGET = dpjax.PrivacyBudget(1.0, 1e-5)
OBJECTIVES = {
    "margin": dpjax.objectives.logistic(),
    "any": dpjax.Objective(lambda w, e: jnp.logaddexp(0.0, -e[1] * (e[0] @ w))),
}


def records(n=N, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, P)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x, rng.choice(np.float32([-1, 1]), n)


def queries(objective, sampler, multiplier=1e-6, relation="zero_out"):
    return (
        GradientQuery(
            setting=Setting(objective, N, relation, sampler),
            noise_multiplier=multiplier,
            clip_norm=0.5,
        ),
        HessianQuery(
            setting=Setting(objective, N, relation, sampler),
            noise_multiplier=multiplier,
            clip_norm=0.1,
        ),
        JointQuery(
            setting=Setting(objective, N, relation, sampler),
            noise_multiplier=multiplier,
            gradient_weight=0.5,
            hessian_weight=0.2,
        ),
    )


def flat(answer):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(answer)])


@pytest.mark.parametrize("kind", OBJECTIVES)
def test_c39_a_drawn_answer_is_the_sum_of_its_batch_over_the_expected_size(kind):
    objective, (x, y) = OBJECTIVES[kind], records()
    sampler = poisson(20, N, budget=BUDGET, count=10)
    w = jnp.ones(P)
    query = queries(objective, sampler)[0]
    answer = query.answer(KEY, bind(query, (x, y)), w)
    batch = sampler.sample(dpjax.mechanisms.derive(KEY, "sample", 0), N)
    rows = np.asarray(batch.indices)[np.asarray(batch.mask)]
    total = clipped_grad(objective, clip_norm=0.5)(w, (x[rows], y[rows]))
    np.testing.assert_allclose(answer, total / 20, atol=1e-5)
    # Planted: the realised size as a divisor.
    assert len(rows) != 20
    assert not np.allclose(answer, total / len(rows), atol=1e-5)


@pytest.mark.parametrize("kind", OBJECTIVES)
def test_c29_gradient_and_hessian_of_one_answer_are_one_event_on_one_draw(kind):
    objective, (x, y) = OBJECTIVES[kind], records()
    sampler = poisson(20, N, budget=BUDGET, count=10)
    query = queries(objective, sampler)[2]
    answer = query.answer(KEY, bind(query, (x, y)), jnp.ones(P))
    batch = sampler.sample(dpjax.mechanisms.derive(KEY, "sample", 0), N)
    rows = np.asarray(batch.indices)[np.asarray(batch.mask)]
    joint = joint_clipped(objective, gradient_weight=0.5, hessian_weight=0.2)
    total = joint(jnp.ones(P), (x[rows], y[rows]))
    np.testing.assert_allclose(answer.gradient, total.gradient / 20, atol=1e-5)
    np.testing.assert_allclose(answer.hessian, total.hessian / 20, atol=1e-5)
    (release,) = query.event(10).releases
    assert (release.sampling, release.count) == ("poisson", 10)
    assert [name for name, _ in release.components] == ["gradient", "hessian"]


def test_c38_an_empty_batch_is_released_with_noise():
    data = records()
    sampler = poisson(1e-6, N, budget=BUDGET, count=10)
    for query in queries(OBJECTIVES["margin"], sampler, multiplier=1.0):
        answer = flat(query.answer(KEY, bind(query, data), jnp.ones(P)))
        assert np.isfinite(answer).all() and (answer != 0).all()


@pytest.mark.parametrize("kind", OBJECTIVES)
@pytest.mark.parametrize("size", mostly_ci([1, N - 1], [1]))
def test_batches_of_one_and_of_all_but_one(kind, size):
    objective, data = OBJECTIVES[kind], records()
    query = GradientQuery(
        setting=Setting(objective, N, "replace_one", without_replacement(size, N)),
        noise_multiplier=1e-6,
        clip_norm=0.5,
    )
    answer = query.answer(KEY, bind(query, data), jnp.ones(P))
    total = clipped_grad(objective, clip_norm=0.5)
    each = [total(jnp.ones(P), (data[0][i : i + 1], data[1][i : i + 1])) for i in range(N)]
    each = np.array(each)
    possible = each if size == 1 else (each.sum(0) - each) / size
    assert np.abs(possible - np.asarray(answer)).max(1).min() < 1e-5


def test_c37_the_event_is_that_of_the_sampler_and_others_raise():
    objective = OBJECTIVES["margin"]
    sampler = poisson(20, N, budget=BUDGET, count=10)
    for query in queries(objective, sampler, multiplier=2.0):
        (release,) = query.event(10).releases
        assert release.sampling_probability == sampler.probability
        assert release.stddev == pytest.approx(float(query.stddev), rel=1e-6)
        whole = queries(objective, None, multiplier=2.0)[0].event(10)
        drawn = epsilon(query.event(10), 1e-5, "zero_out")
        assert drawn < epsilon(whole, 1e-5, "zero_out") / 2
    with pytest.raises(ValueError, match="replace_one"):
        queries(objective, without_replacement(20, N), relation="zero_out")[0].event(1)
    with pytest.raises(ValueError, match="replace_one"):
        _ = queries(objective, without_replacement(20, N), relation="zero_out")[0].stddev


def test_each_answer_draws_its_own_batch_and_noise():
    data, sampler = records(), poisson(20, N, budget=BUDGET, count=10)
    query = queries(OBJECTIVES["margin"], sampler)[0]
    bound = bind(query, data)
    answers = [query.answer(key, bound, jnp.ones(P)) for key in jax.random.split(KEY, 4)]
    assert len({tuple(np.asarray(a).tolist()) for a in answers}) == 4


def test_c40_a_sampler_of_other_data_is_refused():
    query = GradientQuery(
        setting=Setting(OBJECTIVES["margin"], 2 * N, "zero_out", without_replacement(9, N)),
        noise_multiplier=1.0,
        clip_norm=0.5,
    )
    with pytest.raises(ValueError, match="the sampler draws from data_size=200"):
        query.event(1)
    with pytest.raises(ValueError, match="the sampler draws from data_size=200"):
        check_examples(query, records(2 * N), jnp.ones(P))
