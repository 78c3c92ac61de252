"""What the parameters of an objective are, and what they predict."""

import dataclasses
from typing import Protocol

import jax.numpy as jnp

from dpjax._typing import Array


class Model(Protocol):
    """What the parameters are, and what they predict.

    One that predicts has ``score(params, x)`` for rows (n, p), and ``decide(scores)``; without the
    latter the sign of a score (n,) is the label.
    """

    def parameters(self, features: int) -> int:
        """Returns the number of parameters for rows of so many ``features``."""
        ...


@dataclasses.dataclass(frozen=True)
class Unlabelled(Model):
    """``columns`` weights for each feature, which predict no label.

    >>> Unlabelled(columns=2).parameters(5)
    10
    """

    columns: int = 1

    def parameters(self, features: int) -> int:
        return features * self.columns


@dataclasses.dataclass(frozen=True)
class LinearModel(Model):
    """One weight for each feature, whose inner product with a row is its score.

    >>> LinearModel().parameters(3)
    3
    """

    def parameters(self, features: int) -> int:
        return features

    def score(self, params: Array, x: Array) -> Array:
        """Returns the scores (n,) of rows (n, p)."""
        return x @ params


@dataclasses.dataclass(frozen=True)
class LinearClassifier(Model):
    """A row of weights for each of ``classes`` classes, whose inner product with x is its score.

    >>> LinearClassifier(3).decide(jnp.array([[0.0, 2.0, 1.0]])).tolist()
    [1.0]
    """

    classes: int

    def parameters(self, features: int) -> int:
        return features * self.classes

    def score(self, params: Array, x: Array) -> Array:
        """Returns the scores (n, K) of rows (n, p)."""
        return x @ params.reshape(self.classes, -1).T

    def decide(self, scores: Array) -> Array:
        """Returns the class with the largest score, (n,), the first of equal ones."""
        return jnp.argmax(scores, axis=-1).astype(scores.dtype)


@dataclasses.dataclass(frozen=True)
class LinearRegression(LinearModel):
    """One weight for each feature; the score of a row is the number predicted.

    >>> LinearRegression().decide(jnp.array([0.25])).tolist()
    [0.25]
    """

    # By attribute and not by class, as a user's model may be of any class.
    numeric = True

    def decide(self, scores: Array) -> Array:
        """Returns the scores (n,)."""
        return scores
