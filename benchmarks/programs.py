"""What the program of each algorithm is on a GPU and a TPU: float64, callbacks, time to compile.

Run ``python benchmarks/programs.py [NAME ...]``. Every algorithm and baseline, at the
size of its example (64 records of 4 features), is lowered for CUDA and TPU. Where ``libtpu`` is
installed (``pip install 'jax[tpu]'``, x86-64 Linux; no TPU is needed) it is compiled for TPU v5e.
"""

import argparse
import importlib.util
import os
import re
import sys
import time
import warnings

# Before JAX: the compiler then runs without a TPU.
os.environ |= {
    "TPU_SKIP_MDS_QUERY": "1",
    "JAX_PLATFORMS": "cpu",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
}

import jax
import numpy as np
from jax import export
from jax.experimental import topologies

import dpjax
from dpjax.baselines import EVERY

N, P, STEPS = 64, 4, 6
BUDGET = dpjax.PrivacyBudget(1.0, 1e-4)
FLOAT64 = re.compile(r"tensor<[^>]*f64>|\bf64\[")


def training(name):
    """The algorithm's example as a function of a key's words and of records."""
    entry = EVERY[name]
    objective = dpjax.objectives.OBJECTIVES[entry.example.objective]()
    sizes = {"data_size": N, "dimension": P, "steps": STEPS} | entry.example.settings
    algorithm = entry.factory(objective, BUDGET, **(entry.example.required | sizes))

    def train(words, x, y):
        return dpjax.solve(algorithm, (x, y), key=jax.random.wrap_key_data(words)).params

    return train


def records():
    """Rows of length 1, and signs."""
    x = np.random.default_rng(0).normal(size=(N, P)).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True), np.sign(x[:, 0])


def lowered(train, platform):
    """Returns float64 operations, callbacks and lines of the lowered program."""
    arguments = (np.zeros(2, np.uint32), *records())
    module = export.export(jax.jit(train), platforms=[platform])(*arguments).mlir_module()
    return len(FLOAT64.findall(module)), module.count("callback"), module.count("\n")


def compiled(train):
    """Returns seconds to compile for one TPU v5e, and float64 in the result."""
    topology = topologies.get_topology_desc("v5e:2x2", platform="tpu")
    one = jax.sharding.SingleDeviceSharding(topology.devices[0])
    shapes = [
        jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=one)
        for a in (np.zeros(2, np.uint32), *records())
    ]
    program = jax.jit(train).lower(*shapes)
    begin = time.perf_counter()
    text = program.compile().as_text()
    return time.perf_counter() - begin, len(FLOAT64.findall(text))


def line(name, has_compiler):
    """One row of the table."""
    train, cells = training(name), []
    for platform in ("cuda", "tpu"):
        try:
            float64, callbacks, lines = lowered(train, platform)
        except ValueError as error:
            if "needs float64" not in str(error):
                raise
            cells.append("refused: float64")
            continue
        cells.append(f"{float64} f64, {callbacks} callbacks, {lines} lines")
    if has_compiler and not cells[-1].startswith("refused"):
        taken, float64 = compiled(train)
        cells.append(f"{taken:.1f} s, {float64} f64")
    else:
        cells.append("-")
    return f"| {name} | " + " | ".join(cells) + " |"


def main():
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="by default all")
    names = parser.parse_args().names or [n for n, e in EVERY.items() if not e.one_release]
    # JAX cuts 64-bit integers to 32 outside of x64 with a mere warning.
    warnings.filterwarnings("error", message="Explicitly requested dtype")
    has_compiler = importlib.util.find_spec("libtpu") is not None
    if not has_compiler:
        print("libtpu is not installed: nothing is compiled for TPU, only lowered.")
    print("| algorithm | lowered for CUDA | lowered for TPU | compiled for TPU v5e |")
    print("| --- | --- | --- | --- |")
    for name in names:
        print(line(name, has_compiler), flush=True)


if __name__ == "__main__":
    sys.exit(main())
