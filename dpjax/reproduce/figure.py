"""NOT PRIVATE: pictures of a reproduction: gap, gradient norm, time and accuracy of every curve."""

import os
from typing import Any

import numpy as np

from dpjax import plotting
from dpjax.reproduce import looks
from dpjax.reproduce.study import RELATION, TRACED_EPSILON
from dpjax.reproduce.tables import Table

# Under this a gap is rounding of float32 losses.
_LEAST_GAP = 1e-6


def plot_panels(points: Table, traces: Table, path: str | os.PathLike) -> None:
    """Draws gap and gradient norm against epsilon, and gap against time.

    Args:
      points: rows of ``page.point_rows`` of one problem.
      traces: rows of ``page.trace_rows``, likewise.
      path: file to write; its ending fixes the format.

    Raises:
      ImportError: if matplotlib is not installed.
      ValueError: if the ending names no format.

    Privacy: NOT PRIVATE.
    """
    first = points.rows[0]
    title = (
        f"{first['data']}, {first['objective']}: n = {int(first['n']):,}, p = {first['p']}, "
        f"delta = 1/n, {RELATION}; {plotting.EXACT}\n{_meaning(points)}"
    )
    labels = _worst_first(points)
    with plotting.panels(path, 1, 3, title) as ((gap, norm, timed),):
        for label in labels:
            _against_epsilon(gap, points, label, "exact_gap")
            _against_epsilon(norm, points, label, "exact_gradient_norm")
        gap.set(
            ylabel="optimality gap L(w) - L*",
            yscale="log",
            title="Optimality gap\n(0 at the best loss known)",
        )
        norm.set(
            ylabel="exact gradient norm",
            yscale="log",
            title="Gradient norm\n(0 at a stationary point)",
        )
        for label in labels:
            _against_time(timed, traces, label)
        timed.set(
            xscale="log",
            yscale="log",
            xlabel="time of one training (seconds, without compiling)",
            ylabel="optimality gap L(w) - L*",
            title=f"Optimality gap over time\n(epsilon {TRACED_EPSILON:g})",
        )


def plot_accuracy(points: Table, baselines: Table, path: str | os.PathLike) -> None:
    """Draws accuracy against epsilon, one panel a data set, with what needs no training beside it.

    Args:
      points: rows of ``page.point_rows``.
      baselines: rows of ``page.baseline_rows``.
      path: file to write; its ending fixes the format.

    Raises:
      ImportError: if matplotlib is not installed.
      ValueError: if the ending names no format.

    Privacy: NOT PRIVATE.
    """
    title = (
        f"Accuracy against epsilon, delta = 1/n, {RELATION}; {plotting.EXACT}\n"
        f"{_meaning(points)}; points at one epsilon stand beside each other"
    )
    labels = _worst_first(points, "exact_accuracy", -1)[::-1]
    with plotting.panels(path, 1, len(baselines), title) as (row,):
        for axes, known in zip(row, baselines.rows, strict=True):
            table = points.where(data=known["data"], objective=known["objective"])
            for column, line, name in (
                ("exact_accuracy_of_the_optimum", "-.", "non-private optimum"),
                ("exact_share_of_the_larger_class", ":", "majority class"),
            ):
                color = "black" if line == "-." else "grey"
                axes.axhline(float(known[column]), color=color, linestyle=line, label=name)
            for place, label in enumerate(labels):
                beside = float(np.exp(0.25 * (place / max(1, len(labels) - 1) - 0.5)))
                _against_epsilon(axes, table, label, "exact_accuracy", beside)
            axes.set(
                ylabel=f"accuracy ({known['measured_on']})",
                title=f"{known['data']}, {known['objective']}",
            )
            plotting.percent(axes.yaxis)


def _worst_first(points: Table, column: str = "exact_gap", sign: int = 1) -> list[str]:
    """The curves by their mean at the largest epsilon, as they lie in the picture, top down."""
    at = points.where(epsilon=points.values("epsilon")[-1])
    means = {
        label: sign * float(np.nanmean(at.where(curve=label).numbers(column)))
        for label in at.words("curve")
    }
    return sorted(means, key=lambda label: -means[label])


def _meaning(points: Table) -> str:
    seeds = len(points.words("seed"))
    return f"mean of {seeds} seeds, band: the middle 80 %; dashed and hollow: noise as published"


def _against_epsilon(
    axes: Any, points: Table, label: str, column: str, beside: float = 1.0
) -> None:
    epsilons = points.values("epsilon")
    of = points.where(curve=label)
    values = np.array([of.where(epsilon=epsilon).numbers(column) for epsilon in epsilons])
    _drawn(axes, beside * np.array(epsilons), values, label)
    plotting.places(axes, epsilons)
    axes.set(xlabel="epsilon")


def _against_time(axes: Any, traces: Table, label: str) -> None:
    of = traces.where(curve=label)
    if len(of):
        looked = [of.where(step=step) for step in of.values("step")]
        seconds = np.array([at.numbers("seconds")[0] for at in looked])
        _drawn(axes, seconds, np.array([at.numbers("exact_gap") for at in looked]), label)


def _drawn(axes: Any, where: np.ndarray, values: np.ndarray, label: str) -> None:
    values = np.maximum(values, _LEAST_GAP)
    plotting.band(
        axes,
        where,
        np.nanmean(values, axis=1),
        np.nanquantile(values, [0.1, 0.9], axis=1),
        **looks.mark(label, 5),
        linestyle=looks.look(label).line,
        label=label,
    )
