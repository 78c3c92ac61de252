"""DP-GD (Wang, Ye and Xu 2017, algorithm 4): noisy full-batch gradient descent, the baseline."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax._typing import Array, Params, pytree_dataclass, static
from dpjax.algorithms import base
from dpjax.algorithms.certificate import Certificate, NoiseBounds, certify, scope_of, widen
from dpjax.algorithms.common import Single, proximal
from dpjax.oracles import GradientQuery


class State(NamedTuple):
    """What the next step needs; all of it released."""

    params: Params
    queried: Params
    gradient: Params


class Info(NamedTuple):
    """What a person watches; all of it released."""

    gradient_norm: Array
    """Norm of the noisy gradient before the step, with the regularizer's where that is smooth."""
    step_norm: Array
    """Length of the step taken."""


@pytree_dataclass
class GradientDescent(Single):
    """Configuration of DP-GD; made by ``dp_gradient_descent``."""

    query: GradientQuery
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
        return "DP-GD"

    def init(self, params: Params) -> State:
        """Returns the state at ``params``."""
        return State(params, params, jax.tree.map(jnp.zeros_like, widen(params)))

    def step(self, key: Array, state: State, ask: base.Ask) -> tuple[State, Info]:
        """One noisy gradient step: x_t = x_{t-1} - eta (gradient + z_{t-1}).

        A regularizer that is not smooth follows as its proximal operator.
        """
        gradient = ask(key, self.query.name, state.params)
        if proximal(self.objective):
            return self._proximal_step(state, gradient)
        whole = self.objective.regularize_gradient(gradient, widen(state.params))
        params = jax.tree.map(
            lambda w, g: w - (self.step_size * g).astype(w.dtype), state.params, whole
        )
        norm = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(whole)))
        return State(params, state.params, gradient), Info(norm, self.step_size * norm)

    def _proximal_step(self, state: State, gradient: Params) -> tuple[State, Info]:
        start, eta = widen(state.params), jnp.asarray(self.step_size)
        moved = jax.tree.map(lambda w, g: w - eta.astype(w.dtype) * g, start, gradient)
        end = self.objective.prox(moved, self.step_size)
        norm, length = optax.tree.norm(gradient), optax.tree.norm(optax.tree.sub(end, start))
        params = jax.tree.map(lambda w, x: x.astype(w.dtype), state.params, end)
        return State(params, state.params, gradient), Info(norm, length)

    def certify(
        self, key: Array, state: State, ask: base.Ask, unit_rows: bool
    ) -> tuple[Certificate | None, Params | None]:
        """Returns the bound on the gradient norm where the last gradient was asked."""
        del key, ask
        if not self.certified:
            return None, None
        upper, _ = certify(self.objective, state.queried, state.gradient, None, self.bounds)
        scope = scope_of(self.unclipped and unit_rows)
        return Certificate(upper, None, self.beta, "last_query", scope), state.queried
