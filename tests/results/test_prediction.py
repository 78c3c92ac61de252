"""From a trained model, saved or not, to labels of new records; nothing is scaled twice."""

import csv
import json
import pathlib
import re
import shlex

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from factories import mostly_ci
from flax import nnx, serialization

import dpjax
from dpjax.cli import main
from dpjax.datasets import Preprocessing, load
from dpjax.datasets.encoders import Numeric
from dpjax.results import predict_table, training_rows

BOUNDS = {"age": [18, 90], "income": [0, 200]}
COLUMNS = ("income", "id", "age")  # another order than trained on, and a column to pass over


def records(rows=400, seed=0):
    rng = np.random.default_rng(seed)
    age, income = rng.uniform(18, 90, rows).round(2), rng.uniform(0, 200, rows).round(2)
    return age, income, np.where((age - 18) / 72 > income / 200, "Yes", "No")


def write(path, header, *columns):
    lines = [",".join(map(str, line)) for line in zip(*columns, strict=True)]
    path.write_text("\n".join([",".join(header), *lines, ""]))
    return path


@pytest.fixture
def table(tmp_path):
    return write(tmp_path / "customers.csv", ("age", "income", "churned"), *records())


@pytest.fixture
def data(table):
    options = {"label": "churned", "bounds": BOUNDS, "classes": ("No", "Yes"), "intercept": True}
    return load(table, **options)


def trained(data, objective=None, steps=None):
    algorithm = dpjax.dp_trust_region(
        objective or dpjax.objectives.logistic_l2(1e-3),
        dpjax.PrivacyBudget(8.0, 1e-4),
        data_size=data.size,
        dimension=(objective or dpjax.objectives.logistic()).parameters(data.dimension),
        **({} if steps is None else {"steps": steps}),
    )
    return dpjax.solve(algorithm, data, seed=0)


@pytest.fixture
def models(data, tmp_path):
    """A solution, and what is loaded after it was saved."""
    solution = trained(data)
    dpjax.save(tmp_path / "model", solution)
    return solution, dpjax.load(tmp_path / "model")


# Tables


def test_every_form_of_a_table_predicts_the_same_labels(models, tmp_path):
    age, income, y = records(50, seed=1)
    unlabelled = write(tmp_path / "new.csv", COLUMNS, income, range(50), age)
    labelled = write(tmp_path / "old.csv", ("age", "income", "churned"), age, income, y)
    np.savez(tmp_path / "new.npz", x=np.stack([age, income], 1))
    structured = np.empty(50, [("income", "f8"), ("age", "f4")])
    structured["age"], structured["income"] = age, income
    forms = [
        unlabelled,
        str(unlabelled),
        labelled,
        tmp_path / "new.npz",
        {"income": income.tolist(), "age": age},
        structured,
        np.stack([age, income], 1),
        np.stack([age, income], 1).astype(np.float32),
    ]
    for model in models:
        expected = model.predict(forms[0])
        assert set(expected) == {"No", "Yes"} and np.mean(expected == y) > 0.85
        for form in forms[1:]:
            np.testing.assert_array_equal(model.predict(form), expected)
    array = forms[-1].copy()
    models[1].predict(array)
    np.testing.assert_array_equal(array, forms[-1])  # the caller's array is not scaled in place


def test_a_data_frame_predicts(models):
    pandas = pytest.importorskip("pandas")
    age, income, y = records(50, seed=1)
    frame = pandas.DataFrame({"churned": y, "income": income, "age": age})
    expected = models[0].predict(np.stack([age, income], 1))
    for model in models:
        np.testing.assert_array_equal(model.predict(frame), expected)
        np.testing.assert_array_equal(model.predict(frame[["age", "income"]]), expected)
    again = load(frame, label="churned", bounds=BOUNDS, classes=("No", "Yes"))
    np.testing.assert_array_equal(again.y, np.where(y == "Yes", 1, -1))


def test_rows_that_are_scaled_are_not_scaled_again(models, data, table):
    for model in models:
        scaled = model.decision_function(data)
        np.testing.assert_array_equal(model.decision_function(table), scaled)
        np.testing.assert_allclose(scaled, data.x @ np.asarray(model.params, np.float64))
        with pytest.raises(ValueError, match=r"array \(n, 2\).*got 2 axes of 3 columns.*Dataset"):
            model.predict(data.x)
        other = load(table, label="churned", bounds=BOUNDS, classes=("No", "Yes"))
        with pytest.raises(ValueError, match="'customers' was scaled by other columns, bounds or"):
            model.predict(other)


def test_probabilities_and_scores_agree(models, table):
    for model in models:
        proba, scores = model.predict_proba(table), model.decision_function(table)
        np.testing.assert_allclose(proba.sum(1), 1)
        np.testing.assert_allclose(np.log(proba[:, 1] / proba[:, 0]), scores, atol=1e-9)
        np.testing.assert_array_equal(model.predict(table) == "Yes", proba[:, 1] >= 0.5)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ({"age": [30]}, "lacks 'income', which the model was trained on"),
        (
            {"age": [30], "income": np.zeros(1, "M8[D]")},
            "'income' .* holds dates, for which bounds",
        ),
        ({"age": [None], "income": [3]}, "missing or non-finite value"),
        ([[np.nan, 1.0]], "missing or non-finite value"),
        ([30.0, 1.0], r"array \(n, 2\).*got 1 axes"),
        ([["a", "b"]], "missing or non-finite value"),
        ("new.xls", "must end in .csv"),
    ],
)
def test_records_that_cannot_be_predicted(models, x, message):
    for model in models:
        with pytest.raises(ValueError, match=message):
            model.predict(x)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        models[1].predict("absent.csv")


# What save keeps


def test_save_keeps_what_was_declared(models):
    _, saved = models
    columns = (Numeric("age", 18.0, 90.0), Numeric("income", 0.0, 200.0))
    assert saved.preprocessing == Preprocessing(columns, True, ("No", "Yes"))
    assert hash(saved.preprocessing) == hash(models[0].preprocessing)
    rows = saved.preprocessing.rows({"age": [18, 90], "income": [0, 200]})
    np.testing.assert_allclose(rows, [[0, 0, 1], [3**-0.5] * 3], atol=1e-6)


@pytest.mark.parametrize("classes", [(0, 1), (True, False), ("b", 7.5), (2.5, 1)])
def test_labels_come_back_as_they_were_declared(classes, tmp_path):
    age, income, y = records()
    cells = [str(classes[int(label == "Yes")]) for label in y]
    path = write(tmp_path / "t.csv", ("age", "income", "l"), age, income, cells)
    data = load(path, label="l", bounds=BOUNDS, classes=classes, intercept=True)
    dpjax.save(tmp_path / "model", trained(data))
    found = dpjax.load(tmp_path / "model").predict(path)
    assert set(found.tolist()) == set(classes)
    assert np.mean([str(a) == b for a, b in zip(found.tolist(), cells, strict=True)]) > 0.85


def test_arrays_predict_signs_of_rows_as_in_training(data, tmp_path):
    bare = dpjax.Dataset(data.x, data.y, max_norm=1.0)
    solution = trained(bare)
    dpjax.save(tmp_path / "model", solution)
    for model in (solution, dpjax.load(tmp_path / "model")):
        assert model.preprocessing is None
        expected = solution.algorithm.objective.predict(solution.params, data.x)
        np.testing.assert_array_equal(model.predict(data.x), expected)
        np.testing.assert_array_equal(model.predict(bare), expected)
        for unknown in ("new.csv", {"age": [1]}):
            with pytest.raises(ValueError, match="trained on arrays"):
                model.predict(unknown)
        with pytest.raises(ValueError, match=r"rows of 3 numbers, \(n, 3\)"):
            model.predict(data.x[:, :2])


@pytest.mark.ci
def test_two_layers_predict_and_what_predicts_nothing_says_so(data, table, tmp_path):
    for objective in (dpjax.objectives.two_layer(), dpjax.objectives.pca()):
        solution = trained(data, objective, steps=2)
        dpjax.save(tmp_path / "model", solution)
        saved = dpjax.load(tmp_path / "model")
        if objective.predicts:
            expected = np.asarray(objective.predict(solution.params, data.x)) > 0
            np.testing.assert_array_equal(saved.predict(table) == "Yes", expected)
            continue
        for model in (solution, saved):
            with pytest.raises(ValueError, match=r"has no prediction rule|not the code"):
                model.predict(table)
    sigmoid = trained(data, dpjax.objectives.sigmoid_l2(), steps=2)
    assert set(sigmoid.predict(table)) <= {"No", "Yes"}
    with pytest.raises(ValueError, match="probabilities need a logistic or softmax loss"):
        sigmoid.predict_proba(table)


# Networks


class Net(nnx.Module):
    def __init__(self, rngs):
        self.layers = nnx.List([nnx.Linear(3, 4, rngs=rngs), nnx.Linear(4, 2, rngs=rngs)])

    def __call__(self, x):
        return self.layers[1](nnx.tanh(self.layers[0](x)))


def fitted(model, data, **more):
    return dpjax.fit(
        model,
        "cross_entropy",
        data,
        dpjax.PrivacyBudget(8.0, 1e-4),
        optax.adam(0.1),
        seed=0,
        batch_size=100,
        steps=40,
        **more,
    )


@pytest.mark.parametrize("kind", mostly_ci(["linen", "nnx", "function"], ["nnx"]))
def test_a_trained_network_is_saved_and_called_at_its_params(kind, data, tmp_path):
    models = {
        "linen": (nn.Dense(2), {}),
        "nnx": (Net(nnx.Rngs(0)), {}),
        "function": (lambda w, x: x @ w["w"], {"params": {"w": jnp.zeros((3, 2))}}),
    }
    model, more = models[kind]
    result = fitted(model, data, **more)
    dpjax.save(tmp_path / "net", result)
    saved = dpjax.load(tmp_path / "net")
    assert saved.text == result.guarantee() and saved.preprocessing == data.preprocessing
    with pytest.raises(ValueError, match=r"not the code that predicts.*module.apply.*nnx.update"):
        saved.predict(data)
    if kind == "linen":
        logits = model.apply({"params": saved.params}, data.x)
    elif kind == "nnx":
        fresh = Net(nnx.Rngs(1))
        template = nnx.to_pure_dict(nnx.state(fresh, nnx.Param))
        nnx.update(fresh, serialization.from_state_dict(template, saved.params))
        logits = fresh(data.x)
    else:
        logits = data.x @ saved.params["w"]
    np.testing.assert_allclose(logits, result.outputs(data), atol=1e-5)


def test_a_network_predicts_declared_classes_and_scales_nothing_twice(data, table):
    result = fitted(nn.Dense(2), data)
    age, income, y = records()
    labels = result.predict(data)
    assert np.mean(labels == y) > 0.8
    for form in (table, {"age": age, "income": income}, np.stack([age, income], 1)):
        np.testing.assert_array_equal(result.predict(form), labels)
    with pytest.raises(ValueError, match=r"array \(n, 2\)"):
        result.predict(data.x)


@pytest.mark.ci
def test_bounds_of_fit_scale_arrays_and_no_dataset_that_was_scaled(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (300, 6, 6, 1)).astype(np.uint8)
    y = (images.mean((1, 2, 3)) > 127).astype(int)

    def model(w, x):
        return x.ravel() @ w

    start = {"params": jnp.zeros((36, 2))}
    result = fitted(model, (images, y), bounds=(0, 255), **start)
    scale = Preprocessing((), pixels=(0.0, 255.0))
    scaled = dpjax.Dataset(images / np.float32(255), y, preprocessing=scale)
    np.testing.assert_allclose(result.outputs(scaled), result.outputs(images), atol=1e-5)
    with pytest.raises(ValueError, match="scaled by other columns"):
        result.outputs(dpjax.Dataset(images, y, preprocessing=Preprocessing((), pixels=(0.0, 1.0))))
    dpjax.save(tmp_path / "net", result)
    rows = dpjax.load(tmp_path / "net").preprocessing.rows(images)
    np.testing.assert_allclose(rows, scaled.x, atol=1e-6)
    # Trained on what was scaled when it was loaded: bytes are raw, floats are not.
    loaded = fitted(model, scaled, **start)
    np.testing.assert_allclose(loaded.outputs(images), loaded.outputs(scaled.x), atol=1e-5)


def test_training_rows_pass_over_what_is_no_table():
    tree = {"left": np.ones((2, 3)), "right": np.ones((2, 1))}
    assert training_rows(tree, None) is tree


# The command line


@pytest.fixture
def call(models, tmp_path, monkeypatch, capsys):
    """Runs a command in a folder with the file ``model``; what it returns, prints and warns of."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        status = main(list(words))
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


def test_predict_writes_a_line_for_each_record(call, models, tmp_path):
    age, income, _ = records(50, seed=1)
    path = write(tmp_path / "new.csv", COLUMNS, income, range(50), age)
    labels, chances = models[1].predict(path), models[1].predict_proba(path)
    status, out, err = call("predict", "model", "new.csv")
    assert status == 0 and out.splitlines() == ["prediction", *labels]
    assert "does not cover predictions for records that the model was trained on" in err
    status, out, _ = call("predict", "model", "new.csv", "--probabilities", "--out", "p.csv")
    assert (status, out) == (0, "wrote p.csv\n")
    with open("p.csv", newline="") as file:
        header, *lines = csv.reader(file)
    assert header == ["prediction", "probability_No", "probability_Yes"]
    assert [line[0] for line in lines] == labels.tolist()
    found = np.array([line[1:] for line in lines], float)
    np.testing.assert_allclose(found, chances, rtol=1e-8)
    assert sorted(file.name for file in tmp_path.glob("p.csv*")) == ["p.csv"]


def test_a_record_that_cannot_be_predicted_has_empty_cells(call):
    cells = ("30", "", "old", "30"), ("50", "60", "70", "nan")
    write(pathlib.Path("gaps.csv"), ("age", "income"), *cells)
    status, out, err = call("predict", "model", "gaps.csv", "--probabilities")
    first, *others = out.splitlines()[1:]
    assert status == 0 and first.startswith("No,") and others == [",,"] * 3
    assert "3 of 4 records have no prediction, and an empty cell in its place" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["predict", "model", "short.csv"], "'short.csv' lacks 'income', which the model was"),
        (["predict", "model", "randhie"], "was scaled by other columns, bounds or intercept"),
        (["predict", "model", "absent.csv"], "there is no file 'absent.csv'"),
        (["predict", "model", "new.xls"], "must end in .csv"),
        (["predict", "absent", "short.csv"], "there is no file 'absent'"),
        (
            ["predict", "short.csv", "short.csv"],
            "short.csv is not a solution saved by this version of dpjax",
        ),
        (["predict", "model", "short.csv", "--out", "model"], "--out and MODEL both name model"),
        (["predict", "model", "short.csv", "--out", "short.csv"], "--out and DATA both name"),
        (["predict", "model", "short.csv", "--out", "no/p.csv"], "its folder does not exist"),
        (["show", "absent"], "there is no file 'absent'"),
        (["show", "short.csv"], "short.csv is not a solution saved by this version of dpjax"),
        (["show", "model", "--json", "model"], "--json and MODEL both name model"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused_by_name(words, message, call):
    write(pathlib.Path("short.csv"), ("age", "more"), [30], [1])
    before = pathlib.Path("model").read_bytes()
    status, out, err = call(*words)
    assert status == 2 and message in err and len(err.splitlines()) == 1 and not out
    assert pathlib.Path("model").read_bytes() == before


def test_a_column_of_words_where_numbers_were_trained_on_is_refused_by_name(models):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"age": ["old"], "income": [1.0]})
    with pytest.raises(ValueError, match=r"'age' .* holds words, for which bounds .*: convert it"):
        predict_table(models[1], frame)


def test_what_predicts_no_label_is_refused(call, data, tmp_path):
    bare = dpjax.Dataset(data.x, data.y, max_norm=1.0)
    dpjax.save(tmp_path / "bare", trained(bare, steps=2))
    status, _, err = call("predict", "bare", "customers.csv")
    assert status == 2 and "trained on arrays, so the columns and bounds" in err
    dpjax.save(tmp_path / "pca", trained(data, dpjax.objectives.pca(), steps=2))
    status, _, err = call("predict", "pca", "customers.csv")
    assert status == 2 and "not the code that predicts by them" in err


# A new user


def test_a_new_user_gets_from_a_csv_with_words_to_predictions_by_messages_alone(
    table, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)

    def say(line):
        status = main(shlex.split(line)[1:])
        printed = capsys.readouterr()
        return status, printed.out + printed.err

    status, text = say("dpjax run --data customers.csv")
    assert status == 2
    status, text = say("dpjax data customers.csv")
    assert status == 2 and "--check" in text
    status, text = say("dpjax data customers.csv --check")
    assert status == 2 and "label must name the label's column" in text and "'churned'" in text
    status, text = say("dpjax data customers.csv --check --label churned")
    assert status == 1 and "'No'" in text and "--classes No,Yes" in text
    # The message holds the bounds to fill in.
    template = re.search(r"bounds\.json .*?(\{.*?\});", text).group(1)
    for low, high in BOUNDS.values():
        template = template.replace("[low, high]", f"[{low}, {high}]", 1)
    (tmp_path / "bounds.json").write_text(template)
    status, text = say(text.split("next: ")[1].splitlines()[0])
    assert status == 0 and "wrong" not in text
    command = text.split("next: ")[1].splitlines()[0]
    status, text = say(f"{command} --epsilon 8")
    assert status == 0 and text.startswith("accepted labels: 'No' (as -1), 'Yes' (as +1)")
    assert "differentially private" in text and "wrote model" in text
    age, income, y = records(100, seed=2)
    write(tmp_path / "new.csv", COLUMNS, income, range(100), age)
    line = re.search(
        r"predict: (dpjax .*), or in Python (.*\)), for a table with the columns age, income", text
    )
    found = eval(line.group(2), {"dpjax": dpjax})
    assert np.mean(found == y) > 0.8
    status, text = say(line.group(1))
    assert status == 0 and text.splitlines()[1:101] == found.tolist()
    assert json.loads(template) == BOUNDS
