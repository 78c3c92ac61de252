"""Canaries: what they add, what they cost a record, and that they find too little noise."""

import contextlib
import dataclasses
import functools

import jax
import jax.numpy as jnp
import mutants
import numpy as np
import optax
import pytest

import dpjax
from dpjax import algorithms, objectives
from dpjax.driver import Watch
from dpjax.oracles import CanarySetting, GradientQuery
from dpjax.sampling import FullBatch, poisson

ROWS, CANARIES, DIMENSION, CLIP = 4_000, 400, 400, 0.5
BUDGET = dpjax.PrivacyBudget(6.0, 1e-5)
RECORDS = np.random.default_rng(0).normal(size=(ROWS, 1)).astype(np.float32)


def _loss(w, row):
    return jnp.sum(jnp.tanh(w[:3] * row))


OBJECTIVE = objectives.Objective(_loss)


def made(factory=algorithms.dp_gradient_descent, **settings):
    sizes = {"data_size": ROWS + CANARIES, "dimension": DIMENSION}
    settings = {"steps": 4, "step_size": 0.01, "clip_norm": CLIP} | settings
    return factory(OBJECTIVE, BUDGET, **sizes, **settings)


def subsets(objective, budget, **sizes):
    budget = dataclasses.replace(budget, relation="replace_one")
    how = {"sampling": "without_replacement", "batch_size": 100, "clip_norm": 1.0}
    return algorithms.dpagem(objective, budget, **sizes, **how)


def counted(objective, budget, **sizes):
    make = functools.partial(algorithms.dp_gradient_descent, objective, **sizes, steps=2)
    return algorithms.with_count(make, budget)


@pytest.mark.parametrize(
    ("relation", "rate"), [("zero_out", 0.25), ("replace_one", 1.0), ("add_or_remove_one", 1.0)]
)
def test_a_canary_adds_the_clip_norm_in_a_coordinate_of_its_own(relation, rate):
    # And the sum of the records has the same bits as without.
    rows, canaries, coins = jnp.asarray(RECORDS[:60]), 20, jnp.arange(20) % 3 == 0
    out = -CLIP if relation == "replace_one" else 0.0
    sampler = poisson(20, 80, budget=BUDGET, count=1) if rate < 1 else FullBatch(80)
    setting = CanarySetting(OBJECTIVE, 80, relation, sampler, DIMENSION, canaries)
    query = GradientQuery(setting=setting, noise_multiplier=1.0, clip_norm=CLIP)

    @jax.jit
    @jax.vmap
    def added(key):
        (alone,) = query._exact_parts(key, rows, jnp.zeros(40))
        (total,) = query._exact_parts(key, rows, jnp.zeros(40), included=coins)
        same = [jnp.all(a == b) for a, b in zip(alone.terms, total.terms, strict=False)]
        return jnp.all(jnp.array(same)), total.terms[-1]

    same, parts = added(jax.random.split(jax.random.key(0), 200 if rate < 1 else 1))
    assert same.all() and not parts[:, 1::2].any()
    mine = np.asarray(parts[:, ::2])
    assert set(np.unique(mine[:, coins])) <= {0.0, CLIP}
    assert set(np.unique(mine[:, ~coins])) <= {0.0, out}
    # Each is drawn as records are: within 6 standard deviations.
    drawn, spread = (mine[:, coins] != 0).mean(), np.sqrt(rate * (1 - rate))
    assert abs(drawn - rate) <= 6 * spread / np.sqrt(mine[:, coins].size)


@pytest.mark.parametrize("bug", [None, "noise x0.5"])
def test_half_the_noise_is_refuted_and_all_of_it_is_not(bug):
    # Either is otherwise with probability below 1e-3.
    with mutants.planted(bug) if bug else contextlib.nullcontext():
        algorithm = algorithms.with_canaries(made(), CANARIES)
        audit = dpjax.solve(algorithm, RECORDS, seed=1).audit()
    assert audit.refuted == bool(bug) and audit.epsilon > 1


def test_a_resumed_run_has_the_same_bound_and_the_result_no_coins(tmp_path):
    algorithm = made(algorithms.dp_sgd, batch_size=1_100)
    how = {"canaries": CANARIES, "progress": False}
    whole = dpjax.run(algorithm, RECORDS, seed=2, **how)
    kept = how | {"checkpoint": tmp_path / "run"}
    with pytest.raises(KeyboardInterrupt):
        dpjax.run(algorithm, RECORDS, seed=2, watch=Watch(frozenset({2}), _interrupt, ""), **kept)
    resumed = dpjax.run(algorithm, RECORDS, **kept)
    assert (whole.params == resumed.params).all() and whole.audit() == resumed.audit()
    # Neither coins nor scores, one of each canary, are in what is returned.
    assert all(CANARIES not in jnp.shape(leaf) for leaf in jax.tree.leaves(whole.history))
    assert str(whole.audit()) in " ".join(str(whole.guarantee()).split())
    with pytest.raises(ValueError, match="had no canaries"):
        dataclasses.replace(whole, guesses=None).audit()
    assert whole.epsilon() == pytest.approx(algorithm.epsilon(), 1e-6)


def _interrupt(step, params):
    raise KeyboardInterrupt


def test_persons_of_several_records_and_a_network_have_canaries_too():
    x, persons = jax.random.normal(jax.random.key(3), (800, 6)), np.arange(800) // 2
    trained = dpjax.fit(
        lambda w, x: x @ w,
        "cross_entropy",
        (np.asarray(x), np.asarray(x[:, 0] > 0)),
        BUDGET,
        optax.sgd(0.1),
        params=jnp.zeros((6, 4)),
        groups=persons,
        max_records=2,
        batch_size=100,
        steps=2,
        canaries=20,
        seed=0,
        progress=False,
    )
    algorithm = trained.solution.algorithm
    assert algorithm.queries[0].data_size == 420
    assert trained.solution.audit().canaries == 20 and trained.epsilon(1e-5) <= 6


def test_no_certificate_is_of_gradients_that_hold_canaries():
    # Its bound would be on the gradient of the records' loss, which canaries may cancel.
    bounded = objectives.logistic_nonconvex(0.01)
    settings = {"data_size": 420, "dimension": 20, "clip_norm": None, "steps": 2}
    algorithm = algorithms.dp_gradient_descent(bounded, BUDGET, **settings)
    rows = np.full((400, 20), 0.2, np.float32), np.ones(400, np.float32)
    solution = dpjax.run(algorithm, rows, seed=0, canaries=20, progress=False)
    assert algorithm.bounds is not None
    assert solution.certificate is None and solution.certified_params is None


def test_canaries_that_cannot_be_are_refused():
    few = "from 20 to 4"
    for count, words in ((401, "to 399"), (19, few), (True, few), (0.5, "whole number")):
        with pytest.raises(ValueError, match=words):
            algorithms.with_canaries(made(), count)
    with pytest.raises(ValueError, match="data have 4000 rows, and there are 180 canaries"):
        dpjax.run(made(), RECORDS, seed=0, canaries=180)


@pytest.mark.parametrize(
    ("make", "asked"),
    [
        (algorithms.dp_trust_region, "JointQuery of FullBatch"),
        (subsets, "GradientQuery of WithoutReplacement"),
        (counted, "CountQuery of FullBatch"),
        (algorithms.dp_svrg, "DifferenceQuery of Poisson, AnchorQuery of FullBatch"),
    ],
)
def test_what_canaries_cannot_join_is_refused_by_what_is_asked(make, asked):
    algorithm = make(objectives.logistic_l2(0.1), BUDGET, data_size=ROWS, dimension=30)
    with pytest.raises(ValueError, match=f"asks {asked}: take"):
        algorithms.with_canaries(algorithm, 20)
