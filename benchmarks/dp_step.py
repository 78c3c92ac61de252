"""What privacy costs a gradient step: clip, sum and noise beside the fastest step without.

Run ``python benchmarks/dp_step.py [--model cnn|resnet20] [--batch 256 1024] [--peers]``. All
contenders are timed alternately in one run, in a new random order each round, each once to warm
its caches and once on the clock; PyTorch's run in a process of their own, by the interpreter
``--torch-python``, and are asked one step at a time. Ratios are of medians, and of least times.
Everything is float32. Noise is ours in float64 on a grid, the peers' in float32.

``--memory`` prints peak memory instead, each contender alone in a fresh process: what the process
came to hold above what it held when the step was compiled, beside the compiler's own plan.
"""

import argparse
import contextlib
import json
import os
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

from dpjax import models

MODELS = {"cnn": ("CNN", (28, 28)), "resnet20": ("ResNet20", (32, 32, 3))}
UNCHANGED = "as it is, "
REFERENCE = "not private: as it is, vmapped"


def problem(name, batch):
    """The model, and arguments of a step: parameters, images, labels, mask, key."""
    kind, shape = MODELS[name]
    model = getattr(models, kind)()
    given = np.random.default_rng(0)
    x = given.random((batch, *shape), dtype=np.float32)
    y = given.integers(0, 10, batch).astype(np.int32)
    params = jax.jit(model.init)(jax.random.key(0), x[0])
    mask = jnp.ones(batch, bool)
    return model, (params, jnp.asarray(x), jnp.asarray(y), mask, jax.random.key(1))


def labelled(name, model, batch, peers):
    """Steps by name; those that are not private ignore mask and key."""

    def ignoring(step):
        return lambda params, x, y, mask, key: step(params, x, y)

    plain = dp_step_plain.contenders(name, model, batch)
    steps = {f"not private: {label}": ignoring(step) for label, step in plain.items()}
    return steps | dp_step_private.contenders(model, batch, peers)


class Compiled:
    """One step of JAX, compiled ahead for its arguments."""

    def __init__(self, step, arguments):
        self.arguments = arguments
        self.call = jax.jit(step).lower(*arguments).compile()
        self.device = jax.devices()[0].device_kind

    def seconds(self):
        begin = time.perf_counter()
        jax.block_until_ready(self.call(*self.arguments))
        return time.perf_counter() - begin

    def planned(self):
        """Bytes of temporary arrays, or None where the compiler does not say."""
        analysis = self.call.memory_analysis()
        return None if analysis is None else analysis.temp_size_in_bytes

    def flat(self):
        leaves = jax.tree.leaves(self.call(*self.arguments))
        return np.concatenate([np.ravel(leaf) for leaf in leaves])


class Torch:
    """A process that takes one step of PyTorch when it is asked."""

    def __init__(self, interpreter, name, batch, threads):
        script = Path(__file__).with_name("dp_step_torch.py")
        command = [interpreter, str(script), name, str(batch), str(threads)]
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        hello = self._line()
        self.names, self.device = hello["names"], hello["device"]

    def _line(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit("PyTorch's process ended; its message is above.")
        return json.loads(line)

    def ask(self, what):
        print(what, file=self.process.stdin, flush=True)
        return self._line()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Asked:
    """One contender of that process."""

    def __init__(self, server, label):
        self.server, self.label, self.device = server, label, server.device

    def seconds(self):
        spent = self.server.ask(self.label)
        time.sleep(0.05)  # its threads go on turning for a while, and would slow the next step
        return spent

    def planned(self):
        return None


def check_agreement(runners):
    """Exits unless all steps without privacy give the same gradient."""
    plain = {label: runner for label, runner in runners.items() if label.startswith("not private")}
    expected = None
    for label, runner in plain.items():
        expected = runner.flat() if expected is None else expected
        error = np.linalg.norm(runner.flat() - expected) / np.linalg.norm(expected)
        if error > 1e-3:  # ties of a maximum go either way
            sys.exit(f"{label}: its gradient differs from the others' by {error:.1e}.")


def timed(runners, rounds):
    """Seconds of every round, contenders in random order."""
    spent = {label: [] for label in runners}
    order = list(runners)
    for runner in runners.values():
        runner.seconds()
    for _ in range(rounds):
        random.shuffle(order)
        for label in order:
            runners[label].seconds()
            spent[label].append(runners[label].seconds())
    return spent


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
        runners[label] = Compiled(step, given)
        print(f"compiled in {time.perf_counter() - begin:.1f} s: {label}", file=sys.stderr)
    check_agreement(runners)
    server = None
    if arguments.torch_python:
        server = Torch(arguments.torch_python, name, batch, arguments.threads)
        named = [label for label in server.names if wanted(label, arguments.only)]
        runners |= {label: Asked(server, label) for label in named}
    try:
        return table(name, batch, runners, timed(runners, arguments.rounds))
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
    compiled = Compiled(labelled(name, model, batch, peers=True)[label], given)
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
