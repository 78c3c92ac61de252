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
    title = (
        f"{found.problem.title}: n = {found.rows:,}, p = {found.dimension}, "
        f"delta = 1/n, {RELATION}; L* = {found.optimum:.5f}; {plotting.EXACT}\n{_meaning(found)}"
    )
    columns = 3 if found.problem.traced else 2
    with plotting.panels(path, 1, columns, title) as ((gap, norm, *traced),):
        for curve in curves:
            _against_epsilon(gap, found, curve, found.gaps)
            _against_epsilon(norm, found, curve, found.norms)
        gap.set(ylabel="optimality gap L(w) - L*", yscale="log", title="Gap")
        norm.set(ylabel="exact gradient norm", yscale="log", title="Gradient norm")
        for axes in traced:
            for curve in curves:
                _against_time(axes, found, curve)
            axes.set(
                xscale="log",
                yscale="log",
                xlabel="time of one training (seconds, without compiling)",
                ylabel="optimality gap L(w) - L*",
                title=f"Gap against time, epsilon {TRACED_EPSILON:g}",
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
    title = f"Accuracy, delta = 1/n, {RELATION}; {plotting.EXACT}\n{_meaning(every[0])}"
    with plotting.panels(path, 1, len(every), title) as (row,):
        for axes, found in zip(row, every, strict=True):
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
            plotting.percent(axes.yaxis)


def _meaning(found: Found) -> str:
    seeds = len(next(iter(found.points.values()))["values"])
    return f"mean of {seeds} seeds, band: the middle 80 %; dashed: noise as published"


def _against_epsilon(axes: Any, found: Found, curve: Curve, read: Any) -> None:
    epsilons = found.epsilons
    values = np.array([read(curve.label, epsilon) for epsilon in epsilons])
    _drawn(axes, np.array(epsilons), values, curve)
    plotting.places(axes, epsilons)
    axes.set(xlabel="epsilon")


def _against_time(axes: Any, found: Found, curve: Curve) -> None:
    trace = found.trace(curve.label)
    if trace is not None:
        _, seconds, gaps = trace
        _drawn(axes, seconds, gaps, curve)


def _drawn(axes: Any, where: np.ndarray, values: np.ndarray, curve: Curve) -> None:
    values = np.maximum(values, _LEAST_GAP)
    plotting.band(
        axes,
        where,
        np.nanmean(values, axis=1),
        np.nanquantile(values, [0.1, 0.9], axis=1),
        **plotting.mark(*_STYLE[curve.method], 5, not curve.published),
        linestyle="--" if curve.published else "-",
        label=curve.label,
    )
