"""Files that others made, may read or have left: folders, links, full disks, crafted models."""

import csv
import dataclasses
import functools
import json
import os
import tempfile

import jax
import numpy as np
import pytest
from factories import BUDGET, mostly_ci, toy, toy_records
from flax import serialization

import dpjax
from dpjax import _durable, tuning
from dpjax.accounting import Ledger, LedgerError
from dpjax.cli import main, options
from dpjax.driver.checkpoint import Folder
from dpjax.reporting import facts_of

CODES = "\x1b[31m\x07\u202eage"


@pytest.fixture(scope="module")
def solution():
    return dpjax.solve(toy("dp-gd"), toy_records(), key=jax.random.key(0))


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A model of a table whose column and classes are what nobody should have to print or open."""
    monkeypatch.chdir(tmp_path)
    table = {CODES: np.linspace(0, 1, 40), "y": ["=1+1", "-1"] * 20}
    schema = {
        "label": {"column": "y", "classes": ["=1+1", "-1"]},
        "columns": {CODES: {"bounds": [0, 1]}},
    }
    data = dpjax.datasets.load(table, schema=schema)
    algorithm = dpjax.dp_gradient_descent(
        dpjax.objectives.logistic(),
        dpjax.PrivacyBudget(50.0, 1e-4),
        data_size=data.size,
        dimension=data.dimension,
        steps=2,
    )
    dpjax.save("model", dpjax.solve(algorithm, data, seed=0))
    with open("new.csv", "w", newline="") as file:
        csv.writer(file).writerows([[CODES], *([k / 10] for k in range(11))])
    return "model"


# Folders, links and names that others can foresee.


@pytest.mark.parametrize("whose", ["another user's", "a link"])
def test_c78_a_folder_that_somebody_else_made_gets_no_key(whose, tmp_path, monkeypatch):
    """Its owner could hold open what the key is written to."""
    place = tmp_path / "run"
    (tmp_path / "target").mkdir(mode=0o700)
    if whose == "a link":
        place.symlink_to(tmp_path / "target")
    else:
        place.mkdir(mode=0o700)
        monkeypatch.setattr(os, "geteuid", lambda: place.stat().st_uid + 1)
    with pytest.raises(ValueError, match=whose):
        dpjax.run(toy("dp-gd"), toy_records(), key=dpjax.random_key(), checkpoint=place)
    assert not list(place.iterdir())


WRITERS = {
    "state": lambda path, _: _durable.replace_private(path, b"{}"),
    "model": dpjax.save,
    "report.html": lambda path, solution: dpjax.report(solution, path),
    "out.json": lambda path, _: options.write_json(path, {}),
}


@pytest.mark.parametrize("name", WRITERS)
def test_c78_a_link_that_waits_for_a_temporary_file_is_not_followed(name, solution, tmp_path):
    victim, path = tmp_path / "victim", tmp_path / name
    victim.write_text("untouched")
    path.with_name(f"{name}.tmp").symlink_to(victim)
    WRITERS[name](path, solution)
    assert path.is_file() and not path.is_symlink() and victim.read_text() == "untouched"


def test_c78_predictions_follow_no_link_and_leave_no_half(model, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    (tmp_path / "out.csv.tmp").symlink_to(victim)
    assert main(["predict", model, "new.csv", "--out", "out.csv"]) == 0
    assert victim.read_text() == "untouched"
    assert not list(tmp_path.glob("out.csv.*.tmp"))


def test_c78_a_new_file_takes_no_name_that_is_taken(tmp_path):
    taken = tmp_path / "taken"
    taken.write_text("mine")
    with pytest.raises(FileExistsError), _durable.replacing(tmp_path / "new", temporary=taken):
        pass
    assert taken.read_text() == "mine" and not (tmp_path / "new").exists()


def test_c78_what_fails_while_it_is_written_leaves_the_old(tmp_path):
    path = tmp_path / "old"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), _durable.replacing(path) as file:
        file.write(b"new")
        raise ZeroDivisionError
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


# A disk that is full once the budget is spent.


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), LedgerError("replaced")])
@pytest.mark.parametrize("kind", mostly_ci(["run", "tune"], ["run"]))
def test_c78_what_is_paid_for_is_returned_though_its_end_is_not_written(
    kind, error, tmp_path, monkeypatch
):
    path, budget = tmp_path / "book", dpjax.PrivacyBudget(5.0, 1e-4, BUDGET.relation)
    Ledger.create(path, budget, renyi_order=8.0).close()

    def full(*_):
        raise error

    monkeypatch.setattr(Ledger, "complete", full)
    algorithm, data = toy("dp-gd"), toy_records()
    with pytest.warns(RuntimeWarning, match=r"could not write the end of the .*(space|replaced)"):
        if kind == "run":
            found = dpjax.run(algorithm, data, seed=0, ledger=path, label="x", progress=False)
        else:
            make = functools.partial(
                dpjax.dp_gradient_descent,
                algorithm.objective,
                data_size=len(data[0]),
                dimension=data[0].shape[1],
                steps=2,
            )
            small = dpjax.PrivacyBudget(1.0, 1e-4, BUDGET.relation)
            found = tuning.tune(
                make, {"step_size": [1.0]}, data, small, seed=0, trials=1.5, cap=2, ledger=path,
                label="x", progress=False,
            )  # fmt: skip
    assert np.isfinite(np.asarray(found.params)).all()
    (entry,) = Ledger.read(path).entries
    assert entry.finished is None


# Models that somebody has sent.


def test_c78_show_prints_no_codes_and_says_who_claims_the_guarantee(model, capsys):
    assert main(["show", model]) == 0
    said = capsys.readouterr().out
    assert not {"\x1b", "\x07", "\u202e"} & set(said) and "age" in said
    saved = dpjax.load(model)
    assert not {"\x1b", "\u202e"} & set(repr(saved) + repr(saved.coefficients()))
    claimed = " ".join(said.split()).partition("the file claims: ")[2]
    assert claimed.startswith("DP-GD is (40.4, 0.0001)-differentially private.")


def test_c78_the_epsilon_of_a_model_is_recounted_and_not_read(model):
    """Whoever sends a model writes what it claims of itself."""
    saved = dataclasses.replace(dpjax.load(model), text=f"It is (0.1, 0)-{CODES}.\n")
    for said in (repr(saved), facts_of(saved).claim):
        assert "(40.4, 0.0001)-differentially private" in said and "0.1" not in said
    assert not {"\x1b", "\u202e"} & set(saved.guarantee())


@pytest.mark.parametrize(
    "words",
    mostly_ci([["run", "dp-gd"], ["tune", "dp-gd", "--grid", "steps=2,3"]], [["run", "dp-gd"]]),
)
def test_c78_a_full_disk_keeps_the_model_elsewhere_and_writes_the_rest(
    words, tmp_path, monkeypatch, capsys
):
    def full(path, solution, save=dpjax.save, **more):
        if os.fspath(path) == "model":
            raise OSError(28, "No space left on device")
        save(path, solution)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dpjax, "save", full)
    monkeypatch.setattr(tempfile, "tempdir", os.fspath(tmp_path))
    more = ["--data", "randhie", "--save", "model", "--json", "out.json"]
    more += ["--trials", "1.5", "--cap", "2"] if words[0] == "tune" else ["--steps", "2"]
    assert main([*words, *more]) == 2
    out, err = capsys.readouterr()
    assert "model could not be written" in err and "wrote out.json" in out
    kept = err.rpartition("kept as ")[2].strip()
    assert np.isfinite(dpjax.load(kept).params).all()


def test_c78_a_spreadsheet_runs_no_prediction(model, capsys):
    assert main(["predict", model, "new.csv", "--out", "out.csv"]) == 0
    with open("out.csv", newline="") as file:
        assert {row[0] for row in csv.reader(file)} <= {"prediction", "'=1+1", "-1"}


DEEP = "[" * 100_000 + "]" * 100_000


def changed(content, field, **more):
    held = json.loads(content[field])
    (held[0] if isinstance(held, list) else held).update(more)
    return json.dumps(held)


BOUNDS = ("gradient_norm_upper", "min_eigenvalue_lower", "beta", "iterate", "scope")
A_BILLION = {"kind": "classes", "classes": 10**9}
CRAFTED = {
    "nested releases": lambda _: {"releases": DEEP},
    "nested preprocessing": lambda _: {"preprocessing": DEEP},
    "an unknown score": lambda _: {"score": '{"kind": "evil"}'},
    "a score of a billion classes": lambda c: {"score": changed(c, "score", **A_BILLION)},
    "a billion answers": lambda c: {"releases": changed(c, "releases", count=10**9)},
    "a thousand releases": lambda c: {"releases": json.dumps(json.loads(c["releases"]) * 1000)},
    "words for parameters": lambda _: {"params": "x"},
    "a list for a history": lambda _: {"history": [1]},
    "a number for a text": lambda _: {"text": 3},
    "another certificate": lambda _: {"certificate": {"a": 1}},
    "an unknown accountant": lambda _: {"accountant": "mine"},
    "a delta of 0": lambda c: {"description": changed(c, "description", delta=0)},
    "no steps": lambda _: {"steps": None},
    "a history of numbers": lambda _: {"history": {"loss": 1.0}},
    "a status of its own": lambda _: {"status": {}},
    "no hidden units": lambda c: {"score": changed(c, "score", kind="two-layer")},
    "another iterate": lambda c: {"certificate": dict.fromkeys(BOUNDS, 1.0)},
    "words for n": lambda c: {"description": changed(c, "description", records="x")},
}  # fmt: skip


@pytest.mark.parametrize("case", CRAFTED)
def test_c78_a_crafted_model_is_one_clear_error(case, model, capsys):
    with open(model, "rb") as file:
        content = serialization.msgpack_restore(file.read())
    with open("crafted", "wb") as file:
        file.write(serialization.msgpack_serialize(content | CRAFTED[case](content)))
    assert main(["show", "crafted"]) == 2
    assert (
        capsys.readouterr().err
        == "dpjax: crafted is not a solution saved by this version of dpjax.\n"
    )


def test_c78_a_folder_of_ones_own_is_locked_as_ever(tmp_path):
    with Folder(tmp_path / "run"), pytest.raises(ValueError, match="in use by another run"):
        Folder(tmp_path / "run")
