"""Kills one of two processes of a training at random, and looks at how the other ends.

    python tests/harness/kill_processes.py --kills 10

The moments lie anywhere between the start of the commands and the end of a training. Afterwards the
same commands are given again. Prints a table, and returns 1 if a process waited longer than
60 seconds, said nothing, the bits differ, or the ledger holds more than one entry.
"""

import argparse
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np
from several import ROOT, environment, free_port

import dpjax

LONGEST_SECONDS = 60
TRAINING = ["run", "dp-gd", "--steps", "3000", "--seed", "7"]


def command(*words):
    return [sys.executable, "-m", "dpjax", *map(str, words)]


def started(*words):
    return subprocess.Popen(
        command(*words),
        env=environment(1),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def both(folder):
    places = ["--save", folder / "model", "--checkpoint", folder / "run"]
    places += ["--ledger", folder / "ledger", "--coordinator", f"127.0.0.1:{free_port()}"]
    return [started(*TRAINING, *places, "--processes", 2, "--process", rank) for rank in (0, 1)]


def fresh(folder):
    """Makes a folder with a ledger that pays for one training and no more."""
    folder.mkdir()
    words = ["ledger", "create", folder / "ledger", "--epsilon", "1.2", "--delta", "1e-5"]
    subprocess.run(command(*words), env=environment(1), cwd=ROOT, check=True, capture_output=True)


def kill(process):
    """Kills a process that has not ended; returns whether there was one."""
    if process.poll() is not None:
        return False
    process.send_signal(signal.SIGKILL)
    return True


def state(folder):
    """What the folder holds: entries of the ledger, a checkpoint, a model."""
    entries = dpjax.Ledger.read(folder / "ledger").entries
    finished = sum(bool(entry.finished) for entry in entries)
    words = [f"{len(entries)} entries, {finished} finished"]
    return ", ".join(words + [name for name in ("run", "model") if (folder / name).exists()])


def trial(folder, moment, victim, params):
    """Returns the row of one kill, and whether all is as it should be."""
    fresh(folder)
    processes = both(folder)
    time.sleep(moment)
    killed = kill(processes[victim])
    begin = time.perf_counter()
    _, errors = processes[1 - victim].communicate()
    seconds = time.perf_counter() - begin
    status, lines = processes[1 - victim].returncode, errors.splitlines()
    processes[victim].communicate()
    found = state(folder)
    again = []
    if not (folder / "model").exists():
        again = both(folder)
        ends = [process.communicate()[1] for process in again]
        if any(ends):
            print(ends, file=sys.stderr)
    same = np.array_equal(dpjax.load(folder / "model").params, params)
    entries = dpjax.Ledger.read(folder / "ledger").entries
    good = seconds <= LONGEST_SECONDS and same and len(entries) == 1 and bool(entries[0].finished)
    good &= not any(process.returncode for process in again)
    good &= bool(lines) == (status != 0)
    row = [
        f"{moment:.1f} s",
        f"{victim}{'' if killed else ' (had ended)'}",
        f"{seconds:.1f} s, {status}",
        lines[-1][:72] if lines else "",
        found,
        " ".join(str(process.returncode) for process in again) or "not needed",
        f"{'same' if same else 'OTHER'}, {len(entries)} entries",
    ]
    return row, good


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    moments = random.Random(arguments.seed)
    faults = 0
    with tempfile.TemporaryDirectory() as name:
        top = pathlib.Path(name)
        subprocess.run(
            command(*TRAINING, "--save", top / "alone"),
            env=environment(1),
            cwd=ROOT,
            check=True,
            capture_output=True,
        )
        params = dpjax.load(top / "alone").params
        fresh(top / "whole")
        begin = time.perf_counter()
        for process in both(top / "whole"):
            process.communicate()
        length = time.perf_counter() - begin
        print(f"undisturbed, two processes take {length:.1f} s\n")
        print("| killed after | process | other ended after, status | said | left | again | bits |")
        print("|---|---|---|---|---|---|---|", flush=True)
        for number in range(arguments.kills):
            moment, victim = moments.uniform(0, length), moments.randrange(2)
            row, good = trial(top / str(number), moment, victim, params)
            faults += not good
            print("|", " | ".join(row), "|", "" if good else "FAULT", flush=True)
    print("\nall as it should be" if not faults else f"\n{faults} FAULTS")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
