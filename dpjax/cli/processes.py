"""``dpjax run`` in several processes: each under a guard that says in one line why it ended."""

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import jax

from dpjax import distributed
from dpjax.cli.options import Options
from dpjax.placement.processes import ProcessLost

# Holds, in the process that trains, the descriptor of its connection to its guard: the guard hears
# by it that the processes have joined, and the process that its guard is gone.
_GUARDED = "DPJAX_GUARD"
_JOINED = b"joined"
_NOT_JOINED = (
    "the training did not begin: another process of this run ended, or did not join in time. See "
    "that each was started, with one free HOST:PORT and one number of processes; where they "
    "start further apart, wait longer by --start-timeout SECONDS."
)
_SPENT = (
    "A ledger shows the run as spent once it began; with --checkpoint the same commands go on from "
    "it and spend nothing more."
)
_LOST = f"another process of this run ended or cannot be reached, so this one ends. {_SPENT}"
_KILLED = f"this process was killed; the system does so where memory runs out. {_SPENT}"
_LINGER_SECONDS = 1.0
OPTIONS: Options = {
    "--distributed": {
        "action": "store_true",
        "help": "one of several processes, told by Slurm, Open MPI or a TPU pod which one it is",
    },
    "--coordinator": {
        "metavar": "HOST:PORT",
        "help": "one of several processes: where process 0 is reached, with --processes, --process",
    },
    "--processes": {"type": int, "metavar": "N", "help": "how many there are"},
    "--process": {"type": int, "metavar": "I", "help": "which this is, from 0 on"},
    "--start-timeout": {
        "type": float,
        "metavar": "SECONDS",
        "default": distributed.START_SECONDS,
        "help": "how long several processes wait for one another at the start (default: "
        "%(default)g); more where they start further apart",
    },
}


def asked_for(arguments: argparse.Namespace) -> bool:
    """Returns whether this is one of several processes.

    Raises:
      ValueError: for some of the options that go together.
    """
    given = [arguments.coordinator, arguments.processes, arguments.process]
    missing = [value is None for value in given]
    if any(missing) and not all(missing):
        raise ValueError("--coordinator, --processes and --process go together; give all three.")
    if not all(missing) and not 0 <= arguments.process < arguments.processes:
        raise ValueError(
            f"--process must be from 0 to {arguments.processes - 1}, got {arguments.process}."
        )
    return arguments.distributed or not all(missing)


def guarded(arguments: argparse.Namespace, work: Callable[[], int]) -> int:
    """Returns the status of ``work``, which runs in a process below this one.

    Where another process of a training dies, JAX aborts this one amid a trace of its own: the guard
    is what is left to say so.
    """
    if _GUARDED in os.environ:
        return _work(arguments, work)
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "dpjax", *sys.argv[1:]]
    environment = {**os.environ, _GUARDED: str(theirs.fileno())}
    with subprocess.Popen(command, env=environment, pass_fds=[theirs.fileno()]) as below:
        theirs.close()
        while True:
            try:
                status = below.wait()
                break
            except KeyboardInterrupt:  # the terminal has sent it below as well
                continue
    with ours:
        ours.setblocking(False)
        heard = b""
        with contextlib.suppress(BlockingIOError):
            heard = ours.recv(len(_JOINED))
    if status >= 0:
        return status
    reason = _LOST if heard == _JOINED else _NOT_JOINED
    print(f"dpjax: {_KILLED if status == -signal.SIGKILL else reason}", file=sys.stderr)
    return 1


def _work(arguments: argparse.Namespace, work: Callable[[], int]) -> int:
    guard = int(os.environ[_GUARDED])
    _end_with(guard)
    _hush()
    try:
        distributed.initialize(
            arguments.coordinator, arguments.processes, arguments.process, arguments.start_timeout
        )
        os.write(guard, _JOINED)
        if not distributed.leads():
            sys.stdout = os.fdopen(os.dup(1), "w")  # which leads nowhere by now
        return work()
    except ProcessLost:
        _leave(1, _LOST)
    except (ValueError, ImportError, OSError) as error:
        _leave(2, str(error))
    except KeyboardInterrupt as stop:
        _leave(130, str(stop) or "interrupted")
    return 1


def _end_with(descriptor: int) -> None:
    """Ends this process when the one above is gone, which holds the other end."""

    def wait() -> None:
        with contextlib.suppress(ConnectionResetError):  # it has not read what was written
            os.read(descriptor, 1)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _hush() -> None:
    """Leaves standard output and error to Python: libraries print there, and JAX its traces."""
    sys.stdout.flush()
    sys.stderr.flush()
    sys.stdout = os.fdopen(os.dup(1), "w", buffering=1)
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
    nothing = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nothing, descriptor)


def _leave(status: int, message: str) -> None:
    """Ends at once: JAX's own end waits for processes that may be gone."""
    print(f"dpjax: {message}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    if jax.distributed.is_initialized() and distributed.leads():
        time.sleep(_LINGER_SECONDS)  # the others may be about to say the same
    os._exit(status)
