"""NOT PRIVATE: the one table that all pictures, pages and verdicts are made from."""

import csv
import io
import os
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import t as student_t

from benchmarks.papers.cache import replace


class Row(NamedTuple):
    """One number. Where a column means nothing the cell is empty, in numbers NaN."""

    experiment: str
    problem: str
    rows: int
    """n."""
    dimension: int
    """p."""
    method: str
    """Empty where the number belongs to the problem."""
    settings: str
    """What the method was given, in words."""
    epsilon: float
    seed: float
    """Counted from 0; those of the tuning are -1, -2, ..."""
    step: float
    """NaN for the output."""
    metric: str
    """What begins with ``exact`` is an exact value of the records: NOT PRIVATE."""
    value: float


_NUMBERS = ("rows", "dimension", "epsilon", "seed", "step", "value")


class Results:
    """The table of an experiment, and questions to it.

    Args:
      rows: one ``Row`` each.

    Privacy: NOT PRIVATE; it holds exact values of the records.

    >>> rows = [Row("e", "p", 9, 2, "DP-GD", "", 1.0, seed, np.nan, "exact_gap", gap)
    ...         for seed, gap in enumerate([0.25, 0.75])]
    >>> results = Results(rows)
    >>> results.mean("exact_gap", method="DP-GD"), results.each("method")
    (0.5, ('DP-GD',))
    """

    def __init__(self, rows: Iterable[Sequence[Any]]):
        columns = list(zip(*rows, strict=True)) or [()] * len(Row._fields)
        self._columns = {
            name: np.array(["nan" if cell == "" else cell for cell in column], float)
            if name in _NUMBERS else np.array(column, str)
            for name, column in zip(Row._fields, columns, strict=True)
        }  # fmt: skip

    def __len__(self) -> int:
        return len(self._columns["value"])

    def rows(self) -> list[Row]:
        """Returns the rows."""
        return [Row(*cells) for cells in zip(*self._columns.values(), strict=True)]

    def where(self, **cells: Any) -> "Results":
        """Returns the rows with these cells: with any of a tuple, or where a function is true."""
        kept = np.ones(len(self), bool)
        for name, wanted in cells.items():
            column = self._columns[name]
            every = wanted if isinstance(wanted, tuple) else (wanted,)
            kept &= wanted(column) if callable(wanted) else np.isin(column, every)
        found = Results(())
        found._columns = {name: column[kept] for name, column in self._columns.items()}
        return found

    def each(self, column: str) -> tuple:
        """Returns the different cells of a column: numbers growing, words in the rows' order."""
        found = self._columns[column]
        if column in _NUMBERS:
            return tuple(float(value) for value in np.unique(found[~np.isnan(found)]))
        return tuple(dict.fromkeys(cell for cell in found.tolist() if cell))

    def column(self, name: str) -> np.ndarray:
        """Returns a column."""
        return self._columns[name]

    @property
    def shape(self) -> tuple[int, int]:
        """The largest n and p."""
        n, p = (max(self.each(name), default=0.0) for name in ("rows", "dimension"))
        return int(n), int(p)

    def values(self, metric: str, **cells: Any) -> np.ndarray:
        """Returns the values of outputs, by seed, without those of the tuning."""
        return self.where(metric=metric, step=np.isnan, seed=untuned, **cells).column("value")

    def known(self, metric: str, **cells: Any) -> np.ndarray:
        """Returns the ``values`` that are not NaN."""
        found = self.values(metric, **cells)
        return found[~np.isnan(found)]

    def mean(self, metric: str, **cells: Any) -> float:
        """Returns the mean of those that are known; NaN if there are none."""
        found = self.known(metric, **cells)
        return float(found.mean()) if len(found) else float("nan")

    def median(self, metric: str, **cells: Any) -> float:
        """Returns the median of ``values``."""
        return middle(self.values(metric, **cells))

    def error(self, metric: str, **cells: Any) -> float:
        """Returns the standard error of ``mean``; NaN with one seed, or one that diverged."""
        found = self.values(metric, **cells)
        known = len(found) > 1 and np.isfinite(found).all()
        return float(found.std(ddof=1) / len(found) ** 0.5) if known else float("nan")

    def tried(self, metric: str, **cells: Any) -> dict[str, float]:
        """Returns the mean over the seeds of the tuning, by settings."""
        found = self.where(metric=metric, seed=lambda seed: seed < 0, **cells)
        every = found.each("settings")
        return {one: float(found.where(settings=one).column("value").mean()) for one in every}

    def taken(self, metric: str) -> str:
        """Returns the settings of the outputs, in words: the best of those that were tried."""
        return self.where(metric=metric, seed=untuned).each("settings")[0]


def untuned(seed: np.ndarray) -> np.ndarray:
    """Returns which rows are not of the tuning."""
    return ~(seed < 0)


def per_problem(part: Callable[[Results, Any], Iterable]) -> Callable[[Results, Sequence], list]:
    """Returns what is said of several problems, from what is said of one and its rows."""

    def every(results: Results, problems: Sequence) -> list:
        return [one for p in problems for one in part(results.where(problem=p.name), p)]

    return every


def quartiles(values: np.ndarray) -> tuple[float, float, float]:
    """Returns the three quartiles; infinite ones are those of runs that never got there.

    >>> quartiles(np.array([1.0, 2.0, np.inf]))
    (1.0, 2.0, inf)
    """
    # Of infinite numbers none is between two others, so no interpolation.
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75], method="nearest")
    return float(low), float(middle), float(high)


def middle(values: np.ndarray) -> float:
    """Returns the median; where some values are infinite that of ``quartiles``."""
    return float(np.median(values)) if np.isfinite(values).all() else quartiles(values)[1]


class Difference(NamedTuple):
    """How far one mean is above another, its standard error by Welch, and degrees of freedom."""

    value: float
    error: float
    freedom: float

    @property
    def p_value(self) -> float:
        """Two-sided, by Student's t."""
        return 2 * float(student_t.sf(abs(self.value) / self.error, self.freedom))


def difference(*samples: np.ndarray) -> Difference:
    """Returns the first mean minus the second, plus the fourth minus the third if there are four.

    >>> difference(np.array([3.0, 5.0]), np.array([1.0, 3.0]))[:2]
    (2.0, 1.4142135623730951)
    """
    signs = (1, -1, -1, 1)
    value = sum(sign * float(s.mean()) for sign, s in zip(signs, samples, strict=False))
    if min(map(len, samples)) < 2:
        return Difference(value, float("nan"), float("nan"))
    squares = [float(np.var(s, ddof=1)) / len(s) for s in samples]
    total = sum(squares)
    weights = sum(square**2 / (len(s) - 1) for square, s in zip(squares, samples, strict=True))
    return Difference(value, total**0.5, total**2 / weights if total else float("inf"))


def write(path: str | os.PathLike, results: Results) -> None:
    """Writes the table as CSV, all of it or nothing."""

    def cells(row: Row) -> list[str]:
        numbers = (cell if isinstance(cell, str) else f"{cell:.9g}" for cell in row)
        return ["" if cell == "nan" else cell for cell in numbers]

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([Row._fields, *map(cells, results.rows())])
    replace(pathlib.Path(path), text.getvalue())


def read(path: str | os.PathLike) -> Results:
    """Returns what ``write`` wrote.

    Raises:
      FileNotFoundError: if there is no such file, naming how to make it.
    """
    if not os.path.exists(path):
        raise FileNotFoundError(f"{path} is missing: make it by the same command without --redraw.")
    with open(path, newline="") as file:
        head, *lines = csv.reader(file)
    if tuple(head) != Row._fields:
        raise ValueError(f"{path} must have the columns {', '.join(Row._fields)}; make it anew.")
    return Results(lines)
