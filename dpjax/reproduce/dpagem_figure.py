"""NOT PRIVATE: pictures of accuracy against iterations, and of the gap to non-private training."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpjax import plotting
from dpjax.reproduce import dpagem
from dpjax.reproduce.accuracies import FIELDS, Accuracies

# No two methods share a colour. Dashed: without noise; dash-dotted: with momentum, at a constant
# step size; dotted: with a step size that falls at each step.
_STYLE = {
    dpagem.SGD_STAGE: (plotting.GREY, "--"),
    dpagem.STAGE: (plotting.BLUE, "-"),
    dpagem.EARLY: (plotting.ORANGE, "-"),
    dpagem.CONST: (plotting.GREEN, "-"),
    dpagem.LINEAR: ("black", ":"),
    dpagem.ROOT: (plotting.SKY, ":"),
    dpagem.MOMENTUM_CONST: (plotting.PINK, "-."),
    dpagem.EARLY_CONST: (plotting.YELLOW, "-."),
}
# Recipes may come and go.
_RECIPE = (plotting.PURPLE, "-")
_NAMES = {"train": "training", "test": "test"}
# How many times as long as without the lowest methods an axis may be.
_SQUASHED = 1.5


def plot_accuracy(found: Accuracies, path: str | os.PathLike) -> None:
    """Draws training and test accuracy against iterations, one row of panels an epsilon.

    Args:
      found: the results on one problem.
      path: file to write; its ending fixes the format.

    Raises:
      ImportError: if matplotlib is not installed.
      ValueError: if the ending names no format.

    Privacy: NOT PRIVATE.
    """
    epsilons = found.epsilons[::-1]
    title = (
        f"{found.problem.title}: n = {found.rows:,}, p = {found.dimension:,}, delta = "
        f"{dpagem.DELTA:g}, {found.problem.relation}; {plotting.EXACT}\nmean of {found.seeds} "
        "seeds, band: their range; dashed grey: without noise, NOT PRIVATE"
    )
    with plotting.panels(path, len(epsilons), len(FIELDS), title, size=(5.6, 3.9)) as rows:
        for epsilon, row in zip(epsilons, rows, strict=True):
            for field, axes in zip(FIELDS, row, strict=True):
                _panel(axes, found, epsilon, field)


def plot_gap(every: Sequence[Accuracies], path: str | os.PathLike) -> None:
    """Draws the last accuracy of every method at the paper's epsilons, one panel a problem.

    Args:
      every: the results, one problem each.
      path: file to write; its ending fixes the format.

    Raises:
      ImportError: if matplotlib is not installed.
      ValueError: if the ending names no format.

    Privacy: NOT PRIVATE.
    """
    title = f"Last iterates; {plotting.EXACT}"
    with plotting.panels(path, 1, len(every), title, size=(5.6, 3.9)) as (row,):
        for axes, found in zip(row, every, strict=True):
            _last(axes, found)


def style(label: str) -> tuple[str, str]:
    """Returns colour and dashes of a method."""
    return _STYLE.get(label, _RECIPE)


def _panel(axes: Any, found: Accuracies, epsilon: float, field: str) -> None:
    paths = {label: found.path(label, epsilon, field) for label in found.labels}
    for label, (iterations, values) in paths.items():
        color, dashes = style(label)
        ends = values.min(axis=0), values.max(axis=0)
        plotting.band(
            axes, iterations, values.mean(axis=0), ends, color, linestyle=dashes, label=label
        )
    ends, below = limits({label: values for label, (_, values) in paths.items()})
    what = f"exact {_NAMES[field]} accuracy"
    axes.set(
        xlabel="iterations",
        ylabel=what + (f"\nends below: {', '.join(below)}" if below else ""),
        ylim=ends,
        title=f"epsilon {epsilon:g}, {_NAMES[field]}",
    )
    plotting.percent(axes.yaxis)


def limits(paths: Mapping[str, np.ndarray]) -> tuple[tuple[float, float], tuple[str, ...]]:
    """Returns where an axis of accuracies begins and ends, and the methods that end below it.

    It begins a bit below the lowest mean after a fifth of the looks, where most of the rise is
    over; but at the lower quartile of the methods, where one that fails would squash all others.

    Args:
      paths: by label, the (seeds, iterations) accuracies.
    """
    means = {label: values.mean(axis=0) for label, values in paths.items()}
    lowest = [mean[len(mean) // 5 :].min() for mean in means.values()]
    high = max(float(values.max()) for values in paths.values())
    low, quartile = np.quantile(lowest, [0, 0.25], method="higher")
    if high - low > _SQUASHED * max(high - quartile, 0.01):
        low = quartile
    room = 0.05 * max(high - low, 0.01)
    begin = max(float(low) - room, 0.0)
    below = tuple(label for label, mean in means.items() if mean[-1] < begin)
    return (begin, min(high + room, 1.0)), below


def _last(axes: Any, found: Accuracies) -> None:
    epsilon = max(found.epsilons)
    colors = (plotting.ORANGE, plotting.BLUE)
    for shift, (field, marker, color) in enumerate(zip(FIELDS, "so", colors, strict=True)):
        last = [found.final(label, epsilon, field) for label in found.labels]
        where = np.arange(len(last)) + 0.25 * (shift - 0.5)
        means = np.array([values.mean() for values in last])
        low, high = (np.array([f(values) for values in last]) for f in (np.min, np.max))
        axes.errorbar(
            means,
            where,
            xerr=[means - low, high - means],
            **plotting.mark(color, marker),
            linestyle="none",
            label=f"{_NAMES[field]} (bars: range of the seeds)",
        )
    axes.set_yticks(range(len(found.labels)), found.labels)
    axes.invert_yaxis()
    axes.set(xlabel="exact accuracy", title=f"{found.problem.title}, epsilon {epsilon:g}")
    plotting.percent(axes.xaxis)
