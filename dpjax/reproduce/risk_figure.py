"""NOT PRIVATE: the picture of excess risk against gradient evaluations, one marker a method."""

import os
from typing import Any

import numpy as np

from dpjax import plotting
from dpjax.reproduce import annotations, looks
from dpjax.reproduce.tables import Table

# Under this an excess risk is rounding of float32 parameters.
_LEAST = 1e-7


def plot_risks(
    means: Table, epsilons: tuple[float, ...], seeds: int, path: str | os.PathLike
) -> None:
    """Draws a panel for each problem and epsilon: a column a data set, where there are several.

    A method that diverged would squash all others: an arrow at the upper edge stands for it.

    Args:
      means: rows of ``erm_page.mean_rows``.
      epsilons: where; of those that a problem has none of, its last one is drawn.
      seeds: runs of each point.
      path: file to write; its ending fixes the format.

    Raises:
      ImportError: if matplotlib is not installed.
      ValueError: if the ending names no format.

    Privacy: NOT PRIVATE.
    """
    grid = _grid(means, epsilons)
    title = (
        "Excess risk of each method against its cost: lower is better, further left is cheaper; "
        "legend: best on average first\n"
        f"mean of {seeds} seeds, bars: two standard errors; delta = 1/n, "
        f"{means.only('relation')}; {plotting.EXACT}"
    )
    with plotting.panels(
        path, len(grid), max(map(len, grid)), title, size=(4.2, 3.6), legend="right"
    ) as rows:
        for label in _best_first([table for row in grid for table in row]):
            rows[0, 0].plot([], [], **looks.mark(label, 8), linestyle="none", label=label)
        rows[0, 0].plot(
            [], [], color="0.7", linewidth=4, label="no method is both\nbetter and cheaper"
        )
        for row, shown in zip(rows, grid, strict=True):
            for axes, table in zip(row, shown, strict=False):
                _panel(axes, table)


def _grid(means: Table, epsilons: tuple[float, ...]) -> list[list[Table]]:
    """Rows of panels: one data set has its epsilons in two columns, several have one each."""

    def at(table: Table, epsilon: float) -> Table:
        known = table.values("epsilon")
        return table.where(epsilon=epsilon if epsilon in known else known[-1])

    data = means.words("data")
    if len(data) == 1:
        known = means.values("epsilon")
        chosen = [epsilon for epsilon in epsilons if epsilon in known] or known[-1:]
        tables = [means.where(epsilon=epsilon) for epsilon in chosen]
        return [tables[i : i + 2] for i in range(0, len(tables), 2)]
    return [
        [
            at(means.where(data=name, objective=what), epsilon)
            for name in data
            if len(means.where(data=name, objective=what))
        ]
        for what in means.words("objective")
        for epsilon in epsilons
    ]


def _best_first(every: list[Table]) -> list[str]:
    """The methods by their average rank in the panels that they are in."""
    ranks: dict[str, list[float]] = {}
    for table in every:
        order = table.numbers("exact_excess_risk").argsort().argsort()
        for row, rank in zip(table.rows, order, strict=True):
            ranks.setdefault(row["method"], []).append(rank / len(order))
    return sorted(ranks, key=lambda label: float(np.mean(ranks[label])))


def _panel(axes: Any, table: Table) -> None:
    means = np.maximum(table.numbers("exact_excess_risk"), _LEAST)
    errors = 2 * np.nan_to_num(table.numbers("standard_error"))
    costs = table.numbers("gradient_evaluations")
    shown = annotations.in_view(means)
    labels = [row["method"] for row in table.rows]
    for i in np.flatnonzero(shown):
        axes.errorbar(
            costs[i : i + 1],
            means[i : i + 1],
            # On a logarithmic axis the lower end has to stay above 0.
            yerr=[[min(errors[i], 0.9 * means[i])], [errors[i]]],
            **looks.mark(labels[i], 8),
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
    first = table.rows[0]
    axes.set_title(
        f"{first['data']}, {first['objective']}, epsilon {float(first['epsilon']):g}\n"
        f"n = {int(first['n']):,}, p = {int(first['p']):,}",
        fontsize="small",
    )
    axes.margins(x=0.12)
    axes.update_datalim(np.column_stack([costs, means])[~shown], updatey=False)
    axes.autoscale_view()
    if not shown.all():
        low, high = axes.get_ylim()
        axes.set_ylim(low, high * (high / low) ** 0.25)
    _widen(axes.get_xlim, axes.set_xlim, axes.xaxis, 1.5)
    _widen(axes.get_ylim, axes.set_ylim, axes.yaxis, 0.4)
    for i in np.flatnonzero(~shown):
        text = f"off the scale:\n{labels[i]} {means[i]:.2g}"
        annotations.point_beyond(axes, costs[i], text, looks.mark(labels[i], 8))
    _front(axes, costs[shown], means[shown])


def _front(axes: Any, costs: np.ndarray, means: np.ndarray) -> None:
    """A line of steps through the points that no other beats in both cost and risk."""
    order = np.lexsort((means, costs))
    best = np.minimum.accumulate(means[order])
    kept = order[means[order] <= best]
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    axes.set(xlim=(left, right), ylim=(low, high))
    axes.step(
        [costs[kept[0]], *costs[kept], right],
        [high, *means[kept], means[kept[-1]]],
        where="post",
        color="0.85",
        linewidth=4,
        zorder=0.5,
        solid_joinstyle="round",
    )


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
