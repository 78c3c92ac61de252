"""Softmax regression: a linear score for each of K classes, in closed form."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax._typing import Array
from dpjax.objectives.linear import Classes, LinearLoss
from dpjax.objectives.objective import Constants, LinearClassifier, Objective, of_scores

# |softmax(s) - e_y|, the largest eigenvalue and the Frobenius norm of its derivative, and a third
# central moment of numbers within sqrt(2), which bounds the third derivative along a unit vector.
_CONSTANTS = Constants(math.sqrt(2), 1 / 2, math.sqrt(8) / (6 * math.sqrt(3)))
# The least t with |g|^2 / 2 + |H|_F^2 / (2 t^2) <= 1 at all scores is 1 / sqrt(2), at half a chance
# for each of two wrong classes; rounded up by 1e-4.
_FREE_RATIO = 0.70718


@dataclasses.dataclass(frozen=True)
class Softmax(LinearLoss):
    """The cross-entropy -log softmax(s)_y of K scores."""

    classes: int

    proven = True
    constants = _CONSTANTS
    concordance = math.sqrt(2)  # the largest range of scores that a vector of norm 1 gives

    @property
    def labels(self) -> Classes:
        return Classes(self.classes)

    @property
    def outputs(self) -> int:
        return self.classes

    def value(self, score: Array, label: Array) -> Array:
        return jax.nn.logsumexp(score) - jnp.sum(score * self._indicator(label, score))

    def derivatives(self, score: Array, label: Array) -> tuple[Array, Array]:
        share = jax.nn.softmax(score)
        return share - self._indicator(label, score), jnp.diag(share) - jnp.outer(share, share)

    @property
    def at_zero(self) -> float:
        return math.log(self.classes)

    def joint_weights(self, lipschitz: float) -> tuple[float, float] | None:
        """Returns 1 and the least ratio at which the Hessian costs nothing beside the gradient."""
        return (1.0, _FREE_RATIO) if lipschitz >= _CONSTANTS.lipschitz else None

    def _indicator(self, label: Array, score: Array) -> Array:
        return (jnp.arange(self.classes) == label).astype(score.dtype)


def softmax(classes: int, regularization: float = 1e-3) -> Objective:
    """Returns the cross-entropy of softmax regression plus ``regularization`` / 2 times |W|^2.

    The parameters are the rows of W, (K, p), one after the other: an array (K p,), whose Hessian
    has (K p)^2 entries. Adding one vector to all rows changes no prediction, and the penalty brings
    that direction to 0.

    Args:
      classes: K, at least 3; a declared number. Labels are 0, 1, ..., K - 1; a record with another
        label contributes nothing. For two classes ``logistic_l2`` needs half the parameters.
      regularization: strength of the penalty; 0 for none.

    Raises:
      ValueError: for fewer than three classes, or a negative strength.

    Reference: constants on |x| <= 1 are (sqrt 2, 1/2, sqrt(8) / (6 sqrt 3)).

    >>> objective = softmax(3)
    >>> objective.parameters(4), round(float(objective(jnp.zeros(12), (jnp.ones(4), 2.0))), 4)
    (12, 1.0986)
    """
    classes = _validate.positive_int("classes", classes)
    if classes < 3:
        raise ValueError(f"classes must be at least 3, got {classes}: for two take logistic_l2.")
    name, model = f"softmax-{classes}", LinearClassifier(classes)
    return of_scores(Softmax(classes), _CONSTANTS, name, model, regularization)
