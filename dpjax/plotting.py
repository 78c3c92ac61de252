"""Figures of released values, and the style that all figures share: colours, panels, legends.

matplotlib comes with the ``plot`` extra.
"""

import contextlib
import importlib.util
import math
import os
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np

from dpjax import _validate
from dpjax.display.cards import floor, printable

# Okabe and Ito's colours, which colour-blind readers can tell apart, and three dark ones.
BLUE, ORANGE, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
SKY, YELLOW, PURPLE, GREY = "#56B4E9", "#E69F00", "#882255", "#6B6B6B"
BLACK, BROWN = "#000000", "#5C4A00"
# For the titles of pictures that show what is not released.
EXACT = "exact values (NOT PRIVATE)"
# Inches that a character and a line of a title or a legend take, at most.
_CHARACTER, _LINE = 0.08, 0.23
# More coefficients make a picture that nobody reads.
_MOST = 60


def is_available() -> bool:
    """Returns whether pictures can be drawn."""
    return importlib.util.find_spec("matplotlib") is not None


def require() -> None:
    """Raises ImportError, saying what to install, unless pictures can be drawn."""
    if not is_available():
        raise ImportError(_validate.install("a picture", "matplotlib") + ".")


def check_path(path: str | os.PathLike) -> None:
    """Raises, before anything is spent, unless a picture can be written under this name."""
    require()
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    ending = os.path.splitext(path)[1].lstrip(".")
    formats = FigureCanvasAgg.get_supported_filetypes()
    if ending not in formats:
        raise ValueError(f"{path} must end in one of: {', '.join(sorted(formats))}.")


@contextlib.contextmanager
def panels(
    path: str | os.PathLike | None,
    rows: int,
    columns: int,
    title: str,
    *,
    size: tuple[float, float] = (4.7, 4.0),
    legend: Literal["below", "right", "inside", "none"] = "below",
) -> Iterator[Any]:
    """Gives a grid of axes to draw on, and writes the picture once all is drawn.

    Axes on which nothing was drawn are left out. One legend serves all axes that have none, beside
    all panels or inside each; it says which curves are out of view. ``size`` is of one panel in
    inches; title and legend come on top, and lines wider than the picture are broken. A ``path`` of
    None writes no file.

    Privacy: as what is drawn.
    """
    check_path("a.png" if path is None else path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    # Not by pyplot, which picks a backend for the whole process and keeps every figure.
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, squeeze=False)
    yield grid
    for axes in grid.flat:
        axes.grid(True, which="major", color="0.92", linewidth=0.8)
        axes.set_axisbelow(True)
        if not axes.has_data():
            axes.set_axis_off()
        elif legend == "inside":
            entries = _entries([axes])
            axes.legend(entries.values(), entries, fontsize="small", framealpha=0.8)
    if legend in ("below", "right"):
        _common_legend(figure, legend)
    width = figure.get_figwidth()
    title = "\n".join(textwrap.fill(line, int(width / _CHARACTER)) for line in title.splitlines())
    # The title comes on top, so that panels keep their size.
    figure.set_figheight(figure.get_figheight() + _LINE * len(title.splitlines()))
    figure.suptitle(title, fontsize="medium")
    if path is not None:
        figure.savefig(path, dpi=130)


def band(
    axes: Any,
    where: np.ndarray,
    middle: np.ndarray,
    ends: np.ndarray | Sequence[np.ndarray],
    color: str,
    **line: Any,
) -> None:
    """Draws a line in a band of its colour.

    ``ends`` are its lower and upper end; ``line`` is what ``plot`` is given besides.

    Privacy: as what is drawn.
    """
    # Where several bands overlap, the lines in them still stand out.
    axes.fill_between(where, *ends, color=color, alpha=0.1, linewidth=0, zorder=1)
    axes.plot(where, middle, color=color, **line)


def mark(color: str, marker: str, size: float = 6.0, filled: bool = True) -> dict[str, Any]:
    """Returns what ``plot`` is given for a marker: a star is larger, as it fills less."""
    return {
        "color": color,
        "marker": marker,
        "markersize": 1.5 * size if marker == "*" else size,
        "markerfacecolor": color if filled else "white",
    }


def percent(axis: Any) -> None:
    """Labels shares as per cent."""
    axis.set_major_formatter(lambda value, _: f"{100 * value:.4g} %")


def places(axes: Any, where: Sequence[float]) -> None:
    """Makes x logarithmic and labels these values alone."""
    axes.set_xscale("log")
    axes.set_xticks(where, [f"{value:,g}" for value in where])
    axes.set_xticks([], minor=True)


def plot_solution(solution: Any, path: str | os.PathLike | None, title: str) -> Any:
    """Returns a figure of the released history of one training, or of a batch of them.

    One panel for the norm of the noisy gradient and the certified bound on the true one, one for
    the length of each step and its radius, one for the multiplier, where there are such.

    Args:
      solution: a ``Solution``; under ``vmap`` the median and the middle 80 % are drawn.
      path: file to write, whose ending fixes the format; None for none.
      title: printed above.

    Raises:
      ImportError: if matplotlib is not installed.
      ValueError: if the ending names no format.

    Privacy: draws released values only.
    """
    # Of a batch the longest run; the others end in NaN.
    steps = int(np.max(np.asarray(solution.steps)))
    history = {
        name: np.atleast_2d(np.asarray(values))[:, :steps]
        for name, values in solution.history._asdict().items()
    }
    # Of proximal steps the history has the norm without the regularizer.
    regularized = "gradient_norm" in history
    norms = history["gradient_norm" if regularized else "data_gradient_norm"]
    runs = len(norms)
    title += f"\nmedian and middle 80 % of {runs} runs" if runs > 1 else ""
    columns = 2 + ("multiplier" in history)
    with panels(path, 1, columns, title, size=(4.5, 3.8), legend="inside") as ((first, *rest),):
        label = "noisy gradient norm" + ", without the regularizer" * (not regularized)
        _median(first, norms, BLUE, label)
        _certificate(first, solution.certificate, steps)
        titles = {"gradient norm": "Gradient norm\n(0 at a stationary point)"}
        _median(rest[0], history["step_norm"], GREEN, "step length")
        titles["length (parameter units)"] = "Length of each step"
        if "radius" in history:
            _median(rest[0], history["radius"], PINK, "trust radius", linestyle="--")
            titles["length (parameter units)"] += "\n(at most the trust radius)"
        if "multiplier" in history:
            _median(rest[1], history["multiplier"], ORANGE, "multiplier")
            rest[1].set_ylim(0, None)
            inside = "\n(0 when the step stays inside the radius)"
            titles["dual variable (curvature units)"] = f"Trust-region multiplier{inside}"
        for axes, (label, words) in zip((first, *rest), titles.items(), strict=True):
            # The multiplier is 0 inside the radius, which a logarithm cannot show.
            axes.set_yscale("linear" if axes in rest[1:] else "log")
            axes.set(xlabel="step", ylabel=label, title=words)
    return first.figure


def plot_coefficients(
    coefficients: Any,
    path_or_axes: Any,
    title: str = "",
    colors: tuple[str, str, str, str] = (BLUE, GREY, "#DDDDDD", "0.4"),
) -> None:
    """Draws a forest plot: coefficients with their intervals over what noise alone gives.

    Each is what the declared range of its column does to the prediction, so that one axis serves
    all; an intercept, which has no such range, is left out. What is far beyond the others is cut.

    Args:
      coefficients: a ``Coefficients``, as ``solution.coefficients()`` returns it.
      path_or_axes: file to write, whose ending fixes the format; or matplotlib axes to draw on.
      title: printed above.
      colors: of coefficients, of those within noise, of the band of noise and of the line at 0.

    Privacy: draws released values only.
    """
    if hasattr(path_or_axes, "hlines"):
        return _forest(path_or_axes, coefficients, colors)
    rows = min(int(np.isfinite(coefficients.spans).sum()), _MOST)
    size = (4.2, 0.9 + 0.27 * rows * len(coefficients.classes or ("",)))
    with panels(path_or_axes, 1, 1, title, size=size) as ((axes,),):
        _forest(axes, coefficients, colors)


def _forest(axes: Any, held: Any, colors: tuple[str, str, str, str]) -> None:
    point, within, band_color, rule = colors
    every = np.flatnonzero(np.isfinite(held.spans))
    shown, classes = every[:_MOST], held.classes or ("",)

    def scaled(numbers: np.ndarray | None) -> np.ndarray:
        """In rows as they are drawn: by column, and within one by class."""
        numbers = np.full(held.values.shape, np.nan) if numbers is None else numbers
        return (np.atleast_2d(numbers) * held.spans)[:, shown].T.ravel()

    values, noise, lower, upper = map(scaled, (held.values, held.noise, held.lower, held.upper))
    is_noise = np.abs(values) <= noise
    reach = np.abs([values, lower, upper])
    reach = np.max(reach, axis=0, where=np.isfinite(reach), initial=0.0)
    # A column with wide bounds would leave no room for the others; strong effects are seen.
    typical, seen = np.median(reach), np.isfinite(values) & ~is_noise
    strong = np.max(np.abs(values), where=seen, initial=0.0)
    limit = 1.1 * min(reach.max(), max(4 * typical, min(strong, 10 * typical))) or 1.0
    rows, half = np.arange(len(values)), np.minimum(noise, limit)
    # Cut here, since in the SVG of a page nothing is cut at the axes.
    lower, upper = (np.clip(end, -limit, limit) for end in (lower, upper))
    label = "the privacy noise alone"
    axes.barh(rows, 2 * half, left=-half, height=0.8, color=band_color, label=label, zorder=1)
    axes.axvline(0, color=rule, linewidth=1, zorder=1.5)
    for which, color in ((~is_noise, point), (is_noise, within)):
        if held.lower is not None:
            ends = lower[which], upper[which]
            axes.hlines(rows[which], *ends, color, linewidth=1.8, zorder=2, gid="whisker")
        seen = which & (np.abs(values) <= limit)
        axes.plot(values[seen], rows[seen], "o", color=color, markersize=5, zorder=3, gid="dot")
        # Of a coefficient that is out of view the edge shows on which side.
        for row in rows[which & (np.abs(values) > limit)]:
            at, arrow = (0.98 * limit, "▶") if values[row] > 0 else (-0.98 * limit, "◀")
            axes.text(at, row, arrow, color=color, ha="center", va="center", size=7)
    covered = "sampling and privacy noise" if held.kind == "population" else "privacy noise"
    label = f"{100 * held.confidence:.3g} % interval, {covered}"
    label = "coefficient, no interval" if held.lower is None else label
    axes.plot([], [], "o" if held.lower is None else "o-", color=point, label=label)
    names = [f"{held.names[at]}{name and f', {name}'}" for at in shown for name in classes]
    lines = ["\n".join(textwrap.wrap(printable(name), 22)[:2]) for name in names]
    axes.set_yticks(rows, lines, fontsize=8, parse_math=False)
    more = len(every) - len(shown)
    words = f"\n{more} more columns are not shown" if more else ""
    axes.set_xlabel(f"effect of the column's whole range, or of a level{words}", fontsize=8)
    axes.set(xlim=(-limit, limit), ylim=(len(rows) - 0.4, -0.6))
    axes.tick_params(axis="x", labelsize=8)


def _common_legend(figure: Any, where: Literal["below", "right"]) -> None:
    """One entry a label of the axes without a legend; the figure grows by what it takes."""
    entries = _entries([axes for axes in figure.axes if axes.get_legend() is None])
    if not entries:
        return
    entry = _CHARACTER * max(map(len, entries)) + 0.6
    if where == "right":
        figure.set_figwidth(figure.get_figwidth() + entry)
        how: dict[str, Any] = {"loc": "outside right center", "frameon": False}
    else:
        lines = math.ceil(len(entries) / max(1, int(figure.get_figwidth() / entry)))
        figure.set_figheight(figure.get_figheight() + _LINE * (lines + 0.5))
        how = {"loc": "outside lower center", "ncols": math.ceil(len(entries) / lines)}
    figure.legend(entries.values(), entries, fontsize="small", **how)


def _entries(panels: Iterable[Any]) -> dict[str, Any]:
    """The legend's handles by their labels; those of curves that no panel shows say so."""
    handles: dict[str, Any] = {}
    seen: set[str] = set()
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
            if _shows(axes, handle):
                seen.add(label)
    return {k if k in seen else f"{k} (out of view)": held for k, held in handles.items()}


def _shows(axes: Any, handle: Any) -> bool:
    """Whether a point of a line is within the axes; what is no line, or has no data, is a key."""
    if not hasattr(handle, "get_xydata") or handle.get_transform() != axes.transData:
        return True
    (left, right), (low, high) = sorted(axes.get_xlim()), sorted(axes.get_ylim())
    x, y = np.reshape(handle.get_xydata(), (-1, 2)).T
    return len(x) == 0 or bool(((left <= x) & (x <= right) & (low <= y) & (y <= high)).any())


def _median(axes: Any, values: np.ndarray, color: str, label: str, linestyle: str = "-") -> None:
    # Runs may end at different steps; what is not there is NaN.
    ends = np.nanquantile(values, [0.1, 0.9], axis=0)
    step = np.arange(1, values.shape[1] + 1)
    band(axes, step, np.nanmedian(values, axis=0), ends, color, label=label, linestyle=linestyle)


def _certificate(axes: Any, certificate: Any, steps: int) -> None:
    if certificate is None:
        return
    # Of several runs the worst: a median of bounds need not bound any of them.
    upper = float(np.max(np.asarray(certificate.gradient_norm_upper)))
    held = floor(100 * (1 - round(float(np.max(np.asarray(certificate.beta))), 7)))
    # The last step begins at the last query, and the output comes after it.
    where = steps if certificate.iterate == "last_query" else steps + 1
    label = f"true gradient at most this\n(probability {held}%, {certificate.scope})"
    axes.plot([where], [upper], "v", color=ORANGE, label=label)
