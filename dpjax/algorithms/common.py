"""``Single``, for algorithms of one query, and what factories refuse alike."""

from typing import Any

from dpjax.accounting import Event
from dpjax.algorithms import base
from dpjax.objectives import Objective
from dpjax.oracles import Query


def proximal(objective: Objective) -> bool:
    """Returns whether the regularizer enters by its proximal operator: it has one, and no gradient.

    >>> from dpjax import objectives
    >>> proximal(objectives.logistic_l1()), proximal(objectives.logistic_l2())
    (True, False)
    """
    own = objective.regularizer
    return hasattr(own, "prox") and getattr(own, "smoothness", None) is None


def check_smooth(objective: Objective, title: str) -> None:
    """Raises for a penalty or set that is not smooth, whose derivatives would leave it out."""
    if proximal(objective):
        raise ValueError(
            f"{title} needs a smooth regularizer, but {objective.name} has "
            f"{objective.regularizer!r}. dp_gradient_descent, dp_svrg, dp_svrg_plus_plus and "
            "baselines.dp_sgd accept l1 penalties and convex sets."
        )


def refuse_paper(
    accountant: str, title: str, why: str, advice: str = "Take 'pld' or 'rdp'."
) -> None:
    """Raises for ``accountant="paper"`` of a method that has no noise formula of a paper."""
    if accountant == "paper":
        raise ValueError(f"accountant='paper' has no meaning for {title}: {why}. {advice}")


class Single(base.Planned):
    """One query, asked at every step."""

    query: Any

    @property
    def queries(self) -> tuple[Query, ...]:
        """The one query."""
        return (self.query,)

    @property
    def event(self) -> Event:
        """``steps`` answers."""
        return self.query.event(int(self.steps))
