"""``Solution``: what a training returns, all of it private."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.core import Tracer

from dpjax._typing import Array, Params, pytree_dataclass, static
from dpjax.accounting import Event
from dpjax.algorithms import Algorithm, Certificate, ErrorBars, Status
from dpjax.algorithms.card import REPRODUCIBLE, check_on_host, for_each, noise_words, of_event
from dpjax.datasets import Preprocessing
from dpjax.display.cards import Card, HasCard, ceil, number
from dpjax.objectives.units import UnitLoss
from dpjax.results import guarantee as _guarantee
from dpjax.results.answers import ANSWERS, interval
from dpjax.results.prediction import Predictions, Score, score_of
from dpjax.results.remarks import remarks_of_released


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
        # A leaf, so that it is an array once a compiled program has returned the algorithm.
        delta=float(np.asarray(algorithm.declared.delta)),
        steps=int(algorithm.steps),
    )


@pytree_dataclass
class Solution(Predictions, HasCard):
    """The result of a private training, a pytree.

    Args:
      params: the trained parameters.
      history: NamedTuple of arrays with leading axis ``max_steps``, NaN after ``steps``.
      steps: int32, steps taken.
      status: int32, a ``Status``.
      certificate: bounds on the true gradient and curvature; None without, or if one is not finite,
        which stays in a batch alone.
      certified_params: the parameters the certificate refers to, or None.
      algorithm: what was run, with its calibrated noise.
      evidence: of each step and part of its answers, |part|^2 / stddev^2 less its degrees of
        freedom, as of noise alone, and these; float32 (max_steps, parts, 2), NaN after ``steps``.
      accuracy: a noisy estimate of the final accuracy, see ``with_accuracy``, or None.
      counted: a noisy share of the n declared records that count, see ``with_count``, or None.
      error_bars: how privacy noise spread the parameters, see ``algorithms.ErrorBars``, or None.
      unit: what one record stands for, from the data set.
      reproducible: whether the noise came from a seed, which can be guessed, or from a key that may
        come from one, as every key may that ``random_key`` did not return in this process.
      preprocessing: how the table's columns became rows and labels, from the data set; declared.
      part: the part of a ledger's data that was read, or None.

    Privacy: every field is covered by the guarantee. ``event``, ``epsilon`` and ``guarantee`` are
      computed on the host from ``algorithm``; under ``vmap`` they give lists, one entry a run, and
      while tracing they raise.
    """

    params: Params
    history: Any
    steps: Array
    status: Array
    certificate: Certificate | None
    certified_params: Params | None
    algorithm: Algorithm
    evidence: Array
    accuracy: Array | None = None
    counted: Array | None = None
    error_bars: ErrorBars | None = None
    # Static, as words and flags are no leaves that JAX could map over.
    unit: str = static(default="row")
    reproducible: bool = static(default=False)
    preprocessing: Preprocessing | None = static(default=None)
    part: str | None = static(default=None)

    @property
    def releasable(self) -> bool:
        """Whether the guarantee may be relied on: no key that a seed may make."""
        return not self.reproducible

    @property
    def description(self) -> Description:
        """What was trained, in names and declared numbers; of one run, on the host."""
        return self._each(lambda algorithm: describe(algorithm, self.unit))

    @property
    def event(self) -> Any:
        """The ``Event`` of what was released: of all planned steps, even if fewer were taken."""
        return self._each(lambda algorithm: algorithm.event)

    def epsilon(self, delta: float | None = None) -> float | list:
        """Returns the epsilon spent, under the relation of the budget.

        Args:
          delta: by default the declared one.

        Raises:
          ValueError: if delta is out of range, or while tracing.
        """
        return self._each(lambda algorithm: algorithm.epsilon(delta))

    @property
    def remarks(self) -> list:
        """What released values say against a training, in sentences; of a batch a list for each.

        Privacy: post-processing, see ``results.remarks``.
        """
        # `settled` drops a certificate that overflowed, and leaves its parameters.
        unbounded = self.certificate is None and self.certified_params is not None
        evidence = (self.evidence, self.steps, unbounded)
        if self.counted is not None:
            # Of two sides, so that 1e-3 lies above it.
            n, (_, most) = self.algorithm.queries[0].data_size, self.counted_interval(0.998)
            evidence += (n, self.counted, most)
        return self._each(lambda evidence: remarks_of_released(*evidence), evidence)

    def guarantee(self) -> _guarantee.Guarantee | list:
        """Returns the guarantee in words a person can publish."""
        scale = self.preprocessing
        declared = (None, None) if scale is None else (scale.classes or (), scale.label_bounds)
        return self._each(
            lambda algorithm: _guarantee.statement(
                algorithm, self.unit, self.reproducible, *declared, self.part
            )
        )

    def accuracy_interval(self, confidence: float = 0.95) -> tuple[Array, Array]:
        """Returns what the exact accuracy lies between with this probability, over the noise.

        Of the records that were trained on; a null record counts as wrong.

        Raises:
          ValueError: if no accuracy was released, or for a confidence out of range.
        """
        return self._interval("accuracy", confidence)

    def counted_interval(self, confidence: float = 0.95) -> tuple[Array, Array]:
        """Returns the same for the exact share of the declared records that count."""
        return self._interval("counted", confidence)

    def _interval(self, field: str, confidence: float) -> tuple[Array, Array]:
        name, value = ANSWERS[field], getattr(self, field)
        if value is None:
            raise ValueError(f"no {name} was released; build the algorithm with dpjax.with_{name}.")
        # Its noise is what spread the answer.
        (query,) = (query for query in self.algorithm.queries if query.name == name)
        return interval(value, query.stddev, query.relation, confidence)

    def _score(self) -> Score:
        score = score_of(self.algorithm.objective)
        # A network is code of the user's own, which a solution does not hold.
        if not score.kind:
            raise ValueError(
                f"a solution of {self.algorithm.objective.name} has no prediction rule: call your "
                "model with solution.params, or use Trained.predict for a network trained by fit."
            )
        return score

    def _card(self) -> Card:
        algorithm: Any = self.algorithm
        planned = number(algorithm.steps, "{:,}".format)
        messages = {status.value: status.message.rstrip(".") for status in Status}

        def epsilon(_: Event) -> str:
            return ceil(algorithm.epsilon())

        rows = (
            # By the shape of the steps: a batch, or a trace, has no single epsilon to print.
            ("epsilon", number(self.steps, lambda _: of_event(algorithm, epsilon))),
            ("delta", number(algorithm.declared.delta, lambda delta: ceil(float(delta)))),
            ("relation", algorithm.relation),
            ("steps", number(self.steps, lambda taken: f"{int(taken):,} of {planned}")),
            ("status", number(self.status, lambda code: messages.get(int(code), "unknown"))),
            ("noise", of_event(algorithm, noise_words)),
            ("parameters", f"{algorithm.dimension:,}"),
            ("unit of privacy", f"one {self.unit}"),
        )
        return Card(f"Solution by {algorithm.title}", rows, REPRODUCIBLE * self.reproducible)

    def _each(self, read: Callable[[Any], Any], tree: Any = None) -> Any:
        # All leaves: under vmap over keys the algorithm's own numbers are concrete.
        check_on_host(self)
        return for_each(self.algorithm if tree is None else tree, np.shape(self.steps), read)


def settled(
    solution: Solution, reproducible: bool, scale: Preprocessing | None, part: str | None = None
) -> Solution:
    """Returns a solution with what the host knows; without bounds that are not finite."""
    leaves = jax.tree.leaves(solution.certificate)
    # Of a batch, or while tracing, they stay.
    if not any(isinstance(leaf, Tracer) or np.ndim(leaf) for leaf in leaves):
        # A bound that overflowed certifies nothing; `remarks` says that there was one.
        certificate = solution.certificate if np.isfinite(leaves).all() else None
        solution = dataclasses.replace(solution, certificate=certificate)
    return dataclasses.replace(solution, reproducible=reproducible, preprocessing=scale, part=part)
