"""The public bins of a table's columns, and in which of them each record lies."""

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from dpjax.datasets.cells import to_numbers
from dpjax.datasets.encoders import ClassLabel, Dates, NumberLabel, Numeric, form_of, to_iso
from dpjax.datasets.labels import Label, class_places, places
from dpjax.datasets.loaders import Table
from dpjax.datasets.units import group

# From this ratio of its ends on, or this distance from 0, a range has geometric bins by default.
_WIDE, _FAR = 100.0, 1000.0
# The innermost edge of geometric bins around 0, over the outermost; from 0 on it is at most 1, so
# that small counts are told apart. On both sides of 0 bins that hold next to nothing would let
# noise decide where the median is.
_INNERMOST = 1e-4


@dataclasses.dataclass(frozen=True)
class Bins:
    """The declared bins of a column, or of the label; bin 0 is for cells without a valid value.

    There is one for each of ``levels``; or ``edges`` of numbers, or of days since 1970, part them.
    """

    column: Any
    name: str
    levels: tuple[Label, ...] = ()
    edges: tuple[float, ...] = ()

    @property
    def size(self) -> int:
        """Number of bins, bin 0 included."""
        return len(self.levels) + 1 if self.levels else len(self.edges)

    @property
    def is_required(self) -> bool:
        """Whether a training drops a record that lies in bin 0."""
        is_label = isinstance(self.column, ClassLabel | NumberLabel)
        return is_label or bool(np.isnan(self.column.encode(np.array([None], object))).any())

    @property
    def centers(self) -> np.ndarray:
        """The mean in each bin of numbers: of an even density, or of 1 / x where bins grow."""
        low, high = np.array(self.edges[:-1]), np.array(self.edges[1:])
        grows = (low * high > 0) & (not np.allclose(high - low, high[0] - low[0]))
        ratio = np.divide(high, low, out=np.full(len(low), np.e), where=grows)
        return np.where(grows, (high - low) / np.log(ratio), (low + high) / 2)

    def place(self, cells: np.ndarray) -> np.ndarray:
        """Returns the bin of each cell (n,), which depends on that cell alone.

        As in training, numbers beyond bounds count as those, and of a label as none.
        """
        if self.levels:
            of = class_places if isinstance(self.column, ClassLabel) else places
            return of(cells, self.levels) + 1
        if isinstance(self.column, Numeric):
            values = self.column.values(cells)
        else:
            values = to_numbers(cells, self.column.form.number)
            values[(values < self.edges[0]) | (values > self.edges[-1])] = np.nan
        inner = np.searchsorted(self.edges[1:-1], values, side="right")
        return np.where(np.isnan(values), 0, inner + 1)

    def show(self, value: float) -> str:
        """Returns a number, or a date, as people write it."""
        if isinstance(self.column, Dates):
            return to_iso(round(value))
        return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def bins_of(column: Any, most: int, geometric: Collection[str] | None = None) -> Bins:
    """Returns the bins of a declared column: its levels, or ``most`` of its range.

    They are geometric in the columns named; by default where both bounds are on one side of 0 and
    have a ratio of 100, or else one is 1,000 from 0.
    """
    name = column.column if isinstance(column, ClassLabel | NumberLabel) else column.name
    for key in ("levels", "order", "classes"):
        if levels := getattr(column, key, None):
            return Bins(column, name, levels)
    low, high = (float(getattr(column, end)) for end in ("low", "high"))
    near, far = sorted(map(abs, (low, high)))
    wide = far >= _WIDE * near if low * high > 0 else far >= _FAR
    if isinstance(column, Dates) or not (wide if geometric is None else name in geometric):
        edges = np.linspace(low, high, most + 1)
    elif low * high > 0:
        edges = np.geomspace(low, high, most + 1)
    else:
        inner = _INNERMOST * far if near else min(1.0, _INNERMOST * far)
        sides = np.log(np.maximum([-low, high], inner) / inner)
        below = round((most - 1) * sides[0] / sides.sum())
        edges = np.r_[
            -np.geomspace(-low, inner, below + 1) if below else low,
            np.geomspace(inner, high, most - below) if below < most - 1 else high,
        ]
    return Bins(column, name, edges=tuple(edges.tolist()))


def read_places(table: Table, bins: Sequence[Bins]) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns in which bins the records lie, (n, m), and None.

    Of units they are (units, K, m), with which records there are, (units, K); see ``group``.

    Privacy: raw data.
    """
    schema, parts, owners = table.schema, [], []
    wanted = [*(each.name for each in bins), *([schema.unit] if schema.unit else [])]
    numeric = {each.name: form for each in bins if (form := form_of(each.column)) is not None}
    for block in table.opened.source.blocks(wanted, numeric):
        parts.append(np.stack([b.place(held) for b, held in zip(bins, block, strict=False)], 1))
        owners += block[len(bins) :]
    found = np.concatenate(parts).astype(np.float32)
    if schema.unit is None or schema.max_records is None:
        return found, None
    return group(found, np.concatenate(owners), schema.max_records, schema.unit, schema.unit_type)
