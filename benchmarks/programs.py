"""What the program of each algorithm is on a GPU and a TPU: float64, callbacks, time to compile.

Run ``python benchmarks/programs.py [NAME ...]``. Every algorithm and baseline, at the size of its
example (64 records of 4 features), three networks and two chains are lowered for CUDA and
TPU. Where ``libtpu`` is installed (``pip install 'dpjax[tpu]'``, x86-64 Linux; no TPU is needed)
they are compiled for TPU v5e; with ``--devices`` a million records of 54 features too, on one TPU
and in four shares.
"""

import argparse
import importlib.util
import os
import re
import sys
import time
import warnings
from unittest import mock

# Before JAX: the compiler then runs without a TPU.
os.environ |= {
    "TPU_SKIP_MDS_QUERY": "1",
    "JAX_PLATFORMS": "cpu",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
}

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from jax import export
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

import dpjax
from dpjax import _sharding
from dpjax.baselines import EVERY
from dpjax.driver import loop
from dpjax.models import CNN, ResNet20

N, P, STEPS = 64, 4, 6
BUDGET = dpjax.PrivacyBudget(1.0, 1e-4)
FLOAT64 = re.compile(r"tensor<[^>]*f64>|\bf64\[")
MANY, WIDTH = 2**20, 54
SHARED = ("dp-gd", "dp-tr", "dp-str", "dp-subspace-tr", "dp-adam", "dp-svrg", "dp-svrg++")
COLLECTIVES = re.compile(r" (all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\(")


def configured(name, **sizes):
    """The algorithm of a registry's example."""
    entry = EVERY[name]
    objective = dpjax.objectives.OBJECTIVES[entry.example.objective]()
    settings = {"data_size": N, "dimension": P, "steps": STEPS} | entry.example.settings | sizes
    return entry.factory(objective, BUDGET, **(entry.example.required | settings))


def training(name):
    """The algorithm's example as a function of a key's words and of records, and these."""
    algorithm, (x, y) = configured(name), records()

    def train(words, x, y):
        return dpjax.solve(algorithm, (x, y), key=jax.random.wrap_key_data(words)).params

    return train, (np.zeros(2, np.uint32), x, y)


def records():
    """Rows of length 1, and signs."""
    x = np.random.default_rng(0).normal(size=(N, P)).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True), np.sign(x[:, 0])


class Attention(nn.Module):
    """One block of attention over 16 positions."""

    @nn.compact
    def __call__(self, x):
        x = x + nn.MultiHeadDotProductAttention(num_heads=2)(nn.LayerNorm()(x))
        x = x + nn.Dense(32)(nn.gelu(nn.Dense(64)(nn.LayerNorm()(x))))
        return nn.Dense(10)(x.mean(0))


NETWORKS = {
    "dp-adam, a CNN": (CNN(), (28, 28)),
    "dp-adam, attention": (Attention(), (16, 32)),
    "dp-adam, ResNet-20": (ResNet20(), (32, 32, 3)),
}


def network(name):
    """A private training of a network, and its arguments."""
    model, shape = NETWORKS[name]
    x, y = np.zeros((1024, *shape), np.float32), np.zeros(1024, np.float32)
    params = jax.eval_shape(model.init, jax.random.key(0), x[0])
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), params)
    algorithm = dpjax.dp_adam(
        dpjax.objectives.cross_entropy(model.apply), BUDGET, data_size=len(x), batch_size=128,
        dimension=sum(leaf.size for leaf in jax.tree.leaves(params)), steps=STEPS, clip_norm=1.0,
    )  # fmt: skip

    def train(words, params, x, y):
        key = jax.random.wrap_key_data(words)
        return dpjax.solve(algorithm, (x, y), key=key, params=params).params

    return train, (np.zeros(2, np.uint32), params, x, y)


def chain(noise):
    """One update of an optax chain on gradients a record, and its arguments."""

    def update(words, gradients):
        made = noise(jax.random.wrap_key_data(words))
        return made.update(gradients, made.init(gradients[0]), gradients[0])[0]

    return update, (np.zeros(2, np.uint32), np.zeros((N, P), np.float32))


CHAINS = {
    "a chain, Gaussian noise": lambda key: optax.chain(
        dpjax.transforms.clip_and_sum(1.0), dpjax.transforms.add_gaussian_noise(1.0, key)
    ),
    "a chain, adaptive clipping": lambda key: dpjax.transforms.adaptive_clip_and_noise(
        1.0, noise_multiplier=1.0, sampler=dpjax.sampling.full_batch(N), key=key
    ),
    "a chain, tree noise": lambda key: optax.chain(
        dpjax.transforms.clip_and_sum(1.0), dpjax.transforms.add_tree_noise(1.0, key, horizon=8)
    ),
}


def program(name):
    """A function and its arguments."""
    if name in CHAINS:
        return chain(CHAINS[name])
    return network(name) if name in NETWORKS else training(name)


def lowered(train, arguments, platform):
    """Returns float64 operations, callbacks and lines of the lowered program."""
    module = export.export(jax.jit(train), platforms=[platform])(*arguments).mlir_module()
    return len(FLOAT64.findall(module)), module.count("callback"), module.count("\n")


def compiled(train, arguments):
    """Returns seconds to compile for one TPU v5e, and float64 in the result."""
    topology = topologies.get_topology_desc("v5e:2x2", platform="tpu")
    one = jax.sharding.SingleDeviceSharding(topology.devices[0])
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=one), arguments
    )
    made = jax.jit(train).lower(*shapes)
    begin = time.perf_counter()
    text = made.compile().as_text()
    return time.perf_counter() - begin, len(FLOAT64.findall(text))


def in_shares(name, count):
    """Returns MB on each device, all-reduces and other collectives of a training on TPUs."""
    devices = topologies.get_topology_desc("v5e:2x2", platform="tpu").devices[:count]
    mesh = Mesh(np.array(devices), (_sharding.AXIS,))
    cut, same = NamedSharding(mesh, Spec(_sharding.AXIS)), NamedSharding(mesh, Spec())

    def shape(leaf, sharding=same):
        return jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf), sharding=sharding)

    rows = np.broadcast_to(np.float32(0), (MANY, WIDTH)), np.broadcast_to(np.float32(0), MANY)
    data = jax.tree.map(lambda leaf: shape(leaf, cut), rows)
    if count > 1:
        data = _sharding.Spread(data, mesh, MANY, padded=False)
    sizes = {"data_size": MANY, "dimension": WIDTH}
    if "batch_size" in EVERY[name].example.settings:
        sizes["batch_size"] = MANY // 64
    start = jax.random.key(0), jnp.zeros(WIDTH)
    given = jax.tree.map(shape, (configured(name, **sizes), *start))
    made = loop._solve.lower(given[0], data, *given[1:], unit="row", unit_rows=False).compile()
    used, text = made.memory_analysis(), made.as_text()
    size = (used.argument_size_in_bytes + used.temp_size_in_bytes) / 2**20
    return size, len(re.findall(r" all-reduce(?:-start)?\(", text)), len(COLLECTIVES.findall(text))


def line(name, has_compiler):
    """One row of the table: what is the default depends on the device."""
    cells = []
    for platform, backend in (("cuda", "gpu"), ("tpu", "tpu")):
        with mock.patch.object(jax, "default_backend", lambda backend=backend: backend):
            train, arguments = program(name)
            try:
                float64, callbacks, lines = lowered(train, arguments, platform)
            except ValueError as error:
                if "needs float64" not in str(error):
                    raise
                cells += ["refused: float64", "-"]
                continue
            cells.append(f"{float64} f64, {callbacks} callbacks, {lines} lines")
            if platform == "tpu" and has_compiler:
                taken, float64 = compiled(train, arguments)
                cells.append(f"{taken:.1f} s, {float64} f64")
    return f"| {name} | " + " | ".join(cells) + " |"


def main():
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="by default all")
    parser.add_argument("--devices", action="store_true", help="also on one TPU and on four")
    arguments = parser.parse_args()
    steps = [name for name, entry in EVERY.items() if not entry.one_release]
    names = arguments.names or [*steps, *NETWORKS, *CHAINS]
    # JAX cuts 64-bit integers to 32 outside of x64 with a mere warning.
    warnings.filterwarnings("error", message="Explicitly requested dtype")
    has_compiler = importlib.util.find_spec("libtpu") is not None
    if not has_compiler:
        print("libtpu is not installed: nothing is compiled for TPU, only lowered.")
    print("| algorithm | lowered for CUDA | lowered for TPU | compiled for TPU v5e |")
    print("| --- | --- | --- | --- |")
    for name in names:
        print(line(name, has_compiler), flush=True)
    if has_compiler and arguments.devices:
        print("\n| algorithm | MB on one TPU | on each of four | all-reduces | other collectives |")
        print("| --- | --- | --- | --- | --- |")
        for name in arguments.names or SHARED:
            (one, _, _), (each, reduces, others) = in_shares(name, 1), in_shares(name, 4)
            print(f"| {name} | {one:.0f} | {each:.0f} | {reduces} | {others} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
