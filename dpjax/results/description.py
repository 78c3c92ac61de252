"""``Description``: what was trained and on what, in names and declared numbers."""

from typing import NamedTuple

import numpy as np

from dpjax.algorithms import Algorithm
from dpjax.objectives.units import UnitLoss


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
    """

    algorithm: str
    objective: str
    unit: str
    records: int
    delta: float
    steps: int


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
        delta=float(np.asarray(algorithm.declared.delta)),
        steps=int(algorithm.steps),
    )
