"""Sums of integers: chunks rounded to a public grid add up to the same bits in any order.

A sum of floats depends on the order of its additions, hence on how records are spread over devices,
processes or reads from disk. A sum of integers does not: the float64 sum of one chunk of rows is
rounded to a multiple of a grid that follows from the clip norm alone, and the multiples are added
as 64-bit integers. What that adds to the sensitivity is in ``rounding.rounding_slack``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dpjax._sharding import add_up, is_inside
from dpjax._typing import Array
from dpjax._wide import Expansion, float64, from_float64, sum_in_float64

if TYPE_CHECKING:
    from jaxtyping import Float, Int, Real

BITS = 30
"""Bits of each of the two integers that stand for one number."""
SPACING = 2.0 ** (1 - 2 * BITS)
"""The largest distance of neighbouring numbers of a grid, over the bound that the grid is for."""
MOST_NUMBERS = 2**32
"""Most numbers in one sum, over all its parts; rounding is charged for so many."""

_LOW = 0xFFFFFFFF
# The exponents of powers of two that float32 holds together with their inverses.
_LARGEST_EXPONENT = 126


class Words(NamedTuple):
    """64-bit integers as two words, which a loop can carry where x64 is off.

    Args:
      high: int32.
      low: uint32, of the same shape.
    """

    high: Int[Array, "*shape"]
    low: Int[Array, "*shape"]


Total = tuple[Words, Words]
"""What a loop over chunks carries: the coarse and the fine integers."""


class Summand(NamedTuple):
    """What is known of a sum before it is made.

    Args:
      shape: of the sum.
      dtype: float32 or float64, of the terms in which the finished sum is given.
      bound: on every coordinate of one row's contribution, a public number or an array that fits
        ``shape``.
    """

    shape: tuple[int, ...]
    dtype: jnp.dtype
    bound: Real[Array, "*broadcast"] | float

    def zero(self) -> Total:
        """Returns the sum of nothing, which a loop carries."""
        nothing = Words(jnp.zeros(self.shape, jnp.int32), jnp.zeros(self.shape, jnp.uint32))
        return nothing, nothing

    def add(self, total: Total, parts: Float[Array, "..."]) -> Total:
        """Returns ``total`` plus the sum of ``parts``, finite numbers, one for each block."""
        with jax.enable_x64(True):
            _, inverse = self._grid()
            multiple = sum_in_float64(parts) * inverse
            # By its name: a compiler takes adding and subtracting a large number for nothing.
            coarse = lax.round(multiple, lax.RoundingMethod.TO_NEAREST_EVEN)
            rest = (multiple - coarse) * 2.0**BITS
            fine = lax.round(rest, lax.RoundingMethod.TO_NEAREST_EVEN)
            return _plus(total[0], coarse), _plus(total[1], fine)

    def finish(self, total: Total) -> Expansion:
        """Returns the sum: the integers times the grid, in float64."""
        with jax.enable_x64(True):
            spacing, _ = self._grid()
            coarse, fine = (float64(_integers(words)) for words in total)
            return from_float64((coarse + fine * 2.0**-BITS) * spacing, self.dtype)

    def _grid(self) -> tuple[Array, Array]:
        """The spacing of the coarse integers and its inverse.

        It is 2^-30 times the power of two above the bound; with indices of 32 bits a sum has fewer
        than 2^31 rows, and its integers at most 62 bits.
        """
        bound = lax.convert_element_type(jnp.asarray(self.bound), jnp.float32)
        exponent = (lax.bitcast_convert_type(bound, jnp.int32) >> 23) - 126
        exponent = jnp.clip(exponent, -_LARGEST_EXPONENT, _LARGEST_EXPONENT)
        power, inverse = (
            float64(lax.bitcast_convert_type((127 + sign * exponent) << 23, jnp.float32))
            for sign in (1, -1)
        )
        return power * 2.0**-BITS, inverse * 2.0**BITS


def check(summands: list[Summand]) -> None:
    """Raises if the parts of a sum have more numbers than its rounding is charged for.

    Raises:
      ValueError: with both numbers.

    >>> check([Summand((2**20, 2**13), jnp.dtype("float32"), 1.0)])
    Traceback (most recent call last):
      ...
    ValueError: a clipped sum holds at most 4294967296 numbers, got 8589934592.
    """
    numbers = sum(math.prod(summand.shape) for summand in summands)
    if numbers > MOST_NUMBERS:
        raise ValueError(f"a clipped sum holds at most {MOST_NUMBERS} numbers, got {numbers}.")


def over_shares(totals: Sequence[Total]) -> Sequence[Total]:
    """Returns the sums over the shares of all devices, by one collective."""
    if not is_inside():
        return totals
    words = [word for total in totals for word in total]
    with jax.enable_x64(True):
        added = [_words(integers) for integers in add_up([_integers(word) for word in words])]
    return list(zip(added[::2], added[1::2], strict=True))


def _plus(words: Words, integers: Array) -> Words:
    return _words(_integers(words) + lax.convert_element_type(integers, jnp.int64))


def _words(total: Array) -> Words:
    return Words((total >> 32).astype(jnp.int32), (total & _LOW).astype(jnp.uint32))


def _integers(words: Words) -> Array:
    return (words.high.astype(jnp.int64) << 32) | words.low.astype(jnp.int64)
