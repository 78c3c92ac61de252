"""The door to the data: one record moves an answer by its sensitivity, and noise always comes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from factories import make, mostly_ci

import dpjax
from dpjax.accounting import RELATIONS, records_moved
from dpjax.oracles import (
    AnchorQuery,
    BallQuery,
    CovarianceQuery,
    DifferenceQuery,
    EstimateQuery,
    FittedQuery,
    GradientQuery,
    HessianQuery,
    JointQuery,
    MomentQuery,
    NetworkQuery,
    NewtonQuery,
    NormsQuery,
    PreconditionedQuery,
    ScoreQuery,
    SelectionQuery,
    Setting,
    SubspaceQuery,
    WeightedQuery,
    bind,
)

N, P = 8, 4
# So little noise that an answer is its exact mean to about six digits.
QUIET = 1e-6
FACTORS = np.ones(1, np.float32)


def loud(params, example):
    """Gradient and full-rank Hessian far above every clip norm, of the example's sign."""
    return 1e4 * example * (jnp.sum(params) + params @ params / 2)


def queries(relation, noise_multiplier=QUIET, loss=loud):
    common = {
        "setting": Setting(dpjax.Objective(loss), N, relation),
        "noise_multiplier": noise_multiplier,
    }
    clipped, weights = {"clip_norm": 0.5}, {"gradient_weight": 0.5, "hessian_weight": 2.0}
    return {
        "gradient": GradientQuery(**common, **clipped),
        "network": NetworkQuery(**common, **clipped),
        "hessian": HessianQuery(**common, **clipped),
        "joint": JointQuery(**common, **weights),
        "fitted": FittedQuery(**common, **weights, label="fitted"),
        "weighted": WeightedQuery(**common, **weights, label="weighted", factors=FACTORS),
        "subspace": SubspaceQuery(**common, **weights),
        "ball": BallQuery(**common, **clipped, dimension=P),
        "anchor": AnchorQuery(**common, **clipped),
        "difference": DifferenceQuery(**common, **clipped, smoothness=10.0),
    }


NAMES = list(queries("zero_out"))
# What a query wants beside the parameters; at this anchor gradients are opposite to those at 0.
PUBLIC = {
    WeightedQuery: {"iteration": 0},
    SubspaceQuery: {"sketch": jnp.eye(2, P)},
    AnchorQuery: {"refresh": jnp.array(True)},
    DifferenceQuery: {"anchor": jnp.full(P, -2.0)},
}


@jax.jit
def ask(query, key, records, params):
    """An answer, asked with what the query wants beside the parameters."""
    return query.answer(key, bind(query, records), params, **PUBLIC.get(type(query), {}))


def weighted(query, answer):
    """The answer as the vector that the query's sensitivity speaks of."""
    if isinstance(query, JointQuery):
        hessian = answer.hessian * (query.gradient_weight / query.hessian_weight)
        return np.concatenate([np.ravel(answer.gradient), np.ravel(hessian)]).astype(float)
    return np.ravel(answer).astype(float)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("relation", mostly_ci(RELATIONS, ["zero_out", "replace_one"]))
def test_c29_one_record_moves_a_whole_answer_by_its_sensitivity(name, relation):
    """Gradient and Hessian of one sample are one vector: clipped apart they would move sqrt(2)."""
    query = queries(relation)[name]
    canary = np.ones(N, np.float32)
    other = {
        "zero_out": np.where(np.arange(N) == 3, 0, canary),
        "replace_one": np.where(np.arange(N) == 3, -canary, canary),
        "add_or_remove_one": canary[1:],
    }[relation].astype(np.float32)
    first, second = (
        weighted(query, ask(query, jax.random.key(0), rows, jnp.zeros(P)))
        for rows in (canary, other)
    )
    moved = np.linalg.norm(first - second)
    assert moved <= query.sensitivity
    assert moved == pytest.approx(records_moved(relation) * float(query.bound()) / N, rel=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_c38_an_empty_sum_is_answered_with_all_its_noise(name):
    query = queries("zero_out", 3.0)[name]
    asked = ask(query, jax.random.key(1), jnp.zeros(N), jnp.zeros(P))
    for answer in jax.tree.leaves(asked):
        # All but what the grid's rounding may bring to 0.
        assert np.mean(np.asarray(answer) != 0) > 0.9


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rows", mostly_ci([1, N, 5 * N], [5 * N]))
def test_c39_the_divisor_of_an_answer_is_declared_and_not_counted(rows, name):
    query = queries("add_or_remove_one")[name]
    answer = ask(query, jax.random.key(0), jnp.ones(rows), jnp.zeros(P))
    moved = np.linalg.norm(weighted(query, answer))
    assert moved == pytest.approx(rows * float(query.bound()) / N, rel=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_c17_many_loud_records_add_up_and_one_counts_for_no_more(name):
    """A clipped mean would be as long for one loud record among null ones as for eight."""
    query = queries("zero_out")[name]
    one = np.zeros(N, np.float32)
    one[2] = 1
    lengths = [
        np.linalg.norm(weighted(query, ask(query, jax.random.key(0), x, jnp.zeros(P))))
        for x in (one, np.ones(N, np.float32))
    ]
    assert lengths[1] == pytest.approx(N * lengths[0], rel=1e-4)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_c18_a_record_that_is_not_finite_moves_nothing_and_is_paid_for(bad):
    query = queries("zero_out")["gradient"]
    rows = np.ones(N, np.float32)
    rows[2] = bad
    null = np.where(np.isfinite(rows), rows, np.float32(0))
    answers = [ask(query, jax.random.key(0), x, jnp.zeros(P)) for x in (rows, null)]
    assert np.isfinite(answers[0]).all()
    np.testing.assert_array_equal(*answers)


def test_c25_leaves_are_clipped_as_one_vector():
    """Clipped leaf by leaf, three loud leaves would move sqrt(3) times the clip norm."""
    query = GradientQuery(
        setting=Setting(
            dpjax.Objective(lambda w, e: 1e4 * e * (w["a"] + w["b"] + w["c"])), N, "zero_out"
        ),
        noise_multiplier=QUIET,
        clip_norm=0.5,
    )
    params = dict.fromkeys("abc", jnp.zeros(()))
    one = jnp.zeros(N).at[1].set(1.0)
    answer = ask(query, jax.random.key(0), one, params)
    moved = np.linalg.norm([float(leaf) for leaf in jax.tree.leaves(answer)])
    assert moved == pytest.approx(0.5 / N, rel=1e-4) and moved <= query.sensitivity


@pytest.mark.parametrize("name", dpjax.ALGORITHMS)
def test_c30_every_query_of_every_algorithm_is_attacked_above(name):
    """A query that keeps an anchor or reads a difference has to join the table ``queries``."""
    more = {"kept": 0.3} if name == "spider" else {}
    algorithm = make(name, data_size=N, dimension=P, **more)
    attacked = {type(q) for q in queries("zero_out").values()}
    # In files of their own: test_spider.py, test_newton.py, test_selection.py, test_covariance.py.
    attacked |= {EstimateQuery, ScoreQuery, NewtonQuery, SelectionQuery}
    attacked |= {CovarianceQuery, NormsQuery}
    # In tests/algorithms/test_feature_covariance.py.
    attacked |= {MomentQuery, PreconditionedQuery}
    assert {type(q) for q in algorithm.queries} <= attacked
    every = [getattr(r, "disjoint_parts", ()) or (r,) for r in algorithm.event.releases]
    releases = {release.name for parts in every for release in parts}
    assert releases == {query.name for query in algorithm.queries}


def test_c31_a_loss_can_neither_return_activations_nor_average_over_the_batch():
    def outcome(loss):
        query = queries("zero_out", loss=loss)["gradient"]
        return query.answer(jax.random.key(0), bind(query, jnp.ones(N)), jnp.zeros(P))

    with pytest.raises(TypeError, match="scalar"):
        outcome(lambda w, e: (e * w.sum(), {"batch_stats": e}))
    with pytest.raises(NameError, match="batch"):
        outcome(lambda w, e: w.sum() * jax.lax.pmean(e, "batch"))


def test_c32_a_loss_sees_one_example():
    shapes = set()

    def loss(params, example):
        shapes.add(jax.tree.map(jnp.shape, example))
        return jnp.sum(params) * jnp.mean(example[0]) * example[1]

    for query in queries("zero_out", loss=loss).values():
        examples = (jnp.ones((N, 3)), jnp.ones(N))
        ask(query, jax.random.key(0), examples, jnp.zeros(P))
    assert shapes == {((3,), ())}
