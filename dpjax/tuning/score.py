"""Scores that read the released parameters and public records: they cost no privacy."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._program import trace
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
          records: a ``Dataset``, or ``(x, y)``. Of units each record that is present counts.
        """
        x, y = (records.x, records.y) if isinstance(records, Dataset) else records
        # Padding rows of a unit are not records.
        if isinstance(records, Dataset) and records.present is not None:
            x, y = (np.asarray(leaf)[np.asarray(records.present)] for leaf in (x, y))
        return cls(objective, jnp.asarray(x), jnp.asarray(y))

    def __call__(self, params: Params) -> Array:
        """Returns the accuracy, shape ()."""
        return jnp.mean(self.objective.predict(params, self.x) == self.y)


@pytree_dataclass
class ScoreFunction:
    """A score that is a function of the released parameters alone."""

    # Structure: another function needs another program.
    function: Callable[..., Any] = static()
    program: str = static(default="")
    """Its hash, as what a function reads may change while it is the same function."""

    def __call__(self, params: Params) -> Array:
        """Returns the score, shape ()."""
        return jnp.asarray(self.function(params))


def public_score(score: Any) -> Any:
    """Returns a score as a pytree, or None for the noisy accuracy on the training records."""
    if isinstance(score, str) and score == ACCURACY:
        return None
    # Callable too, but its records are arguments of the program and no constants in it.
    if isinstance(score, PublicAccuracy):
        return score
    if not callable(score):
        raise ValueError(
            "score must be 'accuracy' (noisy, on the training records), PublicAccuracy(...) on "
            f"public records, or a function of the parameters, got {score!r}."
        )
    return ScoreFunction(score)


def checked_score(score: Any, params: Params) -> Any:
    """Returns a public score, or raises unless it is pure and gives one number.

    Privacy: the score is computed of every training, of which the search pays for one. In a
      program that holds no call out of it, only the largest score decides; a callback would be
      handed the parameters of all.
    """
    if score is None:
        return None
    # As the search computes it, for several trainings at once.
    several = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), params)
    try:
        # A trace refuses calls of Python; lowering shows what fails under ``vmap`` alone.
        program = trace(score, params).digest
        jax.jit(jax.vmap(score)).lower(several)
        found = jax.eval_shape(score, params)
    except (ValueError, TypeError, IndexError, NotImplementedError) as error:
        raise ValueError(f"score= cannot be computed of the parameters: {error}") from error
    real = any(jnp.issubdtype(found.dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_))
    if found.shape not in ((), (1,)) or not real:
        raise ValueError(f"score= must return one real number, got {found}.")
    # Else JAX would go on with the program of a function that now computes something else.
    known = isinstance(score, ScoreFunction)
    return dataclasses.replace(score, program=program) if known else score
