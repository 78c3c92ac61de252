"""The wheel stays a light house: lines of code and templates, comments not counted, and files.

``python tests/house/test_size.py`` prints the table of today.
"""

import collections
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[2] / "dpjax"
# Room: most lines, most files. Who raises a number says behind it what was taken out for that.
MOST = {
    ".": (1497, 11),  # forest plot, orbax
    "accounting": (4343, 19),
    "algorithms": (6440, 27),  # the papers' forms, schedules, the filter of DP-TR
    "auditing": (1742, 10),
    "cli": (2433, 18),  # describe, evaluate, effects
    "comparison": (503, 3),
    "datasets": (4875, 21),  # forms of numbers and dates, rows by a constant
    "derivatives": (4672, 22),
    "diagnostics": (696, 3),
    "display": (393, 3),
    "driver": (2151, 12),
    "estimators": (955, 4),  # summaries, private bounds, weights
    "features": (164, 2),  # scattering, projections
    "linalg": (704, 5),
    "mechanisms": (1461, 8),  # wavelets of the square root
    "models": (233, 3),
    "objectives": (2250, 11),  # weights of records, rho of penalties
    "oracles": (2463, 10),
    "placement": (652, 4),
    "reporting": (1175, 9),  # what officers ask
    "results": (1999, 7),  # coefficients with intervals
    "sampling": (910, 5),
    "statistics": (830, 4),  # a first look, private bounds, evaluations
    "training": (1800, 10),
    "transforms": (1589, 8),  # the trust-region link
    "tuning": (1013, 6),
}
WHEEL = 47_943
"""All rooms together, templates among them; wavelets of Spider's noise came last."""


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
