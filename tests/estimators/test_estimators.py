"""Private estimators: scikit-learn's own checks, and what is declared instead of read."""

import dataclasses
import functools
import gc
import pickle
import sys
from unittest import mock

import joblib
import numpy as np
import pandas as pd
import pytest
from factories import mostly_ci
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import FitFailedWarning
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks

import dpjax
from dpjax import _durable
from dpjax.driver import program
from dpjax.estimators import (
    DPLinearRegression,
    DPLogisticRegression,
    DPRobustRegression,
    arrays,
    base,
)

# Toy tables: noise drowns their gradients, as a warning then says.
pytestmark = pytest.mark.filterwarnings("ignore:the noisy gradients cannot be told:RuntimeWarning")

# The checks that no private estimator can pass, and why: an error tells of one record.
EXCEPTIONS = {
    "check_estimators_nan_inf": "a record with a missing value contributes nothing, without error",
    "check_dtype_object": "a cell that is no number is a missing value",
    "check_supervised_y_no_nan": "a label that was not declared contributes nothing",
    "check_classifiers_regression_target": "numbers as labels are labels that were not declared",
    "check_all_zero_sample_weights_error": "whether any record has a weight is about records",
    "check_sample_weight_equivalence_on_dense_data": "n, which noise is divided by, is another",
    "check_sample_weight_equivalence_on_sparse_data": "n, which noise is divided by, is another",
}
# Programs that compile fast.
CHEAP = {"solver": "dp-gd", "solver_options": {"steps": 20, "step_size": 8.0, "certify": None}}
# As many records, and features with the intercept, as the data of the checks have at most.
SIZE, FEATURES = 300, 21


class OneShape:
    """Null records and features of zeros spare a compile for each shape of the checks' data.

    It declares the largest weight where there are weights, which the checks cannot declare.
    """

    def fit(self, X, y, groups=None, sample_weight=None):
        with mock.patch.object(self, "max_weight", None if sample_weight is None else 10.0):
            return super().fit(X, y, groups, sample_weight)

    def _configure(self, count, dimension, look):
        return super()._configure(SIZE, FEATURES, look)

    def _train(self, algorithm, data, look):
        x = np.zeros((SIZE, FEATURES), np.float32)
        y = np.full((SIZE, *data.y.shape[1:]), np.nan, np.float32)
        x[: data.size, : data.dimension], y[: data.size] = data.examples
        solution = super()._train(algorithm, dpjax.Dataset(x, y), look)
        weights = np.asarray(solution.params).reshape(-1, FEATURES)[:, : data.dimension]
        return dataclasses.replace(solution, params=weights.ravel())


class ReadsLabels(OneShape, DPLogisticRegression):
    """Takes the labels from the data, which the checks cannot declare: NOT PRIVATE."""

    def _encode(self, y):
        found = np.unique(arrays.labels(y)[0])
        with mock.patch.object(self, "classes", (0.0, 1.0) if found.dtype.kind == "f" else found):
            return super()._encode(y)


class ReadsRange(OneShape, DPLinearRegression):
    """Takes the range from the data, which the checks cannot declare: NOT PRIVATE."""

    def _encode(self, y):
        real = np.real(np.asarray(y)).astype(float)
        finite = np.append(real[np.isfinite(real)], 0.0)
        with mock.patch.object(self, "target_bounds", (finite.min(), finite.max() + 1e-3)):
            return super()._encode(y)


def the_checks():
    models = (
        ReadsLabels(epsilon=1000.0, data_norm=10.0, **CHEAP),
        ReadsRange(epsilon=1000.0, data_norm=5.0),
    )
    for model in models:
        for estimator, check in estimator_checks.estimator_checks_generator(model):
            name = check.func.__name__ if isinstance(check, functools.partial) else check.__name__
            if name == "check_array_api_input":
                continue  # needs an environment variable that SciPy reads when it is first imported
            if name == "check_class_weight_classifiers":  # of data that only the intercept tells
                estimator.set_params(solver_options=CHEAP["solver_options"] | {"steps": 1_000})
            reason = EXCEPTIONS.get(name)
            marks = [pytest.mark.xfail(strict=True, reason=reason)] if reason else []
            if isinstance(model, ReadsRange):  # what it shares with the classifier is read there
                marks.append(pytest.mark.ci)
            yield pytest.param(estimator, check, marks=marks, id=f"{type(model).__name__}-{name}")


@pytest.mark.parametrize(("estimator", "check"), list(the_checks()))
def test_checks_of_scikit_learn(estimator, check):
    check(estimator)


def problem(seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (60, 2))
    return x, np.where(x[:, 0] > x[:, 1] / 2, 1, 0)


def make(**more):
    given = {"classes": (0, 1), "data_norm": 1.5, "random_state": 0, "epsilon": 50.0} | CHEAP
    return DPLogisticRegression(**given | more)


def strange(kind):
    """The problem with one strange record, as X and y."""
    x, y = problem()
    if kind == "missing":
        x[7, 1] = np.nan
    elif kind == "infinite":
        x[7] = [np.inf, 0.5]
    elif kind == "no number":
        x = x.astype(object)
        x[7, 0] = {"a": 1}
    elif kind == "label":
        y[7] = 2
    elif kind == "label that is NaN":
        y = y.astype(float)
        y[7] = np.nan
    elif kind == "label that is a list":
        y = y.astype(object)
        y[7] = [1]
    return x, y


KINDS = ("missing", "infinite", "no number", "label", "label that is NaN", "label that is a list")


@pytest.mark.parametrize("kind", KINDS)
def test_a_strange_record_is_no_error_and_contributes_nothing(kind):
    scaling = arrays.declare(None, 1.5, True, 2)
    x, y = strange(kind)
    found = make().fit(x, y).coef_
    x, y = problem()
    signs = np.where(np.arange(60) == 7, np.nan, 2.0 * y - 1).astype(np.float32)
    algorithm = make()._configure(60, 3)
    nulled = dpjax.solve(algorithm, dpjax.Dataset(scaling.rows(x), signs, max_norm=1.0), seed=0)
    weights, _ = scaling.in_units(np.asarray(nulled.params, float))
    np.testing.assert_array_equal(found[0], weights)
    assert (found != make().fit(x, y).coef_).all()  # a record that is there would show


STRANGE_CELLS = ("a", 1j, np.complex128(1), None, [1.0], np.ones(2))


@pytest.mark.filterwarnings("ignore:epsilon = 50 gives little protection")
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("listed", [True, False], ids=["lists", "objects"])
@pytest.mark.parametrize("cell", STRANGE_CELLS, ids=repr)
@pytest.mark.parametrize("where", ["X", "y"])
def test_a_strange_cell_is_null_and_leaves_its_neighbours_alone(where, cell, listed):
    x, y = problem()
    x, y = (x.tolist(), y.tolist()) if listed else (x.astype(object), y.astype(object))
    if where == "X":
        x[7][0] = cell
    else:
        y[7] = cell
    found = make().fit(x, y).coef_
    np.testing.assert_array_equal(found, make().fit(*strange("missing")).coef_)


def test_lists_are_as_good_as_arrays():
    x, y = problem()
    model = make().fit(x.tolist(), y.tolist())
    np.testing.assert_array_equal(model.coef_, make().fit(x, y).coef_)
    np.testing.assert_array_equal(model.predict(x.tolist()), model.predict(x))


@pytest.mark.parametrize("missing", [True, False])
def test_one_missing_label_of_a_nullable_column_decides_no_error(missing):
    pandas = pytest.importorskip("pandas")
    x, y = problem()
    column = pandas.Series(2**53 + y, dtype="Int64")  # a float would not tell them apart
    frame = pandas.DataFrame({"a": column, "b": x[:, 0]})
    if missing:
        column[7] = frame.loc[7, "a"] = pandas.NA
    model = make(classes=(2**53, 2**53 + 1))
    found = model.fit(x, column).coef_
    kind = "label" if missing else None
    np.testing.assert_array_equal(found, make().fit(*strange(kind)).coef_)
    assert model.fit(frame, column).feature_names_in_.tolist() == ["a", "b"]
    with pytest.raises(ValueError, match="y holds numbers: declare classes of that kind"):
        make(classes=("no", "yes")).fit(x, column)
    words = pandas.Series(np.array(["no", "yes"])[y], dtype="string")
    if missing:
        words[7] = pandas.NA
    np.testing.assert_array_equal(make(classes=("no", "yes")).fit(x, words).coef_, found)
    # One cell makes words of a column of numbers.
    digits = pandas.Series(y.astype(str), dtype="string")
    if missing:
        digits[7] = "?"
    np.testing.assert_array_equal(make().fit(x, digits).coef_, found)


def test_sparse_rows_are_read_as_dense_ones():
    x, y = problem()
    dense, thin = (make().fit(rows, y) for rows in (x, sparse.csr_array(x)))
    np.testing.assert_array_equal(thin.coef_, dense.coef_)
    np.testing.assert_array_equal(thin.predict(sparse.csr_matrix(x)), dense.predict(x))


@pytest.mark.parametrize("groups", [None, np.arange(900) // 3])
def test_bounds_are_found_within_limits_and_booked_once(groups, tmp_path):
    rng = np.random.default_rng(0)
    x = np.c_[rng.lognormal(7, 0.3, 900), rng.uniform(0, 100, 900)]
    dpjax.Ledger.create(tmp_path / "ledger", dpjax.PrivacyBudget(60.0, 1e-3)).close()
    how = {"limits": ((0, 0), (1e8, 1e4)), "ledger": tmp_path / "ledger"}
    how |= {"max_records": None if groups is None else 3, "data_norm": None}
    model = make(bounds="private", **how).fit(x, x[:, 0] > 1_100, groups)
    low, high = np.array(
        [[each.low, each.high] for each in model.solution_.preprocessing.encoders]
    ).T
    assert (low <= np.quantile(x, 0.05, axis=0)).all() and (
        high >= np.quantile(x, 0.95, axis=0)
    ).all()
    assert (high < [4_000, 200]).all()
    assert "shares of records in public bins" in model.guarantee_
    assert 45 < model.solution_.epsilon() <= 50
    with dpjax.Ledger.open(tmp_path / "ledger") as ledger:
        assert [entry.finished is not None for entry in ledger.entries] == [True]
    assert model.score(x, x[:, 0] > 1_100) > 0.8


def test_private_bounds_name_the_part_of_the_data_that_was_read(tmp_path):
    budget = dpjax.PrivacyBudget(60.0, 1e-2)
    with dpjax.Ledger.create(tmp_path / "ledger", budget, parts=("north", "south")) as ledger:
        how = {"bounds": "private", "limits": (-9, 9), "data_norm": None}
        model = make(**how, ledger=ledger.of("north")).fit(*problem())
        assert "the part 'north'" in model.guarantee_ and ledger.of("south").remaining == 1


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({"bounds": "private"}, "needs public limits"),
        ({"bounds": (0, 1), "limits": (0, 1)}, "needs public limits"),
        ({"bounds": (0, 1), "bounds_epsilon": 0.1}, "needs public limits"),
        ({"bounds": "privat", "limits": (0, 1)}, "did you mean 'private'"),
        ({"bounds": "private", "limits": (0, 1), "tune": True}, "tune does not go with"),
        ({"bounds": "private", "limits": (0, 1), "inference": True}, "inference does not go with"),
        ({"bounds": "private", "limits": (0, 1), "bounds_epsilon": 50}, "between 0 and the budget"),
    ],
)
def test_private_bounds_that_do_not_fit_together_are_refused(declared, words):
    with pytest.raises(ValueError, match=words):
        make(**{"data_norm": None} | declared).fit(*problem())


def wrong_shape(kind):
    x, y = np.full((61, 2), 0.7123), np.full(61, 7123)
    return {
        "row of numbers": (x[:, 0], y, "Expected 2D array.*X must hold rows"),
        "flat list": (x[:, 0].tolist(), y, "Expected 2D array.*X must hold rows"),
        "ragged list": ([*x.tolist(), [0.7123]], y, "X must hold rows of features, all of one"),
        "ragged arrays": ([np.full((2, 3), 0.7123), np.ones((2, 4))], y, "X must .* ragged"),
        "cube": (np.stack([x, x]), y, "got 3D array instead"),
        "number": (0.7123, y, "got scalar array instead"),
        "no features": (x[:, :0], y, r"0 feature\(s\)"),
        "no records": (x[:0], y[:0], r"0 sample\(s\)"),
        "complex": (x + 0.7123j, y, "Complex data not supported: X"),
        "dates": (x.astype("M8[s]"), y, "X must hold numbers, got dates"),
        "sparse labels": (x, sparse.csr_array(y[:, None]), r"Sparse data .* y\.toarray"),
        "other length": (x, y[:60], "X and y must have one length"),
        "table of labels": (x, x, "y should be a 1d array, got 2D array"),
        "column of lists": (x, y[:, None].tolist(), "y should be a 1d array, got 2D array"),
        "label": (x, 7123, "y should be a 1d array, got scalar array"),
        "complex labels": (x, y + 0.7123j, "Complex data not supported: y"),
    }[kind]


SHAPES = (
    *("row of numbers", "flat list", "ragged list", "ragged arrays", "cube", "number"),
    *("no features", "no records", "complex", "dates", "sparse labels", "other length"),
    *("table of labels", "column of lists", "label", "complex labels"),
)


@pytest.mark.parametrize("kind", SHAPES)
def test_messages_about_shapes_hold_no_values_and_no_counts(kind):
    x, y, message = wrong_shape(kind)
    with pytest.raises((TypeError, ValueError), match=message) as error:
        make().fit(x, y)
    assert not any(private in str(error.value) for private in ("7123", "61", "60"))


def test_what_is_predicted_is_not_printed_either():
    model = make().fit(*problem())
    for x in (np.full(61, 0.7123), np.full((61, 2), 0.7123j), [[0.7123, 0.7123], [0.7123, 1j]]):
        with pytest.raises(ValueError, match=r"2D array|Complex data|contains NaN") as error:
            model.predict(x)
        assert not any(private in str(error.value) for private in ("7123", "61"))


def test_labels_read_off_the_data_are_found_out():
    """The planted bug: whether anybody has the label 2 must not decide how many classes count."""
    found = ReadsLabels(**make().get_params()).fit(*strange("label"))
    assert len(found.classes_) == 3
    assert len(make().fit(*strange("label")).classes_) == 2


@pytest.mark.parametrize("more", [{}, {"bounds": (-1, [1, 1]), "data_norm": None}])
def test_a_record_can_shout_as_loud_as_it_likes(more):
    loud, y = problem()
    louder = loud.copy()
    loud[7], louder[7] = [30.0, 30.0], [3e300, 3e300]
    found = [make(**more).fit(x, y).coef_ for x in (loud, louder)]
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("declared", [((-2.0, 3.0), None), (None, 0.7)])
def test_rows_have_norm_at_most_one_and_the_array_is_left_alone(declared, intercept):
    rng = np.random.default_rng(1)
    x = (rng.standard_normal((500, 4)) * 10.0 ** rng.integers(-30, 30, (500, 1))).astype(np.float32)
    x[0] = 0
    before = x.copy()
    found = arrays.declare(*declared, intercept, 4).rows(x)
    assert found.shape == (500, 4 + intercept)
    assert found.dtype == np.float32
    assert np.linalg.norm(found.astype(float), axis=1).max() <= 1 + 1e-6
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("intercept", [True, False])
def test_weights_are_in_the_units_of_the_features(intercept):
    x, y = problem()
    if not intercept:
        x = np.hstack([x, x[:, :1] ** 2])  # as many weights, one compile
    norm = {"data_norm": 2.0, "fit_intercept": intercept}
    model = make(**norm).fit(x, y)
    np.testing.assert_allclose(
        model.decision_function(x), x @ model.coef_[0] + model.intercept_, atol=1e-6
    )
    ranges = {"data_norm": None, "bounds": (np.full(x.shape[1], -2), 1)}
    model = make(**norm | ranges).fit(x, y)
    ours = model.decision_function(x)
    sure = np.abs(ours) > 1e-4
    assert sure.mean() > 0.9
    np.testing.assert_array_equal((x @ model.coef_[0] + model.intercept_ > 0)[sure], ours[sure] > 0)


def test_noise_is_fresh_unless_a_seed_is_given():
    x, y = problem()
    first, second = (make(random_state=None).fit(x, y) for _ in range(2))
    assert (first.coef_ != second.coef_).all()
    assert first.releasable_
    assert "NOT FOR RELEASE" not in first.guarantee_
    seeded = make().fit(x, y)
    assert not seeded.releasable_
    assert "NOT FOR RELEASE" in seeded.guarantee_
    np.testing.assert_array_equal(seeded.coef_, make().fit(x, y).coef_)


def test_a_search_over_epsilon_compiles_once_for_the_folds_and_once_for_all_records():
    x, y = problem()
    before = program._solve._cache_size()
    # A number of features that no other test has, so that nothing is compiled before.
    x = np.hstack([x, x[:, :1] * x[:, 1:], x**2, x**3])
    search = GridSearchCV(make(), {"epsilon": [1.0, 2.0, 10.0, 50.0]}, cv=3).fit(x, y)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert program._solve._cache_size() - before == 2


def test_the_default_penalty_falls_with_epsilon_in_one_program():
    x, y = problem()
    weights = [make(epsilon=epsilon).fit(x, y).solution_.algorithm for epsilon in (0.5, 50.0)]
    found = [float(each.objective.regularizer.penalty.strength) for each in weights]
    np.testing.assert_allclose(found, [2 / (60 * 0.5), 2 / (60 * 50.0)], rtol=1e-6)
    without = make(solver="dp-fc", solver_options={"steps": 2}).fit(x, y).solution_.algorithm
    assert without.objective.regularizer is None


@pytest.mark.ci
def test_several_fits_without_a_ledger_say_so(monkeypatch, tmp_path):
    monkeypatch.setattr(base, "_unbooked", [])
    model = make().fit(*problem())
    assert "fits in this process" not in model.guarantee_
    search = GridSearchCV(make(), {"epsilon": [1.0, 50.0]}, cv=3).fit(*problem())
    for fitted in (model, search.best_estimator_):
        assert "One of 8 fits in this process without a ledger." in fitted.guarantee_
    again = pickle.dumps(model)
    monkeypatch.setattr(base, "_PROCESS", "another")
    assert "fits in this process" not in pickle.loads(again).guarantee_
    with dpjax.Ledger.create(tmp_path / "book", dpjax.PrivacyBudget(1.0, 1e-4)) as book:
        booked = make(epsilon=0.5, delta=1e-5, ledger=book, solver_options={"steps": 2})
        assert "fits in this process" not in booked.fit(*problem()).guarantee_
        assert "fits in this process" not in booked.fit(*problem()).guarantee_


def test_the_guarantee_names_a_scaler_fitted_on_the_data_as_not_covered():
    pipeline = make_pipeline(StandardScaler(), make()).fit(*problem())
    text = pipeline[-1].guarantee_
    assert "Also not covered: earlier steps of a scikit-learn Pipeline" in text
    assert "StandardScaler" in text


def test_the_guarantee_is_that_of_the_arguments():
    x, y = problem()
    text = make(epsilon=2.0, relation="replace_one", unit="visit").fit(x, y).guarantee_
    assert "(2, 0.001667)-differentially private" in text  # 1 / (10 n), rounded up
    assert "replace_one): one visit" in text
    with pytest.raises(ValueError, match="n is private: declare delta and data_size"):
        make(relation="add_or_remove_one", delta=1e-3).fit(x, y)


def test_a_copy_is_the_same_and_a_clone_unfitted():
    x, y = problem()
    model = make().fit(x, y)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(x), model.predict_proba(x))
    assert again.guarantee_ == model.guarantee_
    assert again.solution_.epsilon(1e-3) == model.solution_.epsilon(1e-3)
    assert clone(model).get_params() == model.get_params()
    assert not hasattr(clone(model), "coef_")


def test_a_fit_that_the_ledger_cannot_pay_is_refused(tmp_path):
    dpjax.Ledger.create(tmp_path / "book", dpjax.PrivacyBudget(1.0, 1e-4))
    model = make(epsilon=2.0, delta=1e-4, ledger=tmp_path / "book")
    with pytest.raises(ValueError, match="budget"):
        model.fit(*problem())
    assert not hasattr(model, "coef_")


def test_c53_of_two_folds_in_threads_the_ledger_pays_one(tmp_path, meeting):
    budget = dpjax.PrivacyBudget(1.0, 1e-4)
    with dpjax.Ledger.create(tmp_path / "book", budget) as book:
        model = make(epsilon=0.8, delta=1e-4, ledger=book, solver_options={"steps": 2})
        meeting(_durable, "write_all")
        with joblib.parallel_config("threading"), pytest.warns(FitFailedWarning, match="1 fits"):
            scores = cross_val_score(model, *problem(), cv=2, n_jobs=2, error_score=np.nan)
        assert np.isnan(scores).sum() == len(book.entries) == 1


def test_a_clone_shares_its_ledger(tmp_path):
    budget = dpjax.PrivacyBudget(1.0, 1e-4)
    with dpjax.Ledger.create(tmp_path / "book", budget, parts=("north", "south")) as whole:
        book = whole.of("north")
        model = make(epsilon=0.5, delta=1e-5, ledger=book, solver_options={"steps": 2})
        first, second = clone(model), clone(model)
        assert first.ledger is second.ledger is book
        del first
        gc.collect()
        second.fit(*problem())
        assert [entry.part for entry in whole.entries] == ["north"]
        assert "the part 'north'" in second.guarantee_
        with pytest.raises(TypeError, match="pass its path"):
            pickle.dumps(model)


@pytest.mark.parametrize(
    ("labels", "classes", "message"),
    [
        ((0, 1), ("no", "yes"), "classes hold 'no', but y holds numbers"),
        ((0, 1), np.array(["no", "yes"], object), "classes hold 'no', but y holds numbers"),
        ((False, True), (b"no", b"yes"), "classes hold b'no', but y holds True and False"),
    ],
)
def test_labels_of_another_kind_than_the_classes(labels, classes, message):
    x, y = problem()
    with pytest.raises(ValueError, match=message):
        make(classes=classes).fit(x, np.array(labels)[y])


def test_weights_that_blow_up_are_reported():
    x, y = problem()
    options = CHEAP["solver_options"] | {"step_size": 3e38}
    with pytest.warns(RuntimeWarning, match="not finite"):
        make(solver_options=options, epsilon=2e-3).fit(x, y)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"classes": None}, "classes is required: declare the labels"),
        ({"classes": (1,)}, "classes must be two labels or more, got one class"),
        ({"classes": (0, 1, 1)}, "classes must be distinct, got 1 twice"),
        ({"classes": (0, np.nan)}, "classes must be words, numbers, True or False"),
        ({"classes": (0, None)}, "classes must be words, numbers, True or False, got None"),
        ({"classes": (0, "yes")}, "classes must be labels of one kind"),
        ({"classes": (0, 1j)}, "True or False, got 1j"),
        ({"solver_options": [1]}, r"solver_options must be a dict .*got \[1\]"),
        ({"solver_options": {1: 1}}, "unknown option of dp-gd 1"),
        ({"classes": ("no", "yes")}, "declare classes of that kind"),
        ({"data_norm": None}, "one of bounds and data_norm must be declared, neither"),
        ({"bounds": (0, 1)}, "one of bounds and data_norm must be declared, both"),
        ({"data_norm": 0}, "data_norm must be a finite number above 0"),
        ({"data_norm": None, "bounds": (0, [1, 0])}, "feature 1 has 0.0 and 0.0"),
        ({"data_norm": None, "bounds": (0, [1, 1, 1])}, "each a number or 2 of them"),
        ({"data_norm": None, "bounds": 3}, r"bounds must be \(lower, upper\)"),
        ({"epsilon": 0}, "epsilon must be"),
        ({"delta": 2.0}, "delta must be"),
        ({"solver": "dp-rt"}, "unknown solver 'dp-rt'; did you mean 'dp-tr'"),
        ({"solver_options": {"step": 1}}, "unknown option of dp-gd 'step'; did you mean 'steps'"),
        ({"solver_options": {"budget": 1}}, "unknown option of dp-gd 'budget'"),
        ({"regularization": -1}, "regularization must be"),
        ({"relation": "zero-out"}, "unknown relation"),
        ({"random_state": -1}, "seed must be an integer"),
        ({"unit": ""}, "unit must be a non-empty string"),
    ],
)
def test_what_does_not_fit_together_is_named(more, message):
    with pytest.raises(ValueError, match=message):
        make(**more).fit(*problem())


@pytest.mark.parametrize("solver", ["dp-tr", "dp-str", "dp-adam"])
def test_every_solver_is_configured_from_the_same_arguments(solver):
    model = make(solver=solver, solver_options=None, regularization=2**-10)
    algorithm = model._configure(7_000, 3)
    assert isinstance(
        algorithm,
        type(
            dpjax.ALGORITHMS[solver](
                dpjax.objectives.logistic(),
                dpjax.PrivacyBudget(1.0, 1e-5),
                data_size=7_000,
                dimension=3,
            )
        ),
    )
    assert algorithm.objective == dpjax.objectives.logistic_l2(2**-10).free_intercept()


def test_absent_scikit_learn_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("dpjax.estimators")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.split(".")[0] == "sklearn"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"pip install 'scikit-learn>=1\.6'"):
        _ = dpjax.__getattr__("estimators")


@pytest.mark.parametrize("scale", [{"bounds": (0, 1)}, {"data_norm": 2.0}])
def test_the_guarantee_names_the_declared_labels(scale):
    x, y = problem()
    y = np.array(["rain", "sun"])[y]
    model = make(classes=("Rain", "sun"), **{"data_norm": None} | scale)
    assert "Accepted labels: 'Rain', 'sun'; a record with any" in model.fit(x, y).guarantee_


# More than two classes, numbers, units, data frames


def test_several_classes_are_one_training_and_predict():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (300, 2))
    y = np.array(["a", "b", "c"])[np.digitize(x[:, 0] + x[:, 1], [-0.5, 0.5])]
    y[7] = "?"
    model = make(
        classes=("c", "a", "b"), epsilon=500.0, solver="dp-tr", solver_options={"steps": 8}
    )
    model.fit(x, y)
    assert model.classes_.tolist() == ["a", "b", "c"]
    assert model.coef_.shape == (3, 2) and model.intercept_.shape == (3,)
    assert model.score(x, y) > 0.9
    scores = model.decision_function(x)
    assert scores.shape == (300, 3)
    np.testing.assert_allclose(scores, x @ model.coef_.T + model.intercept_, atol=1e-5)
    np.testing.assert_allclose(model.predict_proba(x).sum(axis=1), 1)
    assert "Accepted labels: 'a', 'b', 'c'" in model.guarantee_
    assert len(model.solution_.event.releases) == 1


def numbers(seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform([0, 10], [10, 20], (400, 2))
    return x, 3 * x[:, 0] - 2 * x[:, 1] + 50 + rng.normal(size=400)


def regression(**more):
    given = {"target_bounds": (0, 100), "bounds": ([0, 10], [10, 20]), "random_state": 0}
    return DPLinearRegression(**{"epsilon": 100.0} | given | more)


@pytest.mark.parametrize(
    "estimator", mostly_ci([DPLinearRegression, DPRobustRegression], [DPLinearRegression])
)
def test_the_guarantee_of_a_regression_names_labels_in_their_own_units(estimator):
    x, y = numbers()
    model = estimator(target_bounds=(0, 5), bounds=(-10, 10), random_state=0).fit(x, y)
    assert "Accepted labels: numbers from 0 to 5; a record with any other" in model.guarantee_


def test_a_regression_is_linear_in_the_units_of_its_features():
    x, y = numbers()
    model = regression(random_state=4).fit(x, y)
    np.testing.assert_allclose(model.coef_, [3, -2], atol=0.1)
    np.testing.assert_allclose(model.predict(x), x @ model.coef_ + model.intercept_, rtol=1e-5)
    assert model.score(x, y) > 0.95
    assert "numbers from 0 to 100" in model.guarantee_
    by_norm = regression(bounds=None, data_norm=30.0).fit(x, y)
    np.testing.assert_allclose(
        by_norm.predict(x), x @ by_norm.coef_ + by_norm.intercept_, rtol=1e-5
    )
    assert by_norm.score(x, y) > 0.9


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0, 101.0])
def test_a_target_out_of_its_range_contributes_nothing(bad):
    x, y = numbers()
    y[7] = bad
    found = regression().fit(x, y)
    x[7] = np.nan
    np.testing.assert_array_equal(found.coef_, regression().fit(x, y).coef_)
    assert (found.coef_ != regression().fit(*numbers()).coef_).all()


@pytest.mark.parametrize(
    ("loss", "scale"),
    mostly_ci([("huber", 10.0), ("tukey", 40.0), ("welsch", None)], [("tukey", 40.0)]),
)
def test_a_robust_regression_leaves_outliers_out(loss, scale):
    x, y = numbers()
    y[::5] = 100.0
    given = {"target_bounds": (0, 100), "bounds": ([0, 10], [10, 20]), "random_state": 0}
    model = DPRobustRegression(epsilon=100.0, loss=loss, scale=scale, **given).fit(x, y)
    assert np.abs(model.coef_ - [3, -2]).max() < 0.5
    plain = regression().fit(x, y)
    inside = y < 100
    errors = [np.abs(m.predict(x)[inside] - y[inside]).mean() for m in (model, plain)]
    assert errors[0] < errors[1] / 2


@pytest.mark.ci
def test_groups_are_protected_as_units():
    x, y = numbers()
    groups = np.repeat(np.arange(100), 4)
    model = regression(max_records=4, unit="patient").fit(x, y, groups)
    assert "one 'patient'" in model.guarantee_
    assert model.solution_.algorithm.queries[0].data_size == 100
    assert model.score(x, y) > 0.9
    labelled = make(max_records=2, classes=(0, 1), data_norm=30.0)
    labelled.fit(x, (y > 30).astype(int), groups.astype(str))
    assert "one 'person'" in labelled.guarantee_
    with pytest.raises(ValueError, match="groups need max_records"):
        regression().fit(x, y, groups)
    with pytest.raises(ValueError, match="max_records is for units"):
        regression(max_records=4).fit(x, y)


def test_bounds_of_a_data_frame_go_by_its_columns():
    pandas = pytest.importorskip("pandas")
    x, y = numbers()
    frame = pandas.DataFrame({"b": x[:, 1], "a": x[:, 0]})
    model = regression(bounds={"a": (0, 10), "b": (10, 20)}).fit(frame, y)
    assert model.feature_names_in_.tolist() == ["b", "a"]
    np.testing.assert_allclose(model.coef_, [-2, 3], atol=0.1)
    with pytest.raises(ValueError, match="bounds lack the columns 'b'"):
        regression(bounds={"a": (0, 10)}).fit(frame, y)
    with pytest.raises(ValueError, match="need a data frame"):
        regression(bounds={"a": (0, 10)}).fit(x, y)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"target_bounds": None}, "target_bounds is required"),
        ({"target_bounds": (3, 3)}, "finite with low < high"),
        ({"target_bounds": 3}, "must be two numbers"),
        ({"regularization": -1}, "regularization must be"),
        ({"solver": "dp-rt"}, "did you mean 'dp-tr'"),
    ],
)
def test_what_does_not_fit_a_regression_is_named(more, message):
    with pytest.raises(ValueError, match=message):
        regression(**more).fit(*numbers())


def test_dates_are_no_numbers_and_losses_have_names():
    x, y = numbers()
    with pytest.raises(ValueError, match="y must hold numbers, got dates"):
        regression().fit(x, y.astype("M8[s]"))
    with pytest.raises(ValueError, match="unknown loss 'hubber'; did you mean 'huber'"):
        DPRobustRegression(loss="hubber", target_bounds=(0, 1), data_norm=1.0).fit(x, y)


@pytest.mark.parametrize("framed", [True, False], ids=["frame", "array"])
@pytest.mark.parametrize("kind", [DPLogisticRegression, DPLinearRegression])
def test_a_saved_estimator_predicts_for_rows_as_they_were_given(kind, framed, tmp_path):
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    columns = {"age": rng.uniform(0, 120, 500), "pressure": rng.uniform(50, 250, 500)}
    x, y = np.column_stack([*columns.values()]), columns["age"] + columns["pressure"] > 200
    x = pandas.DataFrame(columns) if framed else x
    declared = {"classes": ("no", "yes"), "delta": 1e-4}
    labels = np.where(y, "yes", "no")
    if kind is DPLinearRegression:
        declared, labels = {"target_bounds": (0, 400), "delta": 1e-4}, y * 300.0
    model = kind(10.0, bounds=([0, 50], [120, 250]), random_state=0, **declared)
    model.fit(x, labels)
    dpjax.save(tmp_path / "model", model, author="A. Meyer")
    saved = dpjax.load(tmp_path / "model")
    if framed:  # in another order, beside a column that is not used
        x = x[["pressure", "age"]].assign(more=1.0)
    told = model.predict(x[["age", "pressure"]] if framed else x)
    found = saved.predict(x)
    assert (found == told).all() if kind is DPLogisticRegression else np.allclose(found, told)
    assert saved.preprocessing.columns == (("age", "pressure") if framed else ("x0", "x1"))
    dpjax.report(model, tmp_path / "r.html")
    dpjax.report(saved, tmp_path / "r.md")
    page, card = ((tmp_path / f"r.{ending}").read_text() for ending in ("html", "md"))
    for name in saved.preprocessing.columns:
        assert name in page and name in card
    # What the estimator's guarantee says beyond that of its training.
    assert "Also not covered: earlier steps of a scikit-learn Pipeline" in page
    assert "Also not covered" in card and "made by | A. Meyer" in card


def test_a_norm_is_not_saved_and_an_estimator_is_fitted_first(tmp_path):
    model = DPLogisticRegression(classes=(0, 1), data_norm=1.0)
    with pytest.raises(ValueError, match="declare bounds, or save its solution_"):
        dpjax.save(tmp_path / "model", model)
    with pytest.raises(ValueError, match="or an estimator after fit"):
        dpjax.report(DPLogisticRegression(classes=(0, 1), bounds=(0, 1)), tmp_path / "r.md")


ENDS = ([18.0, 0.0, 0.0], [95.0, 20.0, 1.0])


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"inference": "people"}, "unknown inference 'people'"),
        ({"inference": True, "bounds": None, "data_norm": 1.0}, "inference needs bounds"),
        ({"inference": True, "solver": "dp-gd"}, "inference takes the solver noisy-newton"),
        ({"rows": "constants"}, "unknown rows 'constants'"),
    ],
)
def test_inference_that_cannot_be_is_refused_before_anything_is_asked(more, message):
    model = DPLogisticRegression(**{"classes": (0, 1), "bounds": (0, 1)} | more)
    with pytest.raises(ValueError, match=message):
        model.fit(*problem())


def test_inference_takes_noisy_newton_and_a_small_penalty():
    model = make(inference=True, solver="dp-tr", solver_options=None, epsilon=1.0)
    algorithm = model._configure(7_000, 3)
    assert algorithm.title == "Noisy Newton"
    penalty = algorithm.objective.regularizer
    assert isinstance(penalty, dpjax.objectives.ExceptIntercept)
    assert float(penalty.penalty.strength) == pytest.approx(0.1 / 7_000)
    # Theory of DP-SVRG needs the penalty on all weights.
    svrg = make(solver="dp-svrg", solver_options={"batch_size": 100})._configure(7_000, 3)
    assert isinstance(svrg.objective.regularizer, dpjax.objectives.L2)


@pytest.mark.ci
@pytest.mark.parametrize("labels", ["number", "two", "three"])
def test_effects_have_the_names_and_units_of_the_columns(labels):
    rng, n = np.random.default_rng(0), 20_000
    x = rng.uniform(*ENDS, (n, 3))
    effects = np.array([0.05, -0.1, 0.0])
    score = (x - np.mean(ENDS, axis=0)) @ effects
    arguments = {"epsilon": 3.0, "bounds": ENDS, "inference": True, "random_state": 0}
    if labels == "number":
        y, wanted = score + rng.normal(size=n), effects
        model = DPLinearRegression(target_bounds=(-10, 10), **arguments)
    else:
        scores = np.stack([0 * score, score, 0 * score], 1)[:, : 2 if labels == "two" else 3]
        y = np.argmax(scores + rng.gumbel(size=scores.shape), axis=1)
        model = DPLogisticRegression(classes=range(scores.shape[1]), **arguments)
        wanted = effects if labels == "two" else np.stack([effects, 0 * effects])
    frame = pd.DataFrame(x, columns=["age", "visits", "none"])
    found = model.fit(frame, y).coefficients_
    assert found.names == ("age", "visits", "none", "intercept") and found.refusal is None
    # Of 6 at most: beyond 4 standard errors in 1 of 2,600 trials.
    assert (np.abs(found.values[..., :3] - wanted) < 4 * found.errors[..., :3]).all()
    weights = model.coef_ if labels == "number" else model.coef_[0]
    if labels != "three":
        np.testing.assert_allclose(found.values[:3], weights, rtol=1e-5)
        assert found.values[3] == pytest.approx(np.ravel(model.intercept_)[0], rel=1e-4)
    assert "P>|z|" in model.summary() and "age" in model.summary()
    # A constant divides rows, so that predictions are linear in the columns.
    assert model.score(frame, y) > (0.4 if labels == "number" else 0.5)
