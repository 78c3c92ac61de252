"""Names stand beside their lines, and what diverged squashes no other."""

import numpy as np
import pytest

from benchmarks.papers.axes import in_view, name_ends
from dpjax import plotting


def test_names_stand_at_the_ends_of_their_lines_and_apart(tmp_path):
    with plotting.panels(tmp_path / "one.png", 1, 1, "Title", legend="none") as ((axes,),):
        axes.set(xlim=(0, 1), ylim=(0.1, 1000), yscale="log")
        ends = {"low": 1.0, "high": 100.0, "twin": 100.1, "out": 1e9}
        name_ends(axes, {name: (y, "black") for name, y in ends.items()})
    at = {text.get_text(): text.get_position()[1] for text in axes.texts}
    assert at["low"] == pytest.approx(0.25)
    assert at["low"] < at["high"] < at["twin"] < at["out"] <= 1
    assert at["twin"] - at["high"] > 0.03
    assert (at["twin"] + at["high"]) / 2 == pytest.approx(0.75, abs=0.01)


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([1.0, 2.0, 3.0], [True] * 3),
        ([1.0, 2.0, 200.0], [True, True, False]),
        ([500.0, 1.0, 2.0, 3.0, 400.0], [False, True, True, True, False]),
        # Most of them stand apart from one that is better: they are what is shown.
        ([1.0, 200.0, 300.0], [True] * 3),
        ([1.0, 20.0, 400.0, 8_000.0, 160_000.0], [True, True, True, True, False]),
        ([5.0], [True]),
    ],
)
def test_what_diverged_is_out_of_view(values, shown):
    assert in_view(np.array(values)).tolist() == shown
