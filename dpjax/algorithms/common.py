"""What most configurations share; each overrides what it does otherwise."""

from typing import Any

import jax.numpy as jnp

from dpjax._typing import Array, Params, Relation
from dpjax.algorithms.base import Ask
from dpjax.algorithms.certificate import Certificate
from dpjax.objectives import Objective


class Common:
    """Objective and relation of the first query; all planned steps, the last iterate, no bounds.

    A subclass is a configuration whose state has ``params``.
    """

    queries: Any

    @property
    def objective(self) -> Objective:
        """What is minimised."""
        return self.queries[0].objective

    @property
    def relation(self) -> Relation:
        """The neighbouring relation."""
        return self.queries[0].relation

    def done(self, state: Any) -> Array:
        """Never stops early."""
        del state
        return jnp.asarray(False)

    def output(self, state: Any) -> Params:
        """Returns the last iterate."""
        return state.params

    def certify(
        self, key: Array, state: Any, ask: Ask, unit_rows: bool
    ) -> tuple[Certificate | None, Params | None]:
        """Returns nothing: what a batch or a subspace tells bounds no derivative of the whole."""
        del key, state, ask, unit_rows
        return None, None
