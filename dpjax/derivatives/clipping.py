"""Clipping to an l2 norm C without overflow, underflow, overshoot or NaN."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import core, lax

from dpjax import _validate
from dpjax._typing import Array, Bool, Float, Real
from dpjax._wide import float64

SLACK = 1.0 - 2.0**-17
"""Vectors are clipped to C times this, so that rounding cannot carry a norm above C.

A norm in float32 is off by half the depth of a tree over its entries, 20 roundings of 2^-24 for
10^8 of them, the factor by the root and the quotient, and a product by one more: 2^-19 in all, also
where a device's roots and quotients are off by a few units.
"""

_SLICES = 8
# Squares of float32 leave its range: those of 2^-70 times the numbers are taken beside them.
_DOWN = 2.0**-70


def positive_number(
    name: str, value: Real[Array, "*shape"] | float
) -> Real[Array, "*shape"] | float:
    """Returns ``value`` after ``_validate.clip_norm``; tracers pass unchecked.

    >>> positive_number("clip_norm", 2)
    2.0
    """
    if isinstance(value, core.Tracer):
        return value
    if isinstance(value, jax.Array):
        for number in value.ravel().tolist():
            _validate.clip_norm(name, number)
        return value
    return _validate.clip_norm(name, value)


def sanitize_nonfinite(values: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Returns ``values`` with every non-finite entry replaced by the largest finite number.

    ``clip_factors`` gives a row with this number the factor 0, so no separate mask of rows with a
    NaN is needed, and 0 times the replacement is 0.

    >>> bool(jnp.isfinite(sanitize_nonfinite(jnp.array([jnp.nan, jnp.inf, 1.0]))).all())
    True
    """
    largest = jnp.finfo(values.dtype).max
    # A comparison with NaN is False: one test finds NaN, infinity and the replacement itself.
    return jnp.where(jnp.abs(values) < largest, values, largest)


def tree_sum(rows: Float[Array, "n k"]) -> Float[Array, " n"]:
    """Returns the sum over axis 1 of ``rows`` (n, k), added by a balanced tree.

    Its slices vectorise where a plain reduction of short rows would wait for each addition.

    >>> tree_sum(jnp.ones((2, 11))).tolist()
    [11.0, 11.0]
    """
    if rows.shape[1] == 0:
        return jnp.zeros_like(rows, shape=rows.shape[:1])
    # A balanced tree: an entry passes through about log2 k additions, as ``SLACK`` assumes.
    while (k := rows.shape[1]) > 1:
        slices = min(_SLICES, 1 << (k.bit_length() - 1))
        width = k // slices
        parts = [rows[:, i * width : (i + 1) * width] for i in range(slices)]
        while len(parts) > 1:
            parts = [a + b for a, b in zip(parts[::2], parts[1::2], strict=True)]
        rest = rows[:, slices * width :]
        rows = parts[0] if rest.shape[1] == 0 else jnp.concatenate([parts[0], rest], axis=1)
    return rows[:, 0]


def lengths(rows: Float[Array, "n k"]) -> tuple[Float[Array, "n k"], Float[Array, " n"]]:
    """Returns finite rows (n, k) scaled to length 1, and their lengths (n,), in their dtype.

    Measured in units of a row's largest entry, so that no square leaves the range. Where that is 0
    the length is too.

    >>> print(lengths(jnp.array([[3e30, 4e30], [0.0, 0.0]])))
    (Array([[0.6, 0.8],
           [0. , 0. ]], dtype=float32), Array([5.e+30, 0.e+00], dtype=float32))
    """
    most = jnp.max(jnp.abs(rows), axis=1, initial=0)
    rows = rows / jnp.where(most > 0, most, 1)[:, None]
    # The largest entry is 1 now, so that only a row of zeros has a smaller sum.
    norm = jnp.sqrt(jnp.maximum(tree_sum(rows * rows), 1))
    return rows / norm[:, None], most * norm


def clip_factors(
    clip_norm: Real[Array, ""] | float,
    *parts: tuple[Float[Array, "n _"], Real[Array, ""] | float],
    keep: Bool[Array, " n"] | None = None,
) -> Float[Array, " n"]:
    """Returns the factors in [0, 1] that bring each row's weighted norm to at most ``clip_norm``.

    ``parts`` are ``(rows, weight)`` with rows (n, k) from ``sanitize_nonfinite``; the vector of row
    i is the concatenation of all ``rows[i] / weight``. Where ``keep`` is False the factor is 0.

    Returns:
      (n,), of the rows' dtype; exactly 0 for a row with a non-finite entry, or one longer than
      8e37 C (in float64 1e175 C); exactly 1 for a row within C times ``SLACK``.

    Privacy: row i reads row i alone; no control flow depends on values.

    >>> print(clip_factors(1.0, (jnp.array([[3.0, 4.0], [0.0, 0.5]]), 1.0)).round(3))
    [0.2 1. ]
    """
    dtype = parts[0][0].dtype
    # Two sums of squares, as no one scale serves norms near the bound and 1e37 times above it.
    near, far = (jnp.zeros(parts[0][0].shape[0], dtype) for _ in range(2))
    for rows, weight in parts:
        # In units of the bound: of a norm near it the square is near 1.
        units = rows * (1 / jnp.asarray(weight, dtype) / jnp.asarray(clip_norm, dtype))
        # The replacement of ``sanitize_nonfinite`` counts as infinite, so that the row is dropped.
        is_number = jnp.abs(rows) < jnp.finfo(dtype).max
        near += tree_sum(jnp.where(is_number, units * units, jnp.inf))
        far += tree_sum(jnp.where(is_number, (units * _DOWN) ** 2, jnp.inf))
    # Far above the bound the squares overflow, and those of the scaled entries decide.
    norm = jnp.where(near < jnp.inf, jnp.sqrt(near), jnp.sqrt(far) / _DOWN)
    good = norm < jnp.inf
    return shrinking(norm, good if keep is None else good & keep, dtype, SLACK)


def square_norms(rows: Float[Array, "n k"]) -> Float[Array, " n"]:
    """Returns the squared norms (n,) of sanitized rows (n, k), in float64.

    A row that held a non-finite entry has an infinite norm.

    >>> with jax.enable_x64(True):  # to print all digits
    ...     print(square_norms(jnp.array([[3.0, 4.0], [jnp.inf, 0.0]])))
    [25. inf]
    """
    largest = float(jnp.finfo(rows.dtype).max)
    # The square of every float32 number, at most 1.2e77, is within float64: no scaling is needed.
    with jax.enable_x64(True):
        entries = float64(rows)
        return tree_sum(jnp.where(jnp.abs(entries) < largest, entries * entries, jnp.inf))


def factors(
    squares: list[Float[Array, " n"]],
    clip_norms: Real[Array, ""] | Real[Array, " parts"] | float,
    keep: Bool[Array, " n"] | None,
    dtype: jnp.dtype,
) -> list[Float[Array, " n"]]:
    """Returns the factors in [0, 1] for each part of a gradient, one array (n,) a part.

    ``squares`` are squared norms of the parts of each record's gradient, float64 (n,) each, of
    values from ``sanitize_nonfinite``; infinite or NaN where one was not finite. ``clip_norms``
    bound the full gradient, shape (), or each part, (parts,).
    """
    norms = jnp.asarray(clip_norms)
    single = norms.ndim == 0
    with jax.enable_x64(True):
        total = functools.reduce(jnp.add, squares)
        # With one part that is not finite the record is dropped in all.
        good = total < jnp.inf
        if keep is not None:
            good = good & keep
        result = []
        for i, square in enumerate(squares[:1] if single else squares):
            bound = float64(norms if single else norms[i])
            units = (total if single else square) / bound / bound
            # Where a clip norm is so small in float64 that squares leave its range all are dropped.
            good = good & (bound > 2.0**-400)
            result.append(shrinking(jnp.sqrt(units), good, dtype, SLACK))
        return result * (len(squares) if single else 1)


def shrinking(
    norm: Float[Array, " n"], good: Bool[Array, " n"], dtype: jnp.dtype, most: float
) -> Float[Array, " n"]:
    """Returns the factors to ``most`` of vectors with norms in units of C, 0 if not ``good``."""
    # A norm of 0 gives an infinite quotient, and the factor 1.
    factors = jnp.where(good, jnp.minimum(1, most / norm), 0)
    # Subnormal factors are coarse enough to exceed C where hardware keeps them.
    factors = jnp.where(factors < float(jnp.finfo(dtype).tiny), 0, factors)
    return lax.convert_element_type(factors, dtype)


def bad(values: Float[Array, "n ..."]) -> Bool[Array, " n"]:
    """Returns a mask (n,) of the records with a non-finite entry before ``sanitize_nonfinite``.

    In float64 it includes those whose largest entry is beyond 2^400 or, if not 0, below 2^-400:
    products of their squares leave float64's range, and a dropped record contributes nothing.

    >>> bad(sanitize_nonfinite(jnp.array([[1.0, jnp.nan], [1.0, 2.0]]))).tolist()
    [True, False]
    """
    largest = jnp.max(jnp.abs(values), axis=tuple(range(1, values.ndim)), initial=0)
    if values.dtype != jnp.float64:
        return largest >= jnp.finfo(values.dtype).max
    return (largest > 2.0**400) | ((largest > 0) & (largest < 2.0**-400))


def scalar_factor(
    norm: Float[Array, "*shape"], clip_norm: Real[Array, ""] | float
) -> Float[Array, "*shape"]:
    """Returns min(1, C / norm) for contributions whose norm is known in closed form.

    Norms are not negative; NaN or infinity marks a contribution to drop.

    Returns:
      Factors in [0, 1] of the same shape, 0 where ``norm`` is not finite.

    >>> scalar_factor(jnp.array([0.5, 2.0, jnp.inf]), 1.0).round(3)
    Array([1. , 0.5, 0. ], dtype=float32)
    """
    bound = clip_norm * SLACK
    # A NaN compares False and gets the factor 1 here; ``usable`` drops it.
    factor = jnp.where(norm > bound, bound / norm, 1)
    # A subnormal factor is too coarse, as in ``shrinking``.
    usable = jnp.isfinite(norm) & (factor >= jnp.finfo(factor.dtype).tiny)
    return jnp.where(usable, factor, 0)


def hypot(a: Float[Array, "*shape"], b: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Returns sqrt(a^2 + b^2) without under- or overflow; NaN if either is.

    >>> hypot(jnp.float32(3e30), jnp.float32(4e30)) > 4.9e30
    Array(True, dtype=bool)
    """
    largest = jnp.maximum(jnp.abs(a), jnp.abs(b))
    # Of two zeros the quotients would be NaN.
    safe = jnp.where(largest > 0, largest, 1)
    return largest * jnp.sqrt((a / safe) ** 2 + (b / safe) ** 2)
