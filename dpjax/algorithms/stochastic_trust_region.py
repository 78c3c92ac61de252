"""DP-STR (Wang and Xu 2020, algorithm 2): the trust region that asks a batch at every step."""

import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree

from dpjax._typing import Array, Params, pytree_dataclass, static
from dpjax.accounting import Event, compose
from dpjax.algorithms import base
from dpjax.algorithms.common import Common
from dpjax.algorithms.model_step import Info, State, start, take_step
from dpjax.oracles import GradientQuery, HessianQuery, JointQuery, SecondOrderAnswer


@pytree_dataclass
class StochasticTrustRegion(Common):
    """Configuration of DP-STR; made by ``dp_stochastic_trust_region``.

    ``queries`` are one joint query for each batch size, in the order in which they are asked, or a
    gradient and a Hessian query, each on a draw of its own, in the paper's form.
    """

    queries: tuple[JointQuery, ...] | tuple[GradientQuery, HessianQuery]
    radius: Array | float
    radius_decay: Array | float
    damping: Array | tuple[float, ...]
    steps: Array | int
    declared: base.Declared
    max_steps: int = static()
    dimension: int = static()
    accountant: str = static()
    subproblem: str = static()

    @property
    def title(self) -> str:
        """Name for people."""
        return "DP-STR"

    @property
    def event(self) -> Event:
        """Each query as often as it is asked."""
        return event_of(self.queries, int(self.steps))

    def init(self, params: Params) -> State:
        """Returns the state at ``params``."""
        return start(params)

    def step(self, key: Array, state: State, ask: base.Ask) -> tuple[State, Info]:
        """One iteration of algorithm 2, with damping and a radius that shrinks."""
        stages = number_of_stages(self.queries)
        stage = jnp.minimum(state.iteration * stages // self.steps, stages - 1)
        answer = self._ask(key, state.params, ask, stage)
        radius = self.radius * self.radius_decay ** state.iteration.astype(answer.hessian.dtype)
        damping = jnp.stack([jnp.asarray(d, radius.dtype) for d in self.damping])[stage]
        return take_step(self.objective, state, answer, radius, damping, self.subproblem)

    def _ask(self, key: Array, params: Params, ask: base.Ask, stage: Array) -> SecondOrderAnswer:
        if isinstance(self.queries[0], GradientQuery):
            gradient, hessian = (ask(key, query.name, params) for query in self.queries)
            return SecondOrderAnswer(ravel_pytree(gradient)[0], hessian)
        asks = [lambda name=query.name: ask(key, name, params) for query in self.queries]
        # One branch runs, so that time follows the batch of this stage.
        return asks[0]() if len(asks) == 1 else lax.switch(stage, asks)


Queries = tuple[JointQuery, ...] | tuple[GradientQuery, HessianQuery]


def number_of_stages(queries: Queries) -> int:
    """Returns how many batch sizes there are."""
    return 1 if isinstance(queries[0], GradientQuery) else len(queries)


def steps_of_stage(steps: int, stages: int, stage: int) -> int:
    """Returns how many of ``steps`` iterations fall into ``stage``, as ``step`` counts them.

    >>> [steps_of_stage(32, 3, stage) for stage in range(3)]
    [11, 11, 10]
    """

    def first(stage: int) -> int:
        return -(-stage * steps // stages)  # the least i with i * stages // steps >= stage

    return first(stage + 1) - first(stage)


def event_of(queries: Queries, steps: int) -> Event:
    """Returns what ``steps`` iterations release."""
    if isinstance(queries[0], GradientQuery):
        return compose(query.event(steps) for query in queries)
    counts = [steps_of_stage(steps, len(queries), stage) for stage in range(len(queries))]
    return compose(query.event(count) for query, count in zip(queries, counts, strict=True))
