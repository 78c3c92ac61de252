"""NOT PRIVATE: pictures of accuracy against iterations, and of the gap to non-private training."""

import os
from typing import Any

import numpy as np

from dpjax import plotting
from dpjax.reproduce import annotations, looks
from dpjax.reproduce.accuracies import FIELDS
from dpjax.reproduce.page import percent
from dpjax.reproduce.tables import Table

_NAMES = {"train": "training", "test": "test"}
# The axis begins at so many times the largest error at the end: before, all rise steeply.
_RISEN = 1.6
_TICKS = (0.5, 0.3, 0.2, 0.15, 0.1, 0.07, 0.05, 0.04, 0.03, 0.02, 0.015, 0.01, 0.005)


def plot_accuracy(looked: Table, path: str | os.PathLike) -> None:
    """Draws training and test accuracy against iterations, one row of panels an epsilon.

    The axis is logarithmic in the error, so that methods near to each other at the top and one
    that is far behind are seen alike.

    Args:
      looked: rows of ``dpagem_page.look_rows`` of one problem.
      path: file to write; its ending fixes the format.

    Raises:
      ImportError: if matplotlib is not installed.
      ValueError: if the ending names no format.

    Privacy: NOT PRIVATE.
    """
    first = looked.rows[0]
    epsilons = looked.values("drawn_beside_epsilon")[::-1]
    title = (
        f"Accuracy of the {first['network']} on {first['data']} as it trains: higher is better; "
        f"n = {int(first['n']):,}, delta = "
        f"{float(first['delta']):g}, {first['relation']}; {plotting.EXACT}\nmean of "
        f"{len(looked.words('seed'))} seeds, bars at the right: their range at the end; dotted: "
        "its last value; dashed grey: without noise, NOT PRIVATE"
    )
    with plotting.panels(
        path, len(epsilons), len(FIELDS), title, size=(6.4, 4.4), legend="none"
    ) as rows:
        for epsilon, row in zip(epsilons, rows, strict=True):
            for field, axes in zip(FIELDS, row, strict=True):
                _panel(axes, looked.where(drawn_beside_epsilon=epsilon), field)
                axes.set_title(f"{_NAMES[field].capitalize()} accuracy, epsilon {epsilon:g}")


def plot_gap(gaps: Table, path: str | os.PathLike) -> None:
    """Draws how far every private method is behind non-private training, one panel a problem.

    Args:
      gaps: rows of ``dpagem_page.gap_rows``.
      path: file to write; its ending fixes the format.

    Raises:
      ImportError: if matplotlib is not installed.
      ValueError: if the ending names no format.

    Privacy: NOT PRIVATE.
    """
    data = gaps.words("data")
    title = (
        "How far private training is behind training without noise, further left is better: last "
        f"iterates, bars: two standard errors; {plotting.EXACT}"
    )
    with plotting.panels(path, 1, len(data), title, size=(5.6, 3.9)) as (row,):
        for axes, name in zip(row, data, strict=True):
            _behind(axes, gaps.where(data=name))


def _panel(axes: Any, looked: Table, field: str) -> None:
    ends, longest, worst = {}, looked.numbers("iteration").max(), 0.0
    for place, label in enumerate(looked.words("method")):
        of = looked.where(method=label)
        at = np.array(of.values("iteration"))
        values = np.array([of.where(iteration=i).numbers(f"exact_{field}_accuracy") for i in at])
        # An error of exactly 0 has no logarithm.
        errors = np.maximum(1 - values, 1e-4)
        means = errors.mean(axis=1)
        color, _, dashes = looks.look(label)
        name = f"{label}  {percent(1 - means[-1])}"
        axes.plot(at, means, color=color, linestyle=dashes, label=label)
        axes.plot(at[-1:], means[-1:], **looks.mark(label), linestyle="none")
        if at[-1] < longest:
            axes.plot([at[-1], longest], [means[-1]] * 2, color=color, linestyle=(0, (1, 3)))
        axes.vlines(
            (1.03 + 0.012 * place) * longest, errors[-1].min(), errors[-1].max(), color=color
        )
        ends[name] = (means[-1], color)
        worst = max(worst, _RISEN * float(means[-1]), 1.05 * float(errors[-1].max()))
    low = min(float(np.min(line.get_ydata())) for line in axes.lines)
    axes.set(xlabel="iterations", ylabel=f"exact {_NAMES[field]} accuracy", yscale="log")
    # Upside down, as the axis is one of errors.
    axes.set(xlim=(0, 1.15 * longest), ylim=(worst, 0.85 * low))
    ticks = [error for error in _TICKS if 0.85 * low < error < worst]
    axes.set_yticks(ticks, [f"{100 * (1 - error):.4g} %" for error in ticks])
    axes.set_yticks([], minor=True)
    annotations.name_ends(axes, ends)


def _behind(axes: Any, gaps: Table) -> None:
    colors = (plotting.ORANGE, plotting.BLUE)
    for shift, (field, marker, color) in enumerate(zip(FIELDS, "so", colors, strict=True)):
        where = np.arange(len(gaps)) + 0.25 * (shift - 0.5)
        axes.errorbar(
            gaps.numbers(f"exact_{field}_gap"),
            where,
            xerr=2 * np.nan_to_num(gaps.numbers(f"standard_error_{field}")),
            **plotting.mark(color, marker),
            linestyle="none",
            label=f"{_NAMES[field]} accuracy",
        )
    axes.set_yticks(range(len(gaps)), [row["method"] for row in gaps.rows])
    axes.invert_yaxis()
    epsilon = float(gaps.only("epsilon"))
    axes.set(
        xlabel="points of exact accuracy behind", title=f"{gaps.only('data')}, epsilon {epsilon:g}"
    )
    plotting.percent(axes.xaxis)
