"""NOT PRIVATE: ``Risks``, what convex methods reach and cost on one problem, as pages read it."""

import dataclasses
import math
from typing import Any

import numpy as np

from dpjax.reproduce.optimum import WIDEST
from dpjax.reproduce.study import Problem


@dataclasses.dataclass(frozen=True)
class Risks:
    """The results on one problem.

    Args:
      problem: which one.
      rows: n.
      dimension: p.
      optimum: the least value, in float64.
      slack: what the optimum may be below that, by proof.
      points: by method and epsilon, what ``measure`` returned.
    """

    problem: Problem
    rows: int
    dimension: int
    optimum: float
    slack: float
    points: dict[tuple[str, float], dict[str, Any]]

    @property
    def epsilons(self) -> tuple[float, ...]:
        """Where there are points."""
        return tuple(sorted({epsilon for _, epsilon in self.points}))

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods there are points of."""
        return tuple(dict.fromkeys(label for label, _ in self.points))

    @property
    def optimum_line(self) -> str:
        """Where the optimum comes from."""
        bounded = self.problem.objective == "logistic" and self.problem.radius is None
        among = f" of all points of norm at most {WIDEST:g}" if bounded else ""
        return (
            f"The optimum{among} is {self.optimum:.8f} (float64), proven to be the least value up "
            f"to {max(self.slack, 1e-12):.0e}."
        )

    def gaps(self, label: str, epsilon: float) -> np.ndarray:
        """Excess risk of each seed."""
        return np.array(self.points[label, epsilon]["values"]) - self.optimum

    def mean(self, label: str, epsilon: float) -> float:
        """Mean excess risk over the seeds."""
        return float(self.gaps(label, epsilon).mean())

    def error(self, label: str, epsilon: float) -> float:
        """Standard error of that mean."""
        gaps = self.gaps(label, epsilon)
        return float(gaps.std(ddof=1) / math.sqrt(len(gaps))) if len(gaps) > 1 else math.nan

    def declared(self, label: str, epsilon: float) -> float:
        """Gradient evaluations of one training, batches counted by their expected size."""
        return self.points[label, epsilon]["declared"]

    def padded(self, label: str, epsilon: float) -> float:
        """Gradient evaluations of one training that are really computed."""
        return self.points[label, epsilon]["padded"]

    def tried(self, label: str, epsilon: float) -> list[tuple[float, float]]:
        """Gradient evaluations and mean excess risk of each setting, on the seeds of the tuning."""
        tried = self.points[label, epsilon]["tried"]
        return [(one["declared"], one["value"] - self.optimum) for one in tried]

    def cheapest(self, label: str, epsilon: float, risk: float) -> float:
        """Fewest gradient evaluations, among the settings tried, of an excess risk of ``risk``.

        Infinite if none gets there.
        """
        there = [cost for cost, reached in self.tried(label, epsilon) if reached <= risk]
        if self.mean(label, epsilon) <= risk:
            there.append(self.declared(label, epsilon))
        return min(there, default=math.inf)

    def exponent(self, label: str) -> float | None:
        """Slope of the logarithm of the mean excess risk over that of epsilon, or None for one."""
        at = [e for e in self.epsilons if (label, e) in self.points]
        means = [self.mean(label, epsilon) for epsilon in at]
        if len(at) < 2 or min(means) <= 0:
            return None
        return float(np.polyfit(np.log(at), np.log(means), 1)[0])
