"""``describe`` and ``PrivateBounds``: what one release of columns' histograms says of a table."""

import dataclasses
import itertools
import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from dpjax import _validate
from dpjax._typing import Array
from dpjax.accounting import Ledger, PrivacyBudget
from dpjax.algorithms import Algorithm
from dpjax.algorithms.ending import Beside, beside
from dpjax.algorithms.histogram import histograms
from dpjax.datasets import Dataset
from dpjax.datasets.encoders import Unscaled
from dpjax.datasets.loaders import Options, open_table, undeclared_bounds
from dpjax.driver import run
from dpjax.results import Solution
from dpjax.statistics.bins import (
    QUANTILES,
    Bins,
    Estimate,
    Summary,
    around,
    bins_of,
    in_columns,
    read_places,
    summarize,
)

# Of the number of a unit's records over K, whose noise is then multiplied by K.
_WEIGHT = 2.0
_BINS = 64
_CUT = 0.005  # of the values, at either end
# Of the noise: among 64 bins, none that is empty looks full but with probability 1 %.
_CERTAIN = 3.7


@dataclasses.dataclass(frozen=True, repr=False)
class Description:
    """What a first look released; it prints as a table.

    Args:
      records: how many records count, that is lack no cell for which training would drop them.
      persons: how many units have such a record; None without units.
      columns: what is known of each column, the label last.
      correlation: of pairs of columns, ``"age, income"``, if asked for.
      stddev: of the noise on each count.
      solution: the release as a training has one: ``solution.guarantee()``, ``solution.event``.
    """

    records: Estimate
    persons: Estimate | None
    columns: tuple[Summary, ...]
    correlation: Mapping[str, Estimate]
    stddev: float
    solution: Solution

    def __repr__(self) -> str:
        lines = [f"records that count: {self.records.words()}"]
        if self.persons is not None:
            units = f"units ({self.solution.unit}) with a record that counts"
            lines.append(f"{units}: {self.persons.words()}; below, each counts once, by the mean "
                         "of its records")  # fmt: skip
        lines += [f"noise on each count below: standard deviation {self.stddev:.3g}", ""]
        rows: list[Any] = [("column", "missing/other", "mean", *map("{:.0%}".format, QUANTILES))]
        for each in self.columns:
            values = [each.mean, *each.quantiles.values()] if each.mean else []
            shown = [each.bins.show(estimate.value) for estimate in values if estimate]
            rows.append([each.bins.name, f"{each.missing.value:.1%}", *(shown or [""] * 6)])
        lines += in_columns(rows)
        for each in self.columns:
            lines += [""] * bool(each.levels)
            lines += [f"{each.bins.name} = {k}: {n.words()}" for k, n in each.levels.items()]
        for pair, found in self.correlation.items():
            lines.append(f"correlation of {pair}: {found.words('{:.2f}'.format)}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Returns it as plain values, with its guarantee."""
        plain: Any = dataclasses.replace(self, solution=None)  # pyright: ignore[reportArgumentType]
        return dataclasses.asdict(plain) | {"solution": str(self.solution.guarantee())}


@dataclasses.dataclass(frozen=True)
class Plan:
    """A first look that is planned: its release, the records that it will read, their bins."""

    algorithm: Algorithm
    data: Dataset = dataclasses.field(repr=False)
    bins: tuple[Bins, ...]
    pairs: tuple[tuple[int, int], ...]

    def run(self, key: Array, ledger: Any = None, part: str | None = None) -> Description:
        """Returns what the release says; see ``describe``."""
        how = {"key": key, "ledger": ledger, "part": part, "progress": False}
        solution, query = run(self.algorithm, self.data, **how), self.algorithm.queries[0]
        n, present = query.data_size, self.data.present
        stddev = float(query.stddev) * n
        sums = np.asarray(solution.params, np.float64) * n
        *parts, rest = np.split(sums, np.cumsum([each.size for each in self.bins]))
        # A record has one place in each column, and their number may be public.
        is_private = query.relation == "add_or_remove_one"
        total = max(1.0, float(np.mean([*map(np.sum, parts)]))) if is_private else float(n)
        pairs = zip(self.bins, parts, strict=True)
        columns = tuple(summarize(each, part, stddev, total) for each, part in pairs)
        scale, persons, most = 1.0, None, math.inf if is_private else n
        if present is not None:
            persons, rest = around(rest[1], stddev, 0, most), np.delete(rest, 1)
            scale, most = present.shape[1] / _WEIGHT, most * present.shape[1]
        records = around(rest[0] * scale, stddev * scale, 0, most)
        noisy = [each / total for each in (*parts, rest[1:])]
        correlation = self._correlations(noisy, stddev / total)
        return Description(records, persons, columns, correlation, stddev, solution)

    def _correlations(self, noisy: list[np.ndarray], stddev: float) -> dict[str, Estimate]:
        """Returns correlations of places among bins, from noisy shares and sums of products."""
        *shares, sums = noisy
        factor, found, moments = _factor(self.bins, self.pairs), {}, []
        for each, share in zip(self.bins, shares, strict=True):
            # As they are: those without negative counts would have a mean nearer the middle.
            grid = _grid(each)
            mean = float(share @ grid)
            spread = math.sqrt(max(float(share @ grid**2) - mean**2, 1e-6))
            moments.append((mean, spread, stddev * float(np.linalg.norm(grid))))
        for (i, j), total in zip(self.pairs, sums / factor, strict=True):
            (mean, spread, room), (other, beside, place) = moments[i], moments[j]
            value = float(total - mean * other) / (spread * beside)
            # Means are noisy too, and multiply each other's.
            noise = math.hypot(stddev / factor, room * other, place * mean) / (spread * beside)
            found[f"{self.bins[i].name}, {self.bins[j].name}"] = around(value, noise, -1, 1)
        return found


def describe(
    table: Any,
    *,
    key: Array,
    epsilon: float = 0.1,
    budget: PrivacyBudget | None = None,
    ledger: Ledger | str | os.PathLike[str] | None = None,
    part: str | None = None,
    **settings: Any,
) -> Description:
    """Returns a first look at a table: counts, missing cells, means, quantiles, histograms.

    One release of a histogram of every column, the label's too; all else is post-processing. Where
    a unit is declared each counts as one, by the mean of its records.

    Args:
      table: a file, a data frame or a mapping of columns, as for ``dpjax.datasets.load``.
      key: ``dpjax.random_key()``.
      epsilon: to spend, at delta 1 / (10 n) under ``"zero_out"``;
      budget: or what to spend.
      ledger: as in ``dpjax.run``.
      part: as in ``dpjax.run``.
      **settings: ``schema`` and the other settings of ``plan``.

    Raises:
      ValueError: as ``load``, or for a ledger that does not admit it; nothing is spent then.

    Privacy: one Gaussian mechanism, see ``HistogramQuery``; the bins are made of declarations.
      The null record of ``"zero_out"`` is in no bin. One whose cells are missing is in bin 0 of
      each column, so no null record here: to hide that cells are, declare ``"replace_one"``.

    >>> import dpjax
    >>> table = {"age": np.arange(20.0, 80.0), "ill": np.arange(60) % 2 == 0}
    >>> schema = {"label": {"column": "ill", "classes": [False, True]},
    ...     "columns": {"age": {"bounds": [0, 100]}}}
    >>> look = describe(table, schema=schema, epsilon=5.0, key=dpjax.random_key())
    >>> [column.bins.name for column in look.columns]
    ['age', 'ill']
    """
    return plan(table, epsilon if budget is None else budget, **settings).run(key, ledger, part)


def plan(
    table: Any,
    budget: PrivacyBudget | float | Callable[[int], PrivacyBudget],
    *,
    schema: Any = None,
    data_size: int | None = None,
    bins: int = 20,
    geometric: Collection[str] | None = None,
    correlation: Sequence[str] = (),
    **declared: Any,
) -> Plan:
    """Returns the first look that ``describe`` runs; nothing is asked or spent.

    Args:
      table: as in ``describe``.
      budget: or epsilon, as there; or a function of n.
      schema: what each column is, as for ``dpjax.datasets.load``.
      data_size: the declared n, of units where there are units; by default that of the table.
      bins: of a range.
      geometric: columns with geometric bins, by default those of wide bounds; see ``bins_of``.
      correlation: columns of numbers of which correlations are released, for 1.4 times the noise.
      **declared: ``label``, ``bounds`` and others in place of a schema, as for ``load``.

    Privacy: reads the records and releases nothing.
    """
    opened = open_table(table, Options(**declared), schema)
    opened.check_declared()
    if any(isinstance(column, Unscaled) for column in opened.schema.columns):
        raise ValueError(undeclared_bounds(opened))
    most, declared_columns = _validate.positive_int("bins", bins), opened.schema.preprocessing
    columns = [*declared_columns.encoders, opened.schema.label]
    chosen = tuple(bins_of(column, most, geometric) for column in columns)
    names = [each.name for each in chosen]
    for name in (*correlation, *(geometric or ())):
        _validate.choice("column of numbers", name, [each.name for each in chosen if each.edges])
    pairs = tuple(itertools.combinations(map(names.index, correlation), 2))
    places, present = read_places(opened, chosen)
    grids = [_grid(each)[places[..., i].astype(int)] for i, each in enumerate(chosen)]
    products = [_factor(chosen, pairs) * grids[i] * grids[j] for i, j in pairs]
    x = np.stack([*np.moveaxis(places, -1, 0), *_counts(places, present, chosen), *products], -1)
    n = len(x) if data_size is None else _validate.positive_int("data_size", data_size)
    if callable(budget):
        budget = budget(n)
    elif not isinstance(budget, PrivacyBudget):
        budget = PrivacyBudget(budget, 1 / (10 * n))
    if budget.relation == "add_or_remove_one" and data_size is None:
        raise ValueError("under 'add_or_remove_one' n is private: declare data_size yourself.")
    largest = [1.0] if present is None else [_WEIGHT, 1.0]
    largest += [_factor(chosen, pairs)] * len(pairs)
    sizes, unit = [each.size for each in chosen], opened.schema.unit or opened.unit
    algorithm = histograms(sizes, budget, n, largest, of_units=present is not None)
    x, y = x.astype(np.float32), np.zeros(x.shape[:-1], np.float32)
    data = Dataset(x, y, name=opened.name, unit=unit, present=present)
    return Plan(algorithm, data, chosen, pairs)


def _counts(places: np.ndarray, present: np.ndarray | None, bins: Sequence[Bins]) -> list:
    """Whether each record counts; of a unit how many over K, and whether any does."""
    counts = ((places > 0) | [not each.is_required for each in bins]).all(axis=-1)
    if present is None:
        return [counts]
    held = (counts & present).sum(axis=1, keepdims=True)
    # Of a unit the mean of its records is added, so that each record has the same number.
    both = _WEIGHT * held / present.shape[1], held > 0
    return [np.broadcast_to(each, present.shape) for each in both]


def _factor(columns: Sequence[Any], pairs: Sequence[Any]) -> float:
    """The factor of products by which all of them have the squared norm of the histograms."""
    return math.sqrt(len(columns) / max(1, len(pairs)))


def _grid(bins: Bins) -> np.ndarray:
    """A number for each bin, from -1 to 1; a missing cell counts as the middle."""
    return np.r_[0.0, np.linspace(-1, 1, bins.size - 1)]


@dataclasses.dataclass
class PrivateBounds:
    """A training of a table some of whose bounds are declared private; see ``of``.

    Args:
      data: the records scaled by the outer limits: of the size and width of those to train on.
    """

    data: Dataset = dataclasses.field(repr=False)
    _bins: tuple[Bins, ...]
    _places: Callable[[], tuple[np.ndarray, Any]] = dataclasses.field(repr=False)
    """As ``read_places`` of the bins."""
    _scaled: Callable[[dict[str, tuple[float, float]]], Dataset] = dataclasses.field(repr=False)
    """Returns the records for bounds by column."""
    _look: Beside | None = None
    _is_found: bool = False

    @classmethod
    def of(cls, table: Any, schema: Any, **how: Any) -> "PrivateBounds":
        """Returns a table opened by a schema in which ``bounds = "private"``, with ``limits``.

        ``how`` is ``memory_limit``, as for ``load``.
        """
        opened = open_table(table, schema=schema, **how)
        limited = opened._replace(schema=dataclasses.replace(opened.schema, private=()))
        bins = private_bins(c for c in opened.schema.columns if c.name in opened.schema.private)

        def scaled(ends: dict[str, tuple[float, float]]) -> Dataset:
            schema = limited.schema
            columns = [_bounded(c, ends[c.name]) if c.name in ends else c for c in schema.columns]
            return opened._replace(
                schema=dataclasses.replace(schema, columns=tuple(columns))
            ).dataset()

        return cls(limited.dataset(), bins, lambda: read_places(opened, bins), scaled)

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
        look = histograms(sizes, part, data_size, of_units=self.data.present is not None)
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
        places, present = self._places()
        y = np.zeros(places.shape[:-1], np.float32)
        data = dataclasses.replace(
            self.data, x=places, y=y, present=present, max_norm=None, preprocessing=None
        )
        solution = run(look, data, progress=False, **how)
        self._is_found = True
        stddev = float(look.queries[0].stddev)
        sizes = np.cumsum([each.size for each in self._bins])[:-1]
        parts = np.split(np.asarray(solution.params, np.float64), sizes)
        pairs = zip(self._bins, parts, strict=True)
        return self._scaled({b.name: _ends(b, part[1:], stddev) for b, part in pairs})


def private_bins(columns: Iterable[Any]) -> tuple[Bins, ...]:
    """Returns the bins in which ``PrivateBounds`` looks for bounds, within those declared."""
    return tuple(bins_of(column, _BINS) for column in columns)


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
