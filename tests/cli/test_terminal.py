"""On a terminal: every bar moves and ends, Ctrl-C stops what runs, a broken stream costs nothing.

Run as a script, this file is the child that a test watches on a pseudo-terminal.
"""

import contextlib
import fcntl
import io
import os
import pathlib
import pty
import re
import select
import shlex
import signal
import struct
import subprocess
import sys
import termios
import time
import tomllib
import types

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from rich import progress as rich_progress
from rich.console import Console

import dpjax
from dpjax.cli import main
from dpjax.display import bar
from dpjax.driver import progress

ROOT = pathlib.Path(__file__).parents[2]
# Far above what anything here takes; it fails the test.
DEADLINE = 300.0
BUDGET = dpjax.PrivacyBudget(1.0, 1e-3)
STEPS, ENDLESS = 200, 2_000_000
CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COUNT = re.compile(r"(\d+)/(\d+)")


# The child.


def records(rows=60):
    x = np.random.default_rng(0).normal(size=(rows, 2)).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True), np.where(x[:, 0] > 0, 1.0, -1.0)


def run(endless=False, **more):
    algorithm = dpjax.dp_gradient_descent(
        dpjax.objectives.logistic(),
        BUDGET,
        data_size=60,
        dimension=2,
        steps=ENDLESS if endless else STEPS,
    )
    more = more or {"ledger": "book", "label": "made up"}
    return dpjax.run(algorithm, records(), key=dpjax.random_key(), **more)


def fit(endless=False):
    x, y = records()
    dpjax.fit(
        lambda params, x: x @ params,
        "cross_entropy",
        (x, y > 0),
        BUDGET,
        optax.sgd(0.1),
        key=dpjax.random_key(),
        batch_size=20,
        steps=ENDLESS if endless else STEPS,
        accountant="rdp",  # of two million batches in no time
        params=jnp.zeros((2, 2)),
    )


def audit(endless=False):
    audits = dpjax.auditing.registry.AUDITS
    for name in set(audits) - {"gaussian", "ball-2"}:
        del audits[name]
    main(["audit", "--all", "--runs", str(10**9 if endless else 10**5)])


def compare(endless=False):
    def made(chosen, folder, advance):
        total = chosen.trainings
        for _ in range(10**9 if endless else total):
            jnp.ones(2).sum().block_until_ready()
            advance("training", total / 10**5 if endless else 1)
        return dpjax.comparison.Results(())

    dpjax.comparison.Comparison.run = made
    main(["compare", "--data", "randhie"])


COMMANDS = {"run": run, "fit": fit, "audit": audit, "compare": compare}


def child(names):
    dpjax.Ledger.create("book", BUDGET)
    for name in names:
        print(f"<{name}>")
        COMMANDS[name]()
        print(f"<{name} ended>", flush=True)
    os.remove("book")
    dpjax.Ledger.create("book", BUDGET)
    for name in names:
        print(f"<endless {name}>")
        try:
            COMMANDS[name](endless=True)
        except KeyboardInterrupt as stop:
            print(f"dpjax: {stop}")
        print(f"<endless {name} ended>", flush=True)


# The watcher.


# A session's first process takes the terminal for its own, so that Ctrl-C reaches it. In Python a
# moment before, as code between fork and exec is none for a process with JAX's threads.
TAKE_TERMINAL = """
import fcntl, os, signal, sys, termios
signal.signal(signal.SIGINT, signal.SIG_DFL)  # where the tests run in the background it is ignored
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


class Terminal:
    """A process on a pseudo-terminal, and all that it has shown."""

    def __init__(self, arguments, folder, path=()):
        at = os.pathsep.join([*map(str, path), str(ROOT), os.environ.get("PYTHONPATH", "")])
        kept = {k: v for k, v in os.environ.items() if k not in {"COLUMNS", "NO_COLOR"}}
        self.screen, device = pty.openpty()
        fcntl.ioctl(device, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 90, 0, 0))
        self._process = subprocess.Popen(
            [sys.executable, "-c", TAKE_TERMINAL, *arguments],
            stdin=device,
            stdout=device,
            stderr=device,
            cwd=folder,
            env={**kept, "PYTHONPATH": at, "TERM": "xterm-256color"},
            start_new_session=True,
        )
        os.close(device)
        self._deadline, self._shown = time.monotonic() + DEADLINE, b""

    @property
    def text(self):
        return CODES.sub("", self._shown.decode(errors="replace"))

    def read(self):
        """Waits for more, and returns whether there is any."""
        ready, _, _ = select.select([self.screen], [], [], self._deadline - time.monotonic())
        assert ready, f"nothing more in {DEADLINE} s after: {self.text[-2000:]!r}"
        try:
            piece = os.read(self.screen, 65_536)
        except OSError:  # the other end is closed
            piece = b""
        self._shown += piece
        return bool(piece)

    def until(self, seen):
        """Reads until ``seen(text)``."""
        while not seen(self.text):
            assert self.read(), f"ended after: {self.text[-2000:]!r}"
            assert time.monotonic() < self._deadline, self.text[-2000:]

    def ctrl_c(self):
        os.write(self.screen, b"\x03")

    def status(self):
        """Reads to the end and returns the exit status."""
        while self.read():
            assert time.monotonic() < self._deadline, self.text[-2000:]
        return self._process.wait(DEADLINE)

    def close(self):
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        os.close(self.screen)


@pytest.fixture
def terminal(tmp_path):
    with contextlib.ExitStack() as stack:

        def begin(arguments, path=()):
            begun = Terminal(arguments, tmp_path, path)
            stack.callback(begun.close)
            return begun

        yield begin


def oldest():
    (bound,) = (
        line.removeprefix("rich>=")
        for line in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
        if line.startswith("rich")
    )
    return bound


@pytest.fixture
def oldest_rich(tmp_path_factory):
    """Where the oldest rich that dpjax allows is found."""
    folder = tmp_path_factory.mktemp("rich")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--target", folder, f"rich=={oldest()}"],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.skip(f"no registry to take rich {oldest()} from: {done.stderr[-200:]}")
    return folder


def counts(text):
    """The different counts that a bar has shown, in order."""
    return list(dict.fromkeys(int(done) for done, _ in COUNT.findall(text)))


def readme():
    """The arguments of the README's first command."""
    text = (ROOT / "README.md").read_text()
    (first, *_) = re.findall(r"^```sh\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    words = shlex.split(first)
    return words[words.index(".venv/bin/dpjax") + 1 :]


@pytest.mark.ci
def test_the_readmes_first_command_ends_on_a_terminal(terminal, tmp_path):
    shown = terminal(["-m", "dpjax", *readme()])
    assert shown.status() == 0, shown.text
    assert counts(shown.text)[0] == 0 and 32 in counts(shown.text)
    assert "differentially private" in shown.text and "certificate" in shown.text
    assert (tmp_path / "dpjax-run.png").exists()


@pytest.mark.parametrize(
    "names", [["run", "compare"], pytest.param(["fit", "audit"], marks=pytest.mark.ci)]
)
def test_all_bars_move_and_end_and_ctrl_c_is_obeyed(terminal, names):
    seen_through(terminal([__file__, *names]), names)


@pytest.mark.ci
def test_bars_move_and_end_with_the_oldest_rich_too(terminal, oldest_rich):
    """Those of two commands: all bars are of one class."""
    names = ["run", "compare"]
    seen_through(terminal([__file__, *names], [oldest_rich]), names)


def seen_through(shown, names):
    """Reads all that a child shows, and stops what has no end."""

    def between(name):
        return shown.text.partition(f"<{name}>")[2].partition(f"<{name} ended>")[0]

    totals = {"run": STEPS, "fit": STEPS, "audit": 2, "compare": 60}
    for name in names:
        shown.until(lambda text, name=name: f"<{name} ended>" in text)
        assert {0, totals[name]} <= set(counts(between(name))), between(name)
    for name in names:
        # A bar that moves shows other things; of an audit its count stays, but not its length.
        shown.until(
            lambda text, name=name: (
                len({line.strip() for line in re.split(r"[\r\n]", between(f"endless {name}"))}) > 4
            )
        )
        shown.ctrl_c()
        shown.until(lambda text, name=name: f"<endless {name} ended>" in text)
        assert "interrupted" in between(f"endless {name}")
    assert shown.status() == 0
    spent = r"interrupted after step \d+ of 2000000; the budget of the whole run is spent"
    assert "run" not in names or re.search(spent, between("endless run"))
    again = "run the same command again to continue"
    assert "compare" not in names or again in between("endless compare")


# In process.


@pytest.fixture
def interruptible():
    """The usual handler, which is not set where the tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_ctrl_c_that_was_dropped_is_raised_by_the_next_update(interruptible):
    """JAX's callback of the garbage collector runs often, and Python drops what it raises."""
    with bar.Bar("DP-TR", 3, shown=False) as shown:
        shown.advance(1)
        for again in (shown.advance, shown.update):
            with contextlib.suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            with pytest.raises(KeyboardInterrupt):
                again(1)
            again(1)  # once
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_waits_while_jax_compiles_and_a_second_one_does_not(interruptible):
    ended = []
    for presses in (1, 2):
        with pytest.raises(KeyboardInterrupt), bar.patient():
            for _ in range(presses):
                signal.raise_signal(signal.SIGINT)
            ended.append(presses)
    assert ended == [1] and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_ones_own_stays(interruptible):
    seen = []
    signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    with bar.Bar("DP-TR", 3, shown=False) as shown:
        signal.raise_signal(signal.SIGINT)
        shown.advance(1)
    assert seen == [1]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with bar.Bar("DP-TR", 3, shown=False), bar.Bar("inner", 3, shown=False):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@pytest.mark.parametrize("seconds", [0.3, 5.0, 60.0])
def test_a_slow_training_is_asked_for_one_step_at_a_time(seconds, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(progress, "time", types.SimpleNamespace(monotonic=lambda: clock[0]))
    pace, done, pieces = progress._Pace(6_400, frozenset()), 0, []
    while done < 50:
        pieces.append(pace.next(done) - done)
        done += pieces[-1]
        clock[0] += seconds * pieces[-1]
    assert set(pieces) == {1}


def test_a_quick_training_is_asked_for_few_times(monkeypatch):
    monkeypatch.setattr(progress, "time", types.SimpleNamespace(monotonic=lambda: 0.0))
    pace, done, visited = progress._Pace(6_400, frozenset({55, 3_333})), 0, []
    while done < 6_400:
        done = pace.next(done)
        visited.append(done)
    assert {55, 3_333, 6_400} <= set(visited) and len(visited) < 64 + 2 + 8
    assert max(np.diff(visited)) == 100


class Broken(io.StringIO):
    """A terminal that fails whatever is done with it."""

    def __init__(self, error):
        super().__init__()
        self._error = error

    def isatty(self):
        return True

    def write(self, text):
        raise self._error

    flush = write


def closed():
    stream = io.StringIO()
    stream.close()
    return stream


STREAMS = {
    "none": lambda: None,
    "closed": closed,
    "hung up": lambda: Broken(OSError(5, "Input/output error")),
    "ASCII": lambda: Broken(UnicodeEncodeError("ascii", "━", 0, 1, "ordinal not in range(128)")),
    "reentrant": lambda: Broken(RuntimeError("reentrant call inside")),
    "stranger": lambda: Broken(LookupError("of its own")),
    "no stream": object,
}


@pytest.mark.parametrize("shown", [None, True])
@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_that_cannot_be_drawn_on_costs_no_result(name, shown, monkeypatch):
    monkeypatch.setattr(sys, "stderr", STREAMS[name]())
    assert int(run(progress=shown).steps) == STEPS


def test_a_run_inside_another_display_ends(monkeypatch):
    class Screen(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", Screen())
    outer = Console(file=sys.stderr, force_terminal=True)
    with rich_progress.Progress(console=outer):
        assert type(sys.stderr).__name__ == "FileProxy"
        assert int(run(progress=None).steps) == STEPS
        assert int(run(progress=True).steps) == STEPS


def test_a_log_has_a_line_a_minute_and_what_is_printed_goes_where_it_was_sent(monkeypatch, capfd):
    clock = [0.0]
    monkeypatch.setattr(bar, "time", types.SimpleNamespace(monotonic=lambda: clock[0]))
    with bar.Bar("[dp-tr]", 90, shown=True, keep=False) as shown:
        for second in range(0, 301, 10):
            clock[0] = float(second)
            shown.update(second / 10)
            with shown.away():
                print("result")
    out, err = capfd.readouterr()
    assert set(out.splitlines()) == {"result"}
    assert counts(err) == [6, 12, 18, 24, 30]
    assert len(err.splitlines()) == 5 and all("[dp-tr]" in line for line in err.splitlines())


def test_without_a_terminal_a_bar_is_shown_on_request_only(capfd):
    run(progress=None)
    assert capfd.readouterr().err == ""
    run(progress=True)
    assert counts(capfd.readouterr().err) == [STEPS]


@pytest.mark.ci
def test_in_a_notebook_the_bar_moves_by_default_and_needs_no_other_package(tmp_path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    source = f"""
import sys, warnings
sys.path[:0] = {[str(ROOT), str(ROOT / "tests" / "harness"), os.path.dirname(__file__)]!r}
sys.modules["ipywidgets"] = None
warnings.simplefilter("error")
import test_terminal
from dpjax.display import bar
bar._NOTEBOOK_SECONDS = 0.0
test_terminal.run(progress=None)
"""
    cell = nbformat.v4.new_code_cell(source)
    notebook = nbformat.v4.new_notebook(cells=[cell])
    nbclient.NotebookClient(notebook, timeout=DEADLINE, kernel_name="python3").execute()
    shown = "".join(out["text"] for out in cell.outputs if out.get("name") == "stdout")
    assert shown.startswith("\r") and shown.endswith("\n") and shown.count("\n") == 1
    assert len(counts(shown)) > 10 and counts(shown)[0] == 0 and counts(shown)[-1] == STEPS


if __name__ == "__main__":
    child(sys.argv[1:])
