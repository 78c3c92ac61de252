"""Checks before anything is spent: shapes and dtypes of the data, and the device at hand."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import Tracer

from dpjax._typing import Array, Params, PyTree, confusable
from dpjax.algorithms import Algorithm
from dpjax.datasets import Dataset
from dpjax.datasets.dataset import check_arrays
from dpjax.derivatives import integers
from dpjax.driver import fingerprint
from dpjax.mechanisms import fixed_point, perturb
from dpjax.mechanisms.keys import guessable, random_words
from dpjax.objectives import Objective
from dpjax.objectives.classifier import CrossEntropy
from dpjax.objectives.keyed import KeyedLoss
from dpjax.objectives.units import UnitLoss
from dpjax.oracles import check_examples
from dpjax.placement.processes import Team
from dpjax.placement.shard import check_sums
from dpjax.placement.stream import shaped


def check_data(algorithm: Algorithm, data: Dataset | PyTree, params: Params) -> None:
    """Raises if data, parameters and the declared numbers do not fit together.

    Raises:
      ValueError: for a class of the algorithm that was registered by JAX's ``register_dataclass``,
        see ``dpjax.pytree_dataclass``; as ``check_arrays`` and ``check_examples``; or for data
        that declare other classes than the objective or the network has, or a number where it has
        classes.

    Privacy: reads shapes, dtypes and declarations, no value.
    """
    if confused := confusable(jax.tree.structure(algorithm)):
        name = confused[0].__name__
        raise ValueError(
            f"{name} is registered by jax.tree_util.register_dataclass, and JAX may run the "
            "compiled program of another such class in its place. Decorate it by "
            "@dpjax.pytree_dataclass instead."
        )
    examples = data.examples if isinstance(data, Dataset) else data
    check_arrays("data", examples)
    # Later checks see shapes alone: an error about a value would reveal it at no cost.
    examples = shaped(examples)
    for query in algorithm.queries:
        check_examples(query, examples, params)
    if isinstance(data, Dataset):
        _check_declared(algorithm.objective, data, examples, params)


def check_alike(
    team: Team, chosen: Callable[[], str], examples: PyTree, params: Params, key: Array | None
) -> None:
    """Raises unless all processes of a training begin it alike; nothing is spent by then.

    ``chosen`` returns the hash of the configuration.
    """
    if team.size == 1 or isinstance(key, Tracer):
        return
    whose = "that of the checkpoint" if key is None else "random"
    # Random keys may differ, because all take the key of process 0. A guessable key was chosen by
    # the caller, and every process must have the same.
    if key is not None and guessable(key):
        whose = f"{jax.random.key_impl(key)} {fingerprint.arrays(jax.random.key_data(key))}"
    environment = {name: str(value) for name, value in fingerprint.environment().items()}
    team.agree(
        environment
        | {
            "configuration": chosen(),
            "starting point": fingerprint.arrays(params),
            "shapes and dtypes of the data": fingerprint.shapes(examples, jax.random.key(0)),
            "key": whose,
        }
    )


def _check_declared(objective: Objective, data: Dataset, examples: PyTree, params: Params) -> None:
    kind, loss, scale, row = objective.label_kind, objective.loss, data.preprocessing, 0
    if isinstance(loss, UnitLoss):
        # A unit's first record stands for all, because only shapes are read.
        loss, examples, row = loss.loss, examples[0], (0, 0)
    while isinstance(loss, KeyedLoss):
        loss = loss.loss
    declared = 0 if scale is None or scale.classes is None else len(scale.classes)
    if kind is not None:
        counted = kind.classes
    elif isinstance(loss, CrossEntropy):
        # The network is traced on one record; the last axis of its output holds the logits.
        record = jax.eval_shape(lambda x: jax.tree.map(lambda leaf: leaf[row], x), examples[0])
        logits = jax.eval_shape(loss.apply, params, record).shape[-1]
        if declared > logits:
            raise ValueError(
                f"the data declare {declared} classes, and the network gives {logits} logits: give "
                "it one for each class."
            )
        # A network may have more logits than the data declare classes.
        counted = declared or logits
    else:
        return
    if declared and declared != counted:
        raise ValueError(
            f"{objective.name} is a loss for {_labels_of(counted)}, but the data declare "
            f"{declared} classes: take {_ADVICE.get(declared, _MANY)}, or "
            + ("declare other classes." if counted else "declare the label's bounds in a schema.")
        )
    # A number that is no class is an impossible label: its record would contribute 0 without an
    # error.
    if scale is not None and scale.label_bounds is not None and counted is not None:
        raise ValueError(
            f"{objective.name} is a loss for {_labels_of(counted)}, but the data declare a number "
            "with bounds as the label: declare its classes, or take a loss of numbers such as "
            "objectives.least_squares()."
        )


_ADVICE = {2: "a loss for two labels such as objectives.logistic_l2()"}
_MANY = "objectives.softmax(classes), or a network with dpjax.fit"


def _labels_of(classes: int | None) -> str:
    return "numbers" if classes is None else "two labels" if classes == 2 else f"{classes} classes"


# What a CPU's integers add up to, as a test computes anew.
KNOWN = 0xE65DE353BD5DC6EB


def check_devices(records: PyTree, numbers: int) -> None:
    """Raises if devices do not compute with integers as a CPU does; arguments of ``check_sums``."""
    # The known number is that of a CPU; a test computes it there anew.
    if jax.default_backend() != "cpu":
        _check_one(jax.default_backend())
    check_sums(records, numbers)


@functools.cache
def _check_one(backend: str) -> None:
    # A surrounding jit may be tracing: the check must run now, not become part of the program.
    with jax.ensure_compile_time_eval():
        found = checksum()
    if found != KNOWN:
        raise RuntimeError(
            f"this {backend} does not compute the integers that noise and sums are made of as a "
            "CPU does, so no training on it has a guarantee; nothing was asked. Run on a CPU, and "
            "report the versions of jax and of the device's driver."
        )


def checksum() -> int:
    """Returns one number for the integers of noise, of its rounding and of sums, all made up."""
    key = jax.random.wrap_key_data(jnp.arange(2, dtype=jnp.uint32), impl="threefry2x32")
    # Odd weights modulo 2^64: an error in one part always changes the sum.
    return sum(int(part) * (2 * place + 1) for place, part in enumerate(_parts(key))) % 2**64


@jax.jit
def _parts(key: Array) -> list[Array]:
    places = jnp.arange(4096, dtype=jnp.uint32)
    words = jnp.concatenate([random_words(key, places), random_words(key, places + 4096)])
    # Octaves up to the last: leading zeros, and second words that are read.
    words = words.at[0].set(words[0] >> places % 32).at[1].set(words[1] >> places // 32 % 32)
    # Any digits, from 1e-34 to 128, which a block of 128 rows adds up to.
    values = lax.bitcast_convert_type(words[2] % 0x3B00_0000 + 2**27, jnp.float32)
    values = jnp.where(words[3] & 1 == 1, -values, values)
    noisy = perturb(key, places.astype(jnp.float32) * jnp.float32(0.375), 1.7)
    sums = integers.of_blocks(values.reshape(64, 64), jnp.ones(64, jnp.float32))
    with jax.enable_x64(True):
        found = [
            fixed_point.normal_from_bits(words[:2], words[2:]),
            fixed_point.normal_from_bits(words[:2]),
            fixed_point.gumbel_from_bits(words[:2], words[2:]),
            lax.bitcast_convert_type(noisy, jnp.int32),
            *sums,
        ]
        odd = 2 * places.astype(jnp.uint64) + 1
        return [jnp.sum(part.astype(jnp.uint64) * odd[: part.size]) for part in found]
