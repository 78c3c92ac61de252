"""Builds an ``Objective`` from a network: the cross-entropy of one labelled example."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from dpjax._typing import Array, Params
from dpjax._wide import at_least_float32
from dpjax.objectives.linear import ONE_LABEL, Classes
from dpjax.objectives.objective import Objective


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
    apply: Callable[..., Array],
    regularizer: Any = None,
    name: str = "cross-entropy",
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
      ValueError: when it is traced, if the logits of one example are not a vector of two or more,
        or its label is not one number.

    Privacy: NOT a mechanism. No layer may look at other examples: it sees one at a time.

    >>> objective = cross_entropy(lambda w, x: w @ x)
    >>> print(objective(jnp.zeros((4, 2)), (jnp.ones(2), 3)).round(3))
    1.386
    """
    return Objective(CrossEntropy(apply), regularizer, name=name)
