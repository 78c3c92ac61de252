"""Standard normal draws by integers alone: the same bits on every kind of device."""

from __future__ import annotations

import functools
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpjax._typing import Array
from dpjax.mechanisms.base import fold

FRACTION = 56
"""Draws are integer multiples of 2^-FRACTION."""

_LONG = 14  # From this octave on a draw reads its second word: |z| above 3.97.


@functools.cache
def _table(name: str) -> np.ndarray:
    return np.load(Path(__file__).with_name(f"{name}.npy"))


def standard_normal(key: Array, shape: tuple[int, ...]) -> Array:
    """Returns independent N(0, 1) draws as int64 multiples of 2^-FRACTION (``shape``).

    Use them under ``jax.enable_x64(True)`` only: elsewhere JAX cuts them to 32 bits.

    Args:
      key: a key used for nothing else, shape ().
      shape: of the result.
    """
    with jax.enable_x64(True):
        return _standard_normal(key, shape)


@functools.partial(jax.jit, static_argnums=1)
def _standard_normal(key: Array, shape: tuple[int, ...]) -> Array:
    first = jax.random.bits(key, (2, math.prod(shape)), jnp.uint32)
    middle = jnp.broadcast_to(jnp.uint32([[1 << 31], [0]]), first.shape)
    long = first[0] >> 1 < 1 << 31 - _LONG
    second = lax.cond(
        jnp.any(long),
        lambda: jax.random.bits(fold(key, jnp.uint32([1])), first.shape, jnp.uint32),
        lambda: middle,
    )
    return normal_from_bits(first, jnp.where(long, second, middle)).reshape(shape)


@jax.jit
def normal_from_bits(first: Array, second: Array) -> Array:
    """Returns the normal quantile that random words choose: a sign and a tail probability.

    Args:
      first: uint32 (2, ...). The lowest bit of the first word is the sign; the others are the
        leading 63 bits of the probability u.
      second: uint32 (2, ...), the 64 bits that follow. u is the middle of what they leave open.

    Returns:
      int64 (...): the z with P(|Z| > z) = u, signed, in units of 2^-FRACTION.
    """
    with jax.enable_x64(True):
        z = evaluate(_table("normal"), first, second) >> 3
        return jnp.where(first[0] & 1 == 1, -z, z)


def evaluate(table: np.ndarray, first: Array, second: Array) -> Array:
    """Returns the function that a table holds, at the number that 127 bits write.

    The octave is the number of leading zeros; after the leading one come the number of the piece
    and then the 64 bits that are the place in it, counted from its upper end: all functions fall,
    so that coefficients are positive. Where the bits have ended, one 1 and zeros follow. (What
    lies beyond the last octave is drawn from it: 2^-octaves of the probability.)

    Args:
      table: int64 (octaves, pieces, degree + 1), coefficients of rising powers.
      first: uint32 (2, ...), its lowest bit left out.
      second: uint32 (2, ...).

    Returns:
      int64 (...), in the units of the table, rounded down: at most 3 units a product.
    """
    octaves, pieces, _ = table.shape
    bits = pieces.bit_length() - 1
    with jax.enable_x64(True):
        words = [word.astype(jnp.uint64) for word in (*first, *second)]
        high = words[0] >> 1 << 33 | words[1] << 1 | words[2] >> 31
        low = words[2] << 33 | words[3] << 1 | 1
        zeros = jnp.where(high == 0, 64 + lax.clz(low), lax.clz(high))
        octave = jnp.minimum(zeros, octaves - 1)
        high, low = _shifted(high, low, octave + 1)
        place = (octave << bits | high >> 64 - bits).astype(jnp.int32)
        x = ~(high << bits | low >> 64 - bits)
        left, right = (x >> 32).astype(jnp.int64), (x & 0xFFFF_FFFF).astype(jnp.int64)
        columns = jnp.asarray(table.reshape(octaves * pieces, -1).T)
        value = columns[-1].at[place].get(mode="promise_in_bounds")
        for column in columns[-2::-1]:
            top, bottom = value >> 32, value & 0xFFFF_FFFF
            value = column.at[place].get(mode="promise_in_bounds") + top * left
            value += (bottom.astype(jnp.uint64) * (x >> 32) >> 32).astype(jnp.int64)
            value += top * right >> 32
        return value


def _shifted(high: Array, low: Array, count: Array) -> tuple[Array, Array]:
    """Returns both halves of a 128-bit word shifted left by ``count``, from 1 to 127."""
    far = count >= 64
    rest = jnp.where(far, count - 64, count)
    moved = jnp.where(far, low, high) << rest
    return jnp.where(far, moved, moved | low >> 64 - rest), jnp.where(far, 0, low << rest)
