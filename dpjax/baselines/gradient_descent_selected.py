"""DP-GD with selection (Wang, Chen and Xu 2019): noisy descent, then the best of its iterates."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpjax._typing import Array, Params, pytree_dataclass, static
from dpjax.accounting import Event, compose
from dpjax.algorithms import base
from dpjax.algorithms.certificate import Certificate, NoiseBounds, certify, scope_of, widen
from dpjax.algorithms.common import Common
from dpjax.oracles import GradientQuery, Query, SelectionQuery


class State(NamedTuple):
    """What the next step needs; all of it released."""

    params: Params
    taken: Array
    points: Params
    """Candidates: iterates along the way, stacked."""
    gradients: Params
    """The noisy gradients that were asked there, without the regularizer."""
    norms: Array
    """Norms of these gradients with the regularizer."""
    chosen: Array
    """Place of the selected candidate; known after the last step."""


class Info(NamedTuple):
    """What a person watches; all of it released."""

    gradient_norm: Array
    """Norm of the noisy gradient, regularizer included, before the step."""
    step_norm: Array
    """Length of the step taken."""


@pytree_dataclass
class SelectedGradientDescent(Common):
    """Configuration of DP-GD with selection; see the calibration."""

    query: GradientQuery
    selection: SelectionQuery
    step_size: Array | float
    steps: Array | int
    bounds: NoiseBounds
    beta: Array | float
    declared: base.Declared
    max_steps: int = static()
    dimension: int = static()
    certified: bool = static()
    unclipped: bool = static()
    accountant: str = static()

    @property
    def title(self) -> str:
        """Name for people."""
        return "DP-GD with selection"

    @property
    def queries(self) -> tuple[Query, ...]:
        """A gradient query for every step, and the selection, asked once."""
        return (self.query, self.selection)

    @property
    def event(self) -> Event:
        """``steps`` noisy gradients and one selection."""
        return compose([self.query.event(int(self.steps)), self.selection.event(1)])

    def init(self, params: Params) -> State:
        """Returns the state at ``params``, without candidates."""
        room, wide = self.selection.candidates, widen(params)

        def stacked(leaf: Array) -> Array:
            return jnp.zeros((room, *leaf.shape), leaf.dtype)

        return State(
            params,
            jnp.zeros((), jnp.int32),
            jax.tree.map(stacked, params),
            jax.tree.map(stacked, wide),
            jnp.zeros(room, jnp.result_type(*jax.tree.leaves(wide))),
            jnp.zeros((), jnp.int32),
        )

    def step(self, key: Array, state: State, ask: base.Ask) -> tuple[State, Info]:
        """One noisy gradient step; the last one also selects."""
        gradient = ask(key, self.query.name, state.params)
        whole = self.objective.regularize_gradient(gradient, widen(state.params))
        norm = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(whole)))
        # Candidates are spread evenly: of every span of steps the last one stays.
        horizon = jnp.minimum(jnp.asarray(self.steps, jnp.int32), self.max_steps)
        filled = jnp.minimum(self.selection.candidates, horizon)
        place = state.taken * filled // horizon

        def put(every: Array, new: Array) -> Array:
            return every.at[place].set(new.astype(every.dtype))

        points = jax.tree.map(put, state.points, state.params)
        norms = put(state.norms, norm)
        last = state.taken + 1 == horizon
        # Asked about no candidate before the last step, it reads no record and says nothing.
        chosen = ask(
            key,
            self.selection.name,
            points,
            gradient_norms=norms,
            filled=jnp.where(last, filled, 0),
        )
        params = jax.tree.map(
            lambda w, g: w - (self.step_size * g).astype(w.dtype), state.params, whole
        )
        gradients = jax.tree.map(put, state.gradients, gradient)
        return (
            State(params, state.taken + 1, points, gradients, norms, chosen),
            Info(norm, self.step_size * norm),
        )

    def output(self, state: State) -> Params:
        """Returns the selected iterate."""
        return jax.tree.map(lambda every: every[state.chosen], state.points)

    def certify(
        self, key: Array, state: State, ask: base.Ask, unit_rows: bool
    ) -> tuple[Certificate | None, Params | None]:
        """Returns the bound on the gradient norm at the output, for all candidates at once."""
        del key, ask
        if not self.certified:
            return None, None
        output = self.output(state)
        gradient = jax.tree.map(lambda every: every[state.chosen], state.gradients)
        upper, _ = certify(self.objective, output, gradient, None, self.bounds)
        scope = scope_of(self.unclipped and unit_rows)
        return Certificate(upper, None, self.beta, "output", scope), output
