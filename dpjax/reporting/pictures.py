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
_TICKS = 4
# A curve with more points shows no more.
_POINTS = 600
# Up to so many steps each has a mark.
_MARKED = 40
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
    with _axes(4.2, 1.0, (0, 0, 1, 1)) as axes:
        _decorate(axes, decades=False)
        axes.xaxis.set(major_locator=_locator(), major_formatter=lambda value, _: f"{value:.3g}")
        plotting.plot_coefficients(held, axes, colors=(_FIRST, _MUTED, _RULE, _MUTED))
        axes.xaxis.label.set_color(_MUTED)
        height = 0.7 + 0.24 * len(axes.get_yticks())
        axes.get_figure().set_figheight(height)
        axes.set_position((0.36, 0.5 / height, 0.62, 1 - 0.55 / height))
        return _svg(axes)


def curves(
    values: Mapping[str, np.ndarray], logarithmic: bool, level: float | None = None
) -> Markup:
    """Returns a picture of values by step, or nothing where none can be shown, or all are 0.

    Values are (steps,) by name; what is not finite, or not positive on a logarithmic axis, is left
    out. Another axis begins at 0. ``level`` is the height of a dotted line across.

    Privacy: as what is drawn.
    """
    shown = [_shown(held, logarithmic) for held in values.values()]
    heights = np.concatenate([y for _, y in shown]) if shown else np.zeros(0)
    if not heights.any():
        return Markup()
    if level is not None:
        heights = np.append(heights, level)
    with _axes(4.2, 2.2, (0.14, 0.11, 0.85, 0.86)) as axes:
        for (steps, held), color, dashes in zip(
            shown, (_FIRST, _SECOND), ("-", "--"), strict=False
        ):
            marker = "o" if len(steps) <= _MARKED else ""
            axes.plot(steps, held, dashes, color=color, marker=marker, markersize=4, linewidth=1.8)
        low, high = heights.min(), heights.max()
        # A margin is a factor on a logarithmic axis; a curve of one value needs one too.
        ratio = max((high / low) ** 0.04, 1.1) if logarithmic else 0.0
        axes.set_yscale("log" if logarithmic else "linear")
        axes.set_ylim((low / ratio, high * ratio) if logarithmic else (0, 1.04 * high))
        if level is not None:
            axes.axhline(level, color=_ALARM, linestyle=":", linewidth=1.5)
        _decorate(axes, decades=logarithmic and high / low > 30)
        return _svg(axes)


def shares(x: Any, y: Any, ends: Any = None) -> Markup:
    """Returns a curve from 0 to 1 on both axes, beside the diagonal; ``ends`` are of whiskers.

    Privacy: as what is drawn.
    """
    with _axes(3.2, 2.6, (0.14, 0.11, 0.85, 0.86)) as axes:
        axes.plot([0, 1], [0, 1], "--", color=_MUTED, linewidth=0.8)
        if ends is not None:
            axes.vlines(x, *ends, color=_FIRST, linewidth=1)
        marker = "" if ends is None else "o"
        axes.plot(x, y, color=_FIRST, marker=marker, markersize=4, linewidth=1.8)
        axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        _decorate(axes, decades=False)
        axes.xaxis.set(major_locator=_locator(), major_formatter=lambda value, _: f"{value:.3g}")
        return _svg(axes)


def histogram(counts: Sequence[float], names: Sequence[str], stddev: float) -> Markup:
    """Returns a bar for each count, and a whisker of two standard deviations of the noise.

    Names are of the bars, or, one more than those, of what lies between.

    Privacy: as what is drawn.
    """
    with _axes(4.2, 2.2, (0.14, 0.16, 0.85, 0.8)) as axes:
        places, between = np.arange(len(counts)), len(names) > len(counts)
        axes.bar(places, counts, 0.94, color=_FIRST)
        axes.vlines(places, np.maximum(np.array(counts) - 2 * stddev, 0),
                    np.array(counts) + 2 * stddev, color=_MUTED, linewidth=1)  # fmt: skip
        _decorate(axes, decades=False)
        few = range(0, len(names), max(1, -(-len(names) // (4 if between else 7))))
        axes.set_xticks([at - between / 2 for at in few], [names[at] for at in few])
        return _svg(axes)


def _shown(values: np.ndarray, logarithmic: bool) -> tuple[np.ndarray, np.ndarray]:
    """Steps from 1, and their values."""
    at = np.unique(np.linspace(0, len(values) - 1, min(len(values), _POINTS)).astype(int))
    drawn = at[np.isfinite(values[at]) & ((values[at] > 0) | (not logarithmic))]
    return drawn + 1, values[drawn]


def _decorate(axes: Any, decades: bool) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    axes.grid(True, axis="y", color=_RULE, linewidth=0.8)
    axes.tick_params(which="both", left=False, bottom=False, labelcolor=_MUTED, labelsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_RULE)
    axes.yaxis.set_major_locator(LogLocator(numticks=_TICKS + 1) if decades else _locator())
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(
        lambda value, _: f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
    )
    axes.xaxis.set_major_locator(_locator(integer=True))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _locator(**more: Any) -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(_TICKS, **more)


@contextlib.contextmanager
def _axes(width: float, height: float, place: tuple[float, float, float, float]) -> Iterator[Any]:
    """Gives axes in a figure of a size in inches, whose text stays text."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.fonttype": "none"}):
        yield Figure(figsize=(width, height)).add_axes(place)


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
