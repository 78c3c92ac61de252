"""NOT PRIVATE: what a paper says, as data, and whether it is so in the results, by a test."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from benchmarks.papers.metrics import COST
from benchmarks.papers.results import Results, difference, middle
from benchmarks.papers.spec import Problem

LEVEL = 0.05
RULES = (
    f"Every verdict rests on tests at {LEVEL:.0%}, two-sided: Welch's t-test for means, "
    "Mann-Whitney's for medians, and for means where a run is infinite or no seed differs, "
    "Fisher's for shares of seeds, Student's for one sample against a number. "
    "The p-values of one verdict are corrected by Holm's method; those of different verdicts are "
    "not, so that about one in twenty of the verdicts where nothing differs is clear by chance. "
    "*Undecided* is what is not beyond chance. What has no p-value has no chance in it."
)


class Verdict(NamedTuple):
    """Whether something that is said is so."""

    word: str
    text: str
    """What is said."""
    measured: str = ""
    """The numbers that decide, in words."""

    def __str__(self) -> str:
        return f"- **{self.word}**: {self.text}" + f" {self.measured}".rstrip()


class Compared(NamedTuple):
    """One comparison of a verdict."""

    words: str
    """What was measured."""
    held: bool | np.bool_
    """Whether it is as said."""
    p: float | None = None
    """Two-sided; None for numbers without chance, NaN for a single seed, which decides nothing."""


def decided(text: str, compared: Iterable[Compared], before: str = "Measured") -> Verdict:
    """Returns the verdict of comparisons, each counted where it is beyond chance.

    >>> two = [Compared("1 against 2", True, 0.001), Compared("2 against 3", True, 0.3)]
    >>> print(decided("It is less.", two))
    - **agrees in 1 of 2, undecided in 1**: It is less. Measured 1 against 2 (p = 0.002); 2 against\
 3 (p = 0.3).
    """
    every = list(compared)
    tested = [i for i, one in enumerate(every) if one.p is not None and not math.isnan(one.p)]
    corrected = dict(zip(tested, holm([every[i].p or 0.0 for i in tested]), strict=True))
    counts, words = {"agrees": 0, "does not agree": 0, "undecided": 0}, []
    for i, one in enumerate(every):
        p = corrected.get(i, 0.0 if one.p is None else math.nan)
        counts["undecided" if not p < LEVEL else "agrees" if one.held else "does not agree"] += 1
        words.append(one.words + ("" if one.p is None else f" ({_in_words(p)})"))
    known = {word: count for word, count in counts.items() if count}
    (first, count), *rest = known.items()
    word = first if not rest else f"{first} in {count} of {len(every)}"
    word += "".join(f", {other.replace(' agree', '')} in {count}" for other, count in rest)
    told = "; ".join(filter(None, words))
    return Verdict(word, text, f"{before} {told}." if told else "")


def _in_words(p: float) -> str:
    if math.isnan(p):
        return "one run"
    return "p < 0.001" if p < 0.001 else f"p = {p:.1g}" if p < 0.1 else f"p = {p:.2g}"


def holm(p_values: Sequence[float]) -> np.ndarray:
    """Returns p-values corrected for their number, by Holm (1979).

    >>> print(holm([0.01, 0.04, 0.03]))
    [0.03 0.06 0.06]
    """
    p = np.asarray(p_values, float)
    order = np.argsort(p)
    raised = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    return np.minimum(raised[np.argsort(order)], 1.0)


# Tests of samples, one value a seed: two-sided p-values.


def welch(*samples: np.ndarray) -> float:
    """Returns the p-value of ``difference``; by ranks where a value is infinite, or none differs.

    >>> welch(np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 6.0])) > 0.2
    True
    """
    flat = np.concatenate(samples)
    if min(map(len, samples)) < 2:
        return math.nan
    if len(samples) == 2 and not (np.isfinite(flat).all() and difference(*samples).error > 0):
        return ranks(*samples)
    return difference(*samples).p_value


def ranks(first: np.ndarray, second: np.ndarray) -> float:
    """Returns the p-value of Mann and Whitney's test; infinite values are the largest."""
    if min(len(first), len(second)) < 2:
        return math.nan
    if np.unique([*first, *second]).size == 1:
        return 1.0
    return float(stats.mannwhitneyu(first, second).pvalue)


def shares(first: np.ndarray, second: np.ndarray) -> float:
    """Returns the p-value of Fisher's exact test of shares of seeds."""
    counts = [[np.sum(one > 0.5), np.sum(one <= 0.5)] for one in (first, second)]
    return float(stats.fisher_exact(counts).pvalue)  # pyright: ignore


def half(values: np.ndarray) -> float:
    """Returns the p-value of a share of seeds against one half; NaN of a single seed."""
    count = int(np.sum(values > 0.5))
    return float(stats.binomtest(count, len(values)).pvalue) if len(values) > 1 else math.nan


def against(values: np.ndarray, limit: float) -> float:
    """Returns the p-value of a mean against a number; by signs where no seed differs."""
    if len(values) < 2:
        return math.nan
    if np.ptp(values) == 0:
        return 1.0 if values[0] == limit else 2.0 ** (1 - len(values))
    return float(stats.ttest_1samp(values, limit).pvalue)  # pyright: ignore


def number(value: float | np.floating) -> str:
    """Returns a number with two significant digits.

    >>> number(0.00123), number(0.3), number(12.3), number(math.inf)
    ('0.0012', '0.3', '12', 'inf')
    """
    return f"{value:.2g}" if value == 0 or 1e-4 <= abs(value) < 100 else f"{value:.1e}"


def seeds(count: int) -> str:
    """Returns a number of seeds in words.

    >>> seeds(1), seeds(10)
    ('1 seed', '10 seeds')
    """
    return f"{count} seed{'s' * (count > 1)}"


def percent(share: float | np.floating) -> str:
    """Returns a share as a percentage.

    >>> percent(0.9051)
    '90.5 %'
    """
    return f"{100 * share:.1f} %"


class Read(NamedTuple):
    """What is compared of a metric: a number of its values over the seeds, and the test of two."""

    metric: str
    centre: Callable[[np.ndarray], float | np.floating]
    test: Callable[[np.ndarray, np.ndarray], float]

    def p_value(self, first: np.ndarray, second: np.ndarray) -> float | None:
        """Returns it; None of a cost, which is the same for all seeds."""
        return None if self.metric in COST else self.test(first, second)


def mean(metric: str) -> Read:
    """Returns what compares means."""
    return Read(metric, np.mean, welch)


def median(metric: str) -> Read:
    """Returns what compares medians; of values that are infinite in some seeds too."""
    return Read(metric, middle, ranks)


def share(metric: str) -> Read:
    """Returns what compares shares of seeds."""
    return Read(metric, np.mean, shares)


@dataclasses.dataclass(frozen=True)
class Smaller:
    """One method's number is below another's, at every epsilon of every problem."""

    text: str
    read: Read
    low: str
    high: str
    epsilons: tuple[float, ...] = ()
    ratios: bool = False
    """Whether ratios are told in place of the numbers."""
    form: Callable[[float], str] = number

    def __call__(self, results: Results, problems: Sequence[Problem]) -> list[Verdict]:
        """Returns the verdict; none where a method is missing."""
        compared = []
        for problem in problems:
            found = results.where(problem=problem.name)
            start = f"{problem.name}: " if len(problems) > 1 else ""
            for epsilon in self.epsilons or found.where(method=self.low).each("epsilon"):
                both = [found.known(self.read.metric, method=m, epsilon=epsilon)
                        for m in (self.low, self.high)]  # fmt: skip
                if not all(map(len, both)):
                    continue
                ours, theirs = map(self.read.centre, both)
                told = [
                    self.form(float(v)) if math.isfinite(v) else "never" for v in (ours, theirs)
                ]
                words = number(ours / theirs) if self.ratios else " against ".join(told)
                words = f"{start}{words} at {epsilon:g}"
                compared.append(Compared(words, ours < theirs, self.read.p_value(*both)))
                start = ""
        before = "Ratio by epsilon:" if self.ratios else "Measured"
        return [decided(self.text, compared, before)] if compared else []


def reference(found: Results, metric: str, **cells: float) -> float:
    """Returns a number of the problem itself, at the largest n unless told otherwise."""
    column = found.where(metric=metric, method="", **cells).column("value")
    return float(column[-1]) if len(column) else math.nan


def exponents(found: Results, metric: str, method: str, column: str) -> np.ndarray | None:
    """Returns by which exponent of a column a method's number grows, seed by seed.

    By least squares on logarithms; None where a number is 0 or the column has one value.
    """
    at = found.where(method=method).each(column)
    table = [found.values(metric, method=method, **{column: one}) for one in at]
    if len(at) < 2 or not all(np.isfinite(row).all() and (row > 0).all() for row in table):
        return None
    return np.polyfit(np.log(at), np.log(np.array(table)), 1)[0]
