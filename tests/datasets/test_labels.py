"""Labels are declared: what counts is said, and what counts nowhere is refused by its dtype."""

import json

import numpy as np
import optax
import pytest

import dpjax
from dpjax.datasets import check, encode_labels, load

BOUNDS = {"age": [18, 90], "income": [0, 200]}
TRUE = {"words": ("No", "Yes"), "booleans": ("False", "True"), "numbers": (0, 2)}


def table(folder, labels, rows=300, name="table.csv"):
    """A CSV file whose label, one of two, is whether age / 72 is above income / 200."""
    rng = np.random.default_rng(0)
    age, income = rng.uniform(18, 90, rows), rng.uniform(0, 200, rows)
    cells = [labels[int((a - 18) / 72 > i / 200)] for a, i in zip(age, income, strict=True)]
    lines = [f"{a:.2f},{i:.2f},{y}" for a, i, y in zip(age, income, cells, strict=True)]
    path = folder / name
    path.write_text("\n".join(["age,income,churned", *lines, ""]))
    return path


@pytest.fixture
def bounds(tmp_path):
    path = tmp_path / "bounds.json"
    path.write_text(json.dumps(BOUNDS))
    return path


@pytest.fixture
def spends_nothing(monkeypatch):
    """Any training fails."""

    def spent(*args, **kwargs):
        raise AssertionError("the budget was spent")

    for loop in ("start", "advance", "finish", "bind_records"):
        monkeypatch.setattr(f"dpjax.driver.loop.{loop}", spent)


# Mapping


@pytest.mark.parametrize(
    ("y", "classes"),
    [
        (np.array(["Yes", "No", "?", ""]), ("No", "Yes")),
        (["Yes", " No ", None, 3.5], ("No", "Yes")),
        (np.array([b"Yes", b"No", b"\xff", b""]), ("No", "Yes")),
        (np.array([5, 2, 7, -1]), (2, 5)),
        (np.array([5, 2, 7, 0], np.uint8), ("2", "5.0")),
        (np.array([5.0, 2.0, np.nan, np.inf]), (2, 5)),
        (np.array(["5.0", "2", "nan", "1e999"]), (2, 5)),
        (["True", False, "other", object()], (False, True)),
        ([True, False, 2, "yes"], (0, 1)),
    ],
)
def test_labels_of_any_kind_are_mapped_and_any_other_is_null(y, classes):
    np.testing.assert_array_equal(encode_labels(y, classes), np.float32([1, -1, np.nan, np.nan]))


def test_booleans_and_more_classes():
    both = np.array([True, False])
    for classes in ((False, True), ("False", "True"), (0, 1)):
        np.testing.assert_array_equal(encode_labels(both, classes), [1, -1])
    three = encode_labels(["b", "c", "a", "d"], ("a", "b", "c"))
    np.testing.assert_array_equal(three, np.float32([1, 2, 0, np.nan]))
    np.testing.assert_array_equal(encode_labels(both, (False, True), from_zero=True), [1, 0])


def test_each_label_is_mapped_by_itself_alone():
    rng = np.random.default_rng(0)
    for cells in (rng.choice(["No", "Yes", "x"], 50), rng.integers(0, 4, 50), rng.normal(size=50)):
        classes = ("No", "Yes") if cells.dtype.kind == "U" else (0, 1)
        before = encode_labels(cells, classes)
        changed = cells.copy()
        changed[7] = "?" if cells.dtype.kind == "U" else 99
        after = encode_labels(changed, classes)
        np.testing.assert_array_equal(np.delete(after, 7), np.delete(before, 7))
        assert np.isnan(after[7])


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ("No,Yes", "must be a list of labels"),
        (("Yes",), "at least two labels"),
        (("Yes", "Yes "), "must be distinct"),
        ((1, "1.0"), "must be distinct"),
        (("", "Yes"), "must be words, numbers"),
        ((float("nan"), 1), "must be words, numbers"),
        ((None, 1), "must be words, numbers"),
    ],
)
def test_classes_that_are_none(classes, message):
    with pytest.raises(ValueError, match=message):
        encode_labels(["Yes"], classes)


@pytest.mark.parametrize("y", [np.array(["a"]), ["a"], [1], [True], np.array([b"a"])])
def test_words_and_what_has_no_type_need_classes(y):
    with pytest.raises(ValueError, match=r"classes must declare .*classes=\('No', 'Yes'\)"):
        encode_labels(y)


@pytest.mark.parametrize(
    ("y", "classes", "message"),
    [
        (np.array([0, 1]), ("No", "Yes"), "classes hold 'No', but y holds numbers"),
        (np.array([True]), ("No", "Yes"), "classes hold 'No', but y holds True and False"),
        (np.array([1j]), (0, 1), "real numbers, got cells of another type"),
    ],
)
def test_classes_that_no_value_of_the_dtype_equals(y, classes, message):
    with pytest.raises(ValueError, match=message):
        encode_labels(y, classes)


# The command line


@pytest.mark.parametrize("labels", [TRUE["words"], TRUE["booleans"]], ids=["words", "booleans"])
def test_undeclared_labels_of_a_file_are_refused_before_anything_is_spent(
    labels, call, tmp_path, bounds, spends_nothing
):
    path, ledger = table(tmp_path, labels), tmp_path / "ledger"
    dpjax.Ledger.create(ledger, dpjax.PrivacyBudget(3.0, 1e-4))
    before = ledger.read_bytes()
    where = ["--data", path, "--label", "churned", "--bounds", bounds]
    status, out, err = call("run", *where, "--ledger", ledger)
    assert (status, out) == (2, "") and "--classes No,Yes" in err and "--check" in err
    assert call("run", *where, "--ledger", ledger)[2] == err
    table(tmp_path, ("Yes", "maybe"))
    assert call("run", *where)[2] == err  # it does not depend on which words they are
    path.write_text(path.read_text().replace("Yes", "1", 1))
    assert call("run", *where)[2] == err  # nor on one record
    assert ledger.read_bytes() == before


@pytest.mark.parametrize("labels", [(-1, 1), (0, 1)], ids=str)
def test_labels_of_a_csv_are_declared_even_if_they_are_numbers(labels, call, tmp_path, bounds):
    """Whether most are numbers would be told by an error, and one record could decide it."""
    path = table(tmp_path, labels)
    where = ["--data", path, "--label", "churned", "--bounds", bounds]
    status, _, refused = call("run", *where)
    assert status == 2 and "classes must declare which labels count" in refused
    run = ["run", *where, "--epsilon", 8, "--exact", "--seed", 0]
    run += ["--classes=" + ",".join(map(str, labels))]
    status, out, _ = call(*run)
    both = "and 0 as -1" if labels[0] else "and -1 as 0"
    said = f"accepted labels: {labels[0]} (as -1), 1 (as +1), {both};"
    assert status == 0 and out.startswith(said)
    assert f"Accepted labels: {labels[0]}, 1, {both}; a record with any other" in out
    (accuracy,) = (line for line in out.splitlines() if line.startswith("exact_accuracy"))
    assert float(accuracy.split()[1]) > 0.7
    *lines, _ = path.read_text().splitlines()
    path.write_text("\n".join([*lines, "30,50,perhaps", ""]))
    status, out, _ = call(*run)
    assert status == 0 and out.startswith(said)  # one strange record is no error
    assert call("run", *where)[2] == refused


@pytest.mark.parametrize("labels", TRUE.values(), ids=TRUE.keys())
def test_declared_labels_train_and_are_said_before_the_run(labels, call, tmp_path, bounds):
    path = table(tmp_path, labels)
    declared = ",".join(map(str, labels))
    where = ["--data", path, "--label", "churned", "--bounds", bounds, "--classes", declared]
    status, out, _ = call("run", *where, "--epsilon", 8, "--exact", "--seed", 0)
    first = out.splitlines()[0]
    negative, positive = labels
    said = f"accepted labels: {negative!r} (as -1), {positive!r} (as +1); a record with any other"
    assert status == 0 and first.startswith(said)
    assert f"Accepted labels: {negative!r}, {positive!r}; a record with any other" in out
    (accuracy,) = (line for line in out.splitlines() if line.startswith("exact_accuracy"))
    assert float(accuracy.split()[1]) > 0.7


def test_three_classes_are_refused_by_what_tells_two_apart(call, tmp_path, bounds, spends_nothing):
    path = table(tmp_path, TRUE["words"])
    where = ["--data", path, "--label", "churned", "--bounds", bounds, "--classes", "No,Yes,Maybe"]
    where += ["--objective", "logistic-l2"]
    for more in ([], ["--dry-run"]):
        status, _, err = call("run", *where, *more)
        assert status == 2 and "is a loss for two labels, but the data declare 3" in err


@pytest.mark.ci
def test_a_column_of_booleans_needs_no_declaration_and_what_counts_is_said(call, tmp_path):
    path = tmp_path / "table.npz"
    x = np.random.default_rng(0).uniform(size=(200, 1))
    np.savez(path, x=x, y=x[:, 0] > 0.5)
    (tmp_path / "b.json").write_text("[[0, 1]]")
    status, out, _ = call("run", "dp-gd", "--data", path, "--bounds", tmp_path / "b.json")
    assert status == 0 and out.startswith("accepted labels: False (as -1), True (as +1), and")


@pytest.mark.parametrize("classes", [[], ["--classes=0,1"]], ids=["none", "two"])
def test_every_refusal_of_a_number_as_the_label_shows_the_way_to_a_schema(
    classes, call, tmp_path, bounds
):
    path = table(tmp_path, [f"{k}.5" for k in range(60)])
    where = [path, "--label", "churned", "--bounds", bounds]
    status, _, refused = call("run", "--data", *where, *classes, "--objective", "least-squares")
    assert status == 2 and "bounds in a schema" in refused


def test_the_algorithm_after_count_is_no_share_and_the_error_says_so(call, capsys):
    with pytest.raises(SystemExit):
        call("run", "--count", "dp-gd")
    assert "write --count after the algorithm" in capsys.readouterr().err


# The owner's check


@pytest.mark.parametrize(
    ("labels", "declared"),
    [(("No", "Yes"), "No,Yes"), (("False", "True"), "False,True"), (("a, b", "c"), "'\"a, b\",c'")],
)
def test_the_check_prints_what_to_declare_and_then_passes(labels, declared, call, tmp_path, bounds):
    cells = [f'"{label}"' if "," in label else label for label in labels]
    path = table(tmp_path, cells)
    status, out, _ = call("data", path, "--check", "--label", "churned", "--bounds", bounds)
    assert status == 1 and "which labels count is not declared" in out
    assert out.splitlines()[-1].startswith("next: ") and f"--classes {declared}" in out
    plain = declared.strip("'")
    more = ["--label", "churned", "--bounds", bounds, "--classes", plain]
    status, out, _ = call("data", path, "--check", *more)
    assert status == 0 and "wrong" not in out and out.splitlines()[-1].startswith("next: dpjax run")


def test_the_check_says_what_a_declaration_misses(tmp_path):
    path = table(tmp_path, ("No", "Yes"))
    with path.open("a") as file:
        file.write("20,20,Maybe\n20,20,\n20,20\n")
    report = check(path, label="churned", bounds=BOUNDS, classes=("no", "Yes"))
    (problem,) = report.exact_problems
    assert "no record has 'no'" in problem and "'Maybe' 1 times" in problem
    assert report.exact_impossible_labels == report.exact_other_labels["No"] + 3
    good = check(path, label="churned", bounds=BOUNDS, classes=("No", "Yes"))
    assert good.exact_other_labels == {"Maybe": 1} and good.exact_class_counts["Yes"] > 0
    three = check(path, label="churned", bounds=BOUNDS)
    assert three.exact_classes == ("Maybe", "No", "Yes") and "--classes Maybe,No" in str(three)


def test_the_check_notices_what_is_no_label_no_number_and_no_bound(tmp_path):
    path = tmp_path / "table.csv"
    rows = [f"{i},{'abc'[i % 3]},{i % 2},{i}" for i in range(60)]
    path.write_text("\n".join(["age,city,ill,id", *rows]))
    bounds = {"age": [1000, 2000], "city": [0, 1], "id": [0, 60]}
    report = check(path, label="ill", bounds=bounds, classes=(0, 1))
    assert any("'city' has no valid value in 60 of 60" in line for line in report.exact_problems)
    assert any("'age' is outside its declared bounds" in line for line in report.exact_problems)
    (problem,) = check(
        path, label="id", bounds={"age": [0, 60], "city": [0, 1], "ill": [0, 1]}
    ).exact_problems[:1]
    assert "60 different values: it is not a column of classes" in problem
    assert "declare bounds in a schema" in problem
    latin = tmp_path / "latin.csv"
    latin.write_bytes("age,ill\n1,né\n2,non\n".encode("latin-1"))
    report = check(latin, label="ill", bounds={"age": [0, 9]})
    assert "some labels are not UTF-8" in report.exact_problems[0]


def test_the_check_of_a_named_set_finds_nothing_wrong(call):
    status, out, _ = call("data", "randhie", "--check")
    assert status == 0 and out.splitlines()[-1] == "next: dpjax run --data randhie --save model"


# In Python


def trained(y, classes=None, dataset=True):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(len(y), 2)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    budget = dpjax.PrivacyBudget(1.0, 1e-4)
    objective = dpjax.objectives.logistic()
    algorithm = dpjax.dp_gradient_descent(objective, budget, data_size=len(y), dimension=2, steps=2)
    data = dpjax.Dataset(x, y) if dataset else (x, y)
    return algorithm, data


@pytest.mark.parametrize("dataset", [True, False])
@pytest.mark.parametrize(
    "y",
    [np.tile(["No", "Yes"], 30), np.array(["No", "Yes"] * 30, object)],
    ids=["words", "objects"],
)
def test_a_dtype_that_cannot_hold_the_labels_is_refused(y, dataset, spends_nothing):
    algorithm, data = trained(y, dataset=dataset)
    for train in (dpjax.solve, dpjax.run):
        with pytest.raises(ValueError, match=r"data must hold numbers.*encode_labels"):
            train(algorithm, data, key=dpjax.random_key())


# Two steps on 60 toy records, whose noise may hide them: about words alone.
@pytest.mark.ci
@pytest.mark.filterwarnings("ignore:the noisy gradients cannot be told:RuntimeWarning")
def test_the_guarantee_says_which_labels_count():
    algorithm, data = trained(np.tile(np.float32([0, 1]), 30))
    text = dpjax.solve(algorithm, data, seed=0).guarantee()
    said = "Accepted labels: -1, 1, and 0 as -1; a record with any other label is a"
    assert said in text
    x = np.ones((60, 2), np.float32)
    network = dpjax.fit(
        lambda w, x: x @ w,
        "cross_entropy",
        (x, data.y),
        dpjax.PrivacyBudget(3.0, 1e-4),
        optax.sgd(0.5),
        seed=0,
        batch_size=20,
        steps=2,
        params=np.zeros((2, 2), np.float32),
    )
    assert "Accepted labels: 0, 1, ..., one less than the number of logits" in network.guarantee()


def fitted(data, **more):
    return dpjax.fit(
        lambda w, x: x @ w,
        "cross_entropy",
        data,
        dpjax.PrivacyBudget(8.0, 1e-4),
        optax.sgd(2.0),
        seed=0,
        batch_size=100,
        epochs=20,
        params=np.zeros((3, 2), np.float32),
        **more,
    )


@pytest.mark.ci
def test_cross_entropy_takes_the_two_classes_of_a_table(tmp_path):
    path = table(tmp_path, ("No", "Yes"))
    data = load(path, label="churned", bounds=BOUNDS, classes=("No", "Yes"), intercept=True)
    result = fitted(data, held_out=data)
    assert result.exact_held_out["accuracy"][-1] > 0.7  # half of the records null: one class
    assert "Accepted labels: 'No', 'Yes'" in result.guarantee()
    pair = fitted(data, held_out=(data.x, data.y)).exact_held_out["accuracy"]
    np.testing.assert_array_equal(pair, result.exact_held_out["accuracy"])
    assert float((data.y == 1).mean()) > 0.3 < float((data.y == -1).mean())


def test_a_network_needs_a_logit_for_each_class_and_labels_of_numbers(tmp_path, spends_nothing):
    path = table(tmp_path, ("No", "Yes"))
    data = load(path, label="churned", bounds=BOUNDS, classes=("No", "Yes", "?"), intercept=True)
    with pytest.raises(ValueError, match="declare 3 classes, and the network gives 2 logits"):
        fitted(data)
    with pytest.raises(ValueError, match=r"data must hold numbers.*from_zero=True"):
        fitted((data.x, np.where(data.y == 0, "No", "Yes")))
    with pytest.raises(ValueError, match=r"bounds must be left out.*declares its features itself"):
        fitted(data, bounds=(0, 1))


def test_the_check_keeps_the_order_that_was_declared(call, tmp_path):
    path = table(tmp_path, ("No", "Yes"))
    where = ["data", path, "--check", "--label", "churned"]
    assert "--classes Yes,No" in call(*where, "--classes", "Yes,No")[1]
    path = table(tmp_path, (-1, 2), name="signs.csv")
    where[1] = path
    out = call(*where, "--intercept")[1]
    (said,) = (line for line in out.splitlines() if line.startswith("next: "))
    assert "--classes=-1,2" in said and "--intercept" in said
