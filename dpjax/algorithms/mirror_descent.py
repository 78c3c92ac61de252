"""DP-AccMD (Wang, Ye and Xu 2017, algorithm 3): accelerated mirror descent inside a ball."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from dpjax._typing import Array, Params, pytree_dataclass, static
from dpjax.algorithms import base
from dpjax.algorithms.certificate import widen
from dpjax.algorithms.common import Single
from dpjax.algorithms.mirror_maps import from_dual, p_norm, to_dual
from dpjax.oracles import GradientQuery


class State(NamedTuple):
    """What the next step needs; all of it released."""

    params: Params
    """y of the paper, which is the output."""
    point: Array
    """z of the paper, shape (p,)."""
    dual: Array
    """Gradient of the mirror function at z, shape (p,)."""
    taken: Array


class Info(NamedTuple):
    """What a person watches; all of it released."""

    gradient_norm: Array
    """Norm of the noisy gradient, regularizer included, where it was asked."""
    step_norm: Array
    """Distance from one y to the next."""


@pytree_dataclass
class MirrorDescent(Single):
    """Configuration of DP-AccMD; made by ``dp_accelerated_mirror_descent``."""

    query: GradientQuery
    step_size: Array | float
    radius: Array | float
    steps: Array | int
    declared: base.Declared
    ball: str = static()
    """``"l1"`` or ``"l2"``."""
    max_steps: int = static()
    dimension: int = static()
    accountant: str = static()

    @property
    def title(self) -> str:
        """Name for people."""
        return "DP-AccMD"

    def init(self, params: Params) -> State:
        """Returns the state at ``params``; from outside the ball, where its ray enters it."""
        flat, unravel = ravel_pytree(widen(params))
        length = jnp.sum(jnp.abs(flat)) if self.ball == "l1" else jnp.linalg.norm(flat)
        outside = length > self.radius
        point = jnp.where(outside, flat * (self.radius / jnp.where(outside, length, 1)), flat)
        point = point.astype(flat.dtype)
        dual = to_dual(point, p_norm(self.dimension)) if self.ball == "l1" else point
        return State(_like(params, unravel(point)), point, dual, jnp.zeros((), jnp.int32))

    def step(self, key: Array, state: State, ask: base.Ask) -> tuple[State, Info]:
        """One noisy gradient, asked between y and z and used by both.

        x_{k+1} = r_k z_k + (1 - r_k) y_k; z_{k+1} the mirror step from z_k of length alpha_{k+1};
        y_{k+1} = r_k z_{k+1} + (1 - r_k) y_k; r_k = 2 / (k + 2) and r_k alpha_{k+1} = step_size.
        """
        before, unravel = ravel_pytree(widen(state.params))
        share = (2 / (state.taken + 2)).astype(before.dtype)
        asked = _like(state.params, unravel(share * state.point + (1 - share) * before))
        gradient = ask(key, self.query.name, asked)
        whole, _ = ravel_pytree(self.objective.regularize_gradient(gradient, widen(asked)))
        length = jnp.asarray(self.step_size).astype(before.dtype) / share
        point, dual = self._into_the_ball(state.dual - length * whole.astype(before.dtype))
        after = share * point + (1 - share) * before
        params = _like(state.params, unravel(after))
        info = Info(optax.tree.norm(whole), optax.tree.norm(after - before))
        return State(params, point, dual, state.taken + 1), info

    def _into_the_ball(self, dual: Array) -> tuple[Array, Array]:
        radius = jnp.asarray(self.radius).astype(dual.dtype)
        if self.ball == "l1":
            return from_dual(dual, p_norm(self.dimension), radius)
        point = dual * jnp.minimum(1, radius / jnp.maximum(jnp.linalg.norm(dual), radius))
        return point, point


def _like(params: Params, wide: Params) -> Params:
    return jax.tree.map(lambda w, leaf: leaf.astype(w.dtype), params, wide)
