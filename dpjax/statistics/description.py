"""``describe``: a first look at a table, by one release of a histogram of every column."""

import dataclasses
import itertools
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
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
from dpjax.statistics.summary import QUANTILES, Estimate, Summary, around, in_columns, summarize

# Of the number of a unit's records over K, whose noise is then multiplied by K.
_WEIGHT = 2.0


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
            lines.append(f"units {self.solution.unit!r} that have one: {self.persons.words()}; "
                         "below, each counts as one, by the mean of its records")  # fmt: skip
        lines += [f"noise on each count below: standard deviation {self.stddev:.3g}", ""]
        rows: list[tuple[str, ...]] = [
            ("column", "missing", "mean", *(f"{level:.0%}" for level in QUANTILES))
        ]
        for each in self.columns:
            values = [each.mean, *each.quantiles.values()] if each.mean else []
            shown = [each.bins.show(estimate.value) for estimate in values if estimate]
            rows.append((each.bins.name, f"{each.missing.value:.1%}", *(shown or [""] * 6)))
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
        correlation = _correlations(
            self.pairs, self.bins, [each / total for each in (*parts, rest[1:])], stddev / total
        )
        return Description(records, persons, columns, correlation, stddev, solution)


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


def _correlations(
    pairs: Sequence[tuple[int, int]], bins: Sequence[Bins], noisy: list[np.ndarray], stddev: float
) -> dict[str, Estimate]:
    """Returns correlations of places among bins, from noisy shares and sums of products."""
    *shares, sums = noisy
    factor, found, moments = _factor(bins, pairs), {}, []
    for each, share in zip(bins, shares, strict=True):
        # As they are: those without negative counts would have a mean nearer the middle.
        grid = _grid(each)
        mean = float(share @ grid)
        spread = math.sqrt(max(float(share @ grid**2) - mean**2, 1e-6))
        moments.append((mean, spread, stddev * float(np.linalg.norm(grid))))
    for (i, j), total in zip(pairs, sums / factor, strict=True):
        (mean, spread, room), (other, beside, place) = moments[i], moments[j]
        # Means are noisy too, and multiply each other's.
        noise = math.hypot(stddev / factor, room * other, place * mean) / (spread * beside)
        found[f"{bins[i].name}, {bins[j].name}"] = around(
            float(total - mean * other) / (spread * beside), noise, -1, 1
        )
    return found
