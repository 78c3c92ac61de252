"""The pictures of a report: SVG by matplotlib, in the colours of the page's style sheet."""

import contextlib
import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from dpjax import plotting
from dpjax.results import Coefficients

# matplotlib draws in numbers; each stands for a colour of the style sheet, light or dark.
_FIRST, _SECOND, _ALARM, _RULE, _MUTED = "#00000a", "#00000b", "#00000c", "#00000d", "#00000e"
_COLORS = {"c0": _FIRST, "c1": _SECOND, "alarm": _ALARM, "rule": _RULE, "muted": _MUTED}
_COLORS["text"] = _TEXT = "#00000f"
_TICKS = 4
# A curve with more points shows no more.
_POINTS = 600
# Of an SVG inside a page: what names itself, or points to another part or another page.
_NEEDLESS = re.compile(
    r'<[?!].*?>|<defs>.*?</defs>|\s(?:xmlns(?::\w+)?|clip-path|width|height)="[^"]*"', re.DOTALL
)
_MARK = re.compile(r'<use [^>]*?x="(.*?)" y="(.*?)" style="(.*?)"/>')


def forest(held: Coefficients) -> Markup:
    """Returns what ``plotting.plot_coefficients`` draws, or nothing where a value is not finite.

    Privacy: as what is drawn.
    """
    if not (np.isfinite(held.values).all() and np.isfinite(held.spans).any()):
        return Markup()
    with _axes((4.2, 1.0), ".3g") as axes:
        plotting.plot_coefficients(held, axes, colors=(_FIRST, _MUTED, _RULE, _MUTED))
        axes.xaxis.label.set_color(_MUTED)
        height = 0.7 + 0.24 * len(axes.get_yticks())
        axes.get_figure().set_figheight(height)
        axes.set_position((0.36, 0.5 / height, 0.62, 1 - 0.55 / height))
        return _svg(axes)


def curves(values: Mapping[str, np.ndarray], level: float | None = None) -> Markup:
    """Returns a picture of values by step on a logarithmic axis, or nothing where none is positive.

    Values are (steps,) by name. ``level`` is the height of a dotted line across.

    Privacy: as what is drawn.
    """
    shown = [_shown(held) for held in values.values()]
    heights = np.concatenate([np.zeros(0), *(y for _, y in shown)])
    if not heights.size:
        return Markup()
    if level is not None:
        heights = np.append(heights, level)
    low, high = heights.min(), heights.max()
    # A margin is a factor here; a curve of one value needs one too.
    ratio = max((high / low) ** 0.04, 1.1)
    with _axes((4.2, 2.2), decades=high / low > 30) as axes:
        for (steps, held), line in zip(shown, ((_FIRST, "-"), (_SECOND, "--")), strict=False):
            color, style = line
            marker = "o" if len(steps) <= 40 else ""  # of more steps marks would be a band
            axes.plot(steps, held, style, color=color, marker=marker, markersize=4, linewidth=1.8)
        axes.set_ylim(low / ratio, high * ratio)
        if level is not None:
            axes.axhline(level, color=_ALARM, linestyle=":", linewidth=1.5)
        return _svg(axes)


def shares(x: Any, y: Any, ends: Any = None) -> Markup:
    """Returns a curve from 0 to 1 on both axes, beside the diagonal; ``ends`` are of whiskers.

    Privacy: as what is drawn.
    """
    with _axes((3.2, 2.6), ".3g") as axes:
        axes.plot([0, 1], [0, 1], "--", color=_MUTED, linewidth=0.8)
        if ends is not None:
            axes.vlines(x, *ends, color=_FIRST, linewidth=1)
        marker = "" if ends is None else "o"
        axes.plot(x, y, color=_FIRST, marker=marker, markersize=4, linewidth=1.8)
        axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        return _svg(axes)


def histogram(counts: Sequence[float], names: Sequence[str], stddev: float) -> Markup:
    """Returns a bar for each count, and a whisker of two standard deviations of the noise.

    Names are of the bars, or, one more than those, of what lies between.

    Privacy: as what is drawn.
    """
    with _axes((4.2, 2.2), bottom=0.16) as axes:
        places, between = np.arange(len(counts)), len(names) > len(counts)
        axes.bar(places, counts, 0.94, color=_FIRST)
        axes.vlines(places, np.maximum(np.array(counts) - 2 * stddev, 0),
                    np.array(counts) + 2 * stddev, color=_MUTED, linewidth=1)  # fmt: skip
        few = range(0, len(names), max(1, -(-len(names) // (4 if between else 7))))
        axes.set_xticks([at - between / 2 for at in few], [names[at] for at in few])
        return _svg(axes)


def matrix(counts: np.ndarray, names: Sequence[str]) -> Markup:
    """Returns a field for each of (K, K) counts, darker by share of its row; private as those."""
    shares, most = counts.clip(0) / counts.clip(1).sum(axis=1, keepdims=True), len(names) - 0.5
    short = [name if len(name) < 15 else f"{name[:12]}..." for name in names]
    height, each = max(1.8, 0.6 + 0.3 * len(names)), -(-len(names) // 4)
    with _axes((4.2, height)) as axes:
        axes.set_position((0.26, 0.5 / height, 0.72, 1 - 0.55 / height))
        axes.grid(False)
        for (row, column), count in np.ndenumerate(counts):
            style = {"color": _FIRST, "alpha": 0.05 + 0.5 * shares[row, column], "linewidth": 0}
            axes.bar(column, 0.96, 0.96, row - 0.48, **style)
            words = f"{count:,.0f}" if len(names) < 9 else ""  # of more they have no room
            axes.text(column, row, words, color=_TEXT, fontsize=9, ha="center", va="center")
        axes.set_yticks(range(len(names)), short)
        axes.set_xticks(range(0, len(names), each), short[::each])
        axes.set(xlim=(-0.5, most), ylim=(most, -0.5))
        return _svg(axes)


def _shown(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Steps from 1, and their values, where a logarithm has them."""
    at = np.unique(np.linspace(0, len(values) - 1, min(len(values), _POINTS)).astype(int))
    drawn = at[np.isfinite(values[at]) & (values[at] > 0)]
    return drawn + 1, values[drawn]


@contextlib.contextmanager
def _axes(
    size: tuple[float, float], x: str = ",.0f", bottom: float = 0.11, decades: bool | None = None
) -> Iterator[Any]:
    """Gives axes in a figure, whose text stays text.

    ``size`` is in inches, ``x`` the form of its numbers, by default whole ones; and ``decades`` is
    whether a logarithmic axis spans more than one, None for another axis.
    """
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    with matplotlib.rc_context({"svg.fonttype": "none"}):
        axes = Figure(figsize=size).add_axes((0.14, bottom, 0.85, 0.97 - bottom))
        axes.set_yscale("linear" if decades is None else "log")
        axes.grid(True, axis="y", color=_RULE, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.tick_params(which="both", left=False, bottom=False, labelcolor=_MUTED, labelsize=9)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(_RULE)
        axes.yaxis.set(
            major_locator=LogLocator(numticks=_TICKS + 1) if decades else MaxNLocator(_TICKS),
            minor_locator=NullLocator(),
            major_formatter=lambda value, _: f"{value:{',.0f' if value >= 1000 else '.3g'}}",
        )
        axes.xaxis.set(
            major_locator=MaxNLocator(_TICKS, integer=x.endswith("f")),
            major_formatter=lambda value, _: f"{value:{x}}",
        )
        yield axes


def _svg(axes: Any) -> Markup:
    """Returns a figure as an element that a page may hold: it names nothing and loads nothing."""
    file = io.StringIO()
    # Without dates and names of programs, so that the same model gives the same page.
    metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with warnings.catch_warnings(action="ignore"):  # of letters that a browser has
        axes.get_figure().savefig(file, format="svg", transparent=True, metadata=metadata)
    text = _NEEDLESS.sub("", file.getvalue()).replace(" id=", " class=")
    text = _MARK.sub(r'<circle cx="\1" cy="\2" r="3" style="\3"/>', text)
    text = re.sub(r"font-family: .*?; ", "", text)
    for name, color in _COLORS.items():
        text = text.replace(color, f"var(--{name})")
    return Markup(" ".join(text.split()))
