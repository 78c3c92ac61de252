"""DP-Adam (Abadi et al. 2016 with Kingma and Ba 2015): optax's Adam on noisy gradients."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax import _validate
from dpjax._typing import Array, Params, Relation, static
from dpjax.accounting import Event, PrivacyBudget, check_spent, gaussian_multiplier
from dpjax.algorithms import base
from dpjax.algorithms.certificate import Certificate, widen
from dpjax.objectives import Objective
from dpjax.oracles import GradientQuery, Query, poisson_sampler

LONGEST = 2048
_LARGEST_BATCH = 16_384


class State(NamedTuple):
    """What the next step needs; all of it released."""

    params: Params
    moments: optax.OptState


class Info(NamedTuple):
    """What a person watches; all of it released."""

    gradient_norm: Array
    """Norm of the noisy gradient, regularizer included, before the step."""
    step_norm: Array
    """Length of the step taken."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Adam:
    """Configuration of DP-Adam; made by ``dp_adam``."""

    query: GradientQuery
    learning_rate: Array | float
    final_learning_rate: Array | float
    b1: Array | float
    b2: Array | float
    eps: Array | float
    steps: Array | int
    declared: base.Declared
    max_steps: int = static()
    dimension: int = static()
    accountant: str = static()

    @property
    def title(self) -> str:
        """Name for people."""
        return "DP-Adam"

    @property
    def objective(self) -> Objective:
        """What is minimised."""
        return self.query.objective

    @property
    def relation(self) -> Relation:
        """The neighbouring relation."""
        return self.query.relation

    @property
    def queries(self) -> tuple[Query, ...]:
        """One gradient query."""
        return (self.query,)

    @property
    def event(self) -> Event:
        """``steps`` noisy gradients, each of its own batch."""
        return self.query.event(int(self.steps))

    def init(self, params: Params) -> State:
        """Returns the state at ``params``, with both moments 0."""
        return State(params, self._moments().init(widen(params)))

    def step(self, key: Array, state: State, ask: base.Ask) -> tuple[State, Info]:
        """One step of Adam; both moments are fed the noisy gradient and nothing else."""
        gradient = ask(key, self.query.name, state.params)
        whole = self.objective.regularize_gradient(gradient, widen(state.params))
        done = state.moments[0].count  # pyright: ignore[reportIndexIssue]
        direction, moments = self._moments().update(whole, state.moments)
        rate = self._rate(done)
        move = jax.tree.map(lambda d: -rate.astype(d.dtype) * d, direction)
        params = jax.tree.map(lambda w, m: w + m.astype(w.dtype), state.params, move)
        return State(params, moments), Info(optax.tree.norm(whole), optax.tree.norm(move))

    def done(self, state: State) -> Array:
        """Never stops early."""
        del state
        return jnp.asarray(False)

    def output(self, state: State) -> Params:
        """Returns the last iterate."""
        return state.params

    def certify(
        self, key: Array, state: State, ask: base.Ask, unit_rows: bool
    ) -> tuple[Certificate | None, Params | None]:
        """Returns nothing: the answers of batches bound no derivative of the whole sum."""
        del key, state, ask, unit_rows
        return None, None

    def _moments(self) -> optax.GradientTransformation:
        return optax.chain(optax.scale_by_adam(self.b1, self.b2, self.eps))  # pyright: ignore

    def _rate(self, done: Array) -> Array:
        # Geometric, from the first rate at the first step to the last one at the last.
        passed = done / jnp.maximum(jnp.asarray(self.steps) - 1, 1)
        first, last = jnp.asarray(self.learning_rate), jnp.asarray(self.final_learning_rate)
        return first * (last / first) ** passed.astype(first.dtype)
