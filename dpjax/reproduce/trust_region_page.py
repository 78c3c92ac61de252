"""NOT PRIVATE: files and lines of the trust-region paper's figures, by their kind."""

import pathlib
from collections.abc import Sequence

from dpjax.reproduce import figure as pictures
from dpjax.reproduce import page
from dpjax.reproduce.study import TRACED_EPSILON, Curve, Figure, Found


def files(
    folder: pathlib.Path,
    name: str,
    one: Figure,
    every: Sequence[Found],
    curves: Sequence[Curve],
) -> list[pathlib.Path]:
    """Writes the picture and the tables of one figure, and returns their paths.

    Args:
      folder: where to.
      name: of the figure.
      one: the figure.
      every: the results on its problems.
      curves: the methods.
    """
    if one.kind == "table":
        path = folder / f"{name}.csv"
        page.write_csv(path, [row for f in every for row in page.cost_rows(f, curves)])
        return [path]
    picture, points = folder / f"{name}.png", folder / f"{name}.csv"
    page.write_csv(points, [row for f in every for row in page.point_rows(f, curves)])
    if one.kind == "accuracy":
        pictures.plot_accuracy(tuple(every), tuple(curves), picture)
        return [picture, points]
    pictures.plot_panels(every[0], tuple(curves), picture)
    times = folder / f"{name}-time.csv"
    page.write_csv(times, page.trace_rows(every[0], curves))
    return [picture, points, times]


def lines(one: Figure, every: Sequence[Found], curves: Sequence[Curve]) -> list[str]:
    """Returns the tables of one figure as lines of Markdown."""
    if one.kind == "table":
        return page.table([row for f in every for row in page.cost_rows(f, curves)])
    text = []
    for found in every:
        if one.kind == "accuracy":
            text += [f"Mean accuracy, {found.problem.title}:", ""]
            text += [*page.table(page.mean_rows(found, curves, "accuracies")), ""]
        else:
            for field, words in (("gaps", "gap"), ("norms", "gradient norm")):
                text += [f"Mean {words}:", ""]
                text += [*page.table(page.mean_rows(found, curves, field)), ""]
            text += [f"At epsilon {TRACED_EPSILON:g}:", ""]
            text += [*page.table(page.cost_rows(found, curves)), ""]
    return text
