"""What all pictures share: panels, one legend, ticks."""

import pathlib
import struct

import jax
import numpy as np
import pytest

import dpjax
from dpjax import plotting
from dpjax.algorithms import PopulationBars
from dpjax.datasets import Preprocessing
from dpjax.datasets.encoders import Numeric
from dpjax.results.coefficients import coefficients


def size(path: pathlib.Path) -> tuple[int, int]:
    return struct.unpack(">II", path.read_bytes()[16:24])


def draw(path, title="Title", **more):
    with plotting.panels(path, 1, 3, title, **more) as ((one, two, three),):
        one.plot([1, 2], [3, 4], label="first")
        two.plot([1, 2], [3, 4], label="second")
        two.plot([1, 2], [3, 4], label="first")
    return one.figure, one, three


def test_one_legend_serves_all_panels_and_empty_ones_are_left_out(tmp_path):
    figure, one, empty = draw(tmp_path / "one.png")
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["first", "second"]
    assert one.axison and not empty.axison
    inside, one, _ = draw(tmp_path / "two.png", legend="inside")
    assert not inside.legends and one.get_legend() is not None


def test_a_picture_grows_by_its_legend_and_its_title(tmp_path):
    for name, more in {
        "inside": {"legend": "inside"},
        "below": {},
        "right": {"legend": "right"},
        "long": {"title": "many words " * 40},
    }.items():
        draw(tmp_path / f"{name}.png", **more)
    sizes = {path.stem: size(path) for path in tmp_path.iterdir()}
    assert sizes["right"][0] > sizes["below"][0] == sizes["inside"][0] == sizes["long"][0]
    assert sizes["long"][1] > sizes["below"][1] > sizes["inside"][1] == sizes["right"][1]


def test_a_long_title_stays_within_the_picture(tmp_path):
    figure, *_ = draw(tmp_path / "long.png", "n = 201,900 and many more words " * 20 + "\nsecond")
    figure.canvas.draw()
    extent = figure._suptitle.get_window_extent()
    assert extent.x0 >= 0 and extent.x1 <= figure.bbox.width
    assert figure._suptitle.get_text().splitlines()[-1] == "second"


def test_what_fails_while_it_is_drawn_leaves_no_file(tmp_path):
    path = tmp_path / "one.png"
    with pytest.raises(RuntimeError, match="half way"), plotting.panels(path, 1, 1, "Title"):
        raise RuntimeError("half way")
    assert not path.exists()


def test_an_ending_without_a_format_is_refused_before_anything_is_drawn(tmp_path):
    with (
        pytest.raises(ValueError, match="must end in one of"),
        plotting.panels(tmp_path / "picture.doc", 1, 1, "Title"),
    ):
        pytest.fail("drawn")


def test_ticks_are_the_values_and_shares_are_per_cent(tmp_path):
    with plotting.panels(tmp_path / "one.png", 1, 1, "Title") as ((axes,),):
        plotting.band(axes, np.array([0.5, 4000]), np.ones(2), (np.zeros(2), np.ones(2)), "black")
        plotting.places(axes, [0.5, 4000])
        plotting.percent(axes.yaxis)
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0.5", "4,000"]
    assert axes.yaxis.get_major_formatter()(0.125, 0) == "12.5 %"


def test_a_hollow_mark_is_white_and_a_star_is_larger():
    assert plotting.mark(plotting.BLUE, "o", filled=False)["markerfacecolor"] == "white"
    assert plotting.mark(plotting.BLUE, "*", 6)["markersize"] == 9


def test_no_two_colours_are_alike():
    names = ("BLUE", "ORANGE", "GREEN", "PINK", "SKY", "YELLOW", "PURPLE", "GREY", "BLACK", "BROWN")
    assert len({getattr(plotting, name) for name in names}) == len(names)


def test_a_curve_out_of_view_is_said_to_be_so(tmp_path):
    with plotting.panels(tmp_path / "one.png", 1, 2, "Title") as ((one, two),):
        one.plot([1, 2], [3, 4], label="seen")
        one.plot([1, 2], [30, 40], label="above")
        one.plot([1, 2], [50, 60], label="only here out of view")
        two.plot([1, 2], [50, 60], label="only here out of view")
        one.plot([], [], label="a key")
        one.set_ylim(0, 10)
    (legend,) = one.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "seen",
        "above (out of view)",
        "only here out of view",
        "a key",
    ]
    with plotting.panels(tmp_path / "two.png", 1, 1, "Title", legend="inside") as ((axes,),):
        axes.plot([1, 2], [30, 40], label="above")
        axes.plot([1, 2], [3, 4])
        axes.set_ylim(0, 10)
    (text,) = axes.get_legend().get_texts()
    assert text.get_text() == "above (out of view)"


@pytest.mark.ci
def test_titles_say_what_is_shown(tmp_path, pictures):
    data = dpjax.datasets.load("randhie")
    algorithm = dpjax.dp_trust_region(
        dpjax.objectives.logistic_nonconvex(),
        dpjax.PrivacyBudget(1.0, 1e-6),
        data_size=data.size,
        dimension=data.dimension,
        steps=3,
    )
    solution = dpjax.solve(algorithm, data.examples, key=jax.random.key(0))
    plotting.plot_solution(solution, tmp_path / "run.png", "Title")
    assert [axes.get_title() for axes in pictures["run"].axes] == [
        "Gradient norm\n(0 at a stationary point)",
        "Length of each step\n(at most the trust radius)",
        "Trust-region multiplier\n(0 when the step stays inside the radius)",
    ]


def test_a_norm_without_the_regularizer_is_named_so(tmp_path, pictures):
    data, budget = dpjax.datasets.load("randhie"), dpjax.PrivacyBudget(1.0, 1e-6)
    sizes = {"data_size": data.size, "dimension": data.dimension, "steps": 3}
    algorithm = dpjax.dp_gradient_descent(dpjax.objectives.logistic_l1(), budget, **sizes)
    solution = dpjax.solve(algorithm, data.examples, key=jax.random.key(0))
    plotting.plot_solution(solution, tmp_path / "proximal.png", "Title")
    _, labels = pictures["proximal"].axes[0].get_legend_handles_labels()
    assert labels == ["noisy gradient norm, without the regularizer"]


@pytest.mark.parametrize("classes", [(), ("a", "b", "c")])
@pytest.mark.parametrize("strength", [3.0, 0.3])
def test_a_forest_plot_has_points_intervals_and_the_noise(classes, strength, tmp_path, pictures):
    scale = Preprocessing(tuple(Numeric(f"x{i}", 0, 10) for i in range(70)), True, constant=True)
    p = 71 * max(len(classes), 1)
    values, noise = np.linspace(-3, 3, p), np.eye(p)
    # One column is of bounds so wide that nothing is known of it.
    values[5], noise[5, 5] = 500.0, 1e6
    bars = PopulationBars(values, 2 * noise, noise, strength, 0.0, True)
    held = coefficients(values, scale, bars, classes=classes)
    plotting.plot_coefficients(held, tmp_path / "forest.png", "Title")
    (axes,) = pictures["forest"].axes
    drawn = 60 * max(len(classes) - 1, 1)
    assert len(axes.patches) == drawn and axes.get_yticklabels()[0].get_text().startswith("x0")
    assert "10 more columns are not shown" in axes.get_xlabel()
    # Wide bounds of one leave room for the others.
    assert axes.get_xlim()[1] < 1_000
    covers = "95 % interval, sampling and privacy noise" if strength > 1 else "no interval"
    assert any(covers in label for label in axes.get_legend_handles_labels()[1])
    assert size(tmp_path / "forest.png")[0] < 600  # of a phone
