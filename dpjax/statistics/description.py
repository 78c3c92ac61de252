"""``describe``: a first look at a table, by one release of a histogram of every column."""

import dataclasses
import itertools
import math
import os
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from dpjax import _validate
from dpjax._typing import Array
from dpjax.accounting import Ledger, PrivacyBudget
from dpjax.algorithms import Algorithm
from dpjax.algorithms.histogram import histograms
from dpjax.datasets import Dataset
from dpjax.datasets.encoders import Unscaled
from dpjax.datasets.loaders import Options, open_table, undeclared_bounds
from dpjax.driver import run
from dpjax.results import Solution
from dpjax.statistics.bins import Bins, bins_of, read_places
from dpjax.statistics.summary import QUANTILES, Estimate, Summary, around, summarize

# Of the number of a unit's records over K, whose noise is then multiplied by K.
_WEIGHT = 2.0


@dataclasses.dataclass(frozen=True, repr=False)
class Description:
    """What a first look released; it prints as a table.

    Args:
      records: how many records count, that is lack no cell for which training would drop them.
      persons: how many units have such a record; None without units.
      columns: what is known of each column, the label last.
      correlation: of the pairs of columns that were asked for.
      stddev: of the noise on each count.
      solution: the release as a training has one: ``solution.guarantee()``, ``solution.event``.
    """

    records: Estimate
    persons: Estimate | None
    columns: tuple[Summary, ...]
    correlation: dict[tuple[str, str], Estimate]
    stddev: float
    solution: Solution

    def __repr__(self) -> str:
        unit, said = self.solution.unit, f"records that count: {_counted(self.records)}"
        if self.persons is not None:
            said += f"\nunits {unit!r} that have one: {_counted(self.persons)}; below each counts "
            said += "as one, by the mean of its records"
        said += f"\nnoise on each count below: standard deviation {self.stddev:.3g}\n"
        rows = [("column", "missing", "mean", *(f"{level:.0%}" for level in QUANTILES))]
        for each in self.columns:
            values = (each.mean, *each.quantiles.values())
            shown = ["" if value is None else each.bins.show(value.value) for value in values]
            rows.append((each.bins.name, f"{each.missing.value:.1%}", *shown))
            rows[-1] += ("",) * (len(rows[0]) - len(rows[-1]))
        widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
        lines = [said, *("  ".join(map(str.rjust, row, widths)).rstrip() for row in rows), ""]
        for each in self.columns:
            for level, count in each.levels.items():
                lines.append(f"{each.bins.name} = {level}: {_counted(count)}")
        for pair, (value, *ends) in self.correlation.items():
            lines.append(f"correlation of {' and '.join(pair)}: {value:.2f} ({_ends(ends, '.2f')})")
        return "\n".join(lines).rstrip()

    def to_json(self) -> dict[str, Any]:
        """Returns it as plain values, with its guarantee."""
        columns = []
        for each in self.columns:
            plain = dataclasses.asdict(dataclasses.replace(each, bins=None, counts=None))  # pyright: ignore
            edges, counts = list(each.bins.edges), each.counts.tolist()
            columns.append(plain | {"bins": each.bins.name, "edges": edges, "counts": counts})
        pairs = [[*pair, *estimate] for pair, estimate in self.correlation.items()]
        held = {"records": self.records, "persons": self.persons, "stddev": self.stddev}
        said = {"correlation": pairs, "guarantee": str(self.solution.guarantee())}
        return {**held, "columns": columns, **said}


@dataclasses.dataclass(frozen=True)
class Plan:
    """A first look that is planned: its release, the records that it will read, their bins."""

    algorithm: Algorithm
    data: Dataset = dataclasses.field(repr=False)
    bins: tuple[Bins, ...]
    pairs: tuple[tuple[str, str], ...]

    def run(self, key: Array, ledger: Any = None, part: str | None = None) -> Description:
        """Returns what the release says; see ``describe``."""
        query = self.algorithm.queries[0]
        solution = run(
            self.algorithm, self.data, key=key, ledger=ledger, part=part, progress=False
        )
        n, stddev = query.data_size, float(query.stddev) * query.data_size
        sums = np.asarray(solution.params, np.float64) * n
        *parts, rest = np.split(sums, np.cumsum([each.size for each in self.bins]))
        # A record has one place in each column, and their number may be public.
        private = query.relation == "add_or_remove_one"
        total = max(1.0, float(np.mean([*map(np.sum, parts)]))) if private else float(n)
        columns = tuple(
            summarize(each, part, stddev, total)
            for each, part in zip(self.bins, parts, strict=True)
        )
        records, persons, most = (1.0, None, math.inf if private else n)
        if self.data.present is not None:
            records = self.data.present.shape[1] / _WEIGHT
            persons, rest = around(rest[1], stddev, 0, most), np.delete(rest, 1)
        counted = around(rest[0] * records, stddev * records, 0, most * max(1, _WEIGHT * records))
        pairs = _correlations(self.pairs, columns, rest[1:] / total, stddev / total)
        return Description(counted, persons, columns, pairs, stddev, solution)


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
      ledger: as in ``dpjax.run``: booked before a record is read by the release.
      part: as in ``dpjax.run``.
      **settings: ``schema`` and the other settings of ``plan``.

    Raises:
      ValueError: as ``load``, or for a ledger that does not admit it; nothing is spent then.

    Privacy: one Gaussian mechanism, see ``HistogramQuery``; the bins are made of declarations.

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
    budget: PrivacyBudget | float,
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
      budget: or epsilon, as there.
      schema: what each column is, as for ``dpjax.datasets.load``.
      data_size: the declared n, of units where there are units; by default that of the table.
      bins: of a range.
      geometric: columns with geometric bins, see ``bins_of``.
      correlation: numbers of which correlations are released too, for 1.4 times the noise.
      **declared: in place of a schema: ``label``, ``bounds``, ``classes``, ``unit``,
        ``max_records`` and ``unit_type``, as for ``load``.

    Privacy: reads the records and releases nothing.
    """
    opened = open_table(table, Options(**declared), schema)
    opened.check_declared()
    if any(isinstance(column, Unscaled) for column in opened.schema.columns):
        raise ValueError(undeclared_bounds(opened))
    _validate.positive_int("bins", bins)
    columns = [*opened.schema.preprocessing.encoders, opened.schema.label]
    chosen = tuple(bins_of(column, bins, geometric) for column in columns)
    ranges = [each.name for each in chosen if each.edges]
    for name in (*correlation, *(geometric or ())):
        _validate.choice("column of numbers", name, ranges)
    pairs = tuple(itertools.combinations(correlation, 2))
    places, present = read_places(opened, chosen)
    sums = [*_counts(places, present, chosen), *_products(places, chosen, pairs)]
    x = np.stack([*np.moveaxis(places, -1, 0), *sums], axis=-1).astype(np.float32)
    n = len(x) if data_size is None else data_size
    if not isinstance(budget, PrivacyBudget):
        budget = PrivacyBudget(budget, 1 / (10 * _validate.positive_int("data_size", n)))
    most = [1.0] if present is None else [_WEIGHT, 1.0]
    most += [_share(len(chosen), pairs)] * len(pairs)
    sizes, grouped = [each.size for each in chosen], present is not None
    algorithm = histograms(sizes, budget, data_size=n, most=most, of_units=grouped)
    unit, y = opened.schema.unit or opened.unit, np.zeros(x.shape[:-1], np.float32)
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


def _products(places: np.ndarray, bins: Sequence[Bins], pairs: Sequence[tuple[str, str]]) -> list:
    scaled = {b.name: _grid(b)[places[..., i].astype(int)] for i, b in enumerate(bins)}
    return [_share(len(bins), pairs) * scaled[one] * scaled[other] for one, other in pairs]


def _share(columns: int, pairs: Sequence[tuple[str, str]]) -> float:
    """The factor of products by which all of them have the squared norm of the histograms."""
    return math.sqrt(columns / max(1, len(pairs)))


def _grid(bins: Bins) -> np.ndarray:
    """A number for each bin, from -1 to 1; a missing cell counts as the middle."""
    return np.r_[0.0, np.linspace(-1, 1, bins.size - 1)]


def _correlations(
    pairs: Sequence[tuple[str, str]], columns: Sequence[Summary], sums: np.ndarray, stddev: float
) -> dict[tuple[str, str], Estimate]:
    factor, moments = _share(len(columns), pairs), {}
    for each in columns:
        shares, grid = each.counts / each.counts.sum(), _grid(each.bins)
        mean = float(shares @ grid)
        moments[each.bins.name] = mean, math.sqrt(max(float(shares @ grid**2) - mean**2, 1e-6))
    found = {}
    for pair, total in zip(pairs, sums, strict=True):
        (mean, spread), (other, other_spread) = (moments[name] for name in pair)
        scale = spread * other_spread
        value = (total / factor - mean * other) / scale
        found[pair] = around(float(value), stddev / factor / scale, -1, 1)
    return found


def _ends(ends: Sequence[float], form: str) -> str:
    return f"{ends[0]:{form}} to {ends[1]:{form}}"


def _counted(estimate: Estimate) -> str:
    return f"{estimate.value:,.0f} ({_ends(estimate[1:], ',.0f')})"
