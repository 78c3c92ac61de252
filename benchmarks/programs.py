"""What dpjax's programs hold on a GPU and a TPU, by their compilers: float64, callbacks, products.

Run ``python -m benchmarks.programs [NAME ...] [--devices]``, which takes minutes with ``libtpu``
(``pip install 'dpjax[tpu]'``). It prints a row for each program, and exits with 1 if one holds what
it should not.
"""

import argparse
import functools
import importlib
import importlib.util
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

import dpjax
from dpjax import mechanisms, transforms
from dpjax.algorithms import ALL
from dpjax.driver import program
from dpjax.models import CNN, ResNet20
from dpjax.placement import shard

FLOAT64 = {
    *("add_ball_noise", "dp-newton", "objective-perturbation", "output-perturbation", "prgd"),
}
"""What a TPU refuses: docs/accelerators.md says why."""
REDUCED = {"dp-subspace-tr": 3}
"""Products in fewer digits than float32's that belong to a loss, where no mark says so."""
N, P, STEPS = 64, 4, 6
_HEADER = (
    *("program", "callbacks", "f64: CUDA, TPU", "reduced products", "of a loss", "custom calls"),
    *("v5e: s to compile", "MB", "Mflop", "MB moved"),
)
_DEVICES = "algorithm", "MB on one TPU", "on each of four", "all-reduces", "other collectives"
_MANY, _WIDTH = 2**20, 54
_BUDGET = dpjax.PrivacyBudget(10.0, 1e-4)  # objective perturbation needs as much
# With these libtpu needs no TPU, and nobody's leave.
_COMPILER = {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"} | {
    "TPU_ACCELERATOR_TYPE": "v5litepod-4", "TPU_WORKER_HOSTNAMES": "localhost",
}  # fmt: skip
# Marks a user's products: one that says neither this nor the highest precision is dpjax's own.
_of_user = jax.default_matmul_precision("high")
Program = tuple[Callable[..., Any], tuple[Any, ...]]  # a function of arrays, and these


class Lowered(NamedTuple):
    """What a lowered program holds; of products of at most float32, those in fewer digits."""

    float64: int
    products: int
    losses: int  # products inside what a record contributes, which is clipped as computed
    custom_calls: tuple[str, ...]


def programs() -> dict[str, Callable[[], Program]]:
    """Returns what makes each program that is looked at, by name."""

    def block(name: str) -> Program:
        def call(words: Any, *arrays: Any) -> Any:
            return _blocks(jax.random.wrap_key_data(words), *arrays)[name]()

        return call, arrays

    arrays = np.zeros(2, np.uint32), np.zeros(P, np.float32), *_records()
    return {
        **{name: lambda name=name: _training(_example(name), _records()) for name in ALL},
        "fit of a CNN": lambda: _fitted(CNN(), (28, 28)),
        "fit of ResNet-20": lambda: _fitted(ResNet20(), (32, 32, 3)),
        "fit of attention": lambda: _fitted(_Attention(), (16, 32)),
        "fit with dropout": lambda: _fitted(_Attention(), (16, 32), dropout=True),
        "DPLogisticRegression": _estimated,
        **{name: functools.partial(block, name) for name in _blocks(None, *arrays[1:])},
    }


def _training(algorithm: Any, data: Any, params: Any = None) -> Program:
    def train(words: Any, data: Any, params: Any) -> Any:
        key = jax.random.wrap_key_data(words)
        return dpjax.solve(algorithm, data, key=key, params=params).params

    return train, (np.zeros(2, np.uint32), data, params)


def _asked(module: str, name: str, call: Callable[[], Any]) -> Program:
    """Returns the training that ``call`` would run by the function of that name."""

    def stop(algorithm: Any, data: Any, *, params: Any = None, **_: Any) -> Any:
        # The training is caught where it would begin: nothing is run for it.
        raise LookupError(algorithm, data, params)

    with mock.patch.object(importlib.import_module(module), name, stop):
        try:
            return call()
        except LookupError as asked:
            return _training(*asked.args)


def _records() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(N, P)).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True), np.sign(x[:, 0])


def _example(name: str, **sizes: int) -> Any:
    entry = ALL[name]
    objective = dpjax.objectives.OBJECTIVES[entry.example.objective]()
    settings = {"data_size": N, "dimension": P} | entry.example.settings | sizes
    settings |= {} if entry.one_release else {"steps": STEPS}
    return entry.factory(objective, _BUDGET, **(entry.example.required | settings))


class _Attention(nn.Module):
    """One block of attention over 16 positions."""

    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        attend = nn.MultiHeadDotProductAttention(2, dropout_rate=0.1, deterministic=not train)
        x = x + attend(nn.LayerNorm()(x))
        x = x + nn.Dense(32)(nn.gelu(nn.Dense(64)(nn.LayerNorm()(x))))
        return nn.Dense(10)(x.mean(0))


def _fitted(model: nn.Module, shape: tuple[int, ...], dropout: bool = False) -> Program:
    data = np.zeros((1024, *shape), np.float32), np.zeros(1024, np.float32)
    params = jax.eval_shape(model.init, jax.random.key(0), data[0][0])
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), params)
    how: Any = {"batch_size": 128, "steps": STEPS, "params": params, "seed": 0}
    apply, adam = _of_user(model.apply), optax.adam(1e-3)

    @_of_user
    def drawing(params: Any, x: Any, key: Any) -> Any:
        streams = None if key is None else {"dropout": key}
        return model.apply(params, x, train=key is not None, rngs=streams)

    apply = drawing if dropout else apply
    fit = functools.partial(dpjax.fit, apply, "cross_entropy", data, _BUDGET, adam, **how)
    return _asked("dpjax.training.fit", "run", fit)


def _estimated() -> Program:
    made = dpjax.estimators.DPLogisticRegression(delta=1e-4, data_norm=1.0, classes=(-1, 1))
    return _asked("dpjax.estimators.base", "solve", lambda: made.fit(*_records()))


@_of_user
def _loss(w: Any, example: Any) -> Any:
    return jnp.logaddexp(0.0, -example[1] * (example[0] @ w))


@_of_user
def _any_loss(w: Any, example: Any) -> Any:
    return jnp.sum((jnp.tanh(jnp.outer(example[0], w)) @ w - example[1]) ** 2)


def _blocks(key: Any, w: Any, x: Any, y: Any) -> dict[str, Callable[[], Any]]:
    """Returns each building block by itself, and loops around them as users write them."""
    mean: Any = {"noise_multiplier": 1.0, "sampler": dpjax.sampling.full_batch(N), "key": key}
    rows: Any = mean | {"clip_norm": 1.0, "per_example": True}
    total = functools.partial(dpjax.clipped_grad, clip_norm=1.0)
    second = functools.partial(dpjax.clipped_hessian, clip_norm=1.0)
    joint = dpjax.joint_clipped(_loss, gradient_weight=1.0, hessian_weight=1.0)

    def update(made: Any) -> Any:
        return made.update(x, made.init(w), w)[0]

    def step(made: Any) -> Any:
        return made.update(w, made.init(w), hessian=jnp.outer(w, x[0]))[0]

    def clipped(made: Any) -> Any:
        return update(optax.chain(transforms.clip_and_sum(1.0), made))

    def own_loop() -> Any:
        sampler = dpjax.sampling.poisson(9, N, budget=_BUDGET, count=2 * STEPS)
        made = transforms.noisy_adam(0.1, clip_norm=1.0, **(mean | {"sampler": sampler}))

        def step(number: Any, carry: Any) -> Any:
            (w, state), own = carry, jax.random.fold_in(key, number)
            records, mask = sampler.draw(own, (x, y))
            gradient, hessian = joint(w, records, mask)
            noisy = mechanisms.add_symmetric_gaussian(own, hessian, 1.0)
            w += dpjax.trust_region_step(gradient, noisy, 0.1).step
            updates, state = made.update(total(_loss)(w, records, mask), state, w)
            return optax.apply_updates(w, updates), state

        return jax.lax.fori_loop(0, STEPS, step, (w, made.init(w)))

    return {
        "perturb": lambda: mechanisms.perturb(key, w, 1.0),
        "add_symmetric_gaussian": lambda: mechanisms.add_symmetric_gaussian(key, jnp.eye(P), 1.0),
        "noisy_argmax": lambda: mechanisms.noisy_argmax(key, w, 1.0),
        "prefix_noise": lambda: mechanisms.prefix_noise(8, P).perturb(key, w, 1.0, 3),
        "clipped_grad": lambda: total(_loss)(w, (x, y)),
        "clipped_grad, any loss": lambda: total(_any_loss)(w, (x, y)),
        "clipped_hessian": lambda: second(_loss)(w, (x, y)),
        "clipped_hessian, any loss": lambda: second(_any_loss)(w, (x, y)),
        "joint_clipped": lambda: joint(w, (x, y)),
        "clipped_grad_difference": lambda: dpjax.clipped_grad_difference(_loss, smoothness=1.0)(
            w, w + 1, (x, y)
        ),
        "trust_region_step": lambda: dpjax.trust_region_step(w, jnp.outer(w, x[0]), 1.0),
        "clip_and_sum": lambda: update(transforms.clip_and_sum(1.0)),
        "divide_by": lambda: clipped(transforms.divide_by(N)),
        "early_momentum": lambda: clipped(transforms.early_momentum(0.9, 2, 1)),
        "trust_region": lambda: step(transforms.trust_region(1.0, damping=0.1)),
        "add_ball_noise": lambda: clipped(transforms.add_ball_noise(1.0, key)),
        "add_gaussian_noise": lambda: clipped(transforms.add_gaussian_noise(1.0, key)),
        "add_tree_noise": lambda: clipped(transforms.add_tree_noise(1.0, key, horizon=8)),
        "adaptive_clip_and_noise": lambda: update(transforms.adaptive_clip_and_noise(1.0, **mean)),
        "noisy_mean": lambda: update(transforms.noisy_mean(**rows)),
        "noisy_sgd": lambda: update(transforms.noisy_sgd(0.1, **rows)),
        "noisy_adam": lambda: update(transforms.noisy_adam(0.1, **rows)),
        "noisy_stagewise_sgd": lambda: update(
            transforms.noisy_stagewise_sgd(0.1, first_steps=2, first_on_steps=1, **rows)
        ),
        "a jitted loop of one's own": own_loop,
    }


def trace(function: Callable[..., Any], arguments: Any) -> Any:
    """Returns the traced function, to be lowered for any kind of device."""
    with warnings.catch_warnings():
        # JAX cuts 64-bit integers to 32 outside of x64 with a mere warning.
        warnings.filterwarnings("error", message="Explicitly requested dtype")
        return jax.jit(function).trace(*arguments)


def held(traced: Any, platform: str) -> Lowered:
    """Returns what a traced program holds when it is lowered for a kind of device."""
    module = traced.lower(lowering_platforms=(platform,)).as_text()
    products = [
        line
        for line in re.findall(r"stablehlo\.(?:dot|dot_general|convolution)\b.*", module)
        # Integers multiply exactly, and float64 has digits enough.
        if re.search(r"[x<](f32|bf16|f16|f8\w+)>", line) and "HIGHEST" not in line
    ]
    # The mark of a user's products, see ``_of_user``.
    losses = sum("HIGH" in line for line in products)
    float64 = len(re.findall(r"tensor<[^>]*f64>", module))
    calls = tuple(sorted(set(re.findall(r"custom_call @(\w+)", module))))
    return Lowered(float64, len(products) - losses, losses, calls)


def as_on(backend: str) -> Any:
    """Returns a context where defaults are those of a kind of device: ``"gpu"`` or ``"tpu"``."""
    return mock.patch.object(jax, "default_backend", lambda: backend)


def check(name: str, make: Callable[[], Program]) -> tuple[int, list[Lowered | None], list[str]]:
    """Returns callbacks, what is held on CUDA and TPU (None: refused), and what is wrong."""
    callbacks, found = 0, []
    for platform, backend in (("cuda", "gpu"), ("tpu", "tpu")):
        with as_on(backend):
            traced = trace(*make())
            # With one, it cannot be lowered for a device that is not here.
            callbacks = len(re.findall(r"\b(?:\w+_callback|debug_print)\[", str(traced.jaxpr)))
            try:
                found.append(held(traced, platform))
            except ValueError as error:
                # What dpjax itself refuses on a TPU, and no other error.
                if "needs float64" not in str(error) and not callbacks:
                    raise
                found.append(None)
    here, tpu, allowed = [one for one in found if one], found[1], REDUCED.get(name, 0)
    faults = {
        "calls the host": callbacks,
        "is refused by a TPU": tpu is None and not callbacks and name not in FLOAT64,
        "holds float64 on a TPU": tpu is not None and tpu.float64,
        "multiplies in fewer digits than float32's": any(one.products != allowed for one in here),
    }
    return callbacks, found, [f"{name} {what}" for what, is_so in faults.items() if is_so]


def main(words: Sequence[str] | None = None) -> int:
    """Prints the tables, and returns 0 or, if something is held that should not be, 1."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.programs")
    parser.add_argument("names", nargs="*", metavar="NAME", help="of programs (default: all)")
    parser.add_argument("--devices", action="store_true", help="also on one TPU and four")
    arguments = parser.parse_args(words)
    names, known = arguments.names, programs()
    if unknown := set(names) - set(known):
        parser.error(f"there is no {min(unknown)!r}, but {', '.join(known)}.")
    if has_compiler := importlib.util.find_spec("libtpu") is not None:
        # Before JAX looks for devices, which it does once.
        os.environ |= _COMPILER
        # The compiler is there, but no TPU to be initialized.
        jax.config.update("jax_platforms", "cpu")
    else:
        print("libtpu is not installed: nothing is compiled for TPU, only lowered "
              "(pip install 'dpjax[tpu]').\n")  # fmt: skip
    wrong: list[str] = []
    _print(_HEADER, ["---"] * len(_HEADER))
    for name in names or known:
        try:
            callbacks, found, faults = check(name, known[name])
        except ImportError as error:  # scikit-learn is an extra
            _print([name, f"not looked at: {error}"])
            continue
        pairs = ([str(one[i]) if one else "refused" for one in found] for i in range(3))
        calls = dict.fromkeys(call for one in found if one for call in one.custom_calls)
        cells = [str(callbacks), *map(", ".join, pairs), ", ".join(calls) or "-"]
        if has_compiler and found[1]:
            with as_on("tpu"):
                more, float64 = _compiled(*known[name]())
            cells += more
            faults += [f"{name} is compiled with float64 for a TPU"] * float64
        _print([name, *cells])
        wrong += faults
    if arguments.devices and has_compiler:
        print()
        _print(_DEVICES, ["---"] * len(_DEVICES))
        for name, entry in ALL.items():
            if name in (names or known) and name not in FLOAT64 and not entry.one_release:
                with as_on("tpu"):
                    wrong += _shared(name)
    print("", *wrong, sep="\n")
    return 1 if wrong else 0


def _print(*rows: Sequence[str]) -> None:
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)


def _devices(count: int) -> list[Any]:
    return topologies.get_topology_desc("v5e:2x2", platform="tpu").devices[:count]


def _compiled(function: Callable[..., Any], arguments: Any) -> tuple[list[str], bool]:
    """Returns time, memory and cost of the program on one TPU, and whether it holds float64."""
    one = SingleDeviceSharding(_devices(1)[0])
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=one), arguments
    )
    begin = time.perf_counter()
    made = trace(function, shapes).lower().compile()
    seconds, cost = time.perf_counter() - begin, made.cost_analysis()
    numbers = seconds, _megabytes(made), cost["flops"] / 1e6, cost["bytes accessed"] / 1e6
    return [f"{number:.3g}" for number in numbers], "f64[" in made.as_text()


def _megabytes(compiled: Any) -> float:
    used = compiled.memory_analysis()
    return (used.argument_size_in_bytes + used.temp_size_in_bytes) / 2**20


def _shared(name: str) -> list[str]:
    """Prints the memory and collectives of a training on TPUs; returns what is wrong with them."""
    (one, _), (each, text) = _on_devices(name, 1), _on_devices(name, 4)
    sums = re.findall(r"= (.*) all-reduce(?:-start)?\(", text)
    others = len(re.findall(r" (?:all-gather|all-to-all|collective|reduce-scatter)\S*\(", text))
    _print([name, f"{one:.0f}", f"{each:.0f}", str(len(sums)), str(others)])
    # Sums of integers alone are the same on any number of devices.
    kinds = set(re.findall(r"(\w+)\[", " ".join(sums)))
    return [f"{name} sends more than sums of integers"] * bool(others or kinds - {"u32", "s32"})


def _on_devices(name: str, count: int) -> tuple[float, str]:
    """Returns MB on each device, and the program compiled for so many."""
    mesh = Mesh(np.array(_devices(count)), (shard.AXIS,))
    cut, same = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((shard.AXIS,), ()))

    def shape(leaf: Any, sharding: Any = same) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf), sharding=sharding)

    zero, sizes = np.float32(0), {"data_size": _MANY, "dimension": _WIDTH}
    rows = np.broadcast_to(zero, (_MANY, _WIDTH)), np.broadcast_to(zero, _MANY)
    data: Any = jax.tree.map(lambda leaf: shape(leaf, cut), rows)
    if count > 1:
        data = shard.Spread(data, mesh, _MANY, padded=False)
    if "batch_size" in ALL[name].example.settings:
        sizes["batch_size"] = _MANY // 64
    start = jax.random.key(0), jnp.zeros(_WIDTH)
    algorithm, *start = jax.tree.map(shape, (_example(name, **sizes), *start))
    made = program._solve.lower(algorithm, data, *start, unit="row", bounded_rows=False).compile()
    return _megabytes(made), made.as_text() or ""


if __name__ == "__main__":
    sys.exit(main())
