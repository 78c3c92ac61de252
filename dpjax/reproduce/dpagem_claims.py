"""NOT PRIVATE: what section 4.2 of the DPageEM paper says, held against the seeds' means."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from scipy.stats import t as student_t

from dpjax.reproduce.accuracies import FIELDS, Accuracies
from dpjax.reproduce.page import Claim
from dpjax.reproduce.study import Figure

# Probability with which equal means differ by so much that it is called clear.
_LUCK = 0.05


@dataclasses.dataclass(frozen=True)
class Difference:
    """Two means over seeds, the first of which is said to be above the second.

    Args:
      words: what is compared, with the means.
      value: how far it is above.
      error: standard error of that; NaN where there is one seed.
      freedom: degrees of freedom of that error, by Welch's formula.
    """

    words: str
    value: float
    error: float
    freedom: float = math.inf

    @property
    def held(self) -> bool:
        """Whether the first is above."""
        return self.value > 0

    @property
    def clear(self) -> bool:
        """Whether Student's t puts that beyond the spread, on two sides; never with one seed."""
        return abs(self.value) > float(student_t.ppf(1 - _LUCK / 2, self.freedom)) * self.error


@dataclasses.dataclass(frozen=True)
class Ordered(Claim):
    """A claim that means are ordered, and whether the seeds' spread leaves that in doubt.

    Args:
      reversed_clearly: comparisons that go the other way by more than the spread.
      held_clearly: comparisons that hold by more than the spread.
      one_seed: whether there is no spread to tell by.
    """

    reversed_clearly: int = 0
    held_clearly: int = 0
    one_seed: bool = False

    @property
    def verdict(self) -> str:
        """In words.

        >>> Ordered("", 2, 2, held_clearly=2).verdict
        'holds'
        >>> Ordered("", 1, 2, held_clearly=1).verdict
        'does not hold by the means, but within their spread'
        """
        if self.held == self.made:
            if self.one_seed:
                return "holds (one seed)"
            clear = self.held_clearly == self.made
            return "holds" if clear else "holds by the means, within their spread"
        if self.one_seed:
            return "does not hold (one seed)"
        if self.reversed_clearly:
            return "does not hold"
        return "does not hold by the means, but within their spread"


def ordered(text: str, differences: Sequence[Difference]) -> Ordered:
    """Returns the verdict on comparisons.

    Args:
      text: what is claimed.
      differences: one each comparison.
    """
    return Ordered(
        text,
        sum(one.held for one in differences),
        len(differences),
        "; ".join(f"{one.words} ({_points(one)})" for one in differences) + ".",
        sum(one.clear and not one.held for one in differences),
        sum(one.clear and one.held for one in differences),
        any(math.isnan(one.error) for one in differences),
    )


def difference(
    found: Accuracies, epsilon: float, field: str, first: str, second: str
) -> Difference:
    """Returns how far the first method's mean is above the second's, of the last iterates.

    Args:
      found: the results on one problem.
      epsilon: at which.
      field: ``"train"`` or ``"test"``.
      first: a label.
      second: a label.
    """
    a, b = (found.final(label, epsilon, field) for label in (first, second))
    words = f"{field}: {first} {100 * a.mean():.2f} %, {second} {100 * b.mean():.2f} %"
    return Difference(words, float(a.mean() - b.mean()), *_welch([a, b]))


def _welch(samples: Sequence[np.ndarray]) -> tuple[float, float]:
    """Returns the standard error of a sum of means, some negated, and its degrees of freedom."""
    if min(map(len, samples)) < 2:
        return math.nan, math.nan
    squares = [float(np.var(values, ddof=1)) / len(values) for values in samples]
    total = sum(squares)
    weights = [square**2 / (len(v) - 1) for square, v in zip(squares, samples, strict=True)]
    return math.sqrt(total), total**2 / sum(weights) if total else math.inf


def _points(one: Difference) -> str:
    spread = "" if math.isnan(one.error) else f", standard error {100 * one.error:.2f}"
    return f"{100 * one.value:+.2f} points{spread}"


_STAGE, _EARLY, _CONST = "DPageS", "DPageEM", "DP-SGD-const"
_MOMENTUM, _EARLY_CONST = "DP-SGDM-const", "DP-SGDEM-const"
_NOISELESS = "nonpri-SGD-stage"
_PRIVATE = (_STAGE, _EARLY, _CONST, "DP-SGD-c/t", "DP-SGD-c/sqrt(t)", _MOMENTUM, _EARLY_CONST)
# What is said, and the pairs of which the first is above the second.
_SAID = (
    (
        "DPageS has the best training and test accuracy of the paper's private methods.",
        tuple((_STAGE, other) for other in _PRIVATE if other != _STAGE),
    ),
    (
        "DPageEM is more accurate than DP-SGDM-const and DP-SGDEM-const.",
        ((_EARLY, _MOMENTUM), (_EARLY, _EARLY_CONST)),
    ),
    (
        "DP-SGDM-const is the worst of the methods with momentum.",
        ((_EARLY, _MOMENTUM), (_EARLY_CONST, _MOMENTUM)),
    ),
    (
        "Early momentum is less accurate than none: DPageEM than DPageS, DP-SGDEM-const than "
        "DP-SGD-const.",
        ((_STAGE, _EARLY), (_CONST, _EARLY_CONST)),
    ),
)


def claims(one: Figure, every: Sequence[Accuracies]) -> list[Claim]:
    """Returns the verdicts on one figure; of a quick run those whose methods there are."""
    if one.kind == "gap":
        return _of_gap(*every) if len(every) == 2 else []
    return [claim for found in every for e in found.epsilons[::-1] for claim in _of(found, e)]


def _of(found: Accuracies, epsilon: float) -> list[Claim]:
    said = []
    for text, pairs in _SAID:
        known = [pair for pair in pairs if set(pair) <= set(found.labels)]
        if known:
            compared = [
                difference(found, epsilon, field, *pair) for field in FIELDS for pair in known
            ]
            said.append(ordered(f"Epsilon {epsilon:g}: {text}", compared))
    recipes = [label for label in found.labels if label not in (*_PRIVATE, _NOISELESS)]
    best = max(
        (label for label in found.labels if label in _PRIVATE),
        key=lambda label: found.final(label, epsilon, "test").mean(),
        default=None,
    )
    if best is None:
        return said
    return said + [
        ordered(
            f"Epsilon {epsilon:g}, not said by the paper: the recipe {recipe} is more accurate "
            "than the best of its private methods, by test accuracy.",
            [difference(found, epsilon, field, recipe, best) for field in FIELDS],
        )
        for recipe in recipes
    ]


def _of_gap(small: Accuracies, large: Accuracies) -> list[Claim]:
    shared = [m for m in _PRIVATE if m in small.labels and m in large.labels]
    if not shared or any(_NOISELESS not in found.labels for found in (small, large)):
        return []
    compared = []
    for field in FIELDS:
        for method in shared:
            deep, shallow = (gap(found, method, field) for found in (large, small))
            words = (
                f"{field}, {method}: {100 * shallow.value:.2f} points behind on "
                f"{small.problem.where}, {100 * deep.value:.2f} on {large.problem.where}"
            )
            spread = _welch(
                [
                    found.final(label, max(found.epsilons), field)
                    for found in (large, small)
                    for label in (_NOISELESS, method)
                ]
            )
            compared.append(Difference(words, deep.value - shallow.value, *spread))
    return [
        ordered(
            f"Private training is less far behind {_NOISELESS} on {small.problem.title}, than on "
            f"{large.problem.title}, each at the epsilon of the paper's figure.",
            compared,
        )
    ]


def gap(found: Accuracies, method: str, field: str) -> Difference:
    """Returns how far a method is behind non-private training, at the paper's epsilon.

    Args:
      found: the results on one problem.
      method: its label.
      field: ``"train"`` or ``"test"``.
    """
    return difference(found, max(found.epsilons), field, _NOISELESS, method)
