"""NOT PRIVATE: pictures as data, drawn from the table: lines, risk against cost, rows of dots."""

import dataclasses
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np

from benchmarks.papers.axes import apart, in_view, name_ends, point_beyond
from benchmarks.papers.claims import seeds
from benchmarks.papers.looks import look, mark
from benchmarks.papers.results import Results, quartiles, untuned
from benchmarks.papers.spec import Problem
from dpjax import plotting

# Accuracies that an axis of errors is labelled with.
_TICKS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.15, 0.1, 0.07, 0.05, 0.04, 0.03, 0.02, 0.015,
          0.01, 0.005)  # fmt: skip
# Of a level's name, beside its line.
_SIDES = {"minimum": "right"}
# Such an axis begins at so many times the largest error at the end: before, all rise steeply.
_RISEN = 1.6


Series = tuple[np.ndarray, list[np.ndarray], np.ndarray]
"""Each x, and of the seeds there the values and their centre."""


@dataclasses.dataclass(frozen=True)
class Panel:
    """What all kinds of panels have."""

    y: str
    """The metric that is drawn."""
    title: str = "{problem}"
    """With ``{data}``, ``{problem}``, ``{n}``, ``{p}`` of the problem."""
    xlabel: str = "epsilon"
    ylabel: str = ""
    where: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Cells of the rows that are drawn."""
    levels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Metrics of the problem that lines are drawn at, and their names."""
    percent: bool = False
    """Whether the metric is a share."""

    def draw(self, axes: Any, results: Results) -> None:
        """Draws the rows of one problem."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Lines(Panel):
    """A line for each method.

    Args:
      x: a column (of settings their last number), or ``"seconds"``, which is joined by step.
      yscale: ``"error"`` is a logarithmic axis of 1 - y, upside down, with the seeds' range and the
        names at the ends.
      xscale: ``"places"`` labels the values alone, at which methods stand beside each other; those
        of epsilon are equally far apart.
      centre: of the seeds; with the mean goes a band of the middle 80 %, with the median bars to
        the quartiles and names at the ends; a line has neither.
      only: methods that are drawn in colour, the others in grey; empty for all.
      layers: further cells of rows that are drawn, how (a style of lines, or a marker), and a name.
      hollow: a metric whose mean is at most 1/2 where the marker is hollow.
      wedge: exponents between which a wedge is drawn.
      least: where values are cut, as less is rounding.
    """

    x: str = "epsilon"
    yscale: Literal["log", "linear", "error"] = "log"
    xscale: Literal["places", "log", "linear"] = "places"
    centre: Literal["mean", "median", "line"] = "mean"
    only: tuple[str, ...] = ()
    layers: tuple[tuple[Mapping[str, Any], str, str], ...] = ()
    hollow: str = ""
    wedge: tuple[float, ...] = ()
    least: float = 1e-6

    def draw(self, axes: Any, results: Results) -> None:
        table, sign = results.where(**self.where), -1 if self.percent else 1
        # The legend lists the lines as they lie.
        labels = best_first(table, self.y, sign)[::-sign]
        every = {label: self._series(table.where(method=label)) for label in labels}
        every = {label: series for label, series in every.items() if len(series[0])}
        levels = [(results.where(metric=metric), name) for metric, name in self.levels.items()]
        # The second one is seen around the first where both are at one place.
        styles = (("-.", "black", 1.5), (":", "silver", 4)) if self.x != "rows" else ()
        for (level, name), (line, color, width) in zip(levels, styles, strict=False):
            at = level.column("value")[0]
            axes.axhline(at, color=color, linestyle=line, linewidth=width, label=name)
        where = np.unique(np.concatenate([x for x, *_ in every.values()])) if every else []
        coloured = [label for label in every if not self.only or label in self.only]
        for label, (x, values, middle) in every.items():
            if label not in coloured:
                axes.plot(x, middle, color="0.85", linewidth=1, zorder=1)
                continue
            side, drawn = coloured.index(label) / max(1, len(coloured) - 1) - 0.5, x
            if self.xscale == "places":
                own = np.searchsorted(where, x)
                drawn = own + 0.7 * side if self.x == "epsilon" else x * np.exp(0.2 * side)
            self._line(axes, label, (x, drawn), middle, values, table)
        for cells, style, name in self.layers:
            self._layer(axes, results.where(**cells), style, name)
        if every:
            self._axes(axes, every)
            for level, name in levels if self.x == "rows" else ():
                n, values = level.column("rows"), level.column("value")
                if values.min() > min(axes.get_ylim()):
                    axes.plot(n, values, color="grey", linestyle=(0, (1, 1)), linewidth=2)
                    _note(axes, name, (n[0], values[0]), -11)
            if self.yscale == "error" or self.centre == "median":
                self._named(axes, {label: middle[-1] for label, (*_, middle) in every.items()
                                   if not self.only or label in self.only})  # fmt: skip

    def _series(self, table: Results) -> Series:
        path = self.x in ("step", "seconds")
        at = (lambda step: ~np.isnan(step)) if path else np.isnan
        rows = table.where(metric=self.y, step=at, seed=untuned)
        if self.x == "settings":
            x = np.array([float(words.split()[-1]) for words in rows.column("settings")])
        elif self.x == "seconds":
            other = table.where(metric=self.x)
            spent = dict(zip(other.column("step"), other.column("value"), strict=True))
            x = np.array([spent.get(step, np.nan) for step in rows.column("step")])
        else:
            x = rows.column(self.x)
        y = 1 - rows.column("value") if self.yscale == "error" else rows.column("value")
        if self.yscale != "linear":
            y = np.where(y < self.least, np.nan if self.centre == "line" else self.least, y)
        where = np.unique(x[~np.isnan(x) & ~np.isnan(y)])
        values = [y[(x == one) & ~np.isnan(y)] for one in where]
        centre = (lambda v: quartiles(v)[1]) if self.centre == "median" else np.mean
        return where, values, np.array([float(centre(one)) for one in values])

    def _line(self, axes: Any, label: str, both: tuple[np.ndarray, np.ndarray], middle: np.ndarray,
              values: list[np.ndarray], table: Results) -> None:  # fmt: skip
        cells, x = both
        color, line = look(label).color, {"linestyle": look(label).line, "label": label}
        if self.centre == "median":
            low, _, high = np.array([quartiles(v) for v in values]).T
            axes.plot(x, middle, color=color, linewidth=1.2, label=label)
            axes.vlines(x, low, high, color=color, linewidth=1.5, alpha=0.7)
            for cell, one, value in zip(cells, x, middle, strict=True):
                solid = table.mean(self.hollow, **{"method": label, self.x: float(cell)}) > 0.5
                axes.plot([one], [value], **mark(label, filled=solid), linestyle="none")
        elif self.centre == "line" or self.yscale == "error":
            axes.plot(x, middle, color=color, **line)
        else:
            ends = np.array([np.quantile(v, [0.1, 0.9]) for v in values]).T
            plotting.band(axes, x, middle, ends, **mark(label, 5), **line)

    def _layer(self, axes: Any, table: Results, style: str, name: str) -> None:
        labels = table.each("method")
        for place, label in enumerate(labels):
            x, _, y = self._series(table.where(method=label))
            few, line = slice(None), {"linestyle": style}
            if style == "o":  # dots at other places than those of the other lines
                few = slice(place, None, max(len(labels), len(x) // 10))
                line = {"linestyle": "none", "marker": "o", "markersize": 4}
            axes.plot(x[few], y[few], color=look(label).color, **line)
        if name:
            axes.plot([], [], color="grey", linestyle=style, label=f" {name}")

    def _axes(self, axes: Any, every: Mapping[str, Series]) -> None:
        where = np.unique(np.concatenate([x for x, *_ in every.values()]))
        axes.set(xlabel=self.xlabel, ylabel=self.ylabel or self.y)
        if self.xscale == "places" and self.x == "epsilon":
            axes.set_xticks(range(len(where)), [f"{value:g}" for value in where])
        elif self.xscale == "places":
            plotting.places(axes, tuple(where))
        elif self.xscale == "log":
            axes.set_xscale("log")
            _widen(axes, "x", 1.5)
            if self.x == "epsilon":
                axes.set_xticks(where, [f"{value:g}" for value in where])
                axes.set_xticks([], minor=True)
        if self.yscale == "log":
            axes.set_yscale("log")
            _widen(axes, "y", 0.4)
        elif self.yscale == "error":
            _error_axis(axes, where[-1], every)
        elif self.percent:
            plotting.percent(axes.yaxis)
        if self.wedge:
            middles = np.concatenate([middle for *_, middle in every.values()])
            _wedge(axes, where, middles, self.wedge)

    def _named(self, axes: Any, ends: dict[str, float]) -> None:
        named = {}
        for label, value in ends.items():
            text = f"{label}  {100 * (1 - value):.1f} %" if self.yscale == "error" else label
            below = self.yscale == "log" and value < min(axes.get_ylim())
            text += f": {value:.1e}\n(out of view)" * bool(below)
            named[text] = (value, look(label).color)
        name_ends(axes, named)


def _note(axes: Any, text: str, at: tuple[float, float], above: float, **more: Any) -> None:
    axes.annotate(text, at, (0, above), textcoords="offset points", fontsize="x-small", **more)


def _wedge(axes: Any, x: np.ndarray, every: np.ndarray, exponents: tuple[float, ...]) -> None:
    """The fastest and the slowest fall that theory promises, above all that is drawn."""
    ends = [2.5 * every.max() * (x / x[0]) ** -one for one in (max(exponents), min(exponents))]
    axes.fill_between(x, *ends, color="0.9", linewidth=0, zorder=0)
    _note(axes, "slopes of the theory", (x[-1], ends[1][-1]), 3, ha="right", va="bottom",
          color="0.4")  # fmt: skip
    shown = in_view(1 / every[every > 0], gap=10)
    axes.set(ylim=(every[every > 0][shown].min() / 2, 4 * every.max()))
    axes.set(xlim=(x[0] / 1.25, x[-1] * 1.25))


def _error_axis(axes: Any, longest: float, every: Mapping[str, Any]) -> None:
    """Labels errors as accuracies; beside the paths stand their ends and the seeds' range there."""
    worst = 0.0
    for place, (label, (x, values, _)) in enumerate(every.items()):
        color, last, beside = look(label).color, values[-1], (1.03 + 0.025 * place) * longest
        if x[-1] < longest:
            axes.plot([x[-1], longest], [last.mean()] * 2, color=color, linestyle=(0, (1, 3)))
            _note(axes, "has ended", (x[-1], last.mean()), 4)
        axes.vlines(beside, last.min(), last.max(), color=color)
        axes.plot([beside], [last.mean()], **mark(label), linestyle="none")
        worst = max(worst, _RISEN * float(last.mean()), 1.05 * float(last.max()))
    low = 0.85 * min(float(np.min(line.get_ydata())) for line in axes.lines)
    worst = min(worst, 1.03 * max(float(np.max(line.get_ydata())) for line in axes.lines))
    # Upside down, as the axis is one of errors.
    axes.set(yscale="log", xlim=(0, (1.03 + 0.025 * len(every)) * longest), ylim=(worst, low))
    ticks = [error for error in _TICKS if low < error < worst]
    axes.set_yticks(ticks, [f"{100 * (1 - error):.4g} %" for error in ticks])
    axes.set_yticks([], minor=True)


@dataclasses.dataclass(frozen=True)
class Front(Panel):
    """A marker for each method: its mean against its cost ``x``, and the front that none beats."""

    x: str = "gradients"
    least: float = 1e-7
    """Where means are cut, as less is rounding of float32 parameters."""

    def draw(self, axes: Any, results: Results) -> None:
        table = results.where(**self.where)
        labels = best_first(table, self.y)
        means = np.array([max(table.mean(self.y, method=m), self.least) for m in labels])
        errors = 2 * np.nan_to_num([table.error(self.y, method=m) for m in labels])
        costs = np.array([table.mean(self.x, method=m) for m in labels])
        shown = in_view(means)
        # On a logarithmic axis the lower end has to stay above 0.
        below = np.minimum(errors, 0.9 * means)
        for label in labels:
            axes.plot([], [], **mark(label, 8), linestyle="none", label=label)
        axes.plot([], [], color="0.7", linewidth=4, label="no method is both\nbetter and cheaper")
        axes.set(xscale="log", yscale="log", xlabel=self.xlabel, ylabel=self.ylabel)
        axes.margins(x=0.12)
        axes.update_datalim(np.column_stack([costs, means - below])[shown])
        axes.update_datalim(np.column_stack([costs, means + errors])[shown])
        axes.update_datalim(np.column_stack([costs, means])[~shown], updatey=False)
        axes.autoscale_view()
        if not shown.all():
            low, high = axes.get_ylim()
            axes.set_ylim(low, high * (high / low) ** 0.25)
        _widen(axes, "x", 1.5)
        _widen(axes, "y", 0.4)
        for i in np.flatnonzero(~shown):
            text = f"off the scale:\n{labels[i]} {means[i]:.2g}"
            point_beyond(axes, costs[i], text, mark(labels[i], 8))
        _front(axes, costs[shown], means[shown])
        beside = apart(axes, costs, means)
        for i in np.flatnonzero(shown):
            axes.errorbar(
                beside[i : i + 1], means[i : i + 1], yerr=[[below[i]], [errors[i]]],
                **mark(labels[i], 8), markeredgecolor="white", markeredgewidth=0.5, elinewidth=1.2,
                capsize=3, linestyle="none",
            )  # fmt: skip


def _front(axes: Any, costs: np.ndarray, means: np.ndarray) -> None:
    """A line of steps through the points that no other beats in both cost and risk."""
    order = np.lexsort((means, costs))
    kept = order[means[order] <= np.minimum.accumulate(means[order])]
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    axes.set(xlim=(left, right), ylim=(low, high))
    axes.step(
        [costs[kept[0]], *costs[kept], right], [high, *means[kept], means[kept[-1]]],
        where="post", color="0.85", linewidth=4, zorder=0.5, solid_joinstyle="round",
    )  # fmt: skip


def _widen(axes: Any, name: Literal["x", "y"], decades: float) -> None:
    """Shows so many decades at least; from 1.2 on powers of ten are the only labels."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    axis, (low, high) = getattr(axes, f"{name}axis"), getattr(axes, f"get_{name}lim")()
    half = 10 ** max(0.0, (decades - np.log10(high / low)) / 2)
    low, high = getattr(axes, f"set_{name}lim")(low / half, high * half)
    if np.log10(high / low) > 1.2:
        axis.set_minor_formatter(NullFormatter())
        return
    axis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.2g}"))


@dataclasses.dataclass(frozen=True)
class Dots(Panel):
    """A row for each method, in which epsilon grows downwards: medians, and bars to the quartiles.

    Of a share the mean is drawn. Rows are sorted by the share of runs that escaped a saddle, and
    then by their gap; a marker is hollow where half of the runs or more did not escape.

    Args:
      xscale: on a logarithmic axis 0 is not drawn.
    """

    xscale: Literal["linear", "log"] = "log"

    def draw(self, axes: Any, results: Results) -> None:
        epsilons, last = results.each("epsilon"), results.each("epsilon")[-1]
        ranks = {m: (-results.mean("exact_escaped", method=m),
                     results.median("exact_gap", method=m, epsilon=last))
                 for m in results.each("method")}  # fmt: skip
        order = sorted(ranks, key=ranks.__getitem__)
        for row, label in enumerate(order):
            heights = row + 0.6 * (np.arange(len(epsilons)) / max(1, len(epsilons) - 1) - 0.5)
            tables = [results.where(method=label, epsilon=epsilon) for epsilon in epsilons]
            three = np.array([self._three(table.values(self.y)) for table in tables], float)
            # Of runs that never get there nothing is drawn; a bar to them ends at the median.
            low, middle, high = np.where(np.isfinite(three), three, np.nan).T
            high, color = np.where(np.isnan(high), middle, high), look(label).color
            axes.plot(middle, heights, color=color, linewidth=1, alpha=0.6)
            axes.hlines(heights, low, high, color=color, linewidth=1.5, alpha=0.7)
            for i, table in enumerate(tables):
                size, solid = 3 + 3 * i / max(1, len(tables) - 1), table.mean("exact_escaped") > 0.5
                at = middle[i : i + 1], heights[i : i + 1]
                axes.plot(*at, **mark(label, size, solid), linestyle="none")
            if np.isnan(middle).all():
                never = {"transform": axes.get_yaxis_transform(), "va": "center"}
                axes.text(0.02, row, "never", **never, fontsize="x-small", color=color)
        axes.set_yticks(range(len(order)), order, fontsize="small")
        for tick, label in zip(axes.get_yticklabels(), order, strict=True):
            tick.set_color(look(label).color)
        axes.set_ylim(len(order) - 0.1, -0.5)
        for metric, name in self.levels.items():
            where, ha = results.where(metric=metric).column("value")[0], _SIDES.get(name, "left")
            axes.axvline(where, color="grey", linestyle=":")
            axes.text(where, 0.005, f" {name} ", transform=axes.get_xaxis_transform(), ha=ha,
                      va="bottom", fontsize="x-small")  # fmt: skip
        axes.set(xlabel=self.xlabel, ylabel="method, and in its row epsilon")
        if self.percent:
            axes.set_xlim(-0.06, 1.06)
            plotting.percent(axes.xaxis)
        elif self.xscale == "linear":
            axes.locator_params(axis="x", nbins=5)
        elif any((np.asarray(line.get_xdata(), float) > 0).any() for line in axes.lines):
            axes.set_xscale("log")
            _widen(axes, "x", 0.0)

    def _three(self, values: np.ndarray) -> tuple[float, ...]:
        if self.percent:
            return (float(values.mean()),) * 3
        # A logarithm cannot show 0.
        return quartiles(np.where(values > 0, values, np.inf) if self.xscale == "log" else values)


@dataclasses.dataclass(frozen=True)
class Picture:
    """Panels in a grid.

    Args:
      title: above all, with ``{seeds}`` and ``{epsilons}`` and what a panel's title may have.
      panels: of each problem.
      columns: of the grid; 0 for as many as there are problems, or panels of one problem.
      panels_first: whether a row of the grid is one panel of all problems.
      size: of a panel in inches.
      legend: as in ``plotting.panels``.
      extra: one more panel at the end of the first row: draws on axes, from all rows.
    """

    title: str
    panels: tuple[Panel, ...]
    columns: int = 0
    panels_first: bool = False
    size: tuple[float, float] = (4.7, 4.0)
    legend: Literal["below", "right", "inside", "none"] = "below"
    extra: Callable[[Any, Results], None] | None = None


def draw(
    picture: Picture, problems: tuple[Problem, ...], results: Results, path: str | os.PathLike
) -> None:
    """Writes a picture of problems, or of all rows at once where there are none. NOT PRIVATE."""
    every: list[tuple[Problem | None, Results]] = [(None, results)]
    tables = [(p, results.where(problem=p.name)) for p in problems] or every
    # A quick run leaves epsilons out.
    cells = [(panel, problem, table) for problem, table in tables for panel in picture.panels
             if len(table.where(metric=panel.y, **panel.where))]  # fmt: skip
    if picture.panels_first:
        cells.sort(key=lambda cell: picture.panels.index(cell[0]))
    columns = picture.columns or (len(tables) if len(tables) > 1 else len(picture.panels))
    columns = min(columns, len(cells))
    wide = columns + (picture.extra is not None)
    title = picture.title.format(**_names(*tables[0]))
    if problems and not any(len(table.where(seed=lambda seed: seed > 0)) for _, table in tables):
        title = re.sub(r", (bars|band)[^;\n]*", "", title)  # one seed has none
    with plotting.panels(path, -(-len(cells) // columns), wide, title, size=picture.size,
                         legend=picture.legend) as grid:  # fmt: skip
        for place, (panel, problem, table) in enumerate(cells):
            axes = grid[place // columns, place % columns]
            panel.draw(axes, table)
            names = _names(problem, table) | {"epsilon": panel.where.get("epsilon", "")}
            axes.set_title(panel.title.format(**names), fontsize="medium")
        if picture.extra is not None:
            picture.extra(grid[0, -1], results)


def _names(problem: Problem | None, found: Results) -> dict[str, Any]:
    n, p = found.shape
    names: dict[str, Any] = {
        "exact": plotting.EXACT, "n": n, "p": p,
        "seeds": seeds(sum(seed >= 0 for seed in found.each("seed"))),
        "epsilons": ", ".join(f"{epsilon:g}" for epsilon in found.each("epsilon")),
    }  # fmt: skip
    if problem is not None:
        names |= {"problem": problem.name, "data": problem.where, "delta": problem.delta,
                  "relation": problem.relation}  # fmt: skip
    return names


def best_first(results: Results, metric: str, sign: int = 1) -> list[str]:
    """Returns the methods by their mean at the largest epsilon, the least first; or the largest."""
    known = results.each("epsilon")
    last = results.where(epsilon=known[-1]) if known else results
    means = {}
    for label in last.each("method"):
        outputs = last.values(metric, method=label)
        on_the_way = last.where(metric=metric, method=label).column("value")
        means[label] = sign * float(np.nanmean(outputs if len(outputs) else on_the_way))
    return sorted(means, key=means.__getitem__)
