"""``PrivacyBudget``, its neighbouring relation, and warnings about weak or unusable budgets."""

import dataclasses
import math
import warnings
from typing import Any, get_args

from dpjax import _validate
from dpjax._typing import Relation
from dpjax.accounting.losses import gaussian_log_delta
from dpjax.display import cards

RELATIONS: tuple[Relation, ...] = get_args(Relation)
"""What neighbouring may mean, see ``records_moved``."""


def records_moved(relation: Relation) -> int:
    """Number of clipped contributions by which two neighbouring sums differ.

    Args:
      relation: ``"zero_out"`` (one record becomes a null record that contributes 0; n is public),
        ``"add_or_remove_one"`` (n is private) or ``"replace_one"`` (one record becomes another).

    Returns:
      2 for ``"replace_one"``, else 1: the l2 sensitivity of sums of parts of norm at most 1.

    Raises:
      ValueError: if the relation is not one of the three.

    >>> records_moved("replace_one")
    2
    """
    _validate.choice("relation", relation, RELATIONS)
    return 2 if relation == "replace_one" else 1


# A larger epsilon guarantees little: "weak to no formal privacy" in Ponomareva et al. (2023).
_WEAK_EPSILON = 10.0


@dataclasses.dataclass(frozen=True)
class PrivacyBudget:
    """The (epsilon, delta) that one training may spend, and its neighbouring relation.

    Args:
      epsilon: finite, at least ``delta``.
      delta: above 0 and below 1/2; always required. A delta of 1/n is met by publishing one random
        record, so take it well below.
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
            raise ValueError("delta is required: choose it well below 1/n, such as 1/(10 n).")
        object.__setattr__(self, "delta", _validate.positive("delta", self.delta))
        if self.delta >= 0.5:
            raise ValueError(
                f"delta must be below 1/2, got {self.delta:g}: publishing all records with "
                "probability 1/2 meets a delta of 1/2. Choose it well below 1/n, such as 1/(10 n)."
            )
        if self.epsilon < self.delta:
            raise ValueError(
                f"epsilon must be at least delta, got epsilon={self.epsilon:g} and "
                f"delta={self.delta:g}: below that, the noise depends on delta alone and "
                "hides all signal. Raise epsilon."
            )
        _validate.choice("relation", self.relation, RELATIONS)
        for remark in remarks(self.epsilon, self.delta):
            warnings.warn(remark, UserWarning, stacklevel=3)  # the line that declares it

    @staticmethod
    def check(budget: Any) -> None:
        """Raises a ``ValueError`` for what is no budget."""
        if not isinstance(budget, PrivacyBudget):
            raise ValueError(
                f"budget must be a PrivacyBudget(epsilon, delta), got {_validate.shown(budget)}."
            )

    def _repr_html_(self) -> str:
        numbers = [(name, f"{getattr(self, name):.6g}") for name in ("epsilon", "delta")]
        rows = (*numbers, ("relation", self.relation))
        return cards.to_html(cards.Card("Privacy budget", rows))


def remarks(epsilon: float, delta: float, data_size: int | None = None) -> list[str]:
    """Returns warnings about a budget that is valid but gives little protection or utility.

    Args:
      epsilon: of the budget.
      delta: of the budget.
      data_size: the declared public number of records n; None for what holds of 100 or more.

    Privacy: reads declared numbers only.

    Reference: Ponomareva et al., "How to DP-fy ML" (2023), section 5.2, for the size of epsilon.

    >>> remarks(1.0, 1e-6, 20_000)
    []
    >>> print(*remarks(1.0, 0.01, 3_000))  # doctest: +ELLIPSIS
    delta = 0.01 is not below 1/n = 0.000333333 for 3,000 declared records: publishing 30 ...
    """
    n = 100 if data_size is None else data_size
    records, found = f"{n:,} {'records or more' if data_size is None else 'declared records'}", []
    # A delta of exactly 1/n may have gone through float32.
    if (published := delta * n) >= 1 - 1e-6:
        many = f"{published:.4g} random records" if published >= 2 else "one random record"
        found.append(
            f"delta = {delta:.4g} is not below 1/n = {1 / n:.6g} for {records}: publishing "
            f"{many} in full would meet it. Use 1/(10 n) = {1 / (10 * n):.4g} or less."
        )
    if epsilon > _WEAK_EPSILON:
        found.append(
            f"epsilon = {epsilon:g} gives little protection: an attacker who starts at even odds "
            "can become almost certain that a record is present. An epsilon up to 1 is strong; "
            "up to 10 is common."
        )
    elif data_size and gaussian_log_delta(data_size, epsilon) > math.log(delta):
        # The noise of one release, on a sum of records of norm 1; a whole training needs more.
        found.append(
            f"epsilon = {epsilon:g} is too small to learn from {records}: the noise that hides one "
            "record exceeds the sum over all records. Raise epsilon, or use more records."
        )
    return found
