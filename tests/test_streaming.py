"""Records that stay on disk: the bits of those in memory, and no more of them than is asked for."""

import dataclasses
import errno
import functools
import os
import stat
import tempfile

import compiling
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from factories import make

import dpjax
from dpjax import _files
from dpjax.cli.main import main
from dpjax.distributed import shard, stream
from dpjax.driver import ResumeMismatch
from dpjax.placement import stream as streaming
from dpjax.placement.stream import Rows

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


def test_accuracy_and_records_are_counted_chunk_by_chunk(arrays):
    def plain(budget):
        return make("dp-gd", budget, data_size=N, dimension=4, steps=2)

    given = dpjax.with_count(functools.partial(dpjax.with_accuracy, plain, epsilon=0.1), BUDGET)
    assert same(solved(arrays, given), solved(stream(arrays), given))


def test_many_keys_share_what_is_read(arrays):
    keys = jax.random.split(jax.random.key(0), 2)
    data = stream(arrays)
    many = [
        jax.vmap(lambda key, data=data: dpjax.solve(algorithm(), data, key=key))(keys).params
        for data in (arrays, data)
    ]
    assert same(*many)


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
    assert 0 < reader.served < N


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


# Scratch files of rows that a function maps.

CHUNK = 1_000  # rows, so that a pass has 13 chunks and the last one is not full


class Read:
    """A reader of a table on disk, which counts the rows that were mapped."""

    def __init__(self, table):
        held, left = loaded(table), loaded(table, memory_limit=1_000)
        self.expected, self.mapped = (held.x, held.y), 0
        leaves = [self._counted(left.x), left.y]
        self.reader = streaming._Reader(leaves, [np.float32] * 2, jax.tree.structure((0, 0)))
        self.scratches = self.reader._scratches

    def _counted(self, rows):
        def count(block):
            self.mapped += len(block)
            return block

        return Rows(rows, count)

    def check(self, start, rows=CHUNK):
        """Asks for some rows, and compares them."""
        try:
            chunk = self.reader.chunk(start, rows)
        except OSError as error:
            pytest.fail(f"rows were not read: {error}")
        for got, expected in zip(chunk, self.expected, strict=True):
            expected = expected[start : start + rows]
            assert np.array_equal(got[: len(expected)], expected)
            assert not got[len(expected) :].any()

    def passes(self, count):
        for start in [*range(0, N, CHUNK)] * count:
            self.check(start)
        self.settle()

    def settle(self):
        """Waits for what is read and written ahead."""
        self.reader._thread.submit(lambda: None).result()


@pytest.fixture
def opened(tables):
    readers = []

    def of(kind="npy"):
        readers.append(Read(tables[kind]))
        return readers[-1]

    yield of
    for read in readers:
        read.reader.close()


@pytest.mark.parametrize("kind", ["npy", "npz", "parquet"])
def test_rows_are_mapped_in_two_passes_and_then_read_as_they_were_mapped(opened, kind):
    read = opened(kind)
    read.passes(1)
    assert not any(scratch.complete for scratch in read.scratches)
    read.passes(4)
    assert all(scratch.complete for scratch in read.scratches)
    assert read.mapped == 2 * N


def test_a_scratch_file_has_no_name_and_ends_with_its_reader(opened, tmp_path):
    read = opened()
    before = sorted(os.listdir(tmp_path))
    read.passes(3)
    (tmp_path / "link.npy").symlink_to(tmp_path / "table.npy")
    assert _files.SourceFile(tmp_path / "link.npy").folder == str(tmp_path.resolve())
    (tmp_path / "link.npy").unlink()
    files = [scratch._file.fileno() for scratch in read.scratches]
    sizes = []
    for file in files:
        status = os.fstat(file)
        assert (status.st_nlink, stat.S_IMODE(status.st_mode)) == (0, 0o600)
        assert status.st_dev == os.stat(tmp_path).st_dev
        assert not os.get_inheritable(file)
        sizes.append(status.st_size)
    assert sizes == [N * 4 * 4, N * 4]
    assert sorted(os.listdir(tmp_path)) == before
    read.reader.close()
    assert all(scratch._file is None and not scratch.complete for scratch in read.scratches)


def test_one_pass_and_batches_write_nothing_nor_does_a_memory_map(opened, files, monkeypatch):
    monkeypatch.setattr(os, "pwrite", lambda *_: pytest.fail("a scratch file was written"))
    read = opened()
    for _ in range(3):
        read.reader.at(np.array([3, N - 1, 3]))
    read.passes(1)
    for start in (0, CHUNK, 0, 5 * CHUNK):  # no complete pass
        opened().check(start)
    assert all(scratch._file is None for scratch in read.scratches)
    plain = [Rows(np.load(path, mmap_mode="r")) for path in files]
    reader = streaming._Reader(plain, [np.float32] * 2, jax.tree.structure((0, 0)))
    assert reader._scratches == [None, None]
    reader.close()


def refused(*_, **__):
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


class Full:
    """A disk of little free space."""

    f_frsize = 1
    f_bavail = 2 * 4 * N - 1


@pytest.mark.parametrize(
    "plant",
    [
        lambda patch: patch.setattr(tempfile, "TemporaryFile", refused),
        lambda patch: patch.setattr(os, "statvfs", lambda _: Full()),
        lambda patch: patch.delattr(os, "preadv"),
    ],
    ids=["a folder not to be written to", "a full disk", "another platform"],
)
def test_where_no_scratch_file_can_be_made_rows_are_mapped_in_each_pass(opened, monkeypatch, plant):
    plant(monkeypatch)
    read = opened("npz")
    read.passes(4)
    assert not any(scratch.complete for scratch in read.scratches)
    assert 4 * N <= read.mapped <= 4 * N + CHUNK


@pytest.mark.parametrize("writes", [0, 1, 7, 25])
def test_a_scratch_file_that_cannot_be_finished_is_dropped(opened, monkeypatch, writes):
    write, asked = os.pwrite, []

    def some(file, data, place):
        asked.append(place)
        if len(asked) > writes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data, place)

    monkeypatch.setattr(os, "pwrite", some)
    read = opened()
    read.passes(4)
    assert not all(scratch.complete for scratch in read.scratches)
    assert len(asked) == writes + (1 if writes == 25 else 2)
    assert all(scratch._file is None for scratch in read.scratches if not scratch.complete)


def test_a_write_that_takes_a_part_goes_on_with_the_rest(opened, monkeypatch):
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, place: write(file, data[:999], place))
    read = opened()
    read.passes(3)
    assert read.mapped == 2 * N


@pytest.mark.parametrize("seed", range(8))
def test_passes_that_are_broken_off_or_out_of_order_leave_nothing_wrong(opened, seed):
    random, read = np.random.default_rng(seed), opened()
    read.passes(1)
    for _ in range(12):
        rows = int(random.choice([700, CHUNK, 5_000]))
        starts = [*range(0, N, rows)]
        if random.random() < 0.5:
            starts[-1] = N - rows  # a full chunk, with rows of the one before
        match random.integers(3):
            case 0:
                starts = starts[: random.integers(len(starts))]
            case 1:
                random.shuffle(starts)
            case 2:
                starts = [*map(int, random.integers(N, size=5))]
        for start in starts:
            read.check(start, rows)
    read.passes(2)
    assert all(scratch.complete for scratch in read.scratches)
    assert read.mapped > 2 * N


def test_a_file_that_changes_size_is_noticed_when_its_rows_lie_in_a_scratch_file(opened, tmp_path):
    read = opened()
    read.passes(3)
    os.truncate(tmp_path / "table.npy", 1_000)
    with pytest.raises(OSError, match=r"the size of .*table.npy' changed while it was read"):
        for start in (0, CHUNK):
            read.reader.chunk(start, CHUNK)


def margin_loss(params, example):
    return jnp.log1p(jnp.exp(-example[1] * (example[0] @ params)))


OF_A_FUNCTION = dpjax.objectives.Objective(margin_loss, name="own")


@pytest.fixture(scope="module")
def few_at_once():
    """Few rows come in together from the first test that asks for it to the end of the file."""
    with compiling.apart("few at once"), pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpjax.derivatives.linear.records.AT_ONCE", 1)
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
    ("given", "passes"),
    [
        pytest.param({"name": "dp-tr"}, 1, id="signs"),
        pytest.param({"objective": dpjax.objectives.least_squares()}, 1, id="numbers"),
        pytest.param({"steps": 2}, 2, id="few steps"),
        pytest.param(
            {"objective": OF_A_FUNCTION, "clip_norm": 1.0, "step_size": 1.0}, 2, id="a function"
        ),
    ],
)
def test_a_training_through_a_scratch_file_has_the_bits_of_memory(
    tables, mapped_rows, given, passes
):
    given = algorithm(**given)
    of_disk = loaded(tables["npy"]), loaded(tables["npy"], memory_limit=1_000)
    # Without their declaration, so that labels may be numbers.
    held, left = (dataclasses.replace(data, preprocessing=None) for data in of_disk)
    assert same(solved(held, given), solved(left, given))
    starts = len(set(mapped_rows))
    # Of two leaves, each of which may read its first rows ahead once more.
    assert starts > 3 and 0 <= len(mapped_rows) - 2 * passes * starts <= 2


@pytest.mark.parametrize("writes", [0, 1, 40])
def test_records_that_cannot_all_be_prepared_on_disk_are_prepared_in_each_pass(
    tables, mapped_rows, monkeypatch, writes
):
    write, left, closed = os.pwrite, [None] * writes, []

    def some(*args):
        if not left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left.pop()
        return write(*args)

    monkeypatch.setattr(os, "pwrite", some)
    close = _files.Scratch.close
    monkeypatch.setattr(
        _files.Scratch, "close", lambda scratch: closed.append(scratch) or close(scratch)
    )
    expected = solved(loaded(tables["npz"]))
    assert same(expected, solved(loaded(tables["npz"], memory_limit=1_000)))
    assert len(set(closed)) == 2 + 2 and all(scratch._file is None for scratch in closed)
    assert len(mapped_rows) > 3 * 2 * 4  # in each of three passes, of four chunks


def test_a_file_that_changes_while_records_are_prepared_is_named(tables, mapped_rows, tmp_path):
    left = loaded(tables["npy"], memory_limit=1_000)
    append = _files.Scratch.append

    def cut(scratch, rows):
        append(scratch, rows)
        os.truncate(tmp_path / "table.npy", 1_000)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_files.Scratch, "append", cut)
        with pytest.raises(OSError, match=r"could not be read: the size of .*table.npy' changed"):
            solved(left)
    assert not streaming._READERS


@pytest.mark.parametrize("output", ["last", "random"])
def test_a_run_that_is_over_reads_no_record_again(tables, mapped_rows, tmp_path, output):
    left, given = loaded(tables["npy"], memory_limit=1_000), algorithm(steps=8, output=output)

    def run():
        return dpjax.run(given, left, key=jax.random.key(0), checkpoint=tmp_path / "run")

    first = run()
    once = len(mapped_rows)
    assert once <= 2 * len(set(mapped_rows)) + 2
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


def test_records_in_several_places_are_not_copied_beside_one_another(
    arrays, tables, mapped_rows, tmp_path, monkeypatch
):
    written = []
    append = _files.Scratch.append
    monkeypatch.setattr(
        _files.Scratch,
        "append",
        lambda scratch, rows: written.append(rows) or append(scratch, rows),
    )
    left = loaded(tables["npy"], memory_limit=1_000)
    elsewhere = dataclasses.replace(left, x=Rows(np.asarray(loaded(tables["npy"]).x)))
    assert same(solved(elsewhere), solved(loaded(tables["npy"])))
    assert {rows.ndim for rows in written} == {1}  # the labels, by the second pass


def test_a_minimizer_that_is_sought_in_many_passes_prepares_records_once(tables, mapped_rows):
    given = dpjax.baselines.output_perturbation(
        dpjax.objectives.logistic_l2(0.1), BUDGET, data_size=N, dimension=4
    )
    of_disk = loaded(tables["npy"]), loaded(tables["npy"], memory_limit=1_000)
    # Without their declaration, so that labels may be numbers.
    held, left = (dataclasses.replace(data, preprocessing=None) for data in of_disk)
    assert same(solved(held, given), solved(left, given))
    assert 0 <= len(mapped_rows) - 2 * len(set(mapped_rows)) <= 2


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
    with pytest.raises(ValueError, match=message):
        dpjax.datasets.load(path, label=label, bounds={"a": [0, 1]}, memory_limit=1_000)
