"""The cross-entropy of one labelled example: of a network, or in closed form of a linear model."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax._typing import Array, Params
from dpjax._wide import at_least_float32
from dpjax.objectives.keyed import takes_key
from dpjax.objectives.linear import ONE_LABEL, Classes, LinearLoss
from dpjax.objectives.model import LinearClassifier
from dpjax.objectives.objective import Constants, Objective, of_scores


@dataclasses.dataclass(frozen=True)
class CrossEntropy:
    """Negative log-probability of the label; equal when made from the same function."""

    apply: Callable[..., Array]

    labels: ClassVar[str] = "0, 1, ..., one less than the number of logits; of two, -1 as 0"
    """The labels that count, in words."""

    def __call__(self, params: Params, example: tuple[Array, Array]) -> Array:
        x, y = example
        logits = self.apply(params, x)
        if logits.ndim != 1:
            raise ValueError(
                f"the network must give logits (classes,) for one example, got {logits.shape}."
            )
        if logits.size == 1:
            raise ValueError(
                "the network gives one logit, of which cross-entropy is 0 for every record: give "
                "one for each class, or pass a loss of one logit such as lambda logit, y: "
                "optax.sigmoid_binary_cross_entropy(logit[0], y)."
            )
        if jnp.shape(y) or jnp.iscomplexobj(y):
            raise ValueError(
                "labels of cross-entropy must be (n,), one class number for each record, got "
                f"{jnp.result_type(y)} of shape (n, {', '.join(map(str, jnp.shape(y)))}): "
                f"{ONE_LABEL}, or take a loss of your own such as optax.softmax_cross_entropy."
            )
        # So that labels with a sign need no conversion.
        if logits.size == 2:
            y = Classes(2).read(y)
        # bfloat16 has 8 significant bits: a loss would be off by a part in 256.
        logits = at_least_float32(logits)
        # A label that is no class makes the loss NaN and its derivatives 0, hence a null record:
        # an index would wrap around, or be clamped to the last class.
        label = jnp.arange(logits.size) == y
        loss = jax.nn.logsumexp(logits) - jnp.sum(jnp.where(label, logits, 0))
        return jnp.where(label.any(), loss, jnp.nan)


def cross_entropy(
    apply: Callable[..., Array], regularizer: Any = None, name: str = "cross-entropy"
) -> Objective:
    """Returns the softmax cross-entropy of a network that sees one example.

    Args:
      apply: ``apply(params, x) -> logits (classes,)`` for one x without a batch axis, such as the
        ``apply`` method of a flax linen module.
      regularizer: see ``Objective``.
      name: what people call it.

    Returns:
      An ``Objective`` on examples ``(x, y)``, y a class from 0 up, as any number; of two classes,
      -1 stands for 0. An impossible label makes a null record.

    Raises:
      ValueError: for a network with an argument ``key``; when it is traced, if the logits of one
        example are not a vector of two or more, or its label is not one number.

    Privacy: NOT a mechanism. No layer may look at other examples: it sees one at a time.

    >>> objective = cross_entropy(lambda w, x: w @ x)
    >>> print(objective(jnp.zeros((4, 2)), (jnp.ones(2), 3)).round(3))
    1.386
    """
    if takes_key(apply):
        raise ValueError(
            "cross_entropy takes a network without key, as it would never draw: pass the network "
            "to dpjax.fit, or Objective(loss) with a loss(params, example, key) of your own."
        )
    return Objective(CrossEntropy(apply), regularizer, name=name)


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
    model = LinearClassifier(classes)
    return of_scores(Softmax(classes), f"softmax-{classes}", model, regularization)
