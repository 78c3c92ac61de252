"""Sum and noise as 64-bit integers and one rounding of both, which every device does alike.

A value is split into a multiple of a public grid and a remainder in units of 2^-44 of it. Noise is
a whole number of such units, so the two are added without any rounding; what is released is their
total, rounded once to the grid. With exact noise that is post-processing of the Gaussian mechanism
on the value: nothing is charged for the grid. Values and noise that were rounded apart would add a
grid times the root of the number of entries to the sensitivity.

All of it runs inside ``jax.enable_x64``; no 64-bit integer leaves this package.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpjax._typing import Array
from dpjax._wide import Expansion, to_expansion

GRID_BITS = 8
"""Sum and noise are rounded together to multiples of 2^-8 times the power of two below stddev."""

_BELOW = 44
# Units of a float32's last place: a standard deviation is what at most eight roundings to float32
# have left, those of a product's factors included, and may not come out below the accounted one.
_ROUNDED = 8
# Bits of the lower part of a draw, so that its product with 24 bits fits into 64.
_LOW = 28
# Bits for a number of grids: a sign and the carries of a few sums still fit into int64.
_MOST = 60
_REACH = _MOST - GRID_BITS
TINY, _HUGE = 2.0**-126, 2.0**127


class Scale(NamedTuple):
    """A public stddev, mantissa 2^(exponent - 23) rounded up, int64 and int32; and as given."""

    mantissa: Array
    exponent: Array
    given: Array


def in_float32(stddev: Array | float) -> Any:
    """Returns |stddev| in float32, which is 0 for 0 alone, as 0 adds no noise.

    >>> print(in_float32(1e-300), in_float32(0.0))
    1.1754944e-38 0.0
    """
    if not isinstance(stddev, jax.Array):
        size = np.abs(np.asarray(stddev, np.float64))
        with np.errstate(over="ignore"):  # infinite, which no answer survives
            return np.where(size == 0, 0, np.maximum(size, TINY)).astype(np.float32)
    # By its bits alone: processors take a subnormal number for 0.
    if stddev.dtype == jnp.float64:
        is_zero = lax.bitcast_convert_type(stddev, jnp.int64) << 1 == 0
        stddev = jnp.where(is_zero, 0, jnp.maximum(jnp.abs(stddev), TINY))
    bits = lax.bitcast_convert_type(lax.convert_element_type(stddev, jnp.float32), jnp.int32)
    bits &= 0x7FFFFFFF
    bits = jnp.where(bits == 0, 0, jnp.maximum(bits, 1 << 23))
    return lax.bitcast_convert_type(bits, jnp.float32)


def scale_of(stddev: Array | float) -> Scale:
    """Returns ``stddev`` as integers; what is below float32's smallest normal number is that."""
    with jax.enable_x64(True):
        given = in_float32(stddev)
        bits = lax.bitcast_convert_type(given, jnp.int32) + jnp.int32(_ROUNDED)
        bits = jnp.maximum(bits, jnp.int32(1 << 23))
        mantissa = (bits & jnp.int32((1 << 23) - 1)) | jnp.int32(1 << 23)
        return Scale(mantissa.astype(jnp.int64), (bits >> 23) - 127, given)


def in_units(draws: Array, scale: Scale, fraction: int) -> Array:
    """Returns ``scale`` times draws as a whole number of units, rounded to the nearest.

    Draws are int64, multiples of 2^-``fraction``, which is from 30 to 57.
    """
    with jax.enable_x64(True):
        # A mantissa counts 2^-23, a draw 2^-fraction and a unit 2^-52 of the same power of two.
        shift = fraction - 29
        high, low = draws >> _LOW, draws & ((1 << _LOW) - 1)
        below = (scale.mantissa * low + (1 << (shift - 1))) >> shift
        return ((scale.mantissa * high) << (_LOW - shift)) + below


def split(value: Array | Expansion, exponent: Array) -> tuple[Array, Array]:
    """Returns ``value`` as grids + rest 2^-44, its digits below a unit rounded; int64."""
    first, *others = to_expansion(value).terms
    with jax.enable_x64(True):
        grids, rest = _split(first, exponent)
        for term in others:
            more = _split(term, exponent)
            grids, rest = grids + more[0], rest + more[1]
        return grids, rest


def _split(term: Array, exponent: Array) -> tuple[Array, Array]:
    info = jnp.finfo(term.dtype)
    # By bits, because float arithmetic may flush a subnormal number to 0.
    bits = lax.bitcast_convert_type(term, jnp.int64 if info.bits == 64 else jnp.int32)
    stored = (bits >> info.nmant) & ((1 << info.nexp) - 1)
    # Subnormal numbers have no hidden bit, and the exponent of the smallest normal number.
    hidden = jnp.minimum(stored, 1) << info.nmant
    mantissa = ((bits & ((1 << info.nmant) - 1)) | hidden).astype(jnp.int64)
    mantissa = jnp.where(bits < 0, -mantissa, mantissa)
    # The last place of the mantissa is 2^shift grids.
    last = jnp.maximum(stored, 1).astype(jnp.int32) + (info.minexp - 1 - info.nmant)
    shift = last - exponent + GRID_BITS
    largest = _MOST - 1 - info.nmant
    left = jnp.clip(shift, 0, largest).astype(jnp.int64)
    right = jnp.clip(-shift, 0, _BELOW).astype(jnp.int64)
    # A right shift rounds towards minus infinity, so the rest is never negative.
    whole = mantissa >> right
    rest = (mantissa - (whole << right)) << (_BELOW - right)
    # Digits below a unit: what is left is below 2^9 grids, all of it in the rest.
    deep = jnp.clip(-shift - _BELOW, 0, 63).astype(jnp.int64)
    rounded = ((mantissa >> jnp.maximum(deep - 1, 0)) + 1) >> 1
    # Too large for the integers; ``release`` adds such values in floats instead.
    whole = jnp.where(shift > largest, jnp.sign(mantissa) << _MOST, whole << left)
    return jnp.where(deep > 0, 0, whole), jnp.where(deep > 0, rounded, rest)


def carried(grids: Array, rest: Array) -> tuple[Array, Array]:
    """Returns the same number with its rest from 0 to 2^44, so that two can be compared."""
    with jax.enable_x64(True):
        return grids + (rest >> _BELOW), rest & ((1 << _BELOW) - 1)


def release(value: Array | Expansion, noise: Array, scale: Scale) -> Array:
    """Returns ``value`` plus ``noise``, rounded together to the grid and then cast.

    Beyond 2^51 standard deviations, where integers end, noise is added in the value's own dtype. No
    noise of a finite epsilon is so small beside a sum of fewer than 2^32 records.

    Noise is int64 units of the shape of ``value``, and the grid depends on its ``scale`` alone. The
    result is NaN where the standard deviation is no number.
    """
    leading = to_expansion(value).leading
    with jax.enable_x64(True):
        grids, rest = split(value, scale.exponent)
        # Adding half a grid and dropping the rest rounds to the nearest grid point.
        total, _ = carried(grids, rest + noise + (1 << (_BELOW - 1)))
        power = lax.bitcast_convert_type((scale.exponent + 127) << 23, jnp.float32)
        power = lax.convert_element_type(power, leading.dtype)

        def as_float(integers: Array, bits: int) -> Array:
            unit = jnp.asarray(2.0**-bits, leading.dtype)
            return lax.convert_element_type(integers, leading.dtype) * unit * power

        within = jnp.abs(leading) * jnp.asarray(2.0**-_REACH, leading.dtype) < power
        added = leading + as_float(noise, GRID_BITS + _BELOW)
        result = jnp.where(within, as_float(total, GRID_BITS), added)
        result = jnp.where(scale.given == 0, leading, result)
        result = jnp.where(scale.given < _HUGE, result, jnp.asarray(jnp.nan, leading.dtype))
        return lax.convert_element_type(result, value.dtype)
