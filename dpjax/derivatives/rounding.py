"""Bounds on the rounding error of a clipped sum, which are added to its sensitivity."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import jax
from jax import lax

from dpjax import _validate
from dpjax._typing import Array, Relation
from dpjax._wide import float64
from dpjax.accounting.budget import records_moved

if TYPE_CHECKING:
    from jaxtyping import Real

BLOCK = 128
"""Most rows that are added in float32; everything above is added in float64."""

_UNIT = 2.0**-24
_WIDE_UNIT = 2.0**-53
# A sum in float32 is off by 2^-24 of its norm, on either side; the last factor covers what adding
# it up had done to the norm before.
_NARROWING = 2.0**-23 * (1 + 2.0**-10)
# Of private n, which nobody may check, a sum may hold more rows than were declared.
_SPARE = 2
# So few that charging them in float64 costs 2e-5.
_AT_LEAST = 2**18
# Beside the additions: the clip factor, its product, and the product inside the sum.
_PRODUCTS = 3


def keeps_positions(relation: Relation) -> bool:
    """Returns whether neighbouring data sets have their common rows in the same places.

    A record that is added or removed shifts those behind it, and so into other blocks.

    >>> keeps_positions("add_or_remove_one")
    False
    """
    return relation != "add_or_remove_one"


def most_rows(declared: int, relation: Relation) -> int:
    """Returns for how many rows of a float64 sum rounding is charged, where ``declared`` are.

    Under ``add_or_remove_one`` n is private, and no sum is refused because of its rows. There
    rounding is within its bound up to twice the declared rows, and up to 262,144 in any case.

    >>> most_rows(1_000, "zero_out"), most_rows(1_000, "add_or_remove_one")
    (1000, 262144)
    """
    if keeps_positions(relation):
        return declared
    return max(_SPARE * declared, _AT_LEAST)


def rounding_slack(data_size: int, relation: Relation) -> float:
    """Bound on what rounding adds to the distance of two neighbouring sums, per unit of clip norm.

    Worst case over the order of additions: a sum of k terms of norm at most C, added in any order
    with unit roundoff u, errs by at most k u / (1 - k u) times k C. Where the common rows keep
    their places only one block of ``BLOCK`` rows differs between neighbours; elsewhere all do, and
    blocks are added in float64 as well.

    Args:
      data_size: rows n that are summed at most.
      relation: of the budget.

    Returns:
      The slack, to be added to ``records_moved(relation)``.

    Reference: Higham, "Accuracy and stability of numerical algorithms" (2002), equation 3.4.

    >>> print(f"{rounding_slack(35_000, 'zero_out'):.5f}")
    0.00200
    >>> print(f"{rounding_slack(35_000, 'add_or_remove_one'):.1e}")
    2.7e-07
    """
    totals = 2 * _error(data_size, _WIDE_UNIT) * data_size
    if keeps_positions(relation):
        return 2 * _error(BLOCK + _PRODUCTS, _UNIT) * BLOCK + totals
    return 2 * _error(BLOCK + _PRODUCTS, _WIDE_UNIT) * data_size + totals


def sum_slack(rows: int, relation: Relation, any_order: bool = False) -> float:
    """Bound on what rounding adds to the distance of neighbouring sums as they are returned.

    W and W' are the neighbours' sums with all the digits that were added, at most
    (records moved + ``rounding_slack``) C apart. The array returned is R, W rounded to float32,
    which moves a coordinate by at most 2^-24 of itself, so that |R - W| <= 2^-24 |W|, and |W| is at
    most the number of rows times C, but for the rounding of adding up. Hence
    |R - R'| <= |W - W'| + 2^-24 (|W| + |W'|), of which the last term is 2^-23 rows C: it grows with
    the rows. In float64 nothing is rounded off, and the same bound holds.

    Args:
      rows: that are summed at most.
      relation: of the budget.
      any_order: whether blocks are added in float64.

    Returns:
      The slack, in clip norms C, to be added to ``records_moved(relation)``.

    Raises:
      ValueError: if ``rows`` is not a whole number of at least 1.

    >>> print(f"{sum_slack(417, 'zero_out'):.5f}, {sum_slack(417, 'add_or_remove_one'):.5f}")
    0.00205, 0.00805
    """
    rows = _validate.positive_int("rows", rows)
    narrowing = rows * _NARROWING
    if any_order or keeps_positions(relation):
        return rounding_slack(rows, relation) + narrowing
    # Rows behind the one that leaves move on, and every block is added anew.
    return math.ceil(rows / BLOCK) * rounding_slack(rows, "zero_out") + narrowing


def sum_sensitivity(
    clip_norm: Real[Array, ""] | float, relation: Relation, rows: int, any_order: bool = False
) -> Real[Array, ""] | float:
    """Returns how far one record moves a sum of clipped rows as it is returned, rounding included.

    Args:
      clip_norm: C, the bound on one record's contribution.
      relation: the neighbouring relation.
      rows: that are summed at most, those that are masked included.
      any_order: as in ``sum_slack``.

    Raises:
      ValueError: for an unknown relation, or rows that are not a whole number of at least 1.

    >>> print(round(sum_sensitivity(0.5, "zero_out", rows=35_000), 4))
    0.5031
    """
    return clip_norm * (records_moved(relation) + sum_slack(rows, relation, any_order))


def _error(additions: int, unit: float) -> float:
    return additions * unit / (1 - additions * unit)


def block_products(left: Array, right: Array, any_order: bool, axis: int = -1) -> Array:
    """Returns the products over the rows of each block.

    Args:
      left: (blocks, ..., rows).
      right: (blocks, ..., rows), or with the rows at ``axis``.
      any_order: multiply and add in float64, for neighbours whose common rows lie elsewhere.
      axis: of the rows in ``right``.

    Returns:
      (blocks, ..., ...), without the rows.

    >>> import jax.numpy as jnp
    >>> block_products(jnp.ones((4, 2, 3)), jnp.ones((4, 3)), any_order=False).shape
    (4, 2)
    """
    if any_order:
        left, right = float64(left), float64(right)
    with jax.enable_x64(left.dtype == right.dtype == "float64"):
        # Without a preferred type, which a later trace without x64 would read as float32.
        return lax.dot_general(
            left,
            right,
            (((left.ndim - 1,), (axis % right.ndim,)), ((0,), (0,))),
            precision=lax.Precision.HIGHEST,
        )


def block_outer_products(left: Array, right: Array, any_order: bool) -> Array:
    """Returns the sums over the rows of each block of products of a row with a row.

    Args:
      left: (blocks, rows, k).
      right: (blocks, rows, l).
      any_order: as in ``block_products``.

    Returns:
      (blocks, k, l).

    >>> import jax.numpy as jnp
    >>> block_outer_products(jnp.ones((4, 2, 3)), jnp.ones((4, 2, 5)), any_order=False).shape
    (4, 3, 5)
    """
    if any_order:
        left, right = float64(left), float64(right)
    with jax.enable_x64(left.dtype == right.dtype == "float64"):
        return lax.dot_general(
            left, right, (((1,), (1,)), ((0,), (0,))), precision=lax.Precision.HIGHEST
        )
