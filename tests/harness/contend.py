"""Many contenders for a ledger that has room for one of them: never two get in, never damage.

    python tests/harness/contend.py threads --trials 1000

Threads share one open ledger. Forks inherit it open, try it, and open the file anew. Processes know
the file alone. A trial is won by exactly one contender, and leaves a file that verifies.
"""

import argparse
import multiprocessing
import os
import pathlib
import sys
import tempfile
import threading
import traceback

from dpjax.accounting import Event, Ledger, LedgerError, PrivacyBudget, Release

EVENT = Event((Release("gradient", 1, noise_multiplier=4.0),), "zero_out")
# One such run takes mu^2 = 1/16, and the limit at this epsilon is less than 0.1: room for one.
BUDGET = PrivacyBudget(1.2, 1e-5)
THREADS, FORKS, PROCESSES = 4, 2, 3


def reserve(ledger, run_id):
    """Returns whether the ledger admits one more run."""
    try:
        ledger.reserve(run_id=run_id, event=EVENT, label="contended", config_hash="c0ffee")
    except LedgerError:
        raise
    except ValueError as error:
        assert "exceed the budget" in str(error), error
        return False
    return True


def reserve_anew(path, run_id):
    """The same through an opening of its own, tried until the file is free."""
    while True:
        try:
            with Ledger.open(path) as ledger:
                return reserve(ledger, run_id)
        except LedgerError as error:
            if "being written by another run" not in str(error):
                raise


def threads(paths):
    """Yields how many threads were admitted to each ledger that they share."""
    start, end = (threading.Barrier(THREADS + 1) for _ in range(2))
    shared, admitted = [], []

    def work(number):
        try:
            for _ in paths:
                start.wait()
                if reserve(shared[-1], f"thread {number}"):
                    admitted.append(number)
                end.wait()
        except (LedgerError, OSError):
            end.abort()  # what is wrong with the ledger ends the trials
            raise

    workers = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(THREADS)]
    for worker in workers:
        worker.start()
    for path in paths:
        with Ledger.open(path) as ledger:
            shared.append(ledger)
            admitted.clear()
            start.wait()
            end.wait()
            yield len(admitted)


def forks(paths):
    """Yields how many of a process and its forks, which inherit its ledger, were admitted."""
    for number, path in enumerate(paths):
        with Ledger.open(path) as ledger:
            children = [forked(fork, ledger, path, f"fork {i}") for i in range(FORKS)]
            # Every other time the forks are left to themselves.
            admitted = number % 2 and reserve(ledger, "parent")
        yield admitted + sum(os.waitstatus_to_exitcode(os.waitpid(c, 0)[1]) for c in children)


def fork(ledger, path, run_id):
    """Tries the ledger that was open at the fork, then the file; returns whether it got in."""
    try:
        reserve(ledger, run_id)
    except LedgerError as error:
        assert "from which this one was forked" in str(error), error
    else:
        return 2
    return reserve_anew(path, run_id)


def forked(work, *arguments):
    """Starts a child whose exit status is what ``work`` returns; returns its process id."""
    process = os.fork()
    if process:
        return process
    try:
        os._exit(work(*arguments))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(100)


def processes(paths):
    """Yields how many processes were admitted to each ledger whose file they know."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(PROCESSES), context.Queue()
    workers = [
        context.Process(target=contend, args=(paths, barrier, results, f"process {i}"), daemon=True)
        for i in range(PROCESSES)
    ]
    for worker in workers:
        worker.start()
    won = [results.get() for _ in workers]
    yield from map(sum, zip(*won, strict=True))


def contend(paths, barrier, results, run_id):
    """What a process does: all trials, each begun together with the others."""
    won = []
    for path in paths:
        barrier.wait(60)
        won.append(reserve_anew(path, run_id))
    results.put(won)


def verdict(kind, trials, folder):
    """Returns how many trials had too many winners, none, or left a file that is damaged."""
    paths = [pathlib.Path(folder, str(number)) for number in range(trials)]
    Ledger.create(paths[0], BUDGET).close()
    for path in paths[1:]:
        path.write_bytes(paths[0].read_bytes())
    over = none = damaged = 0
    for path, admitted in zip(paths, KINDS[kind](paths), strict=True):
        over += admitted > 1
        none += admitted < 1
        try:
            damaged += len(Ledger.read(path).entries) != admitted
        except LedgerError:
            damaged += 1
    return {"over": over, "none": none, "damaged": damaged}


KINDS = {"threads": threads, "forks": forks, "processes": processes}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--trials", type=int, default=1000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = verdict(arguments.kind, arguments.trials, folder)
    print(f"{arguments.trials} trials of {arguments.kind}:", found)
    return int(any(found.values()))


if __name__ == "__main__":
    sys.exit(main())
