"""NOT PRIVATE: every method's colour and marker, the same in the pictures of all papers."""

import zlib
from typing import Any, NamedTuple

from dpjax import plotting
from dpjax.plotting import BLACK, BLUE, BROWN, GREEN, GREY, ORANGE, PINK, PURPLE, SKY, YELLOW


class Look(NamedTuple):
    """How a method is drawn."""

    color: str
    marker: str
    line: str = "-"


_SHADES = {100: "#440154", 22: "#443A83", 10: "#31688E", 3: "#21918C", 2: "#5EC962", 1: "#BBDF27"}
# No two methods share both, and no two of one paper share either.
_LOOKS = {
    "DP-GD": Look(ORANGE, "s"),
    "DP-SGD": Look(PINK, "D"),
    "DP-TR": Look(BLUE, "o"),
    "DP-TR, published noise, theorem 2": Look(BROWN, "X", ":"),
    "DP-STR": Look(GREEN, "^"),
    "DP-STR, published noise, corrected, theorem 4": Look(BLACK, "d", ":"),
    "DP-Adam": Look(PURPLE, "P"),
    "DP-Newton": Look(PURPLE, "v"),
    # Wang, Ye and Xu (2017).
    "DP-SVRG": Look(SKY, "h"),
    "DP-SVRG, exact anchor": Look(YELLOW, "d"),
    "DP-SVRG++": Look(BROWN, "P"),
    "DP-AccMD": Look(SKY, "*"),
    "DP-GD, theorem 6.2": Look(GREEN, "^"),
    "DP-GD, its last iterate": Look(BLUE, "o"),
    "output perturbation": Look(GREY, "X"),
    "objective perturbation": Look(BLACK, "p"),
    # Liu and Talwar (2024).
    "PrGD": Look(GREY, "d"),
    "Spider": Look(BLACK, "*"),
    "Spider, fixed batches": Look(SKY, "X"),
    "SpiderBoost": Look(YELLOW, "P"),
    "Gauss-PSGD": Look(PURPLE, "<"),
    "Gauss-PSGD, tuned": Look(BROWN, ">"),
    # Zhang et al. (2021); without noise is dashed.
    "nonpri-SGD-stage": Look(GREY, "x", "--"),
    "DPageS": Look(BLUE, "^"),
    "DPageEM": Look(ORANGE, "o"),
    "DP-SGD-const": Look(PINK, "D"),
    "DP-SGD-c/t": Look(BLACK, "v"),
    "DP-SGD-c/sqrt(t)": Look(SKY, "s"),
    "DP-SGDM-const": Look(GREEN, "<"),
    "DP-SGDEM-const": Look(YELLOW, ">"),
    "dp_adam, large batches": Look(PURPLE, "P"),
    # Tholeti et al. (2021): dark is many dimensions.
    **{f"d = {d}": Look(color, "") for d, color in _SHADES.items()},
    "publishing random records": Look(GREY, "", "-."),
}
_COLORS = (BLUE, ORANGE, GREEN, PINK, SKY, YELLOW, PURPLE, GREY, BLACK, BROWN)
_MARKERS = "osD^vP*XdhpH<>"


def look(label: str) -> Look:
    """Returns the look of a curve: that of its method, dashed where its noise is as published.

    A method of your own has a look of its own.

    >>> look("DP-TR, dpjax") == look("dp-tr"), look("DP-TR, published noise").line
    (True, '--')
    """
    known = {name.casefold(): one for name, one in _LOOKS.items()}
    number = zlib.crc32(label.encode())
    other = Look(_COLORS[number % len(_COLORS)], _MARKERS[number % len(_MARKERS)])
    found = _LOOKS.get(label) or known.get(label.split(",")[0].casefold(), other)
    return found._replace(line="--") if published(label) and label not in _LOOKS else found


def published(label: str) -> bool:
    """Returns whether a curve's noise is the formula of its paper, perhaps corrected."""
    return ", published noise" in label


def mark(label: str, size: float = 6.0, filled: bool = True) -> dict[str, Any]:
    """Returns what ``plot`` is given for the marker of a curve; see ``plotting.mark``.

    A hollow marker is larger and hides nothing: what is at the same place is seen in it.
    """
    color, marker, _ = look(label)
    filled = filled and not published(label)
    found = plotting.mark(color, marker, size if filled else 1.4 * size, filled)
    return found if filled else found | {"markerfacecolor": "none"}
