"""The ledger: what it admits, what a crash or a vandal can do to its file, and its command."""

import contextlib
import copy
import dataclasses
import errno
import gc
import json
import math
import os
import pathlib
import pickle
import subprocess
import sys
import threading

import dp_accounting
import numpy as np
import pytest
from factories import in_threads, mostly_ci

import dpjax
from dpjax import _durable
from dpjax.accounting import (
    Event,
    Ledger,
    LedgerError,
    PoissonRelease,
    Release,
    compose,
    epsilon,
    filters,
    hash_chain,
    renyi,
)
from dpjax.cli import main
from dpjax.driver import resume

BUDGET = dpjax.PrivacyBudget(1.0, 1e-5)


def gaussian(multiplier, count=1, relation="zero_out"):
    return Event((Release("gradient", count, noise_multiplier=multiplier),), relation)


def intent(run_id="a", multiplier=20.0, **more):
    event = more.pop("event", None) or gaussian(multiplier)
    return {"run_id": run_id, "event": event, "label": "visits", "config_hash": "c0ffee"} | more


def small_training(epsilon):
    """Records, and an algorithm that spends so much on them."""
    x = np.eye(3, dtype=np.float32)[np.arange(30) % 3]
    algorithm = dpjax.dp_gradient_descent(
        dpjax.objectives.logistic(),
        dpjax.PrivacyBudget(epsilon, 1e-5),
        data_size=30,
        dimension=3,
        steps=2,
    )
    return (x, np.ones(30, np.float32)), algorithm


def train(algorithm, data, ledger, **more):
    key = dpjax.random_key()
    return dpjax.run(algorithm, data, key=key, ledger=ledger, label="visits", **more)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger"


@pytest.fixture
def filled(path):
    """A ledger of two runs, the first of them finished."""
    with Ledger.create(path, BUDGET) as ledger:
        ledger.reserve(**intent("first"))
        ledger.complete("first")
        ledger.reserve(**intent("second", parent="first"))
    return path


# What is admitted.


@pytest.mark.parametrize("unsampled", [False, True])
@pytest.mark.parametrize("relation", dpjax.accounting.RELATIONS)
@pytest.mark.parametrize(("budget", "steps"), [((0.1, 1e-6), 7), ((1, 1e-5), 40), ((8, 1e-9), 999)])
def test_a_run_calibrated_to_the_whole_budget_fits_and_nothing_after_it(
    budget, steps, relation, unsampled, path
):
    budget = dpjax.PrivacyBudget(*budget, relation)
    multiplier = dpjax.accounting.gaussian_multiplier(budget, steps, noise_draws=0)
    with Ledger.create(path, budget, unsampled=unsampled) as ledger:
        assert budget.epsilon - 1e-10 < ledger.remaining_epsilon <= budget.epsilon
        ledger.reserve(**intent(event=gaussian(multiplier, steps, relation)))
        # Float32 rounding of the multiplier leaves a crumb.
        assert ledger.remaining <= 1e-6 and "nothing; the budget is spent" in repr(ledger)
        with pytest.raises(ValueError, match=r"exceed the budget. Left: nothing") as error:
            ledger.reserve(**intent("b", event=gaussian(multiplier, steps, relation)))
        assert str(path) in str(error.value)
        assert len(ledger.entries) == 1 and "b" not in ledger


def test_the_gaussian_book_loses_nothing(path):
    """K runs of mu / sqrt(k) are one of mu, and no adding of epsilons gives that."""
    charged = dataclasses.replace(BUDGET, epsilon=1.0 - 3e-4)  # for the draws of all runs
    single = dpjax.accounting.gaussian_multiplier(charged, 50)
    with Ledger.create(path, BUDGET, unsampled=True) as ledger:
        for run in range(50):
            ledger.reserve(**intent(str(run), single))
        with pytest.raises(ValueError, match="exceed"):
            ledger.reserve(**intent("more", 3 * single))
        spent = Event(tuple(gaussian(single).releases * 50), "zero_out")
    assert epsilon(spent, 1e-5, "zero_out") <= 1.0
    assert 50 * epsilon(gaussian(single), 1e-5, "zero_out") > 4


@pytest.mark.parametrize("factor", [1.01, 1 + 1e-6])
def test_a_run_just_over_the_budget_is_refused(factor, path):
    mu = math.sqrt(filters.Books(BUDGET).single.own)
    with Ledger.create(path, BUDGET) as ledger:
        before = path.read_bytes()
        with pytest.raises(ValueError, match="exceed the budget"):
            ledger.reserve(**intent(event=gaussian(1 / (mu * factor))))
        assert path.read_bytes() == before
        ledger.reserve(**intent(event=gaussian(factor / mu)))


@pytest.mark.parametrize("order", [8.0, 24.0, 25, 300.5])
@pytest.mark.parametrize("budget", [(1.0, 1e-5), (6.0, 1e-7)])
def test_the_renyi_limit_is_where_the_conversion_meets_epsilon(budget, order):
    budget = dpjax.PrivacyBudget(*budget)
    if budget.epsilon == 1.0 and order == 8.0:
        with pytest.raises(ValueError, match=r"leave it out, for 1[78]"):
            filters.Books(budget, order)
        return
    limit = filters.Books(budget, order).single.renyi

    def converted(rho):
        return dp_accounting.rdp.compute_epsilon([order], [rho], 0.99 * budget.delta)[0]

    assert converted(limit) <= budget.epsilon < converted(limit * (1 + 1e-6) + 1e-9)


@pytest.mark.parametrize("order", [1.0, 0.5, 0.0, -1.0, float("nan"), float("inf"), "two"])
def test_an_order_that_is_none(order, path):
    with pytest.raises(ValueError):
        Ledger.create(path, BUDGET, renyi_order=order)
    assert not path.exists()


def half(budget):
    """What exact noise may spend of it in one of two books, after the charge for its draws."""
    return filters.Books(budget, draws=filters.most_draws(budget))._half


def test_the_renyi_book_adds_up_at_its_order(path):
    limit = filters.Books(half(BUDGET), 24.0).single.renyi
    with Ledger.create(path, BUDGET, renyi_order=24) as ledger:
        ledger.reserve(**intent(event=gaussian(20.0, 4)))
        ledger.reserve(**intent("b", event=sampled(count=3)))
        taken = [renyi(event, 24.0) / limit for event in (gaussian(20.0, 4), sampled(count=3))]
        assert [entry.cost for entry in ledger.entries] == pytest.approx(taken, rel=1e-12)
        assert ledger.remaining == pytest.approx(1 - sum(taken), rel=1e-12)
        mu = math.sqrt(2 * ledger.remaining * limit / 24)
        assert epsilon(gaussian(1 / mu), 1e-5, "zero_out") == pytest.approx(
            ledger.remaining_epsilon
        )
        with pytest.raises(ValueError, match=r"Calibrate the run to epsilon 0\.\d+ at"):
            ledger.reserve(**intent("c", 4.0))
    assert Ledger.read(path).renyi_order == 24.0


def sampled(overflow=0.0, count=1):
    release = PoissonRelease(
        "gradient",
        count,
        noise_multiplier=4.0,
        sampling_probability=0.01,
        max_batch_size=60,
        data_size=1000,
        failure_probability=overflow,
    )
    return Event((release,), "zero_out")


def test_a_ledger_of_unsampled_runs_refuses_sampling_with_advice(path):
    with Ledger.create(path, BUDGET, unsampled=True) as ledger:
        with pytest.raises(ValueError, match=r"unsampled Gaussian releases only.*--unsampled"):
            ledger.reserve(**intent(event=sampled()))
        assert ledger.entries == ()


def test_a_mixed_history_stays_within_epsilon(path):
    """What fits one book by a hair fits the budget by the accountant that knows all orders."""
    with Ledger.create(path, BUDGET) as ledger:
        ledger.reserve(**intent("first", 100.0))
        limits = ledger._booked()[0]
        one = renyi(sampled(), limits.order)
        steps = int((limits.renyi - renyi(gaussian(100.0), limits.order)) / one)
        ledger.reserve(**intent("a", event=sampled(1e-12, steps // 2)))
        ledger.reserve(**intent("b", event=sampled(1e-12, steps - steps // 2)))
        with pytest.raises(ValueError, match="exceed the budget"):
            ledger.reserve(**intent("c", event=sampled(0.0, 2)))
        assert sum(entry.overflow for entry in ledger.entries) == pytest.approx(steps * 1e-12)
    spent = compose([gaussian(100.0), sampled(1e-12, steps)])
    assert 0.8 < epsilon(spent, 1e-5, "zero_out", "rdp") <= BUDGET.epsilon


def test_overflow_is_charged_to_its_share_of_delta(path):
    with Ledger.create(path, BUDGET) as ledger:
        ledger.reserve(**intent("first", 100.0))
        left = half(BUDGET)
        most = 0.01 * left.delta / (1 + math.exp(left.epsilon))
        assert ledger._booked()[0].overflow == pytest.approx(most)
        ledger.reserve(**intent(event=sampled(0.6 * most)))
        with pytest.raises(ValueError, match="raise the sampler's max_batch_size"):
            ledger.reserve(**intent("b", event=sampled(0.6 * most)))
        ledger.reserve(**intent("b", event=sampled(0.3 * most)))


def test_another_relation_is_refused(path):
    with Ledger.create(path, BUDGET) as ledger, pytest.raises(ValueError, match="'replace_one'"):
        ledger.reserve(**intent(event=gaussian(50.0, relation="replace_one")))


@pytest.mark.parametrize("option", [{}, {"unsampled": True}, {"renyi_order": 30.0}])
@pytest.mark.parametrize("first", [5.0, 7.3, 11.0, 19.7, 400.0])
def test_the_advice_can_be_followed(first, option, path):
    """The epsilon that the ledger names, rounded as it is printed, is one that fits."""
    with Ledger.create(path, dpjax.PrivacyBudget(2.0, 1e-5), **option) as ledger:
        ledger.reserve(**intent("first", first))
        named = float(ledger.advice.split("epsilon ")[1].split(" at")[0])
        assert named == pytest.approx(ledger.remaining_epsilon, rel=2e-5)
        budget = dpjax.PrivacyBudget(named, 1e-5)
        multiplier = dpjax.accounting.gaussian_multiplier(budget, 3)
        ledger.reserve(**intent("second", event=gaussian(multiplier, 3)))


# Runs and their forks.


def test_a_resumed_run_spends_nothing_more(filled):
    before = filled.read_bytes()
    with Ledger.open(filled) as ledger:
        left = ledger.remaining
        ledger.reserve(**intent("second", parent="first"), resumed=True)
        ledger.reserve(**intent("first"), resumed=True)
        ledger.complete("first")
        assert ledger.remaining == left
    assert filled.read_bytes() == before


def test_c65_a_run_that_is_not_resumed_cannot_share_an_entry(filled):
    """Three reservations under one name were one entry, and three runs at the price of one."""
    before = filled.read_bytes()
    with Ledger.open(filled) as ledger:
        for run_id, parent in (("first", None), ("second", "first")):
            with pytest.raises(ValueError, match="already; a new run needs a new run_id"):
                ledger.reserve(**intent(run_id, parent=parent))
    assert filled.read_bytes() == before


def test_a_training_is_booked_with_its_noise_draws(path):
    data, algorithm = small_training(0.3)
    with Ledger.create(path, BUDGET) as ledger:
        train(algorithm, data, ledger)
        ledger.reserve(**intent())
        assert [entry.draws for entry in ledger.entries] == [2 * 3, 0]


DECLARED = "is in two of its parts, so that runs on other parts add nothing"


def test_trainings_on_parts_spend_side_by_side_and_say_which(path, tmp_path):
    data, algorithm = small_training(0.9)
    with Ledger.create(path, BUDGET, parts=("north", "south")) as ledger:
        north = train(algorithm, data, ledger, part="north", checkpoint=tmp_path / "run")
        south = train(algorithm, data, ledger.of("south"))
        for part in (None, "north"):
            with pytest.raises(ValueError, match="part 'north': this run would exceed the budget"):
                train(algorithm, data, ledger, part=part)
        with pytest.raises(ValueError, match="part must be 'north' or 'south'"):
            train(algorithm, data, ledger, part="east")
        with pytest.raises(ValueError, match="with another part: 'north', not None"):
            dpjax.run(algorithm, data, checkpoint=tmp_path / "run", ledger=ledger, label="visits")
        assert [entry.part for entry in ledger.entries] == ["north", "south"]
    with pytest.raises(ValueError, match="pass ledger= too"):
        dpjax.run(algorithm, data, key=dpjax.random_key(), part="north")
    for part, solution in (("north", north), ("south", south)):
        dpjax.save(tmp_path / part, solution)
        for said in (solution.guarantee(), dpjax.load(tmp_path / part).guarantee()):
            assert DECLARED in " ".join(said.split()) and f"read the part '{part}'" in said
    assert "Part:" not in dpjax.solve(algorithm, data, key=dpjax.random_key()).guarantee()


def test_c65_a_training_is_booked_anew_whatever_its_name(path, tmp_path, monkeypatch):
    monkeypatch.setattr(resume.uuid, "uuid4", lambda: resume.uuid.UUID(int=7))
    data, algorithm = small_training(0.3)
    with Ledger.create(path, BUDGET) as ledger:
        for folder in (None, tmp_path / "run"):
            with contextlib.suppress(ValueError):
                train(algorithm, data, ledger)
            with pytest.raises(ValueError, match="already; a new run needs a new run_id"):
                train(algorithm, data, ledger, checkpoint=folder)
        assert len(ledger.entries) == 1


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"event": gaussian(21.0)}, "releases"),
        ({"event": gaussian(20.0, 2)}, "releases"),
        ({"event": gaussian(20.0, relation="replace_one")}, "relation"),
        ({"label": "other visits"}, "label"),
        ({"config_hash": "beef"}, "config"),
        ({"parent": None}, "parent"),
    ],
)
def test_a_run_id_cannot_become_another_run(change, field, filled):
    with Ledger.open(filled) as ledger, pytest.raises(ValueError, match=f"another {field}"):
        ledger.reserve(**intent("second", **({"parent": "first"} | change)))


def test_c43_a_fork_is_booked_with_its_parent_and_spends_anew(filled):
    with Ledger.open(filled) as ledger:
        left = ledger.remaining
        ledger.reserve(**intent("fork", parent="second"))
        limit = filters.Books(half(BUDGET)).single.own
        assert ledger.remaining == pytest.approx(left - 1 / 400 / limit)
        assert [entry.parent for entry in ledger.entries] == [None, "first", "second"]
        with pytest.raises(ValueError, match="parent must be a run in"):
            ledger.reserve(**intent("orphan", parent="unbooked"))


def test_c43_every_setting_of_a_sweep_is_booked(tmp_path):
    """Trying clip norms on the data and keeping the best one costs what all of them cost."""
    x = np.eye(3, dtype=np.float32)[np.arange(30) % 3]
    data = (x, np.ones(30, np.float32))
    less = dpjax.PrivacyBudget(0.4, 1e-5)
    with Ledger.create(tmp_path / "ledger", BUDGET) as ledger:
        costs = []
        for clip in (0.5, 1.0):
            algorithm = dpjax.dp_gradient_descent(
                dpjax.objectives.logistic(),
                less,
                data_size=30,
                dimension=3,
                steps=2,
                clip_norm=clip,
            )
            key = dpjax.random_key()
            dpjax.run(algorithm, data, key=key, ledger=ledger, label="sweep")
            costs.append(algorithm.event.gaussian_mu**2)
        assert len({entry.config_hash for entry in ledger.entries}) == 2
        limit = filters.Books(half(BUDGET)).single.own
        assert ledger.remaining == pytest.approx(1 - sum(costs) / limit)


@pytest.mark.parametrize("bad", ["", None, 3])
@pytest.mark.parametrize("field", ["run_id", "label", "config_hash"])
def test_words_that_are_none(field, bad, path):
    with Ledger.create(path, BUDGET) as ledger, pytest.raises(ValueError, match=field):
        ledger.reserve(**(intent() | {field: bad}))


def test_an_unfinished_intent_stays_spent(filled):
    first, second = Ledger.read(filled).entries
    assert first.finished and not second.finished
    limit = filters.Books(half(BUDGET)).single.own
    assert Ledger.read(filled).remaining == pytest.approx(1 - 2 / 400 / limit)
    with Ledger.open(filled) as ledger, pytest.raises(ValueError, match="unknown run_id 'third'"):
        ledger.complete("third")


def test_nothing_shows_an_epsilon_so_far(filled, capsys):
    public = [name for name in dir(Ledger) if not name.startswith("_")]
    assert [name for name in public if "epsilon" in name] == ["remaining_epsilon"]
    assert main(["ledger", "show", str(filled)]) == 0
    shown = capsys.readouterr().out
    spent = epsilon(gaussian(20.0, 2), 1e-5, "zero_out")
    assert "remaining" in shown and f"{spent:.3g}" not in shown and "so far" not in shown


# The file.


@pytest.mark.parametrize("open_for", ["reading", "writing"])
def test_truncated_at_every_byte(open_for, filled, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    whole = filled.read_bytes()
    ends = np.cumsum([len(line) + 1 for line in whole.splitlines()])
    for size in range(len(whole)):
        filled.write_bytes(whole[:size])
        # A line that lacks its newline alone can be read, and what can be read stays spent.
        lines = int(np.sum(ends - 1 <= size))
        if lines == 0:
            with pytest.raises(LedgerError):
                Ledger.open(filled)
            continue
        if open_for == "reading":
            ledger = Ledger.read(filled)
            assert ledger.torn == (size not in ends and size + 1 not in ends)
            assert filled.read_bytes() == whole[:size]
        else:
            with Ledger.open(filled) as ledger:
                ledger.reserve(**intent("after", parent=None))
            ledger = Ledger.read(filled)
        runs = ["first", "second"][: (lines >= 2) + (lines >= 4)]
        assert [entry.run_id for entry in ledger.entries] == (
            runs + ["after"] * (open_for == "writing")
        )
        assert not (open_for == "writing" and ledger.torn)


def test_one_byte_flipped_anywhere_is_noticed(filled):
    whole = filled.read_bytes()
    for place in range(len(whole)):
        for flip in (1, 0x20, 0x80, whole[place] ^ 0x0A):
            if flip == 0:
                continue
            broken = bytearray(whole)
            broken[place] ^= flip
            with pytest.raises(LedgerError):
                hash_chain.parse(bytes(broken))


def test_the_flip_test_would_notice_a_missing_seal(filled, monkeypatch):
    """Links alone do not cover the last line; the planted reader looks at them only."""
    broken = filled.read_bytes().replace(b'"run":"second"', b'"run":"sEcond"')

    def linked_only(raw, previous):
        try:
            found = json.loads(raw)
        except ValueError:
            return None
        return found if found.get("previous") == previous else None

    with pytest.raises(LedgerError):
        hash_chain.parse(broken)
    monkeypatch.setattr(hash_chain, "_unseal", linked_only)
    assert hash_chain.parse(broken).lines[-1]["run"] == "sEcond"


@pytest.mark.parametrize(
    "vandal",
    [
        lambda lines: lines[:1] + lines[2:],
        lambda lines: [lines[0], lines[2], lines[1], lines[3]],
        lambda lines: [*lines, lines[1]],
        lambda lines: lines[1:],
        lambda lines: [*lines, b"spent nothing\n"],
        lambda lines: [*lines, b"torn"],
        lambda lines: [*lines, b"\n"],
        lambda lines: [line.replace(b":", b": ", 1) for line in lines],
        lambda lines: [b"\xff\xfe", *lines],
        lambda lines: [],
        lambda lines: [b"\0" * 100],
        lambda lines: [hash_chain.line({"kind": "intent"}, "0" * 64)],
    ],
    ids=[
        "a line removed",
        "two swapped",
        "one repeated",
        "no declaration",
        "a line of text",
        "a tail that is no line",
        "an empty line",
        "spaces",
        "binary",
        "empty",
        "zeros",
        "another first line",
    ],
)
def test_other_damage_is_refused_and_left_as_it_is(vandal, filled):
    filled.write_bytes(b"".join(vandal(filled.read_bytes().splitlines(keepends=True))))
    before = filled.read_bytes()
    for look in (Ledger.read, Ledger.open):
        with pytest.raises(LedgerError):
            look(filled)
    assert filled.read_bytes() == before


def test_a_tail_of_zeros_is_torn(filled):
    whole = filled.read_bytes()
    filled.write_bytes(whole + b'{"prev' + b"\0" * 50)
    with Ledger.open(filled) as ledger:
        assert len(ledger.entries) == 2
    assert filled.read_bytes() == whole


def test_an_anchor_shows_lines_taken_away(filled):
    noted = Ledger.read(filled).anchor
    with Ledger.open(filled) as ledger:
        ledger.complete("second")
    assert Ledger.read(filled).covers(noted)
    lines = filled.read_bytes().splitlines(keepends=True)
    filled.write_bytes(b"".join(lines[:2]))
    assert not Ledger.read(filled).covers(noted)


def failing(kind, monkeypatch):
    """Lets the next write or sync fail as a full disk does; returns how to end that."""
    write, sync = os.write, os.fsync
    full = OSError(errno.ENOSPC, "No space left on device")

    def bad_write(descriptor, content):
        if kind == "partial write":
            monkeypatch.setattr(os, "write", lambda *args: (_ for _ in ()).throw(full))
            return write(descriptor, bytes(content)[: len(content) // 2])
        raise full

    def bad_sync(descriptor):
        raise full

    monkeypatch.setattr(os, *(("fsync", bad_sync) if kind == "sync" else ("write", bad_write)))

    def mend():
        monkeypatch.setattr(os, "write", write)
        monkeypatch.setattr(os, "fsync", sync)

    return mend


@pytest.mark.parametrize("kind", ["write", "partial write", "sync"])
def test_a_full_disk_releases_nothing_and_the_file_still_verifies(kind, filled, monkeypatch):
    before = filled.read_bytes()
    ledger = Ledger.open(filled)
    mend = failing(kind, monkeypatch)
    with pytest.raises(OSError, match="No space left"):
        ledger.reserve(**intent("third"))
    mend()
    assert filled.read_bytes() == before
    assert "third" not in Ledger.read(filled)
    with pytest.raises(LedgerError, match="closed"):
        ledger.reserve(**intent("third"))
    with Ledger.open(filled) as again:
        again.reserve(**intent("third"))


@pytest.mark.parametrize("kind", ["write", "partial write", "sync"])
def test_a_full_disk_at_creation_leaves_no_file(kind, path, monkeypatch):
    mend = failing(kind, monkeypatch)
    with pytest.raises(OSError, match="No space left"):
        Ledger.create(path, BUDGET)
    mend()
    assert not path.exists()


def test_two_writers(filled):
    with Ledger.open(filled):
        with pytest.raises(LedgerError, match="being written by another run"):
            Ledger.open(filled)
        assert len(Ledger.read(filled).entries) == 2
    Ledger.open(filled).close()


def test_a_writer_in_another_process_keeps_the_lock_until_it_is_killed(filled):
    source = (
        f"import fcntl; file = open({str(filled)!r}, 'rb+'); fcntl.flock(file, fcntl.LOCK_EX); "
        "print('locked', flush=True); input()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdout.readline() == b"locked\n"
    with pytest.raises(LedgerError, match="being written by another run"):
        Ledger.open(filled)
    other.kill()
    other.communicate()
    Ledger.open(filled).close()


@pytest.mark.parametrize("vandal", ["removed", "restored from a copy", "written by an editor"])
def test_a_file_that_changes_under_a_run_takes_no_intent(vandal, filled):
    with Ledger.open(filled) as ledger:
        whole = filled.read_bytes()
        if vandal == "written by an editor":
            filled.write_bytes(whole[:-200])
        else:
            filled.rename(filled.with_name("moved"))
        if vandal == "restored from a copy":
            filled.write_bytes(whole)
        with pytest.raises(LedgerError, match="replaced or changed"):
            ledger.reserve(**intent("third"))


# Several contenders for what is left.


def test_c53_threads_that_check_at_once_are_not_both_admitted(path, meeting):
    with Ledger.create(path, BUDGET) as ledger:
        meeting(_durable, "write_all")
        refused, admitted = sorted(
            in_threads(*(lambda i=i: ledger.reserve(**intent(str(i), 4.0)) for i in range(2))),
            key=lambda result: result is None,
        )
        assert admitted is None and "exceed the budget" in str(refused)
    assert len(Ledger.read(path).entries) == 1


def test_c53_of_two_trainings_in_threads_one_returns(path, meeting):
    data, algorithm = small_training(0.8)
    with Ledger.create(path, BUDGET) as ledger:
        meeting(_durable, "write_all")
        results = in_threads(*[lambda: train(algorithm, data, ledger)] * 2)
    solutions = [result for result in results if isinstance(result, dpjax.Solution)]
    assert len(solutions) == len(Ledger.read(path).entries) == 1
    assert [str(r) for r in results if "exceed the budget" in str(r)]


TRIALS = [("threads", 200), ("forks", 40), ("processes", 60)]


@pytest.mark.parametrize(("kind", "trials"), mostly_ci(TRIALS, TRIALS[:1]))
def test_c53_one_of_many_contenders_is_admitted(kind, trials):
    """``python tests/harness/contend.py KIND`` makes 1,000 trials."""
    script = pathlib.Path(__file__).parents[1] / "harness" / "contend.py"
    command = [sys.executable, str(script), kind, "--trials", str(trials)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_c53_closing_waits_for_the_thread_that_writes(filled, monkeypatch):
    """Its descriptor could be another file's by the time it is written to."""
    ledger, write, closed = Ledger.open(filled), _durable.write_all, []

    def slow(descriptor, content):
        closing = threading.Thread(target=lambda: closed.append(ledger.close()))
        closing.start()
        closing.join(0.2)
        assert not closed
        write(descriptor, content)

    monkeypatch.setattr(_durable, "write_all", slow)
    ledger.reserve(**intent("third"))
    assert "third" in Ledger.read(filled)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_append_that_is_interrupted_is_taken_back(error, filled, monkeypatch):
    before, write = filled.read_bytes(), _durable.write_all

    def interrupted(descriptor, content):
        write(descriptor, content)
        raise error

    monkeypatch.setattr(_durable, "write_all", interrupted)
    ledger = Ledger.open(filled)
    with pytest.raises(error):
        ledger.reserve(**intent("third"))
    monkeypatch.undo()
    with pytest.raises(LedgerError, match="closed"):
        ledger.reserve(**intent("fourth"))
    assert filled.read_bytes() == before
    Ledger.open(filled).close()


def test_a_ledger_that_is_open_when_the_program_ends_says_nothing(filled):
    """The modules that closing needs may be gone by then."""
    source = (
        "from dpjax.accounting import Ledger, hash_chain\n"
        f"hash_chain.kept = Ledger.open({str(filled)!r})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("", "")


def test_a_ledger_to_read_cannot_be_written(filled):
    with pytest.raises(LedgerError, match=r"open it with Ledger\.open"):
        Ledger.read(filled).reserve(**intent("third"))


def test_a_copy_is_the_ledger_itself_and_it_cannot_be_pickled(filled):
    with Ledger.open(filled) as ledger:
        for again in (copy.copy(ledger), copy.deepcopy([ledger])[0]):
            assert again is ledger
        del again
        gc.collect()
        ledger.reserve(**intent("third"))
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            with pytest.raises(TypeError, match=f"pass its path '{filled}'"):
                pickle.dumps(ledger, protocol)


def test_a_budget_is_declared_once(filled):
    before = filled.read_bytes()
    with pytest.raises(FileExistsError, match="declared once"):
        Ledger.create(filled, BUDGET)
    with pytest.raises(ValueError, match="PrivacyBudget"):
        Ledger.create(filled, 1.0)
    assert filled.read_bytes() == before


# The command.


def test_the_command_creates_shows_and_verifies(tmp_path, capsys):
    file = str(tmp_path / "ledger")
    assert main(["ledger", "create", file, "--epsilon", "2", "--delta", "1e-6"]) == 0
    with Ledger.open(file) as ledger:
        ledger.reserve(**intent("first", 5.0))
        ledger.reserve(**intent("second", 5.0))
        ledger.complete("second")
        anchor = ledger.anchor
    capsys.readouterr()
    assert main(["ledger", "show", file]) == 0
    shown = capsys.readouterr().out
    for words in ("epsilon 2", "delta 1e-06", "zero_out", "first", "unfinished", "visits", anchor):
        assert words in shown
    assert main(["ledger", "verify", file]) == 0
    assert main(["ledger", "verify", file, "--anchor", anchor]) == 0
    assert main(["ledger", "verify", file, "--anchor", "0" * 64]) == 2
    assert "lines were removed" in capsys.readouterr().err


def test_the_command_trains_on_a_part(path, tmp_path, capsys):
    create = ["ledger", "create", str(path), "--epsilon", "1", "--delta", "1e-5"]
    assert main([*create, "--parts", "north", "south"]) == 0
    assert "remaining of part 'south': 100 %" in capsys.readouterr().out
    words = ["run", "dp-gd", "--steps", "2", "--epsilon", "0.9", "--delta", "1e-5"]
    north = [*words, "--ledger", str(path), "--part", "north", "--save", str(tmp_path / "model")]
    for more, status in ((["--dry-run"], 0), ([], 0), (["--dry-run"], 2)):
        assert main([*north, *more]) == status
    said = capsys.readouterr()
    assert DECLARED in " ".join(said.out.split()) and "part 'north': this run would" in said.err
    for more, message in (
        ([], "give --ledger FILE too"),
        (["--ledger", str(path)], "be 'north' or 'so"),
    ):
        assert main([*words, "--part", "east", *more]) == 2
        assert message in capsys.readouterr().err
    assert main([*words, "--ledger", str(path), "--part", "south", "--dry-run"]) == 0
    assert [entry.part for entry in Ledger.read(path).entries] == ["north"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["show", "{}"], "dpjax ledger create"),
        (["verify", "{}"], "dpjax ledger create"),
        (["create", "{}", "--epsilon", "0", "--delta", "1e-6"], "epsilon must be"),
        (["create", "{}", "--epsilon", "1", "--delta", "1e-6", "--relation", "zero"], "zero_out"),
        (
            ["create", "{}", "--epsilon", "1", "--delta", "1e-6", "--renyi-order", "2"],
            "leave it out",
        ),
        (["create", "{}", "--epsilon", "1", "--delta", "1e-6", "--parts", "a"], "two or more"),
    ],
)
def test_bad_requests(argv, message, tmp_path, capsys):
    file = str(tmp_path / "ledger")
    assert main(["ledger", *(word.format(file) for word in argv)]) == 2
    assert message in capsys.readouterr().err
    assert not os.path.exists(file)


def test_a_damaged_file_does_not_verify(filled, capsys):
    filled.write_bytes(filled.read_bytes()[:-30] + b"x" * 29 + b"\n")
    assert main(["ledger", "verify", str(filled)]) == 2
    assert "damaged at line 4" in capsys.readouterr().err
