"""Checks on the host, before anything is spent: each raises a ValueError that names the fix."""

import difflib
import math
import operator
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np


def positive(name: str, value: Any) -> float:
    """Returns ``value`` as a float, or raises if it is not a finite number above 0.

    >>> positive("clip_norm", 1)
    1.0
    """
    number = _number(name, value)
    if not (math.isfinite(number) and number > 0):
        raise ValueError(f"{name} must be a finite number above 0, got {value!r}.")
    return number


def finite(name: str, value: Any) -> float:
    """Returns ``value`` as a float, or raises if it is not a finite number."""
    number = _number(name, value)
    if not math.isfinite(number):
        raise ValueError(f"{name} must be a finite number, got {value!r}.")
    return number


def non_negative(name: str, value: Any) -> float:
    """Returns ``value`` as a float, or raises if it is not a finite number of at least 0."""
    number = _number(name, value)
    if not (math.isfinite(number) and number >= 0):
        raise ValueError(f"{name} must be a finite number of at least 0, got {value!r}.")
    return number


def open_unit(name: str, value: Any) -> float:
    """Returns ``value`` as a float, or raises if it is not strictly between 0 and 1."""
    number = _number(name, value)
    if not 0 < number < 1:
        raise ValueError(f"{name} must be strictly between 0 and 1, got {value!r}.")
    return number


def closed_unit(name: str, value: Any) -> float:
    """Returns ``value`` as a float, or raises if it is not from 0 to 1."""
    number = _number(name, value)
    if not 0 <= number <= 1:
        raise ValueError(f"{name} must be from 0 to 1, got {value!r}.")
    return number


def decay(name: str, value: Any) -> float:
    """Returns ``value`` as a float, or raises if it is not from 0 to below 1 once in float32.

    >>> decay("momentum", 0.9)
    0.9
    """
    number = _number(name, value)
    # At 1, to which float32 rounds what is just below it, nothing is ever forgotten.
    if not (0 <= number < 1 and np.float32(number) < 1):
        raise ValueError(f"{name} must be at least 0 and below 1 in float32, got {value!r}.")
    return number


def flag(name: str, value: Any) -> bool:
    """Returns ``value``, or raises if it is not True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {value!r}.")
    return value


def positive_int(name: str, value: Any) -> int:
    """Returns ``value`` as an int, or raises if it is not a whole number of at least 1."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be a whole number, got {value!r}.") from None
    if number < 1:
        raise ValueError(f"{name} must be at least 1, got {value!r}.")
    return number


def choice(
    name: str, value: Any, options: Iterable[str], other_names: Mapping[str, str] | None = None
) -> str:
    """Returns ``value``, or raises with the nearest of ``options``.

    Args:
      name: what is chosen.
      value: the choice.
      options: all choices.
      other_names: names that a user may know an option by, and the option.

    >>> choice("relation", "zero-out", ["zero_out", "replace_one"])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: unknown relation 'zero-out'; did you mean 'zero_out'? ...
    """
    options = list(options)
    if value in options:
        return value
    near = nearest(str(value), {option: option for option in options} | dict(other_names or {}))
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else "."
    raise ValueError(f"unknown {name} {value!r}{hint} Choose from: {', '.join(options)}.")


def nearest(word: str, names: Mapping[str, str]) -> list[str]:
    """Returns what at most two of ``names`` that look like ``word`` stand for, the nearest first.

    Case, hyphens and underscores make no difference.

    >>> nearest("DP_TR", {"dp-tr": "dp-tr", "dp-gd": "dp-gd"})
    ['dp-tr']
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
        raise ValueError(f"{name} must be a word, got {value!r}.")
    return value


def _number(name: str, value: Any) -> float:
    # float() reads text too, and text that holds a number is a mistake further up.
    if isinstance(value, bool | str | bytes | bytearray) or value is None:
        raise ValueError(f"{name} must be a number, got {value!r}.")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a number, got {value!r}.") from None
