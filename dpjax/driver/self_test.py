"""What a guarantee rests on, tried on the device at hand before anything is spent."""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from dpjax._typing import Array, PyTree
from dpjax.derivatives import integers
from dpjax.mechanisms import fixed_point, perturb
from dpjax.mechanisms.keys import random_words
from dpjax.placement.shard import check_sums

# What a CPU's integers add up to, as a test computes anew.
KNOWN = 0xE65DE353BD5DC6EB


def check_devices(records: PyTree, numbers: int) -> None:
    """Raises if devices do not compute with integers as a CPU does, see ``checksum``.

    ``numbers`` are those of a clipped sum, as ``check_sums`` takes them.
    """
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
    """Returns one number for the integers of noise, of its rounding and of sums, all made up.

    >>> checksum() == KNOWN
    True
    """
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
