"""Errors of a distinguishing test, and exact bounds on error rates; NOT PRIVATE."""

from typing import NamedTuple

import numpy as np
from scipy import stats

from dpjax import _validate


class Counts(NamedTuple):
    """Errors of one test, counted on runs independent of its threshold."""

    false_positives: np.ndarray | int
    """Runs on D that were taken for D'."""
    negatives: int
    """Runs on D."""
    false_negatives: np.ndarray | int
    """Runs on D' that were taken for D."""
    positives: int
    """Runs on D'."""

    def rates(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the measured false positive and false negative rates."""
        return (
            np.asarray(self.false_positives) / self.negatives,
            np.asarray(self.false_negatives) / self.positives,
        )

    def upper_rates(self, level: float) -> tuple[np.ndarray, np.ndarray]:
        """Returns bounds that hold for both true rates at once, except with probability level."""
        # Half of the level each, by the union bound.
        return (
            upper_rate(self.false_positives, self.negatives, level / 2),
            upper_rate(self.false_negatives, self.positives, level / 2),
        )


def upper_rate(count: np.ndarray | int, runs: int, level: np.ndarray | float) -> np.ndarray:
    """Returns Clopper and Pearson's (1934) upper bound on a probability, in (0, 1].

    ``count`` occurred in so many independent ``runs``, 1 or more; ``level``, between 0 and 1 and of
    any shape that goes with ``count``, is the probability that the bound is too low, at most.
    """
    if not np.all((np.asarray(level) > 0) & (np.asarray(level) < 1)):
        raise ValueError(f"level must be strictly between 0 and 1, got {level!r}.")
    runs = _validate.positive_int("runs", runs)
    count = np.asarray(count)
    # A count of all runs has the bound 1; there the quantile is not defined.
    bound = stats.beta.isf(level, count + 1, np.maximum(runs - count, 1))
    return np.where(count >= runs, 1.0, bound)


def clopper_pearson_delta(counts: Counts, level: float) -> float:
    """Returns a lower bound on delta at epsilon 0 that assumes nothing: 1 - a - b, both bounded.

    The errors are at a threshold fixed beforehand; with probability ``level`` at most the bound is
    above the true delta.

    >>> round(clopper_pearson_delta(Counts(0, 10_000, 7_000, 10_000), 1e-3), 3)
    0.284
    """
    false_positive, false_negative = counts.upper_rates(level)
    return max(0.0, float(1 - false_positive - false_negative))


def count_errors(scores: np.ndarray, other: np.ndarray, thresholds: np.ndarray | float) -> Counts:
    """Returns the errors of the test that decides for D' above a threshold.

    Of the scores (m,) of runs on D and those (n,) on D'; the counts have the shape of
    ``thresholds``.
    """
    on_d, on_other = np.sort(scores), np.sort(other)
    # Above is strict: a score at the threshold decides for D.
    called = on_d.size - np.searchsorted(on_d, thresholds, side="right")
    missed = np.searchsorted(on_other, thresholds, side="right")
    return Counts(called, on_d.size, missed, on_other.size)
