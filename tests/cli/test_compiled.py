"""What is kept of compiled programs holds no record and no key, and gives the same bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import compilation_cache

import dpjax
from dpjax.cli import compiled, main

ROWS, SEED = 400, 0x9A3C_5EED_1CEB_00DA
OPTIONS = ["--label", "y", "--classes", "0,1", "--seed", str(SEED)]
RUNS = {
    "dp-gd": ["run", "dp-gd", "--steps", "2"],
    "dp-tr": ["run", "dp-tr", "--steps", "2", "--estimate", ".1", "--count"],
    "dp-adam": ["run", "dp-adam", "--steps", "4", "--batch-size", "50", "--exact"],
    "repeats": ["run", "dp-tr", "--steps", "2", "--repeats", "2"],
    "dp-str": ["run", "dp-str", "--steps", "2", "--batch-size", "50"],
    "tune": ["tune", "dp-gd", "--trials", "2", "--grid", "steps=2", "step_size=1,2"],
}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of its own, in which programs that this process has compiled before are not."""
    names = ("dir", "min_compile_time_secs", "min_entry_size_bytes")
    names = ["jax_compilation_cache_dir", *(f"jax_persistent_cache_{name}" for name in names[1:])]
    before = {name: getattr(jax.config, name) for name in names}
    monkeypatch.setenv("DPJAX_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(compiled.OFF)
    jax.config.update(names[0], None)  # the tests' own
    jax.clear_caches()
    compilation_cache.reset_cache()
    cache = tmp_path / "cache"
    cache.mkdir()
    yield cache
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def table(folder):
    x = np.random.default_rng(0).uniform(-1, 1, (ROWS, 3))
    path = folder / "marked.csv"
    lines = [",".join([*map(repr, row.tolist()), str(int(row[0] > 0))]) for row in x]
    path.write_text("\n".join(["a,b,c,y", *lines]))
    bounds = folder / "bounds.json"
    bounds.write_text('{"a": [-1, 1], "b": [-1, 1], "c": [-1, 1]}')
    return x, ["--data", str(path), "--bounds", str(bounds), *OPTIONS]


def patterns(*arrays):
    """Eight bytes that no program holds by chance: pairs of neighbours, and numbers in float64."""
    for array in arrays:
        for layout in (array, array.T):
            flat = np.ascontiguousarray(layout).ravel()
            yield from (flat[i : i + 2].astype(np.float32).tobytes() for i in range(len(flat) - 1))
            yield from (value.tobytes() for value in flat.astype(np.float64))


def holding(folder, wanted):
    """The names of programs that hold one of the patterns."""
    wanted, found, seen = set(wanted), [], 0
    for path in folder.glob("*/*-cache"):
        seen += 1
        held = compilation_cache.decompress_executable(path.read_bytes())
        found += [path.name] * any(held[i : i + 8] in wanted for i in range(len(held) - 7))
    return found, seen


OTHERS = [pytest.param(name, marks=pytest.mark.ci) for name in RUNS if name != "dp-gd"]


@pytest.mark.parametrize("name", ["dp-gd", *OTHERS])
def test_no_program_holds_records_or_the_key(name, cache, tmp_path):
    x, data = table(tmp_path)
    assert main([*RUNS[name], *data]) == 0
    rows = np.asarray(dpjax.datasets.load(data[1], label="y", classes=[0, 1], bounds=data[3]).x)
    key = np.array([SEED >> 32, SEED % 2**32], np.uint32)
    found, seen = holding(cache, {*patterns(x, rows), key.tobytes(), key[::-1].tobytes()})
    assert seen > 5 and not found
    # One that closes over the records holds them, and one that closes over a key that.
    jax.jit(lambda w: jnp.sum(jnp.cos(rows * w)))(1.0)
    assert holding(cache, patterns(rows))[0]
    root = jax.random.wrap_key_data(jnp.asarray(key))
    jax.jit(lambda w: w + jax.random.key_data(root))(jnp.arange(2, dtype=jnp.uint32))
    assert len(holding(cache, {key.tobytes()})[0]) == 1


def test_a_second_start_takes_them_and_gives_the_same_bits(cache, tmp_path, capsys):
    data = [*RUNS["dp-gd"], *table(tmp_path)[1], "--save"]
    said = []
    kept = 0
    for name in ("first", "second", "without"):
        jax.clear_caches()
        assert main([*data, str(tmp_path / name), *["--no-cache"] * (name == "without")]) == 0
        said.append(capsys.readouterr().err)
        count = len(list(cache.glob("*/*-cache")))
        if name == "without":
            assert count == kept
        kept = count
    one, two, three = ((tmp_path / name).read_bytes() for name in ("first", "second", "without"))
    assert one == two == three
    assert ["compiled programs are kept in" in words for words in said] == [True, False, False]
    (folder,) = cache.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_of_others_is_not_used(cache, tmp_path, capsys):
    folder = cache / f"compiled-{compiled._machine()}"
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    assert main([*RUNS["dp-gd"], *table(tmp_path)[1]]) == 0
    assert "chmod 700" in capsys.readouterr().err and not list(folder.iterdir())
