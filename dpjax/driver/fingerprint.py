"""What must be the same for a run to go on where it stopped, as short comparable values."""

import dataclasses
import functools
import hashlib
import importlib.metadata
import os
import platform
import re
import sys
import types
from typing import Any

import jax
import numpy as np

from dpjax._typing import Array, PyTree

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))


def environment() -> dict[str, Any]:
    """Returns what, besides the algorithm and the data, decides the bits of a run.

    Another JAX, precision, device count or random stream gives other sums or other noise. The model
    of the processor is left out: on another one XLA may order a sum differently.
    """
    return {
        "python": ".".join(map(str, sys.version_info[:2])),
        **{name: importlib.metadata.version(name) for name in ("dpjax", "jax", "jaxlib")},
        "x64": bool(jax.config.jax_enable_x64),  # pyright: ignore[reportAttributeAccessIssue]
        "threefry_partitionable": bool(jax.config.jax_threefry_partitionable),  # pyright: ignore
        "matmul_precision": str(jax.config.jax_default_matmul_precision),  # pyright: ignore
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "machine": platform.machine(),
        "platform": jax.default_backend(),
        "device_kind": jax.devices()[0].device_kind,
        "device_count": jax.device_count(),
    }


def config(value: Any) -> str:
    """Returns a hash of an algorithm: its numbers, its structure, and the code of its functions.

    The same in every process. Of a function it covers bytecode, defaults and closure, not the
    module variables that it reads.

    >>> config(lambda w: w + 1) == config(lambda w: w + 2)
    False
    """
    return hashlib.sha256(repr(_describe(value, ())).encode()).hexdigest()


def shapes(examples: PyTree, key: Array) -> str:
    """Returns a hash of the tree of shapes and dtypes, keyed like ``content``: n may be private."""
    described = (
        str(jax.tree.structure(examples)),
        [(np.shape(leaf), str(jax.numpy.result_type(leaf))) for leaf in jax.tree.leaves(examples)],
    )
    return content(np.frombuffer(config(described).encode(), np.uint8), key)


def content(examples: PyTree, key: Array) -> str:
    """Returns a hash of every byte of the data, keyed by the root key.

    Without the key a guess at the data cannot be confirmed by it; with the key it can, so it is as
    secret as the key.
    """
    digest = hashlib.blake2b(key=np.asarray(jax.random.key_data(key)).tobytes(), digest_size=32)
    for leaf in jax.tree.leaves(examples):
        array = np.ascontiguousarray(leaf)
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(array.view(np.uint8).data if array.size and array.ndim else array.tobytes())
    return digest.hexdigest()


def _describe(value: Any, inside: tuple[int, ...]) -> Any:
    # A closure may hold the function it belongs to.
    if id(value) in inside:
        return "itself"
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    down = functools.partial(_describe, inside=(*inside, id(value)))
    if isinstance(value, _PLAIN):
        return kind, repr(value)
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        array = np.asarray(value)
        return str(array.dtype), array.shape, hashlib.sha256(array.tobytes()).hexdigest()
    if isinstance(value, tuple | list):
        return kind, [down(item) for item in value]
    if isinstance(value, dict | types.MappingProxyType):
        return kind, sorted((repr(name), down(item)) for name, item in value.items())
    if isinstance(value, set | frozenset):
        return kind, sorted(repr(down(item)) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return kind, [(field.name, down(getattr(value, field.name))) for field in fields]
    if isinstance(value, functools.partial):
        return kind, down(value.func), down(value.args), down(value.keywords)
    if isinstance(value, types.MethodType):
        return kind, down(value.__func__), down(value.__self__)
    if isinstance(value, types.FunctionType):
        cells = [down(cell.cell_contents) for cell in value.__closure__ or ()]
        name = (value.__module__, value.__qualname__)
        return *name, down(value.__code__), down(value.__defaults__), cells
    if isinstance(value, types.CodeType):
        return value.co_code.hex(), value.co_names, down(value.co_consts)
    wrapped = getattr(value, "__wrapped__", None)
    if wrapped is not None:
        return kind, down(wrapped)
    return kind, re.sub(r" at 0x[0-9a-f]+", "", repr(value))
