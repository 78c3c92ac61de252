"""Secret state of queries between steps: computed from the records, never saved."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from dpjax._typing import Array, Params, PyTree, pytree_dataclass
from dpjax.algorithms import Algorithm
from dpjax.oracles import only_where


@pytree_dataclass
class Secrets:
    """Exact answers that noise is added to later, such as the gradient at an anchor.

    Args:
      known: bool, shape (); whether ``values`` belong to the state they come with.
      values: what each query remembers, by its name.

    Privacy: SECRET, un-noised. They live in the loop's carry alone: no solution, history,
      checkpoint or message holds them, and no algorithm is handed them. A run that goes on computes
      them again from its released state.
    """

    known: Array = dataclasses.field(repr=False)
    values: dict[str, PyTree] = dataclasses.field(repr=False)

    def of(self, name: str) -> dict[str, PyTree]:
        """Returns what the query ``name`` is to be given beside its question."""
        return {"secret": self.values[name]} if name in self.values else {}


def unknown(algorithm: Algorithm, records: PyTree, params: Params) -> Secrets | None:
    """Returns secrets that the first step will compute; None where no query remembers any.

    Args:
      algorithm: whose queries may remember.
      records: bound data; only shapes are read.
      params: likewise.
    """
    remembering = _remembering(algorithm)
    if not remembering:
        return None
    shapes = jax.eval_shape(
        lambda records, params: {name: f(records, params) for name, f in remembering.items()},
        records,
        params,
    )
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return Secrets(jnp.array(False), zeros)


def renew(algorithm: Algorithm, records: PyTree, secrets: Secrets, state: Any) -> Secrets:
    """Returns the secrets that belong to ``state``.

    Args:
      algorithm: whose ``remembered(state)`` gives the released point they are computed at, and
        whether that is another one than before.
      records: bound data.
      secrets: of the state before.
      state: before the step.

    One program computes them in a run and where one goes on, so that both agree bit for bit.
    """
    remembering = _remembering(algorithm)
    params, anew = algorithm.remembered(state)  # pyright: ignore[reportAttributeAccessIssue]
    values = only_where(
        anew | ~secrets.known,
        lambda params: {name: f(records, params) for name, f in remembering.items()},
        params,
        secrets.values,
    )
    return Secrets(jnp.array(True), values)


def _remembering(algorithm: Algorithm) -> dict[str, Callable]:
    found = {query.name: getattr(query, "remember", None) for query in algorithm.queries}
    return {name: remember for name, remember in found.items() if remember is not None}
