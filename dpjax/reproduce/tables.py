"""NOT PRIVATE: the CSV tables of a reproduction, written and read; pictures are drawn from them."""

import csv
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np


class Table:
    """Rows that share their columns, as a CSV file holds them.

    Args:
      rows: by column; every cell is kept as its text.

    Privacy: NOT PRIVATE; the cells hold exact values of the data.

    >>> table = Table([{"method": "DP-GD", "epsilon": 1.0, "gap": 0.5},
    ...                {"method": "DP-TR", "epsilon": 1.0, "gap": ""}])
    >>> table.words("method"), table.where(method="DP-GD", epsilon=1).numbers("gap")
    (('DP-GD', 'DP-TR'), array([0.5]))
    """

    def __init__(self, rows: Sequence[Mapping[str, object]]):
        self.rows = [{name: str(cell) for name, cell in row.items()} for row in rows]

    def __len__(self) -> int:
        return len(self.rows)

    def where(self, **cells: str | float) -> "Table":
        """Returns the rows with these cells; numbers are compared as numbers."""
        return Table(
            [row for row in self.rows if all(_same(row[name], c) for name, c in cells.items())]
        )

    def words(self, column: str) -> tuple[str, ...]:
        """Returns the different cells of a column, in the order of the rows."""
        return tuple(dict.fromkeys(row[column] for row in self.rows))

    def numbers(self, column: str) -> np.ndarray:
        """Returns a column as numbers; empty cells are NaN."""
        return np.array([float(row[column] or "nan") for row in self.rows])

    def values(self, column: str) -> tuple[float, ...]:
        """Returns the different numbers of a column, growing."""
        return tuple(float(value) for value in np.unique(self.numbers(column)))

    def only(self, column: str) -> str:
        """Returns the one cell that all rows have in a column.

        Raises:
          ValueError: if they differ, or there are no rows.
        """
        (cell,) = self.words(column)
        return cell


def write_csv(path: pathlib.Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Writes rows that share their columns."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read_csv(path: pathlib.Path) -> Table:
    """Returns what ``write_csv`` wrote.

    Raises:
      FileNotFoundError: if there is no such file, naming how to make it.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: make it by the same command without --redraw.")
    with path.open(newline="") as file:
        return Table(list(csv.DictReader(file)))


def _same(cell: str, wanted: str | float) -> bool:
    return cell == wanted if isinstance(wanted, str) else float(cell or "nan") == wanted
