"""What noisy histograms say of columns: shares, means and quantiles, with the noise's ranges."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dpjax.statistics.bins import Bins

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_TAILS = (0.025, 0.975)
_NORMAL = 1.96  # of a normal distribution, 95 % lie within so many standard deviations
DRAWS = 400  # of simulated noise, since what is done to counts has no simple law


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
    """Returns what noisy counts (k,) say of a column of ``total`` records; post-processing.

    >>> from dpjax.datasets.encoders import Numeric
    >>> from dpjax.statistics.bins import bins_of
    >>> column = bins_of(Numeric("age", 0, 100), 4)
    >>> round(summarize(column, np.array([0.0, 100, 300, 100, 0]), 1.0, 500.0).mean.value, 1)
    37.5
    """
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
