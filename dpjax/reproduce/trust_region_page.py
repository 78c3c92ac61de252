"""NOT PRIVATE: files and lines of the trust-region paper's figures, by their kind."""

import pathlib
from collections.abc import Sequence

from dpjax.reproduce import figure as pictures
from dpjax.reproduce import page, tables
from dpjax.reproduce.study import TRACED_EPSILON, Curve, Figure, Found

# Endings of the second table, by kind.
_MORE = {"accuracy": "-baselines.csv", "panels": "-time.csv"}


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
        tables.write_csv(path, [row for f in every for row in page.cost_rows(f, curves)])
        return [path]
    points, more = folder / f"{name}.csv", folder / f"{name}{_MORE[one.kind]}"
    tables.write_csv(points, [row for f in every for row in page.point_rows(f, curves)])
    if one.kind == "accuracy":
        tables.write_csv(more, page.baseline_rows(every))
    else:
        tables.write_csv(more, page.trace_rows(every[0], curves))
    return [*draw(folder, name, one), points, more]


def draw(folder: pathlib.Path, name: str, one: Figure) -> list[pathlib.Path]:
    """Draws the picture of one figure from its tables in ``folder``, and returns its path.

    Args:
      folder: where the tables are.
      name: of the figure.
      one: the figure; of the kind ``"table"`` there is no picture.

    Raises:
      FileNotFoundError: if a table is missing.
    """
    if one.kind == "table":
        return []
    picture = folder / f"{name}.png"
    points = tables.read_csv(folder / f"{name}.csv")
    more = tables.read_csv(folder / f"{name}{_MORE[one.kind]}")
    if one.kind == "accuracy":
        pictures.plot_accuracy(points, more, picture)
    else:
        pictures.plot_panels(points, more, picture)
    return [picture]


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
