"""NOT PRIVATE: pictures of escapes from a saddle, and of alpha against n beside the theory."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dpjax import plotting
from dpjax.reproduce import spider_rates
from dpjax.reproduce.escapes import Escapes, quartiles

# No two methods share a marker.
_STYLE = {
    "DP-GD": (plotting.ORANGE, "s"),
    "DP-SGD": (plotting.PINK, "D"),
    "PrGD": (plotting.GREY, "X"),
    "Spider": (plotting.BLUE, "o"),
    "Spider, fixed batches": (plotting.SKY, "h"),
    "SpiderBoost": (plotting.SKY, "P"),
    "Gauss-PSGD": (plotting.PURPLE, "v"),
    "Gauss-PSGD, tuned": (plotting.YELLOW, "*"),
    "DP-TR": (plotting.GREEN, "^"),
    "DP-STR": (plotting.GREEN, "<"),
}
_SIZE = (4.9, 4.2)
_DASHES = {"1/3": "-", "3/7": "-.", "1/2": "--", "4/7": ":"}


def plot_escapes(found: Escapes, path: str | os.PathLike) -> None:
    """Draws six panels: shares, iterations, records, gaps, gradient norms and eigenvalues.

    Args:
      found: the results.
      path: file to write; its ending fixes the format.

    Raises:
      ImportError: if matplotlib is not installed.
      ValueError: if the ending names no format.

    Privacy: NOT PRIVATE.
    """
    title = (
        f"The Welsch saddle of {found.problem.where}: n = {found.rows:,}, p = {found.dimension}, "
        f"zero_out, delta = 1/(10 n); {plotting.EXACT}\nmedian of {found.seeds} seeds, bars: "
        "quartiles; hollow: half of the seeds or more did not escape; beside each other: the same "
        "epsilon"
    )
    with plotting.panels(path, 2, 3, title, size=_SIZE) as (way, end):
        _way(way, found)
        _end(end, found)


def _way(row: Any, found: Escapes) -> None:
    share, iterations, records = row
    _against_epsilon(share, found, lambda m, e: (found.share(m, e),) * 3)
    share.set(ylim=(-0.06, 1.06), ylabel="share of seeds", title="Escaped the saddle")
    _against_epsilon(iterations, found, lambda m, e: quartiles(found.iterations(m, e)))
    iterations.set(ylabel="steps", title="Iterations until out")
    _against_epsilon(
        records, found, lambda m, e: tuple(np.array(quartiles(found.read(m, e))) / found.rows)
    )
    records.set(ylabel="records read / n", title="Records read until out")
    for axes in (iterations, records):
        _logarithmic(axes)


def _end(row: Any, found: Escapes) -> None:
    gap, norm, lowest = row
    land = found.landscapes[found.rows]
    _against_epsilon(gap, found, lambda m, e: quartiles(found.gaps(m, e)))
    gap.axhline(land["saddle"] - land["minimum"], color="grey", linestyle=":")
    gap.set(ylabel="gap", title="Final gap to the minimum (dotted: the saddle's)")
    _against_epsilon(norm, found, lambda m, e: quartiles(_drawn(found.norms(m, e))))
    norm.set(ylabel="gradient norm", title="Final gradient norm")
    norm.text(0.02, 0.03, "exactly 0 is not drawn", transform=norm.transAxes, fontsize="x-small")
    for axes in (gap, norm):
        _logarithmic(axes)
    _against_epsilon(lowest, found, lambda m, e: quartiles(found.eigenvalues(m, e)))
    for point in ("saddle", "minimum"):
        lowest.axhline(land[f"{point}_eigenvalue"], color="grey", linestyle=":")
    lowest.set(ylabel="lambda_min", title="Final lambda_min (dotted: saddle, minimum)")


def plot_rates(every: Sequence[Escapes], path: str | os.PathLike) -> None:
    """Draws alpha against n for each problem, and the bounds that theory gives.

    Args:
      every: the results, one problem each.
      path: file to write; its ending fixes the format.

    Raises:
      ImportError: if matplotlib is not installed.
      ValueError: if the ending names no format.

    Privacy: NOT PRIVATE.
    """
    title = (
        f"The least alpha for which the output is an alpha-SOSP, epsilon "
        f"{every[0].epsilons[-1]:g}, zero_out; {plotting.EXACT}\nmedian of {every[0].seeds} "
        "seeds, bars: quartiles; hollow: half of the seeds or more did not escape; grey: slopes "
        "of the theory, their height is free"
    )
    with plotting.panels(path, 1, len(every) + 1, title, size=_SIZE) as ((*panels, theory),):
        for axes, found in zip(panels, every, strict=True):
            _alphas(axes, found)
        _bounds(theory, every[0])


def _alphas(axes: Any, found: Escapes) -> None:
    epsilon, sizes = found.epsilons[-1], np.array(found.sizes)
    highest = []
    for place, label in enumerate(found.labels):
        three = [quartiles(found.alphas(label, epsilon, size)) for size in found.sizes]
        solid = [found.share(label, epsilon, size) > 0.5 for size in found.sizes]
        _points(axes, sizes * _dodge(place, len(found.labels), 0.07), three, solid, label)
        highest.append(three[0][1])
    saddle = [found.saddle_alpha(size) for size in found.sizes]
    axes.plot(sizes, saddle, color="grey", linestyle=(0, (1, 1)), linewidth=2)
    axes.annotate(
        "the saddle itself", (sizes[0], saddle[0]), textcoords="offset points", xytext=(0, -12),
        fontsize="x-small",
    )  # fmt: skip
    start = 2.5 * max(highest)
    for name, exponent in spider_rates.EXPONENTS.items():
        axes.plot(
            sizes, start * (sizes / sizes[0]) ** -exponent, color="grey", linewidth=1,
            linestyle=_DASHES[name],
        )  # fmt: skip
    plotting.places(axes, found.sizes)
    axes.set(
        yscale="log", xlabel="n", ylabel="alpha",
        title=f"{found.problem.where}, p = {found.dimension}",
    )  # fmt: skip


def _bounds(axes: Any, found: Escapes) -> None:
    epsilon, d = found.epsilons[-1], found.dimension
    at = np.geomspace(1e2, 1e8, 200)
    looks = (
        (plotting.BLUE, "-"),
        (plotting.SKY, "-"),
        (plotting.GREEN, "-"),
        (plotting.ORANGE, "-"),
    )
    names = ("Spider (1/2)", "Ganesh et al. (3/7)", "DP-TR (4/7)", "DP-GD (1/2)")
    for bound, (color, style), name in zip(spider_rates.BOUNDS, looks, names, strict=True):
        whole = spider_rates.on_population(bound)
        more = "" if bound.population else " + sqrt(d/n)"
        axes.plot(
            at, [whole(n, d, epsilon) for n in at], color=color, linestyle=style, label=name + more
        )
    for name in spider_rates.EXPONENTS:
        axes.plot([], [], color="grey", linestyle=_DASHES[name], label=f"slope {name}")
    axes.legend(fontsize="small", loc="lower left")
    axes.set(
        xscale="log", yscale="log", xlabel="n", ylabel="alpha, constants and logarithms 1",
        title=f"The bounds, on the population, d = {d}",
    )  # fmt: skip


def _against_epsilon(
    axes: Any, found: Escapes, read: Callable[[str, float], tuple[float, ...]]
) -> None:
    epsilons = np.array(found.epsilons)
    for place, label in enumerate(found.labels):
        three = [read(label, epsilon) for epsilon in found.epsilons]
        solid = [found.share(label, epsilon) > 0.5 for epsilon in found.epsilons]
        _points(axes, epsilons * _dodge(place, len(found.labels), 0.3), three, solid, label)
    plotting.places(axes, found.epsilons)
    axes.set(xlabel="epsilon")


def _points(
    axes: Any, where: np.ndarray, three: list[tuple[float, ...]], solid: list[bool], label: str
) -> None:
    """A line through medians, with bars to the quartiles; points that are infinite are left out."""
    color, marker = _STYLE[label]
    low, middle, high = (np.where(np.isfinite(v), v, np.nan) for v in np.array(three, float).T)
    # A quartile of runs that never escape has no end: the bar is drawn to the median alone.
    high = np.where(np.isnan(high), middle, high)
    axes.plot(where, middle, color=color, linewidth=1, alpha=0.6)
    axes.vlines(where, low, high, color=color, linewidth=1.5, alpha=0.7)
    for filled in (True, False):
        chosen = np.array(solid) == filled
        axes.plot(
            where[chosen],
            middle[chosen],
            **plotting.mark(color, marker, filled=filled),
            linestyle="none",
        )
    axes.plot([], [], **plotting.mark(color, marker), linewidth=1, label=label)


def _logarithmic(axes: Any) -> None:
    values = np.concatenate([line.get_ydata() for line in axes.lines])
    if (values > 0).any():
        axes.set_yscale("log")
    else:
        axes.text(0.5, 0.5, "nothing to draw", transform=axes.transAxes, ha="center")


def _dodge(place: int, many: int, width: float) -> float:
    """A factor for each method, so that points at the same place stand beside each other."""
    return float(np.exp(width * (place / max(1, many - 1) - 0.5)))


def _drawn(norms: np.ndarray) -> np.ndarray:
    return np.where(norms > 0, norms, np.inf)
