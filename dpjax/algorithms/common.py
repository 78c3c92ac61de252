"""Fields and defaults that most configurations share, and may override."""

import dataclasses
from typing import Any

import jax.numpy as jnp

from dpjax._typing import Array, Params, Relation, static
from dpjax.accounting import Event
from dpjax.algorithms import base
from dpjax.algorithms.accounted import Accounted
from dpjax.algorithms.base import Ask
from dpjax.algorithms.certificate import Certificate
from dpjax.algorithms.error_bars import ErrorBars
from dpjax.objectives import Objective
from dpjax.oracles import Evaluations, Query


def proximal(objective: Objective) -> bool:
    """Returns whether the regularizer enters by its proximal operator: it has one, and no gradient.

    >>> from dpjax import objectives
    >>> proximal(objectives.logistic_l1()), proximal(objectives.logistic_l2())
    (True, False)
    """
    own = objective.regularizer
    return hasattr(own, "prox") and getattr(own, "smoothness", None) is None


def check_smooth(objective: Objective, title: str) -> None:
    """Raises for a penalty or set that is not smooth, whose derivatives would leave it out.

    Raises:
      ValueError: naming the regularizer.
    """
    if proximal(objective):
        raise ValueError(
            f"{title} needs a smooth regularizer, but {objective.name} has "
            f"{objective.regularizer!r}. dp_gradient_descent, dp_svrg, dp_svrg_plus_plus and "
            "baselines.dp_sgd accept l1 penalties and convex sets."
        )


def refuse_paper(
    accountant: str, title: str, why: str, advice: str = "Take 'pld' or 'rdp'."
) -> None:
    """Raises for ``accountant="paper"`` of a method that has no noise formula of a paper.

    Raises:
      ValueError: naming the method and saying why.
    """
    if accountant == "paper":
        raise ValueError(f"accountant='paper' has no meaning for {title}: {why}. {advice}")


class Common(Accounted):
    """Objective and relation of the first query; all planned steps, the last iterate, no bounds.

    A subclass is a configuration whose state has ``params``.
    """

    queries: Any
    event: Any

    @property
    def objective(self) -> Objective:
        """What is minimised."""
        return self.queries[0].objective

    @property
    def relation(self) -> Relation:
        """The neighbouring relation."""
        return self.queries[0].relation

    @property
    def evaluations(self) -> Evaluations:
        """Gradients of one record that a whole run computes, as declared and padded; on the host.

        A selection, which reads Hessians, is not counted, nor noise on what was asked before.
        """
        queries = {query.name: query for query in self.queries}
        counted = [
            queries[release.name].evaluations(release.count)
            for release in self.event.releases
            if release.name in queries
        ]
        return Evaluations(*map(sum, zip(*counted, strict=True)))

    def done(self, state: Any) -> Array:
        """Never stops early."""
        del state
        return jnp.asarray(False)

    def stopped(self, state: Any) -> Array:
        """Returns that a stopping rule fired."""
        del state
        return jnp.asarray(base.Status.STOPPED)

    def close(self, key: Array, state: Any, ask: Ask) -> Any:
        """Asks nothing more."""
        del key, ask
        return state

    def iterate(self, state: Any) -> Params:
        """Returns the last iterate."""
        return state.params

    def output(self, state: Any) -> Params:
        """Returns the last iterate."""
        return state.params

    def certify(
        self, key: Array, state: Any, ask: Ask, unit_rows: bool
    ) -> tuple[Certificate | None, Params | None]:
        """Returns nothing: what a batch or a subspace tells bounds no derivative of the whole."""
        del key, state, ask, unit_rows
        return None, None

    def error_bars(self, state: Any, unit_rows: bool) -> ErrorBars | None:
        """Returns none: they need gradient and Hessian of all records at one point."""
        del state, unit_rows
        return None

    def answers(self, state: Any) -> dict[str, Array]:
        """Returns none: they are asked for by ``with_accuracy`` and ``with_count``."""
        del state
        return {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Planned(Common):
    """The fields of every configuration; ``base.Problem.plan`` gives their values."""

    steps: Array | int
    declared: base.Declared
    max_steps: int = static()
    dimension: int = static()
    accountant: str = static()


class Single(Planned):
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
