"""Sums of integers: chunks rounded to a public grid add up to the same bits in any order.

A sum of floats depends on the order of its additions, hence on how records are spread over devices,
processes or reads from disk. A sum of integers does not: the float64 sum of one chunk of rows is
rounded to a multiple of a grid that follows from the clip norm alone, and the multiples are added
as 64-bit integers. Where a device has no float64, the sum of each block of rows is rounded instead.
What that adds to the sensitivity is in ``rounding.rounding_error``.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dpjax._typing import Array, Float, Int, PyTree, Real
from dpjax._wide import Expansion, float64, from_float64, sum_in_float64
from dpjax.placement.shard import add_up, is_inside

BITS = 30
"""Bits of each of the two integers that stand for one number."""
SPACING = 2.0 ** (1 - 2 * BITS)
"""The largest distance of neighbouring numbers of a grid, over the bound that the grid is for."""
MOST_NUMBERS = 2**32
"""Most numbers in one sum, over all its parts; rounding is charged for so many."""

_LOW = 0xFFFFFFFF
# The exponents of powers of two that float32 holds together with their inverses.
_LARGEST_EXPONENT = 126
# Of the coarse integer of a block, those that are rounded first, into 32 bits with its 128 rows.
_UPPER = 18
_NEAREST = lax.RoundingMethod.TO_NEAREST_EVEN


class Words(NamedTuple):
    """64-bit integers as words of int32 and uint32, which a loop can carry where x64 is off."""

    high: Int[Array, "*shape"]
    low: Int[Array, "*shape"]


Total = tuple[Words, Words]
"""What a loop over chunks carries: the coarse and the fine integers."""


class Summand(NamedTuple):
    """What is known of a sum before it is made."""

    shape: tuple[int, ...]
    dtype: jnp.dtype
    """Float32 or float64, of the terms in which the finished sum is given."""
    bound: Real[Array, "*broadcast"] | float
    """On every coordinate of one row's contribution: public, a number or an array."""
    squares: int = 0
    """How many square blocks, first in a sum of shape (rows, p), are made exactly symmetric: each
    the mean of itself and its transpose."""

    def zero(self) -> Total:
        """Returns the sum of nothing, which a loop carries."""
        nothing = Words(jnp.zeros(self.shape, jnp.int32), jnp.zeros(self.shape, jnp.uint32))
        return nothing, nothing

    def add(self, total: Total, parts: Float[Array, "..."]) -> Total:
        """Returns ``total`` plus the sum of ``parts``, finite numbers, one for each block."""
        _, inverse = self._grid()
        inverse = jnp.broadcast_to(inverse, self.shape)
        if parts.dtype == jnp.float64:
            both = _in_float64(parts, inverse)
        else:
            parts = parts.astype(jnp.float32)
            # Decided when the program is lowered: one trace may be for several kinds of device.
            both = lax.platform_dependent(parts, inverse, cpu=_in_float64, default=of_blocks)
        return _plus(total[0], both[0]), _plus(total[1], both[1])

    def finish(self, total: Total) -> Expansion:
        """Returns the sum: the integers times the grid, of float64 or as float32 terms."""
        power, _ = self._grid()
        if self.squares:
            # Integers doubled and a grid half as wide: the mean with the transpose is exact.
            power, total = power * 0.5, (self._doubled(total[0]), self._doubled(total[1]))
        if self.dtype == jnp.float64:
            return Expansion(_as_floats(total, power, self.dtype))
        floats = functools.partial(_as_floats, dtype=self.dtype)
        return Expansion(lax.platform_dependent(total, power, cpu=floats, default=_as_float32))

    def _doubled(self, words: Words) -> Words:
        """Twice the sum, with each square block plus its transpose in place of itself."""
        rows, p = self.squares * self.shape[1], self.shape[1]
        with jax.enable_x64(True):
            integers = _integers(words)
            blocks = integers[:rows].reshape(-1, p, p)
            blocks = (blocks + blocks.swapaxes(1, 2)).reshape(rows, p)
            return _words(jnp.concatenate([blocks, integers[rows:] << 1]))

    def _grid(self) -> tuple[Array, Array]:
        """The power of two above the bound, and its inverse, float32.

        The coarse integers are multiples of 2^-30 of it; with indices of 32 bits a sum has fewer
        than 2^31 rows, and its integers at most 62 bits.
        """
        # Rounding the bound either way is harmless: of a power of two the next power is taken.
        bound = lax.convert_element_type(jnp.asarray(self.bound), jnp.float32)
        # Read off the bits of a positive float32: a logarithm may round to the next power.
        exponent = (lax.bitcast_convert_type(bound, jnp.int32) >> 23) - 126
        exponent = jnp.clip(exponent, -_LARGEST_EXPONENT, _LARGEST_EXPONENT)
        power, inverse = (
            lax.bitcast_convert_type((127 + sign * exponent) << 23, jnp.float32) for sign in (1, -1)
        )
        return power, inverse


def _in_float64(parts: Array, inverse: Array) -> tuple[Array, Array]:
    """The coarse and the fine integers of the float64 sum of some blocks."""
    with jax.enable_x64(True):
        multiple = sum_in_float64(parts) * (float64(inverse) * 2.0**BITS)
        # By its name: a compiler takes adding and subtracting a large number for nothing.
        coarse = lax.round(multiple, _NEAREST)
        fine = lax.round((multiple - coarse) * 2.0**BITS, _NEAREST)
        return coarse.astype(jnp.int64), fine.astype(jnp.int64)


def of_blocks(parts: Array, inverse: Array) -> tuple[Array, Array]:
    """The sums of both integers of every block, without float64: exact but for the last digit."""
    # Below 2^-66 float32 could not hold the sum's last digits: there no record contributes.
    inverse = jnp.where(inverse < 2.0**66, inverse, 0)
    rest = parts * inverse[None] * 2.0**_UPPER
    pieces = []
    with jax.enable_x64(True):
        for bits in (BITS - _UPPER, BITS, 0):
            nearest = lax.round(rest, _NEAREST)
            # Differences are exact, and so is all that is scaled by powers of two.
            rest = (rest - nearest) * jnp.float32(2.0**bits)
            whole = lax.convert_element_type(nearest, jnp.int32)
            pieces.append(jnp.sum(whole, axis=0, dtype=jnp.int64))
        return (pieces[0] << (BITS - _UPPER)) + pieces[1], pieces[2]


def _as_floats(total: Total, power: Array, dtype: jnp.dtype) -> tuple[Array, ...]:
    """The sum in float64, as terms of ``dtype``."""
    with jax.enable_x64(True):
        coarse, fine = (float64(_integers(words)) for words in total)
        spacing = float64(power) * 2.0**-BITS
        return from_float64((coarse + fine * 2.0**-BITS) * spacing, dtype).terms


def _as_float32(total: Total, power: Array) -> tuple[Array, ...]:
    """The sum as three float32 terms, each what is left of the integers rounded to 24 bits."""
    with jax.enable_x64(True):
        coarse, fine = map(_integers, total)
        # Many blocks' fine integers are more than one coarse unit.
        carry = (fine + (1 << BITS - 1)) >> BITS
        coarse, fine = coarse + carry, fine - (carry << BITS)
        # Of a small sum all digits fit into one integer.
        small = jnp.abs(coarse) < 1 << BITS
        rest = jnp.where(small, (coarse << BITS) + fine, coarse)
        terms, unit = [], 2.0 ** (-2 * BITS)
        for last in (False, False, True):
            if last:
                rest = jnp.where(small, rest, (rest << BITS) + fine)
            term = lax.convert_element_type(rest, jnp.float32)
            rest = rest - lax.convert_element_type(term, jnp.int64)
            scale = unit if last else jnp.where(small, jnp.float32(unit), jnp.float32(2.0**-BITS))
            terms.append(term * scale * power)
        return tuple(terms)


COUNT = Summand((), jnp.dtype("float32"), bound=1.0)
"""That of a sum of numbers from 0 to 1, such as flags."""


def check(numbers: int) -> None:
    """Raises if the parts of a sum have more numbers than its rounding is charged for.

    >>> check(2**33)
    Traceback (most recent call last):
      ...
    ValueError: a clipped sum holds at most 4294967296 numbers, got 8589934592.
    """
    if numbers > MOST_NUMBERS:
        raise ValueError(f"a clipped sum holds at most {MOST_NUMBERS} numbers, got {numbers}.")


def over_shares(totals: PyTree) -> PyTree:
    """Returns the sums of ``Words`` over the shares of all devices, by one collective."""
    if not is_inside():
        return totals
    # All words in one message: each collective waits for the slowest device.
    words, structure = jax.tree.flatten(totals, is_leaf=lambda node: isinstance(node, Words))
    with jax.enable_x64(True):
        return structure.unflatten(map(_words, add_up([_integers(word) for word in words])))


def _plus(words: Words, integers: Array) -> Words:
    with jax.enable_x64(True):
        return _words(_integers(words) + integers)


def _words(total: Array) -> Words:
    # The shift keeps the sign, so that the high word carries it.
    return Words((total >> 32).astype(jnp.int32), (total & _LOW).astype(jnp.uint32))


def _integers(words: Words) -> Array:
    return (words.high.astype(jnp.int64) << 32) | words.low.astype(jnp.int64)
