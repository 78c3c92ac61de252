"""NOT PRIVATE: the page and the picture of a comparison, from its results."""

import os
from typing import Any

import numpy as np

from dpjax import plotting
from dpjax.comparison.results import Results
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


def write(results: Results, conventions: str) -> str:
    """Returns the page: how it was made, the best value known, and a table for each exact metric.

    Args:
      results: all rows.
      conventions: of privacy, in words.
    """
    seeds = f"{results.seeds} seed{'s' * (results.seeds > 1)}"
    first = results.rows[0]
    lines = [
        f"# {', '.join(results.methods)} on {first.problem} (NOT PRIVATE)", "",
        "Made by `dpjax.comparison`, with every number in `compare.csv`. Gaps, gradient norms and "
        "accuracies are exact values of the records: NOT PRIVATE.", "",
        f"{conventions} {seeds}; every training starts at 0 and is private at its epsilon by an "
        "exact accountant.", "", _WORDS, "",
        f"- n = {first.rows:,}, p = {first.dimension}. {_optimum(results)}".rstrip(), "",
        "![compare](compare.png)", "",
    ]  # fmt: skip
    for metric in results.exact_metrics:
        ratio = metric.endswith("accuracy")
        lines += [f"{_words(metric).capitalize()}{'' if ratio else ', mean (standard error)'}:", ""]
        lines += _table(results, metric, ratio)
    return "\n".join(lines) + "\n"


def _table(results: Results, metric: str, ratio: bool) -> list[str]:
    heads = ["", *(f"epsilon {epsilon:g}" for epsilon in results.epsilons)]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for method in results.methods:
        cells = [method]
        for epsilon in results.epsilons:
            at = {"method": method, "epsilon": epsilon}
            mean, error = results.mean(metric, **at), results.error(metric, **at)
            spread = "" if np.isnan(error) else f" ({error:.2g})"
            cells.append(f"{100 * mean:.1f} %" if ratio else f"{mean:.3g}{spread}")
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def _optimum(results: Results) -> str:
    least, searched = results.values("exact_optimum"), results.values("exact_searched")
    if not len(least):
        return ""
    return (
        f"L* = {least[0]:.5f}, the least value found by exact descents from fixed starts "
        f"({searched[0]:.5f}) and from every output."
    )


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
