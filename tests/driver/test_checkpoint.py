"""Checkpoints: a resumed run is the uninterrupted one, bit for bit, or it is refused."""

import functools
import json
import os
import shutil
import stat
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_fit
from factories import BUDGET, DELTA_ONLY, FACTORIES, SAME_PROGRAM, STEPS, Crash, P, mostly_ci, toy
from factories import toy_records as records

import dpjax
from dpjax.accounting import Ledger, LedgerError
from dpjax.cli import main
from dpjax.driver import ResumeMismatch, fingerprint, loop, progress, resume

EVERY = list(FACTORIES)
# A key whose words would be seen in any file that holds them.
WORDS = np.array([3_141_592_653, 2_718_281_828], np.uint32)
KEY = jax.random.wrap_key_data(WORDS, impl="threefry2x32")

PROGRAMS = [name for name in EVERY if name not in SAME_PROGRAM]
each_program = pytest.mark.parametrize("name", PROGRAMS)


def build(name="dp-gd", **more):
    return toy(name, **more)


@pytest.fixture
def places(tmp_path, request):
    """A checkpoint folder and, where one can, the file of a ledger for two runs of ``BUDGET``."""
    ledger = tmp_path / "ledger"
    name = request.node.callspec.params.get("name") if hasattr(request.node, "callspec") else None
    if name in DELTA_ONLY:  # no ledger books it, see tests/mechanisms/test_ball.py
        return {"checkpoint": tmp_path / "checkpoint"}
    if name is not None and not build(name).event.is_gaussian:
        Ledger.create(ledger, dpjax.PrivacyBudget(4.0, BUDGET.delta)).close()
        return {"checkpoint": tmp_path / "checkpoint", "ledger": ledger, "label": "visits"}
    mu = build().event.gaussian_mu * 2**0.5
    event = dpjax.accounting.Event(
        (dpjax.accounting.Release("two", 1, noise_multiplier=0.999 / mu),), "zero_out"
    )
    both = dpjax.accounting.epsilon(event, BUDGET.delta, "zero_out")
    Ledger.create(ledger, dpjax.PrivacyBudget(both, BUDGET.delta), unsampled=True).close()
    return {"checkpoint": tmp_path / "checkpoint", "ledger": ledger, "label": "visits"}


def run(name="dp-gd", key=KEY, data=None, **more):
    places = {k: more.pop(k) for k in ("checkpoint", "ledger", "label") if k in more}
    data = records() if data is None else data
    return dpjax.run(build(name, **more), data, key=key, progress=False, **places)


@functools.cache
def uninterrupted(name):
    return run(name)


def assert_same_bits(first, second):
    one, other = jax.tree.leaves(first), jax.tree.leaves(second)
    assert [np.asarray(leaf).tobytes() for leaf in one] == [
        np.asarray(leaf).tobytes() for leaf in other
    ]


def step_of(folder):
    with resume.Folder(folder) as opened:
        return opened.read().step


# Resuming.


# Every program from the middle; from each end one for each kind of carry.
CRASHES = [(name, 4) for name in PROGRAMS]
CRASHES += [(name, at) for name in ("dp-tr", "dp-svrg", "spider") for at in (0, 1, STEPS - 1)]


DAILY = [(name, at) for name, at in CRASHES if name in ("dp-tr", "dp-svrg", "spider", "dp-adam")]


@pytest.mark.parametrize(("name", "step"), mostly_ci(CRASHES, DAILY))
def test_a_resumed_run_is_the_uninterrupted_one(name, step, places, crash):
    crash(step)
    with pytest.raises(Crash):
        run(name, **places)
    assert step_of(places["checkpoint"]) == step
    left = Ledger.read(places["ledger"]).remaining if "ledger" in places else None
    crash(None)
    resumed = run(name, key=None, **places)
    assert_same_bits(resumed, uninterrupted(name))
    if left is None:
        return
    (entry,) = Ledger.read(places["ledger"]).entries
    assert entry.finished and entry.label == "visits"
    assert Ledger.read(places["ledger"]).remaining == left


@pytest.mark.parametrize("name", mostly_ci(PROGRAMS, ["dp-tr", "dp-adam", "dp-svrg", "spider"]))
def test_a_finished_run_gives_its_solution_again(name, places):
    first = run(name, **places)
    before = places["ledger"].read_bytes() if "ledger" in places else None
    for key in (None, KEY):
        assert_same_bits(run(name, key=key, **places), first)
    assert before is None or places["ledger"].read_bytes() == before


@each_program
def test_neither_checkpoint_nor_ledger_changes_the_result(name, places):
    assert_same_bits(run(name, **places), uninterrupted(name))


@each_program
def test_a_resumed_run_compiles_nothing_and_keeps_weak_types(name, tmp_path, crash):
    crash(4)
    with pytest.raises(Crash):
        run(name, checkpoint=tmp_path / "c")
    crash(None)
    compiled = progress._advance._cache_size()
    run(name, checkpoint=tmp_path / "c")
    assert progress._advance._cache_size() == compiled


def test_many_crashes_in_a_row(places, crash):
    for step in range(STEPS):
        crash(step)
        with pytest.raises(Crash):
            run("dp-tr", key=None if step else KEY, **places)
    crash(None)
    assert_same_bits(run("dp-tr", key=None, **places), uninterrupted("dp-tr"))
    assert len(Ledger.read(places["ledger"]).entries) == 1


def test_a_run_that_stopped_early_resumes_as_stopped(tmp_path):
    def stopping(**more):
        return run(
            "dp-tr", objective=dpjax.objectives.logistic(), steps=40, stopping_alpha=50.0, **more
        )

    first = stopping(checkpoint=tmp_path / "c")
    assert int(first.status) == dpjax.Status.STOPPED and int(first.steps) < 40
    assert_same_bits(stopping(checkpoint=tmp_path / "c", key=None), first)


@pytest.mark.ci
def test_a_tree_of_parameters_resumes(tmp_path, crash):
    objective = dpjax.Objective(lambda w, e: (w["a"] @ e[0] + w["b"] - e[1]) ** 2)
    algorithm = build(objective=objective, dimension=P + 1, clip_norm=1.0, step_size=0.1)
    params = {"a": jnp.ones(P, jnp.bfloat16), "b": jnp.array(0.5)}
    call = functools.partial(dpjax.run, algorithm, records(), params=params)
    crash(5)
    with pytest.raises(Crash):
        call(key=KEY, checkpoint=tmp_path / "c")
    crash(None)
    assert_same_bits(call(key=None, checkpoint=tmp_path / "c"), call(key=KEY))


def test_saves_are_rare_by_default(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(resume.Folder, "write", lambda self, one: written.append(one.step))
    monkeypatch.setattr(resume, "SAVE_SECONDS", 3600.0)
    run(checkpoint=tmp_path / "c")
    assert written == [0, STEPS]


@pytest.mark.parametrize("has_folder", [True, False])
def test_ctrl_c_leaves_a_checkpoint_and_says_how_to_go_on(has_folder, places, crash, monkeypatch):
    monkeypatch.setattr(resume, "SAVE_SECONDS", 3600.0)
    crash(5, KeyboardInterrupt)
    if not has_folder:
        places.pop("checkpoint")
    with pytest.raises(KeyboardInterrupt, match="budget of the whole run is spent") as stop:
        run(**places)
    assert f"after step 5 of {STEPS}" in str(stop.value)
    (entry,) = Ledger.read(places["ledger"]).entries
    assert entry.finished is None
    if not has_folder:
        assert "cannot be resumed" in str(stop.value)
        return
    assert str(places["checkpoint"]) in str(stop.value) and "key=None" in str(stop.value)
    assert step_of(places["checkpoint"]) == 5
    crash(None)
    assert_same_bits(run(key=None, **places), uninterrupted("dp-gd"))


# The order of things.


def test_nothing_is_asked_before_the_intent_and_the_key_are_on_the_disk(places, monkeypatch):
    seen, whole = [], progress._advance
    sync = os.fsync

    def advance(bound, carry, until):
        assert len(Ledger.read(places["ledger"]).entries) == 1
        seen.append("ask")
        return whole(bound, carry, until)

    def fsync(descriptor):
        seen.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        return sync(descriptor)

    monkeypatch.setattr(progress, "_advance", advance)
    monkeypatch.setattr(os, "fsync", fsync)
    run(**places)
    begun = seen[: seen.index("ask")]
    # The manifest, the key, their folder each time; then the intent.
    assert begun[-1] == "ledger" and "state.tmp" in begun[:-1]
    assert seen[-1] == "ledger"


@pytest.mark.parametrize("fail", mostly_ci(["write", "fsync", "replace"], ["fsync"]))
@pytest.mark.parametrize("spared", range(12))
def test_a_disk_that_fails_at_any_moment_releases_nothing_unbooked(
    fail, spared, places, monkeypatch, crash
):
    real, whole, calls, asked = getattr(os, fail), progress._advance, [], []

    def failing(*arguments, **more):
        calls.append(arguments)
        if len(calls) > spared:
            raise OSError(28, "No space left on device")
        return real(*arguments, **more)

    def advance(bound, carry, until):
        assert len(Ledger.read(places["ledger"]).entries) == 1
        asked.append(int(carry.step))
        return whole(bound, carry, until)

    monkeypatch.setattr(progress, "_advance", advance)
    with monkeypatch.context() as patch, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        patch.setattr(os, fail, failing)
        try:
            # What is paid for is returned, with a warning of what could not be written.
            assert_same_bits(run(**places), uninterrupted("dp-gd"))
        except OSError as error:
            assert "No space left" in str(error) and not asked
    assert not asked or len(calls) <= spared or "No space left" in str(said[0].message)
    held = Ledger.read(places["ledger"])
    assert not asked or len(held.entries) == 1
    # With room again the run begins or goes on, whichever it was.
    crash(None)
    assert_same_bits(run(**places), uninterrupted("dp-gd"))
    assert len(Ledger.read(places["ledger"]).entries) == 1


def test_a_run_that_does_not_fit_leaves_nothing_behind(places):
    run(**places)
    run(**(places | {"checkpoint": places["checkpoint"].with_name("second")}))
    before = places["ledger"].read_bytes()
    third = places["checkpoint"].with_name("third")
    with pytest.raises(ValueError, match="exceed the budget"):
        run(**(places | {"checkpoint": third}))
    assert list(third.iterdir()) == [] and places["ledger"].read_bytes() == before


def test_a_ledger_behind_its_checkpoint_is_refused(places, crash):
    empty = places["ledger"].read_bytes()
    crash(4)
    with pytest.raises(Crash):
        run(**places)
    places["ledger"].write_bytes(empty)
    crash(None)
    with pytest.raises(LedgerError, match="behind its checkpoint"):
        run(key=None, **places)


def test_an_intent_lost_before_the_first_step_is_booked_again(places, crash):
    empty = places["ledger"].read_bytes()
    crash(0)
    with pytest.raises(Crash):
        run(**places)
    places["ledger"].write_bytes(empty)
    crash(None)
    assert_same_bits(run(key=None, **places), uninterrupted("dp-gd"))
    assert len(Ledger.read(places["ledger"]).entries) == 1


def test_two_processes_cannot_share_a_folder_or_a_ledger(places):
    with resume.Folder(places["checkpoint"]), pytest.raises(ValueError, match="in use by another"):
        run(checkpoint=places["checkpoint"])
    with Ledger.open(places["ledger"]), pytest.raises(LedgerError, match="another run"):
        run(**places)


# What must be the same.


def crashed(places, crash, step=4, **more):
    crash(step)
    with pytest.raises(Crash):
        run(**places, **more)
    crash(None)


CHANGES = {
    "epsilon": ({"budget": dpjax.PrivacyBudget(1.1, 1e-4)}, "epsilon"),
    "steps": ({"steps": STEPS + 1}, "steps"),
    "clip norm": ({"clip_norm": 0.5}, r"query\.clip_norm"),
    "step size": ({"step_size": 0.5}, "step_size"),
    "relation": ({"budget": dpjax.PrivacyBudget(1.0, 1e-4, "replace_one")}, r"query\.relation"),
    "data": ({"data": records(1)}, "data"),
    "one value": ({"data": (records()[0] * np.float32(1 + 1e-6), records()[1])}, "data"),
    "dtype": ({"data": tuple(leaf.astype(np.float16) for leaf in records())}, "data_shape"),
    "label": ({"label": "other visits"}, "label"),
    "no ledger": ({"ledger": None}, "ledger"),
}


@pytest.mark.parametrize(("change", "field"), CHANGES.values(), ids=CHANGES.keys())
def test_c50_a_change_is_refused_by_its_name(change, field, places, crash):
    crashed(places, crash)
    files = {file: file.read_bytes() for file in places["checkpoint"].iterdir()}
    with pytest.raises(ResumeMismatch, match=rf"^{field} was .*, and is .* now"):
        run(**({"key": None} | places | change))
    assert files == {file: file.read_bytes() for file in places["checkpoint"].iterdir()}
    assert_same_bits(run(key=None, **places), uninterrupted("dp-gd"))


def test_c50_a_schedule_counts_by_all_of_its_values(tmp_path, crash):
    """A radius for each step: the same one goes on, one that differs in the last is refused."""
    radii = np.float32([4, 2, 1, 1, 1, 1])

    def of(last):
        values = jnp.append(radii[:-1], last)
        return run("dp-tr", checkpoint=tmp_path / "checkpoint", radius=lambda step: values[step])

    crash(4)
    with pytest.raises(Crash):
        of(1.0)
    crash(None)
    with pytest.raises(ResumeMismatch, match=r"^radius was float32\(6,\) #.*, and is .* now"):
        of(0.5)
    resumed = of(1.0)
    assert_same_bits(resumed, run("dp-tr", radius=lambda step: jnp.asarray(radii)[step]))
    np.testing.assert_array_equal(resumed.history.radius[:STEPS], radii)


@pytest.mark.parametrize("field", list(fingerprint.environment()))
def test_c50_another_environment_is_refused(field, places, crash, monkeypatch):
    crashed(places, crash)
    now = fingerprint.environment()
    monkeypatch.setattr(fingerprint, "environment", lambda: now | {field: "another"})
    with pytest.raises(ResumeMismatch, match=f"^{field} was {now[field]!r}.*, and is 'another'"):
        run(key=None, **places)


def test_c50_x64_is_refused(places, crash):
    crashed(places, crash)
    with (
        jax.enable_x64(True),
        pytest.raises(ResumeMismatch, match=r"^x64 was False .* and is True now"),
    ):
        run(key=None, **places)


def test_c50_another_key_implementation_is_refused(places, crash):
    crashed(places, crash)
    other = jax.random.key(0, impl="rbg")
    with pytest.raises(ValueError, match="threefry"):
        run(key=other, **places)


def test_c52_a_rollback_repeats_itself_and_spends_nothing(places, crash, tmp_path):
    """An older checkpoint with the same key draws the same noise, so it must see the same data."""
    crashed(places, crash)
    shutil.copytree(places["checkpoint"], tmp_path / "older")
    first = run(key=None, **places)
    shutil.rmtree(places["checkpoint"])
    shutil.copytree(tmp_path / "older", places["checkpoint"])
    before = places["ledger"].read_bytes()
    assert_same_bits(run(key=None, **places), first)
    assert places["ledger"].read_bytes() == before
    with pytest.raises(ResumeMismatch, match=r"^data was"):
        run(key=None, data=records(1), **places)


def test_c52_the_comparison_would_see_a_fresh_batch(places, crash, monkeypatch):
    """Without the hash of the data, the same noise meets other records: what must not happen."""
    crashed(places, crash)
    monkeypatch.setattr(fingerprint, "content", lambda examples, key: "planted")
    manifest = places["checkpoint"] / "manifest.json"
    held = json.loads(manifest.read_text())
    monkeypatch.setattr(resume, "_compare", lambda *args: None)
    other = run(key=None, data=records(1), **places)
    assert held["data"] != "planted"
    assert not np.array_equal(other.params, uninterrupted("dp-gd").params)


def test_c10_a_key_that_is_gone_is_not_needed_to_go_on(places, crash):
    """JAX deletes a donated key; the checkpoint has a copy, so nobody has to make it up again."""
    key = jax.random.wrap_key_data(WORDS, impl="threefry2x32")
    run(key=key)
    assert bool(key == KEY)  # a run takes no key away
    crash(4)
    with pytest.raises(Crash):
        run(key=key, **places)
    crash(None)
    key.delete()
    before = places["ledger"].read_bytes()
    with pytest.raises(RuntimeError, match="deleted"):
        run(key=key, **places)
    assert places["ledger"].read_bytes() == before
    assert_same_bits(run(key=None, **places), uninterrupted("dp-gd"))


@pytest.mark.parametrize("place", ["checkpoint", "ledger"])
def test_c14_a_run_of_each_of_several_processes_is_refused(place, places, monkeypatch):
    """Each would write its own key and its own intent; nothing compares them."""
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match="are for records that lie on the devices"):
        run(label="visits", **{place: places[place]})
    assert not places["checkpoint"].exists() and Ledger.read(places["ledger"]).entries == ()
    assert_same_bits(run(), uninterrupted("dp-gd"))


def test_another_key_is_refused_without_being_named(places, crash):
    crashed(places, crash)
    with pytest.raises(ResumeMismatch, match=r"^key is not the one") as error:
        run(key=jax.random.key(1), **places)
    assert not any(str(word) in str(error.value) for word in WORDS)


def test_key_none_is_for_resuming(tmp_path):
    with pytest.raises(ValueError, match=r"holds none; pass key=dpjax\.random_key"):
        run(key=None, checkpoint=tmp_path / "c")
    with pytest.raises(ValueError, match="key must be a JAX random key"):
        run(key=None)


def test_a_ledger_needs_a_label(places):
    with pytest.raises(ValueError, match="label is required"):
        run(ledger=places["ledger"])
    data = dpjax.Dataset(*records(), name="clinic")
    run(data=data, ledger=places["ledger"])
    assert Ledger.read(places["ledger"]).entries[0].label == "clinic"


def test_a_ledger_that_is_absent_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="dpjax ledger create"):
        run(ledger=tmp_path / "ledger", label="visits")
    assert not list(tmp_path.iterdir())


# Hashes.


def digest(name):
    return loop.describe(build(name), records(), jnp.zeros(P)).digest


@pytest.mark.ci
def test_equal_settings_and_optimizers_have_equal_hashes_in_every_process():
    source = (
        f"import sys; sys.path[:0] = {sys.path!r}; "
        "import test_checkpoint as this, test_fit; "
        "print(*map(this.digest, this.EVERY), *test_fit.names(0.1))"
    )
    environment = os.environ | {"PYTHONHASHSEED": "1"}
    other = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, env=environment
    )
    assert other.stdout.split() == [*map(digest, EVERY), *test_fit.names(0.1)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (jnp.zeros(2), jnp.zeros(3)),
        (jnp.zeros(2), jnp.zeros(2, jnp.bfloat16)),
        (0.0, -0.0),
        (1, True),
        (1.0, 1.0 + 2.0**-52),
        ((1, 2), [1, 2]),
        ({"a": 1}, {"a": 2}),
    ],
)
def test_hashes_tell_apart(one, other):
    assert fingerprint.arrays(one) != fingerprint.arrays(other)
    assert fingerprint.arrays(one) == fingerprint.arrays(one)


def test_the_hash_of_the_data_needs_the_key():
    keyed = {fingerprint.content(records(), key) for key in (KEY, jax.random.key(0))}
    assert len(keyed) == 2
    assert fingerprint.content(records(), KEY) == fingerprint.content(
        tuple(map(jnp.asarray, records())), KEY
    )


def test_the_hash_of_the_shapes_needs_the_key():
    """The number of rows may be private, and is found from a plain hash by trying."""
    keyed = {fingerprint.shapes(records(), key) for key in (KEY, jax.random.key(0))}
    assert len(keyed) == 2
    fewer = tuple(leaf[1:] for leaf in records())
    assert fingerprint.shapes(fewer, KEY) not in keyed


# Files.


def test_files_are_private_and_complete(places):
    before = os.umask(0)  # the widest
    run(**places)
    os.umask(before)
    assert stat.S_IMODE(places["checkpoint"].stat().st_mode) == 0o700
    names = {file.name for file in places["checkpoint"].iterdir()}
    assert names == {"manifest.json", "state"}
    for file in places["checkpoint"].iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_key_is_in_the_state_alone(places):
    run(**places)
    assert WORDS.tobytes() in (places["checkpoint"] / "state").read_bytes()
    for file in (places["checkpoint"] / "manifest.json", places["ledger"]):
        for word in WORDS:
            raw = file.read_bytes()
            assert word.tobytes() not in raw
            assert str(word).encode() not in raw and f"{word:x}".encode() not in raw


def test_a_folder_that_others_may_enter_is_refused(tmp_path):
    tmp_path.chmod(0o755)
    with pytest.raises(ValueError, match="chmod 700"):
        run(checkpoint=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("file", ["state", "manifest.json"])
def test_a_damaged_checkpoint_is_refused(file, places):
    run(**places)
    path = places["checkpoint"] / file
    whole = path.read_bytes()
    random = np.random.default_rng(0)
    for place in [0, 31, 32, len(whole) - 1, *random.integers(len(whole), size=60)]:
        broken = bytearray(whole)
        broken[place] ^= 1 << random.integers(8)
        for content in (bytes(broken), whole[:place]):
            path.write_bytes(content)
            with pytest.raises(ValueError, match="damaged"):
                run(key=None, **places)
    path.write_bytes(whole)
    run(key=None, **places)


@pytest.mark.parametrize("fail", ["write", "replace"])
def test_a_failed_save_keeps_the_one_before(fail, places, crash, monkeypatch):
    crashed(places, crash)

    def full(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.warns(RuntimeWarning, match="No space left"):
        patch.setattr(os, fail, full)
        assert_same_bits(run(key=None, **places), uninterrupted("dp-gd"))
    assert step_of(places["checkpoint"]) == 4
    assert not list(places["checkpoint"].glob("*.tmp"))
    assert_same_bits(run(key=None, **places), uninterrupted("dp-gd"))


# The command.


def test_the_command_resumes_and_books(tmp_path, capsys, monkeypatch):
    ledger, folder = str(tmp_path / "ledger"), str(tmp_path / "checkpoint")
    # Another objective than the tests of the command, which time its compilation.
    argv = ["run", "dp-gd", "--steps", "5", "--objective", "logistic-l2", "--ledger", ledger]
    argv += ["--checkpoint", folder]
    assert main(argv) == 2
    assert "dpjax ledger create" in capsys.readouterr().err
    assert main(["ledger", "create", ledger, "--epsilon", "1", "--delta", "1e-5"]) == 0
    whole = progress._advance

    def interrupted(bound, carry, until):
        if int(carry.step) >= 3:
            raise KeyboardInterrupt
        return whole(bound, carry, until)

    with monkeypatch.context() as patch:
        patch.setattr(progress, "_advance", interrupted)
        capsys.readouterr()
        assert main(argv) == 130
        assert "after step 3 of 5" in capsys.readouterr().err
    outputs = []
    for name in ("one", "two"):
        assert main([*argv, "--json", str(tmp_path / name)]) == 0
        content = json.loads((tmp_path / name).read_text())
        outputs.append(content["certificate"])
    assert outputs[0] == outputs[1]
    (entry,) = Ledger.read(ledger).entries
    assert entry.finished
    assert main(argv[:-2]) == 2
    assert "exceed the budget" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--checkpoint", "--ledger"])
def test_repeats_are_not_saved_or_booked(option, tmp_path, capsys):
    assert main(["run", "--repeats", "2", option, str(tmp_path / "x")]) == 2
    assert "does not go with --repeats" in capsys.readouterr().err


def test_the_loop_of_run_is_that_of_solve():
    """Resuming rests on it: pieces of the loop, wherever they end, are the loop."""
    algorithm, (x, y) = build("dp-tr"), records()
    bound, start = progress._start(algorithm, (x, y), KEY, jnp.zeros(P))
    whole = progress._advance(bound, start, STEPS)
    for cut in range(STEPS):
        carry = progress._advance(bound, progress._advance(bound, start, cut), STEPS)
        assert_same_bits(carry, whole)
    assert isinstance(whole, loop.Carry)
