"""Where a table's cells come from: its columns, read in blocks of rows."""

import pathlib
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

    Errors call it ``where``. ``kinds`` are how its columns are stored, and ``stated`` the names of
    their dtypes, "" where a file states none.
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

    def exact_faults(self) -> tuple[list[str], list[str]]:
        """NOT PRIVATE: returns what is wrong with the table as a file, and remarks on it."""
        return [], []


def stacked(cells: Sequence[np.ndarray]) -> np.ndarray:
    """Returns columns as numbers (m, p), NaN for a cell that is none."""
    return np.stack(list(map(to_numbers, cells)), axis=1)


def few(names: Sequence[Any], show: Callable[[Any], str] = repr) -> str:
    """Returns the first few names as text for an error message."""
    shown = ", ".join(map(show, names[:8]))
    return shown + (f", ... ({len(names)} in all)" if len(names) > 8 else "")


def existing(file: Any, kind: str = "file") -> pathlib.Path:
    """Returns the path of a file that is there."""
    path = pathlib.Path(file)
    if not path.is_file():
        raise FileNotFoundError(f"there is no {kind} {str(path)!r}.")
    return path


def text_of(file: Any, kind: str) -> str:
    """Returns the text of a file of declarations."""
    try:
        # utf-8-sig drops the byte order mark that some editors write and TOML does not allow.
        return existing(file, kind).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"the {kind} {str(file)!r} is not UTF-8: save it as UTF-8.") from None


def check_unique(where: str, names: Sequence[str]) -> None:
    """Raises if a name occurs twice."""
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        hint = " Separators at the ends of lines name columns ''." if "" in twice else ""
        raise ValueError(f"{where} names {few(twice)} twice: rename one.{hint}")


class OpenTable(NamedTuple):
    """A table, held-out records of an NPZ, whether rows stay on disk, and its label if known."""

    source: Source
    test: Source | None = None
    on_disk: bool = False
    label: str | None = None
