"""Discretisation of a privacy loss that is monotone along a line.

Mass between two grid points is divided among them such that the mass under both distributions is
kept ("connect the dots"), which dominates the true pair.

Reference: Doroshenko et al., "Connect the dots: tighter discrete approximations of privacy loss
distributions" (2022).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import special

from dpjax.accounting.grids import Loss

REACH = 9.5
"""Mass beyond this many standard deviations is 1e-21, and counts as an infinite loss."""


class Cells(NamedTuple):
    """Masses of the two distributions where the loss is between neighbouring grid points."""

    low: int
    upper: np.ndarray
    lower: np.ndarray
    below: tuple[float, ...]
    above: tuple[float, ...]

    def flipped(self) -> "Cells":
        """The same with the two distributions exchanged: every loss changes its sign."""
        return Cells(
            -(self.low + len(self.upper)),
            self.lower[::-1],
            self.upper[::-1],
            self.above[::-1],
            self.below[::-1],
        )


def cut(
    loss: Callable[[np.ndarray], np.ndarray],
    point: Callable[[np.ndarray], np.ndarray],
    upper: list[tuple[float, float]],
    lower: list[tuple[float, float]],
    mu: float,
    gap: float,
    positive: bool = False,
) -> Cells:
    """Cuts the line at the points where the loss, which rises with x, is on the grid.

    A point that is off by so little that its loss errs by h shifts mass of order h whose losses err
    by h: what the profile loses is of order h^2.

    Args:
      loss: x -> loss.
      point: its inverse, of any losses.
      upper: weights and means of the normal mixture whose loss it is.
      lower: the same of the other one.
      mu: largest mean.
      gap: distance of the grid points.
      positive: leaves out what is below 0.
    """
    bottom = min(mean for _, mean in lower)
    first, last = loss(np.array([bottom - REACH, mu + REACH])) / gap
    low = 0 if positive else int(np.floor(first))
    high = max(int(np.ceil(last)), low + 1)
    x = point(np.arange(low, high + 1) * gap)

    def masses(
        mixture: list[tuple[float, float]], left: np.ndarray, right: np.ndarray
    ) -> np.ndarray:
        total = np.zeros(left.shape)
        for weight, mean in mixture:
            a, b = left - mean, right - mean
            # Differences of the smaller tail keep their digits.
            total = total + weight * np.where(
                a > 0, special.ndtr(-a) - special.ndtr(-b), special.ndtr(b) - special.ndtr(a)
            )
        return total

    ends = np.array([-np.inf]), x[:1], x[-1:], np.array([np.inf])
    below, above = (
        (float(masses(upper, *pair)[0]), float(masses(lower, *pair)[0]))
        for pair in (ends[:2], ends[2:])
    )
    return Cells(low, masses(upper, x[:-1], x[1:]), masses(lower, x[:-1], x[1:]), below, above)


def dots(cells: Cells, gap: float, atom: float = 0.0) -> Loss:
    """Returns the loss on the grid points; ``atom`` is the mass where it is 0 on a whole cell."""
    left = (cells.low + np.arange(len(cells.upper))) * gap
    with np.errstate(over="ignore", invalid="ignore"):
        up = (cells.upper - cells.lower * np.exp(left)) / -np.expm1(-gap)
    # Where the other distribution has no mass left the loss is rounded up.
    up = np.where(np.isfinite(up), np.clip(up, 0, cells.upper), cells.upper)
    probabilities = np.append(cells.upper - up, 0.0)
    probabilities[1:] += up
    probabilities[0] += cells.below[0]
    if atom:
        probabilities[-cells.low] += atom
    return Loss(gap, cells.low, probabilities, cells.above[0])
