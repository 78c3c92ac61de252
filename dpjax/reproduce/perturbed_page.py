"""NOT PRIVATE: picture, tables and lines of the figure of perturbed gradient descent."""

import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpjax import plotting
from dpjax.accounting import ball_delta
from dpjax.reproduce import page, perturbed, tables
from dpjax.reproduce.perturbed import DIMENSIONS, RECORDS, STEP_DISTANCE, DeltaFigure
from dpjax.reproduce.study import Curve, Figure, Found
from dpjax.reproduce.tables import Table

# By dimension.
Colors = Mapping[int, Any]

_COUNTS = np.unique(np.geomspace(1, 100 * RECORDS, 61).round().astype(int))
_COMPARED = (2, 22, 100)


def files(
    folder: pathlib.Path, name: str, one: Figure, every: Sequence[Found], curves: Sequence[Curve]
) -> list[pathlib.Path]:
    """Writes the picture and the tables, and returns their paths.

    Args:
      folder: where to.
      name: of the figure.
      one: the figure, a ``DeltaFigure``.
      every: empty.
      curves: empty.
    """
    del every, curves
    points, steps = folder / f"{name}.csv", folder / f"{name}-steps.csv"
    tables.write_csv(points, _delta_rows(one))
    tables.write_csv(steps, _step_rows(_COUNTS))
    return [*draw(folder, name, one), points, steps]


def draw(folder: pathlib.Path, name: str, one: Figure) -> list[pathlib.Path]:
    """Draws the picture of the figure from its tables in ``folder``, and returns its path.

    Args:
      folder: where the tables are.
      name: of the figure.
      one: the figure.

    Raises:
      FileNotFoundError: if a table is missing.
    """
    del one
    picture = folder / f"{name}.png"
    points = tables.read_csv(folder / f"{name}.csv")
    _plot(points, tables.read_csv(folder / f"{name}-steps.csv"), picture)
    return [picture]


def lines(one: Figure, every: Sequence[Found], curves: Sequence[Curve]) -> list[str]:
    """Returns the tables of the figure as lines of Markdown."""
    del every, curves
    found = _points(one)
    distances = sorted({point.distance for point in found})
    shown = [distances[round(i * (len(distances) - 1) / 4)] for i in range(5)]
    rows = [
        {"": f"d = {d}"}
        | {
            f"D = {distance:g}": page.number(point.delta)
            for distance in shown
            for point in found
            if (point.dimension, point.distance) == (d, distance)
        }
        for d in DIMENSIONS
    ]
    compared = [
        {
            "d": point.dimension,
            "D": f"{point.distance:g}",
            "ball, every epsilon": page.number(point.delta),
            "ball, drawn": page.number(point.drawn),
            "Gaussian, epsilon 0": page.number(point.gaussian),
            "Gaussian, epsilon 1": page.number(point.gaussian_at_1),
        }
        for point in found
        if point.dimension in _COMPARED and point.distance in (shown[0], shown[1])
    ]
    counts = np.array([1, 100, 1_000, RECORDS, 10 * RECORDS])
    after = [
        {"": "publishing T random records", **_cells(counts, -np.expm1(counts * _log_kept()))},
        *({"": f"d = {d}", **_cells(counts, perturbed.steps(d, counts))} for d in DIMENSIONS),
    ]
    return [
        "Delta of one release, the same at every epsilon:",
        "",
        *page.table(rows),
        "",
        "Beside Gaussian noise of the same standard deviation:",
        "",
        *page.table(compared),
        "",
        f"After T steps, each on one record in n = {RECORDS:,}, at D = {STEP_DISTANCE:g}:",
        "",
        *page.table(after),
    ]


def _points(one: Figure) -> tuple[perturbed.Delta, ...]:
    if not isinstance(one, DeltaFigure):
        raise TypeError(f"this page is of a DeltaFigure, got {one!r}.")
    return perturbed.deltas(one)


def _cells(counts: np.ndarray, values: np.ndarray) -> dict[str, str]:
    return {f"T = {t:,}": page.number(float(v)) for t, v in zip(counts, values, strict=True)}


def _log_kept() -> float:
    return float(np.log1p(-1 / RECORDS))


def _delta_rows(one: Figure) -> list[dict[str, object]]:
    return [
        {
            "dimension": point.dimension,
            "distance": f"{point.distance:.6g}",
            "radius": 1,
            "delta": f"{point.delta:.9g}",
            "delta_drawn": f"{point.drawn:.9g}",
            "standard_error": f"{point.error:.3g}",
            "gaussian_delta_at_epsilon_0": f"{point.gaussian:.9g}",
            "gaussian_delta_at_epsilon_1": f"{point.gaussian_at_1:.9g}",
        }
        for point in _points(one)
    ]


def _step_rows(counts: np.ndarray) -> list[dict[str, object]]:
    published = -np.expm1(counts * _log_kept())
    return [
        {
            "dimension": dimension,
            "distance": STEP_DISTANCE,
            "records": RECORDS,
            "steps": int(count),
            "delta": f"{delta:.9g}",
            "delta_of_publishing_as_many_records": f"{known:.9g}",
        }
        for dimension in DIMENSIONS
        for count, delta, known in zip(
            counts, perturbed.steps(dimension, counts), published, strict=True
        )
    ]


def _plot(points: Table, steps: Table, path: str | os.PathLike) -> None:
    from matplotlib import colormaps

    dimensions = [int(d) for d in points.values("dimension")][::-1]
    shades = colormaps["viridis"](np.linspace(0, 0.9, len(dimensions)))
    colors = dict(zip(dimensions, shades, strict=True))
    title = (
        "Noise uniform in the unit ball hides little: the delta of its (0, delta) guarantee, the "
        "same at every epsilon, by dimension d (lower is more private)\nlines: closed form; dots: "
        "share of drawn noise that tells two centres apart"
    )
    with plotting.panels(path, 1, 3, title) as ((release, gaussian, composed),):
        _against_distance(release, gaussian, points, colors)
        _against_steps(composed, steps, colors)


def _against_distance(release: Any, gaussian: Any, every: Table, colors: Colors) -> None:
    for dimension, color in colors.items():
        points = every.where(dimension=dimension)
        where = np.linspace(0.005, 1.999, 300)
        deltas = [ball_delta(float(d), 1.0, dimension) for d in where]
        release.plot(where, deltas, color=color, label=f"d = {dimension}")
        few = slice(None, None, max(1, len(points) // 10))
        release.plot(
            points.numbers("distance")[few], points.numbers("delta_drawn")[few],
            marker="o", markersize=4, color=color, linestyle="none",
        )  # fmt: skip
        if dimension in _COMPARED:
            where = np.geomspace(1e-3, 1.999, 300)
            deltas = [ball_delta(float(d), 1.0, dimension) for d in where]
            gaussian.plot(where, deltas, color=color)
            for epsilon, style in ((0.0, "--"), (1.0, ":")):
                deltas = [perturbed.gaussian_delta(float(d), dimension, epsilon) for d in where]
                gaussian.plot(where, deltas, color=color, linestyle=style)
    for words, style in (
        ("ball, every epsilon", "-"),
        ("Gaussian, epsilon 0", "--"),
        ("Gaussian, epsilon 1", ":"),
    ):
        gaussian.plot([], [], color="grey", linestyle=style, label=words)
    gaussian.legend(fontsize="small", loc="lower left")
    release.set(
        xlabel="distance D of the centres, R = 1",
        ylabel="delta",
        title="Delta of one release\n(1: nothing is hidden)",
    )
    gaussian.set(
        xlabel="distance D of the centres, R = 1",
        xscale="log",
        yscale="log",
        ylim=(1e-6, 1.5),
        ylabel="delta",
        title="Beside Gaussian noise\nof the same standard deviation",
    )


def _against_steps(axes: Any, steps: Table, colors: Colors) -> None:
    published = steps.where(dimension=next(iter(colors)))
    counts = published.numbers("steps")
    axes.plot(
        counts,
        published.numbers("delta_of_publishing_as_many_records"),
        color="grey",
        linestyle="-.",
        label="publishing T random records",
    )
    for dimension, color in colors.items():
        axes.plot(counts, steps.where(dimension=dimension).numbers("delta"), color=color)
    records = float(steps.only("records"))
    axes.axhline(1 / records, color="grey", linestyle=":", label="1/n: one random record")
    axes.legend(fontsize="small", loc="lower right")
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="steps T, each on one random record",
        ylabel="delta",
        title=f"Delta after T steps\n(n = {records:,.0f}, D = {float(steps.only('distance')):g})",
    )
