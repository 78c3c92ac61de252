"""NOT PRIVATE: the results of a comparison as a table, their means, and its page and picture."""

import csv
import io
import os
import pathlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from dpjax import _durable, _validate, plotting
from dpjax.plotting import BLACK, BLUE, BROWN, GREEN, GREY, ORANGE, PINK, PURPLE, SKY, YELLOW

_COLORS = (BLUE, ORANGE, GREEN, PINK, SKY, YELLOW, PURPLE, GREY, BLACK, BROWN)
_MARKERS = "osD^vP*XdhpH<>"
# What is less is rounding.
_LEAST = 1e-6
_WORDS = (
    "All settings are the algorithms' defaults, untuned, unless `compare.csv` says otherwise: on "
    "other data the order may be another. Nothing here is private: all values are exact values of "
    "the records, and choosing an algorithm by them is a release. Look only at data that may be "
    "looked at."
)


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

    def to_pandas(self) -> Any:
        """Returns the rows as a ``pandas.DataFrame``, a column for each field of ``Row``.

        Raises:
          ImportError: without pandas, which is optional.
        """
        try:
            import pandas
        except ImportError:
            raise ImportError(_validate.install("to_pandas()", "pandas") + ".") from None
        return pandas.DataFrame(self.rows, columns=list(Row._fields))

    def to_latex(self) -> str:
        """Returns a LaTeX table for each exact metric, by algorithm and epsilon; NOT PRIVATE.

        Cells are means with standard errors in brackets; LaTeX needs no package for them.
        """
        lines = []
        for metric in self.exact_metrics:
            caption = f"Exact {_words(metric)} on {self.rows[0].problem} (NOT PRIVATE)"
            rows = [" & ".join(map(_escaped, cells)) for cells in _cells(self, metric)]
            lines += [
                r"\begin{table}", r"\centering", rf"\caption{{{_escaped(caption)}}}",
                rf"\begin{{tabular}}{{l{'r' * len(self.epsilons)}}}",
                rf"{rows[0]} \\ \hline", *(rf"{row} \\" for row in rows[1:]),
                r"\end{tabular}", r"\end{table}", "",
            ]  # fmt: skip
        return "\n".join(lines)

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


def page(results: Results, conventions: str) -> str:
    """Returns the page: how it was made, the best value known, and a table for each exact metric.

    ``conventions`` are those of privacy, in words.
    """
    seeds = f"{results.seeds} seed{'s' * (results.seeds > 1)}"
    first, optimum = results.rows[0], ""
    if len(least := results.values("exact_optimum")):
        optimum = (
            f"L* = {least[0]:.5f}, the least value found by exact descents from fixed starts "
            f"({results.values('exact_searched')[0]:.5f}) and from every output."
        )
    lines = [
        f"# {', '.join(results.methods)} on {first.problem} (NOT PRIVATE)", "",
        "Made by `dpjax.comparison`, with every number in `compare.csv`. Gaps, gradient norms and "
        "accuracies are exact values of the records: NOT PRIVATE.", "",
        f"{conventions} {seeds}; every training starts at 0 and is private at its epsilon by an "
        "exact accountant.", "", _WORDS, "",
        f"- n = {first.rows:,}, p = {first.dimension}. {optimum}".rstrip(), "",
        "![compare](compare.png)", "",
    ]  # fmt: skip
    for metric in results.exact_metrics:
        ratio = metric.endswith("accuracy")
        lines += [f"{_words(metric).capitalize()}{'' if ratio else ', mean (standard error)'}:", ""]
        heads, *rows = (f"| {' | '.join(cells)} |" for cells in _cells(results, metric))
        lines += [heads, "|" + "---|" * (1 + len(results.epsilons)), *rows, ""]
    return "\n".join(lines) + "\n"


def _cells(results: Results, metric: str) -> list[list[str]]:
    """Returns a row of heads, and one for each algorithm."""
    table = [["", *(f"epsilon {epsilon:g}" for epsilon in results.epsilons)]]
    for method in results.methods:
        cells = [method]
        for epsilon in results.epsilons:
            at = {"method": method, "epsilon": epsilon}
            mean, error = results.mean(metric, **at), results.error(metric, **at)
            spread = "" if np.isnan(error) else f" ({error:.2g})"
            ratio = metric.endswith("accuracy")
            cells.append(f"{100 * mean:.1f} %" if ratio else f"{mean:.3g}{spread}")
        table.append(cells)
    return table


_LATEX = str.maketrans(
    {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {character: "\\" + character for character in "&%$#_{}"}
)


def _escaped(text: str) -> str:
    return text.translate(_LATEX)


def draw(results: Results, relation: str, path: str | os.PathLike) -> None:
    """Draws each exact metric against epsilon: the mean over the seeds, and their middle 80 %."""
    first, metrics = results.rows[0], results.exact_metrics
    title = (
        f"{first.problem}: n = {first.rows:,}, p = {first.dimension}, {relation}; "
        f"{plotting.EXACT}\nmean of {results.seeds} seeds, band: the middle 80 %"
    )
    with plotting.panels(path, 1, len(metrics), title) as grid:
        for axes, metric in zip(grid[0], metrics, strict=True):
            _panel(axes, results, metric)


def _panel(axes: Any, results: Results, metric: str) -> None:
    logarithmic = "gap" in metric or "norm" in metric
    for place, method in enumerate(results.methods):
        samples = [results.values(metric, method=method, epsilon=e) for e in results.epsilons]
        # A training that diverged is not drawn.
        samples = [values[np.isfinite(values)] if np.isfinite(values).any() else values[:1]
                 for values in samples]  # fmt: skip
        samples = [np.maximum(values, _LEAST) if logarithmic else values for values in samples]
        ends = np.array([np.quantile(values, [0.1, 0.9]) for values in samples]).T
        look = plotting.mark(_COLORS[place % len(_COLORS)], _MARKERS[place % len(_MARKERS)], 5)
        middle = np.array([values.mean() for values in samples])
        plotting.band(axes, np.array(results.epsilons), middle, ends, **look, label=method)
    axes.set(xlabel="epsilon", ylabel=f"exact {_words(metric)}",
             yscale="log" if logarithmic else "linear")  # fmt: skip
    plotting.places(axes, results.epsilons)
    if metric.endswith("accuracy"):
        plotting.percent(axes.yaxis)
    axes.set_title(_words(metric).capitalize(), fontsize="medium")


def _words(metric: str) -> str:
    return metric.removeprefix("exact_").replace("_", " ")
