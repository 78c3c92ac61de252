"""NOT PRIVATE: exact counts of what is odd in a data set, for its owner's eyes only."""

import dataclasses
import os

import numpy as np

from dpjax.datasets.base import ROWS_AT_ONCE, Table, finite_or_nan
from dpjax.datasets.loaders import open_table
from dpjax.datasets.tables import Bounds


@dataclasses.dataclass(frozen=True)
class CheckReport:
    """NOT PRIVATE: what ``check`` counted among the training records, before any scaling.

    Args:
      name: the data set.
      unit: what one row is.
      exact_rows: number of records.
      exact_class_counts: number of records labelled -1 and +1.
      exact_impossible_labels: number of records with any other label, which training drops.
      exact_nonfinite_rows: number of records with a cell that is no finite number, dropped too.
      exact_nonfinite: number of such cells, for each column that has some. A CSV line with too
        few or too many cells counts in every column and has no label.
      exact_outside: number of values outside the declared range, which are clamped to it, for
        each column that has some; None where no ranges are declared.
      exact_zero_rows: number of records that are zero in every feature once scaled.
      exact_duplicate_rows: number of records equal to an earlier one in features and label.

    Privacy: NOT PRIVATE; exact functions of the data. Do not publish it, nor choose the bounds of
    a private training by it.
    """

    name: str
    unit: str
    exact_rows: int
    exact_class_counts: dict[int, int]
    exact_impossible_labels: int
    exact_nonfinite_rows: int
    exact_nonfinite: dict[str, int]
    exact_outside: dict[str, int] | None
    exact_zero_rows: int
    exact_duplicate_rows: int

    def lines(self) -> list[str]:
        r"""NOT PRIVATE: the report as text, one count a line.

        Returns:
          Lines of which the first says NOT PRIVATE.

        >>> print(*check("randhie").lines(), sep="\n")
        NOT PRIVATE: exact counts of the data set 'randhie', for its owner's eyes only.
        rows (person-year): 20190
        labels: 6308 of -1, 13882 of +1, 0 impossible
        rows with a cell that is no finite number: 0
        values outside the declared bounds: 0
        rows that are zero once scaled: 106
        rows equal to an earlier one: 16104
        """
        counts = self.exact_class_counts
        outside = self.exact_outside
        if outside is None:
            bounds = "values outside the declared bounds: not counted, no bounds are declared"
        else:
            bounds = f"values outside the declared bounds: {_by_column(outside)}"
        cells = f" (cells: {_by_column(self.exact_nonfinite)})" if self.exact_nonfinite else ""
        return [
            f"NOT PRIVATE: exact counts of the data set {self.name!r}, for its owner's eyes only.",
            f"rows ({self.unit}): {self.exact_rows}",
            f"labels: {counts[-1]} of -1, {counts[1]} of +1, "
            f"{self.exact_impossible_labels} impossible",
            f"rows with a cell that is no finite number: {self.exact_nonfinite_rows}{cells}",
            bounds,
            f"rows that are zero once scaled: {self.exact_zero_rows}",
            f"rows equal to an earlier one: {self.exact_duplicate_rows}",
        ]


def check(
    name_or_path: str | os.PathLike[str], *, label: str | None = None, bounds: Bounds | None = None
) -> CheckReport:
    """NOT PRIVATE: counts what ``load`` would clamp or drop without a word.

    Args:
      name_or_path: as for ``load``.
      label: as for ``load``; for a file only.
      bounds: as for ``load``, but may be left out for a file too.

    Returns:
      A ``CheckReport`` of the training records.

    Raises:
      ValueError: as ``load``, except for absent bounds.
      FileNotFoundError: as ``load``.

    Privacy: NOT PRIVATE; exact counts, which no budget pays for.

    >>> check("randhie").exact_class_counts
    {-1: 6308, 1: 13882}
    """
    table = open_table(name_or_path, label=label, bounds=bounds)
    nonfinite = np.zeros(len(table.columns), int)
    outside = np.zeros(len(table.columns), int)
    nonfinite_rows = zero_rows = 0
    for start in range(0, len(table.x), ROWS_AT_ONCE):
        block = finite_or_nan(table.x[start : start + ROWS_AT_ONCE])
        holes = np.isnan(block)
        nonfinite += holes.sum(0)
        nonfinite_rows += int(holes.any(1).sum())
        if table.ranges is None:
            zero_rows += int((block == 0).all(1).sum())
        else:
            low, high = table.ranges
            outside += ((block < low) | (block > high)).sum(0)
            zero_rows += int((block <= low).all(1).sum())
    return CheckReport(
        name=table.name,
        unit=table.unit,
        exact_rows=len(table.x),
        exact_class_counts={sign: int((table.y == sign).sum()) for sign in (-1, 1)},
        exact_impossible_labels=int(np.isnan(table.y).sum()),
        exact_nonfinite_rows=nonfinite_rows,
        exact_nonfinite=_positive(table.columns, nonfinite),
        exact_outside=None if table.ranges is None else _positive(table.columns, outside),
        exact_zero_rows=zero_rows,
        exact_duplicate_rows=_duplicates(table),
    )


def _duplicates(table: Table) -> int:
    # 64-bit hashes instead of the rows: half a million rows of 54 features then take 30 MB, and a
    # collision among them has probability below 1e-8.
    seen = {
        hash((row.tobytes(), label)) for row, label in zip(table.x, table.y.tolist(), strict=True)
    }
    return len(table.x) - len(seen)


def _positive(columns: tuple[str, ...], counts: np.ndarray) -> dict[str, int]:
    return {name: int(count) for name, count in zip(columns, counts, strict=True) if count}


def _by_column(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} in {name!r}" for name, count in counts.items()) or "0"
