"""NOT PRIVATE: pictures of accuracy against iterations, and of the gap to non-private training."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from dpjax import plotting
from dpjax.reproduce import dpagem
from dpjax.reproduce.accuracies import FIELDS, Accuracies

_SKY, _PURPLE, _GREY, _YELLOW = "#56B4E9", "#882255", "#555555", "#E69F00"
# Colours that colour-blind readers can tell apart; no two methods share colour and dashes.
_STYLE = {
    dpagem.SGD_STAGE: ("black", ":"),
    dpagem.STAGE: (plotting.BLUE, "-"),
    dpagem.EARLY: (plotting.ORANGE, "-"),
    dpagem.CONST: (plotting.GREEN, "-"),
    dpagem.LINEAR: (_GREY, "--"),
    dpagem.ROOT: (_SKY, "--"),
    dpagem.MOMENTUM_CONST: (plotting.PINK, "-."),
    dpagem.EARLY_CONST: (_YELLOW, "-."),
}
# Recipes may come and go.
_RECIPE = (_PURPLE, "-")
_NAMES = {"train": "training", "test": "test"}


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
    figure, rows = _figure(path, len(epsilons), len(FIELDS))
    for epsilon, row in zip(epsilons, rows, strict=True):
        for field, axes in zip(FIELDS, row, strict=True):
            for label in found.labels:
                _drawn(axes, label, *found.path(label, epsilon, field))
            axes.set(
                xlabel="iterations",
                ylabel=f"exact {_NAMES[field]} accuracy",
                title=f"epsilon {epsilon:g}, {_NAMES[field]}",
            )
            _zoomed(axes, [found.path(label, epsilon, field)[1] for label in found.labels])
    _finish(
        figure,
        rows[0][0],
        f"{found.problem.title}: n = {found.rows:,}, p = {found.dimension:,}, delta = "
        f"{dpagem.DELTA:g}, {found.problem.relation}; exact values (NOT PRIVATE)\nmean of "
        f"{found.seeds} seeds, band: their range; dotted: without noise, NOT PRIVATE",
        path,
    )


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
    figure, rows = _figure(path, 1, len(every))
    for found, axes in zip(every, rows[0], strict=True):
        epsilon = max(found.epsilons)
        for shift, (field, marker) in enumerate(zip(FIELDS, "so", strict=True)):
            last = [found.final(label, epsilon, field) for label in found.labels]
            where = np.arange(len(last)) + 0.25 * (shift - 0.5)
            means = np.array([values.mean() for values in last])
            low, high = (np.array([f(values) for values in last]) for f in (np.min, np.max))
            axes.errorbar(
                means,
                where,
                xerr=[means - low, high - means],
                fmt=marker,
                color=(plotting.ORANGE, plotting.BLUE)[shift],
                label=f"{_NAMES[field]} (bars: range of the seeds)",
            )
        axes.set_yticks(range(len(found.labels)), found.labels)
        axes.invert_yaxis()
        axes.set(xlabel="exact accuracy", title=f"{found.problem.title}, epsilon {epsilon:g}")
        axes.xaxis.set_major_formatter(_percent)
    _finish(figure, rows[0][0], "Last iterates; exact values (NOT PRIVATE)", path)


def style(label: str) -> tuple[str, str]:
    """Returns colour and dashes of a method."""
    return _STYLE.get(label, _RECIPE)


def _drawn(axes: Any, label: str, iterations: np.ndarray, values: np.ndarray) -> None:
    color, dashes = style(label)
    axes.fill_between(
        iterations, values.min(axis=0), values.max(axis=0), color=color, alpha=0.13, linewidth=0
    )
    axes.plot(iterations, values.mean(axis=0), dashes, color=color, label=label, markersize=4)


def _zoomed(axes: Any, every: list[np.ndarray]) -> None:
    # From a bit below the second look, where most of the rise is over.
    low = min(float(values.mean(axis=0)[min(1, values.shape[1] - 1)]) for values in every)
    high = max(float(values.max()) for values in every)
    room = 0.05 * max(high - low, 0.01)
    axes.set_ylim(max(low - room, 0), min(high + room, 1))
    axes.yaxis.set_major_formatter(_percent)


def _percent(value: float, position: int) -> str:
    del position
    return f"{100 * value:.4g} %"


def _figure(path: str | os.PathLike, rows: int, columns: int) -> tuple[Any, Any]:
    plotting.check_path(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6 * columns, 3.9 * rows + 1.2), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False)


def _finish(figure: Any, first: Any, title: str, path: str | os.PathLike) -> None:
    handles, labels = first.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize="small")
    figure.suptitle(title, fontsize="medium")
    figure.savefig(path, dpi=110)
