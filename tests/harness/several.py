"""Programs in processes of several devices, and in several processes."""

import json
import os
import pathlib
import socket
import subprocess
import sys

from dpjax.placement import shard

ROOT = pathlib.Path(__file__).parents[2]
DEVICES = 8
ROWS = 7 * shard.SHARE + 100  # something on each of eight devices, and padding on the last

PREAMBLE = f"""
import hashlib, json, pathlib, re, tempfile
import jax, jax.numpy as jnp, numpy as np
from factories import make

import dpjax
from dpjax.placement import shard as sharding
from dpjax.datasets.rows import Rows
from dpjax.distributed import shard, stream
from dpjax.driver import loop, prepare

n = {ROWS}
budget = dpjax.PrivacyBudget(1.0, 1e-6)
x = np.random.default_rng(0).normal(size=(n, 4)).astype(np.float32) / 4
y = np.where(x[:, 0] > 0, 1.0, -1.0).astype(np.float32)
found = {{}}


def algorithm(name):
    more = {{"batch_size": 9_000}} if name in ("dp-adam", "dp-optimizer", "dpagem") else {{}}
    return make(name, budget, data_size=n, dimension=4, steps=3, **more)


def from_disk(x, y):
    # Of a file whose rows a function maps.
    path = pathlib.Path(folder.name) / "table.npy"
    np.save(path, np.column_stack([x, y]))
    table = np.load(path, mmap_mode="r")
    p = x.shape[1]
    return Rows(table, lambda rows: rows[:, :p], (p,)), Rows(table, lambda rows: rows[:, p], ())


folder = tempfile.TemporaryDirectory()


def bits(solution):
    kept = solution.params, solution.history, solution.certificate, solution.accuracy
    words = b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(kept))
    return hashlib.sha256(words).hexdigest()
"""


def on_devices(program, count=DEVICES, optimised=False):
    """What a program, that fills ``found``, finds in a process with so many devices."""
    return found_by(started(program, count, optimised))


def on_processes(program, devices=1, optimised=False):
    """What each of two processes finds, with so many devices in each."""
    port = free_port()
    joined = "from dpjax.distributed import initialize\ninitialize('127.0.0.1:{}', 2, {})\n"
    both = [
        started(program, devices, optimised, before=joined.format(port, rank)) for rank in (0, 1)
    ]
    return [found_by(one) for one in both]


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def started(program, count, optimised=False, before=""):
    # Collecting garbage takes a sixth of the time of a process that is over so soon.
    fast = "import gc\ngc.disable()\n"
    fast += "" if optimised else "import compiling\ncompiling.install()\n"
    return subprocess.Popen(
        [sys.executable, "-c", fast + before + PREAMBLE + program + "\nprint(json.dumps(found))"],
        env=environment(count),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def environment(devices):
    """Of a process that sees so many devices."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "harness")])
    return {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path}


def found_by(process):
    out, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    return json.loads(out.splitlines()[-1])
