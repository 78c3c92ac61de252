"""The door to the data: one record moves an answer by its sensitivity, and noise always comes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.accounting import RELATIONS, records_moved
from dpjax.oracles import GradientQuery, HessianQuery, JointQuery, bind

N, P = 8, 4
# So little noise that an answer is its exact mean to about six digits.
QUIET = 1e-6


def loud(params, example):
    """Gradient and full-rank Hessian far above every clip norm, of the example's sign."""
    return 1e4 * example * (jnp.sum(params) + params @ params / 2)


def queries(relation, noise_multiplier=QUIET, loss=loud, data_size=N):
    common = (dpjax.Objective(loss), data_size, relation)
    return {
        "gradient": GradientQuery(noise_multiplier, 0.5, *common),
        "hessian": HessianQuery(noise_multiplier, 0.5, *common),
        "joint": JointQuery(noise_multiplier, 0.5, 2.0, *common),
    }


def weighted(query, answer):
    """The answer as the vector that the query's sensitivity speaks of."""
    if isinstance(query, JointQuery):
        hessian = answer.hessian * (query.gradient_weight / query.hessian_weight)
        return np.concatenate([np.ravel(answer.gradient), np.ravel(hessian)]).astype(float)
    return np.ravel(answer).astype(float)


@pytest.mark.parametrize("name", ["gradient", "hessian", "joint"])
@pytest.mark.parametrize("relation", RELATIONS)
def test_c29_c30_one_record_moves_a_whole_answer_by_its_sensitivity(name, relation):
    """Gradient and Hessian of one sample are one vector: clipped apart they would move sqrt(2)."""
    query = queries(relation)[name]
    canary = np.ones(N, np.float32)
    other = {
        "zero_out": np.where(np.arange(N) == 3, 0, canary),
        "replace_one": np.where(np.arange(N) == 3, -canary, canary),
        "add_or_remove_one": canary[1:],
    }[relation].astype(np.float32)
    first, second = (
        weighted(query, query.answer(jax.random.key(0), bind(query, rows), jnp.zeros(P)))
        for rows in (canary, other)
    )
    moved = np.linalg.norm(first - second)
    assert moved <= query.sensitivity
    assert moved == pytest.approx(records_moved(relation) * float(query.unit) / N, rel=1e-4)


@pytest.mark.parametrize("name", ["gradient", "hessian", "joint"])
def test_c38_an_empty_sum_is_answered_with_all_its_noise(name):
    query = queries("zero_out", 3.0)[name]
    null = bind(query, jnp.zeros(N))
    ask = jax.jit(lambda key: query.answer(key, null, jnp.zeros(P)))
    for answer in jax.tree.leaves(ask(jax.random.key(1))):
        assert (np.asarray(answer) != 0).all()


@pytest.mark.parametrize("rows", [1, N, 5 * N])
def test_c39_the_divisor_of_an_answer_is_declared_and_not_counted(rows):
    for query in queries("add_or_remove_one", data_size=N).values():
        answer = query.answer(jax.random.key(0), bind(query, jnp.ones(rows)), jnp.zeros(P))
        moved = np.linalg.norm(weighted(query, answer))
        assert moved == pytest.approx(rows * float(query.unit) / N, rel=1e-4)


@pytest.mark.parametrize("name", ["gradient", "hessian", "joint"])
def test_c17_many_loud_records_add_up_and_one_counts_for_no_more(name):
    """A clipped mean would be as long for one loud record among null ones as for eight."""
    query = queries("zero_out")[name]
    one = np.zeros(N, np.float32)
    one[2] = 1
    lengths = [
        np.linalg.norm(
            weighted(query, query.answer(jax.random.key(0), bind(query, x), jnp.zeros(P)))
        )
        for x in (one, np.ones(N, np.float32))
    ]
    assert lengths[1] == pytest.approx(N * lengths[0], rel=1e-4)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_c18_a_record_that_is_not_finite_moves_nothing_and_is_paid_for(bad):
    query = queries("zero_out")["gradient"]
    rows = np.ones(N, np.float32)
    rows[2] = bad
    null = np.where(np.isfinite(rows), rows, 0)
    answers = [query.answer(jax.random.key(0), bind(query, x), jnp.zeros(P)) for x in (rows, null)]
    assert np.isfinite(answers[0]).all()
    np.testing.assert_array_equal(*answers)
