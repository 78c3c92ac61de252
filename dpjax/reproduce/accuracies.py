"""NOT PRIVATE: what was found of networks: accuracies by method, epsilon, iteration and seed."""

import dataclasses
from typing import Any

import numpy as np

from dpjax.reproduce.study import Problem

FIELDS = ("train", "test")


@dataclasses.dataclass(frozen=True)
class Accuracies:
    """The results on one problem.

    Args:
      problem: which one.
      title: what the images are, in words.
      rows: n.
      counted: training and test records that accuracy is measured on, the first of each.
      dimension: number of parameters.
      points: by label and epsilon, what ``dpagem_results.results`` gathered: ``iterations``,
        ``train`` and ``test`` (a list a seed, of exact accuracies), ``batch_size``, ``epsilon`` of
        the noise and ``noise_multiplier`` (None where there is none), ``step_size``, and ``tried``,
        pairs of a step size and what it reached.
      budgets: by epsilon, what the paper's own noise would give; see ``dpagem_results.published``.
    """

    problem: Problem
    title: str
    rows: int
    counted: tuple[int, int]
    dimension: int
    points: dict[tuple[str, float], dict[str, Any]]
    budgets: list[dict[str, Any]]

    @property
    def labels(self) -> tuple[str, ...]:
        """The methods."""
        return tuple(dict.fromkeys(label for label, _ in self.points))

    @property
    def epsilons(self) -> tuple[float, ...]:
        """Where there are points."""
        return tuple(sorted({epsilon for _, epsilon in self.points}))

    @property
    def seeds(self) -> int:
        """Runs of each point."""
        return len(next(iter(self.points.values()))["test"])

    @property
    def optimum_line(self) -> str:
        """What was trained on and looked at."""
        few = "" if self.seeds > 1 else ", so that nothing is known of the spread"
        train, test = self.counted
        return (
            f"{self.title}. Accuracy is of the first {train:,} training and {test:,} test images. "
            f"Seeds: {self.seeds}{few}."
        )

    def path(self, label: str, epsilon: float, field: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns iterations, and the (seeds, iterations) accuracies after them.

        Args:
          label: of the method.
          epsilon: of its budget.
          field: ``"train"`` or ``"test"``.
        """
        point = self.points[label, epsilon]
        return np.array(point["iterations"]), np.array(point[field])

    def final(self, label: str, epsilon: float, field: str) -> np.ndarray:
        """Returns the accuracy of each seed's last iterate."""
        return self.path(label, epsilon, field)[1][:, -1]
