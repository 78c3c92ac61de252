"""``dpjax run`` in several processes: each under a guard that says in one line why it ended."""

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from dpjax import distributed
from dpjax._processes import ProcessLost

# Holds, in the process that trains, the descriptor that closes when its guard is gone.
_GUARDED = "DPJAX_GUARD"
_LOST = (
    "another process of this run ended or cannot be reached, so this one ends. A ledger shows the "
    "run as spent once it began; with --checkpoint the same commands go on from it and spend "
    "nothing more."
)
_LINGER_SECONDS = 1.0


def add_arguments(one: argparse.ArgumentParser) -> None:
    """Adds the options of several processes."""
    one.add_argument(
        "--distributed",
        action="store_true",
        help="one of several processes, told by Slurm, Open MPI or a TPU pod which one it is",
    )
    one.add_argument(
        "--coordinator",
        metavar="HOST:PORT",
        help="one of several processes: where process 0 is reached, with --processes, --process",
    )
    one.add_argument("--processes", type=int, metavar="N", help="how many there are")
    one.add_argument("--process", type=int, metavar="I", help="which this is, from 0 on")


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
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "dpjax", *sys.argv[1:]]
    environment = {**os.environ, _GUARDED: str(reading)}
    with subprocess.Popen(command, env=environment, pass_fds=[reading]) as below:
        os.close(reading)
        while True:
            try:
                status = below.wait()
                break
            except KeyboardInterrupt:  # the terminal has sent it below as well
                continue
    os.close(writing)
    if status < 0:
        print(f"dpjax: {_LOST}", file=sys.stderr)
        return 1
    return status


def _work(arguments: argparse.Namespace, work: Callable[[], int]) -> int:
    _end_with(int(os.environ[_GUARDED]))
    try:
        distributed.initialize(arguments.coordinator, arguments.processes, arguments.process)
        _hush(distributed.leads())
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
        os.read(descriptor, 1)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _hush(leads: bool) -> None:
    """Leaves standard output to process 0, and standard error to Python: libraries print there."""
    sys.stdout.flush()
    sys.stderr.flush()
    nothing = os.open(os.devnull, os.O_WRONLY)
    sys.stdout = os.fdopen(os.dup(1 if leads else nothing), "w", buffering=1)
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
    for descriptor in (1, 2):
        os.dup2(nothing, descriptor)


def _leave(status: int, message: str) -> None:
    """Ends at once: JAX's own end waits for processes that may be gone."""
    print(f"dpjax: {message}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    if distributed.leads():
        time.sleep(_LINGER_SECONDS)  # the others may be about to say the same
    os._exit(status)
