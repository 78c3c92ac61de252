"""What may be spent: ``PrivacyBudget``, and what 'neighbouring' means for it."""

import dataclasses
from typing import get_args

from dpjax import _validate
from dpjax._typing import Relation

RELATIONS: tuple[Relation, ...] = get_args(Relation)


def records_moved(relation: Relation) -> int:
    """Number of clipped contributions by which two neighbouring sums differ.

    Args:
      relation: ``"zero_out"`` (one record becomes a null record that contributes 0; n is public),
        ``"add_or_remove_one"`` (n is private) or ``"replace_one"`` (one record becomes another).

    Returns:
      2 for ``"replace_one"``, else 1: the l2 sensitivity of a sum of contributions of norm at most
      C is this many times C.

    Raises:
      ValueError: if the relation is not one of the three.

    >>> records_moved("replace_one")
    2
    """
    _validate.choice("relation", relation, RELATIONS)
    return 2 if relation == "replace_one" else 1


@dataclasses.dataclass(frozen=True)
class PrivacyBudget:
    """An (epsilon, delta) that a whole training may spend, and the relation it is meant under.

    Args:
      epsilon: finite, above 0.
      delta: strictly between 0 and 1; always required. A delta of 1/n is met by publishing one
        random record, so take it well below.
      relation: see ``records_moved``. Budgets under different relations must not be compared.

    Raises:
      ValueError: naming the argument that is missing or out of range.

    Privacy: a declaration; nothing is released here.

    >>> PrivacyBudget(epsilon=1.0, delta=1e-6)
    PrivacyBudget(epsilon=1.0, delta=1e-06, relation='zero_out')
    """

    epsilon: float
    delta: float = None  # pyright: ignore[reportAssignmentType] # absent is an error that says why
    relation: Relation = "zero_out"

    def __post_init__(self):
        object.__setattr__(self, "epsilon", _validate.positive("epsilon", self.epsilon))
        if self.delta is None:
            raise ValueError("delta is required: take it well below 1/n, such as 1/(10 n).")
        object.__setattr__(self, "delta", _validate.open_unit("delta", self.delta))
        _validate.choice("relation", self.relation, RELATIONS)
