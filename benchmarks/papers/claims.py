"""NOT PRIVATE: what a paper says, as data, and whether it is so in the results."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.papers.results import Results, difference
from benchmarks.papers.spec import Problem

Read = Callable[[Results, str, float], float]
"""From the rows of one problem, a method and an epsilon to a number."""


class Verdict(NamedTuple):
    """Whether something that is said is so."""

    word: str
    text: str
    """What is said."""
    measured: str = ""
    """The numbers that decide, in words."""

    def __str__(self) -> str:
        return f"- **{self.word}**: {self.text}" + f" {self.measured}".rstrip()


def counted(text: str, held: Iterable[bool | np.bool_], measured: str = "") -> Verdict:
    """Returns the verdict where several comparisons are made.

    >>> counted("So it is.", [True, False]).word, counted("So it is.", [False]).word
    ('agrees in 1 of 2', 'does not agree')
    """
    every = [bool(one) for one in held]
    some = f"agrees in {sum(every)} of {len(every)}" if any(every) else "does not agree"
    return Verdict("agrees" if all(every) else some, text, measured)


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


def mean(metric: str) -> Read:
    """Returns what reads the mean over the seeds."""
    return lambda found, method, epsilon: found.mean(metric, method=method, epsilon=epsilon)


def median(metric: str) -> Read:
    """Returns what reads the median over the seeds."""
    return lambda found, method, epsilon: found.median(metric, method=method, epsilon=epsilon)


@dataclasses.dataclass(frozen=True)
class Smaller:
    """One method's number is below another's, at every epsilon of every problem."""

    text: str
    read: Read
    low: str
    high: str
    or_equal: bool = False
    limit: float = 1.0
    """How many times the other's it may be."""
    epsilons: tuple[float, ...] = ()
    ratios: bool = False
    """Whether ratios are told in place of the numbers."""
    form: Callable[[float], str] = number

    def __call__(self, results: Results, problems: Sequence[Problem]) -> list[Verdict]:
        """Returns the verdict; none where a method is missing."""
        held, words = [], []
        for problem in problems:
            found = results.where(problem=problem.name)
            if not {self.low, self.high} <= set(found.each("method")):
                continue
            told = []
            for epsilon in self.epsilons or found.where(method=self.low).each("epsilon"):
                ours, theirs = (self.read(found, m, epsilon) for m in (self.low, self.high))
                if math.isnan(ours) or math.isnan(theirs):
                    continue
                known = [self.form(v) if math.isfinite(v) else "never" for v in (ours, theirs)]
                pair = " against ".join(known)
                told.append(f"{number(ours / theirs) if self.ratios else pair} at {epsilon:g}")
                equal = (self.or_equal or self.ratios) and ours == self.limit * theirs
                held.append(ours < self.limit * theirs or equal)
            start = f"{problem.name}: " if len(problems) > 1 else ""
            words.append(start + ", ".join(told))
        start = "Ratio by epsilon:" if self.ratios else "Measured"
        return [counted(self.text, held, f"{start} {'; '.join(words)}.")] if held else []


def reference(found: Results, metric: str, **cells: float) -> float:
    """Returns a number of the problem itself, at the largest n unless told otherwise."""
    column = found.where(metric=metric, method="", **cells).column("value")
    return float(column[-1]) if len(column) else math.nan


def power(x: Sequence[float], y: Sequence[float] | np.ndarray) -> np.ndarray:
    """Returns the exponents of x by which columns of y grow: least squares on logarithms."""
    return np.polyfit(np.log(x), np.log(y), 1)[0]


def exponent(found: Results, metric: str, method: str) -> float | None:
    """Returns the exponent of epsilon by which a mean grows; None for one epsilon."""
    at = found.where(method=method).each("epsilon")
    means = [found.mean(metric, method=method, epsilon=epsilon) for epsilon in at]
    return None if len(at) < 2 or min(means) <= 0 else float(power(at, means))


def slope(found: Results, metric: str, method: str) -> tuple[float, float, float] | None:
    """Returns how fast a method's number falls with n: 0.5 is n^(-1/2).

    Of the medians over seeds, and the quantiles 0.1 and 0.9 of the slopes of single seeds; None
    where a number is 0 or there is one n.
    """
    sizes = found.where(method=method).each("rows")
    table = np.array([found.values(metric, method=method, rows=size) for size in sizes])
    if len(sizes) < 2 or not (np.isfinite(table).all() and (table > 0).all()):
        return None
    low, high = np.quantile(-power(sizes, table), [0.1, 0.9])
    return -float(power(sizes, np.median(table, axis=1))), float(low), float(high)


def ordered(text: str, compared: Mapping[str, Sequence[np.ndarray]]) -> Verdict:
    """Returns the verdict on means that are each said to be above another, as their seeds spread.

    Each difference of samples, as ``results.difference`` takes them, is held against its standard
    error by Welch's t-test at 5 %.

    >>> ordered("a is more than b.", {"a, b": (np.array([3.0, 3.1]), np.array([1.0, 1.1]))}).word
    'holds'
    """
    found = [difference(*samples) for samples in compared.values()]
    words = []
    for what, d in zip(compared, found, strict=True):
        spread = "" if math.isnan(d.error) else f", standard error {100 * d.error:.2f}"
        words.append(f"{what} ({100 * d.value:+.2f} points{spread})")
    above = all(d.value > 0 for d in found)
    word = "holds" if above else "does not hold"
    if any(math.isnan(d.error) for d in found):
        word += " (one seed)"
    elif above:
        word += "" if all(d.clear() for d in found) else " by the means, within their spread"
    elif not any(d.clear() and d.value <= 0 for d in found):
        word += " by the means, but within their spread"
    return Verdict(word, text, "; ".join(words) + ".")
