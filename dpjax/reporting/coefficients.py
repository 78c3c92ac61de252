"""The coefficients of a report: names, numbers, and a picture with their intervals."""

from collections.abc import Iterator

import numpy as np

from dpjax.driver import Coefficients
from dpjax.reporting.charts import Axis, axis_of, dot_row, tick_row
from dpjax.reporting.facts import Facts
from dpjax.reporting.html import Html, breakable, element, joined, table

# More coefficients would make a page that nobody reads; ``dpjax show --json`` has all of them.
_MOST = 400
_PICTURE = (
    "The picture shows what the whole declared range of a column, or a level, does to the "
    "prediction, in the units of the label."
)


def coefficient_section(facts: Facts) -> Iterator[Html]:
    """Yields the heading, what the numbers mean, and the numbers with a picture."""
    found = facts.coefficients
    yield element("h2", "Coefficients")
    if found is None:
        yield element("p", "The model is not a linear one, so it has no coefficients by name.")
        return
    yield element("p", found.caption)
    if facts.classes and found.classes is None:
        yield element("p", f"A positive one speaks for {facts.classes[1]!r} and against "
                      f"{facts.classes[0]!r}.")  # fmt: skip
    if found.classes is not None:
        yield element("p", "Each class has a score; only differences of scores between classes "
                      "matter, and the class with the largest is predicted.")  # fmt: skip
    yield element("p", found.interval_caption, class_="note")
    more = len(found.names) - _MOST // len(found.classes or ("",))
    if any(found.per):
        yield element("p", _PICTURE, class_="note")
    shown = len(found.names) - max(more, 0)
    if found.classes is None:
        yield _one_class(found, shown)
    else:
        yield _many_classes(found, found.classes, shown)
    if more > 0:
        yield element("p", f"{more:,} more names: dpjax show MODEL --json has all.", class_="note")


def _one_class(found: Coefficients, shown: int) -> Html:
    """Names, numbers and the picture, in one row each."""
    axis = _span_axis(found, shown)
    heads = [
        ("coefficient", "name"),
        ("value", "number"),
        (f"{100 * found.confidence:.3g} % interval" if found.lower is not None else "", "interval"),
        ("", "picture"),
    ]
    rows = [element("div", *(element("div", text, class_=f"{kind} head") for text, kind in heads))]
    for (name, per, values, ends), span in list(zip(found.rows(), found.spans, strict=True))[
        :shown
    ]:
        picture = Html("")
        if axis is not None and np.isfinite(values[0] * span):
            drawn = None if ends is None else span * ends[:, 0]
            picture = dot_row(axis, values[0] * span, drawn)
        cells = [
            element("div", breakable(name), class_="name"),
            element("div", _signed(values[0]) + f" per {per}" * bool(per), class_="number"),
            element("div", "" if ends is None else _interval(ends[:, 0]), class_="interval number"),
            element("div", picture, class_="picture"),
        ]
        rows.append(element("div", *cells))
    if axis is not None:
        empty = [element("div", class_=kind) for kind in ("name", "number", "number")]
        rows.append(
            element("div", *empty, element("div", tick_row(axis), class_="picture"), class_="axis")
        )
    return element("div", *rows, class_="coefficients whole")


def _many_classes(found: Coefficients, classes: tuple[str, ...], shown: int) -> Html:
    """A column for each class: the picture, the number and its interval."""
    axis, body = _span_axis(found, shown), []
    for name, _, values, ends in list(found.rows())[:shown]:
        cells = []
        for at, value in enumerate(values):
            interval = None if ends is None else ends[:, at]
            picture = dot_row(axis, value, interval) if axis and np.isfinite(value) else Html("")
            below = [] if interval is None else [element("small", _interval(interval))]
            cells.append(joined([picture, _signed(value), *below]))
        body.append([name, *cells])
    if axis is not None:
        body.append(["", *[tick_row(axis)] * len(classes)])
    return table(["coefficient", *classes], body, class_="numeric classes")


def _span_axis(found: Coefficients, shown: int) -> Axis | None:
    """An axis for the effects of all columns over their ranges, or None if none is finite."""
    held = [found.values] if found.lower is None else [found.values, found.lower, found.upper]
    every = np.concatenate([np.ravel((np.atleast_2d(v) * found.spans)[:, :shown]) for v in held])
    finite = every[np.isfinite(every)]
    return axis_of([0.0, *finite.tolist()]) if len(finite) else None


def _signed(value: float) -> str:
    return f"{value:+.4g}" if np.isfinite(value) else "not finite"


def _interval(ends: np.ndarray) -> str:
    return f"{ends[0]:.4g} to {ends[1]:.4g}"
