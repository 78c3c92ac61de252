"""NOT PRIVATE: pictures of escapes from a saddle, and of alpha against n beside the theory."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dpjax import plotting
from dpjax.reproduce import annotations, looks, spider, spider_rates
from dpjax.reproduce.escapes import quartiles
from dpjax.reproduce.tables import Table

# What one panel of the picture of alpha highlights; the other group is grey there.
GROUPS = {
    "Methods that read records many times": (
        spider.GD,
        spider.SGD,
        spider.PRGD,
        spider.TR,
        spider.STR,
    ),
    "Methods that read each record at most once": (
        spider.SPIDER,
        spider.FIXED,
        spider.BOOST,
        spider.PSGD,
        spider.TUNED,
    ),
}


def plot_escapes(runs: Table, saddles: Table, path: str | os.PathLike) -> None:
    """Draws six panels: shares, iterations, records, gaps, gradient norms and eigenvalues.

    Every method has a row of its own, in which epsilon grows downwards.

    Args:
      runs: rows of ``spider_page.seed_rows`` of one problem.
      saddles: rows of ``spider_page.saddle_rows``.
      path: file to write; its ending fixes the format.

    Raises:
      ImportError: if matplotlib is not installed.
      ValueError: if the ending names no format.

    Privacy: NOT PRIVATE.
    """
    first, land = (
        runs.rows[0],
        {name: float(cell) for name, cell in saddles.rows[0].items() if name.startswith("exact")},
    )
    rows = float(first["n"])
    title = (
        f"Which methods leave the saddle of the Welsch loss on {first['data']}, and where they "
        f"end: n = {int(rows):,}, p = {first['p']}, {first['relation']}, delta = 1/(10 n); "
        f"{plotting.EXACT}\nmedian of {len(runs.words('seed'))} seeds, bars: quartiles; in each "
        f"row, downwards: epsilon {', '.join(f'{e:g}' for e in runs.values('epsilon'))}, small to "
        "large marker; hollow: half of the seeds or more did not leave"
    )
    order = _by_escapes(runs)
    with plotting.panels(path, 2, 3, title, size=(4.6, 4.4), legend="none") as (
        (share, steps, read),
        (gap, norm, lowest),
    ):
        _rows(share, runs, order, lambda of: (float(of.numbers("escaped").mean()),) * 3)
        share.set(xlim=(-0.06, 1.06), xlabel="share of seeds", title="Left the saddle")
        plotting.percent(share.xaxis)
        _rows(steps, runs, order, lambda of: _until(of, "iterations_until_out"), "never")
        steps.set(xlabel="steps", title="Steps until out")
        _rows(read, runs, order, lambda of: _until(of, "records_until_out", rows), "never")
        read.set(xlabel="records read / n", title="Records read until out")
        _rows(gap, runs, order, lambda of: quartiles(of.numbers("exact_gap")))
        _line(gap, land["exact_saddle_gap"], "saddle")
        gap.set(xlabel="gap", title="Final gap to the minimum\n(0 is best)")
        _rows(norm, runs, order, lambda of: quartiles(_drawn(of.numbers("exact_gradient_norm"))))
        norm.set(
            xlabel="gradient norm (exactly 0 is not drawn)",
            title="Final gradient norm\n(0 at a stationary point)",
        )
        for axes in (steps, read, gap, norm):
            _logarithmic(axes)
        _rows(lowest, runs, order, lambda of: quartiles(of.numbers("exact_min_eigenvalue")))
        for name in ("saddle", "minimum"):
            _line(lowest, land[f"exact_{name}_min_eigenvalue"], name)
        lowest.locator_params(axis="x", nbins=5)
        lowest.set(
            xlabel="lambda_min", title="Final smallest curvature\n(below 0: still at a saddle)"
        )


def plot_rates(runs: Table, saddles: Table, path: str | os.PathLike) -> None:
    """Draws alpha against n for each data set and group of methods, and the bounds of theory.

    Args:
      runs: rows of ``spider_page.seed_rows`` of all problems.
      saddles: rows of ``spider_page.saddle_rows``.
      path: file to write; its ending fixes the format.

    Raises:
      ImportError: if matplotlib is not installed.
      ValueError: if the ending names no format.

    Privacy: NOT PRIVATE.
    """
    data = runs.words("data")
    epsilon = runs.values("epsilon")[-1]
    runs = runs.where(epsilon=epsilon)
    title = (
        "How near to a second-order stationary point the outputs are: the least alpha of an "
        f"alpha-SOSP, lower is better; epsilon {epsilon:g}, {runs.rows[0]['relation']}; "
        f"{plotting.EXACT}\nmedian of {len(runs.words('seed'))} seeds, bars: quartiles; hollow: "
        "half of the seeds or more did not leave the saddle; wedge: slopes of the theory, "
        "n^(-1/3) to n^(-4/7), its height is free"
    )
    with plotting.panels(path, len(data), 3, title, size=(4.8, 3.8), legend="none") as grid:
        for (*panels, _), name in zip(grid, data, strict=True):
            for axes, (words, group) in zip(panels, GROUPS.items(), strict=True):
                _alphas(axes, runs.where(data=name), saddles.where(data=name), group)
                p = runs.where(data=name).only("p")
                axes.set_title(f"{words}\n{name}, p = {p}", fontsize="medium")
        _bounds(grid[0, -1], int(runs.rows[0]["p"]), epsilon)


def _by_escapes(runs: Table) -> list[str]:
    """The methods, those first that left most often; of equal ones, that of the smallest gap."""

    def rank(label: str) -> tuple[float, float]:
        of = runs.where(method=label)
        last = of.where(epsilon=of.values("epsilon")[-1])
        return -float(of.numbers("escaped").mean()), float(np.median(last.numbers("exact_gap")))

    return sorted(runs.words("method"), key=rank)


def _until(of: Table, column: str, over: float = 1.0) -> tuple[float, ...]:
    # A seed that never left has an empty cell.
    return quartiles(np.nan_to_num(of.numbers(column), nan=np.inf) / over)


def _rows(
    axes: Any,
    runs: Table,
    order: Sequence[str],
    read: Callable[[Table], tuple[float, ...]],
    missing: str = "",
) -> None:
    """One row a method: a marker for each epsilon, bars to the quartiles; or why there are none."""
    epsilons = runs.values("epsilon")
    for row, label in enumerate(order):
        tables = [runs.where(method=label, epsilon=epsilon) for epsilon in epsilons]
        heights = row + 0.6 * (np.arange(len(epsilons)) / max(1, len(epsilons) - 1) - 0.5)
        low, middle, high = np.array([read(of) for of in tables], float).T
        color = looks.look(label).color
        # A quartile of runs that never leave has no end: the bar is drawn to the median alone.
        high = np.where(np.isfinite(high), high, middle)
        axes.plot(_finite(middle), heights, color=color, linewidth=1, alpha=0.6)
        axes.hlines(heights, _finite(low), _finite(high), color=color, linewidth=1.5, alpha=0.7)
        for i, of in enumerate(tables):
            size = 4 + 4 * i / max(1, len(tables) - 1)
            solid = of.numbers("escaped").mean() > 0.5
            axes.plot(
                _finite(middle[i : i + 1]), heights[i : i + 1], **looks.mark(label, size, solid),
                linestyle="none",
            )  # fmt: skip
        if missing and not np.isfinite(middle).any():
            axes.text(
                0.02, row, missing, transform=axes.get_yaxis_transform(), va="center",
                fontsize="x-small", color=color,
            )  # fmt: skip
    axes.set_yticks(range(len(order)), order, fontsize="small")
    for tick, label in zip(axes.get_yticklabels(), order, strict=True):
        tick.set_color(looks.look(label).color)
    axes.set_ylim(len(order) - 0.1, -0.5)


def _drawn(norms: np.ndarray) -> np.ndarray:
    # A logarithm cannot show 0.
    return np.where(norms > 0, norms, np.inf)


def _finite(values: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(values), values, np.nan)


def _line(axes: Any, where: float, name: str) -> None:
    axes.axvline(where, color="grey", linestyle=":")
    axes.annotate(
        f" {name} ", (where, 0.005), xycoords=axes.get_xaxis_transform(), fontsize="x-small",
        ha="right" if name == "minimum" else "left", va="bottom",
    )  # fmt: skip


def _alphas(axes: Any, runs: Table, saddles: Table, group: Sequence[str]) -> None:
    sizes = np.array(runs.values("n"))
    medians = {
        label: np.array([_alpha(runs, label, size) for size in sizes])
        for label in runs.words("method")
    }
    # What stays at the saddle has the saddle's alpha, which may be far below all others.
    every = np.concatenate([three[:, 1] for three in medians.values()])
    shown = annotations.in_view(1 / every[every > 0], gap=10)
    low = every[every > 0][shown].min()
    grey = [label for label in medians if label not in group]
    for label in grey:
        axes.plot(sizes, medians[label][:, 1], color="0.85", linewidth=1, zorder=1)
    for label in medians:
        if label in group:
            _with_quartiles(axes, runs, sizes, medians[label], label)
    _wedge(axes, sizes, 2.5 * every.max())
    axes.set(yscale="log", xlabel="n", ylabel="alpha")
    plotting.places(axes, tuple(sizes))
    axes.set_ylim(low / 2, 4 * every.max())
    axes.set_xlim(sizes[0] / 1.15, sizes[-1] * 1.15)
    saddle = saddles.numbers("exact_saddle_alpha")
    at_saddle = f"{saddle[-1]:.2g}"
    if saddle.min() > low / 2:
        axes.plot(saddles.numbers("n"), saddle, color="grey", linestyle=(0, (1, 1)), linewidth=2)
        axes.annotate(
            "the saddle itself", (sizes[0], saddle[0]), textcoords="offset points",
            xytext=(0, -11), fontsize="x-small",
        )  # fmt: skip
    ends = {}
    for label in group:
        if label in medians:
            last = medians[label][-1, 1]
            below = last < low / 2
            name = f"{label}: at the saddle,\nalpha {at_saddle} (out of view)" if below else label
            ends[name] = (last if last > 0 else low / 4, looks.look(label).color)
    annotations.name_ends(axes, ends)


def _alpha(runs: Table, label: str, size: float) -> tuple[float, ...]:
    return quartiles(runs.where(method=label, n=size).numbers("exact_alpha"))


def _with_quartiles(
    axes: Any, runs: Table, sizes: np.ndarray, three: np.ndarray, label: str
) -> None:
    low, middle, high = three.T
    color = looks.look(label).color
    axes.plot(sizes, middle, color=color, linewidth=1.2)
    axes.vlines(sizes, low, high, color=color, linewidth=1.5, alpha=0.7)
    for size, value in zip(sizes, middle, strict=True):
        solid = runs.where(method=label, n=size).numbers("escaped").mean() > 0.5
        axes.plot([size], [value], **looks.mark(label, filled=solid), linestyle="none")


def _wedge(axes: Any, sizes: np.ndarray, start: float) -> None:
    """The fastest and the slowest fall that theory promises."""
    exponents = spider_rates.EXPONENTS.values()
    ends = [
        start * (sizes / sizes[0]) ** -exponent for exponent in (max(exponents), min(exponents))
    ]
    axes.fill_between(sizes, *ends, color="0.9", linewidth=0, zorder=0)
    axes.annotate(
        "slopes of the theory", (sizes[-1], ends[1][-1]), textcoords="offset points",
        xytext=(0, 3), ha="right", va="bottom", fontsize="x-small", color="0.4",
    )  # fmt: skip


def _bounds(axes: Any, d: int, epsilon: float) -> None:
    at = np.geomspace(1e2, 1e8, 200)
    names = {
        "Spider (1/2)": spider.SPIDER,
        "Ganesh et al. (3/7)": spider.FIXED,
        "DP-TR (4/7) + sqrt(d/n)": spider.TR,
        "DP-GD (1/2) + sqrt(d/n)": spider.GD,
    }
    for bound, (name, label) in zip(spider_rates.BOUNDS, names.items(), strict=True):
        whole = spider_rates.on_population(bound)
        axes.plot(at, [whole(n, d, epsilon) for n in at], color=looks.look(label).color, label=name)
    axes.legend(fontsize="small", loc="lower left")
    axes.set(xscale="log", yscale="log", xlabel="n", ylabel="alpha, constants and logarithms 1")
    axes.set_title(f"What theory promises on the population\nd = {d}", fontsize="medium")


def _logarithmic(axes: Any) -> None:
    values = np.concatenate([np.asarray(line.get_xdata(), float) for line in axes.lines])
    if (values > 0).any():
        axes.set_xscale("log")
    else:
        axes.text(0.5, 0.5, "nothing to draw", transform=axes.transAxes, ha="center")
