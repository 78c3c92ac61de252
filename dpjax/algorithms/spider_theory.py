"""Theory of Stochastic Spider: batch size and drift for a target, and the smallest target."""

import math
from typing import NamedTuple

from dpjax import _validate


class Scale(NamedTuple):
    """The constants of a problem, and how loud the noise is that hides one record of it.

    Args:
      lipschitz: G.
      smoothness: M.
      initial_gap: B, bound on F(x_0) - min F.
      noise: norm of the noise on an estimate, for increments that a record moves by 1.
    """

    lipschitz: float
    smoothness: float
    initial_gap: float
    noise: float

    def batch(self, alpha: float) -> float:
        """Returns b at which noise and sampling each move a gradient by alpha (lemma 3.8)."""
        g = self.lipschitz
        return g * self.noise / alpha + (g / alpha) ** 2

    def drift(self, alpha: float) -> float:
        """Returns kappa (theorem 3.11)."""
        product = self.initial_gap * self.lipschitz * self.smoothness
        return max(alpha * self.noise, product ** (1 / 3))

    def records(self, alpha: float) -> float:
        """Returns how many records are read until an alpha-SOSP is met (lemma 3.9)."""
        steepness = self.initial_gap * self.smoothness
        kappa = self.drift(alpha)
        fresh = self.batch(alpha) * steepness / (kappa * alpha)
        return fresh + steepness * (self.noise / alpha**2 + kappa / alpha**3 + 1 / alpha**2)


def reachable(scale: Scale, data_size: int) -> float:
    """Returns the least alpha whose ``records`` are at most ``data_size``.

    The paper's bounds hold up to constants and logarithms; here they are taken as 1.

    Args:
      scale: of the problem.
      data_size: records there are to read.

    Reference: Liu and Talwar (2024), lemmas 3.8 to 3.10.

    >>> scale = Scale(1.0, 1.0, 1.0, 20.0)
    >>> reachable(scale, 10**4) > reachable(scale, 10**6)
    True
    """
    low, high = 1e-12, 1e12
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if scale.records(middle) <= data_size else (middle, high)
    return high


def target(scale: Scale, data_size: int, alpha: float | None) -> float:
    """Returns alpha, by default the least that the records reach.

    Raises:
      ValueError: for a target below that, saying which can be reached.
    """
    least = reachable(scale, data_size)
    if alpha is None:
        return least
    if _validate.normal("alpha", alpha) < least:
        raise ValueError(
            f"alpha={alpha:g} is out of reach with {data_size:,} records: at this budget they "
            f"suffice for alpha={least:.3g} (up to constants that the theory does not give); "
            "choose that, raise epsilon, or collect more."
        )
    return float(alpha)
