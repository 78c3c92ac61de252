"""NOT PRIVATE: the results of a comparison, one number a row, and their means over the seeds."""

import csv
import io
import os
import pathlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from dpjax import _durable


class Row(NamedTuple):
    """One number. Where a column means nothing the cell is empty, in numbers NaN."""

    experiment: str
    problem: str
    rows: int
    """n."""
    dimension: int
    """p."""
    method: str
    """Empty where the number belongs to the data."""
    settings: str
    """What the algorithm was given besides its defaults, in words."""
    epsilon: float
    seed: float
    """Counted from 0."""
    step: float
    """NaN: all numbers are of outputs."""
    metric: str
    """What begins with ``exact`` is an exact value of the records: NOT PRIVATE."""
    value: float


class Results:
    """The table of a comparison, and questions to it.

    Args:
      rows: one ``Row`` each.

    Privacy: NOT PRIVATE; it holds exact values of the records.

    >>> nan = float("nan")
    >>> results = Results(Row("e", "p", 9, 2, "dp-gd", "", 1.0, seed, nan, "exact_gap", gap)
    ...                   for seed, gap in enumerate([0.25, 0.75]))
    >>> results.mean("exact_gap", method="dp-gd"), results.error("exact_gap"), results.methods
    (0.5, 0.25, ('dp-gd',))
    """

    def __init__(self, rows: Iterable[Row]):
        self.rows = tuple(rows)

    @property
    def methods(self) -> tuple[str, ...]:
        """The algorithms' labels, in their order."""
        # By first appearance, which a set would forget.
        return tuple(dict.fromkeys(row.method for row in self.rows if row.method))

    @property
    def epsilons(self) -> tuple[float, ...]:
        """The epsilons, growing."""
        return tuple(sorted({row.epsilon for row in self.rows if row.method}))

    @property
    def seeds(self) -> int:
        """How many trainings each point has."""
        # Rows that belong to no seed have NaN, which is not at least 0.
        return len({row.seed for row in self.rows if row.seed >= 0})

    @property
    def exact_metrics(self) -> tuple[str, ...]:
        """The exact metrics of outputs: NOT PRIVATE."""
        names = (row.metric for row in self.rows if row.method)
        return tuple(dict.fromkeys(name for name in names if name.startswith("exact_")))

    def values(self, metric: str, **cells: Any) -> np.ndarray:
        """Returns the values of a metric, by seed, in the rows with these cells."""
        wanted = {"metric": metric, **cells}.items()
        values = (r.value for r in self.rows if all(getattr(r, k) == v for k, v in wanted))
        return np.array([*values], float)

    def mean(self, metric: str, **cells: Any) -> float:
        """Returns the mean of ``values`` that are not NaN; NaN if there are none."""
        values = self.values(metric, **cells)
        known = values[~np.isnan(values)]
        return float(known.mean()) if len(known) else float("nan")

    def error(self, metric: str, **cells: Any) -> float:
        """Returns the standard error of ``mean``; NaN with one seed, or one that diverged."""
        values = self.values(metric, **cells)
        # One that diverged has no spread that means something.
        known = len(values) > 1 and np.isfinite(values).all()
        return float(values.std(ddof=1) / len(values) ** 0.5) if known else float("nan")

    def summary(self) -> list[dict[str, Any]]:
        """Returns mean and standard error of each exact metric, by algorithm and epsilon."""
        return [
            {"algorithm": method, "epsilon": epsilon, "metric": metric,
             "mean": self.mean(metric, method=method, epsilon=epsilon),
             "standard_error": self.error(metric, method=method, epsilon=epsilon)}
            for method in self.methods
            for epsilon in self.epsilons
            for metric in self.exact_metrics
        ]  # fmt: skip

    def write(self, path: str | os.PathLike) -> None:
        """Writes the table as CSV, all of it or nothing."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(Row._fields)
        for row in self.rows:
            # Nine digits give back the float32 that they were.
            cells = (cell if isinstance(cell, str) else f"{cell:.9g}" for cell in row)
            writer.writerow("" if cell == "nan" else cell for cell in cells)
        _durable.replace_private(pathlib.Path(path), text.getvalue().encode())
