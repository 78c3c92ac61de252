"""Standard noise by integers alone: fixed-point tables of quantiles, equal bits on all devices."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpjax._typing import Array
from dpjax.mechanisms.keys import fold, is_wide, random_words

FRACTION = 56
"""Draws are integer multiples of 2^-FRACTION."""

# benchmarks/noise_tables.py proves both errors; a test holds the files' checksums.
NORMAL_ERROR = 2.0**-54.3
"""Bound on |draw - quantile| of ``normal_from_bits``, out to 10 standard deviations."""
GUMBEL_ERROR = 2.0**-50
"""The same for ``gumbel_from_bits``, to where either tail has probability 2^-65."""

_LONG = 14  # Octaves from this one on read a second word: normal draws above 4.0.
_LOOP = 2**17  # More draws are made by a loop: a TPU compiles and holds a part of this size.
_FEW = 2**13  # Up to this the loop over second words would compile longer than it saves.
_ROWS = 16  # Draws of which one at a time gets its second word.


def standard_normal(key: Array, shape: tuple[int, ...]) -> Array:
    """Returns independent N(0, 1) draws as int64 multiples of 2^-FRACTION (``shape``).

    Of several keys, (m,), each makes its own: (m, ``shape``). Use draws under
    ``jax.enable_x64(True)`` alone: outside of it JAX cuts them to 32 bits.
    """
    with jax.enable_x64(True):
        return _draw(normal_from_bits, key, shape)


def standard_gumbel(key: Array, shape: tuple[int, ...]) -> Array:
    """Returns independent standard Gumbel draws, like ``standard_normal``."""
    with jax.enable_x64(True):
        return _draw(gumbel_from_bits, key, shape)


@functools.partial(jax.jit, static_argnums=(0, 2, 3))
def _draw(
    from_bits: Callable[..., Array], key: Array, shape: tuple[int, ...], few: int = _FEW
) -> Array:
    if key.ndim:  # each draws few, all of them many
        return jax.vmap(lambda one: _draw(from_bits, one, shape, 0))(key)
    size = math.prod(shape)
    loops = max(1, -(-size // _LOOP))
    columns = -(-size // (_ROWS * loops))
    if loops == 1:
        draws = _some(from_bits, key, columns, few)
    else:
        keys = jax.vmap(lambda i: fold(key, i[None]))(jnp.arange(loops, dtype=jnp.uint32))
        draws = lax.map(lambda key: _some(from_bits, key, columns, few), keys)
    return draws.reshape(-1)[:size].reshape(shape)


def _some(from_bits: Callable[..., Array], key: Array, columns: int, few: int) -> Array:
    """Returns _ROWS draws a column, int64 (_ROWS * columns,)."""
    size, place = _ROWS * columns, jnp.arange(columns, dtype=jnp.int32)
    counts = jnp.arange(size, dtype=jnp.uint32)
    if is_wide(key) and size <= few:
        # As fast for few, and half a second less to compile than whole hashes.
        words = jax.random.bits(key, (4, size), jnp.uint32)
    else:
        words = random_words(key, counts)
    if len(words) == 2 and size <= few:
        words = jnp.concatenate([words, random_words(key, counts + jnp.uint32(size))])
    first, long = words[:2], words[0] >> 1 < 1 << 31 - _LONG
    if len(words) == 4:
        # Others read the middle, for one law whatever the key.
        return from_bits(first, jnp.where(long, words[2:], jnp.uint32([[1 << 31], [0]])))
    # With keys of 64 bits second words cost another hash, which one draw in 2^14 reads. So they are
    # made for one such draw of each column at a time, until none is left.
    rows = jnp.arange(_ROWS, dtype=jnp.int32)[:, None]

    def after(row: Array) -> Array:
        left = long.reshape(_ROWS, columns) & (rows > row[None])
        return jnp.min(jnp.where(left, rows, _ROWS), 0)

    def again(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        count, row, draws = state
        at = row * columns + place
        second = random_words(key, count + place.astype(jnp.uint32))
        new = from_bits(first.at[:, at].get(mode="clip"), second)
        draws = draws.at[at].set(new, mode="drop", unique_indices=True)
        return count + jnp.uint32(columns), after(row), draws

    state = jnp.uint32(size), after(jnp.full_like(place, -1)), from_bits(first)
    return lax.while_loop(lambda state: jnp.any(state[1] < _ROWS), again, state)[2]


@jax.jit
def normal_from_bits(first: Array, second: Array | None = None) -> Array:
    """Returns the normal quantile that 128 random bits choose: a sign and a tail probability u.

    The lowest bit of ``first``, uint32 (2, ...), is the sign, the other 63 are the leading bits of
    u. ``second`` are the 64 that follow; None are none, to be read where u is above 2^-14 only; u
    is the middle of what is left open. It is the int64 z with P(|Z| > z) = u, signed, in units of
    2^-FRACTION, to NORMAL_ERROR. Below u = 2^-76 it is one from 9.94 to 10.02 instead.
    """
    with jax.enable_x64(True):
        return _signed(first, evaluate(_table("normal"), first, second) >> 3)


@jax.jit
def gumbel_from_bits(first: Array, second: Array | None = None) -> Array:
    """Returns the Gumbel quantile that the same bits choose: a side and its tail's probability.

    The lowest bit of ``first`` is the side, 1 the lower one: int64 g with P(G > g) = u / 2, or with
    P(G < g) = u / 2, to GUMBEL_ERROR. Below u = 2^-64, the total variation, it is one up to 2^-63.
    """
    with jax.enable_x64(True):
        return _signed(first, evaluate(_table("gumbel"), first, second) >> 1)


@functools.cache
def _table(name: str) -> np.ndarray:
    return np.load(Path(__file__).with_name(f"{name}.npy"))


def _signed(first: Array, size: Array) -> Array:
    return jnp.where(first[0] & 1 == 1, -size, size)


def evaluate(table: np.ndarray, first: Array, second: Array | None) -> Array:
    """Returns the function that a table holds, at the number that 63 or 127 bits write.

    The number of leading zeros is the octave, the bits after the leading one are the piece, and the
    64 after those count how far the number is from the piece's upper end. Where the bits have
    ended, one 1 and zeros follow. Numbers beyond the last octave are drawn from it.

    A table is int64 (sides, octaves, pieces, degree + 1), coefficients of rising powers; the last
    is below 2^31. If there are two sides the lowest bit of ``first``, uint32 (2, ...), is the side,
    and not one of the 63. The result is int64 (...), in the units of the table; each product is
    rounded down by less than 3 of them.
    """
    sides, octaves, pieces, terms = table.shape
    bits, count = pieces.bit_length() - 1, sides * octaves * pieces
    with jax.enable_x64(True):
        words = [word.astype(jnp.uint64) for word in first]
        high, low = words[0] >> 1 << 33 | words[1] << 1, jnp.uint64(0)
        if second is None:
            high |= 1
            octave = jnp.minimum(lax.clz(high), octaves - 1)
            high = high << octave << 1
        else:
            after = [word.astype(jnp.uint64) for word in second]
            high, low = high | after[0] >> 31, after[0] << 33 | after[1] << 1 | 1
            zeros = jnp.where(high == 0, 64 + lax.clz(low), lax.clz(high))
            octave = jnp.minimum(zeros, octaves - 1)
            high, low = _shifted(high, low, octave + 1)
        octave += (words[0] & sides - 1) * octaves
        place = (octave << bits | high >> 64 - bits).astype(jnp.int32)
        x = ~(high << bits | low >> 64 - bits)
        left, right = (x >> 32).astype(jnp.int64), (x & 0xFFFF_FFFF).astype(jnp.int64)
        # One column after the other: rows would be padded to 128 lanes on a TPU.
        flat = jnp.asarray(table.reshape(count, terms).T.reshape(-1))
        columns = [flat.at[place + i * count].get(mode="promise_in_bounds") for i in range(terms)]
        value = columns[-2] + (columns[-1] * left >> 32)
        for column in columns[-3::-1]:
            top, bottom = value >> 32, value & 0xFFFF_FFFF
            product = top * left + (top * right >> 32)
            product += (bottom.astype(jnp.uint64) * (x >> 32) >> 32).astype(jnp.int64)
            value = column + product
        return value


def _shifted(high: Array, low: Array, count: Array) -> tuple[Array, Array]:
    """Returns both halves of a word of 128 bits shifted left by ``count``, from 1 to 127."""
    far = count >= 64
    rest = jnp.where(far, count - 64, count)
    moved = jnp.where(far, low, high) << rest
    # A shift by all 64 bits gives 0.
    return jnp.where(far, moved, moved | low >> 64 - rest), jnp.where(far, 0, low << rest)
