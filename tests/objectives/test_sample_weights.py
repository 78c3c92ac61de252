"""Weights of records: part of a record, declared in size, and no bound grows with them."""

import dataclasses

import jax
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import dpjax
from dpjax import objectives
from dpjax.derivatives import clipped_grad, joint_clipped
from dpjax.objectives.linear import Weighted
from dpjax.objectives.margin import has_proven_constants
from dpjax.results.prediction import score_of

pytest.importorskip("sklearn")
from dpjax.estimators import (
    DPLinearRegression,
    DPLogisticRegression,
    DPRobustRegression,
    arrays,
)

pytestmark = pytest.mark.filterwarnings(
    "ignore:the noisy gradients cannot be told:RuntimeWarning",
    "ignore:epsilon = .* gives little protection",
)

N, P = 60, 3
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, P)).astype(np.float32)
SIGNS, THREE = np.sign(RNG.normal(size=N)), RNG.integers(0, 3, N)
NUMBERS = RNG.uniform(-1, 1, N)
WEIGHTS = RNG.uniform(size=N).astype(np.float32)
WEIGHTS[:2] = 0, 1
CASES = {
    "logistic": (objectives.logistic(), SIGNS),
    "by class too": (objectives.logistic().weighted((1, 4)), SIGNS),
    "welsch": (objectives.welsch(0.1), SIGNS),
    "softmax": (objectives.softmax(3, 0.0), THREE),
    "softmax by class too": (objectives.softmax(3, 0.0).weighted((2, 1, 4)), THREE),
    "squared": (objectives.least_squares(0.0), NUMBERS),
    "huber": (objectives.huber(0.0), NUMBERS),
    "tukey": (objectives.tukey(0.0), NUMBERS),
}


def case(name):
    """The objective without weights and with, labels alone and beside weights, parameters."""
    objective, y = CASES[name]
    y = y.astype(np.float32)
    params = RNG.normal(size=objective.parameters(P)).astype(np.float32)
    return objective, objective.weighted(), y, np.stack([y, WEIGHTS], axis=1), params


@pytest.mark.parametrize("name", CASES)
def test_a_gradient_is_the_weight_times_the_one_without(name):
    objective, weighted, y, both, params = case(name)
    plain, found = (
        np.asarray(jax.vmap(jax.grad(one.loss), (None, 0))(params, (X, labels)))
        for one, labels in ((objective, y), (weighted, both))
    )
    np.testing.assert_allclose(found, WEIGHTS[:, None] * plain, rtol=1e-5, atol=1e-6)
    total = clipped_grad(weighted, clip_norm=1e3)(params, (X, both))
    np.testing.assert_allclose(total, found.sum(axis=0), rtol=1e-4, atol=1e-4)
    second = jax.vmap(jax.hessian(objective.loss), (None, 0))(params, (X, y))
    joint = joint_clipped(weighted, gradient_weight=1.0, hessian_weight=1.0, clip_norm=1e3)
    exact = np.einsum("n,nij->ij", WEIGHTS, np.asarray(second))
    np.testing.assert_allclose(joint(params, (X, both)).hessian, exact, rtol=1e-4, atol=1e-3)
    # Of a person the mean over the records that have a weight.
    units = (X.reshape(20, 3, P), both.reshape(20, 3, 2)), np.ones((20, 3), bool)
    count = (WEIGHTS.reshape(20, 3) > 0).sum(axis=1)[:, None]
    exact = (found.reshape(20, 3, -1).sum(axis=1) / count).sum(axis=0)
    for method in ("auto", "per_example"):
        of_units = clipped_grad(weighted.of_units(), clip_norm=1e3, method=method)(params, units)
        np.testing.assert_allclose(of_units, exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("weight", [0.0, -0.5, 1.0001, np.nan, np.inf])
@pytest.mark.parametrize("name", ["logistic", "softmax", "huber"])
def test_a_record_whose_weight_does_not_count_changes_nothing(name, weight):
    _, weighted, _, both, params = case(name)
    both[7, 1] = weight
    here = np.arange(N) != 7
    units = (X[:, None], both[:, None]), np.ones((N, 1), bool)
    without = (X[:, None], both[:, None]), here[:, None]
    for objective, data, mask, absent in (
        (weighted, (X, both), here, (X, both)),
        (weighted.of_units(), units, None, without),
    ):
        total = clipped_grad(objective, clip_norm=0.1)
        np.testing.assert_array_equal(total(params, data), total(params, absent, mask))
    assert np.isnan(weighted(params, (X[7], both[7])))
    # In a person that has two others it does not count in their mean either.
    threes = (X.reshape(20, 3, P), both.reshape(20, 3, 2)), np.ones((20, 3), bool)
    absent = threes[0], here.reshape(20, 3)
    total = clipped_grad(weighted.of_units(), clip_norm=0.1)
    np.testing.assert_array_equal(total(params, threes), total(params, absent))


@pytest.mark.parametrize("name", [name for name in CASES if name != "squared"])
def test_no_gradient_is_longer_than_the_constant(name):
    objective, weighted, y, both, params = case(name)
    rows = X / np.linalg.norm(X, axis=1, keepdims=True)
    lipschitz = objective.constants.lipschitz
    for weight in (1.0, 0.3):
        both[:, 1] = weight
        slopes = jax.vmap(jax.grad(weighted.loss), (None, 0))(30 * params, (rows, both))
        norms = np.linalg.norm(slopes, axis=1)
        assert norms.max() <= weight * lipschitz * (1 + 1e-5)
    # One that were let through beyond 1 would pass it.
    if name in ("logistic", "softmax", "huber"):
        assert 4 * norms.max() > lipschitz
    assert weighted.constants == objective.constants
    assert has_proven_constants(weighted) == has_proven_constants(objective)
    if weighted.predicts:
        assert score_of(weighted) == score_of(objective)
        found, plain = (
            dpjax.diagnostics.exact_accuracy(one, params, X, labels)
            for one, labels in ((weighted, both), (objective, y))
        )
        assert found == plain


@pytest.mark.parametrize(
    "objective",
    [
        objectives.two_layer(),
        objectives.logistic().weighted(),
        objectives.logistic().of_units(),
        dpjax.Objective(lambda w, x: w @ x),
    ],
    ids=["network", "twice", "units", "own"],
)
def test_losses_that_take_no_weights_are_refused(objective):
    with pytest.raises(ValueError, match="Weights of records come last, before units"):
        objective.weighted()


def test_weights_are_proven_only_where_they_are_at_most_1():
    objective = objectives.logistic()
    with pytest.raises(ValueError, match="weights must be from 0 to 1"):
        Weighted(objective.linear, (1.0, 5.0))
    louder = type("Louder", (Weighted,), {"_parts": lambda self, label: (9.0, None)})
    form = louder(objective.linear, (1.0, 1.0))
    assert not has_proven_constants(dataclasses.replace(objective, margin=None, linear=form))


def test_class_weights_come_first():
    with pytest.raises(ValueError, match="Weights of records come last"):
        objectives.logistic().weighted().weighted((1, 2))


def test_labels_without_weights_are_refused():
    algorithm = dpjax.dp_gradient_descent(
        objectives.logistic().weighted(), dpjax.PrivacyBudget(1.0, 1e-4), data_size=N, dimension=P
    )
    for y in (SIGNS.astype(np.float32), np.ones((N, 3), np.float32)):
        with pytest.raises(ValueError, match="two numbers for each record: its label and its"):
            dpjax.solve(algorithm, (X, y), seed=0)


CHEAP = {"solver": "dp-gd", "solver_options": {"steps": 20, "step_size": 8.0, "certify": None}}
Y = (X[:, 0] > X[:, 1] / 2).astype(int)


def make(kind=DPLogisticRegression, **more):
    given = {"bounds": (-3, 3), "random_state": 0, "epsilon": 50.0, "max_weight": 4.0} | CHEAP
    given |= {"classes": (0, 1)} if kind is DPLogisticRegression else {"target_bounds": (-1, 1)}
    return kind(**given | more)


def coefficients(weights, x=X, y=Y, groups=None, **how):
    return make(**how).fit(x, y, groups, weights).coef_


@pytest.mark.parametrize("groups", [None, np.arange(N) // 3])
@pytest.mark.parametrize("weight", [0.0, -1.0, np.nan, np.inf, None])
def test_a_record_without_a_weight_is_null(weight, groups):
    how = {"groups": groups} if groups is None else {"groups": groups, "max_records": 3}
    weights = 4 * WEIGHTS
    nulled, given = X.copy(), weights.astype(object)
    nulled[7], given[7] = np.nan, weight
    found = coefficients(given.tolist(), **how)
    np.testing.assert_array_equal(found, coefficients(weights, x=nulled, **how))
    assert (found != coefficients(weights, **how)).all()


def test_weights_are_divided_by_what_is_declared_and_clamped():
    found = arrays.weights([1, 2, 4, 7, -3], 4.0)
    np.testing.assert_array_equal(found, np.float32([0.25, 0.5, 1, 1, 0]))
    # A weight beyond what is declared moves its own record alone.
    np.testing.assert_array_equal(arrays.weights([1, 2], 4.0), found[:2])
    shares = 4 * WEIGHTS.astype(float)
    loud = shares.copy()
    shares[7], loud[7] = 4, 1e300
    np.testing.assert_array_equal(coefficients(shares), coefficients(loud))


@pytest.mark.filterwarnings("error")
def test_weights_come_as_lists_columns_and_integers_beside_sparse_rows():
    weights = np.arange(N) % 5
    found = coefficients(weights)
    frame = pd.DataFrame({"w": weights, "half": weights.astype("float32")})
    for given in (weights.tolist(), frame["w"], frame[["half"]], weights.astype(np.uint8)):
        np.testing.assert_array_equal(found, coefficients(given))
    np.testing.assert_array_equal(found, coefficients(weights, x=sparse.csr_array(X)))
    assert "each with the record's weight" in make().fit(X, Y, sample_weight=weights).guarantee_


@pytest.mark.parametrize(
    ("weights", "more", "message"),
    [
        (np.full(N - 1, 0.7123), {}, "one weight for each row of X"),
        (np.full((N, 2), 0.7123), {}, "sample_weight should be a 1d array, got 2D array"),
        (0.7123, {}, "sample_weight should be a 1d array, got scalar array"),
        (np.full(N, "0.7123"), {}, "sample_weight must hold numbers, got words"),
        (np.full(N, 0.7123j), {}, "Complex data not supported: sample_weight"),
        (np.full(N, "2020-01-01", "M8[D]"), {}, "sample_weight must hold numbers, got dates"),
        (np.full(N, 0.7123), {"max_weight": None}, "go together: declare the largest possible"),
        (None, {}, r"set_fit_request\(sample_weight=True\)"),
        (np.full(N, 0.7123), {"max_weight": 0}, "max_weight must be"),
        (np.full(N, 0.7123), {"max_weight": np.inf}, "max_weight must be"),
    ],
)
def test_weights_that_do_not_fit_are_refused_without_a_value(weights, more, message):
    with pytest.raises((TypeError, ValueError), match=message) as error:
        make(**more).fit(X, Y, sample_weight=weights)
    assert "7123" not in str(error.value) and str(N) not in str(error.value)


@pytest.mark.parametrize("rows", [X[:1], X])
@pytest.mark.parametrize("kind", [DPLogisticRegression, DPLinearRegression, DPRobustRegression])
def test_weights_of_0_alone_train_on_noise(kind, rows):
    labels = np.zeros(len(rows), int)
    found = make(kind).fit(rows, labels, sample_weight=np.zeros(len(rows)))
    nothing = make(kind).fit(rows * np.nan, labels, sample_weight=np.ones(len(rows)))
    np.testing.assert_array_equal(found.coef_, nothing.coef_)


def test_private_bounds_do_not_see_a_record_without_a_weight(tmp_path):
    x, y = np.tile(X, (20, 1)), np.tile(Y, 20)
    weights = np.where(np.arange(len(x)) % 2, 1.0, 0.0)
    how = {"bounds": "private", "limits": (-1e4, 1e4)}
    budget = dpjax.PrivacyBudget(60.0, 1e-3)
    found = []
    for factor in (1, 1e3):
        ledger = dpjax.Ledger.create(tmp_path / f"{factor}", budget)
        scaled = np.where(weights[:, None] > 0, x, factor * x)
        model = make(**how, ledger=ledger).fit(scaled, y, sample_weight=weights)
        found.append([(e.low, e.high) for e in model.solution_.preprocessing.encoders])
        assert [entry.finished is not None for entry in ledger.entries] == [True]
        ledger.close()
    assert found[0] == found[1]


@pytest.mark.ci
def test_heavier_records_decide():
    x = RNG.uniform(size=(4_000, 1))
    y = RNG.integers(0, 2, 4_000)
    weights = np.where((x[:, 0] > 0.5) == y, 1.0, 0.1)
    how = {"bounds": (0, 1), "max_weight": 1.0, "epsilon": 5.0}
    model = make(**how).fit(x, y, sample_weight=weights)
    assert model.score(x, x[:, 0] > 0.5) > 0.9
    by_class = make(**how, class_weight={0: 1, 1: 9}).fit(x, y, sample_weight=weights)
    assert by_class.predict(x).mean() > model.predict(x).mean() + 0.05
    three = make(classes=(0, 1, 2), **how).fit(x, y, sample_weight=weights)
    assert three.score(x, x[:, 0] > 0.5) > 0.85
    tuned = make(tune={"step_size": [4.0, 8.0]}, **how).fit(x, y, sample_weight=weights)
    assert set(tuned.settings_) == {"step_size"}


def sandwich(x, y, weights, kind):
    """The weighted fit, and its standard errors by the sandwich, in float64."""
    design, beta = np.c_[x, np.ones(len(x))], np.zeros(x.shape[1] + 1)
    for _ in range(30):
        score = design @ beta
        mean = score if kind is DPLinearRegression else 1 / (1 + np.exp(-score))
        curve = np.ones(len(x)) if kind is DPLinearRegression else mean * (1 - mean)
        slopes = (weights * (mean - y))[:, None] * design
        bread = np.linalg.inv((design * (weights * curve)[:, None]).T @ design)
        beta = beta - bread @ slopes.sum(axis=0)
    return beta, np.sqrt(np.diag(bread @ (slopes.T @ slopes) @ bread))


@pytest.mark.ci
@pytest.mark.parametrize("kind", [DPLogisticRegression, DPLinearRegression])
def test_intervals_for_a_population_are_those_of_the_weighted_sandwich(kind):
    x = RNG.uniform(-1, 1, (20_000, 2))
    # Weights that go with the residuals: an error that forgets them is off by far.
    weights = 0.2 + 0.8 * (RNG.uniform(size=len(x)) < 0.3 + 0.3 * x[:, 0])
    noise = RNG.logistic(size=len(x)) * (0.3 + weights)
    y = x[:, 0] - x[:, 1] / 2 + noise / 4
    y = (y > 0).astype(int) if kind is DPLogisticRegression else y.clip(-4, 4)
    how = {"solver": "noisy-newton", "solver_options": {}, "inference": True, "max_weight": 2.0}
    how |= {"bounds": (-1, 1), "epsilon": 2e4, "delta": 1e-5}
    how |= {} if kind is DPLogisticRegression else {"target_bounds": (-4, 4)}
    found = make(kind, **how).fit(x, y, sample_weight=weights).coefficients_
    beta, errors = sandwich(x, y, weights, kind)
    forgotten = sandwich(x, y, np.ones(len(x)), kind)[1]
    assert (np.abs(found.values - beta) < 0.2 * errors).all()
    np.testing.assert_allclose(found.errors, errors, rtol=0.05)
    assert (np.abs(forgotten / errors - 1) > 0.1).any()
