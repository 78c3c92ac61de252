"""What there is to say of a trained model, as ``Facts`` and as one self-contained page in HTML."""

import dataclasses
import math
import os
import pathlib
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from dpjax import _durable, plotting, statistics
from dpjax._typing import Relation
from dpjax.accounting import Release
from dpjax.algorithms import Status
from dpjax.datasets import Preprocessing
from dpjax.display.cards import ceil, floor
from dpjax.reporting import frame, pictures
from dpjax.reporting.description import page_of
from dpjax.results import Coefficients, Description, SavedSolution, Solution
from dpjax.results.guarantee import COLUMNS, split_warning
from dpjax.results.remarks import ANSWERS, ENDS, answer_line, interval

_CONFIDENCE = 0.95
# From here on a factor e^epsilon is written as a power: as a number it says no more.
_LARGE = 1e6
_WITHOUT: dict[Relation, str] = {
    "zero_out": "Had any one {unit} been left out (replaced by a null record)",
    "add_or_remove_one": "Had any one {unit} been left out, or one more been added",
    "replace_one": "Had any one {unit} been replaced by another",
}
ITERATES = {"last_query": "the iterate before the last", "output": "the output"}
"""What is said of where a certificate holds."""
_EXACT = (
    "NOT FOR RELEASE: this page holds exact values of the data, which no guarantee covers. Write a "
    "page without them for a release."
)
# More coefficients would make a page that nobody reads; ``dpjax show --json`` has all of them.
_MOST = 400
# Title, note, whether logarithmic, and names of what the history holds.
_CURVES = (
    (
        "Norm of the gradient",
        "at each step; 0 at a minimum.",
        True,
        {
            "gradient_norm": "noisy gradient",
            "data_gradient_norm": "noisy gradient without the regularizer",
        },
    ),
    (
        "Length of each step",
        "in the units of the parameters.",
        True,
        {"step_norm": "step", "radius": "trust radius"},
    ),
    (
        "Multiplier of the trust region",
        "0 where the step stays inside the radius.",
        False,
        {"multiplier": "multiplier"},
    ),
)


@dataclasses.dataclass(frozen=True, eq=False)
class Facts:
    """What there is to say of one training.

    Args:
      claim: the first line of the guarantee.
      meaning: the same in plain words.
      warning: why nothing of it may be released, or nothing.
      guarantee: the whole, without the warning.
      description: what was trained.
      epsilon: spent at the declared delta.
      relation: of neighbours.
      releases: what was released, with its noise.
      steps: how many were taken.
      status: how the training ended; None if it is not known.
      answers: field of the solution -> fraction of the records that was released at the end, as
        ``"estimate"``, with ``"lower"`` and ``"upper"`` end of its 95 % interval.
      certificate: bounds on the gradient and the curvature, or None.
      remarks: what released values say against the training; none of a saved one.
      coefficients: of a linear model, or None.
      preprocessing: what was declared of the data, or None.
      classes: names of the classes that are predicted, empty for a number; None for what predicts
        nothing by itself, such as the parameters of a network.
      parameters: how many there are.
      history: of each quantity, the released values of the steps that were taken.
    """

    claim: str
    meaning: str
    warning: str
    guarantee: str
    description: Description
    epsilon: float
    relation: Relation
    releases: tuple[Release, ...]
    steps: int
    status: Status | None
    answers: dict[str, dict[str, float]]
    certificate: dict[str, Any] | None
    remarks: tuple[str, ...]
    coefficients: Coefficients | None
    preprocessing: Preprocessing | None
    classes: tuple[str, ...] | None
    parameters: int
    history: dict[str, np.ndarray]

    @property
    def title(self) -> str:
        """Algorithm and objective."""
        return f"{self.description.algorithm}, {self.description.objective}"

    @property
    def answer_lines(self) -> list[str]:
        """The answers in words."""
        n = self.description.records
        return [answer_line(field, n, numbers) for field, numbers in self.answers.items()]

    @property
    def certificate_words(self) -> str:
        """The certificate as sentences, or why there is none."""
        if self.certificate is None:
            return "This training gives no bounds on the gradient and curvature at its end."
        bounds, lower = self.certificate, self.certificate["min_eigenvalue_lower"]
        curvature = (
            f" and no eigenvalue of its Hessian is below {floor(lower)}"
            if lower is not None
            else ""
        )
        return (
            f"With probability {floor(100 * (1 - bounds['beta']))} % over the noise, at "
            f"{ITERATES[bounds['iterate']]} the exact gradient of the {bounds['scope']} has norm "
            f"at most {ceil(bounds['gradient_norm_upper'])}{curvature}. At a minimum the gradient "
            "is 0 and no eigenvalue is negative. The bounds follow from released values and the "
            "known noise."
        )


def facts_of(solution: Any) -> Facts:
    """Returns what there is to say of a solution.

    Args:
      solution: a ``Solution``, what ``load`` or ``fit`` returned.

    Raises:
      ValueError: for a batch of solutions.

    Privacy: released and public values only.
    """
    # What ``fit`` returns holds one.
    if not isinstance(solution, Solution | SavedSolution):
        solution = solution.solution
    if np.ndim(solution.steps):
        raise ValueError("report takes one solution; index a batch with jax.tree.map first.")
    warning, text = split_warning(str(solution.guarantee()))
    steps, what = int(solution.steps), solution.description
    spent: Any = solution.epsilon(what.delta)  # of one run
    saved = isinstance(solution, SavedSolution)
    history = solution.history if saved else solution.history._asdict()
    return Facts(
        claim=text.partition("\n")[0],
        meaning=_meaning(solution, what, spent, warning),
        warning=warning,
        guarantee=text,
        description=what,
        epsilon=spent,
        relation=solution.event.relation,
        releases=solution.event.releases,
        steps=steps,
        # A file may hold any integer.
        status=Status(int(solution.status)) if int(solution.status) in set(Status) else None,
        answers=dict(_answers(solution)),
        certificate=certificate_fields(solution.certificate),
        # A file has no evidence to judge a training by.
        remarks=() if saved else tuple(solution.remarks),
        coefficients=_or_none(lambda: solution.coefficients(_CONFIDENCE)),
        preprocessing=solution.preprocessing,
        classes=_or_none(lambda: solution.class_names),
        parameters=sum(map(np.size, jax.tree.leaves(solution.params))),
        # The steps that were not taken are NaN.
        history={name: np.asarray(held, np.float64)[:steps] for name, held in history.items()},
    )


def _meaning(solution: Any, what: Description, spent: float, warning: str) -> str:
    factor = f"e^{ceil(spent)}" if spent > math.log(_LARGE) else ceil(math.exp(spent))
    changed = _WITHOUT[solution.event.relation].format(unit=what.unit)
    assumed = "If the noise could be relied on: had" if warning else "Had"
    return (
        f"{changed.replace('Had', assumed, 1)}, the probability of any outcome of this training "
        f"would be at most {factor} times what it is, plus {ceil(what.delta)}, and the other way "
        "round."
    )


def _or_none(read: Callable[[], Any]) -> Any:
    """Returns what a model without it refuses: coefficients of a network, classes of arrays."""
    try:
        return read()
    except ValueError:
        return None


def _answers(solution: Any) -> Iterator[tuple[str, dict[str, float]]]:
    event = solution.event
    # Of a saved model there is no algorithm, so that its releases tell the noise.
    stddevs = {part.name: part.stddev for each in event.releases for part in each.parts()}
    for field, query in ANSWERS.items():
        value = getattr(solution, field)
        # A file may name an answer whose release it lacks.
        if value is not None and query in stddevs:
            ends = interval(value, stddevs[query], event.relation, _CONFIDENCE)
            yield field, dict(zip(ENDS, map(float, (value, *ends)), strict=True))


def certificate_fields(certificate: Any) -> dict[str, Any] | None:
    """Returns the fields of a certificate as numbers and words, of a batch as lists of numbers."""
    if certificate is None:
        return None
    # A saved one is a dictionary already.
    fields = certificate if isinstance(certificate, dict) else dataclasses.asdict(certificate)
    return {
        name: value if value is None or isinstance(value, str) else np.asarray(value).tolist()
        for name, value in fields.items()
    }


def report(
    solution: Any,
    path: str | os.PathLike,
    *,
    title: str = "",
    model: str = "model",
    exact: Mapping[str, float | None] | None = None,
    sections: Sequence[frame.Section] = (),
) -> None:
    """Writes one self-contained page in HTML: guarantee, releases, coefficients, certificate.

    It needs no network and no script, and shows light or dark, on a phone or on paper. Its pictures
    need matplotlib; without it a page has the numbers alone.

    Args:
      solution: a ``Solution``, or what ``load``, ``fit`` or ``statistics.describe`` returned.
      path: file to write or replace; it ends in .html.
      title: of the page; by default the names of algorithm and objective.
      model: the path that the commands for predictions name.
      exact: values by name that stand in a section marked NOT PRIVATE, on a page that is then not
        for release.
      sections: more of the page, below the training; what they tell of records must be covered.

    Raises:
      ValueError: for another ending, or a batch of solutions.

    Privacy: released and public values only, but for ``exact``.

    >>> import dpjax, pathlib, tempfile
    >>> data = dpjax.datasets.load("randhie")
    >>> algorithm = dpjax.dp_gradient_descent(
    ...     dpjax.objectives.logistic(), dpjax.PrivacyBudget(1.0, 1e-6),
    ...     data_size=data.size, dimension=data.dimension, steps=2)
    >>> solution = dpjax.solve(algorithm, data, key=dpjax.random_key())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "report.html")
    ...     report(solution, path)
    ...     "differentially private" in path.read_text()
    True
    """
    target = check_path(path)
    if isinstance(solution, statistics.Description):
        with _durable.replacing(target) as file:
            file.write(page_of(solution, title).encode())
        return
    facts = facts_of(solution)
    shown = {} if exact is None else {name: v for name, v in exact.items() if v is not None}
    text = _page(facts, title or facts.title, model, shown, sections)
    with _durable.replacing(target) as file:
        file.write(text.encode())


def check_path(path: str | os.PathLike) -> pathlib.Path:
    """Returns the path of a report."""
    target = pathlib.Path(path)
    if target.suffix.lower() != ".html":
        raise ValueError(f"a report must end in .html, got {str(path)!r}.")
    return target


def _page(
    facts: Facts, title: str, model: str, exact: dict[str, float], more: Sequence[frame.Section]
) -> str:
    pictured = plotting.is_available()
    held = facts.coefficients
    rows, scale = ([], "") if held is None else _coefficients(held, pictured)
    command = ["dpjax", "predict", model, "new.csv", "--out", "predictions.csv"]
    return frame.page(
        "report.html",
        "Privacy report",
        title,
        (facts.warning, _EXACT if exact else ""),
        facts=facts,
        model=model,
        exact=exact,
        numbers=list(_numbers(facts)),
        held=held,
        coefficients=rows,
        scale=scale,
        pictured=pictured,
        sections=[*_history(facts, pictured), *more],
        command=shlex.join(command),
        guarantee=unfilled(facts.guarantee),
    )


def _numbers(facts: Facts) -> Iterator[tuple[str, str]]:
    what = facts.description
    yield "epsilon", ceil(facts.epsilon)
    yield "delta", ceil(what.delta)
    yield "protected", f"one {what.unit}"
    yield "records declared", f"{what.records:,}"
    yield "algorithm", what.algorithm
    yield "objective", what.objective
    yield "steps", f"{facts.steps:,} of {what.steps:,}"
    if facts.status is not None:
        yield "status", facts.status.message.rstrip(".")
    yield "parameters", f"{facts.parameters:,}"
    for line in facts.answer_lines:
        name, _, value = line.partition(": ")
        yield name, value


def _coefficients(held: Coefficients, pictured: bool) -> tuple[list[dict[str, Any]], str]:
    """Returns rows of numbers, their intervals and pictures, and the numbers of the scale."""
    # A name has a coefficient for each class.
    shown = _MOST // len(held.classes or ("",))
    rows, effects = [], []
    for (name, per, values, ends), span in list(zip(held.rows(), held.spans, strict=True))[:shown]:
        cells = []
        for at, value in enumerate(values):
            interval = None if ends is None else ends[:, at]
            text = f"{value:+.4g}" if np.isfinite(value) else "not finite"
            between = "" if interval is None else f"{interval[0]:.4g} to {interval[1]:.4g}"
            cells.append({"value": text, "interval": between, "picture": ""})
            # Over the range of its column, so that one scale serves all of a model.
            effects.append((value * span, None if interval is None else tuple(span * interval)))
        rows.append({"name": name, "per": per, "cells": cells})
    if not (pictured and any(np.isfinite(value) for value, _ in effects)):
        return rows, ""
    drawn, scale = pictures.effects(effects)
    for cell, picture in zip((cell for row in rows for cell in row["cells"]), drawn, strict=True):
        cell["picture"] = picture
    return rows, scale


def _history(facts: Facts, pictured: bool) -> Iterator[frame.Section]:
    # One step is no curve.
    shown = list(_curves(facts)) if pictured and facts.steps > 1 else []
    if shown:
        text = ["Released values, covered by the guarantee."]
        yield frame.Section("The training, step by step", text, pictures=shown)


def _curves(facts: Facts) -> Iterator[frame.Picture]:
    history, bound = facts.history, facts.certificate
    for title, note, logarithmic, names in _CURVES:
        # The certified bound is drawn beside the curve that it is about.
        level = bound["gradient_norm_upper"] if bound and "gradient_norm" in names else None
        values = {name: history[key] for key, name in names.items() if key in history}
        keys = [(f"c{at}", name) for at, name in enumerate(values)]
        if level is not None:
            keys.append(("level", f"certified bound at the end: {level:.4g}"))
        if svg := pictures.curves(values, logarithmic, level):
            yield frame.Picture(title, note, svg, keys)


def unfilled(text: str) -> str:
    r"""Returns sentences that were filled to 100 columns as one line each, for any screen.

    >>> unfilled("x" * 99 + "\nmore\nNext.") == "x" * 99 + " more\nNext."
    True
    >>> unfilled("Released:\n  - one,\n    with its noise\n  - two")
    'Released:\n  - one, with its noise\n  - two'
    """
    # A line that ends because the next word did not fit is one sentence with the next line.
    lines, before = [""], ""
    for line in text.splitlines():
        word = line.partition(" ")[0]
        full = len(before) <= COLUMNS < len(before) + 1 + len(word)
        if line.startswith("    ") or (full and word and not before.startswith(" ")):
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
        before = line
    return "\n".join(lines[1:])
