"""``Facts``: what a report says of a trained model, saved or not; released and public values."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from dpjax._typing import Relation
from dpjax.accounting import Release
from dpjax.algorithms import Status
from dpjax.datasets import Preprocessing
from dpjax.display.cards import ceil, floor
from dpjax.results import Coefficients, Description, SavedSolution, Solution
from dpjax.results.answers import ANSWERS, ENDS, interval, line
from dpjax.results.guarantee import split_warning

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
        return [line(field, n, numbers) for field, numbers in self.answers.items()]

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
