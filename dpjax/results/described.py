"""``Description``: what was trained, in names and declared numbers."""

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from dpjax.accounting import Event, epsilon
from dpjax.algorithms import Algorithm, Status
from dpjax.objectives.units import UnitLoss

_CLIPPED = {
    "clip_norm": "gradient",
    "gradient_weight": "gradient",
    "hessian_clip_norm": "Hessian",
    "hessian_weight": "Hessian",
}


class Description(NamedTuple):
    """What was trained: names and declared numbers, none of them read off the data.

    ``Solution.description`` is one, and ``save`` writes it.

    Attributes:
      algorithm: its name for people.
      objective: its name.
      unit: what the guarantee protects, such as ``"row"`` or ``"person with all its records"``.
      records: the declared number of them, n.
      delta: of the budget.
      steps: how many were planned.
      penalty: what is added to the loss, with its strength, in words; empty where it is not known.
      clip_norms: bounds on the gradient, and the Hessian, of one record, in words.
      author: who trained it, where that was declared; in a file alone, as the next.
      date: of the day on which it was saved, such as ``"2030-01-31"``.
    """

    algorithm: str
    objective: str
    unit: str
    records: int
    delta: float
    steps: int
    penalty: str = ""
    clip_norms: str = ""
    author: str = ""
    date: str = ""


def describe(algorithm: Algorithm, unit: str) -> Description:
    """Returns the description of one training.

    Privacy: holds public numbers only.
    """
    grouped = isinstance(algorithm.objective.loss, UnitLoss)
    return Description(
        algorithm=algorithm.title,
        objective=algorithm.objective.name,
        unit=f"{unit} with all its records" if grouped else unit,
        records=algorithm.queries[0].data_size,
        # A leaf, so that it is an array once a compiled program has returned the algorithm.
        delta=float(np.asarray(algorithm.declared.delta)),
        steps=int(algorithm.steps),
        clip_norms=", ".join(dict.fromkeys(_clip_norms(algorithm))),
    )


def _clip_norms(algorithm: Algorithm) -> Iterator[str]:
    for query in algorithm.queries:
        for field, words in _CLIPPED.items():
            if (bound := getattr(query, field, None)) is not None:
                yield f"{words} {float(np.asarray(bound)):.4g}"


def status_words(code: Any) -> str:
    """Returns the message of a ``Status``."""
    messages = {status.value: status.message.rstrip(".") for status in Status}
    return messages.get(int(code), "unknown")  # a file may hold any integer


# A card, a guarantee and a page all ask for the same number.
@functools.lru_cache(maxsize=8)
def recounted(event: Event, delta: float, accountant: str) -> float:
    """Returns the epsilon of what was released."""
    return epsilon(event, delta, event.relation, accountant)
