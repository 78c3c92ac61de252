"""NOT PRIVATE: the page of a reproduction and the rows of its tables, all from the results."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from dpjax.reproduce.study import TRACED_EPSILON, Curve, Found


@dataclasses.dataclass(frozen=True)
class Claim:
    """Something a paper says, and in how many of the comparisons made here it is so.

    Args:
      text: what it says.
      held: comparisons in which it is so.
      made: comparisons made.
      detail: the numbers that decide, in words.
    """

    text: str
    held: int
    made: int
    detail: str = ""

    @property
    def verdict(self) -> str:
        """In words.

        >>> Claim("", 4, 4).verdict, Claim("", 1, 4).verdict, Claim("", 0, 4).verdict
        ('agrees', 'agrees in 1 of 4', 'does not agree')
        """
        if self.held == self.made:
            return "agrees"
        return f"agrees in {self.held} of {self.made}" if self.held else "does not agree"


def point_rows(found: Found, curves: Sequence[Curve]) -> list[dict[str, object]]:
    """Returns one row for each curve, epsilon and seed, as ``tables.write_csv`` takes them."""
    rows = []
    for curve in curves:
        for epsilon in found.epsilons:
            point = found.points[curve.label, epsilon]
            gaps = found.gaps(curve.label, epsilon)
            local = found.local_gaps(curve.label, epsilon)
            local = np.full(len(gaps), np.nan) if local is None else local
            for seed, gap in enumerate(gaps):
                rows.append(
                    {
                        "data": found.problem.data,
                        "n": found.rows,
                        "p": found.dimension,
                        "objective": found.problem.objective,
                        "curve": curve.label,
                        "epsilon": epsilon,
                        "epsilon_of_the_noise": f"{point['epsilon']:.6g}",
                        "seed": seed,
                        "exact_gap": f"{gap:.6g}",
                        "exact_gap_to_local_minimum": ""
                        if np.isnan(local[seed])
                        else f"{local[seed]:.6g}",
                        "exact_gradient_norm": f"{point['gradient_norms'][seed]:.6g}",
                        "exact_accuracy": f"{point['accuracies'][seed]:.6g}",
                        "steps": point["steps"],
                        "passes": f"{point['passes']:.6g}",
                    }
                )
    return rows


def trace_rows(found: Found, curves: Sequence[Curve]) -> list[dict[str, object]]:
    """Returns one row for each curve, recorded step and seed, at ``TRACED_EPSILON``."""
    rows = []
    for curve in curves:
        trace = found.trace(curve.label)
        if trace is None:
            continue
        for step, seconds, gaps in zip(*trace, strict=True):
            for seed, gap in enumerate(gaps):
                rows.append(
                    {
                        "data": found.problem.data,
                        "objective": found.problem.objective,
                        "curve": curve.label,
                        "epsilon": TRACED_EPSILON,
                        "seed": seed,
                        "step": int(step),
                        "seconds": f"{seconds:.6g}",
                        "exact_gap": f"{gap:.6g}",
                    }
                )
    return rows


def baseline_rows(every: Sequence[Found]) -> list[dict[str, object]]:
    """Returns the accuracies that need no private training, one row a problem."""
    return [
        {
            "data": found.problem.data,
            "objective": found.problem.objective,
            "measured_on": "test set" if found.tested else "training set",
            "exact_accuracy_of_the_optimum": f"{found.accuracy:.6g}",
            "exact_share_of_the_larger_class": f"{found.majority:.6g}",
        }
        for found in every
    ]


def cost_rows(found: Found, curves: Sequence[Curve]) -> list[dict[str, object]]:
    """Returns what each curve costs and reaches at ``TRACED_EPSILON``, one row a curve."""
    rows = []
    for curve in curves:
        point = found.points[curve.label, TRACED_EPSILON]
        trace = found.trace(curve.label)
        local = found.local_gaps(curve.label, TRACED_EPSILON)
        rows.append(
            {
                "data": found.problem.data,
                "n": found.rows,
                "p": found.dimension,
                "objective": found.problem.objective,
                "curve": curve.label,
                "steps": point["steps"],
                "passes": f"{point['passes']:.3g}",
                "seconds": "" if trace is None else f"{trace[1][-1]:.3g}",
                "exact gap": number(np.nanmean(found.gaps(curve.label, TRACED_EPSILON))),
                "exact gap to local minimum": "" if local is None else number(np.nanmean(local)),
                "exact gradient norm": number(np.nanmean(found.norms(curve.label, TRACED_EPSILON))),
            }
        )
    return rows


def table(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """Returns the rows as lines of a Markdown table.

    >>> table([{"a": 1, "b": "x"}])
    ['| a | b |', '|---|---|', '| 1 | x |']
    """
    head = list(rows[0])
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return lines + [f"| {' | '.join(str(row[name]) for name in head)} |" for row in rows]


def mean_rows(found: Found, curves: Sequence[Curve], field: str) -> list[dict[str, str]]:
    """Returns the mean over seeds by curve and epsilon.

    Args:
      found: the results on one problem.
      curves: the rows.
      field: ``"gaps"``, ``"norms"`` or ``"accuracies"``.
    """
    form = percent if field == "accuracies" else number
    return [
        {"": curve.label}
        | {
            f"epsilon {epsilon:g}": form(np.nanmean(getattr(found, field)(curve.label, epsilon)))
            for epsilon in found.epsilons
        }
        for curve in curves
    ]


def claim_lines(claims: Iterable[Claim]) -> list[str]:
    """Returns one line of Markdown a claim."""
    return [
        f"- **{claim.verdict}**: {claim.text}" + (f" {claim.detail}" if claim.detail else "")
        for claim in claims
    ]


def number(value: float | np.floating) -> str:
    """Returns a number with two significant digits.

    >>> number(0.00123), number(0.3), number(12.3)
    ('0.0012', '0.3', '12')
    """
    return f"{value:.2g}" if 1e-4 <= abs(value) < 100 else f"{value:.1e}"


def percent(share: float | np.floating) -> str:
    """Returns a share as a percentage.

    >>> percent(0.9051)
    '90.5 %'
    """
    return f"{100 * share:.1f} %"
