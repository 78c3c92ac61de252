"""Coefficients of a linear model by name, in the units of its columns where that has a meaning."""

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from dpjax.algorithms import ErrorBars
from dpjax.datasets import Preprocessing
from dpjax.display.cards import printable

_INTERCEPT = "intercept"
_OF_ARRAYS = "Parameters of the features of a row, as the rows were passed to the training."
_OF_NORMED = (
    "Parameters of scaled features. Each row was divided by its own norm: signs and relative sizes "
    "mean something, but no number is a change of {predicted} per unit of a column."
)
_OF_COLUMNS = (
    "In the units of the label: what a change of the column adds to the prediction, within the "
    "declared bounds, to which values are clamped. A level is compared with the mean over the "
    "levels of its column. The intercept is the prediction where numbers are 0, dates and ordered "
    "levels at the first that is declared, and levels at their mean."
)
_NO_BARS = (
    "they need the gradient and the Hessian of all records at the last step, as DP-TR asks for "
    "them, a linear model whose loss has known derivatives, and settings that no search chose"
)


@dataclasses.dataclass(frozen=True, eq=False)
class Coefficients:
    """What a linear model multiplies its features with, in the order of the columns.

    ``Solution.coefficients`` and ``SavedSolution.coefficients`` return it. It prints as a table.

    Args:
      names: of the k coefficients: columns, levels such as ``"education=school"``, the intercept.
      per: what each is for: ``"1"``, a ``"day"``, a ``"level"`` in their order, or ``""``.
      spans: number of such steps in the declared range of the column, 1 for a feature or a level,
        and NaN for an intercept in the units of the label: coefficient times span is what the
        whole range of the column does to the prediction. (k,)
      classes: names of K classes with a row of coefficients each; None for one row.
      values: (k,), or (K, k).
      lower: lower ends of intervals for the effect of privacy noise, like ``values``; or None.
      upper: upper ends.
      confidence: of each interval by itself, over the noise.
      refusal: why there are no intervals, or None where there are.
      caption: what the numbers mean.

    Privacy: post-processing of released parameters.
    """

    names: tuple[str, ...]
    per: tuple[str, ...]
    spans: np.ndarray
    classes: tuple[str, ...] | None
    values: np.ndarray
    lower: np.ndarray | None
    upper: np.ndarray | None
    confidence: float
    refusal: str | None
    caption: str

    @property
    def interval_caption(self) -> str:
        """What the intervals mean, or why there are none; one or two sentences."""
        if self.refusal is not None:
            return f"No intervals for the effect of privacy noise: {self.refusal}."
        return (
            f"Each {100 * self.confidence:.3g} % interval is about the effect of privacy noise "
            "alone: each by itself covers, with about this probability over the noise, the "
            "coefficient that minimizes the same objective on the same records without noise. The "
            "error of sampling the records is not in it: it is no confidence interval for a "
            "population. Intervals are centred at the last step without damping; the model's own "
            "coefficients were damped."
        )

    def rows(self) -> Iterator[tuple[str, str, np.ndarray, np.ndarray | None]]:
        """Yields name, ``per``, value (K,) and interval (2, K) or None of each coefficient."""
        values = np.atleast_2d(self.values)
        ends = None
        if self.lower is not None and self.upper is not None:
            ends = np.stack([np.atleast_2d(self.lower), np.atleast_2d(self.upper)])
        for at, (name, per) in enumerate(zip(self.names, self.per, strict=True)):
            yield name, per, values[:, at], None if ends is None else ends[:, :, at]

    def __repr__(self) -> str:
        width = max(map(len, self.names), default=0)
        lines = []
        if self.classes is not None:
            lines.append(" ".join(["".ljust(width), *(f"{name:>30}" for name in self.classes)]))
        for name, per, values, ends in self.rows():
            cells = []
            for at, value in enumerate(values):
                interval = "" if ends is None else f"[{ends[0, at]:.4g}, {ends[1, at]:.4g}]"
                cells.append(f"{value:>+10.4g} {interval:20}".rstrip().ljust(30))
            step = f"per {per}" if per else ""
            lines.append(f"{name:{width}} {' '.join(cells)} {step}".rstrip())
        return printable("\n".join(lines))


class _Scale(NamedTuple):
    """How k coefficients follow from the p parameters, and what they are called.

    A matrix of None leaves the parameters as they are.
    """

    names: tuple[str, ...]
    per: tuple[str, ...]
    spans: np.ndarray
    caption: str
    matrix: np.ndarray | None = None
    offset: np.ndarray | None = None


def coefficients(
    params: np.ndarray,
    preprocessing: Preprocessing | None,
    bars: ErrorBars | None,
    *,
    classes: tuple[str, ...] = (),
    numeric: bool = False,
    confidence: float = 0.95,
) -> Coefficients:
    """Returns the coefficients of a linear model.

    ``params`` are (p,), or (K p,) for the K ``classes`` that have a score each; without a
    ``preprocessing`` training was on arrays. ``numeric`` is whether the label is a number.

    Privacy: post-processing.

    >>> from dpjax.datasets.encoders import Numeric
    >>> coefficients(np.array([0.5, -2.0]), Preprocessing((Numeric("age", 0, 9),), True), None)
    age             +0.5
    intercept         -2
    """
    values = np.asarray(params, np.float64)
    if preprocessing is not None and preprocessing.label_bounds is not None and numeric:
        scale = _of_columns(preprocessing)
    else:
        scale = _of_features(preprocessing, values.size // max(len(classes), 1), numeric)
    if scale.matrix is not None and scale.offset is not None:
        values = scale.matrix @ values + scale.offset
        bars = None if bars is None else bars.mapped(scale.matrix, scale.offset)
    shape = (len(classes), -1) if classes else (-1,)
    refusal = _NO_BARS if bars is None else bars.refusal
    lower = upper = None
    if bars is not None and refusal is None:
        lower, upper = (end.reshape(shape) for end in bars.intervals(confidence))
    named, ends = (scale.names, scale.per, scale.spans, classes or None), (lower, upper)
    return Coefficients(*named, values.reshape(shape), *ends, confidence, refusal, scale.caption)


def _of_features(preprocessing: Preprocessing | None, width: int, numeric: bool) -> _Scale:
    """The parameters as they are."""
    names = () if preprocessing is None else preprocessing.features
    caption = _OF_NORMED.format(predicted="the label" if numeric else "log-odds")
    if len(names) != width:  # arrays have no names, nor have pixels
        names, caption = tuple(f"feature {at}" for at in range(width)), _OF_ARRAYS
    return _Scale(names, ("",) * width, np.ones(width), caption)


def _of_columns(scale: Preprocessing) -> _Scale:
    """How a prediction in the label's units changes with each column.

    Rows are divided by a constant, so a prediction is a sum of one term for each column. Each term
    is found by encoding what the schema declares, as the records were encoded.
    """
    encoders = scale.encoders
    probes = [_probes(column.declaration()) for column in encoders]
    first = [cells[:1] for cells in probes]
    # Terms are differences from here, since encoding is no linear map of cells.
    base = np.asarray(scale.encode(first), np.float64)[0]
    names: list[str] = []
    per: list[str] = []
    spans: list[float] = []
    effects, constant = [], base
    for at, (column, cells) in enumerate(zip(encoders, probes, strict=True)):
        # One column is varied, all others stay at their first cell.
        varied = [held if at == i else held.repeat(len(cells)) for i, held in enumerate(first)]
        varied[at] = cells
        steps = np.asarray(scale.encode(varied), np.float64) - base
        declared = column.declaration()
        if "levels" in declared:
            # Indicators of a column add up to 1, so only differences between levels have a meaning.
            mean = steps.mean(axis=0)
            names += column.features
            per += [""] * len(cells)
            spans += [1.0] * len(cells)
            effects += list(steps - mean)
            constant = constant + mean
            continue
        # Of ordered levels: the steps from each to the next.
        low, count = 0.0, len(cells) - 1.0
        if "bounds" in declared:
            low, high = column.low, column.high  # pyright: ignore[reportAttributeAccessIssue]
            count = high - low
        is_date = "bounds" in declared and not column.numeric
        slope = steps[-1] / count
        names.append(column.name)
        per.append("day" if is_date else "1" if "bounds" in declared else "level")
        spans.append(count)
        effects.append(slope)
        # Of a date 0 is where its bounds begin: 1970 would mean nothing.
        if not is_date:
            constant = constant - low * slope
    # A change of 1 in the scaled label is half of its declared range.
    middle, top = scale.unscale_labels(np.array([0.0, 1.0]))
    matrix = (top - middle) * np.stack([*effects, constant])
    # A scaled prediction of 0 is the middle of the label's range, which the intercept holds.
    offset = np.append(np.zeros(len(effects)), middle)
    # No column has a range that the intercept could span.
    spans.append(np.nan)
    return _Scale((*names, _INTERCEPT), (*per, ""), np.array(spans), _OF_COLUMNS, matrix, offset)


def _probes(declared: dict) -> np.ndarray:
    """The cells at which a column is encoded: ends of its range, or all of its levels."""
    cells = next(declared[key] for key in ("bounds", "order", "levels") if key in declared)
    # Any cell that is no level has the indicator "other".
    return np.array([*cells, *([None] if declared.get("other") else [])], object)
