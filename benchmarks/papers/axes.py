"""NOT PRIVATE: names at the ends of lines, and what diverged out of view, on matplotlib's axes."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.optimize import isotonic_regression

# Inches that the title of the axes and the labels of x take of a panel's height, and that a name
# takes.
_AROUND, _NAME = 0.9, 0.17


def name_ends(axes: Any, ends: Mapping[str, tuple[float, str]]) -> None:
    """Writes the names of lines at the right edge, in the order in which the lines end there.

    Names that would overlap are moved apart, and a thin line leads from each to its end.

    Limits and scales of the axes must be final; of an end out of view, ``ends`` has the nearest
    edge.
    """
    height = axes.get_figure().get_figheight() / axes.get_subplotspec().get_gridspec().nrows
    apart = _NAME / max(height - _AROUND, 1.0)
    to_axes = axes.transScale + axes.transLimits
    at = {
        name: float(np.clip(to_axes.transform((axes.get_xlim()[1], y))[1], 0, 1))
        for name, (y, _) in ends.items()
    }
    order = sorted(at, key=at.__getitem__)
    places = _moved_apart(np.array([at[name] for name in order]), apart)
    for name, place in zip(order, places, strict=True):
        color = ends[name][1]
        axes.annotate(
            name, (1.0, at[name]), (1.05, place), xycoords="axes fraction", color=color,
            fontsize="small", va="center", annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": color, "linewidth": 0.6, "shrinkB": 0,
                        "relpos": (0, 0.5)},
        )  # fmt: skip


def _moved_apart(places: np.ndarray, apart: float) -> np.ndarray:
    """Growing places, moved as little as can be to be ``apart``, and not above 1."""
    steps = apart * np.arange(len(places))
    moved = steps + isotonic_regression(places - steps).x
    return np.minimum(moved, 1.0 - steps[::-1])


def apart(axes: Any, x: np.ndarray, y: np.ndarray, points: float = 9.0) -> np.ndarray:
    """Returns x, moved to the right where a marker would hide another; limits must be final."""
    at = axes.transData.transform(np.column_stack([x, y]))
    least = points * axes.get_figure().dpi / 72
    for i in np.argsort(x, kind="stable"):
        others = np.delete(at, i, axis=0)
        while (np.hypot(*(others - at[i]).T) < least).any():
            at[i, 0] += 1
    return axes.transData.inverted().transform(at)[:, 0]


def in_view(values: np.ndarray, decades: float = 4.0, gap: float = 30.0) -> np.ndarray:
    """Returns which of some positive values a logarithmic axis should show.

    What diverged would squash all others: left out are those that are more than ``decades`` above
    the least, and at most half of all where these are ``gap`` times as large as the next.

    Args:
      values: positive and finite.
      decades: that the axis spans at most.
      gap: ratio from which on values stand apart.

    >>> in_view(np.array([1e-6, 60.0, 1e-4])).tolist()
    [True, False, True]
    """
    ordered = np.sort(values)
    half = (len(values) - 1) // 2
    apart = np.flatnonzero(ordered[half + 1 :] > gap * ordered[half:-1])
    most = ordered[half + apart[0]] if len(apart) else ordered[-1]
    return values <= min(most, 10**decades * ordered[0])


def point_beyond(axes: Any, where: float, text: str, marker: Mapping[str, Any]) -> None:
    """Draws a marker under the upper edge with an arrow out of the panel, for a value above it.

    ``text``, beside it, says whose value it is, and the value; the marker is from ``mark``.
    """
    both = axes.get_xaxis_transform()
    axes.plot([where], [0.9], transform=both, linestyle="none", clip_on=False, **marker)
    axes.annotate(
        "", (where, 1.0), (where, 0.91), xycoords=both, textcoords=both,
        arrowprops={"arrowstyle": "-|>", "color": marker["color"]},
    )  # fmt: skip
    left = axes.transScale.transform((where, 1))[0] < np.mean(axes.viewLim.intervalx)
    axes.annotate(
        text, (where, 0.9), (9 if left else -9, 0), xycoords=both, textcoords="offset points",
        ha="left" if left else "right", va="center", fontsize="x-small", color=marker["color"],
    )  # fmt: skip
