"""NOT PRIVATE: perturbed gradient descent (Tholeti et al. 2021): its figure, and what it says."""

import dataclasses
import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from dpjax.accounting import ball_composition, ball_delta
from dpjax.mechanisms import add_ball, seed_key
from dpjax.reproduce.page import Claim, number
from dpjax.reproduce.study import Curve, Figure, Found

TITLE = "On the Differentially Private Nature of Perturbed Gradient Descent"
REFERENCE = "Tholeti et al., 2021, figure 2 and theorem 1"
CONVENTIONS = (
    "Neighbours are replace_one, as in the paper: the distance D is that of the gradients of two "
    "records, 2 C where they are clipped at C. R = 1. No data are read: closed forms, and noise as "
    "dpjax draws it."
)
SETTINGS = (
    "The noise is uniform in the unit ball of d dimensions; a Gaussian beside it has the same "
    "standard deviation in every coordinate, 1 / sqrt(d + 2)."
)
DIMENSIONS = (1, 2, 3, 10, 22, 100)
# Steps are composed at one distance, on as many records as IJCNN1 has.
STEP_DISTANCE, RECORDS = 0.1, 35_000
_SEED = 2021
_BATCH = 10_000


@dataclasses.dataclass(frozen=True)
class DeltaFigure(Figure):
    """A figure of closed forms, which needs no problem.

    Args:
      draws: of noise in each dimension, for the check.
      points: distances in each dimension.
    """

    draws: int = 1_000_000
    points: int = 39


FIGURES = {
    "fig2": DeltaFigure(
        "delta", (), "Delta against the distance of gradients, and after T sampled steps."
    )
}
QUICK = ()


def quick(figure: DeltaFigure) -> DeltaFigure:
    """Returns the figure with few draws."""
    return dataclasses.replace(figure, draws=20_000, points=9)


def curves() -> tuple[Curve, ...]:
    """Returns nothing: no method is trained."""
    return ()


class Delta(NamedTuple):
    """One point: delta of one release, by the closed form and by drawn noise, and a Gaussian's."""

    dimension: int
    distance: float
    delta: float
    drawn: float
    """Share of draws around one centre that are outside of the other one's ball."""
    error: float
    """Standard deviation of that share."""
    gaussian: float
    """Delta at epsilon 0 of Gaussian noise of the same standard deviation."""
    gaussian_at_1: float
    """Likewise, at epsilon 1."""


@functools.lru_cache(maxsize=4)
def deltas(figure: DeltaFigure) -> tuple[Delta, ...]:
    """Returns the points, one dimension after the other.

    >>> few = dataclasses.replace(FIGURES["fig2"], draws=1_000, points=3)
    >>> [round(one.delta, 4) for one in deltas(few)[:3]]
    [0.25, 0.5, 0.75]
    """
    found = []
    for dimension in DIMENSIONS:
        squares, along = _noise(dimension, figure.draws)
        for distance in 2 * np.arange(1, figure.points + 1) / (figure.points + 1):
            exact = ball_delta(float(distance), 1.0, dimension)
            outside = squares + 2 * distance * along + distance**2 > 1
            found.append(
                Delta(
                    dimension,
                    float(distance),
                    exact,
                    float(outside.mean()),
                    math.sqrt(exact * (1 - exact) / figure.draws),
                    *(gaussian_delta(float(distance), dimension, epsilon) for epsilon in (0, 1)),
                )
            )
    return tuple(found)


def steps(dimension: int, counts: np.ndarray) -> np.ndarray:
    """Returns delta after so many steps, each on one record in ``RECORDS``.

    >>> print(steps(22, np.array([1_000, 35_000, 350_000])).round(4))
    [0.0053 0.1711 0.8468]
    """
    each = ball_delta(STEP_DISTANCE, 1.0, dimension)
    return np.array([ball_composition(each, int(count), 1 / RECORDS) for count in counts])


def claims(one: Figure, every: tuple[Found, ...]) -> list[Claim]:
    """Returns what the paper says, held against the numbers."""
    del every
    points = deltas(one) if isinstance(one, DeltaFigure) else ()
    table = np.array([[p.delta for p in points if p.dimension == d] for d in DIMENSIONS])
    # Where hardly a draw is expected to miss, one that does is no evidence.
    least = 2 / one.draws if isinstance(one, DeltaFigure) else 1.0
    off = np.array([abs(p.drawn - p.delta) / max(p.error, least) for p in points])
    first = [p for p in points if p.dimension == 1]
    up, wide = np.diff(table, axis=1) > 0, np.diff(table, axis=0) > 0
    # Beyond 1 - 1e-12 all are 1 in float64.
    wide |= table[1:] > 1 - 1e-12
    up |= table[:, 1:] > 1 - 1e-12
    near = int(np.sum(off < stats.norm.isf(5e-4 / off.size)))
    worst = number(float(off.max()))
    return [
        Claim("Equation 6 is the total variation of the noise drawn.", near, off.size,
              f"The farthest of the points is {worst} standard errors away."),
        Claim("For d = 1 delta is D / 2, that of uniform noise.",
              sum(abs(p.delta - p.distance / 2) < 1e-9 for p in first), len(first)),
        Claim("Delta grows with the dimension.", int(wide.sum()), wide.size),
        Claim("Delta grows with the distance.", int(up.sum()), up.size),
        _worth(),
    ]  # fmt: skip


def _worth() -> Claim:
    counts = np.array([1_000, RECORDS, 10 * RECORDS])
    found = steps(22, counts)
    text = ", ".join(
        f"{number(float(delta))} after T = {count:,}"
        for delta, count in zip(found, counts, strict=True)
    )
    return Claim(
        "The noise that escapes saddle points also gives privacy (held where delta is below 1/n).",
        int(np.sum(found < 1 / RECORDS)),
        len(found),
        f"With D = {STEP_DISTANCE:g}, d = 22 and n = {RECORDS:,} delta is {text}; publishing one "
        f"random record in full has {number(1 / RECORDS)}.",
    )


def gaussian_delta(distance: float, dimension: int, epsilon: float) -> float:
    """Returns delta of Gaussian noise with the standard deviation of the unit ball's.

    >>> round(gaussian_delta(0.5, 10, 0.0), 4)
    0.6135
    """
    mu = distance * math.sqrt(dimension + 2)
    tail = math.exp(epsilon) * stats.norm.cdf(-epsilon / mu - mu / 2)
    return float(stats.norm.cdf(-epsilon / mu + mu / 2) - tail)


def _noise(dimension: int, draws: int) -> tuple[np.ndarray, np.ndarray]:
    """Squared length and first coordinate of draws."""
    zero = jnp.zeros(dimension)

    @jax.jit
    @jax.vmap
    def draw(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        noise = add_ball(key, zero, 1.0)
        return jnp.sum(noise**2), noise[0]

    pieces = []
    for start in range(0, draws, _BATCH):
        key = jax.random.fold_in(jax.random.fold_in(seed_key(_SEED), dimension), start)
        pieces.append(draw(jax.random.split(key, min(_BATCH, draws - start))))
    squares, along = (np.concatenate(part).astype(float) for part in zip(*pieces, strict=True))
    return squares, along
