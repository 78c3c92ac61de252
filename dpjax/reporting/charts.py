"""Pictures of a report: HTML with SVG in it, as wide as the screen and as light or dark."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dpjax.reporting.html import Html, element, joined

_TICKS = 4
# A curve with more points shows no more.
_POINTS = 600
# Up to so many steps each has a mark.
_MARKED = 40


class Axis(NamedTuple):
    """Where values stand between the ends of an axis, in per cent.

    Attributes:
      low: value at the beginning.
      high: value at the end.
      logarithmic: whether equal ratios are equally far apart.
    """

    low: float
    high: float
    logarithmic: bool = False

    def place(self, value: float) -> float:
        """Returns the place of a value, in per cent of the length.

        >>> Axis(1.0, 100.0, True).place(10.0)
        50.0
        """
        low, high, value = (math.log(v) if self.logarithmic else v for v in (*self[:2], value))
        return 100 * (value - low) / (high - low)

    @property
    def ticks(self) -> list[float]:
        """A few round values within it.

        >>> Axis(-0.1, 1.1).ticks, Axis(0.002, 3.0, True).ticks
        ([0.0, 0.5, 1.0], [0.01, 0.1, 1.0])
        """
        if self.logarithmic:
            decades = range(math.ceil(math.log10(self.low)), math.floor(math.log10(self.high)) + 1)
            if len(decades) > 1:
                stride = -(-len(decades) // (_TICKS + 1))
                return [10.0**power for power in decades][::stride]
        step = 10.0 ** math.floor(math.log10((self.high - self.low) / _TICKS))
        step *= next(m for m in (1, 2, 5, 10) if (self.high - self.low) / (m * step) <= _TICKS)
        first = math.ceil(self.low / step)
        return [step * k for k in range(first, math.floor(self.high / step) + 1)]


def axis_of(values: Sequence[float], logarithmic: bool = False) -> Axis:
    """Returns an axis on which finite values stand clear of the ends.

    >>> axis_of([0.0, 10.0])
    Axis(low=-0.4, high=10.4, logarithmic=False)
    """
    low, high = float(min(values)), float(max(values))
    if logarithmic:
        ratio = max((high / low) ** 0.04, 1.1)
        return Axis(low / ratio, high * ratio, True)
    room = 0.04 * (high - low) or 1.0
    return Axis(low - room, high + room)


def dot_row(axis: Axis, value: float, ends: Iterable[float] | None) -> Html:
    """Returns one line of a dot-and-whisker picture: a dot, and its interval."""
    parts = [_line(axis.place(tick), "grid") for tick in axis.ticks]
    parts.append(_line(axis.place(0.0), "zero"))
    if ends is not None:
        low, high = (f"{axis.place(end):.3f}%" for end in ends)
        parts.append(element("line", x1=low, x2=high, y1="50%", y2="50%", class_="whisker"))
    parts.append(element("circle", cx=f"{axis.place(value):.3f}%", cy="50%", r=4, class_="dot"))
    return element("svg", *parts, class_="dots", aria_hidden="true")


def tick_row(axis: Axis) -> Html:
    """Returns the numbers below an axis that runs from left to right."""
    return element(
        "div",
        *(
            element("span", f"{tick:.4g}", style=f"left:{axis.place(tick):.3f}%")
            for tick in axis.ticks
        ),
        class_="ticks",
        aria_hidden="true",
    )


def curves(
    title: str,
    note: str,
    values: Mapping[str, np.ndarray],
    logarithmic: bool,
    level: tuple[str, float] | None = None,
) -> Html:
    """Returns a picture of values by step, or nothing where none can be shown, or all are 0.

    Values are (steps,) by name; what is not finite, or not positive on a logarithmic axis, is left
    out. Another axis begins at 0. ``level`` is name and height of a dashed line across.

    Privacy: as what is drawn.
    """
    points = {name: _points(held, logarithmic) for name, held in values.items()}
    points = {name: held for name, held in points.items() if any(y for _, y in held)}
    if not points:
        return Html("")
    heights = [y for held in points.values() for _, y in held]
    if level is not None:
        heights.append(level[1])
    axis = axis_of(heights, True) if logarithmic else Axis(0.0, 1.04 * max(heights))
    last = max(x for held in points.values() for x, _ in held)
    across = axis_of([1.0, max(last, 2)])
    drawn = [_line(100 - axis.place(tick), "grid", across=True) for tick in axis.ticks]
    if level is not None:
        drawn.append(_line(100 - axis.place(level[1]), "level", across=True))
    names = []
    for at, (name, held) in enumerate(points.items()):
        places = [(across.place(x), 100 - axis.place(y)) for x, y in held]
        drawn.append(_curve(places, f"curve c{at}"))
        names.append(element("span", name, class_=f"key c{at}"))
    if level is not None:
        names.append(element("span", f"{level[0]}: {level[1]:.4g}", class_="key level"))
    heights_shown = (
        element("span", f"{tick:.3g}", style=f"top:{100 - axis.place(tick):.3f}%")
        for tick in axis.ticks
    )
    steps = sorted(
        {1, last, *(int(t) for t in across.ticks if t == int(t) and 0.1 < t / last < 0.9)}
    )
    below = (element("span", f"{x:,}", style=f"left:{across.place(x):.3f}%") for x in steps)
    return element(
        "figure",
        element("figcaption", element("strong", title), f" {note}"),
        element("div", *names, class_="keys"),
        element(
            "div",
            element("div", *heights_shown, class_="heights"),
            element("svg", *drawn, class_="plot", role="img", aria_label=title),
            element("div", *below, class_="ticks"),
            class_="chart",
            aria_hidden="true",
        ),
    )


def _points(values: np.ndarray, logarithmic: bool) -> list[tuple[int, float]]:
    """Steps from 1, and their values."""
    stride = max(1, -(-len(values) // _POINTS))
    kept = [*range(0, len(values), stride)]
    if kept and kept[-1] != len(values) - 1:
        kept.append(len(values) - 1)
    return [
        (at + 1, float(values[at]))
        for at in kept
        if np.isfinite(values[at]) and (values[at] > 0 or not logarithmic)
    ]


def _curve(places: list[tuple[float, float]], kind: str) -> Html:
    """A line whose width does not scale with the picture, and a mark at each of few points."""
    path = " ".join(f"{x:.3f},{y:.3f}" for x, y in places)
    line = element("polyline", points=path, class_=kind, vector_effect="non-scaling-stroke")
    stretched = element("svg", line, viewBox="0 0 100 100", preserveAspectRatio="none")
    if len(places) > _MARKED:
        return stretched
    marks = (
        element(
            "circle", cx=f"{x:.3f}%", cy=f"{y:.3f}%", r=2.5, class_=kind.replace("curve", "mark")
        )
        for x, y in places
    )
    return joined([stretched, *marks])


def _line(place: float, kind: str, across: bool = False) -> Html:
    at = f"{place:.3f}%"
    if across:
        return element("line", x1="0%", x2="100%", y1=at, y2=at, class_=kind)
    return element("line", x1=at, x2=at, y1="0%", y2="100%", class_=kind)
