"""``dpjax run`` as one of several processes, which JAX joins and, where one is lost, aborts."""

import argparse
import os
import sys
import time
from collections.abc import Callable

import jax

from dpjax import distributed
from dpjax.cli.options import Options
from dpjax.placement.processes import ProcessLost

_LOST = (
    "another process of this run ended or cannot be reached, so this one ends. A ledger shows the "
    "run as spent once it began; with --checkpoint the same commands go on from it and spend "
    "nothing more."
)
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
    """Returns whether this is one of several processes; some of three options alone raise."""
    place = [arguments.coordinator, arguments.processes, arguments.process]
    missing = [value is None for value in place]
    if any(missing) and not all(missing):
        raise ValueError("--coordinator, --processes and --process go together; give all three.")
    if not all(missing) and not 0 <= arguments.process < arguments.processes:
        raise ValueError(
            f"--process must be from 0 to {arguments.processes - 1}, got {arguments.process}."
        )
    return arguments.distributed or not all(missing)


def together(arguments: argparse.Namespace, work: Callable[[], int]) -> int:
    """Returns the status of ``work``, which each of the processes does.

    Where one does not join in time, or is lost later, JAX aborts the others within a minute.
    """
    sys.stdout.flush()
    # A second descriptor of standard output, for the first process alone.
    printed = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # where Gloo prints
    try:
        distributed.initialize(
            arguments.coordinator, arguments.processes, arguments.process, arguments.start_timeout
        )
        if distributed.leads():
            sys.stdout = printed
        return work()
    # JAX aborts where it notices first; this is where our own call fails first.
    except ProcessLost:
        _leave(1, _LOST)
    except (ValueError, ImportError, OSError) as error:
        _leave(2, str(error))
    except KeyboardInterrupt as stop:
        _leave(130, str(stop) or "interrupted")
    return 1


def _leave(status: int, message: str) -> None:
    """Ends at once: JAX's own end waits for processes that may be gone."""
    print(f"dpjax: {message}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    if jax.distributed.is_initialized() and distributed.leads():
        time.sleep(_LINGER_SECONDS)  # the others may be about to say the same
    os._exit(status)
