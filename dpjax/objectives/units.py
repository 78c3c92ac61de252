"""The loss of a unit: the records of one person, say, combined into one example."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from dpjax._typing import Array, Loss, Params, PyTree
from dpjax.objectives.keyed import Keyed
from dpjax.objectives.linear import LinearLoss

REDUCTIONS = ("mean", "sum")
"""How the losses of a unit's records become one."""


@dataclasses.dataclass(frozen=True)
class UnitLoss:
    """The loss of one unit: the mean, or the sum, of the losses of its own records.

    ``Objective.of_units`` makes one. A record that is not present, or whose loss is not finite, is
    left out; a unit without any other has the loss NaN, hence contributes nothing. ``loss`` and
    ``linear`` are those of one record, as in ``Objective``.

    Privacy: NOT a mechanism. Each unit's loss depends on that unit alone, so that clipping its
      gradient bounds what a unit contributes, however many records it has.
    """

    loss: Loss
    reduction: str
    linear: LinearLoss | None = None

    def __call__(self, params: Params, example: tuple[PyTree, Array] | Keyed) -> Array:
        """Returns the loss of a unit ``(records, present)``, of K records and bool (K,)."""
        records, present = example.of_unit() if isinstance(example, Keyed) else example
        # Without derivatives: those of a record that is left out would be 0 times NaN.
        values = jax.vmap(self.loss, in_axes=(None, 0))(jax.lax.stop_gradient(params), records)
        valid = present & jnp.isfinite(values)
        # A record that is left out is replaced by one that is not: a NaN in it would reach the
        # derivative of the branch that is not taken.
        stand_in = jnp.argmax(valid)

        def replaced(leaf: Array) -> Array:
            by_record = valid.reshape(-1, *(1,) * (leaf.ndim - 1))
            return jnp.where(by_record, leaf, leaf[stand_in])

        values = jax.vmap(self.loss, in_axes=(None, 0))(params, jax.tree.map(replaced, records))
        total = jnp.sum(jnp.where(valid, values, 0))
        count = jnp.sum(valid)
        if self.reduction == "mean":
            total = total / jnp.maximum(count, 1)
        return jnp.where(count > 0, total, jnp.nan)

    @property
    def labels(self) -> str | None:
        """The labels that count, in words, if the loss of a record says."""
        return getattr(self.loss, "labels", None)


def is_grouped(examples: Any) -> bool:
    """Returns whether examples are units, ``(records, present)`` with present (n, K) bool."""
    if not (isinstance(examples, tuple) and len(examples) == 2):
        return False
    # One bool array with two axes: labels (n, K) that are numbers make no units.
    leaves = jax.tree.leaves(examples[1])
    return (
        len(leaves) == 1
        and getattr(leaves[0], "ndim", 0) == 2
        and getattr(leaves[0], "dtype", None) == jnp.bool_
    )
