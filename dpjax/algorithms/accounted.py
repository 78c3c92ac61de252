"""``epsilon`` of an algorithm, on the host: of one, or of each in a batch."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from dpjax.accounting import epsilon
from dpjax.algorithms.cards import AlgorithmCard


class Accounted(AlgorithmCard):
    """What every configuration can say of its cost."""

    def epsilon(self, delta: float | None = None) -> float | list:
        """Returns the epsilon that a whole run spends, under the relation of the budget.

        On the host; of stacked algorithms a list, one entry each. Noise by a paper's formula is
        accounted exactly.

        Args:
          delta: by default the declared one.

        Raises:
          ValueError: if delta is out of range, or while tracing.
        """
        check_on_host(self)
        algorithm: Any = self
        return for_each(self, np.shape(algorithm.steps), lambda one: _epsilon(one, delta))


def _epsilon(algorithm: Any, delta: float | None) -> float:
    at = float(algorithm.declared.delta) if delta is None else delta
    accountant = recount_accountant(algorithm.accountant)
    return epsilon(algorithm.event, at, algorithm.relation, accountant)


def recount_accountant(accountant: str) -> str:
    """Returns the accountant that recomputes epsilon: a noise formula is checked exactly."""
    return "pld" if accountant == "paper" else accountant


def check_on_host(tree: Any) -> None:
    """Raises while JAX traces any number of ``tree``."""
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree)):
        raise ValueError(
            "epsilon, event and guarantee are computed on the host; call them outside of jit and "
            "vmap."
        )


def for_each(algorithm: Any, batch: tuple[int, ...], read: Callable[[Any], Any]) -> Any:
    """Returns ``read`` of an algorithm, or nested lists of it for the axes of a batch."""
    if not batch:
        return read(algorithm)
    leaves, structure = jax.tree.flatten(algorithm)
    # A leaf that vmap did not batch has no axis to take from.
    rows = [np.asarray(leaf) for leaf in leaves]
    return [
        for_each(
            jax.tree.unflatten(structure, [row[i] if row.ndim else row for row in rows]),
            batch[1:],
            read,
        )
        for i in range(batch[0])
    ]
