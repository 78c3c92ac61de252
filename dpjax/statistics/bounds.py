"""``PrivateBounds``: columns' bounds within public limits, from one release of their histograms."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from dpjax.accounting import PrivacyBudget
from dpjax.algorithms import Algorithm
from dpjax.algorithms.ending import Beside, beside
from dpjax.algorithms.histogram import histograms
from dpjax.datasets import Dataset
from dpjax.datasets.loaders import Table, open_table
from dpjax.driver import run
from dpjax.statistics.bins import Bins, bins_of, read_places

_BINS = 64
_CUT = 0.005  # of the values, at either end
# Of the noise: among 64 bins, none that is empty looks full but with probability 1 %.
_CERTAIN = 3.7


@dataclasses.dataclass
class PrivateBounds:
    """A training of a table some of whose bounds are declared private; see ``of``.

    Args:
      data: the records scaled by the outer limits: of the size and width of those to train on.
    """

    table: Table
    data: Dataset = dataclasses.field(repr=False)
    _bins: tuple[Bins, ...]
    _look: Beside | None = None
    _is_found: bool = False

    @classmethod
    def of(cls, table: Any, schema: Any, **how: Any) -> "PrivateBounds":
        """Returns a table opened by a schema in which ``bounds = "private"``, with ``limits``.

        ``how`` is ``memory_limit``, as for ``load``.
        """
        opened = open_table(table, schema=schema, **how)
        limited = opened._replace(schema=dataclasses.replace(opened.schema, private=()))
        named = [c for c in opened.schema.columns if c.name in opened.schema.private]
        return cls(opened, limited.dataset(), tuple(bins_of(c, _BINS) for c in named))

    def configure(
        self,
        make: Callable[[PrivacyBudget], Algorithm],
        budget: PrivacyBudget,
        epsilon: float,
        data_size: int,
    ) -> Beside:
        """Returns the training that ``make`` makes of what finding the bounds leaves of the budget.

        Args:
          make: ``make(budget) -> algorithm``, a factory with all its arguments but the budget.
          budget: for both.
          epsilon: for the bounds, below the budget's; a tenth of it serves.
          data_size: the declared n.

        Privacy: one Gaussian release beside the training's, composed into one event.
        """
        if self._look is not None:
            raise ValueError(
                "a training was configured, whose event holds the bounds that find releases: "
                "for another one open the table anew, by PrivateBounds.of."
            )
        if not 0 < epsilon < budget.epsilon:
            raise ValueError(
                f"epsilon of the bounds must be between 0 and the budget's, {budget.epsilon:g}, "
                f"got {epsilon:g}; a tenth of that serves."
            )
        part, sizes = dataclasses.replace(budget, epsilon=epsilon), [b.size for b in self._bins]
        grouped = self.data.present is not None
        look = histograms(sizes, part, data_size, of_units=grouped)
        training, self._look = beside(make, budget, look)
        return training

    def find(self, **how: Any) -> Dataset:
        """Returns the data scaled by bounds that are found privately, for what was configured.

        Args:
          **how: ``key`` or ``seed``, and ``ledger``, as for ``dpjax.run``. A ledger books both
            releases here, before a record is read, so that the training is given none.

        Raises:
          ValueError: before ``configure``, and a second time: one release is in the event.
        """
        look: Any = self._look
        if look is None or self._is_found:
            raise ValueError(
                "find is called once, after configure, whose event holds one release of bounds: "
                "keep the Dataset that it returned, or open the table anew, by PrivateBounds.of."
            )
        places, present = read_places(self.table, self._bins)
        y = np.zeros(places.shape[:-1], np.float32)
        data = dataclasses.replace(
            self.data, x=places, y=y, present=present, max_norm=None, preprocessing=None
        )
        solution = run(look, data, progress=False, **how)
        self._is_found = True
        stddev = float(look.queries[0].stddev)
        sizes = np.cumsum([each.size for each in self._bins])[:-1]
        parts = np.split(np.asarray(solution.params, np.float64), sizes)
        ends = {
            b.name: _ends(b, part[1:], stddev) for b, part in zip(self._bins, parts, strict=True)
        }
        schema = self.table.schema
        columns = [_bounded(c, ends[c.name]) if c.name in ends else c for c in schema.columns]
        found = dataclasses.replace(schema, columns=tuple(columns), private=())
        return self.table._replace(schema=found).dataset()


def _ends(bins: Bins, shares: np.ndarray, stddev: float) -> tuple[float, float]:
    """Returns the edges around all but the outermost values; the limits where noise hides all."""
    held = np.where(shares > _CERTAIN * stddev, shares, 0.0)
    if not held.any():
        return bins.edges[0], bins.edges[-1]
    below = np.cumsum(held) / held.sum()
    return bins.edges[int((below <= _CUT).sum())], bins.edges[int((below < 1 - _CUT).sum()) + 1]


def _bounded(column: Any, ends: tuple[float, float]) -> Any:
    low, high = ends
    missing = None if column.missing is None else min(max(column.missing, low), high)
    return dataclasses.replace(column, low=low, high=high, missing=missing)
