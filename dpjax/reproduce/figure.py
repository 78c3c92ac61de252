"""NOT PRIVATE: pictures of a reproduction: gap, gradient norm, time and accuracy of every curve."""

import os
from typing import Any

import numpy as np

from dpjax import plotting
from dpjax.reproduce.study import RELATION, TRACED_EPSILON, Curve, Found

# One colour and one marker a method; the published noise is dashed and hollow.
_STYLE = {
    "DP-GD": (plotting.ORANGE, "s"),
    "DP-TR": (plotting.BLUE, "o"),
    "DP-STR": (plotting.GREEN, "^"),
    "DP-Adam": (plotting.PINK, "D"),
}
# Under this a gap is rounding of float32 losses.
_LEAST_GAP = 1e-6


def plot_panels(found: Found, curves: tuple[Curve, ...], path: str | os.PathLike) -> None:
    """Draws gap and gradient norm against epsilon, and gap against time.

    Args:
      found: the results on one problem.
      curves: what to draw.
      path: file to write; its ending fixes the format.

    Raises:
      ImportError: if matplotlib is not installed.
      ValueError: if the ending names no format.

    Privacy: NOT PRIVATE.
    """
    figure, panels = _figure(path, 3 if found.problem.traced else 2)
    for curve in curves:
        _against_epsilon(panels[0], found, curve, found.gaps)
        _against_epsilon(panels[1], found, curve, found.norms)
        if found.problem.traced:
            _against_time(panels[2], found, curve)
    panels[0].set(ylabel="optimality gap L(w) - L*", title="Gap")
    panels[1].set(ylabel="exact gradient norm", title="Gradient norm")
    for axes in panels[:2]:
        axes.set(yscale="log")
        _epsilon_axis(axes, found.epsilons)
    if found.problem.traced:
        panels[2].set(
            xscale="log",
            yscale="log",
            xlabel="time of one training (seconds, without compiling)",
            ylabel="optimality gap L(w) - L*",
            title=f"Gap against time, epsilon {TRACED_EPSILON:g}",
        )
    seeds = len(next(iter(found.points.values()))["values"])
    _finish(
        figure,
        panels[0],
        f"{found.problem.title}: n = {found.rows:,}, p = {found.dimension}, "
        f"delta = 1/n, {RELATION}; L* = {found.optimum:.5f}\n"
        f"mean of {seeds} seeds, band: the middle 80 %; dashed: noise as published",
        path,
    )


def plot_accuracy(
    every: tuple[Found, ...], curves: tuple[Curve, ...], path: str | os.PathLike
) -> None:
    """Draws accuracy against epsilon, one panel a data set, with what needs no training beside it.

    Args:
      every: the results, one problem a panel.
      curves: what to draw.
      path: file to write; its ending fixes the format.

    Raises:
      ImportError: if matplotlib is not installed.
      ValueError: if the ending names no format.

    Privacy: NOT PRIVATE.
    """
    figure, panels = _figure(path, len(every))
    for axes, found in zip(panels, every, strict=True):
        for curve in curves:
            _against_epsilon(axes, found, curve, found.accuracies)
        axes.axhline(
            found.accuracy,
            color="black",
            linestyle="-.",
            linewidth=1.2,
            label="non-private optimum",
        )
        axes.axhline(
            found.majority, color="grey", linestyle=":", linewidth=1.8, label="majority class"
        )
        where = "test set" if found.tested else "training set"
        axes.set(ylabel=f"accuracy ({where})", title=found.problem.title)
        axes.yaxis.set_major_formatter(_percent)
        _epsilon_axis(axes, found.epsilons)
    seeds = len(next(iter(every[0].points.values()))["values"])
    _finish(
        figure,
        panels[0],
        f"Accuracy, delta = 1/n, {RELATION}\n"
        f"mean of {seeds} seeds, band: the middle 80 %; dashed: noise as published",
        path,
    )


def _percent(value: float, position: int) -> str:
    del position
    return f"{100 * value:.4g} %"


def _figure(path: str | os.PathLike, columns: int) -> tuple[Any, Any]:
    plotting.check_path(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * columns + 0.4, 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(1, columns, squeeze=False)[0]


def _finish(figure: Any, first: Any, title: str, path: str | os.PathLike) -> None:
    handles, labels = first.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize="small")
    figure.suptitle(title, fontsize="medium")
    figure.savefig(path, dpi=110)


def _line(curve: Curve) -> dict[str, Any]:
    color, marker = _STYLE[curve.method]
    return {
        "color": color,
        "marker": marker,
        "linestyle": "--" if curve.published else "-",
        "markerfacecolor": "white" if curve.published else color,
        "markersize": 5,
        "label": curve.label,
    }


def _against_epsilon(axes: Any, found: Found, curve: Curve, read: Any) -> None:
    epsilons = found.epsilons
    values = np.array([read(curve.label, epsilon) for epsilon in epsilons])
    _drawn(axes, np.array(epsilons), values, curve)


def _against_time(axes: Any, found: Found, curve: Curve) -> None:
    trace = found.trace(curve.label)
    if trace is not None:
        _, seconds, gaps = trace
        _drawn(axes, seconds, gaps, curve)


def _drawn(axes: Any, where: np.ndarray, values: np.ndarray, curve: Curve) -> None:
    values = np.maximum(values, _LEAST_GAP)
    line = _line(curve)
    low, high = np.nanquantile(values, [0.1, 0.9], axis=1)
    axes.fill_between(where, low, high, color=line["color"], alpha=0.13, linewidth=0)
    axes.plot(where, np.nanmean(values, axis=1), **line)


def _epsilon_axis(axes: Any, epsilons: tuple[float, ...]) -> None:
    axes.set(xscale="log", xlabel="epsilon")
    axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
    axes.set_xticks([], minor=True)
