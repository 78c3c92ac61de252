"""The gallery's pictures, drawn again from its tables: a stranger sees what is compared."""

import itertools
import pathlib
import re

import matplotlib.colors
import matplotlib.figure
import numpy as np
import pytest
from matplotlib.text import Text

from benchmarks.papers import PAPERS, figures, looks, results
from dpjax import plotting

GALLERY = pathlib.Path(__file__).parents[2] / "gallery"
PICTURES = [(path.parent.name, path.stem) for path in sorted(GALLERY.glob("*/*.png"))]
COMPARED = [name for name, paper in PAPERS.items() if paper.methods]


@pytest.fixture(scope="module", params=PICTURES, ids="/".join)
def picture(request):
    """Name of the paper, and the figure that its tables in the gallery give."""
    name, figure = request.param
    tables = [GALLERY / name / f"{table}.csv" for table in (name, figure)]
    found = results.read(next(table for table in tables if table.exists()))
    shown, saved = PAPERS[name].figures[figure], []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matplotlib.figure.Figure, "savefig", lambda one, *_, **__: saved.append(one))
        figures.draw(shown.picture, shown.problems, found, f"{figure}.png")
    return name, saved[0]


def panels(figure):
    return [axes for axes in figure.axes if axes.has_data()]


def in_view(axes, line):
    (left, right), (low, high) = sorted(axes.get_xlim()), sorted(axes.get_ylim())
    x, y = np.reshape(line.get_xydata(), (-1, 2)).astype(float).T
    return bool(((left <= x) & (x <= right) & (low <= y) & (y <= high)).any())


def test_every_picture_of_the_gallery_can_be_drawn_again(picture):
    name, figure = picture
    assert figure._suptitle.get_text().strip()
    # The perturbed paper's figure is of closed forms: it has no data.
    assert ("NOT PRIVATE" in figure._suptitle.get_text()) == (name != "perturbed")
    for axes in panels(figure):
        assert axes.get_title().strip() and axes.get_xlabel().strip() and axes.get_ylabel().strip()


def hidden(axes):
    """The markers that a filled one of another curve, drawn later, covers wholly."""
    drawn = []  # curve, centre and radius in points
    for line in (one for one in axes.lines if one.get_marker() in [*looks._MARKERS, "x"]):
        places = line.get_transform().transform(np.reshape(line.get_xydata(), (-1, 2)))
        drawn += [(line, at * 72 / axes.figure.dpi, line.get_markersize() / 2) for at in places]
    for (line, at, radius), (later, other, larger) in itertools.combinations(drawn, 2):
        covers = later is not line and later.get_markerfacecolor() != "none"
        if covers and np.hypot(*(other - at)) <= larger - radius + 0.3:
            yield line.get_label(), later.get_label()


def test_no_marker_is_hidden_by_another(picture):
    _, figure = picture
    figure.canvas.draw()
    assert [pair for axes in panels(figure) for pair in hidden(axes)] == []


def test_bars_are_announced_where_there_are_several_seeds(picture):
    title = picture[1]._suptitle.get_text()
    assert bool(re.search(r"\d\d? seeds, ba", title)) == ("bars" in title or "band" in title)
    assert not re.search(r"1 seed, ba", title)


def test_every_labelled_curve_is_in_view(picture):
    for axes in panels(picture[1]):
        for line in axes.lines:
            # A key of the legend has no data.
            if not line.get_label().startswith("_") and len(line.get_xdata()):
                assert in_view(axes, line), line.get_label()


def test_no_axis_stretches_over_more_than_what_it_shows(picture):
    name, figure = picture
    for axes in panels(figure):
        if axes.get_yscale() == "log":
            low, high = sorted(axes.get_ylim())
            assert np.log10(high / low) < DECADES[name], axes.get_title()


# One method that diverged made it 8 in the convex paper's. Others do span more: gaps over time
# from the start to the optimum, and closed forms.
DECADES = {"erm": 4, "spider": 5, "dpagem": 2, "trust-region": 6, "perturbed": 6.5}


def test_bands_hide_no_line(picture):
    for axes in panels(picture[1]):
        for band in axes.collections:
            if type(band).__name__ != "LineCollection":
                assert band.get_facecolor()[:, 3].max() <= 0.1 or band.get_zorder() <= 0


def test_names_beside_the_lines_do_not_overlap(picture):
    figure = picture[1]
    figure.canvas.draw()
    for axes in panels(figure):
        boxes = [Text.get_window_extent(one) for one in axes.texts if one.get_text()]
        for one, other in itertools.combinations(boxes, 2):
            assert not one.shrunk(0.9, 0.8).overlaps(other.shrunk(0.9, 0.8))


# The looks of methods.


@pytest.mark.parametrize("name", COMPARED)
def test_no_two_methods_of_a_paper_share_a_colour_or_a_marker(name):
    curves = PAPERS[name].methods
    for one, other in itertools.combinations(curves, 2):
        first, second = looks.look(one.label), looks.look(other.label)
        if name == "trust-region" and one.label.split(",")[0] == other.label.split(",")[0]:
            # One method with two noises, of which the published one is dashed.
            assert first.line != second.line
        elif not apart(one.label, other.label):
            assert first.color != second.color, (one.label, other.label)
            assert first.marker != second.marker, (one.label, other.label)


# Section 6 has a picture of its own.
ON_THE_BALL = {"DP-GD", "DP-SGD", "DP-AccMD", "DP-Frank-Wolfe"}
SECTION_6 = {"DP-GD, theorem 6.2", "DP-GD, theorem 6.3", "DP-GD, its last iterate"}


def apart(one, other):
    """Whether two methods are never in one picture, as those of different tables."""
    tables = {one, other} == {"DP-SVRG", "DP-AccMD"} or f"{one}, added ridge" == other
    # The l1 ball's table has the first, and of those that look like it none.
    tables = tables or (one == "DP-Frank-Wolfe" and other not in ON_THE_BALL)
    tables = tables or (other == "DP-Frank-Wolfe" and one not in ON_THE_BALL)
    return tables or (one in SECTION_6) != (other in SECTION_6)


def test_a_method_looks_the_same_in_all_papers():
    compared = [label for label in looks._LOOKS if looks.look(label).marker]
    assert len({looks.look(label)[:2] for label in compared}) == len(compared) - len(SAME)
    for first, second in SAME:
        assert looks.look(first) == looks.look(second)


# Two papers' names of one method, and what is never in one picture.
SAME = [
    ("DP-SGD", "DP-SGD-const"),
    ("DP-Adam", "dp_adam, large batches"),
    ("DP-STR", "DP-GD, theorem 6.2"),
    ("DP-TR", "DP-GD, its last iterate"),
]


@pytest.mark.parametrize("matrix", ["deuteranopia", "protanopia"])
def test_the_colours_stay_apart_for_colour_blind_readers(matrix):
    """Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB."""
    every = {name: _seen(_linear(getattr(plotting, name)), matrix) for name in COLOURS}
    for one, other in itertools.combinations(COLOURS, 2):
        assert np.linalg.norm(every[one] - every[other]) > 0.12, (one, other)
    # Planted: two that differ only where such readers see nothing.
    blind = np.linalg.svd(np.array(MACHADO[matrix]))[2][-1]
    two = [_seen(0.3 + sign * 0.15 * blind, matrix) for sign in (1, -1)]
    assert np.linalg.norm(two[0] - two[1]) < 0.12


COLOURS = ("BLUE", "ORANGE", "GREEN", "PINK", "SKY", "YELLOW", "PURPLE", "GREY", "BLACK", "BROWN")
MACHADO = {
    "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
}


def _linear(color):
    rgb = np.array(matplotlib.colors.to_rgb(color))
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def _seen(linear, matrix):
    return np.clip(np.array(MACHADO[matrix]) @ linear, 0, 1) ** (1 / 2.2)
