"""Where a table's cells come from: its columns, read in blocks of rows."""

import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dpjax.datasets.cells import Kind, to_numbers
from dpjax.datasets.forms import PLAIN, Form

# Bounds every temporary: the float64 copy of one block of 54 features is 3.5 MB.
ROWS_AT_ONCE = 8192
Forms = Mapping[str, Form]
NO_FORMS: Forms = types.MappingProxyType({})


class Source:
    """A table with named columns; raw data.

    Attributes:
      where: what the table is called in errors.
      names: of its columns.
      kinds: how each is stored.
      stated: the name of its dtype, "" where a file states none.
      size: number of records.
    """

    where: str
    names: tuple[str, ...]
    kinds: Mapping[str, Kind]
    stated: Mapping[str, str]
    size: int

    def at(
        self, index: slice | np.ndarray, wanted: Sequence[str], numeric: Forms = NO_FORMS
    ) -> list[np.ndarray]:
        """Returns the cells of some rows: one array (m,) for each wanted column.

        Those of ``numeric`` may be read as numbers or days in their form, whatever else they hold.
        """
        raise NotImplementedError

    def numbers(self, index: slice | np.ndarray, wanted: Sequence[str]) -> np.ndarray:
        """Returns columns of some rows as numbers (m, p), NaN for a cell that is none."""
        return stacked(self.at(index, wanted, dict.fromkeys(wanted, PLAIN)))

    def read(
        self,
        index: slice | np.ndarray,
        wanted: Sequence[str],
        numeric: Forms = NO_FORMS,
        together: Sequence[str] = (),
    ) -> list[np.ndarray]:
        """Returns the numbers of the columns ``together``, if any, then the cells of the others."""
        # In one piece, which is a view where the columns are neighbours in memory.
        first = [self.numbers(index, together)] if together else []
        return first + self.at(index, wanted, numeric)

    def blocks(
        self, wanted: Sequence[str], numeric: Forms = NO_FORMS, together: Sequence[str] = ()
    ) -> Iterator[list[np.ndarray]]:
        """Yields the cells of all rows in blocks, each as ``read`` returns it."""
        for start in range(0, self.size, ROWS_AT_ONCE):
            yield self.read(slice(start, start + ROWS_AT_ONCE), wanted, numeric, together)

    def exact_problems(self) -> list[str]:
        """NOT PRIVATE: returns what is wrong with the table as a file, if anything is."""
        return []

    def exact_remarks(self) -> list[str]:
        """NOT PRIVATE: returns what its owner should know of the table as a file."""
        return []


def stacked(cells: Sequence[np.ndarray]) -> np.ndarray:
    """Returns columns as numbers (m, p), NaN for a cell that is none."""
    return np.stack(list(map(to_numbers, cells)), axis=1)


def few(names: Sequence[Any], show: Callable[[Any], str] = repr) -> str:
    """Returns the first few names as text for an error message."""
    shown = ", ".join(map(show, names[:8]))
    return shown + (f", ... ({len(names)} in all)" if len(names) > 8 else "")


def check_unique(where: str, names: Sequence[str]) -> None:
    """Raises if a name occurs twice."""
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        hint = " Separators at the ends of lines name columns ''." if "" in twice else ""
        raise ValueError(f"{where} names {few(twice)} twice: rename one.{hint}")


class OpenTable(NamedTuple):
    """A table, and the held-out records that an NPZ may have beside it.

    Args:
      on_disk: whether its rows are to stay there.
      label: the column that is known to hold the labels, or None.
    """

    source: Source
    test: Source | None = None
    on_disk: bool = False
    label: str | None = None
