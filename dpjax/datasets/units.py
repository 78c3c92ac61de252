"""``group``: records of the same person, say, made into one unit of privacy."""

import dataclasses
from typing import Any

import jax
import numpy as np

from dpjax import _validate
from dpjax._typing import PyTree
from dpjax.datasets.cells import cells_of, check_names, kind_of, of_each, stated, unit_name
from dpjax.datasets.dataset import Dataset, check_arrays
from dpjax.datasets.rows import Rows

NOT_GROUPED = "records on disk cannot be grouped: leave memory_limit out."


def group(
    data: Dataset | PyTree,
    by: Any,
    max_records: int,
    unit: str = "person",
    unit_type: str | None = None,
) -> Any:
    """Returns the data with one unit a row, each with at most ``max_records`` of its records.

    The first ``max_records`` records of a unit are kept, in the order of the data; which ones
    depends on that unit alone. Train with ``objective.of_units()``: then one *unit* is what the
    guarantee protects, and n is the number of units.

    Args:
      data: a ``Dataset``, or a pytree of arrays with one record a row.
      by: (n,) whole numbers or strings that say whose a record is. A cell that names nobody, such
        as None, NaN, a fraction or an empty string, makes a null record, which is left out.
      max_records: K, the largest number of records that a unit contributes; a declared number, not
        one read off the data. It costs no privacy: a large K is a large array, a small one drops
        records.
      unit: what a unit is called in the guarantee.
      unit_type: how cells are compared: ``"number"``, whole numbers, where 7, 7.0, 007 and +7 are
        one; or ``"text"``, as they are written, in Unicode's form NFC and without white space
        around. None takes both, but not what they read differently, such as 007. An array of
        floats must be declared numbers; those of 2^53 and above, to which others round, are none.

    Returns:
      A ``Dataset`` with x (units, K, ...), y (units, K) and present (units, K) bool, or for a
      pytree ``(records, present)``. Units come in the order of their first record; absent records
      hold zeros. Held-out records stay as they are.

    Raises:
      ValueError: if ``by`` has another length, or a dtype that names nobody or does not fit
        ``unit_type``; if no record has a unit, ``max_records`` is not an integer of at least 1, or
        the data are grouped already or lie on disk.

    Privacy: NOT a mechanism. A row of the result depends on one unit alone. Neighbours are defined
      on the result: a person that is replaced by a null one keeps its place. The number of units
      is public under ``"zero_out"`` and ``"replace_one"``, as that of records is without units.

    >>> x, y = np.arange(6.0).reshape(3, 2), np.array([1.0, -1.0, 1.0])
    >>> visits = group(Dataset(x, y), by=["ann", "bob", "ann"], max_records=2)
    >>> visits.size, visits.dimension, visits.present.tolist()
    (2, 2, [[True, True], [True, False]])
    """
    most = _validate.positive_int("max_records", max_records)
    if isinstance(data, Dataset):
        if data.present is not None:
            raise ValueError("the data are grouped into units already.")
        (x, y), present = group(data.examples, by, most, unit, unit_type)
        return dataclasses.replace(data, x=x, y=y, present=present, unit=unit)
    check_arrays("data", data)
    leaves = jax.tree.leaves(data)
    if any(isinstance(leaf, Rows) for leaf in leaves):
        raise ValueError(NOT_GROUPED)
    # A scalar has no rows; no array has -1 of them.
    lengths = {np.shape(leaf)[0] if np.ndim(leaf) else -1 for leaf in leaves}
    if len(lengths) != 1 or -1 in lengths:
        raise ValueError("all leaves must have the same number of rows: one for each record.")
    owner = _owners(by, lengths.pop(), unit_type)
    record, slot, place, units = _places(owner, most)

    def placed(leaf: Any) -> np.ndarray:
        leaf = np.asarray(leaf)
        out = np.zeros((units, most, *leaf.shape[1:]), leaf.dtype)
        out[slot, place] = leaf[record]
        return out

    return jax.tree.map(placed, data), placed(np.ones(len(owner), bool))


def _owners(by: Any, rows: int, unit_type: str | None) -> np.ndarray:
    """Returns the number of the unit of each record, by first appearance; -1 for nobody."""
    check_names("by", kind_of(by), stated(by), unit_type)
    cells = cells_of(by)
    if cells.shape != (rows,):
        raise ValueError("by must have one entry for each record.")  # n may be private
    if cells.dtype.kind in "iu":
        # By value; numbered anew by first appearance, as names below are.
        _, first, inverse = np.unique(cells, return_index=True, return_inverse=True)
        rank = np.empty(len(first), np.int64)
        rank[np.argsort(first)] = np.arange(len(first))
        owner = rank[inverse.ravel()]
    else:
        # An array of strings would be as wide as the longest, at every record.
        numbers: dict[str, int] = {"": -1}

        def number_of(cell: Any) -> int:
            return numbers.setdefault(unit_name(cell, unit_type), len(numbers) - 1)

        owner = of_each(number_of, cells, int)
    if not (owner >= 0).any():
        raise ValueError(
            "no record has a unit: whole numbers and strings are names. Declare by unit_type= "
            "whether those such as 007 are 'number' or 'text', store float32 numbers from 2^24 on "
            "as integers, and convert others, such as UUIDs, to text."
        )
    return owner


def _places(owner: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Returns the records that are kept, their units, their places there, and how many units."""
    # Stable, so that the first records of a unit are the first of the data.
    order = np.argsort(owner, kind="stable")
    order = order[owner[order] >= 0]
    units = owner[order]
    # Records are sorted by unit now: a unit starts where the number changes.
    starts = np.flatnonzero(np.r_[True, units[1:] != units[:-1]])
    sizes = np.diff(np.r_[starts, len(order)])
    place = np.arange(len(order)) - np.repeat(starts, sizes)
    counted = place < most
    return order[counted], units[counted], place[counted], len(starts)
