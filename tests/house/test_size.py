"""The wheel stays a light house: lines of code and templates, comments not counted, and files.

``python tests/house/test_size.py`` prints the table of today.
"""

import collections
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[2] / "dpjax"
# Room: most lines, most files. Who raises a number says behind it what was taken out for that.
MOST = {
    ".": (1487, 11),  # late imports, +24; forest plot, +66; statistics, +1
    "accounting": (4023, 17),  # a Gaussian's epsilon, +17
    "algorithms": (5538, 23),  # noisy Newton for inference, +272; histograms, private bounds, +78
    "auditing": (1824, 10),  # covariance, norms, +15
    "cli": (2427, 18),  # programs that are kept, +57; --inference, +67; private bounds, +120
    "comparison": (462, 3),  # in place of experiments' 2235, 12
    "datasets": (4836, 21),  # rows by a constant, +86; private bounds, +80; what is declared, +5
    "derivatives": (4257, 22),  # gradients of units times themselves, +53
    "diagnostics": (694, 3),
    "display": (348, 3),  # `ceil` and `floor`; a Ctrl-C that was dropped is raised
    "driver": (2084, 12),  # epsilon so far, +19; class weights, +5
    "estimators": (926, 4),  # private bounds, +46; the wheel lost 2,700
    "linalg": (704, 5),
    "mechanisms": (1431, 8),
    "models": (103, 2),
    "objectives": (2038, 9),  # penalties that spare the intercept, +92
    "oracles": (2221, 9),  # covariance of gradients, +187; histograms, +47
    "placement": (652, 4),
    "reporting": (1147, 9),  # pages share a frame, +106; what officers ask, +224
    "results": (1963, 7),  # plot, +9; summaries of coefficients, +161; author, clip norms, +50
    "sampling": (899, 5),
    "statistics": (830, 4),  # evaluations, +255; a first look, bounds found privately
    "training": (1269, 7),  # losses by name, +35
    "transforms": (1490, 7),
    "tuning": (1013, 6),
}
WHEEL = 44_666
"""All rooms together, 780 lines of templates among them: raised once, for tables (issue 38)."""


def sizes():
    """Lines and files of each room; those at the top are one room."""
    found = collections.defaultdict(lambda: (0, 0))
    for path in ROOT.rglob("*"):
        if path.suffix not in (".py", ".txt", ".html", ".css"):
            continue
        room = path.relative_to(ROOT).parts[0] if path.parent != ROOT else "."
        text, code = path.read_text().splitlines(), path.suffix == ".py"
        lines, files = found[room]
        count = sum(not (code and line.lstrip().startswith("#")) for line in text)
        found[room] = lines + count, files + 1
    return dict(sorted(found.items()))


@pytest.mark.parametrize("room", sizes())
def test_a_room_has_no_more_lines_and_files_than_its_number(room):
    (lines, files), (most, most_files) = sizes()[room], MOST[room]
    assert lines <= most and files <= most_files, "take out as much, or say behind the number what"


def test_the_wheel_does_not_grow():
    assert sum(most for most, _ in MOST.values()) <= WHEEL, "a room grows where another shrinks"


def test_every_room_has_a_number():
    assert set(MOST) == set(sizes())


if __name__ == "__main__":
    for room, size in sizes().items():
        print(f"    {room!r}: {size},".replace("'", '"'))
    print("    #", *(f"{sum(every):,}" for every in zip(*sizes().values(), strict=True)))
