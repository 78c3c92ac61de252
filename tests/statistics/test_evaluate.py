"""``evaluate``: its numbers are those of the records, its noise is booked, other tables refused."""

import json

import jax
import numpy as np
import pytest
from scipy import stats

import dpjax
from dpjax.accounting import PrivacyBudget
from dpjax.cli import main
from dpjax.datasets import Dataset
from dpjax.statistics import evaluate
from dpjax.statistics.evaluation import EDGES, SIZES

N, P, K = 2_000, 3, 4
SURE = PrivacyBudget(1e4, 0.1)  # hardly any noise
RELATIONS = ("zero_out", "replace_one", "add_or_remove_one")
OBJECTIVES = {
    "two": dpjax.objectives.logistic_l2(),
    "three": dpjax.objectives.softmax(3),
    "number": dpjax.objectives.least_squares(),
}


def data_of(name, units=False):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, P)) / 4
    scores = x @ rng.normal(size=(P, 3)) + rng.normal(size=(N, 3)) / 8
    labels = {
        "two": np.sign(scores[:, 0]),
        "three": np.argmax(scores, axis=1),
        "number": np.clip(scores[:, 0], -1, 1),
    }[name]
    x, y = x.astype(np.float32), labels.astype(np.float32)
    if not units:
        return Dataset(x, y)
    present = rng.random((N // K, K)) < 0.6
    return Dataset(x.reshape(-1, K, P), y.reshape(-1, K), present=present, unit="patient")


def model_of(name):
    data, objective = data_of(name), OBJECTIVES[name]
    algorithm = dpjax.dp_trust_region(
        objective, PrivacyBudget(5.0, 1e-4), data_size=N, dimension=objective.parameters(P), steps=4
    )
    return dpjax.solve(algorithm, data, seed=1)


def asked(model, data, budget=SURE, **how):
    return evaluate(model, data, budget, data_size=data.size, **{"seed": 0, **how})


def exact(name, model, data):
    """Accuracy, or errors, by the model's own predictions; of persons the mean of each one's."""
    rows = data.x.reshape(-1, P)
    found = model.predict(rows).astype(float).reshape(data.y.shape)
    if name == "number":
        return {"mean absolute error": np.abs(np.clip(found, -1, 1) - data.y).mean() / 2}
    right = found == data.y
    if data.present is None:
        return {"accuracy": right.mean()}
    held = data.present.sum(axis=1)
    share = (right & data.present).sum(axis=1) / np.maximum(held, 1)
    return {"accuracy": share[held > 0].mean()}


@pytest.mark.parametrize("units", [False, True])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_numbers_are_those_of_the_records(name, units):
    model, data = model_of(name), data_of(name, units)
    found = asked(model, data)
    if units and name == "number":
        return  # what one accuracy shows of persons holds of errors
    for measure, value in exact(name, model, data).items():
        room = 0.05 * value if name == "number" else 2e-3
        assert abs(found.estimates[measure].value - value) < room
    if name == "two" and not units:
        metrics = pytest.importorskip("sklearn.metrics")
        auc = metrics.roc_auc_score(data.y > 0, model.decision_function(data))
        assert abs(found.estimates["AUC"].value - auc) < 0.01
        pairs = metrics.confusion_matrix(data.y, model.predict(data))
        assert np.abs(found.confusion - pairs).max() < 3
        assert np.all(np.diff(found.roc) >= 0) and found.roc[:, -1] == pytest.approx(1, abs=0.01)
    if name == "number":
        error = np.clip(model.decision_function(data), -1, 1) - data.y
        spread = 1 - np.mean(error**2) / np.var(data.y)
        assert abs(found.estimates["R2"].value - spread) < 0.05
        within = np.mean(np.abs(error) / 2 < SIZES[4])
        assert abs(found.estimates[f"within {SIZES[4]:.4g}"].value - within) < 0.01


def test_a_record_without_label_or_features_is_in_no_bin_and_order_changes_nothing():
    model, data = model_of("two"), data_of("two")
    x, y = data.x.copy(), data.y.copy()
    x[:5], y[5:9], x[9, 1] = np.nan, 7.0, np.inf
    holed = asked(model, Dataset(x, y))
    assert holed.counts.sum() == pytest.approx(N - 10, abs=1)
    order = np.random.default_rng(1).permutation(N)
    turned = asked(model, Dataset(data.x[order], data.y[order]))
    assert np.array_equal(turned.counts, asked(model, data).counts)


@pytest.mark.filterwarnings("error:overflow")
@pytest.mark.parametrize("name", ["three", "number"])
def test_no_warning_tells_of_a_label_as_large_as_a_float_can_be(name):
    y = data_of(name).y.astype(np.float64)
    y[0] = 1e308
    assert asked(model_of(name), Dataset(data_of(name).x, y)).counts.size


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("name", ["two", "number"])
def test_the_noise_is_the_noise_accounted(name, relation):
    """440 numbers of noise or more; 30 % less noise is 7 standard errors away."""
    model, data, seen = model_of(name), data_of(name), []
    plain = asked(model, data).counts
    for seed in range(20):
        found = asked(model, data, PrivacyBudget(2.0, 1e-5, relation), seed=seed)
        seen.append((found.counts - plain) / found.stddev)
        (release,) = found.solution.event.releases
        assert found.stddev == pytest.approx(release.stddev * N, rel=1e-5)
        # A record moves the counts by the root of its bins, and noise covers that.
        assert release.sensitivity * N >= np.sqrt(1 + (name == "number"))
    z = np.ravel(seen)
    low, high = stats.chi2.ppf([1e-5 / 2, 1 - 1e-5 / 2], z.size) / z.size
    assert low < (z**2).mean() < high and not low < 0.49 * (z**2).mean() < high


@pytest.mark.ci
def test_an_interval_holds_what_there_is_without_noise():
    """Of 200 runs; one that is half as wide is noticed."""
    model, data = model_of("two"), data_of("two")
    exact = asked(model, data).estimates
    runs = [asked(model, data, 0.5, seed=seed).estimates for seed in range(200)]
    for name in ("AUC", "accuracy"):
        held = sum(one[name].lower <= exact[name].value <= one[name].upper for one in runs)
        half = sum(
            abs(one[name].value - exact[name].value) < (one[name].upper - one[name].lower) / 4
            for one in runs
        )
        assert stats.binomtest(held, 200, 0.95).pvalue > 1e-5
        assert stats.binomtest(half, 200, 0.95).pvalue < 1e-5


def test_of_too_few_records_nothing_is_said():
    found = asked(model_of("two"), data_of("two"), 0.01)
    assert set(found.estimates.values()) == {None} and found.roc is None
    assert "too few records" in found.lines()[0]


def declared(**changes):
    schema = {
        "label": {"column": "y", "classes": ["no", "yes"]},
        "columns": {"a": {"bounds": [0, 1]}, "b": {"bounds": [0, 1]}},
    }
    rng = np.random.default_rng(3)
    a, b = rng.random((2, 500))
    table = {"a": a, "b": b, "y": np.where(a > b, "yes", "no")}
    return dpjax.datasets.load(table, schema={**schema, **changes})


def trained(objective=OBJECTIVES["two"]):
    data = declared()
    make = dpjax.dp_gradient_descent(
        objective, PrivacyBudget(5.0, 1e-3), data_size=500,
        dimension=objective.parameters(data.dimension), steps=3, step_size=0.1,
    )  # fmt: skip
    return dpjax.solve(make, data, seed=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"columns": {"a": {"bounds": [0, 2]}, "b": {"bounds": [0, 1]}}}, "they differ in 'a'"),
        ({"label": {"column": "y", "classes": ["yes", "no"]}}, "labels are declared otherwise"),
        ({"intercept": False}, "the intercept"),
    ],
)
def test_a_table_that_is_declared_otherwise_is_refused(changes, message, tmp_path):
    model = trained()
    dpjax.save(tmp_path / "model", model)
    for one in (model, dpjax.load(tmp_path / "model")):
        with pytest.raises(ValueError, match=message):
            evaluate(one, declared(**changes), 1.0, key=dpjax.random_key())


def test_what_has_no_accounting_or_no_prediction_is_refused():
    relation = PrivacyBudget(1.0, 1e-3, "add_or_remove_one")
    with pytest.raises(ValueError, match="to another bin"):
        asked(trained(dpjax.objectives.two_layer(2)), declared(), relation)
    with pytest.raises(ValueError, match="n is private: declare data_size"):
        evaluate(trained(), declared(), relation, seed=0)
    with pytest.raises(ValueError, match="another number of features"):
        asked(model_of("two"), Dataset(np.ones((5, 2), np.float32), np.ones(5)))
    with pytest.raises(ValueError, match="no prediction rule"):
        asked(trained(dpjax.objectives.welsch(0.1)), declared())


def test_it_is_booked_and_its_guarantee_says_what_is_released(tmp_path):
    path, key = tmp_path / "ledger", dpjax.random_key()
    dpjax.Ledger.create(path, PrivacyBudget(2.0, 1e-3)).close()
    found = evaluate(trained(), declared(), 1.0, key=key, ledger=path)
    (entry,) = dpjax.Ledger.read(path).entries
    assert entry.finished and found.solution.releasable
    assert found.solution.guarantee().startswith(
        "Evaluation is (1, 0.0002)-differentially private."
    )
    with pytest.raises(ValueError, match="budget"):
        evaluate(trained(), declared(), 1.9, key=dpjax.random_key(), ledger=path)
    assert EDGES[len(EDGES) // 2] == 0 and "AUC" in repr(found)


@pytest.mark.ci
def test_the_command_line_evaluates_and_writes(tmp_path, capsys):
    model, page, file = (str(tmp_path / name) for name in ("model", "e.html", "e.json"))
    assert main(["run", "dp-gd", "--steps", "3", "--save", model]) == 0
    words = ["evaluate", model, "randhie", "--epsilon", "0.5", "--json", file, "--report", page]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "AUC: 0." in out and "Evaluation is (0.5," in out
    found = json.loads((tmp_path / "e.json").read_text())
    assert found["releasable"] and 0.4 < found["estimates"]["AUC"][0] < 0.8
    text = (tmp_path / "e.html").read_text()
    assert all(word in text for word in ("ROC curve", "Calibration", "Confusion matrix"))
    assert main(["evaluate", model, "randhie", "--epsilon", "0.5", "--relation", "no"]) == 2
    jax.clear_caches()


def test_a_model_of_effects_is_evaluated_by_the_schema_it_was_trained_with(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    rows = [f"{at % 7},{'ab'[at % 2]},{int(at % 7 > 3)}" for at in range(400)]
    (tmp_path / "t.csv").write_text("\n".join(["dose,sex,y", *rows]))
    (tmp_path / "s.toml").write_text(
        "[label]\ncolumn = 'y'\nclasses = [0, 1]\n[columns.dose]\nbounds = [0, 6]\n"
        "[columns.sex]\nlevels = ['a', 'b']\n"
    )
    train = "run --data t.csv --schema s.toml --epsilon 3 --inference --save m"
    assert main(train.split()) == 0
    capsys.readouterr()
    assert main(["evaluate", "m", "t.csv", "--epsilon", "5"]) == 2
    assert "--schema FILE, the one that the model was trained with" in capsys.readouterr().err
    assert main(["evaluate", "m", "t.csv", "--schema", "s.toml", "--epsilon", "5"]) == 0
    assert "AUC: " in capsys.readouterr().out
