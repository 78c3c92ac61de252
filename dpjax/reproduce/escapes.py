"""NOT PRIVATE: what was found of runs that start at a saddle, by method, epsilon and n."""

import dataclasses
from typing import Any

import numpy as np

from dpjax.reproduce.study import Problem


@dataclasses.dataclass(frozen=True)
class Escapes:
    """The results on one problem.

    Args:
      problem: which one.
      rows: n of all records.
      dimension: p.
      hessian_lipschitz: rho, in the definition of an alpha-SOSP.
      landscapes: by n, the saddle, the minimum, their eigenvalues, and the value halfway.
      points: by label, epsilon and n, what ``spider_results.measure`` returned.
    """

    problem: Problem
    rows: int
    dimension: int
    hessian_lipschitz: float
    landscapes: dict[int, dict[str, float]]
    points: dict[tuple[str, float, int], dict[str, Any]]

    @property
    def labels(self) -> tuple[str, ...]:
        """The methods."""
        return tuple(dict.fromkeys(label for label, _, _ in self.points))

    @property
    def epsilons(self) -> tuple[float, ...]:
        """Where there are points."""
        return tuple(sorted({epsilon for _, epsilon, _ in self.points}))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Each n."""
        return tuple(sorted({size for _, _, size in self.points}))

    @property
    def seeds(self) -> int:
        """Runs of each point."""
        return len(next(iter(self.points.values()))["values"])

    @property
    def optimum_line(self) -> str:
        """What the saddle and the minimum are."""
        land = self.landscapes[max(self.landscapes)]
        return (
            f"The saddle has the value {land['saddle']:.5f} and lambda_min "
            f"{land['saddle_eigenvalue']:.4f}, the minimum {land['minimum']:.5f} and "
            f"{land['minimum_eigenvalue']:.4f}; rho = {self.hessian_lipschitz:.3g}, so the saddle "
            f"itself is an alpha-SOSP for alpha = {self.saddle_alpha(max(self.landscapes)):.2g}."
        )

    def escaped(self, label: str, epsilon: float, size: int = 0) -> np.ndarray:
        """Whether each seed's output is below the value halfway."""
        return np.array(self._point(label, epsilon, size)["escaped"])

    def share(self, label: str, epsilon: float, size: int = 0) -> float:
        """Share of the seeds that escaped."""
        return float(self.escaped(label, epsilon, size).mean())

    def gaps(self, label: str, epsilon: float, size: int = 0) -> np.ndarray:
        """Gap of each seed's output to the minimum."""
        low = self.landscapes[size or self.rows]["minimum"]
        return np.array(self._point(label, epsilon, size)["values"]) - low

    def norms(self, label: str, epsilon: float, size: int = 0) -> np.ndarray:
        """Gradient norm of each seed's output."""
        return np.array(self._point(label, epsilon, size)["gradient_norms"])

    def eigenvalues(self, label: str, epsilon: float, size: int = 0) -> np.ndarray:
        """Smallest eigenvalue of the Hessian at each seed's output."""
        return np.array(self._point(label, epsilon, size)["min_eigenvalues"])

    def iterations(self, label: str, epsilon: float, size: int = 0) -> np.ndarray:
        """First iterate of each seed below the value halfway; infinite where none was."""
        return _or_never(self._point(label, epsilon, size)["first_steps"])

    def read(self, label: str, epsilon: float, size: int = 0) -> np.ndarray:
        """Records that each seed had read by then; infinite likewise."""
        return _or_never(self._point(label, epsilon, size)["first_read"])

    def alphas(self, label: str, epsilon: float, size: int = 0, of_all: bool = False) -> np.ndarray:
        """The least alpha for which each seed's output is an alpha-SOSP.

        Args:
          label: the method.
          epsilon: of the guarantee.
          size: n; 0 for all records.
          of_all: of the objective on all records, in place of those trained on.
        """
        point = self._point(label, epsilon, size)
        point = point["of_all"] if of_all else point
        return least_alpha(
            np.array(point["gradient_norms"]),
            np.array(point["min_eigenvalues"]),
            self.hessian_lipschitz,
        )

    def saddle_alpha(self, size: int) -> float:
        """The alpha for which the saddle itself is an alpha-SOSP, on ``size`` records."""
        lowest = np.array(self.landscapes[size]["saddle_eigenvalue"])
        return float(least_alpha(np.array(0.0), lowest, self.hessian_lipschitz))

    def _point(self, label: str, epsilon: float, size: int) -> dict[str, Any]:
        return self.points[label, epsilon, size or self.rows]


def least_alpha(norms: np.ndarray, lowest: np.ndarray, hessian_lipschitz: float) -> np.ndarray:
    """Returns the least alpha with |g| <= alpha and lambda_min >= -sqrt(rho alpha).

    >>> print(least_alpha(np.array([0.1, 0.1]), np.array([0.3, -0.5]), 1.0))
    [0.1  0.25]
    """
    return np.maximum(norms, np.minimum(lowest, 0) ** 2 / hessian_lipschitz)


def quartiles(values: np.ndarray) -> tuple[float, float, float]:
    """Returns the three quartiles; infinite ones are those of runs that never escaped.

    >>> quartiles(np.array([1.0, 2.0, np.inf]))
    (1.0, 2.0, inf)
    """
    # Of infinite numbers none is between two others, so no interpolation.
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75], method="nearest")
    return float(low), float(middle), float(high)


def _or_never(values: list[float | None]) -> np.ndarray:
    return np.array([np.inf if value is None else value for value in values])
