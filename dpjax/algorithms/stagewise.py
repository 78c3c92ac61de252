"""DPageEM (Zhang et al. 2021): stagewise DP-SGD with early momentum, and its baselines."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax._typing import Array, Params, pytree_dataclass, static
from dpjax.algorithms import base
from dpjax.algorithms.certificate import widen
from dpjax.algorithms.common import Single
from dpjax.mechanisms import derive
from dpjax.oracles import GradientQuery
from dpjax.transforms import (
    EarlyMomentumState,
    early_momentum,
    inverse_power,
    stage_of,
    stagewise,
    updates_in,
)

# The power of t that divides the step size; stages halve it instead.
POWERS = {"constant": 0.0, "inverse": 1.0, "inverse_sqrt": 0.5}
SCHEDULES = ("stagewise", *POWERS)


class State(NamedTuple):
    """What the next step needs; all of it released."""

    params: Params
    place: Array
    """The next step's place in the plan of T steps; a random output leaves some out."""
    previous: Params
    """The displacement of the step before."""


class Info(NamedTuple):
    """What a person watches; all of it released, or public."""

    gradient_norm: Array
    """Norm of the noisy gradient, regularizer included, before the step."""
    step_norm: Array
    """Length of the step taken, momentum included."""
    stage: Array
    """Number of the stage, from 0."""
    step_size: Array
    """What the gradient was multiplied with."""


@pytree_dataclass
class Stagewise(Single):
    """Configuration of DPageEM and of its baselines; made by ``dpagem``."""

    query: GradientQuery
    step_size: Array | float
    momentum: Array | float
    stage_steps: Array | int | tuple[Array | int, ...]
    """Length of the first stage, doubled from stage to stage; or of each."""
    on_steps: Array | int | tuple[Array | int, ...]
    """Likewise: the first steps of a stage, which have momentum."""
    steps: Array | int
    declared: base.Declared
    max_steps: int = static()
    dimension: int = static()
    schedule: str = static()
    random_output: bool = static()
    accountant: str = static()

    @property
    def title(self) -> str:
        """Name for people."""
        return "DPageEM"

    def init(self, params: Params) -> State:
        """Returns the state at ``params``, without a displacement before it."""
        still = jax.tree.map(jnp.zeros_like, widen(params))
        return State(params, jnp.zeros((), jnp.int32), still)

    def step(self, key: Array, state: State, ask: base.Ask) -> tuple[State, Info]:
        """One step of algorithm 2, line 4; momentum is of noisy displacements and nothing else."""
        gradient = ask(key, self.query.name, state.params)
        whole = self.objective.regularize_gradient(gradient, widen(state.params))
        rate = self._rate(state.place)
        move = jax.tree.map(lambda g: -rate.astype(g.dtype) * g, whole)
        pushed = early_momentum(self.momentum, self.stage_steps, self.on_steps)
        move, kept = pushed.update(move, EarlyMomentumState(state.place, state.previous))
        params = jax.tree.map(lambda w, m: w + m.astype(w.dtype), state.params, move)
        norm = optax.tree.norm(whole)
        stage, _ = stage_of(state.place, self.stage_steps)
        info = Info(norm, optax.tree.norm(move), stage.astype(norm.dtype), rate.astype(norm.dtype))
        return State(params, self._after(key, state.place), kept.previous), info  # pyright: ignore

    def done(self, state: State) -> Array:
        """Returns whether the plan is at its end, which a random output reaches early."""
        return state.place >= self.steps

    def _rate(self, place: Array) -> Array:
        if self.schedule == "stagewise":
            return stagewise(self.step_size, self.stage_steps)(place)
        return inverse_power(self.step_size, POWERS[self.schedule])(place)

    def _after(self, key: Array, place: Array) -> Array:
        """Returns the next step's place: the next stage's first where this stage's output is.

        Algorithm 2 outputs one of a stage's iterates, and the next stage starts there. Which one is
        drawn from the key alone, so what comes after it in the stage need not be computed.
        """
        if not self.random_output:
            return place + 1
        stage, position = stage_of(place, self.stage_steps)
        start = place - position
        end = jnp.minimum(start + updates_in(stage, self.stage_steps), self.steps)
        draw = derive(key, "output", stage)
        taken = 1 + jax.random.randint(draw, (), 0, end - start, place.dtype)
        return jnp.where(position + 1 >= taken, end, place + 1).astype(place.dtype)
