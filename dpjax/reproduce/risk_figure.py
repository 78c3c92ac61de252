"""NOT PRIVATE: the picture of excess risk against gradient evaluations, one marker a method."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from dpjax import plotting
from dpjax.reproduce.risks import Risks

# No two methods share a marker.
_STYLE = {
    "DP-GD": (plotting.ORANGE, "s"),
    "DP-SGD": (plotting.PINK, "D"),
    "DP-SVRG": (plotting.BLUE, "o"),
    "DP-SVRG, exact anchor": (plotting.SKY, "h"),
    "DP-SVRG++": (plotting.BLUE, "P"),
    "DP-AccMD": (plotting.BLUE, "*"),
    "output perturbation": (plotting.GREY, "X"),
    "objective perturbation": ("black", "p"),
    "DP-Newton": (plotting.PURPLE, "v"),
    "DP-TR": (plotting.GREEN, "^"),
    "DP-STR": (plotting.GREEN, "<"),
}
# Under this an excess risk is rounding of float32 parameters.
_LEAST = 1e-7


def plot_risks(
    every: Sequence[Risks],
    epsilons: Sequence[float],
    order: Sequence[str],
    path: str | os.PathLike,
) -> None:
    """Draws a panel for each problem and epsilon: a column a data set, where there are several.

    Args:
      every: the results, one problem each.
      epsilons: where; of those that a problem has none of, its last one is drawn.
      order: methods, as the legend lists them.
      path: file to write; its ending fixes the format.

    Raises:
      ImportError: if matplotlib is not installed.
      ValueError: if the ending names no format.

    Privacy: NOT PRIVATE.
    """
    grid = _grid(every, epsilons)
    drawn = {label for found in every for label in found.methods}
    seeds = len(next(iter(every[0].points.values()))["values"])
    title = (
        f"Excess risk, delta = 1/n, {every[0].problem.relation}; {plotting.EXACT}\n"
        f"mean of {seeds} seeds, bars: two standard errors; small: the other settings tried"
    )
    with plotting.panels(
        path, len(grid), max(map(len, grid)), title, size=(4.2, 3.6), legend="right"
    ) as rows:
        for label in order:
            if label in drawn:
                rows[0, 0].plot([], [], **_mark(label, 8), linestyle="none", label=label)
        for row, shown in zip(rows, grid, strict=True):
            for axes, (found, epsilon) in zip(row, shown, strict=False):
                _panel(axes, found, epsilon)


def _grid(every: Sequence[Risks], epsilons: Sequence[float]) -> list[list[tuple[Risks, float]]]:
    """Rows of panels: one data set has its epsilons beside each other, several have columns."""

    def at(found: Risks, epsilon: float) -> tuple[Risks, float]:
        return found, epsilon if epsilon in found.epsilons else found.epsilons[-1]

    if len(every) == 1:
        (found,) = every
        chosen = [epsilon for epsilon in epsilons if epsilon in found.epsilons]
        return [[(found, epsilon) for epsilon in chosen or found.epsilons[-1:]]]
    objectives = list(dict.fromkeys(found.problem.what for found in every))
    return [
        [at(found, epsilon) for found in every if found.problem.what == what]
        for what in objectives
        for epsilon in epsilons
    ]


def _panel(axes: Any, found: Risks, epsilon: float) -> None:
    worst = 3 * max(found.mean(label, epsilon) for label in found.methods)
    for label in found.methods:
        gaps = found.gaps(label, epsilon)
        # What was tried shows what fewer gradients cost; what failed is left out.
        tried = [one for one in found.tried(label, epsilon) if _LEAST < one[1] < worst]
        axes.plot(
            *(np.array(tried).T if tried else ([], [])),
            **_mark(label, 4),
            alpha=0.35,
            linestyle="none",
            markeredgewidth=0,
        )
        mean = max(float(gaps.mean()), _LEAST)
        error = 2 * found.error(label, epsilon) if len(gaps) > 1 else 0.0
        axes.errorbar(
            [found.declared(label, epsilon)],
            [mean],
            # On a logarithmic axis the lower end has to stay above 0.
            yerr=[[min(error, 0.9 * mean)], [error]],
            **_mark(label, 8),
            markeredgecolor="white",
            markeredgewidth=0.5,
            elinewidth=1.2,
            capsize=3,
            linestyle="none",
        )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="gradient evaluations (of one record each)",
        ylabel="excess risk (mean loss)",
    )
    problem = found.problem
    axes.set_title(
        f"{problem.where}, {problem.what}\nn = {found.rows:,}, p = {found.dimension:,}, "
        f"epsilon {epsilon:g}",
        fontsize="small",
    )
    axes.margins(x=0.12)
    _widen(axes.get_xlim, axes.set_xlim, axes.xaxis, 1.5)
    _widen(axes.get_ylim, axes.set_ylim, axes.yaxis, 0.4)


def _widen(limits: Any, fix: Any, axis: Any, decades: float) -> None:
    """Shows so many decades at least; from 1.2 on powers of ten are the only labels."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    low, high = limits()
    short = decades - np.log10(high / low)
    if short > 0:
        fix(low / 10 ** (short / 2), high * 10 ** (short / 2))
    if np.log10(np.divide(*limits()[::-1])) > 1.2:
        axis.set_minor_formatter(NullFormatter())
        return
    axis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.2g}"))


def _mark(label: str, size: float) -> dict[str, Any]:
    return plotting.mark(*_STYLE[label], size)
