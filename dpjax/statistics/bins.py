"""The public bins of columns, where records lie in them, and what noisy counts of them say."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

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
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_TAILS = (0.025, 0.975)
_NORMAL = 1.96  # of a normal distribution, 95 % lie within so many standard deviations
DRAWS = 400  # of simulated noise, since what is done to counts has no simple law


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


class Estimate(NamedTuple):
    """A noisy number, and the 95 % range of what it would be without noise."""

    value: float
    lower: float
    upper: float

    def words(self, show: Callable[[float], str] = "{:,.0f}".format) -> str:
        """Returns it for people, by default rounded."""
        return "{} ({} to {})".format(*map(show, self))


@dataclasses.dataclass(frozen=True)
class Summary:
    """What is known of one column.

    Args:
      bins: its public bins.
      counts: estimated number of records in each, of units each by the mean of its records.
      missing: share of cells that are missing, not declared, or of a label beyond its bounds.
      mean: of numbers, with those of bins as ``Bins.centers``.
      quantiles: of numbers, by level; their ranges end at edges of bins.
      levels: number of records of each.
    """

    bins: Bins
    counts: tuple[float, ...]
    missing: Estimate
    mean: Estimate | None = None
    quantiles: Mapping[float, Estimate] = dataclasses.field(default_factory=dict)
    levels: Mapping[Any, Estimate] = dataclasses.field(default_factory=dict)


def summarize(bins: Bins, noisy: np.ndarray, stddev: float, total: float) -> Summary:
    """Returns what noisy counts (k,) say of a column of ``total`` records; post-processing."""
    # Below the released counts in the first row stands what simulated noise makes of them.
    noise = np.random.default_rng(0).standard_normal((DRAWS, len(noisy)))
    counts = project(noisy, total)
    rows = np.vstack([counts, project(counts + stddev * noise, total)])
    known = bins, tuple(counts.tolist()), _range(rows[:, 0] / total)
    if bins.levels:
        return Summary(*known, levels=dict(zip(bins.levels, map(_range, rows.T[1:]), strict=True)))
    shares = np.maximum(rows[:, 1:], 1e-9)
    shares /= shares.sum(axis=1, keepdims=True)
    edges, below, quantiles = bins.edges, np.cumsum(shares, axis=1), {}
    for level in QUANTILES:
        places = np.minimum((below < level).sum(axis=1), shares.shape[1] - 1)
        at, lower, upper = map(int, _range(places, method="nearest"))
        within = np.clip(1 - (below[0, at] - level) / shares[0, at], 0, 1)
        value = edges[at] + float(within) * (edges[at + 1] - edges[at])
        quantiles[level] = Estimate(value, edges[lower], edges[upper + 1])
    return Summary(*known, _range(shares @ bins.centers), quantiles)


def project(counts: np.ndarray, total: float) -> np.ndarray:
    """Returns the nearest counts (..., k) that are not negative and add up to ``total``.

    Reference: Duchi et al. (2008): all are lowered by one number, and those below 0 set to 0.

    >>> project(np.array([5.0, -1.0, 3.0]), 6.0).tolist()
    [4.0, 0.0, 2.0]
    """
    falling = -np.sort(-counts, axis=-1)
    excess = (np.cumsum(falling, axis=-1) - total) / np.arange(1, counts.shape[-1] + 1)
    last = (falling > excess).sum(axis=-1, keepdims=True) - 1
    return np.maximum(counts - np.take_along_axis(excess, last, axis=-1), 0.0)


def around(value: float, stddev: float, least: float, most: float) -> Estimate:
    """Returns a noisy number and its range, between what it can be."""
    ends = np.clip([value, value - _NORMAL * stddev, value + _NORMAL * stddev], least, most)
    return Estimate(*map(float, ends))


def in_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the lines of a table, all of whose columns end in line."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return ["  ".join(map(str.rjust, row, widths)).rstrip() for row in rows]


def _range(values: np.ndarray, **how: Any) -> Estimate:
    """Returns the first value with the range of the others."""
    lower, upper = np.quantile(values[1:], _TAILS, **how)
    return Estimate(float(values[0]), float(min(lower, values[0])), float(max(upper, values[0])))
