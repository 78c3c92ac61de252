"""Checks on the host, before anything is spent: each raises a ValueError that names the fix."""

import difflib
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

# Its square times 2^31 is 2.1e37, and float32 ends at 3.4e38, see `clip_norm`.
_LARGEST_CLIP_NORM = 1e14
# No count is larger; those of rows and steps are ``int32_count``.
_LARGEST_COUNT = 2**63 - 1


def shown(value: Any) -> str:
    """Returns ``value`` as an error may print it: a number or a word, of anything else the type.

    What is passed in the wrong place can be a key, or records.

    >>> shown(-1.0), shown("zero"), shown([113756237, 3437641404])
    ('-1.0', "'zero'", 'an object of type list')
    """
    if isinstance(value, int) and abs(value) >= 10**40:  # Python does not print thousands of digits
        return f"a number of {value.bit_length()} bits"
    # A key of JAX has a dtype of its own, and would print its words.
    ordinary = isinstance(getattr(value, "dtype", None), np.dtype)
    number = ordinary and getattr(value, "shape", None) == ()
    if number or value is None or isinstance(value, bool | int | float | complex | str):
        return repr(value)
    return f"an object of type {type(value).__name__}"


def positive(name: str, value: Any) -> float:
    """Returns ``value`` as a float, or raises if it is not a finite number above 0."""
    return _number(name, value, lambda number: 0 < number < math.inf, "a finite number above 0")


def normal(name: str, value: Any) -> float:
    """Returns ``value`` as a float, or raises if it is not above 0 and normal in float32.

    For the settings that theory multiplies and divides by: no product of a few leaves float64.
    """
    number = positive(name, value)
    if not float(np.finfo(np.float32).tiny) <= number <= float(np.finfo(np.float32).max):
        raise ValueError(f"{name} must be a normal float32 number, got {value!r}.")
    return number


def clip_norm(name: str, value: Any) -> float:
    """Returns ``value`` as a float, or raises if it is not above 0 and at most 1e14.

    Two such numbers multiply, a bound and a weight, and 2^31 rows of their product, the most that
    there can be, are within float32: a sum overflows on no data, where noise could not hide it.
    """
    number = positive(name, value)
    if number > _LARGEST_CLIP_NORM:
        raise ValueError(
            f"{name} must be at most {_LARGEST_CLIP_NORM:g}, got {value!r}: sums of contributions "
            "that large may leave float32. Rescale the loss."
        )
    return number


def finite(name: str, value: Any) -> float:
    """Returns ``value`` as a float, or raises if it is not a finite number."""
    return _number(name, value, math.isfinite, "a finite number")


def non_negative(name: str, value: Any) -> float:
    """Returns ``value`` as a float, or raises if it is not a finite number of at least 0."""
    return _number(
        name, value, lambda number: 0 <= number < math.inf, "a finite number of at least 0"
    )


def open_unit(name: str, value: Any) -> float:
    """Returns ``value`` as a float, or raises if it is not strictly between 0 and 1."""
    return _number(name, value, lambda number: 0 < number < 1, "strictly between 0 and 1")


def closed_unit(name: str, value: Any) -> float:
    """Returns ``value`` as a float, or raises if it is not from 0 to 1."""
    return _number(name, value, lambda number: 0 <= number <= 1, "from 0 to 1")


def decay(name: str, value: Any) -> float:
    """Returns ``value`` as a float, or raises if it is not from 0 to below 1 once in float32."""
    # At 1, to which float32 rounds what is just below it, nothing is ever forgotten.
    what = "at least 0 and below 1 in float32"
    return _number(name, value, lambda number: 0 <= number < 1 and np.float32(number) < 1, what)


def interval(name: str, pair: Any) -> tuple[float, float]:
    """Returns ``pair`` as floats, or raises if they are not finite numbers with low < high."""
    try:
        low, high = (float(end) for end in pair)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be two numbers (low, high), got {pair!r}.") from None
    if not (low < high and math.isfinite(high - low)):  # nor may their distance overflow
        raise ValueError(f"{name} must be finite with low < high, got {pair!r}.")
    return low, high


def flag(name: str, value: Any) -> bool:
    """Returns ``value``, or raises if it is not True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {shown(value)}.")
    return value


def positive_int(name: str, value: Any) -> int:
    """Returns ``value`` as an int, or raises if it is not a whole number of at least 1."""
    try:
        # Not int(), which cuts 2.7 to 2 and reads text.
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be a whole number, got {shown(value)}.") from None
    if number < 1:
        raise ValueError(f"{name} must be at least 1, got {shown(value)}.")
    if number > _LARGEST_COUNT:
        raise ValueError(f"{name} must be at most {_LARGEST_COUNT:,}, got {shown(value)}.")
    return number


def int32_count(name: str, value: Any) -> int:
    """Returns ``value`` as ``positive_int``, or raises if it is not below 2^31."""
    number = positive_int(name, value)
    if number >= 2**31:  # records and steps are numbered by 32 bits
        raise ValueError(f"{name} must be below 2^31, got {shown(value)}: take fewer.")
    return number


def optional_count(name: str, value: Any) -> int | None:
    """Returns None for None, else as ``int32_count``."""
    return None if value is None else int32_count(name, value)


def install(what: str, package: str) -> str:
    """Returns how to get what ``what`` needs: by its own name, as dpjax may be of a checkout."""
    return f"{what} needs {package}: python -m pip install {package!r}"


def choice(
    name: str, value: Any, options: Iterable[str], other_names: Mapping[str, str] | None = None
) -> str:
    """Returns ``value``, or raises with the nearest of ``options``.

    ``other_names`` are those that a user may know an option by, with the option.
    """
    options = list(options)
    if value in options:
        return value
    near = nearest(str(value), {option: option for option in options} | dict(other_names or {}))
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else "."
    raise ValueError(f"unknown {name} {shown(value)}{hint} Choose from: {', '.join(options)}.")


def nearest(word: str, names: Mapping[str, str]) -> list[str]:
    """Returns what at most two of ``names`` that look like ``word`` stand for, the nearest first.

    Case, hyphens and underscores make no difference.
    """
    plain = {_plain(name): meaning for name, meaning in names.items()}
    exact = plain.get(_plain(word))
    if exact is not None:
        return [exact]
    # At 0.6 half of a word of three letters is not enough: 'prv' is not like 'paper'.
    near = difflib.get_close_matches(_plain(word), plain, n=2, cutoff=0.6)
    return list(dict.fromkeys(plain[name] for name in near))


def _plain(name: str) -> str:
    return name.casefold().replace("_", "-")


def word(name: str, value: Any) -> str:
    """Returns ``value``, or raises if it is not a string of at least one character."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be a non-empty string, got {shown(value)}.")
    return value


def _number(name: str, value: Any, holds: Callable[[float], Any], what: str) -> float:
    # float() reads text too, and text that holds a number is a mistake further up.
    if isinstance(value, bool | str | bytes | bytearray) or value is None:
        raise ValueError(f"{name} must be a number, got {shown(value)}.")
    try:
        number = float(value)
    except OverflowError:
        what = "a number that float64 can hold"
        raise ValueError(f"{name} must be {what}, got {shown(value)}.") from None
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a number, got {shown(value)}.") from None
    if not holds(number):
        raise ValueError(f"{name} must be {what}, got {shown(value)}.")
    return number
