"""Fingerprints of everything that must be unchanged when a run resumes."""

import hashlib
import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._program import sha256
from dpjax._typing import Array, PyTree
from dpjax.placement.shard import SHARE

_DEVICES = re.compile(r"--xla_force_host_platform_device_count=\d+\s*")
_MODULUS = 2**256


def environment() -> dict[str, Any]:
    """Returns what, besides the algorithm and the data, decides the bits of a run.

    Another JAX, precision or random stream gives other sums or other noise. The number of devices
    is left out, since sums over them are exact, and so is the model of the processor: on another
    one XLA may order a sum differently.
    """
    return {
        "python": ".".join(map(str, sys.version_info[:2])),
        **{name: importlib.metadata.version(name) for name in ("dpjax", "jax", "jaxlib")},
        "x64": bool(jax.config.jax_enable_x64),  # pyright: ignore[reportAttributeAccessIssue]
        "threefry_partitionable": bool(jax.config.jax_threefry_partitionable),  # pyright: ignore
        "matmul_precision": str(jax.config.jax_default_matmul_precision),  # pyright: ignore
        # The number of forced host devices does not change a sum; any other flag may.
        "xla_flags": _DEVICES.sub("", os.environ.get("XLA_FLAGS", "")).strip(),
        "machine": platform.machine(),
        "platform": jax.default_backend(),
        "device_kind": jax.devices()[0].device_kind,
    }


def arrays(tree: PyTree) -> str:
    """Returns a hash of a pytree of arrays: its structure, shapes, dtypes and every bit."""
    found = map(np.asarray, jax.tree.leaves(tree))
    leaves = [f"{array.dtype}{array.shape}{array.tobytes().hex()}" for array in found]
    return sha256(str(jax.tree.structure(tree)), *leaves)


def shapes(examples: PyTree, key: Array) -> str:
    """Returns a hash of the tree of shapes and dtypes, keyed like ``content``: n may be private."""
    leaves = [f"{np.shape(leaf)} {jnp.result_type(leaf)}" for leaf in jax.tree.leaves(examples)]
    described = sha256(str(jax.tree.structure(examples)), *leaves)
    return content(np.frombuffer(described.encode(), np.uint8), key)


def content(examples: PyTree, key: Array) -> str:
    """Returns a hash of every byte of the data, keyed by the root key.

    Without the key a guess at the data cannot be confirmed by it; with the key it can, so it is as
    secret as the key.
    """
    rows = max(
        (np.shape(leaf)[0] for leaf in jax.tree.leaves(examples) if np.ndim(leaf)), default=1
    )
    return joined([part(examples, key, [range(rows)])])


def part(examples: PyTree, key: Array, rows: Sequence[range]) -> bytes:
    """Returns the share that some rows have in the hash of ``content``.

    Each range of rows begins at a multiple of ``SHARE``, and ends at one or with the data. It is
    32 bytes: the sum of keyed hashes of the chunks of ``SHARE`` rows, modulo 2^256.
    """
    # A keyed hash, because anyone could confirm a guess at the data by a plain one.
    secret, total = np.asarray(jax.random.key_data(key)).tobytes(), 0
    for place, leaf in enumerate(jax.tree.leaves(examples)):
        for start in (start for chunk in rows for start in chunk[::SHARE]):
            piece = leaf[start : start + SHARE] if np.ndim(leaf) else leaf
            array = np.ascontiguousarray(piece)
            # Place and start are hashed too, because the sum below forgets the order of its terms.
            described = f"{place} {start} {array.dtype} {array.shape[1:]} {array.size} "
            digest = hashlib.blake2b(described.encode(), key=secret, digest_size=32)
            digest.update(array.tobytes())
            # A sum, so that processes holding different rows can add their parts in any order.
            total += int.from_bytes(digest.digest(), "big")
    return (total % _MODULUS).to_bytes(32, "big")


def joined(parts: Iterable[bytes]) -> str:
    """Returns the hash of which ``parts`` are the shares of all rows, each in one of them."""
    total = sum(int.from_bytes(one, "big") for one in parts)
    return (total % _MODULUS).to_bytes(32, "big").hex()
