"""What most configurations share; each overrides what it does otherwise."""

from typing import Any

import jax.numpy as jnp

from dpjax._typing import Array, Params, Relation
from dpjax.algorithms.base import Ask
from dpjax.algorithms.certificate import Certificate
from dpjax.objectives import Objective
from dpjax.oracles import Evaluations


class Common:
    """Objective and relation of the first query; all planned steps, the last iterate, no bounds.

    A subclass is a configuration whose state has ``params``.
    """

    queries: Any
    event: Any

    @property
    def objective(self) -> Objective:
        """What is minimised."""
        return self.queries[0].objective

    @property
    def relation(self) -> Relation:
        """The neighbouring relation."""
        return self.queries[0].relation

    @property
    def evaluations(self) -> Evaluations:
        """Gradients of one record that a whole run computes, as declared and padded; on the host.

        A selection, which reads Hessians, is not counted.
        """
        queries = {query.name: query for query in self.queries}
        counted = [
            queries[release.name].evaluations(release.count)
            for release in self.event.releases
            if release.mechanism == "gaussian"
        ]
        return Evaluations(*map(sum, zip(*counted, strict=True)))

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
