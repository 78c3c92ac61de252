"""Where a table's cells come from: its columns, read in blocks of rows."""

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from dpjax._files import SourceFile
from dpjax.datasets.cells import Kind

ROWS_AT_ONCE = (
    8192  # bounds every temporary: the float64 copy of one block of 54 features is 3.5 MB
)


class Source:
    """A table with named columns; raw data.

    Attributes:
      where: what the table is called in errors.
      names: of its columns.
      kinds: how each is stored.
      stated: the name of its dtype, "" where a file states none.
      size: number of records.
      source_file: the file they are read from; None where they are in memory.
    """

    where: str
    names: tuple[str, ...]
    kinds: Mapping[str, Kind]
    stated: Mapping[str, str]
    size: int
    source_file: SourceFile | None = None

    def at(
        self, index: slice | np.ndarray, wanted: Sequence[str], numeric: Collection[str] = ()
    ) -> list[np.ndarray]:
        """Returns the cells of some rows: one array (m,) for each wanted column.

        Args:
          index: of the rows.
          wanted: names of columns.
          numeric: those that may be read as numbers, whatever else they hold.
        """
        raise NotImplementedError

    def blocks(
        self, wanted: Sequence[str], numeric: Collection[str] = ()
    ) -> Iterator[list[np.ndarray]]:
        """Yields the cells of all rows in blocks, each as ``at`` returns it."""
        for start in range(0, self.size, ROWS_AT_ONCE):
            yield self.at(slice(start, start + ROWS_AT_ONCE), wanted, numeric)
