"""Coefficients of a linear model by name, in the units of its columns where that has a meaning."""

import dataclasses
import textwrap
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from dpjax.algorithms import ErrorBars, PopulationBars
from dpjax.datasets import Preprocessing
from dpjax.datasets.encoders import Column, Dates
from dpjax.datasets.scaling import linear_scale
from dpjax.display.cards import printable

# Names, steps and spans of coefficients, see ``Coefficients``.
_Named = tuple[tuple[str, ...], tuple[str, ...], np.ndarray]
_INTERCEPT = "intercept"
_OF_ARRAYS = "Parameters of the features of a row, as the rows were passed to the training."
_OF_NORMED = (
    "Parameters of scaled features. Each row was divided by its own norm: signs and relative sizes "
    "mean something, but no number is a change of {predicted} per unit of a column (train for "
    'inference, or with rows = "constant" in the schema, for that).'
)
_OF_COLUMNS = (
    "In {units}: what a change of the column adds to the {predicted}, within the declared bounds, "
    "to which values are clamped. The intercept is the {predicted} where numbers are 0, dates and "
    "ordered levels at the first that is declared{origin}."
)
_OF_LEVELS = ", and levels at {0}. A level is compared with {0} of its column"
_NO_BARS = (
    "they need the gradient and the Hessian of all records at the last step, as DP-TR and noisy "
    "Newton ask for them, a linear model whose loss has known derivatives, and settings that no "
    "search chose"
)
_KINDS = {
    "privacy": (
        "is about the effect of privacy noise alone: each by itself covers, with about this "
        "probability over the noise, the coefficient that minimizes the same objective on the same "
        "records without noise. The error of sampling the records is not in it: it is no "
        "confidence interval for a population. Intervals are centred at the step that the last "
        "answers alone give, undamped; the model's own coefficients may rest on earlier ones too."
    ),
    "population": (
        "covers both errors, of sampling the records and of the privacy noise: each by itself "
        "holds with about this probability the coefficient that would be found in the whole "
        "population without noise. So do standard errors, z and P>|z|. Records, or persons, must "
        "be independent."
    ),
}
_NOISE = (
    " Noise alone: without any effect, privacy noise would give a value up to this in {confidence} "
    "of trainings; a value within it, in brackets, may be noise."
)


class Summary(str):
    """Text that shows as it prints."""

    def __repr__(self) -> str:
        return str(self)


@dataclasses.dataclass(frozen=True, eq=False)
class Coefficients:
    """What a linear model multiplies its features with, in the order of the columns.

    ``Solution.coefficients`` and ``SavedSolution.coefficients`` return it. It prints as a table,
    and ``summary()`` with all that is known.

    Args:
      names: of the k coefficients: columns, levels such as ``"education=school"``, the intercept.
      per: what each is for: ``"1"``, a ``"day"``, a ``"level"`` in their order, or ``""``.
      spans: (k,) numbers of such steps in the declared range, which by coefficient times span adds
        to the prediction; 1 for a feature or a level, NaN for an intercept in units of columns.
      classes: names of K classes with a row of coefficients each; None for one row.
      values: (k,), or (K, k).
      lower: lower ends of intervals, like ``values``; or None.
      upper: upper ends.
      confidence: of each interval by itself.
      refusal: why there are no intervals, or None where there are.
      caption: what the numbers mean.
      kind: ``"population"`` for intervals that cover sampling and noise, ``"privacy"`` for those of
        noise alone, or ``""`` where nothing is known.
      errors: standard errors over samples and noise, like ``values``; or None.
      noise: what privacy noise alone gives, half the width of an interval of it, like ``values``;
        infinite where it has no bound, None where it is not known.
      penalty: of the training, in words.

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
    kind: str = ""
    errors: np.ndarray | None = None
    noise: np.ndarray | None = None
    penalty: str = ""

    @property
    def z(self) -> np.ndarray | None:
        """Values over their standard errors, or None."""
        return None if self.errors is None else self.values / self.errors

    @property
    def p_values(self) -> np.ndarray | None:
        """Of the hypothesis that a coefficient of the population is 0, two-sided; or None."""
        return None if (z := self.z) is None else 2 * ndtr(-np.abs(z))

    @property
    def within_noise(self) -> np.ndarray:
        """Whether privacy noise alone may give a value as large, like ``values``."""
        if self.noise is None:
            return np.zeros(self.values.shape, bool)
        return np.abs(self.values) <= self.noise

    @property
    def interval_caption(self) -> str:
        """What the intervals mean, or why there are none, and what noise alone and penalty do."""
        share = f"{100 * self.confidence:.3g} %"
        words = f"Each {share} interval {_KINDS.get(self.kind)}"
        if self.refusal is not None:
            what = "a population" if self.kind == "population" else "the effect of privacy noise"
            words = f"No intervals for {what}: {self.refusal}."
        if self.noise is not None:
            words += _NOISE.format(confidence=share)
        if self.penalty not in ("", "none"):
            words += (
                f" Penalty: {self.penalty}; it draws coefficients to 0, which no interval covers."
            )
        return words

    def rows(self) -> Iterator[tuple[str, str, np.ndarray, np.ndarray | None]]:
        """Yields name, ``per``, value (K,) and interval (2, K) or None of each coefficient."""
        values = np.atleast_2d(self.values)
        ends = None
        if self.lower is not None and self.upper is not None:
            ends = np.stack([np.atleast_2d(self.lower), np.atleast_2d(self.upper)])
        for at, (name, per) in enumerate(zip(self.names, self.per, strict=True)):
            yield name, per, values[:, at], None if ends is None else ends[:, :, at]

    def to_dict(self) -> dict[str, Any]:
        """Returns everything as numbers, words and lists that JSON can hold."""
        more = "z", "p_values", "within_noise", "interval_caption"
        fields = vars(self) | {name: getattr(self, name) for name in more}
        # Only a picture needs spans, to draw all coefficients on one scale.
        del fields["spans"]
        return plain(fields)

    def summary(self) -> Summary:
        """Returns a table as statsmodels lays it out, with what noise alone gives, and captions."""
        captions = self.caption, self.interval_caption
        words = [line for caption in captions for line in textwrap.wrap(caption, 100)]
        return Summary("\n".join([repr(self), "", *map(printable, words)]))

    def __repr__(self) -> str:
        level = (1 - self.confidence) / 2
        columns = {
            "coef": (self.values, ".4g"),
            "std err": (self.errors, ".3g"),
            "z": (self.z, ".3f"),
            "P>|z|": (self.p_values, ".3f"),
            f"[{level:.3g}": (self.lower, ".4g"),
            f"{1 - level:.3g}]": (self.upper, ".4g"),
            "noise alone": (self.noise, "+- .3g"),
        }
        known = {head: held for head, held in columns.items() if held[0] is not None}
        width, lines = max(9, *map(len, self.names)), []
        for at, name in enumerate(self.classes or ("",)):
            heads = "".join(f"{head:>12}" for head in known)
            lines += [*[""] * (at > 0), f"{name:{width}}{heads}", "-" * (width + len(heads))]
            for column, (label, per) in enumerate(zip(self.names, self.per, strict=True)):
                cells = []
                for numbers, form in known.values():
                    sign, _, digits = form.rpartition(" ")
                    cells.append(f"{sign} {np.atleast_2d(numbers)[at, column]:{digits}}".strip())
                if np.atleast_2d(self.within_noise)[at, column]:
                    cells[0] = f"({cells[0]})"
                line = label.ljust(width) + "".join(f"{cell:>12}" for cell in cells)
                lines.append(f"{line}  per {per}" if per not in ("", "1") else line)
        return printable("\n".join(lines)).replace("  +- inf", "no bound")


def coefficients(
    params: np.ndarray,
    preprocessing: Preprocessing | None,
    bars: ErrorBars | PopulationBars | None,
    *,
    classes: tuple[str, ...] = (),
    numeric: bool = False,
    confidence: float = 0.95,
    penalty: str = "",
) -> Coefficients:
    """Returns the coefficients of a linear model.

    ``params`` are (p,), or (K p,) for the K ``classes`` that have a score each; without a
    ``preprocessing`` training was on arrays. ``numeric`` is whether the label is a number. Of K
    classes whose rows a constant divides, log-odds are against the first.

    Privacy: post-processing.
    """
    values = np.asarray(params, np.float64)
    if preprocessing is not None and preprocessing.linear:
        named, caption, matrix, offset = _of_columns(preprocessing, classes, numeric)
        values = matrix @ values + offset
        bars = None if bars is None else bars.mapped(matrix, offset)
        classes = classes[1:]
    else:
        width = values.size // max(len(classes), 1)
        named, caption = _of_features(preprocessing, width, numeric)
    shape = (len(classes), -1) if classes else (-1,)
    kind, refusal = ("", _NO_BARS) if bars is None else (bars.kind, bars.refusal)
    lower = upper = errors = noise = None
    if bars is not None:
        noise = (float(ndtri((1 + confidence) / 2)) * bars.noise_stddev).reshape(shape)
    if bars is not None and refusal is None:
        lower, upper = (end.reshape(shape) for end in bars.intervals(confidence))
        errors = bars.stddev.reshape(shape) if kind == "population" else None
    if noise is not None and refusal is not None and "varies too little" in refusal:
        # Over the range of a column; an intercept has none.
        wide = np.nan_to_num(np.atleast_2d(noise * named[2])).max(axis=0)
        most = [named[0][at] for at in np.flatnonzero(wide >= 0.8 * wide.max())]
        refusal += f"; noise alone is widest for {', '.join(most)}"
    held = values.reshape(shape), lower, upper, confidence, refusal
    return Coefficients(*named, classes or None, *held, caption, kind, errors, noise, penalty)


def plain(value: Any) -> Any:
    """Returns arrays and tuples as lists; JSON has no number that is not finite."""
    value = value.tolist() if isinstance(value, np.ndarray) else value
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _of_features(
    preprocessing: Preprocessing | None, width: int, numeric: bool
) -> tuple[_Named, str]:
    """Names of the parameters as they are, and a caption."""
    names = () if preprocessing is None else preprocessing.features
    caption = _OF_NORMED.format(predicted="the label" if numeric else "log-odds")
    if len(names) != width:  # arrays have no names, nor have pixels
        names, caption = tuple(f"feature {at}" for at in range(width)), _OF_ARRAYS
    return (names, ("",) * width, np.ones(width)), caption


def _of_columns(
    scale: Preprocessing, classes: tuple[str, ...], numeric: bool
) -> tuple[_Named, str, np.ndarray, np.ndarray]:
    """How a prediction, in the label's units or as log-odds, changes with each column.

    Returns names, a caption, and the (k, p) matrix and (k,) offset that lead to it from parameters.
    """
    # What is linear in the columns are the rows that no norm of their own shortens.
    named, matrix = _terms(dataclasses.replace(scale, max_norm=None))
    largest = linear_scale(len(scale.encoders), scale.intercept)[1]
    # A change of 1 in the scaled label is half of its declared range.
    middle, top = scale.unscale_labels(np.array([0.0, 1.0])) if numeric else (0.0, 1.0)
    matrix = largest / min(largest, scale.max_norm or largest) * (top - middle) * matrix
    # A scaled prediction of 0 is the middle of the label's range, which the intercept holds.
    offset = np.append(np.zeros(len(matrix) - 1), middle)
    if classes:
        # Scores have a meaning as differences alone.
        against = np.eye(len(classes))[1:] - np.eye(len(classes))[0]
        matrix, offset = np.kron(against, matrix), np.tile(offset, len(classes) - 1)
    return named, _caption(scale, classes, numeric), matrix, offset


def _terms(scale: Preprocessing) -> tuple[_Named, np.ndarray]:
    """Names, and (k, p) what each column and the intercept do to a row.

    Rows are divided by a constant, so a prediction is a sum of one term for each column. Each term
    is found by encoding what the schema declares, as the records were encoded.
    """
    encoders = scale.encoders
    probes = [_probes(column) for column in encoders]
    first = [cells[:1] for cells in probes]
    # Terms are differences from here, since encoding is no linear map of cells.
    base = np.asarray(scale.encode(first), np.float64)[0]
    terms, constant = list[tuple[str, str, float, np.ndarray]](), base
    for at, (column, cells) in enumerate(zip(encoders, probes, strict=True)):
        # One column is varied, all others stay at their first cell.
        varied = [held if at == i else held.repeat(len(cells)) for i, held in enumerate(first)]
        varied[at] = cells
        steps = np.asarray(scale.encode(varied), np.float64) - base
        declared = column.declaration()
        if "levels" in declared:
            # Indicators of a column add up to 1, so only differences between levels have a meaning.
            origin, compared = steps.mean(axis=0), steps
            if "reference" in declared:
                place = declared["levels"].index(declared["reference"])
                origin, compared = steps[place], np.delete(steps, place, axis=0)
            named = zip(column.features, compared - origin, strict=True)
            terms += [(name, "", 1.0, effect) for name, effect in named]
            constant = constant + origin
            continue
        # Of ordered levels: the steps from each to the next.
        low, count, per = 0.0, len(cells) - 1.0, "level"
        if "bounds" in declared:
            low, high = column.low, column.high  # pyright: ignore[reportAttributeAccessIssue]
            count, per = high - low, "1"
            if isinstance(column, Dates):  # 0 is where the bounds begin: 1970 would mean nothing
                low, per = 0.0, "day"
        slope = steps[-1] / count
        terms.append((column.name, per, count, slope))
        constant = constant - low * slope
    # No column has a range that the intercept could span.
    names, per, spans, effects = zip(*terms, (_INTERCEPT, "", np.nan, constant), strict=True)
    return (names, per, np.array(spans)), np.stack(effects)


def _caption(scale: Preprocessing, classes: tuple[str, ...], numeric: bool) -> str:
    declared = [(column.name, column.declaration()) for column in scale.encoders]
    named = [f"{name}={held['reference']}" for name, held in declared if "reference" in held]
    compared = f"the reference ({', '.join(named)})" if named else "the mean over the levels"
    leveled = any("levels" in held for _, held in declared)
    # Of two classes the second is the positive one; arrays have -1 and 1.
    which = f"each class against {classes[0]}" if classes else (scale.classes or ("1",))[-1]
    words = _OF_COLUMNS.format(
        units="the units of the label" if numeric else f"log-odds of {which}",
        predicted="prediction" if numeric else "log-odds",
        origin=_OF_LEVELS.format(compared) if leveled else "",
    )
    norm = scale.max_norm
    return words if norm is None else f"{words} All for rows of norm up to the declared {norm:g}."


def _probes(column: Column) -> np.ndarray:
    """The cells at which a column is encoded: ends of its range, or all of its levels."""
    declared = column.declaration()
    if isinstance(column, Dates):  # as words they would have to be in the declared format
        return np.array(declared["bounds"], "datetime64[D]")
    cells = next(declared[key] for key in ("bounds", "order", "levels") if key in declared)
    # Any cell that is no level has the indicator "other".
    return np.array([*cells, *([None] if declared.get("other") else [])], object)
