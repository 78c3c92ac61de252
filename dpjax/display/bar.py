"""The one progress bar: live on a terminal, a line in a notebook, elsewhere a line a minute."""

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO, TypeGuard, cast

from rich import progress as _rich
from rich.console import Console
from rich.file_proxy import FileProxy

# Seconds between two drawings where no terminal is.
_NOTEBOOK_SECONDS = 0.2
_LOG_SECONDS = 60.0
# Characters of a line where no terminal is.
_WIDTH = 100
# The time left is estimated from the last ten minutes: a training may take one.
_ESTIMATE_SECONDS = 600.0
# Any error at all: the stream may be a stranger's, and budget is spent on what would be lost.
_SILENT = contextlib.suppress(Exception)


@contextlib.contextmanager
def patient() -> Iterator[None]:
    """Ctrl-C waits until what is done within has ended; a second one does not wait.

    For what JAX compiles: it leaves a compilation that Ctrl-C interrupts to its threads, and where
    Python ends before they do it crashes.
    """
    usual = signal.getsignal(signal.SIGINT)
    if not _is_usual(usual):
        yield
        return
    pressed = []

    def note(number: int, frame: Any) -> None:
        if pressed:
            usual(number, frame)
        pressed.append(number)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
    if pressed:
        raise KeyboardInterrupt


class Bar:
    """A progress bar on standard error, or nothing; a context manager.

    Args:
      shown: None shows it on a terminal and in a notebook; True elsewhere too, as one line a
        minute; False nowhere.

    In a notebook it is on standard output. Its stream is that of the moment when it is made, and
    whatever that does, nothing is raised: a bar must not cost the result. Ctrl-C is: of one that
    was lost, the next ``update`` or ``advance`` raises ``KeyboardInterrupt``.
    """

    def __init__(self, title: str, total: int, *, shown: bool | None = None, keep: bool = True):
        # A notebook shows standard error on red, as what went wrong.
        notebook = _is_notebook(sys.stdout) and _is_notebook(sys.stderr)
        self._stream, self._keep = _Stream(sys.stdout if notebook else sys.stderr), keep
        self._handler: Any = None
        self._interrupted = False
        terminal = self._stream.isatty()
        self.shown = (notebook or terminal) if shown is None else shown
        self._seconds = _NOTEBOOK_SECONDS if notebook else _LOG_SECONDS
        self._start, self._end = ("\r", "") if notebook else ("", "\n")
        console = Console(
            file=cast(TextIO, self._stream),
            force_terminal=terminal,
            force_jupyter=False,  # it would ask for ipywidgets
            width=None if terminal else _WIDTH,
        )
        live = self.shown and terminal and not console.is_dumb_terminal
        self._progress = _rich.Progress(
            _rich.TextColumn("{task.description}", markup=False),
            _rich.BarColumn(bar_width=None),
            _rich.MofNCompleteColumn(),
            _rich.TimeElapsedColumn(),
            _rich.TextColumn("ETA"),
            _rich.TimeRemainingColumn(),
            console=console,
            speed_estimate_period=_ESTIMATE_SECONDS,
            transient=not keep,
            # What is printed meanwhile goes where it was sent.
            redirect_stdout=False,
            redirect_stderr=False,
            disable=not live,
        )
        self._task = self._progress.add_task(title, total=total)
        self._live, self._drawn, self._width = live, time.monotonic(), 0
        if notebook:
            self._drawn -= self._seconds

    def __enter__(self) -> "Bar":
        before = signal.getsignal(signal.SIGINT)
        if _is_usual(before):
            self._handler = before
            signal.signal(signal.SIGINT, self._note)
        try:
            self._begin()
        except BaseException:
            self._restore()
            raise
        return self

    def _restore(self) -> None:
        # Another may have been set meanwhile.
        if self._handler is not None and signal.getsignal(signal.SIGINT) == self._note:
            signal.signal(signal.SIGINT, self._handler)

    def _note(self, number: int, frame: Any) -> None:
        # What is raised inside of JAX's callback of the garbage collector Python prints and drops,
        # and in a loop that collects often that is where most signals arrive.
        self._interrupted = True
        self._handler(number, frame)

    def _check(self) -> None:
        if self._interrupted:
            self._interrupted = False
            raise KeyboardInterrupt

    def __exit__(self, *error: object) -> None:
        self._restore()
        if self._live:
            self._progress.stop()
        elif self.shown and self._keep:
            self._write("\n")
        else:
            self._erase()

    def update(self, completed: float, description: str | None = None) -> None:
        """Moves the bar to ``completed``, and says something else if there is a description."""
        self._progress.update(self._task, completed=completed, description=description)
        self._draw()
        self._check()

    def advance(self, more: float, description: str | None = None) -> None:
        """Moves the bar by ``more``, and says something else if there is a description."""
        self.update(self._progress.tasks[0].completed + more, description)

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Takes a bar that is not kept off the screen while something else is printed."""
        if self._live:
            self._progress.stop()
        self._erase()
        yield
        self._begin()

    def _begin(self) -> None:
        if self._live:
            self._progress.start()
        else:
            self._draw()

    def _draw(self) -> None:
        due = time.monotonic() - self._drawn >= self._seconds
        if self.shown and not self._live and due:
            self._write(self._end)

    def _write(self, end: str) -> None:
        with self._progress.console.capture() as drawn:
            self._progress.console.print(self._progress.get_renderable())
        line = drawn.get().strip()
        self._stream.write(f"{self._start}{line.ljust(self._width)}{end}")
        self._stream.flush()
        self._drawn = time.monotonic()
        self._width = len(line) if self._start else 0

    def _erase(self) -> None:
        if self._width:
            self._stream.write(f"\r{' ' * self._width}\r")
            self._width = 0


class _Stream:
    """A stream that never raises."""

    def __init__(self, stream: Any):
        # Not looked up at each write: while a bar is live, sys.stderr may be a stand-in that
        # writes back to the bar.
        self._stream = stream
        self.encoding = getattr(stream, "encoding", None)

    def write(self, text: str) -> int:
        with _SILENT:
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with _SILENT:
            self._stream.flush()

    def isatty(self) -> bool:
        # Within another of rich's displays a live bar would be drawn over it.
        with _SILENT:
            return bool(self._stream.isatty()) and not isinstance(self._stream, FileProxy)
        return False


def _is_notebook(stream: Any) -> bool:
    iostream = sys.modules.get("ipykernel.iostream")
    return iostream is not None and isinstance(stream, iostream.OutStream)


def _is_usual(handler: Any) -> TypeGuard[Callable[[int, Any], object]]:
    """Whether Ctrl-C does what Python does, here where it can be told to do something else."""
    # Python sets handlers in its main thread alone, and a caller's own is none of ours.
    usual = handler is signal.default_int_handler or isinstance(
        getattr(handler, "__self__", None), Bar
    )
    return usual and threading.current_thread() is threading.main_thread()
