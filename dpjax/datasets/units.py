"""``group``: records of the same person, say, made into one unit of privacy."""

import dataclasses
from typing import Any

import jax
import numpy as np

from dpjax import _validate
from dpjax._streaming import Rows
from dpjax._typing import PyTree
from dpjax.datasets.base import Dataset, check_arrays
from dpjax.datasets.cells import Kind, cells_of, kind_of


def group(data: Dataset | PyTree, by: Any, max_records: int, unit: str = "person") -> Any:
    """Returns the data with one unit a row, each with at most ``max_records`` of its records.

    The first ``max_records`` records of a unit are kept, in the order of the data; which ones
    depends on that unit alone. Train with ``objective.of_units()``: then one *unit* is what the
    guarantee protects, and n is the number of units.

    Args:
      data: a ``Dataset``, or a pytree of arrays with one record a row.
      by: (n,) whole numbers or strings that say whose a record is, compared as text without white
        space around it. Any other cell among them, such as None, NaN, a fraction or an empty
        string, makes a null record, which belongs to nobody and is left out.
      max_records: K, the largest number of records that a unit contributes; a declared number, not
        one read off the data. It costs no privacy: a large K is a large array, a small one drops
        records.
      unit: what a unit is called in the guarantee.

    Returns:
      A ``Dataset`` with x (units, K, ...), y (units, K) and present (units, K) bool, or for a
      pytree ``(records, present)``. Units come in the order of their first record; absent records
      hold zeros. Held-out records stay as they are.

    Raises:
      ValueError: if ``by`` has another length, or holds what names nobody, by its dtype; if
        no record has a unit, if ``max_records`` is not an integer of at least 1, or if the data
        are grouped already or lie on disk.

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
        (x, y), present = group(data.examples, by, most)
        return dataclasses.replace(data, x=x, y=y, present=present, unit=unit)
    check_arrays("data", data)
    leaves = jax.tree.leaves(data)
    if any(isinstance(leaf, Rows) for leaf in leaves):
        raise ValueError("records on disk cannot be grouped: load them first.")
    lengths = {np.shape(leaf)[0] if np.ndim(leaf) else -1 for leaf in leaves}
    if len(lengths) != 1 or -1 in lengths:
        raise ValueError("all leaves of the data must have the same number of rows.")
    owner = _owners(by, lengths.pop())
    record, slot, place, units = _places(owner, most)

    def placed(leaf: Any) -> np.ndarray:
        leaf = np.asarray(leaf)
        out = np.zeros((units, most, *leaf.shape[1:]), leaf.dtype)
        out[slot, place] = leaf[record]
        return out

    present = np.zeros((units, most), bool)
    present[slot, place] = True
    return jax.tree.map(placed, data), present


def _owners(by: Any, rows: int) -> np.ndarray:
    """Returns the number of the unit of each record, by first appearance; -1 for nobody."""
    check_names("by", by)
    cells = cells_of(by)
    if cells.shape != (rows,):
        raise ValueError("by must have one entry for each record.")  # n may be private
    owner = np.full(rows, -1)
    if cells.dtype.kind in "iu":
        _, first, inverse = np.unique(cells, return_index=True, return_inverse=True)
        rank = np.empty(len(first), np.int64)
        rank[np.argsort(first)] = np.arange(len(first))
        owner = rank[inverse.ravel()]
    else:
        # An array of strings would be as wide as the longest, at every record.
        numbers: dict[str, int] = {}
        for record, cell in enumerate(cells):
            if name := unit_name(cell):
                owner[record] = numbers.setdefault(name, len(numbers))
    if not (owner >= 0).any():
        raise ValueError(
            "no record has a unit: by names nobody. Whole numbers and strings are names; convert "
            "others, such as UUIDs, to text."
        )
    return owner


def check_names(said: str, column: Any) -> None:
    """Raises if a column is stored as what cannot name units, by its dtype alone.

    >>> check_names("by", np.array(["ann", "bob"]))
    """
    dtype = getattr(column, "dtype", None)
    if kind_of(column) in (Kind.OTHER, Kind.BOOLEANS):
        raise ValueError(f"{said} must hold whole numbers or strings, got {dtype}: convert them.")


def unit_name(cell: Any) -> str:
    """Returns the name that a cell gives to a unit, as text; "" if it is none.

    An integer and a string of the same text are one name. If they were two, a person whose records
    have both would be two units, each protected by itself. pandas makes floats of integers where
    one is missing: a float is a name if it is whole, and no two integers round to it.

    >>> unit_name(" ann"), unit_name(7), unit_name("7"), unit_name(7.0)
    ('ann', '7', '7', '7')
    >>> unit_name(None), unit_name(7.5), unit_name(2.0**53)
    ('', '', '')
    """
    if isinstance(cell, bytes):
        cell = cell.decode("utf-8", "surrogateescape")  # distinct bytes are distinct people
    if isinstance(cell, str):
        return cell.strip()
    if isinstance(cell, np.datetime64):
        return "" if np.isnat(cell) else str(cell)
    if isinstance(cell, float | np.floating):
        largest = 2.0 ** (np.finfo(cell).nmant + 1)
        cell = int(cell) if abs(cell) < largest and cell == np.floor(cell) else None
    if not isinstance(cell, int | np.integer) or isinstance(cell, np.timedelta64):
        return ""
    whole = int(cell)
    return str(whole) if whole.bit_length() < 1_000 else hex(whole)  # str has a limit


def _places(owner: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Returns the records that are kept, their units, their places there, and how many units."""
    order = np.argsort(owner, kind="stable")
    order = order[owner[order] >= 0]
    units = owner[order]
    starts = np.flatnonzero(np.r_[True, units[1:] != units[:-1]])
    sizes = np.diff(np.r_[starts, len(order)])
    place = np.arange(len(order)) - np.repeat(starts, sizes)
    kept = place < most
    return order[kept], units[kept], place[kept], len(starts)
