"""Kills trainings at random points and at named ones, resumes them, and looks for what went wrong.

    python tests/harness/kill.py --runs 30 --kills 50

Children are forked from a process that has imported JAX and not used it yet, so that none of them
pays for the import. What a child is about to learn from the data it first writes to a log that
survives it; the parent reads all logs at the end. A SIGKILL is not a power cut: what the kernel has
been given is not lost.
"""

import argparse
import collections
import contextlib
import dataclasses
import gc
import hashlib
import os
import pathlib
import random
import signal
import sys
import tempfile
import time
import traceback
import warnings

import jax
import numpy as np

import dpjax
from dpjax.accounting import Event, Ledger, LedgerError, Release, epsilon
from dpjax.driver import checkpoint, holds_run, progress, resume

ROWS, WIDTH, STEPS = 500, 6, 2_000
BUDGET = dpjax.PrivacyBudget(1.0, 1e-5)
LOG = np.dtype([("run", "<i4"), ("step", "<i4"), ("booked", "u1"), ("output", "V16")])
PIECE = -(-STEPS // progress._UPDATES)
# What each planted bug must be noticed by.
PLANTS = {
    "fresh key": "steps with two outputs under one key",
    "late intent": "unledgered releases",
}


# The child: trains until it is done or dies.


def records():
    made = np.random.default_rng(0)
    x = made.normal(size=(ROWS, WIDTH)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x, np.where(x[:, 0] > 0, 1.0, -1.0).astype(np.float32)


def build():
    return dpjax.dp_gradient_descent(
        dpjax.objectives.logistic_nonconvex(),
        BUDGET,
        data_size=ROWS,
        dimension=WIDTH,
        steps=STEPS,
    )


def digest(*arrays):
    whole = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)
    return hashlib.blake2b(whole, digest_size=16).digest()


def train(run, where):
    """Runs or resumes one training, and notes the bits of its solution."""
    folder, done = where / f"run-{run}", where / f"done-{run}"
    key = None if holds_run(folder) else jax.random.key(run)
    solution = dpjax.run(
        build(),
        records(),
        key=key,
        checkpoint=folder,
        ledger=where / "ledger",
        label=f"run-{run}",
        progress=False,
    )
    done.with_suffix(".tmp").write_bytes(digest(*jax.tree.leaves(solution)))
    os.rename(done.with_suffix(".tmp"), done)


def watch(runs, where):
    """Logs every output of every step with whether its run was in the ledger when it was asked."""
    whole, log = progress._advance, os.open(where / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def advance(bound, carry, until):
        run, start = runs[0], int(carry.step)
        booked = f'"label":"run-{run}"'.encode() in (where / "ledger").read_bytes()
        carry = whole(bound, carry, until)
        stop = int(carry.step)
        history = [np.asarray(leaf)[start:stop] for leaf in jax.tree.leaves(carry.history)]
        rows = [
            (run, start + k, booked, digest(*(h[k] for h in history))) for k in range(stop - start)
        ]
        # The whole state too, under a number that no step has.
        rows.append((run, -stop, booked, digest(*jax.tree.leaves(carry))))
        os.write(log, np.array(rows, LOG).tobytes())
        return carry

    progress._advance = advance


def die():
    os.kill(os.getpid(), signal.SIGKILL)


class Deadly:
    """Stands in for a function of ``os``; kills at its n-th call for files named so.

    Args:
      name: the function.
      file: part of the file's name.
      count: which call, from 1.
      moment: before the call, after it, or within it: half of a write.
    """

    def __init__(self, name, file, count, moment):
        self._real, self._file, self._left, self._moment = getattr(os, name), file, count, moment
        setattr(os, name, self)

    def __call__(self, target, *more, **named):
        path = os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else target
        self._left -= self._file in os.path.basename(path)
        if self._left or self._file not in os.path.basename(path):
            return self._real(target, *more, **named)
        if self._moment == "half":
            self._real(target, bytes(more[0])[: len(more[0]) // 2])
        elif self._moment == "after":
            self._real(target, *more, **named)
        die()


# Where steps were taken that a resumed run takes again.
UNSAVED = "after steps, before they are saved"
# Name: function of os, part of the file's name, which call (None: any), moment.
FAILPOINTS = {
    UNSAVED: ("write", "log", 3, "after"),
    "before manifest rename": ("replace", "manifest", 1, "before"),
    "after manifest rename": ("replace", "manifest", 1, "after"),
    "before the key is saved": ("replace", "state", 1, "before"),
    "after the key is saved": ("replace", "state", 1, "after"),
    "before intent": ("write", "ledger", 1, "before"),
    "half an intent": ("write", "ledger", 1, "half"),
    "intent not synced": ("fsync", "ledger", 1, "before"),
    "after intent": ("fsync", "ledger", 1, "after"),
    "half a checkpoint": ("write", "state.tmp", None, "half"),
    "checkpoint not synced": ("fsync", "state.tmp", None, "before"),
    "before checkpoint rename": ("replace", "state.tmp", None, "before"),
    "after checkpoint rename": ("replace", "state.tmp", None, "after"),
    "before completion": ("write", "ledger", 2, "before"),
    "half a completion": ("write", "ledger", 2, "half"),
    "after completion": ("fsync", "ledger", 2, "after"),
}


def plant(bug):
    """Breaks the product, so that the checks below can be seen to work."""
    if bug == "fresh key":
        read = checkpoint.Folder.read

        def with_another_key(folder):
            held = read(folder)
            other = jax.random.split(dpjax.mechanisms.seed_key(int.from_bytes(os.urandom(8))))[0]
            return held and dataclasses.replace(held, key=other)

        checkpoint.Folder.read = with_another_key
        resume._compare = lambda *args: None
    elif bug == "late intent":
        reserve = Ledger.reserve
        Ledger.reserve = lambda ledger, **intent: setattr(ledger, "late", intent)
        complete = Ledger.complete

        def booked_at_the_end(ledger, run_id):
            reserve(ledger, **ledger.late)
            complete(ledger, run_id)

        Ledger.complete = booked_at_the_end
        Ledger.__contains__ = lambda ledger, run_id: True


def child(jobs, where, bug, failpoint, number):
    # Between two saves a killed run takes some steps that it will take again.
    resume.SAVE_SECONDS = 0.0 if failpoint else 0.03
    plant(bug)
    runs = list(jobs)
    watch(runs, where)
    while runs:
        # The failpoint is for the last job; what the one before left is finished first.
        if failpoint and len(runs) == 1:
            name, file, count, moment = FAILPOINTS[failpoint]
            Deadly(name, file, count or number, moment)
        train(runs[0], where)
        runs.pop(0)


def forked(work, *arguments):
    """Starts a child that does ``work``; returns its process id."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX warns of forks; it has no thread here yet
        process = os.fork()
    if process:
        return process
    try:
        work(*arguments)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


# The parent: kills, and looks at what is left.


def grown(log, size, process):
    """Waits until the log is that long; returns whether the child is still there."""
    while not log.exists() or log.stat().st_size < size:
        if ended(process) is not None:
            return False
        time.sleep(0.001)
    return True


def ended(process):
    with contextlib.suppress(ChildProcessError):
        found, status = os.waitpid(process, os.WNOHANG)
        return None if found == 0 else status
    return 0


class Murder:
    """Everything that happens in one folder."""

    def __init__(self, where, bug, seed):
        self.where, self.bug, self.random = where, bug, random.Random(seed)
        self.log = where / "log"
        self.killed = collections.Counter()
        self.corrupt = self.errors = 0

    def left(self, runs):
        return [run for run in runs if not (self.where / f"done-{run}").exists()]

    def look(self):
        """Checks the ledger as a child left it."""
        try:
            Ledger.read(self.where / "ledger")
        except LedgerError as error:
            print(error, file=sys.stderr)
            self.corrupt += 1

    def start(self, jobs, failpoint=None, number=1):
        size = self.log.stat().st_size if self.log.exists() else 0
        self.cut_log(size)
        return forked(child, jobs, self.where, self.bug, failpoint, number), size

    def cut_log(self, size):
        if size % LOG.itemsize:
            os.truncate(self.log, size - size % LOG.itemsize)

    def wait(self, process):
        status = os.waitpid(process, 0)[1]
        died = os.WIFSIGNALED(status)
        self.errors += not died and os.WEXITSTATUS(status) != 0
        self.look()
        return died

    def at_random(self, runs, kills):
        """Kills ``kills`` times while ``runs`` train; returns how many times it could not."""
        while kills and self.left(runs) and not self.errors:
            process, size = self.start(self.left(runs))
            steps = self.steps_left(runs)
            # One in eight before the training begins: imports, checks, compilation.
            if self.random.random() < 1 / 8 and steps > STEPS:
                time.sleep(self.random.uniform(0, 0.5))
            else:
                more = self.random.uniform(0, 1.6 * steps / (kills + 1)) - 6 * PIECE
                if grown(self.log, size + max(1, int(more)) * LOG.itemsize, process):
                    time.sleep(self.random.uniform(0, 0.01))
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            if self.wait_killed(process):
                kills -= 1
                self.killed["at random"] += 1
        return kills

    def steps_left(self, runs):
        """Returns how many steps are to be taken at least."""
        left = self.left(runs)
        log = np.fromfile(self.log, LOG) if self.log.exists() else np.zeros(0, LOG)
        begun = log["step"][log["run"] == left[0]]
        return len(left) * STEPS - int(begun.max(initial=0))

    def wait_killed(self, process):
        with contextlib.suppress(ChildProcessError):
            return self.wait(process)
        self.look()
        return False

    def at_failpoints(self, first):
        """Kills one run at every failpoint, from run number ``first`` on."""
        before = []
        for run, name in enumerate(FAILPOINTS, first):
            process, _ = self.start([*before, run], name, self.random.randint(2, 40))
            self.killed[name] += self.wait(process)
            before = self.left([*before, run]) or [run]

    def finish(self, runs):
        """Lets everything that is left come to its end."""
        process, _ = self.start(self.left(runs))
        self.wait(process)


def declare(ledgers):
    """Makes ledgers, each for so many runs and not one more."""
    for where, runs in ledgers.items():
        mu = build().event.gaussian_mu * (runs + 0.5) ** 0.5
        whole = Event((Release("all", 1, noise_multiplier=1 / mu),), "zero_out")
        budget = dpjax.PrivacyBudget(epsilon(whole, BUDGET.delta, "zero_out"), BUDGET.delta)
        where.mkdir()
        Ledger.create(where / "ledger", budget, unsampled=True).close()


def verdict(murder, reference, runs):
    """Returns what was found, by name; each count must be 0."""
    log = np.fromfile(murder.log, LOG)
    outputs = collections.defaultdict(set)
    for run, step, _, output in log.tolist():
        outputs[run, step].add(output)
    ledger = Ledger.read(murder.where / "ledger")
    labels = collections.Counter(entry.label for entry in ledger.entries if entry.finished)
    same = [
        (murder.where / f"done-{run}").exists()
        and (murder.where / f"done-{run}").read_bytes() == (reference / f"done-{run}").read_bytes()
        for run in runs
    ]
    return {
        "final states that differ": len(runs) - sum(same),
        "steps with two outputs under one key": sum(len(found) > 1 for found in outputs.values()),
        "unledgered releases": int(np.sum(log["booked"] == 0)),
        "corrupt ledgers": murder.corrupt,
        "runs not booked once": sum(labels[f"run-{run}"] != 1 for run in runs)
        + abs(len(ledger.entries) - len(runs)),
        "children that failed": murder.errors,
        "steps that were not logged": len(runs) * STEPS - sum(step >= 0 for _, step in outputs),
    }


def attempt(killed, reference, runs, kills, seed):
    """Kills at random and at every failpoint; returns the verdict."""
    every = list(range(runs + len(FAILPOINTS)))
    murder = Murder(killed, None, seed)
    missed = murder.at_random(every[:runs], kills)
    if not murder.errors:
        murder.at_failpoints(runs)
    murder.finish(every)
    found = verdict(murder, reference, every)
    found["kills that missed"] = missed
    found["failpoints that were not reached"] = sum(not murder.killed[f] for f in FAILPOINTS)
    print(f"{kills - missed} kills at random, {len(FAILPOINTS)} at named points")
    return found


def attempt_planted(where, reference, bug):
    """Kills one run at the point where a planted bug shows; returns the verdict."""
    murder = Murder(where, bug, 0)
    murder.wait(murder.start([0], UNSAVED)[0])
    murder.finish([0])
    return verdict(murder, reference, [0])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--compile-once", action="store_true", help="quicker: share a compilation")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    begin = time.perf_counter()
    gc.disable()  # every child would walk over, and so copy, all that the parent has imported
    with tempfile.TemporaryDirectory() as name:
        if arguments.compile_once:
            jax.config.update("jax_compilation_cache_dir", name)
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        reference, killed, *planted = (
            pathlib.Path(name, part) for part in ("reference", "killed", *PLANTS)
        )
        every = arguments.runs + len(FAILPOINTS)
        # Even this calls JAX, which the parent must not.
        ledgers = {reference: every, killed: every} | dict.fromkeys(planted, 1)
        os.waitpid(forked(declare, ledgers), 0)
        Murder(reference, None, 0).finish(range(every))
        found = attempt(killed, reference, arguments.runs, arguments.kills, arguments.seed)
        for fault, count in found.items():
            print(f"{count:8} {fault}")
        unnoticed = 0
        for where, (bug, fault) in zip(planted, PLANTS.items(), strict=True):
            count = attempt_planted(where, reference, bug)[fault]
            print(f"{count:8} {fault}, after planting a {bug}")
            unnoticed += count == 0
    good = not any(found.values()) and not unnoticed
    print("all as it should be" if good else "FAULTS", f"({time.perf_counter() - begin:.0f} s)")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
