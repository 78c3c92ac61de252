"""Bounds on the rounding error of a clipped sum, and its sensitivity with them."""

from __future__ import annotations

import math

import jax
from jax import lax

from dpjax import _validate
from dpjax._typing import Array, Real, Relation
from dpjax._wide import float64
from dpjax.accounting.budget import records_moved
from dpjax.derivatives import integers
from dpjax.placement.shard import SHARE

BLOCK = 128
"""Most rows that are added in float32; blocks of a chunk are added in float64, or as integers."""
CHUNK = SHARE
"""Most rows of a chunk, whose sum is rounded to a grid; chunks are added as integers."""

# Unit roundoffs: half the spacing of floats at 1, as rounding is to nearest.
_UNIT = 2.0**-24
_WIDE_UNIT = 2.0**-53
# A sum in float32 is off by 2^-24 of its norm, on either side; the last factor covers what adding
# it up had done to the norm before.
_NARROWING = 2.0**-23 * (1 + 2.0**-10)
# A private n cannot be checked, so a sum may hold more rows than declared.
_SPARE = 2
# The charge for so few rows in float64 is 2e-5.
_AT_LEAST = 2**18
# Of a loss without a closed form, in another row of a batch: assumed. 1.6e-7 has been seen.
_SHIFTED = 2.0**-22
_MOST_SHIFTED = 0.02
# Roundings beside the additions: the clip factor, its product, and the product inside the sum.
_PRODUCTS = 3
FINISHING = 8
"""Roundings of a finished sum, of 2^-53 each: both integers, their sum, a Hessian's symmetrization,
and what a query does to it before the noise."""

# Both neighbours' chunks are off the grid by half its spacing, in every number.
_GRID = integers.SPACING * integers.MOST_NUMBERS**0.5


def keeps_positions(relation: Relation) -> bool:
    """Returns whether neighbouring data sets have their common rows at the same positions.

    Adding or removing a record shifts the rows behind it, some of them into other blocks.

    >>> keeps_positions("add_or_remove_one")
    False
    """
    return relation != "add_or_remove_one"


def most_rows(declared: int, relation: Relation, in_any_row: bool = True) -> int:
    """Returns the number of rows for which the rounding of a float64 sum is charged.

    Under ``add_or_remove_one`` n is private, and no sum is refused because of its rows. The bound
    on rounding then holds up to twice the declared rows, and at least up to 262,144 where a
    record's contribution is the same bits in any row.

    >>> most_rows(1_000, "zero_out"), most_rows(1_000, "add_or_remove_one")
    (1000, 262144)
    """
    if keeps_positions(relation):
        return declared
    return max(_SPARE * declared, _AT_LEAST * in_any_row)


def shift_rounding_error(rows: int, relation: Relation, most: float = _MOST_SHIFTED) -> float:
    """Returns what contributions change by that neighbours have in other rows, in clip norms.

    Compiled code may add up a loss otherwise in the last rows of a batch. Each contribution is
    assumed to change by at most 2^-22 of the clip norm.

    Raises:
      ValueError: if that is more than ``most``, 2 %, of what one record adds.

    >>> shift_rounding_error(1_000, "zero_out")
    0.0
    >>> shift_rounding_error(2**12, "add_or_remove_one") == 2**-10
    True
    """
    error = 0.0 if keeps_positions(relation) else rows * _SHIFTED
    if error > most:
        raise ValueError(
            f"under {relation!r} a record shifts those behind it, and of a loss without a closed "
            f"form all of these may then round otherwise: with {rows:,} rows (twice those "
            f"declared) by {error:.2%} of one record's part, where {most:.0%} is charged "
            "at most. Use relation='zero_out', or read fewer at a time."
        )
    return error


def rounding_error(data_size: int, relation: Relation, additions: int = 0) -> float:
    """Returns a bound on the rounding in the distance of two neighbouring sums, in clip norms.

    Worst case over the order of additions: a sum of k terms of norm at most C, added in any order
    with unit roundoff u, errs by at most k u / (1 - k u) times k C. Rows are added in float32 in
    blocks of ``BLOCK``, and blocks in float64 in chunks of at most ``CHUNK`` rows. The sum of a
    chunk is rounded to a grid, or off a CPU that of each block, of which one differs between
    neighbours; what lies above is a sum of integers, which is exact. If the
    common rows keep their positions, one block and one chunk differ between neighbours and the
    others are the same bits; otherwise all do, and rows are added in float64 in each. The finished
    sum, of norm n C, is rounded to float64.

    Args:
      data_size: n, the largest number of rows in the sum.
      relation: of the budget.
      additions: roundings of 2^-53 of finished sums, where several make up the answer; their sum
        may also be rounded to a grid of its own.

    Returns:
      The error bound, to be added to ``records_moved(relation)``.

    Reference: Higham, "Accuracy and stability of numerical algorithms" (2002), equation 3.4.

    >>> print(f"{rounding_error(35_000, 'zero_out'):.5f}")
    0.00200
    >>> print(f"{rounding_error(35_000, 'add_or_remove_one'):.1e}")
    1.4e-09
    """
    # Twice here and below: both neighbours' sums are rounded.
    finished = 2 * _error(FINISHING + additions, _WIDE_UNIT) * data_size
    finished += _GRID if additions else 0.0
    blocks = CHUNK // BLOCK
    if keeps_positions(relation):
        # One block differs, whose BLOCK terms of norm C add up to BLOCK C at most.
        block = 2 * _error(BLOCK + _PRODUCTS, _UNIT) * BLOCK
        return block + 2 * _error(blocks, _WIDE_UNIT) * CHUNK + _GRID + finished
    # Rows lie elsewhere, so that all n count; in float64 that is still little.
    added = 2 * _error(BLOCK + _PRODUCTS + blocks, _WIDE_UNIT) * data_size
    return added + math.ceil(data_size / BLOCK) * _GRID + finished


def sum_rounding_error(
    rows: int,
    relation: Relation,
    permutation_invariant: bool = False,
    *,
    narrowed: bool = True,
    additions: int = 0,
) -> float:
    """Returns a bound on the rounding in the distance of neighbouring sums.

    What one record moves a sum by is at most (records moved + this) C: of the arrays that clipped
    functions return as it stands, of what a query adds noise to with ``narrowed=False``.

    W and W' are the neighbours' sums as ``Expansion``, at most
    (records moved + ``rounding_error``) C apart. The array returned is R, W rounded to float32,
    which moves a coordinate by at most 2^-24 of itself, so that |R - W| <= 2^-24 |W|, and |W| is at
    most the number of rows times C, but for the rounding of adding up. Hence
    |R - R'| <= |W - W'| + 2^-24 (|W| + |W'|), of which the last term is 2^-23 rows C: it grows with
    the rows. In float64 nothing is rounded off, and the same bound holds.

    Args:
      rows: the largest number of rows in the sum.
      relation: of the budget.
      permutation_invariant: whether blocks are added in float64.
      narrowed: whether the sum is rounded to float32 before anything else happens to it.
      additions: of finished sums in float64, where several make up the answer.

    Returns:
      The error bound, in clip norms C, to be added to ``records_moved(relation)``.

    Raises:
      ValueError: if ``rows`` is not an integer of at least 1.

    >>> print(f"{sum_rounding_error(417, 'zero_out'):.5f}")
    0.00205
    >>> print(f"{sum_rounding_error(417, 'add_or_remove_one'):.5f}")
    0.00805
    >>> print(f"{sum_rounding_error(35_000, 'zero_out', narrowed=False):.5f}")
    0.00200
    """
    rows = _validate.positive_int("rows", rows)
    narrowing = rows * _NARROWING if narrowed else 0.0
    if permutation_invariant or keeps_positions(relation):
        return rounding_error(rows, relation, additions) + narrowing
    # Rows behind the removed one shift, and every block is added in another order.
    blocks = math.ceil(rows / BLOCK)
    return blocks * rounding_error(rows, "zero_out", additions) + narrowing


def sum_sensitivity(
    clip_norm: Real[Array, ""] | float,
    relation: Relation,
    rows: int,
    permutation_invariant: bool = False,
) -> Real[Array, ""] | float:
    """Returns the l2 sensitivity of a sum of clipped rows as an array, rounding included.

    ``rows`` is the largest number of rows in the sum, masked rows included.
    """
    # No limit here: the caller sees the number, however large.
    error = sum_rounding_error(rows, relation, permutation_invariant) + shift_rounding_error(
        rows, relation, math.inf
    )
    return clip_norm * (records_moved(relation) + error)


def _error(additions: int, unit: float) -> float:
    return additions * unit / (1 - additions * unit)


def block_products(
    left: Array, right: Array, permutation_invariant: bool, axis: int = -1, left_axis: int = -1
) -> Array:
    """Returns the products of two arrays summed over the rows of each block, (blocks, ..., ...).

    ``left`` has the rows at ``left_axis``, and ``right`` at ``axis``. A product that is
    ``permutation_invariant`` is added in float64, so that the positions of rows do not matter.
    """
    if permutation_invariant:
        left, right = float64(left), float64(right)
    rows = (left_axis % left.ndim,), (axis % right.ndim,)
    with jax.enable_x64(left.dtype == right.dtype == "float64"):
        # No preferred type: a later trace without x64 would read it as float32. The default
        # precision may be TF32 or bfloat16 passes, whose rounding no bound here covers.
        exact = lax.Precision.HIGHEST
        return lax.dot_general(left, right, (rows, ((0,), (0,))), precision=exact)
