"""What privacy costs a gradient step: clip, sum and noise beside the fastest step without.

Run ``python benchmarks/dp_step.py [--model cnn|resnet20] [--batch 256 1024] [--peers]``. All
contenders are timed alternately in one run, in a new random order each round, each once to warm
its caches and once on the clock, followed by a rest. PyTorch's run in a process of their own, by
the interpreter ``--torch-python``, and are asked one step at a time. Ratios are of medians, and of
least times. Everything is float32. Noise is ours in float64 on a grid, the peers' in float32.

``--memory`` prints peak memory instead, each contender alone in a fresh process: what the process
came to hold above what it held when the step was compiled, beside the compiler's own plan.
"""

import argparse
import contextlib
import importlib.metadata
import json
import random
import resource
import subprocess
import sys
import time
from pathlib import Path

import dp_step_plain
import dp_step_private
import jax
import jax.numpy as jnp
import numpy as np
from dp_step_runners import Asked, Compiled, Torch

from dpjax import models

MODELS = {"cnn": ("CNN", (28, 28)), "resnet20": ("ResNet20", (32, 32, 3))}
UNCHANGED = "as it is, "
REFERENCE = "not private: as it is, vmapped"
# A library's threads go on turning for a while, and would slow the next contender's step.
REST_SECONDS = 0.05


def problem(name, rows):
    """The model, and arguments of a step: parameters, images, labels, mask, key."""
    kind, shape = MODELS[name]
    model = getattr(models, kind)()
    given = np.random.default_rng(0)
    x = given.random((rows, *shape), dtype=np.float32)
    y = given.integers(0, 10, rows).astype(np.int32)
    params = jax.jit(model.init)(jax.random.key(0), x[0])
    mask = jnp.ones(rows, bool)
    return model, (params, jnp.asarray(x), jnp.asarray(y), mask, jax.random.key(1))


def labelled(name, model, batch, peers):
    """Steps by name; those that are not private ignore mask and key."""

    def ignoring(step):
        return lambda params, x, y, mask, key: step(params, x, y)

    plain = dp_step_plain.contenders(name, model, batch)
    steps = {f"not private: {label}": ignoring(step) for label, step in plain.items()}
    return steps | dp_step_private.contenders(model, batch, peers)


def given_to(label, name, given):
    """A step's arguments; those of the one that draws hold all records, and are made here."""
    if label == dp_step_private.DRAWING:
        return problem(name, dp_step_private.RECORDS)[1]
    return given


def check_agreement(runners):
    """Exits unless all steps without privacy give the same gradient."""
    plain = {label: runner for label, runner in runners.items() if label.startswith("not private")}
    expected = None
    for label, runner in plain.items():
        expected = runner.flat() if expected is None else expected
        error = np.linalg.norm(runner.flat() - expected) / np.linalg.norm(expected)
        if error > 1e-3:  # ties of a maximum go either way
            sys.exit(f"{label}: its gradient differs from the others' by {error:.1e}.")


def measured(runner):
    """Seconds of a step right after another one, before a rest."""
    runner.seconds()
    spent = runner.seconds()
    time.sleep(REST_SECONDS)
    return spent


def timed(runners, rounds):
    """Seconds of every round, contenders in random order."""
    spent = {label: [] for label in runners}
    order = list(runners)
    for runner in runners.values():
        measured(runner)
    for _ in range(rounds):
        random.shuffle(order)
        for label in order:
            spent[label].append(measured(runners[label]))
    return spent


def versions(server):
    """What the contenders run on, in words."""
    found = {} if server is None else dict(server.versions)
    for name in ("dpjax", "jax", "jaxlib", "flax", "optax", "jax-privacy"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found |= {name: importlib.metadata.version(name)}
    return ", ".join(f"{name} {number}" for name, number in sorted(found.items()))


def table(name, batch, runners, spent):
    """Prints the rows, fastest first, and returns them."""
    median = {label: float(np.median(times)) for label, times in spent.items()}
    least = {label: min(times) for label, times in spent.items()}
    plain = [label for label in spent if "not private" in label]
    same = [label for label in plain if UNCHANGED in label]
    floors = [min(plain, key=median.get), min(same, key=median.get)]
    lows = [min(least[label] for label in labels) for labels in (plain, same)]
    print(f"\n{name}, batch {batch:,}, {len(next(iter(spent.values())))} rounds, float32")
    print(f"fastest not private: {floors[0]}; of the model as it is: {floors[1]}\n")
    print("| step | ms, median | least | x fastest not private, of medians | of least |", end="")
    print(" x fastest of the model as it is | images/s | temporary, MB | device |")
    print("|---|---|---|---|---|---|---|---|---|")
    rows = []
    for label in sorted(spent, key=median.get):
        planned = runners[label].planned()
        row = {
            "model": name,
            "batch": batch,
            "step": label,
            "median_ms": 1e3 * median[label],
            "least_ms": 1e3 * least[label],
            "ratio": median[label] / median[floors[0]],
            "ratio_of_least": least[label] / lows[0],
            "ratio_as_it_is": median[label] / median[floors[1]],
            "images_per_second": batch / median[label],
            "temporary_bytes": planned,
            "device": runners[label].device,
        }
        rows.append(row)
        temporary = "" if planned is None else f"{planned / 1e6:.0f}"
        print(
            f"| {label} | {row['median_ms']:.1f} | {row['least_ms']:.1f} | {row['ratio']:.2f} | "
            f"{row['ratio_of_least']:.2f} | {row['ratio_as_it_is']:.2f} | "
            f"{row['images_per_second']:,.0f} | {temporary} | {row['device']} |",
            flush=True,
        )
    return rows


def wanted(label, words):
    return not words or any(word in label for word in words)


def compare(name, batch, arguments):
    model, given = problem(name, batch)
    steps = labelled(name, model, batch, arguments.peers)
    chosen = {
        label: step
        for label, step in steps.items()
        if label == REFERENCE or wanted(label, arguments.only)
    }
    runners = {}
    for label, step in chosen.items():
        begin = time.perf_counter()
        runners[label] = Compiled(step, given_to(label, name, given))
        print(f"compiled in {time.perf_counter() - begin:.1f} s: {label}", file=sys.stderr)
    check_agreement(runners)
    server = None
    if arguments.torch_python:
        server = Torch(arguments.torch_python, name, batch, arguments.threads)
        named = [label for label in server.names if wanted(label, arguments.only)]
        runners |= {label: Asked(server, label) for label in named}
    try:
        rows = table(name, batch, runners, timed(runners, arguments.rounds))
        print(f"\n{versions(server)}")
        return rows
    finally:
        if server is not None:
            server.close()


def held():
    """Peak bytes of this process so far, on the device where that is told."""
    stats = jax.devices()[0].memory_stats() or {}
    resident = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/status").read_text().splitlines()
        lines = dict(line.split(":", 1) for line in lines if ":" in line)
        resident = 1024 * int(lines["VmHWM"].split()[0])
    return stats.get("peak_bytes_in_use", resident)


def alone(name, batch, label):
    """Prints, as JSON, the peak memory of one contender in this process."""
    model, given = problem(name, batch)
    step = labelled(name, model, batch, peers=True)[label]
    compiled = Compiled(step, given_to(label, name, given))
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # Linux: what compiling took is forgotten
    before = held()
    compiled.seconds()
    print(json.dumps({"grown": held() - before, "planned": compiled.planned()}))


def memory(name, batch, arguments):
    model, _ = problem(name, batch)
    labels = labelled(name, model, batch, arguments.peers)
    print(f"\n{name}, batch {batch:,}: peak memory, each in its own process\n")
    print("| step | grown by, MB | planned by the compiler, MB |")
    print("|---|---|---|")
    for label in labels:
        if not wanted(label, arguments.only):
            continue
        command = [sys.executable, __file__, "--model", name, "--batch", str(batch)]
        done = subprocess.run([*command, "--alone", label], capture_output=True, text=True)
        if done.returncode:
            print(f"| {label} | failed | |", flush=True)
            continue
        got = json.loads(done.stdout.splitlines()[-1])
        planned = "" if got["planned"] is None else f"{got['planned'] / 1e6:.0f}"
        print(f"| {label} | {got['grown'] / 1e6:.0f} | {planned} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=list(MODELS), default="cnn")
    parser.add_argument("--batch", type=int, nargs="+", help="default: 256 1024; resnet20: 128")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--peers", action="store_true", help="optax and jax-privacy as well")
    parser.add_argument("--torch-python", metavar="PATH", help="of PyTorch and Opacus")
    parser.add_argument("--threads", type=int, default=0, help="of PyTorch; 0: its own choice")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="steps whose name has one")
    parser.add_argument("--memory", action="store_true", help="peak memory; default batch 1024")
    parser.add_argument("--json", metavar="FILE", help="write the rows there as well")
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    usual = [1024] if arguments.memory else {"cnn": [256, 1024], "resnet20": [128]}[arguments.model]
    rows = []
    for batch in arguments.batch or usual:
        if arguments.alone:
            alone(arguments.model, batch, arguments.alone)
        elif arguments.memory:
            memory(arguments.model, batch, arguments)
        else:
            rows += compare(arguments.model, batch, arguments)
    if arguments.json and rows:
        Path(arguments.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
