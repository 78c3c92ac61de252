"""What there is to say of a trained model, as ``Facts`` and as fields of JSON."""

import contextlib
import dataclasses
import datetime
import json
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from markupsafe import Markup

from dpjax._typing import Relation
from dpjax.accounting import Ledger, Release
from dpjax.algorithms import Status
from dpjax.datasets import Preprocessing
from dpjax.display.cards import card_of, ceil
from dpjax.results import Coefficients, Description, SavedSolution
from dpjax.results.coefficients import plain
from dpjax.results.guarantee import split_warning
from dpjax.results.remarks import ANSWERS, ENDS, answer_line, interval
from dpjax.results.solution import solution_of

Place = Ledger | str | os.PathLike
_CONFIDENCE = 0.95
# At larger deltas than the declared one epsilon is smaller; false positives that a page shows.
_DELTAS, _ALARMS = (1e-3, 0.01, *(k / 20 for k in range(1, 20))), (0.01, 0.05, 0.1)


class Picture(NamedTuple):
    """An SVG that ``reporting.pictures`` draws, its title, note, and class and name of curves."""

    title: str
    note: str
    svg: Markup
    keys: Sequence[tuple[str, str]] = ()


class Section(NamedTuple):
    """Heading, paragraphs, a table by head and rows, pictures, a list, and texts kept as they are.

    Rows without a head are names and values. Any part but the heading may be empty.
    """

    heading: str
    text: Sequence[str] = ()
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    pictures: Sequence[Picture] = ()
    items: Sequence[str] = ()
    code: Sequence[str] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class Facts:
    """What there is to say of one training.

    Args:
      claim: the first line of the guarantee.
      warning: why nothing of it may be released, or nothing.
      guarantee: the whole, without the warning.
      description: what was trained, and by whom, where that was declared.
      epsilon: spent at the declared delta.
      advantage: bound on true less false positives of a test whether one unit was there.
      found: share of false positives -> bound on the share of true positives of such a test.
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
      budget: name and value of what a ledger says of the budget of these records; or nothing.
    """

    claim: str
    warning: str
    guarantee: str
    description: Description
    epsilon: float
    advantage: float
    found: dict[float, float]
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
    budget: Sequence[tuple[str, str]] = ()

    @property
    def title(self) -> str:
        """Algorithm and objective."""
        return f"{self.description.algorithm}, {self.description.objective}"

    @property
    def factor(self) -> str:
        """e^epsilon, as a power where a number says no more."""
        return f"e^{ceil(self.epsilon)}" if self.epsilon > 14 else ceil(math.exp(self.epsilon))

    @property
    def answer_lines(self) -> list[str]:
        """The answers in words."""
        n = self.description.records
        return [answer_line(field, n, numbers) for field, numbers in self.answers.items()]


def facts_of(solution: Any, author: str = "", ledger: Place | None = None) -> Facts:
    """Returns what there is to say of a training.

    Args:
      solution: a ``Solution``, what ``load``, ``fit`` or ``tune`` returned, or an estimator.
      author: who trained it and answers questions; by default as ``save`` was told.
      ledger: a ``Ledger`` or its file, whose budget is stated as it is now.

    Raises:
      ValueError: for a batch of solutions, or another object.

    Privacy: released and public values only.
    """
    solution, guarantee = solution_of(solution)
    if np.ndim(solution.steps):
        raise ValueError("report takes one solution; index a batch with jax.tree.map first.")
    warning, text = split_warning(guarantee)
    steps, what = int(solution.steps), solution.description
    spent: Any = solution.epsilon(what.delta)  # of one run
    # Each pair is a bound that holds of the same releases, so that the smallest does.
    pairs = [(spent, what.delta)]
    pairs += [(solution.epsilon(delta), delta) for delta in _DELTAS if delta > what.delta]
    # A larger one than these overflows, and bounds nothing.
    pairs = [(math.exp(min(e, 700.0)), delta) for e, delta in pairs]
    advantage = min((factor - 1 + 2 * delta) / (factor + 1) for factor, delta in pairs)
    saved = isinstance(solution, SavedSolution)
    # What is not of a file has just been trained.
    date = what.date if saved else datetime.date.today().isoformat()
    history = solution.history if saved else solution.history._asdict()
    if ledger is not None and not isinstance(ledger, Ledger):
        ledger = Ledger.read(ledger)
    coefficients = classes = None
    with contextlib.suppress(ValueError):  # a network has no coefficients, arrays no classes
        coefficients = solution.coefficients(_CONFIDENCE)
    with contextlib.suppress(ValueError):
        classes = solution.class_names
    return Facts(
        claim=text.partition("\n")[0],
        warning=warning,
        guarantee=text,
        description=what._replace(author=author or what.author, date=date),
        epsilon=spent,
        advantage=advantage,
        found={alarms: _most_found(alarms, pairs) for alarms in _ALARMS},
        relation=solution.event.relation,
        releases=solution.event.releases,
        steps=steps,
        # A file may hold any integer.
        status=Status(int(solution.status)) if int(solution.status) in set(Status) else None,
        answers=dict(_answers(solution)),
        certificate=certificate_fields(solution.certificate),
        # A file has no evidence to judge a training by.
        remarks=() if saved else tuple(solution.remarks),
        coefficients=coefficients,
        preprocessing=solution.preprocessing,
        classes=classes,
        parameters=sum(map(np.size, jax.tree.leaves(solution.params))),
        # The steps that were not taken are NaN.
        history={name: np.asarray(held, np.float64)[:steps] for name, held in history.items()},
        budget=() if ledger is None else card_of(ledger).rows,
    )


def _most_found(alarms: float, pairs: list[tuple[float, float]]) -> float:
    """Returns the most true positives of a test with so many false ones, by e^epsilon and delta."""
    # Of either data set as the one without the record: Kairouz, Oh and Viswanath (2015).
    return min(
        min(1.0, factor * alarms + delta, 1 - (1 - delta - alarms) / factor)
        for factor, delta in pairs
    )


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
    return jax.tree.map(lambda v: v if isinstance(v, str) else np.asarray(v).tolist(), fields)


def fields(facts: Facts, sections: Sequence[Section] = ()) -> dict[str, Any]:
    """Returns what there is to say as numbers, words and lists; None for what is not known."""
    named = facts.description._asdict()
    return {
        "algorithm": named["algorithm"],
        "objective": named["objective"],
        **{key: named[key] for key in ("author", "date", "unit", "penalty", "clip_norms")},
        "n": named["records"],
        "p": facts.parameters,
        "epsilon": facts.epsilon,
        "delta": named["delta"],
        "advantage": facts.advantage,
        "relation": facts.relation,
        # A guarantee begins with a warning only where it may not be relied on.
        "releasable": not facts.warning,
        "noise": [release.to_json() for release in facts.releases],
        "steps": facts.steps,
        "planned_steps": named["steps"],
        "status": None if facts.status is None else facts.status.name.lower(),
        "certificate": facts.certificate,
        **{field: facts.answers.get(field) for field in ANSWERS},
        "classes": None if facts.classes is None else list(facts.classes),
        "coefficients": facts.coefficients and facts.coefficients.to_dict(),
        "history": {name: values.tolist() for name, values in facts.history.items()},
        "guarantee": facts.guarantee,
        "sections": by_heading(sections),
    }


def by_heading(sections: Sequence[Section]) -> dict[str, list[Any]]:
    """Returns paragraphs, items and rows of each section, for JSON."""
    return {one.heading: [*one.text, *one.items, *one.rows] for one in sections}


def to_json(content: dict[str, Any]) -> str:
    """Returns ``content`` as JSON, in which a number that is not finite is null."""
    return json.dumps(plain(content), indent=2) + "\n"
