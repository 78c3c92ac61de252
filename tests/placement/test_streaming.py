"""Records that stay on disk: the bits of those in memory, and no more of them than is asked for."""

import dataclasses
import functools
import os
import stat

import compiling
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from factories import make, mostly_ci

import dpjax
from dpjax.cli.main import main
from dpjax.datasets.rows import Rows
from dpjax.distributed import shard, stream
from dpjax.driver import ResumeMismatch
from dpjax.placement import stream as streaming

_random = np.random.default_rng(0).random
N = 3 * 4096 + 100
BUDGET = dpjax.PrivacyBudget(1.0, 1e-6)


@pytest.fixture(scope="module")
def arrays():
    x = np.random.default_rng(0).normal(size=(N, 4)).astype(np.float32) / 4
    return x, np.where(x[:, 0] > 0, 1.0, -1.0).astype(np.float32)


@pytest.fixture
def files(arrays, tmp_path):
    paths = tmp_path / "x.npy", tmp_path / "y.npy"
    for path, array in zip(paths, arrays, strict=True):
        np.save(path, array)
    return paths


def mapped(files):
    return stream(tuple(np.load(path, mmap_mode="r") for path in files))


def algorithm(name="dp-gd", **more):
    return make(name, BUDGET, data_size=N, dimension=4, **{"steps": 3} | more)


def solved(data, given=None):
    solution = dpjax.solve(algorithm() if given is None else given, data, key=jax.random.key(0))
    released = solution.accuracy, solution.counted
    return solution.params, solution.history, solution.certificate, released


def same(one, other):
    leaves = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in leaves)


# The bits. Every algorithm of the registry: see test_distributed.


def test_a_file_gives_the_bits_of_memory(arrays, files):
    assert same(solved(arrays), solved(mapped(files)))


@pytest.mark.ci
def test_accuracy_and_records_are_counted_chunk_by_chunk(arrays):
    def plain(budget):
        return make("dp-gd", budget, data_size=N, dimension=4, steps=2)

    given = dpjax.with_count(functools.partial(dpjax.with_accuracy, plain, epsilon=0.1), BUDGET)
    assert same(solved(arrays, given), solved(stream(arrays), given))


@pytest.mark.ci
def test_many_keys_share_what_is_read(arrays):
    keys = jax.random.split(jax.random.key(0), 2)
    data = stream(arrays)
    many = [
        jax.vmap(lambda key, data=data: dpjax.solve(algorithm(), data, key=key))(keys).params
        for data in (arrays, data)
    ]
    assert same(*many)


@pytest.mark.ci
def test_fit_reads_the_rows_of_its_batches_alone(arrays, monkeypatch):
    readers = []
    begin = streaming._Reader.__init__

    def noted(self, *args):
        begin(self, *args)
        readers.append(self)

    monkeypatch.setattr(streaming._Reader, "__init__", noted)

    def trained(data):
        return dpjax.fit(
            lambda w, x: jnp.tanh(x @ w["a"]) @ w["b"],
            "cross_entropy",
            data,
            BUDGET,
            optax.adam(0.1),
            seed=0,
            batch_size=64,
            steps=4,
            params={"a": jnp.ones((4, 8)) / 4, "b": jnp.ones((8, 2))},
            progress=False,
        ).solution.params

    x, y = arrays[0], (arrays[1] > 0).astype(np.int32)
    assert same(trained((x, y)), trained(stream((x, y))))
    (reader,) = readers
    assert 0 < reader.rows_read < N


def test_the_shares_of_devices_are_read_from_the_file(arrays, files):
    assert same(solved(arrays), solved(shard(mapped(files), jax.devices()[:1])))


# Rows.


def test_rows_are_those_of_the_array(arrays, files):
    x = np.load(files[0], mmap_mode="r")
    for source in (x, x[100:], x[100:5000], x[:, 1:3], x[::2], arrays[0]):
        rows = Rows(source)
        plain = np.array(source)
        out = np.empty((7, *plain.shape[1:]), np.float32)
        assert rows.read(len(plain) - 5, out) == 5
        assert np.array_equal(out[:5], plain[-5:])
        assert np.array_equal(rows[3:9], plain[3:9])
        assert np.array_equal(rows[np.array([5, 0, 5])], plain[[5, 0, 5]])
        assert np.array_equal(np.asarray(rows), plain)
        assert str(len(plain)) not in repr(rows)


def test_what_is_handed_over_is_not_written_to_again(arrays):
    """Memory is used again once nobody refers to it, and not before."""
    reader = streaming._Reader([Rows(arrays[0])], [np.float32], jax.tree.structure(0))
    kept = [reader.chunk(i * 100, 100) for i in range(20)]
    assert all(np.array_equal(rows, arrays[0][i * 100 :][:100]) for i, rows in enumerate(kept))
    pool = len(reader._pools[100])
    del kept
    for i in range(20):
        assert np.array_equal(reader.chunk(i * 100, 100), arrays[0][i * 100 :][:100])
    assert len(reader._pools[100]) == pool <= 22
    reader.close()
    fresh = streaming._Reader([Rows(arrays[0])], [np.float32], jax.tree.structure(0))
    for i in range(20):
        fresh.chunk(i * 100, 100)
    assert len(fresh._pools[100]) <= 3
    fresh.close()


def test_float64_beyond_float32_is_a_null_record_in_silence(arrays):
    x = arrays[0].astype(np.float64)
    x[5] = 1e300
    with np.errstate(all="raise"):
        assert same(solved((x, arrays[1])), solved(stream((x, arrays[1]))))


def test_a_file_that_changes_size_ends_the_run_and_the_checkpoint_goes_on(arrays, files, tmp_path):
    data, places = mapped(files), {"checkpoint": tmp_path / "run", "progress": False}
    given = algorithm(steps=40)
    whole = dpjax.run(given, arrays, key=jax.random.key(0), progress=False)
    content, asked = files[0].read_bytes(), []
    chunk = streaming._Reader.chunk

    def cut(self, start, rows):
        asked.append(start)
        if len(asked) == 30:
            os.truncate(files[0], len(content) - 16)
        return chunk(self, start, rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streaming._Reader, "chunk", cut)
        with pytest.raises(OSError, match=r"the size of .*x.npy' changed while it was read"):
            dpjax.run(given, data, key=jax.random.key(0), **places)
    files[0].write_bytes(content)
    again = dpjax.run(given, mapped(files), **places)
    assert same(whole.params, again.params)
    other = np.load(files[0])
    np.save(files[0], other + 1)
    with pytest.raises(ResumeMismatch, match=r"^data was"):
        dpjax.run(given, mapped(files), **places)


# Files of the command line.

BOUNDS = {"0": [-2, 2], "1": [-2, 2], "2": [-2, 2], "3": [-2, 2]}


@pytest.fixture
def tables(arrays, tmp_path):
    """The same table as each kind of file, with its arguments."""
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    x, y = arrays
    paths = {kind: tmp_path / f"table.{kind}" for kind in ("npy", "npz", "parquet")}
    np.save(paths["npy"], np.column_stack([x, y]))
    np.savez(paths["npz"], x=x, y=y)
    columns = {str(i): x[:, i] for i in range(4)} | {"4": np.where(y > 0, "yes", "no")}
    parquet.write_table(pyarrow.table(columns), paths["parquet"], row_group_size=5_000)
    return {
        "npy": (paths["npy"], {"label": "4", "bounds": BOUNDS, "classes": (-1, 1)}),
        "npz": (paths["npz"], {"bounds": BOUNDS, "classes": (-1, 1)}),
        "parquet": (paths["parquet"], {"label": "4", "bounds": BOUNDS, "classes": ("no", "yes")}),
    }


def loaded(table, **more):
    path, declared = table
    return dpjax.datasets.load(path, **declared, **more)


@pytest.mark.parametrize("intercept", [False, True])
def test_each_kind_of_file_gives_the_same_rows_from_disk_and_from_memory(tables, intercept):
    found = []
    for table in tables.values():
        held = loaded(table, intercept=intercept)
        left = loaded(table, intercept=intercept, memory_limit=1_000)
        assert isinstance(left.x, Rows) and isinstance(left.y, Rows)
        assert isinstance(held.x, np.ndarray)
        assert np.array_equal(np.asarray(left.x), held.x)
        assert np.array_equal(np.asarray(left.y), held.y)
        assert np.array_equal(left.x[np.array([9_000, 3])], held.x[[9_000, 3]])
        found.append(held)
    assert all(same((found[0].x, found[0].y), (one.x, one.y)) for one in found)


def test_missing_cells_of_parquet_are_null_records(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    path = tmp_path / "t.parquet"
    columns = {"a": [1, None, 3], "b": [0.5, 0.5, None], "l": ["yes", "no", None]}
    parquet.write_table(pyarrow.table(columns), path)
    for limit in (None, 1):
        data = dpjax.datasets.load(
            path,
            label="l",
            classes=("no", "yes"),
            bounds={"a": [0, 4], "b": [0, 1]},
            memory_limit=limit,
        )
        assert np.isnan(np.asarray(data.x)).all(axis=1).tolist() == [False, True, True]
        assert np.asarray(data.y)[:2].tolist() == [1, -1] and np.isnan(np.asarray(data.y)[2])


def test_the_command_line_streams_what_exceeds_its_limit(tables, tmp_path, capsys):
    import json

    path, declared = tables["npy"]
    (tmp_path / "bounds.json").write_text(json.dumps(declared["bounds"]))
    words = ["run", "dp-gd", "--steps", "3", "--seed", "0", "--data", str(path), "--label", "4"]
    words += ["--bounds", str(tmp_path / "bounds.json"), "--classes=-1,1"]
    for name, more in (("held", []), ("left", ["--memory-limit", "100KB"])):
        assert main([*words, *more, "--save", str(tmp_path / name)]) == 0
    held, left = (dpjax.load(tmp_path / name) for name in ("held", "left"))
    assert same(held.params, left.params)
    assert main([*words, "--memory-limit", "much"]) == 2
    assert "--memory-limit must be a size such as 500MB or 2GB" in capsys.readouterr().err


def margin_loss(params, example):
    return jnp.log1p(jnp.exp(-example[1] * (example[0] @ params)))


OF_A_FUNCTION = dpjax.objectives.Objective(margin_loss, name="own")


@pytest.fixture(scope="module")
def few_at_once():
    """Few rows come in together from the first test that asks for it to the end of the file."""
    with compiling.apart("few at once"), pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpjax.derivatives.linear.scaled_rows.AT_ONCE", 1)
        yield


@pytest.fixture
def mapped_rows(few_at_once, monkeypatch):
    """Where the rows begin that are mapped."""
    read, starts = Rows.read, []
    monkeypatch.setattr(Rows, "read", lambda *args: starts.append(args[1]) or read(*args))
    return starts


def test_a_planted_reader_that_is_a_chunk_late_is_seen(arrays, few_at_once, monkeypatch):
    read = streaming._Reader._read
    monkeypatch.setattr(
        streaming._Reader,
        "_read",
        lambda self, start, rows: read(self, max(start - rows, 0), rows),
    )
    assert not same(solved(arrays), solved(stream(arrays)))


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"name": "dp-tr"}, id="signs"),
        pytest.param(
            {"objective": dpjax.objectives.least_squares()}, id="numbers", marks=pytest.mark.ci
        ),
        pytest.param(
            {"objective": OF_A_FUNCTION, "clip_norm": 1.0, "step_size": 1.0},
            id="a function",
            marks=pytest.mark.ci,
        ),
    ],
)
def test_a_training_on_scaled_rows_has_the_bits_of_memory(tables, few_at_once, tmp_path, given):
    given = algorithm(**given)
    held, scaled = loaded(tables["npy"]), tmp_path / "scaled.npz"
    dpjax.datasets.write(loaded(tables["npy"], memory_limit=1_000), scaled)
    left = dpjax.datasets.load(scaled, memory_limit=1_000)
    assert isinstance(left.x, Rows) and isinstance(left.y, Rows)
    # Without their declaration, so that labels may be numbers.
    held, left = (dataclasses.replace(data, preprocessing=None) for data in (held, left))
    assert same(solved(held, given), solved(left, given))


@pytest.mark.parametrize("output", mostly_ci(["last", "random"], ["last"]))
def test_a_run_that_is_over_reads_no_record_again(tables, mapped_rows, tmp_path, output):
    left, given = loaded(tables["npy"], memory_limit=1_000), algorithm(steps=8, output=output)

    def run():
        return dpjax.run(given, left, key=jax.random.key(0), checkpoint=tmp_path / "run")

    first = run()
    once = len(mapped_rows)
    assert int(first.steps) > 2 and same(first.params, run().params)
    assert len(mapped_rows) == once


def test_a_run_that_the_ledger_refuses_reads_no_record(tables, mapped_rows, tmp_path):
    left = loaded(tables["npy"], memory_limit=1_000)
    small = dpjax.PrivacyBudget(0.5, 1e-6)
    with (
        dpjax.Ledger.create(tmp_path / "ledger", small) as ledger,
        pytest.raises(ValueError, match="budget"),
    ):
        dpjax.run(algorithm(), left, ledger=ledger, key=dpjax.random_key(), label="table")
    assert not mapped_rows and not streaming._READERS


# Scaled once, in a file of its own.

SCHEMA = {
    "quoted_line_breaks": False,
    "label": {"column": "income", "classes": ["lo", "hi"]},
    "columns": {
        "age": {"bounds": [0, 99], "missing": 50},
        "school": {"order": ["none", "some"]},
        "job": {"levels": ["x"], "other": True},
    },
}
PEOPLE = {
    "age": [30, None, 70, 20],
    "school": ["none", "some", "some", "all"],
    "job": ["x", "y", "x", "x"],
    "income": ["hi", "lo", "?", "hi"],
    "who": ["ann", "bob", "ann", "eve"],
}


def declared(**schema):
    table = PEOPLE if "unit" in schema else {k: v for k, v in PEOPLE.items() if k != "who"}
    return dpjax.datasets.load(table, schema=SCHEMA | schema)


def arrays_of(data):
    leaves = data.x, data.y, data.test_x, data.test_y, data.present
    return [None if leaf is None else np.asarray(leaf) for leaf in leaves]


NUMBER = {"label": {"column": "age", "bounds": [0, 99]}}
DATA = {
    "a schema": declared,
    "a number": lambda: declared(
        **NUMBER,
        columns={k: v for k, v in SCHEMA["columns"].items() if k != "age"}
        | {"income": {"ignore": True}},
    ),
    "units": lambda: declared(unit={"column": "who", "max_records": 2, "type": "text"}),
    "bounds": lambda: dpjax.datasets.load(
        {"a": [1, 2], "l": np.array([True, False])}, label="l", bounds={"a": [0, 4]}, intercept=True
    ),
    "held-out records": lambda: dataclasses.replace(
        dpjax.datasets.load("randhie"), test_x=np.ones((3, 9), np.float32), test_y=np.ones(3)
    ),
}


@pytest.mark.parametrize("kind", DATA)
def test_scaled_rows_come_back_with_all_that_was_declared(kind, tmp_path):
    data, path = DATA[kind](), tmp_path / "scaled.npz"
    dpjax.datasets.write(data, path)
    held = dpjax.datasets.load(path)
    for one, other in zip(arrays_of(data), arrays_of(held), strict=True):
        assert one is other is None or (one.dtype == other.dtype and same(one, other))
    assert repr(held) == repr(data) and held.preprocessing == data.preprocessing
    assert hash(held.preprocessing) == hash(data.preprocessing)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    if data.present is not None:
        with pytest.raises(ValueError, match="cannot be grouped: leave memory_limit out"):
            dpjax.datasets.load(path, memory_limit=1)


def test_a_model_of_scaled_rows_is_that_of_the_table(tables, tmp_path):
    held, path = loaded(tables["npy"]), tmp_path / "scaled.npz"
    dpjax.datasets.write(loaded(tables["npy"], memory_limit=1_000), path)
    left = dpjax.datasets.load(path, memory_limit=1_000)
    models = []
    for data in (held, dataclasses.replace(left, name=held.name)):
        solution = dpjax.solve(algorithm(), data, key=jax.random.key(0))
        dpjax.save(tmp_path / "model", solution)
        models.append(dpjax.load(tmp_path / "model"))
    assert models[0].text == models[1].text
    raw = {str(column): np.linspace(-1, 1, 5) for column in range(4)}
    assert same(*(model.predict(raw) for model in models))
    # Of rows that are scaled it would be another model.
    with pytest.raises(ValueError, match="holds scaled rows"):
        models[1].predict(path)


def test_the_command_line_scales_rows_once(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = "age,l\n" + "".join(f"{18 + n % 60},{'hi' if n % 3 else 'lo'}\n" for n in range(90))
    (tmp_path / "t.csv").write_text(table)
    (tmp_path / "b.json").write_text('{"age": [17, 90]}')
    said = ["--label", "l", "--classes", "lo,hi", "--bounds", "b.json", "--intercept"]
    assert main(["data", "t.csv", *said, "--write", "s.npz"]) == 0
    assert "wrote s.npz: it HOLDS THE RECORDS" in capsys.readouterr().out
    run = ["run", "dp-gd", "--steps", "2", "--seed", "0", "--data"]
    for words in (["t.csv", *said], ["s.npz"], ["s.npz", "--memory-limit", "1KB"]):
        assert main([*run, *words, "--save", f"m{len(words)}"]) == 0
    models = [dpjax.load(f"m{count}") for count in (1 + len(said), 1, 3)]
    assert all(same(models[0].params, model.params) for model in models)
    assert len({model.text for model in models}) == 1
    capsys.readouterr()
    for words, message in (
        (["t.csv", *said, "--write", "t.csv"], "--write and NAME both name t.csv"),
        (["t.csv", *said, "--write", "s.npz", "--check"], "leave one out"),
        (["--write", "s.npz"], "--write needs the name of a file"),
        (["t.csv", "--check", "--memory-limit", "1GB"], "--memory-limit is for --write"),
    ):
        assert main(["data", *words]) == 2
        assert message in capsys.readouterr().err


def test_a_file_of_scaled_rows_takes_no_declaration_and_is_written_whole_or_not(tmp_path):
    path = tmp_path / "scaled.npz"
    dpjax.datasets.write(declared(), path)
    for given in ({"label": "l", "bounds": {}}, {"schema": SCHEMA}, {"unit": "who"}):
        with pytest.raises(ValueError, match=f"{' and '.join(given)} must be left out beside"):
            dpjax.datasets.load(path, **given)
    with pytest.raises(ValueError, match="holds scaled rows"):
        dpjax.datasets.check(path, schema=SCHEMA)
    with pytest.raises(ValueError, match=r"name a file .npz, not .*scaled.npy"):
        dpjax.datasets.write(declared(), tmp_path / "scaled.npy")
    before = path.read_bytes()

    def fails(block):
        raise OSError("no more rows")

    broken = dataclasses.replace(declared(), y=Rows(np.ones(4), fails))
    with pytest.raises(OSError, match="no more rows"):
        dpjax.datasets.write(broken, path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["scaled.npz"]


def test_records_on_disk_are_refused_inside_jit(arrays):
    with pytest.raises(ValueError, match="cannot be read inside jit"):
        jax.jit(lambda key: dpjax.solve(algorithm(), stream(arrays), key=key).params)(
            jax.random.key(0)
        )
    assert not streaming._READERS


@pytest.mark.parametrize(
    ("name", "write", "message"),
    [
        ("t.csv", lambda path: path.write_text("a,l\n" + "1,0\n" * 999), "save it as Parquet"),
        (
            "t.npz",
            lambda path: np.savez_compressed(
                path, x=np.random.default_rng(0).random((999, 9)), y=np.ones(999)
            ),
            "is compressed",
        ),
        ("t.npy", lambda path: path.write_bytes(b"no array" * 999), "is not a plain array"),
        ("t.npy", lambda path: np.save(path, np.ones(9)), "must hold numbers"),
        ("t.parquet", lambda path: path.write_bytes(b"no parquet" * 999), "is not a Parquet file"),
        ("t.npz", lambda path: np.savez(path, z=np.ones((999, 9))), "lacks 'x'"),
    ],
)
def test_files_that_cannot_stay_on_disk_are_refused(tmp_path, name, write, message):
    path = tmp_path / name
    write(path)
    label = None if name.endswith("npz") else "l"
    with pytest.raises(ValueError, match=message) as refused:
        dpjax.datasets.load(path, label=label, bounds={"a": [0, 1]}, memory_limit=1_000)
    assert f"{path.stat().st_size:,}" not in str(refused.value)  # of a CSV it tells n
