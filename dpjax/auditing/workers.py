"""Many audits in parallel, each in its own process; NOT PRIVATE, on synthetic records only."""

import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._typing import Array
from dpjax.auditing.registry import Audit, audit

# A process with a compiled audit takes about 1 GB.
_MOST_WORKERS = 4


def audit_many(
    names: Sequence[str], *, key: Array, runs: int | None = None, quick: bool = False
) -> Iterator[tuple[Audit, ...]]:
    """Runs several audits and yields the results of finished ones, about once a second.

    On a CPU they run in processes, one per core and at most four: the steps of an audit are too
    small for more than one core, and its compilation takes one. On an accelerator, whose memory
    processes cannot share, they run one after the other.

    ``names`` are of ``AUDITS``; the audit at index i takes ``key`` folded with i. The other
    arguments are those of ``audit``.

    Raises:
      ValueError: as ``audit``.
      BrokenProcessPool: if a process is killed, as when memory runs out.

    >>> import jax
    >>> batches = audit_many(["gaussian"], key=jax.random.key(0), runs=20_000)
    >>> [result.name for batch in batches for result in batch]
    ['gaussian']
    """
    keys = [jax.random.fold_in(key, i) for i in range(len(names))]
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    workers = min(_MOST_WORKERS, len(cores) or os.cpu_count() or 1, len(names))
    if workers == 1 or jax.default_backend() != "cpu":
        for name, audit_key in zip(names, keys, strict=True):
            yield (audit(name, key=audit_key, runs=runs, quick=quick),)
        return
    before = set(multiprocessing.active_children())
    # A fork would inherit the locks of XLA's threads.
    context = multiprocessing.get_context("spawn")
    core_sets = context.SimpleQueue()
    for i in range(workers):
        core_sets.put(cores[i::workers])
    pool = ProcessPoolExecutor(workers, context, initializer=_begin, initargs=(core_sets,))
    try:
        pending = {
            pool.submit(_audit, name, *_key_data(audit_key), runs, quick)
            for name, audit_key in zip(names, keys, strict=True)
        }
        while pending:
            done, pending = wait(pending, timeout=1, return_when=FIRST_COMPLETED)
            yield tuple(future.result() for future in done)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()) - before:
            process.terminate()


def _begin(core_sets: Any) -> None:
    # Only the parent process handles Ctrl-C.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if cores := core_sets.get():
        # XLA's threads spin while they wait, which slows busy ones: with both cores for each of two
        # processes, all audits took 282 s.
        os.sched_setaffinity(0, cores)


def _key_data(key: Array) -> tuple[np.ndarray, str]:
    return np.asarray(jax.random.key_data(key)), str(jax.random.key_impl(key))


def _audit(name: str, key_data: np.ndarray, implementation: str, *plan: int | None) -> Audit:
    key = jax.random.wrap_key_data(jnp.asarray(key_data), impl=implementation)
    runs, quick = plan
    return audit(name, key=key, runs=runs, quick=bool(quick))
