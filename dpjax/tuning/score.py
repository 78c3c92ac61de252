"""Scores that read the released parameters and public records: they cost no privacy."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from dpjax._typing import Array, Params, PyTree, pytree_dataclass, static
from dpjax.datasets import Dataset
from dpjax.objectives import Objective

ACCURACY = "accuracy"
"""The score by default: the accuracy on the training records, with noise of its own."""


@pytree_dataclass
class PublicAccuracy:
    """The share of public records whose label the parameters predict; a score for ``tune``.

    Args:
      objective: that predicts labels in {-1, +1}.
      x: rows (m, p), scaled as those of the training.
      y: labels (m,).

    Raises:
      ValueError: for an objective that predicts no label.

    Privacy: reads ``x`` and ``y`` without noise, so they must be public, or of other people who
      agreed. Records that are trained on are NOT.

    >>> from dpjax.objectives import logistic
    >>> score = PublicAccuracy(logistic(), jnp.ones((4, 2)), jnp.array([1.0, 1.0, 1.0, -1.0]))
    >>> float(score(jnp.ones(2)))
    0.75
    """

    objective: Objective
    x: Array
    y: Array

    def __post_init__(self):
        if not self.objective.predicts:
            raise ValueError(
                f"{self.objective.name} predicts no label: pass a score of your own, a function of "
                "the parameters and public records."
            )

    @classmethod
    def of(cls, objective: Objective, records: Dataset | PyTree) -> "PublicAccuracy":
        """Returns the score on public records.

        Args:
          objective: as the field.
          records: a ``Dataset``, or ``(x, y)``.
        """
        x, y = records.examples if isinstance(records, Dataset) else records
        return cls(objective, jnp.asarray(x), jnp.asarray(y))

    def __call__(self, params: Params) -> Array:
        """Returns the accuracy, shape ()."""
        return jnp.mean(self.objective.predict(params, self.x) == self.y)


@pytree_dataclass
class ScoreFunction:
    """A score that is a function of the released parameters alone."""

    function: Callable[..., Any] = static()

    def __call__(self, params: Params) -> Array:
        """Returns the score, shape ()."""
        return jnp.asarray(self.function(params))


def public_score(score: Any) -> Any:
    """Returns a score as a pytree, or None for the noisy accuracy on the training records.

    Raises:
      ValueError: for what is no score.
    """
    if isinstance(score, str) and score == ACCURACY:
        return None
    if isinstance(score, PublicAccuracy):
        return score
    if not callable(score):
        raise ValueError(
            "score must be 'accuracy' (noisy, on the training records), PublicAccuracy(...) on "
            f"public records, or a function of the parameters, got {score!r}."
        )
    return ScoreFunction(score)
