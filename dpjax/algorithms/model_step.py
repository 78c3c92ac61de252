"""A step on a noisy quadratic model, shared by all trust-region methods."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from dpjax._typing import Array, Params
from dpjax._wide import at_least_float32
from dpjax.algorithms.base import Ask
from dpjax.linalg import Solver, trust_region_step
from dpjax.objectives import Objective
from dpjax.oracles import GradientQuery, HessianQuery, JointQuery, SecondOrderAnswer

Queries = tuple[JointQuery] | tuple[GradientQuery, HessianQuery]
"""Queries for the quadratic model: a joint one, or one for the gradient and one for the Hessian."""


class TrustRegionState(NamedTuple):
    """The state of DP-TR and DP-STR; all of it released."""

    params: Params
    query_point: Params
    """Where the last answer was asked."""
    answer: SecondOrderAnswer
    multiplier: Array
    iteration: Array


class TrustRegionInfo(NamedTuple):
    """Metrics of a step; all of it released."""

    gradient_norm: Array
    """Norm of the noisy gradient, regularizer included, before the step; in subspace DP-TR, of
    the projected gradient."""
    multiplier: Array
    """Dual variable of the subproblem; 0 when the step lies inside the radius."""
    radius: Array
    """Radius of this iteration."""
    step_norm: Array
    """Length of the step taken."""
    model_decrease: Array
    """Decrease of the noisy, damped quadratic model."""


def start(params: Params) -> TrustRegionState:
    """Returns the state before the first step, at ``params``."""
    zero = jnp.zeros_like(ravel_pytree(at_least_float32(params))[0])
    answer = SecondOrderAnswer(zero, jnp.zeros((zero.size, zero.size), zero.dtype))
    # The multiplier is infinite, so that a rule which reads it cannot stop before the first step.
    return TrustRegionState(params, params, answer, jnp.array(jnp.inf, zero.dtype), jnp.array(0))


def ask_model(queries: Queries, params: Params, ask: Ask, **public: Any) -> SecondOrderAnswer:
    """Returns the noisy data terms at ``params``, steps 3 and 4 of algorithm 1."""
    if len(queries) == 1:
        return ask(queries[0], params, **public)
    gradient, hessian = (ask(query, params, **public) for query in queries)
    return SecondOrderAnswer(ravel_pytree(gradient)[0], hessian)


def spectral_scale(queries: Sequence[Any], dimension: int) -> float:
    """Returns the typical spectral norm of the noise on the mean Hessian, (p, p)."""
    # Of isometric noise, whose off-diagonal entries have 1 / sqrt(2) the diagonal's deviation.
    return float(queries[-1].hessian_stddev) * math.sqrt(2 * dimension)


# By default accelerators multiply matrices in 8 to 11 bits, and the step would be as inexact.
@jax.default_matmul_precision("highest")
def take_step(
    objective: Objective,
    state: TrustRegionState,
    answer: SecondOrderAnswer,
    radius: Array,
    damping: Array | float,
    subproblem: Solver,
) -> tuple[TrustRegionState, TrustRegionInfo]:
    """Returns the state after steps 5 and 6 of algorithm 1, and its metrics.

    ``answer`` holds the noisy data terms at ``state.params``; those of the objective's exact
    regularizer are added.

    Privacy: post-processing of the answer.
    """
    wide = at_least_float32(state.params)
    flat, unravel = ravel_pytree(wide)
    gradient = ravel_pytree(objective.regularize_gradient(unravel(answer.gradient), wide))[0]
    hessian = objective.regularize_hessian(answer.hessian, wide)
    # Noise must not pass for negative curvature: lift the spectrum by its typical size.
    damped = hessian + damping * jnp.eye(flat.size, dtype=hessian.dtype)
    move, info = minimize_model(gradient, damped, radius, subproblem)  # step 5
    params = optax.tree.cast_like(unravel(flat + move), state.params)  # step 6
    after = (params, state.params, answer, info.multiplier, state.iteration + 1)
    return TrustRegionState(*after), info


@jax.default_matmul_precision("highest")
def minimize_model(
    gradient: Array, hessian: Array, radius: Array, *solver: Solver
) -> tuple[Array, TrustRegionInfo]:
    """Returns the step of ``trust_region_step``, whose arguments it has, and its metrics."""
    move, multiplier = trust_region_step(gradient, hessian, radius, *solver)
    info = TrustRegionInfo(
        gradient_norm=jnp.linalg.norm(gradient),
        multiplier=multiplier,
        radius=radius,
        step_norm=jnp.linalg.norm(move),
        model_decrease=-(gradient @ move + move @ hessian @ move / 2),
    )
    return move, info
