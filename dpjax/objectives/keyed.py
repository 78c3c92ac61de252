"""Losses that draw random numbers, such as dropout, from a key of each record and step."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from dpjax._typing import Array, Params, PyTree, pytree_dataclass


@pytree_dataclass
class Keyed:
    """Records and the words of their keys; secret.

    Args:
      records: one record or unit, or several along the leading axis.
      words: uint32, (2,) for each: (0, place) of its place in the data, and in a batch the threefry
        key that follows from the step's key and that place. Never from its slot in the batch: there
        one record would move the keys of others.
    """

    records: PyTree
    words: Array

    @property
    def key(self) -> Array:
        """The key of one record."""
        return jax.random.wrap_key_data(self.words, impl="threefry2x32")

    def of_unit(self) -> tuple["Keyed", Array]:
        """Returns one unit with a key for each of its records, as ``UnitLoss`` reads it."""
        records, present = self.records
        words = jax.random.key_data(jax.random.split(self.key, present.shape[0]))
        return Keyed(records, words), present


def takes_key(function: Callable[..., Any]) -> bool:
    """Returns whether a function has an argument ``key`` that nobody has bound."""
    if isinstance(function, functools.partial) and "key" in function.keywords:
        return False
    try:
        key = inspect.signature(function).parameters.get("key")
    except (TypeError, ValueError):  # some callables in C have no signature
        return False
    return key is not None and (key.default is None or key.default is inspect.Parameter.empty)


@dataclasses.dataclass(frozen=True)
class KeyedLoss:
    """The loss ``loss(params, example, key)`` of one record, as a function of ``Keyed`` records.

    Of records without a key, as they are evaluated, it is the loss at ``key=None``.
    """

    loss: Callable[..., Array]

    def __call__(self, params: Params, example: Any) -> Array:
        """Returns the loss, shape ()."""
        if isinstance(example, Keyed):
            return self.drawn(params, example.records, example.key)
        return self.evaluated(params, example)

    def drawn(self, params: Params, record: PyTree, key: Array) -> Array:
        """Returns the loss in training."""
        return self.loss(params, record, key=key)

    def evaluated(self, params: Params, record: PyTree) -> Array:
        """Returns the loss of which nothing is drawn."""
        return self.loss(params, record, key=None)

    @property
    def labels(self) -> str | None:
        """The labels that count, in words, if the loss says."""
        return getattr(self.loss, "labels", None)


def with_shape_of_key(record: PyTree) -> Keyed:
    """Returns shapes and dtypes of one record as training reads it."""
    return Keyed(record, jax.ShapeDtypeStruct((2,), jnp.uint32))  # pyright: ignore[reportArgumentType]
