"""Fixtures that several test files share."""

import contextlib
import gc
import itertools
import os
import pathlib
import threading

import blas  # noqa: F401
import chex
import compiling
import jax
import pytest
import shapes
from factories import Crash

from dpjax.cli import main as command_line
from dpjax.driver import progress, resume

# Nothing may broadcast a vector against a matrix silently, here or in processes that tests start.
jax.config.update("jax_numpy_rank_promotion", "raise")
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"
# No test, nor a process that one starts, leaves programs in the user's cache.
os.environ["DPJAX_NO_CACHE"] = "1"
shapes.install()
compiling.install()
compiling.share()

# A compiled program takes about 14 mappings of memory, of which Linux allows a process 65,530; one
# more, and the compiler crashes. Programs shared by the tests of a file are rarely older than this.
MAPPINGS, EVERY = 25_000, 20
# Files whose tests share programs with those of the same parameter ``name``, an algorithm.
BY_NAME = {"test_contract", "test_driver"}
COMPILED = "/backend_compile_duration"
compiled = []
_tests = itertools.count(1)


def pytest_collection_modifyitems(items):
    """Orders the tests of a file so that those that share compiled programs are neighbours."""
    order = {item.path: place for place, item in enumerate(items)}

    def place(item):
        name = item.callspec.params.get("name", "") if hasattr(item, "callspec") else ""
        mark = compiling.mark_of(item) or ""
        return order[item.path], mark, name if item.path.stem in BY_NAME else ""

    items.sort(key=place)


def pytest_collection_finish(session):
    """Lets the collector of garbage look at what tests leave, and not at all modules each time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def pytest_addoption(parser):
    what = "print the tests whose programs take longest to compile"
    parser.addoption("--compile-seconds", action="store_true", help=what)


def pytest_configure(config):
    """Adds up, where that is asked for, the seconds that XLA takes."""
    if config.getoption("--compile-seconds"):
        jax.monitoring.register_event_duration_secs_listener(
            lambda event, seconds, **_: compiled.append(seconds) if COMPILED in event else None
        )


def pytest_runtest_makereport(item):
    """Notes with each part of a test what was compiled since the part before."""
    if compiled:
        item.user_properties.append(("compile seconds", sum(compiled)))
        compiled.clear()


def pytest_terminal_summary(terminalreporter, config):
    """Prints the tests that take longest to compile, with xdist as well."""
    if config.getoption("--compile-seconds"):
        found = {}
        for report in itertools.chain(*terminalreporter.stats.values()):
            parts = [seconds for name, seconds in getattr(report, "user_properties", ())]
            found[getattr(report, "nodeid", "")] = sum(parts)
        terminalreporter.section(f"{sum(found.values()):.1f} s to compile")
        for test in sorted(filter(found.get, found), key=found.get, reverse=True)[:30]:
            terminalreporter.line(f"{found[test]:.2f} s {test}")


@pytest.fixture(autouse=True)
def optimisation(request):
    """Compiles a test's programs as its mark says."""
    compiling.choose(compiling.mark_of(request.node))


@pytest.fixture(autouse=True)
def few_compiled_programs():
    """Drops the compiled programs of a process before they are too many for it."""
    yield
    mappings = pathlib.Path("/proc/self/maps")
    counted = next(_tests) % EVERY == 0 and mappings.exists()
    if counted and mappings.read_bytes().count(b"\n") > MAPPINGS:
        jax.clear_caches()


@pytest.fixture(autouse=True)
def no_traces_yet():
    """A test that runs twice in one process may trace its functions again."""
    chex.clear_trace_counter()


@pytest.fixture
def crash(monkeypatch):
    """Lets a run die before the piece that begins at a step or later; None lets it live."""
    whole = progress._advance

    def at(step, error=Crash):
        def advance(bound, carry, until):
            if int(carry.step) >= step:
                raise error
            return whole(bound, carry, until)

        monkeypatch.setattr(progress, "_advance", whole if step is None else advance)

    monkeypatch.setattr(resume, "SAVE_SECONDS", 0.0)
    return at


@pytest.fixture
def meeting(monkeypatch):
    """Lets two threads wait for each other where both enter a function, or for a while in vain."""

    def at(place, name, timeout=1.0):
        whole, both = getattr(place, name), threading.Barrier(2)

        def entered(*args, **kwargs):
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(timeout)
            return whole(*args, **kwargs)

        monkeypatch.setattr(place, name, entered)

    return at


@pytest.fixture
def real_data():
    """The folder with the real ijcnn1 and covtype; skips where there is none."""
    if not os.environ.get("DPJAX_DATA"):
        pytest.skip("set DPJAX_DATA to the folder that holds ijcnn1.npz and covtype.npz")
    return pathlib.Path(os.environ["DPJAX_DATA"])


@pytest.fixture
def no_data(monkeypatch, tmp_path):
    """A machine that has no data set and no network; returns its empty cache folder."""

    def offline(*args, **kwargs):
        raise OSError("no route to host")

    cache = tmp_path / "cache"
    monkeypatch.delenv("DPJAX_DATA", raising=False)
    monkeypatch.setenv("DPJAX_CACHE", str(cache))
    monkeypatch.setattr("dpjax.datasets.registry._download", offline)
    sklearn_datasets = pytest.importorskip("sklearn.datasets")
    monkeypatch.setattr(sklearn_datasets, "fetch_covtype", offline)
    return cache


@pytest.fixture
def pictures(monkeypatch):
    """The figures that are written while the test runs, by the name of their file."""
    figure = pytest.importorskip("matplotlib.figure")
    save, saved = figure.Figure.savefig, {}

    def kept(self, path, **more):
        saved[pathlib.Path(path).stem] = self
        save(self, path, **more)

    monkeypatch.setattr(figure.Figure, "savefig", kept)
    return saved


@pytest.fixture
def call(capsys):
    """Runs the command line; returns its status, what it printed and what it warned."""

    def run(*argv):
        status = command_line([str(argument) for argument in argv])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run
