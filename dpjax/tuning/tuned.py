"""``Tuned``: the result of a search, and ``Searched``, the algorithm of its solution."""

import dataclasses
from typing import Any

import numpy as np

from dpjax._typing import Params, pytree_dataclass, static
from dpjax.accounting import Event, SearchRelease
from dpjax.algorithms import Algorithm
from dpjax.algorithms.base import Declared
from dpjax.algorithms.card import AlgorithmBase, Wraps
from dpjax.display.cards import Card, HasCard, card_of
from dpjax.oracles import Evaluations
from dpjax.results import Solution
from dpjax.results.guarantee import Guarantee


@pytree_dataclass
class Searched(Wraps, AlgorithmBase):
    """The algorithm of the training that a search released; budget and event are the search's."""

    algorithm: Algorithm
    declared: Declared
    release: SearchRelease = static()

    # By privacy profiles, whatever accountant the training has.
    accountant = "pld"

    @property
    def title(self) -> str:
        return f"{self.algorithm.title} with settings from a private random search"

    @property
    def event(self) -> Event:
        return Event((self.release,), self.relation)

    @property
    def evaluations(self) -> Evaluations:
        """Gradients of one record that the whole search computes."""
        one, cap = self.algorithm.evaluations, self.release.cap
        # ``cap`` trainings are computed whatever K is.
        return Evaluations(cap * one.declared, cap * one.padded)


@dataclasses.dataclass(frozen=True)
class Tuned(HasCard):
    """The training that a search released.

    Args:
      solution: parameters, history and the guarantee of the whole search; ``dpjax.save`` writes it.
      settings: the setting that was drawn for it.
      score: its score. As the largest of several it is optimistic, noise included.

    Privacy: all of it is covered by the guarantee of ``solution``. Of the other trainings nothing
      is known, not even how many there were.
    """

    solution: Solution
    settings: dict[str, Any]
    score: float

    @property
    def params(self) -> Params:
        """The trained parameters."""
        return self.solution.params

    @property
    def releasable(self) -> bool:
        """Whether the guarantee may be relied on: no key that a seed may make."""
        return self.solution.releasable

    def epsilon(self, delta: float | None = None) -> float:
        """Returns the epsilon of the whole search at ``delta``, by default the declared one."""
        return self.solution.epsilon(delta)  # pyright: ignore[reportReturnType] # one run

    def guarantee(self) -> Guarantee:
        """Returns the guarantee of the whole search in words a person can publish."""
        return self.solution.guarantee()  # pyright: ignore[reportReturnType] # one run

    def predict(self, x: Any) -> np.ndarray:
        """Returns the label (n,) of each record, see ``Solution.predict``."""
        return self.solution.predict(x)

    def _card(self) -> Card:
        card = card_of(self.solution)
        chosen = ", ".join(f"{name}={value!r}" for name, value in self.settings.items())
        rows = (("settings", chosen), ("score", f"{self.score:.4g}"))
        return card._replace(rows=(*card.rows[:2], *rows, *card.rows[2:]))


def searched(solution: Solution, algorithm: Any) -> Solution:
    """Returns the solution of one training as that of the search which released it.

    ``algorithm`` is a ``Searched`` of its setting, with its numbers as they were calibrated.

    Privacy: post-processing. A certificate fails for one of K trainings with at most E[K] times the
      probability of one; where that is 1 or more, there is none. The noisy accuracy is that of the
      largest of K: an interval around it would not hold, and so with error bars, whose noise was
      chosen by its score.
    """
    certificate = solution.certificate
    if certificate is not None:
        # A union bound over the trainings, whose expected number is E[K].
        beta = algorithm.release.number.expected * float(np.asarray(certificate.beta))
        certificate = dataclasses.replace(certificate, beta=beta) if beta < 1 else None
    return dataclasses.replace(
        solution,
        algorithm=algorithm,
        certificate=certificate,
        certified_params=None if certificate is None else solution.certified_params,
        accuracy=None,
        error_bars=None,
    )
