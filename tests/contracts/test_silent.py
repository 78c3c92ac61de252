"""Sixty and more ways to feed a training that learns nothing, or half; none of them is silent.

What a shape, a dtype or a declaration shows is refused with what to do instead, or is read as it is
meant. What values alone show is counted by the owner's check, or told by the released values.
"""

import functools
import json
import re
import shlex
from decimal import Decimal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from factories import N, P, mostly_ci, quiet, toy, toy_records

import dpjax
from dpjax.cli import main
from dpjax.datasets import Preprocessing, check, group, load
from dpjax.datasets.cells import unit_name
from dpjax.datasets.encoders import Unscaled
from dpjax.estimators import DPLinearRegression, DPLogisticRegression

X, Y = toy_records()
ONES = (Y > 0).astype(np.float32)
WORDS, DATES = np.where(Y > 0, "Yes", "No"), np.arange(N).astype("M8[D]")
HOT = np.eye(2, dtype=np.float32)[ONES.astype(int)]
THREE_CLASSES = dpjax.objectives.softmax(3)


def solved(x=X, y=Y, objective=None, train=dpjax.solve, **more):
    """The parameters of two steps on these records, with hardly any noise."""
    return train(algorithm(objective), dpjax.Dataset(x, y, **more), seed=0).params


@functools.cache
def algorithm(objective):
    objective = objective or dpjax.objectives.logistic()
    parameters = objective.parameters(P)
    # Quiet: the dtype of the labels is folded into the key, so that another draws other noise.
    return quiet(toy("dp-gd", objective=objective, dimension=parameters, steps=2, step_size=1.0))


def linear(w, x):
    return x @ w


def fitted(x=X, y=ONES, logits=2, seen=lambda trained: trained.params, exact=False, **more):
    """What is seen of a network that took two steps on these records."""
    return seen(
        dpjax.fit(
            linear, "cross_entropy", dpjax.Dataset(x, y, **more) if more else (x, y),
            dpjax.PrivacyBudget(8.0, 1e-4), optax.sgd(0.5), seed=0, batch_size=32, steps=2,
            params=np.zeros((P, logits), np.float32), exact=exact, progress=False,
        )
    )  # fmt: skip


@functools.cache
def network():
    loss, budget = dpjax.objectives.cross_entropy(linear), dpjax.PrivacyBudget(8.0, 1e-4)
    sizes = {"data_size": N, "dimension": 2 * P, "batch_size": 32}
    return dpjax.dp_adam(loss, budget, steps=2, clip_norm=1.0, **sizes)


def declared(**more):
    return {"preprocessing": Preprocessing(tuple(map(Unscaled, "abcd")), **more)}


def frame(**columns):
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame({"a": X[:, 0], "b": X[:, 1]} | columns)


def loaded(y=Y, **options):
    """The labels of a table with a column ``y``."""
    options = {"bounds": {"a": (-1, 1), "b": (-1, 1)}, "classes": (-1, 1)} | options
    return load({"a": X[:, 0], "b": X[:, 1], "y": y}, label="y", **options).y


def framed(**columns):
    return load(
        frame(**{"y": Y} | columns), label="y", bounds=dict.fromkeys("abc", (-1, 1)), classes=(0, 1)
    )


def from_archive(folder, y, classes=None):
    np.savez(folder / "table.npz", x=X, y=y)
    return load(folder / "table.npz", bounds=[(-1, 1)] * P, classes=classes).y


def parquet(folder, y, classes=(0, 1)):
    pytest.importorskip("pyarrow")
    frame(y=y).to_parquet(folder / "table.parquet")
    bounds = {"a": (-1, 1), "b": (-1, 1)}
    return load(folder / "table.parquet", label="y", bounds=bounds, classes=classes).y


def nullable(dtype, y=ONES):
    return frame(y=y)["y"].astype(dtype)


def classifier(x=X, y=Y, classes=(-1, 1), seen=lambda model: model.coef_):
    options = {"steps": 2, "step_size": 1.0, "certify": None}
    model = DPLogisticRegression(8.0, 1e-4, "dp-gd", classes=classes, data_norm=1.0, random_state=0)
    return seen(model.set_params(solver_options=options, fit_intercept=False).fit(x, y))


def regression(x=X, y=Y, seen=lambda model: model.coef_):
    options = {"steps": 2, "step_size": 1.0, "certify": None}
    model = DPLinearRegression(8.0, 1e-4, "dp-gd", target_bounds=(-1, 1), data_norm=1.0)
    model.set_params(solver_options=options, fit_intercept=False, random_state=0)
    return seen(model.fit(x, y))


def polars(x=X, **columns):
    return pytest.importorskip("polars").DataFrame({"a": x[:, 0], "b": x[:, 1]} | columns)


ENCODE, SCHEMA = r"must hold numbers.*encode_labels\(y, classes", "a table with a schema"
ONE_LABEL = r"y\[:, 0\] of labels in one column, y.argmax\(axis=1\) of one-hot labels"
THREE = declared(classes=("a", "b", "c"))
NUMBER = declared(label_bounds=(0.0, 9.0))

REFUSED = {
    "solve: labels of words": (lambda _: solved(y=WORDS), ENCODE),
    "solve: labels of bytes": (lambda _: solved(y=WORDS.astype("S")), ENCODE),
    "solve: labels of objects": (lambda _: solved(y=WORDS.astype(object)), ENCODE),
    "solve: labels of dates": (lambda _: solved(y=DATES), ENCODE),
    "solve: labels of durations": (lambda _: solved(y=DATES - DATES[0]), ENCODE),
    "solve: complex labels": (lambda _: solved(y=Y + 0j), "real numbers.*pass y.real"),
    "solve: a column of labels": (lambda _: solved(y=Y[:, None]), ONE_LABEL),
    "solve: one-hot labels": (lambda _: solved(y=HOT, objective=THREE_CLASSES), ONE_LABEL),
    "solve: a list of labels": (lambda _: solved(y=Y.tolist()), "arrays of one row per record"),
    "solve: a column of a frame": (lambda _: solved(y=frame(y=Y)["y"]), "to_numpy"),
    "solve: features in a frame": (lambda _: solved(frame()), "to_numpy"),
    "solve: features of words": (lambda _: solved(X.astype("U")), SCHEMA),
    "solve: features of objects": (lambda _: solved(X.astype(object)), r"astype\('float32'\)"),
    "solve: features of dates": (lambda _: solved(np.stack([DATES] * P, 1)), SCHEMA),
    "solve: whole numbers": (lambda _: solved(X.astype(int)), r"astype\('float32'\)"),
    "solve: complex features": (lambda _: solved(X + 0j), "must be floating"),
    "solve: one feature without an axis": (lambda _: solved(X[:, 0]), r"shape \(n, p\)"),
    "solve: images": (lambda _: solved(X.reshape(N, 2, 2)), r"shape \(n, p\)"),
    "solve: fewer labels": (lambda _: solved(y=Y[1:]), "same number of rows"),
    "solve: labels before features": (lambda _: solved(Y, X), r"shape \(n, p\)"),
    "solve: features in columns": (lambda _: solved(X.T), "same number of rows"),
    "solve: other records than declared": (lambda _: solved(X[1:], Y[1:]), "pass data_size="),
    "solve: features alone": (
        lambda _: dpjax.solve(algorithm(None), X, seed=0), r"pass the tuple \(x, y\)"),
    "solve: three classes for signs": (lambda _: solved(**THREE), r"softmax\(classes\)"),
    "solve: a number for classes": (lambda _: solved(**NUMBER), "declare its classes"),
    "solve: units for a loss of records": (
        lambda _: solved(X[:, None], Y[:, None], present=np.ones((N, 1), bool)), "of_units"),
    "solve: units with columns of labels": (
        lambda _: solved(X[:, None], Y[:, None, None], dpjax.objectives.logistic().of_units(),
                         present=np.ones((N, 1), bool)), ONE_LABEL),
    "solve: fewer logits than classes": (
        lambda _: dpjax.solve(network(), dpjax.Dataset(X, ONES, **THREE), seed=0,
                              params=np.zeros((P, 2), np.float32)), "give it one for each class"),
    "run: labels of words": (lambda _: solved(y=WORDS, train=dpjax.run), ENCODE),
    "run: one-hot labels": (lambda _: solved(y=HOT, train=dpjax.run), ONE_LABEL),
    "fit: one-hot labels": (lambda _: fitted(y=HOT), ONE_LABEL),
    "fit: one-hot whole numbers": (lambda _: fitted(y=HOT.astype(int)), ONE_LABEL),
    "fit: a column of labels": (lambda _: fitted(y=ONES[:, None]), ONE_LABEL),
    "fit: complex labels": (lambda _: fitted(y=ONES + 0j), "one class number"),
    "fit: one logit": (lambda _: fitted(logits=1), "sigmoid_binary_cross_entropy"),
    "fit: labels of words": (lambda _: fitted(y=WORDS), "from_zero=True"),
    "fit: labels of objects": (lambda _: fitted(y=WORDS.astype(object)), "from_zero=True"),
    "fit: labels of dates": (lambda _: fitted(y=DATES), "from_zero=True"),
    "fit: features of words": (lambda _: fitted(X.astype("U")), SCHEMA),
    "fit: features of objects": (lambda _: fitted(X.astype(object)), r"astype\('float32'\)"),
    "fit: features of dates": (lambda _: fitted(np.stack([DATES] * P, 1)), SCHEMA),
    "fit: features in a frame": (lambda _: fitted(frame()), "to_numpy"),
    "fit: fewer logits than classes": (lambda _: fitted(**THREE), "give it one for each class"),
    "fit: a number for classes": (lambda _: fitted(**NUMBER), "declare its classes"),
    "load: words without classes": (
        lambda _: loaded(WORDS, classes=None), "classes must declare which"),
    "load: numbers without classes": (
        lambda _: loaded(np.where(Y > 0, 1, 2), classes=None), "classes must declare which"),
    "load: an archive without classes": (
        lambda folder: from_archive(folder, 2 * ONES), "classes must declare which"),
    "load: digits without classes": (
        lambda _: loaded(np.arange(N) % 10, classes=None), "classes must declare which"),
    "load: ten classes for signs": (
        lambda _: solved(**declared(classes=tuple(range(10)))), r"softmax\(classes\)"),
    "load: nullable numbers for words": (
        lambda _: loaded(nullable("Int64"), classes=("No", "Yes")), "of the table holds numbers"),
    "load: nullable numbers without classes": (
        lambda _: loaded(nullable("Int64"), classes=None), "which holds numbers"),
    "load: dates of Parquet": (
        lambda folder: parquet(folder, DATES), "real numbers, got dates"),
    "load: labels of dates": (lambda _: loaded(DATES), "must hold words, booleans or real"),
    "load: complex labels": (lambda _: loaded(Y + 0j), "must hold words, booleans or real"),
    "load: numbers for words": (
        lambda _: loaded(ONES, classes=("No", "Yes")), "declare classes of that kind"),
    "load: a column of dates": (lambda _: framed(c=DATES), "declare bounds as dates in a schema"),
    "load: a column of durations": (lambda _: framed(c=DATES - DATES[0]), "in a schema"),
    "load: a complex column": (lambda _: framed(c=Y + 0j), "declare ignore = true in a schema"),
    "load: a column of categories": (
        lambda _: framed(c=frame(c=WORDS)["c"].astype("category")), "its levels in a schema"),
    "load: one-hot labels": (lambda folder: from_archive(folder, HOT), r"'y' \(n,\), got"),
    "load: a column of labels": (lambda folder: from_archive(folder, Y[:, None]), r"\(n,\), got"),
    "load: no bounds": (lambda _: loaded(bounds=None), "bounds must declare the range"),
    "estimator: a column of dates": (lambda _: classifier(frame(c=DATES)), "days since"),
    "estimator: dates with a zone": (
        lambda _: classifier(frame(c=frame(c=DATES)["c"].dt.tz_localize("UTC"))), "days since"),
    "estimator: a column of lists": (
        lambda _: classifier(polars(c=[[1.0]] * N)), "leave such a column out"),
    "estimator: a column of words": (
        lambda _: classifier(frame(c=WORDS)), "got words in its column 'c'"),
    "estimator: a column of digits": (
        lambda _: classifier(frame(c=X[:, 0].astype(str))), "got words in its column 'c'"),
    "estimator: an array of words": (lambda _: classifier(X.astype("U")), "got words"),
    "estimator: dates of polars": (lambda _: classifier(polars(c=DATES)), "got dates in its"),
    "estimator: labels of dates": (
        lambda _: classifier(y=DATES, classes=("No", "Yes")), "real numbers, got dates"),
    "estimator: labels of polars' dates": (
        lambda _: classifier(y=polars(y=DATES)["y"], classes=("No", "Yes")), "got dates"),
    "estimator: words for numbers": (
        lambda _: classifier(y=ONES, classes=("No", "Yes")), "declare classes of that kind"),
    "estimator: one-hot labels": (lambda _: classifier(y=HOT), "Pass one column"),
    "estimator: complex features": (lambda _: classifier(X + 0j), "must hold real values"),
    "estimator: a target of dates": (lambda _: regression(y=DATES), "y must hold numbers"),
    "estimator: a column of categories": (
        lambda _: classifier(frame(c=frame(c=WORDS)["c"].astype("category"))), "got category in"),
    "estimator: booleans of a frame for words": (
        lambda _: classifier(y=frame(y=nullable("boolean"))[["y"]], classes=("No", "Yes")),
        "declare classes of that kind"),
    "estimator: one such cell missing": (
        lambda _: classifier(y=frame(y=nullable("boolean").mask(ONES > 0))[["y"]],
                             classes=("No", "Yes")), "declare classes of that kind"),
    "load: two columns of one name": (
        lambda _: load({1: X[:, 0], "1": X[:, 1], "y": Y}, label="y", bounds={"1": (-1, 1)},
                       classes=(-1, 1)), "names '1' twice"),
    "check: fewer units": (
        lambda _: check(dpjax.Dataset(X, Y), unit=[1, 2]), "one entry for each record"),
    "check: a cap without units": (
        lambda _: check(dpjax.Dataset(X, Y), max_records=2), "max_records is for units"),
    "check: a cap of none": (
        lambda _: check(dpjax.Dataset(X, Y), unit=Y, max_records=0), "at least 1, got 0"),
    "check: no records": (lambda _: check(dpjax.Dataset(X[:0], Y[:0])), "has no records"),
    "check: no records of a schema": (
        lambda _: check({"a": [], "y": []}, schema={
            "label": {"column": "y", "classes": [0, 1]}, "columns": {"a": {"bounds": [0, 1]}}}),
        "has no records"),
    "estimator: a target of two columns": (lambda _: regression(y=HOT), "Pass one column"),
}  # fmt: skip


@pytest.mark.parametrize("way", REFUSED)
def test_what_shape_dtype_or_declaration_shows_is_refused(way, tmp_path, monkeypatch):
    """Before anything is spent, with the way out named."""

    def spent(*args, **kwargs):
        raise AssertionError("the budget was spent")

    for loop in ("start", "advance", "finish", "bind_records"):
        monkeypatch.setattr(f"dpjax.driver.loop.{loop}", spent)
    call, message = REFUSED[way]
    with pytest.raises(ValueError, match=message):
        call(tmp_path)


def in_a_program(y):
    return jax.jit(lambda y: solved(y=y))(y)


def batched(y):
    return jax.vmap(lambda y: solved(y=y))(y[None])[0]


def of_units(y):
    units = group(dpjax.Dataset(X, y), np.arange(N), 1)
    return solved(units.x, units.y, dpjax.objectives.logistic().of_units(), present=units.present)


@functools.cache
def own_loss():
    def loss(w, example):
        return jax.nn.softplus(-example[1] * jnp.dot(w, example[0]))

    model = dpjax.objectives.LinearModel()
    return dpjax.Objective(loss, constants=(1.0, 0.25, 0.1), model=model)


def tuned(y):
    budget = dpjax.PrivacyBudget(8.0, 1e-4)
    loss, sizes = dpjax.objectives.logistic(), {"data_size": N, "dimension": P, "steps": 2}
    make = functools.partial(dpjax.dp_gradient_descent, loss, **sizes)
    return dpjax.tune(make, {"step_size": [0.5, 1.0]}, (X, y), budget, seed=0).solution.params


def measured(y):
    w = jnp.ones(P)
    objective = dpjax.objectives.logistic()
    accuracy = dpjax.diagnostics.exact_accuracy(objective, w, X, y)
    return jnp.stack([accuracy, dpjax.diagnostics.exact_objective(objective, w, (X, y))])


def schema(y):
    columns = {name: {"bounds": (-1, 1)} for name in "ab"}
    label = {"column": "y", "classes": [0, 1]}
    table = {"a": X[:, 0], "b": X[:, 1], "y": y}
    return load(table, schema={"label": label, "columns": columns}).y


ZERO_ONE = {"floats": ONES, "integers": ONES.astype(int), "bytes": ONES.astype("u1"),
            "booleans": ONES.astype(bool)}  # fmt: skip
READ = {
    **{f"solve: {kind}": (lambda y: solved(y=y), y) for kind, y in ZERO_ONE.items()},
    "run: booleans": (lambda y: solved(y=y, train=dpjax.run), ONES.astype(bool)),
    "in a program": (in_a_program, ONES),
    "a batch of data sets": (batched, ONES),
    "units": (of_units, ONES),
    "a loss of one's own": (lambda y: solved(y=y, objective=own_loss()), ONES.astype(bool)),
    "two layers": (lambda y: solved(y=y, objective=dpjax.objectives.two_layer(2)), ONES),
    "a search": (tuned, ONES),
    "exact values": (measured, ONES),
    "load: booleans": (loaded, ONES.astype(bool)),
    "load: classes of -1 and 1": (loaded, ONES),
    "load: booleans without classes": (
        lambda y: loaded(y, classes=None if y.dtype == bool else (-1, 1)),
        ONES.astype(bool),
    ),
    "load: nullable numbers": (lambda y: loaded(nullable("Int64", y)), ONES),
    "load: nullable booleans": (lambda y: loaded(nullable("boolean", y > 0), classes=None), ONES),
    "load: decimal numbers": (lambda y: loaded([Decimal(int(cell)) for cell in y]), ONES),
    "estimator: words": (lambda y: classifier(y=y.astype("U"), classes=("-1.0", "1.0")), ONES),
    "estimator: numbers for words": (lambda y: classifier(y=y, classes=("-1", "1")), ONES),
    "estimator: classes of -1 and 1": (lambda y: classifier(y=y), ONES),
    "estimator: booleans": (lambda y: classifier(y=y), ONES.astype(bool)),
}


# Whose like has a program of its own already.
LIKE = {"solve: integers", "run: booleans", "in a program", "a batch of data sets", "two layers"}
DAILY = READ.keys() - LIKE - {"a search"}


@pytest.mark.parametrize("way", mostly_ci(READ, DAILY))
def test_of_two_labels_0_is_minus_1(way):
    """What -1 and +1 give, to the bit, and not what is left where all negatives are null."""
    call, y = READ[way]
    found, expected = map(np.asarray, (call(y), call(np.where(Y > 0, 1, -1).astype(Y.dtype))))
    np.testing.assert_allclose(found, expected, atol=0 if y.dtype == Y.dtype else 1e-4)
    assert np.isfinite(found).all()
    if way.startswith("solve"):
        assert not np.allclose(found, solved(y=np.where(ONES > 0, Y, np.nan)), atol=0.1)


class Stubborn:
    """A cell that raises whatever is asked of it."""

    @property
    def ndim(self):
        raise RuntimeError("asked")


class UndecodedBytes(bytes):
    """A cell of bytes that cannot be read."""

    def decode(self, *_):
        raise RuntimeError("asked")


class OwnFloat(float):
    """A number of another class."""


@pytest.mark.parametrize(
    ("cell", "name"),
    [(OwnFloat(7), "7"), (UndecodedBytes(b"7"), ""), (Stubborn(), "")],
    ids=["float", "bytes", "object"],
)
def test_no_cell_of_units_raises(cell, name):
    assert unit_name(cell, "number") == name


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "cell",
    [
        *(np.ma.masked, np.ma.array(1.0, mask=True), Stubborn(), UndecodedBytes(b"x")),
        *(np.timedelta64(1, "D"), np.timedelta64(1, "ns"), np.timedelta64(1), DATES[1]),
        *(np.datetime64(1, "ns"), np.array(1, "M8[ns]"), 1 + 0j, np.complex64(1)),
    ],
    ids=lambda cell: type(cell).__name__,
)
def test_no_cell_raises_warns_or_becomes_a_number_that_it_is_not(cell):
    held = np.array([cell, 1, 0], object)
    assert dpjax.datasets.encode_labels(list(held), classes=(0, 1))[1:].tolist() == [1, -1]
    assert np.isnan(dpjax.datasets.encode_labels(list(held), classes=(0, 1))[0])
    rows = load({"a": held, "y": [0, 1, 1]}, label="y", bounds={"a": [0, 1]}, classes=(0, 1)).x
    assert np.isnan(rows[0]).all()
    assert np.isfinite(rows[1:]).all()


@pytest.mark.parametrize("dtype", ["Int64", "Float32", "boolean", "int64[pyarrow]"])
def test_a_missing_cell_of_a_nullable_column_is_one_null_record(dtype):
    column = nullable(dtype)
    column[7] = None
    classes = None if dtype == "boolean" else (0, 1)
    expected = np.where(np.arange(N) == 7, np.nan, np.where(Y > 0, 1, -1))
    np.testing.assert_array_equal(loaded(column, classes=classes), expected)
    report = check({"a": X[:, 0], "y": column}, label="y", bounds={"a": (-1, 1)}, classes=classes)
    assert sum(report.exact_class_counts.values()) == N - 1 and not report.exact_problems


SIGNS = {
    "fit: two logits": lambda y: fitted(y=y),
    "fit: what is measured": lambda y: fitted(
        y=y, seen=lambda trained: dict(trained.exact_training), exact=True)["accuracy"],
    "load: classes of 0 and 1": lambda y: loaded(y, classes=(0, 1)),
    "load: a schema's classes": schema,
    "estimator: classes of 0 and 1": lambda y: classifier(y=y, classes=(0, 1)),
    "estimator: classes of False and True": lambda y: classifier(y=y, classes=(False, True)),
}  # fmt: skip


@pytest.mark.parametrize("way", SIGNS)
def test_of_two_labels_minus_1_is_0(way):
    found, expected = map(np.asarray, (SIGNS[way](Y), SIGNS[way](ONES)))
    np.testing.assert_array_equal(found, expected)


def test_no_third_label_is_read_as_one_of_two():
    """255 of a byte is the -1 of its dtype; a label of three classes stands for none but itself."""
    y = np.where(ONES > 0, 1, 255).astype(np.uint8)
    null = np.where(ONES > 0, 1.0, np.nan).astype(np.float32)
    np.testing.assert_allclose(solved(y=y), solved(y=null), atol=1e-4)
    of_three = [solved(y=labels, objective=THREE_CLASSES) for labels in (Y, null)]
    np.testing.assert_array_equal(*of_three)
    assert np.isnan(loaded(Y, classes=(0, 1, 2))[Y < 0]).all()
    assert np.isnan(loaded(Y, classes=(0, 2))[Y < 0]).all()
    assert np.isnan(loaded(ONES, classes=(1, 2))[Y < 0]).all()


# What values alone show


DAYS = [f"{day % 28 + 1}.3.2021" for day in range(N)]
COLUMNS = {"id": [f"p{i // 16}" for i in range(N)], "a": X[:, 0], "y": WORDS}
LABEL = {"column": "y", "classes": ["No", "Yes"]}


def checked(table=COLUMNS, label=LABEL, cap=None, **columns):
    """What the owner's check prints of a table with this schema."""
    unit = {} if cap is None else {"unit": {"column": "id", "max_records": cap}}
    columns = ({} if cap else {"id": {"ignore": True}}) | {"a": {"bounds": [-1, 1]}} | columns
    return check(table, schema={"label": label, "columns": columns} | unit)


def plainly(y=Y, low=-1, high=None, classes=(-1, 1), unit=None, **more):
    table = {"a": X[:, 0], "y": y} | more
    bounds = dict.fromkeys(table.keys() - {"y", unit}, (low, low + 2 if high is None else high))
    return check(table, label="y", bounds=bounds, classes=classes, unit=unit)


COUNTED = {
    "classes in other letters": (
        lambda: checked(label={"column": "y", "classes": ["no", "yes"]}), "'No' .*declared are"),
    "a class that no record has": (
        lambda: checked(label={"column": "y", "classes": ["No", "yes"]}), "no record has 'yes'"),
    "labels 1 and 2": (lambda: plainly(np.where(Y > 0, 1, 2)), r"declare --classes 1,2"),
    "labels 0 and 1 as words": (
        lambda: plainly(np.where(Y > 0, "1", "0"), classes=None), "declare --classes 0,1"),
    "arrays of labels 1 and 2": (
        lambda: check(dpjax.Dataset(X, np.where(Y > 0, 1, 2))), r"encode_labels\(y, classes=\('1'"),
    "arrays of labels 0, 2 and 4": (
        lambda: check(dpjax.Dataset(X, np.arange(N) % 3 * 2.0)), r"classes=\('0', '2', '4'\)"),
    "arrays of digits": (
        lambda: check(dpjax.Dataset(X, np.arange(N) % 10)), r"'9' 6 times.*contributes nothing"),
    "units with labels 1 and 2": (
        lambda: check(group(dpjax.Dataset(X, np.where(Y > 0, 1, 2)), np.arange(N) // 2, 2)),
        "labels: 0 of -1, 30 of .1, 34 impossible.*pass dpjax.datasets.encode_labels"),
    "-1 for a missing label": (
        lambda: plainly(np.where(np.arange(N) < 9, -1, ONES), classes=(0, 1)),
        "-1 9 times and 0 .. times, and -1 is read as 0: if it says that the label is missing"),
    "0 for a missing label": (
        lambda: check(dpjax.Dataset(X, np.where(np.arange(N) < 9, 0, Y))), "0 is read as -1"),
    "-1 for a missing label, by a schema": (
        lambda: checked(COLUMNS | {"y": np.where(np.arange(N) < 9, -1, ONES)},
                        {"column": "y", "classes": [0, 1]}), "and -1 is read as 0"),
    "ids that begin with zeros": (
        lambda: plainly(unit="id", id=[f"{i // 2:04d}" for i in range(N)]),
        "the unit 'id' holds '0000' 2 times.*names nobody.*declare"),
    "ids of arrays that begin with zeros": (
        lambda: check(dpjax.Dataset(X, Y), unit=[f"{i // 2:02d}" for i in range(N)]),
        "'01' 2 times.* names nobody"),
    "ids that begin with zeros, by a schema": (
        lambda: checked(COLUMNS | {"id": [f"{i // 2:04d}" for i in range(N)]}, cap=2),
        "the unit 'id' holds '0000' 2 times.*names nobody"),
    "bounds that are far too wide": (
        lambda: plainly(Y, low=-1000, high=1000), "every column span less than 1% of the declared"),
    "bounds of arrays that are far too wide": (
        lambda: check(dpjax.Dataset(X, Y), bounds=[(-1e6, 1e6)] * P), "column span less than 1%"),
    "bounds that are far too wide, by a schema": (
        lambda: checked(a={"bounds": [-1e6, 1e6]}), "every column span less than 1%"),
    "bounds of a target that are far too wide": (
        lambda: checked(COLUMNS | {"y": X[:, 1]}, {"column": "y", "bounds": [-1e6, 1e6]}),
        "the label 'y' of the table span less than 1%"),
    "numbers as labels": (lambda: plainly(X[:, 1]), "it is not a column of classes"),
    "bounds in other units": (lambda: plainly(Y, low=100), "are the bounds in the units"),
    "words among numbers": (
        lambda: plainly(Y, b=WORDS.astype(object)), "'b' has no valid value in 64 of 64"),
    "an empty column": (lambda: plainly(Y, b=[None] * N), "'b' has no valid value in 64 of 64"),
    "a column of one value": (lambda: plainly(Y, b=[1.0] * N), "one value in all rows: 'b'"),
    "a column that is imputed": (
        lambda: checked(COLUMNS | {"b": [""] * N}, b={"bounds": [0, 9], "missing": 1}),
        "one value in all rows: 'b'"),
    "levels in other letters": (
        lambda: checked(COLUMNS | {"b": WORDS}, b={"levels": ["no", "yes"], "other": True}),
        "none of its declared levels in 64 of 64 records"),
    "days first": (
        lambda: checked(COLUMNS | {"b": DAYS}, b={"bounds": ["2021-01-01", "2022-01-01"]}),
        "dates written as day.month.year, such as '1.3.2021'"),
    "months first and a time": (
        lambda: checked(
            COLUMNS | {"b": [f"3/{day.split('.')[0]}/2021 10:00" for day in DAYS]},
            b={"bounds": ["2021-01-01", "2022-01-01"]}),
        "dates written as month/day/year and time, such as"),
    "records beyond the cap": (
        lambda: checked(cap=4), "rows beyond max_records of theirs: 48.*leaves out 48 of 64"),
    "everybody is one person": (
        lambda: checked(COLUMNS | {"id": ["p"] * N}, cap=N), "names one unit alone"),
}  # fmt: skip


def test_the_owners_check_names_rare_levels():
    levels = {"levels": ["No", "Yes", "Perhaps"], "other": True}
    report = checked(COLUMNS | {"b": WORDS}, b=levels)
    assert not report.exact_problems and len(report.exact_remarks) == 1
    assert "rows have: 0 of 'b=Perhaps', 0 of 'b=other'; with such" in report.exact_remarks[0]


@pytest.mark.parametrize("way", COUNTED)
def test_the_owners_check_counts_what_values_alone_show(way):
    call, message = COUNTED[way]
    report = call()
    printed = " ".join(report.lines())
    assert printed.startswith("NOT PRIVATE") and re.search(message, printed), printed
    assert bool(report.exact_problems) != ("one value" in message)  # which costs nothing


@pytest.mark.parametrize("more", [["--dry-run"], []], ids=["dry", "paid"])
def test_a_run_says_that_nobody_checked(more, tmp_path, capsys):
    np.savez(tmp_path / "table.npz", x=X, y=ONES)
    (tmp_path / "bounds.json").write_text(json.dumps([[-1, 1]] * P))
    words = ["--data", tmp_path / "table.npz", f"--bounds={tmp_path / 'bounds.json'}"]
    words.append("--classes=0,1")
    assert main(list(map(str, ["run", "dp-gd", *words, "--steps", 2, *more]))) == 0
    printed = capsys.readouterr().out
    assert "not checked: whether records count; the data's owner can see by dpjax data " in printed
    said = printed.split("can see by dpjax ")[1].splitlines()[0]
    assert main(shlex.split(said)) == 0 and "NOT PRIVATE" in capsys.readouterr().out


NOTHING = np.full(N, np.nan, np.float32)
TOLD = {
    "solve: no label is a number": lambda: loudly(y=NOTHING),
    "solve: no feature is a number": lambda: loudly(X * np.nan),
    "solve: labels 3 and 5": lambda: loudly(y=Y + 4),
    "fit: classes 5 and 6 of two logits": lambda: fitted(y=ONES + 5, seen=solution_of),
    "fit: no feature is a number": lambda: fitted(X * np.nan, seen=solution_of),
    "estimator: classes in other letters": lambda: classifier(
        y=WORDS, classes=("no", "yes"), seen=lambda model: model.solution_),
    "estimator: objects of words": lambda: classifier(
        X.astype("U") + WORDS[:, None].astype(object), seen=lambda model: model.solution_),
    "estimator: a target in other units": lambda: regression(
        y=100 + Y, seen=lambda model: model.solution_),
}  # fmt: skip


def loudly(x=X, y=Y):
    budget = dpjax.PrivacyBudget(8.0, 1e-4)
    noisy = toy("dp-gd", budget, dpjax.objectives.logistic(), steps=2, step_size=1.0)
    return dpjax.solve(noisy, (x, y), seed=0)


def solution_of(trained):
    return trained.solution


HALF = np.where(np.arange(N) % 2, Y, 3).astype(np.float32)
HOLES = np.where(np.arange(N)[:, None] % 2, X, np.nan).astype(np.float32)


def counted(x=X, y=HALF, objective=None, train=dpjax.solve, **more):
    """Of a training that spends a share of its budget on the number of records that count."""
    make = functools.partial(toy, "dp-gd", objective=objective, steps=2, step_size=1.0)
    ending = dpjax.with_count(make, dpjax.PrivacyBudget(8.0, 1e-4))
    return train(ending, dpjax.Dataset(x, y, **more), seed=0)


def units_counted():
    units, objective = group(dpjax.Dataset(X, HALF), np.arange(N), 1), dpjax.objectives.logistic()
    return counted(units.x, units.y, objective.of_units(), present=units.present)


HALVES = {
    "solve: half of the labels are none": counted,
    "run: half of the labels are none": lambda: counted(train=dpjax.run),
    "solve: half of the rows have an empty column": lambda: counted(HOLES, Y),
    "solve: half of the units have no label": units_counted,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "way",
    mostly_ci(
        HALVES, ["solve: half of the labels are none", "solve: half of the units have no label"]
    ),
)
def test_half_of_the_records_null_is_told_by_a_count(way):
    assert any("of 64 declared records count" in line for line in HALVES[way]().remarks)
    assert not counted(y=Y).remarks


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", TOLD)
def test_released_values_tell_what_no_declaration_shows(way):
    assert any("cannot be told from noise" in line for line in TOLD[way]().remarks)
