"""Seconds that commands take from start to end: the first time, and with their programs kept.

``python -m benchmarks.start`` runs each command three times without a cache and three times with
one, takes the fastest, and prints what a second start spends on importing dpjax.
"""

import os
import subprocess
import sys
import tempfile
import time

COMMANDS = [
    "run --seed 1",
    "run dp-adam --seed 1",
    "run dp-tr --estimate 0.1 --count --seed 1",
    "calibrate dp-adam",
]
IMPORTS = "import importlib; importlib.import_module('dpjax.cli.main').parser(['run'])"


def seconds(words, environment, times=3):
    """The fewest of several runs, in wall time and in time of the processor."""
    found = []
    for _ in range(times):
        begin, before = time.perf_counter(), os.times()
        subprocess.run(words, check=True, env=environment, capture_output=True)
        after = os.times()
        spent = after.children_user + after.children_system
        spent -= before.children_user + before.children_system
        found.append((time.perf_counter() - begin, spent))
    return tuple(map(min, zip(*found, strict=True)))


def main():
    print(f"{'command':45} {'without cache':>15} {'second start':>15}   (wall, processor)")
    with tempfile.TemporaryDirectory() as folder:
        kept = os.environ | {"DPJAX_CACHE": folder}
        for command in COMMANDS:
            words = [sys.executable, "-m", "dpjax", *command.split()]
            cold = seconds(words, os.environ | {"DPJAX_NO_CACHE": "1"})
            subprocess.run(words, check=True, env=kept, capture_output=True)
            warm = seconds(words, kept)
            cells = (f"{wall:.1f}, {cpu:.1f}" for wall, cpu in (cold, warm))
            print(f"dpjax {command:39} {next(cells):>15} {next(cells):>15}", flush=True)
    wall, cpu = seconds([sys.executable, "-c", IMPORTS], os.environ)
    print(f"{'of these, imports':45} {'':15} {f'{wall:.1f}, {cpu:.1f}':>15}")


if __name__ == "__main__":
    main()
