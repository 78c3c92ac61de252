"""What a trust-region step asks: gradient and Hessian, and how the noise is split between them."""

import math
from typing import Any

import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from dpjax import objectives
from dpjax._typing import Params
from dpjax.accounting import gaussian_multiplier, round_up
from dpjax.algorithms import base
from dpjax.oracles import GradientQuery, HessianQuery, JointQuery, SecondOrderAnswer

RELEASES = ("joint", "separate")
Queries = tuple[JointQuery] | tuple[GradientQuery, HessianQuery]
"""Queries for the quadratic model: a joint one, or one for the gradient and one for the Hessian."""


def ask_model(queries: Queries, params: Params, ask: base.Ask, **public: Any) -> SecondOrderAnswer:
    """Returns the noisy data terms at ``params``, steps 3 and 4 of algorithm 1."""
    if len(queries) == 1:
        return ask(queries[0], params, **public)
    gradient, hessian = (ask(query, params, **public) for query in queries)
    return SecondOrderAnswer(ravel_pytree(gradient)[0], hessian)


def spectral_scale(query: Any) -> float:
    """Returns the typical spectral norm of the noise on the mean Hessian, (p, p)."""
    # Of isometric noise, whose off-diagonal entries have 1 / sqrt(2) the diagonal's deviation.
    return float(query.hessian_stddev) * math.sqrt(2 * query.setting.dimension)


def queries_of(
    problem: base.Problem,
    count: int,
    release: str,
    clips: tuple[float | None, float | None],
    radius: float,
) -> tuple[Queries, bool]:
    """Returns the queries, for ``count`` answers, and whether clipping provably never acts."""
    objective, budget = problem.objective, problem.budget
    clip, hessian_clip = base.clip_norms(objective, *clips)
    draws = problem.dimension * (problem.dimension + 1)  # of gradient and Hessian
    joint = gaussian_multiplier(budget, count, problem.accountant, noise_draws=draws)
    if release == "joint":
        of_gradient, of_hessian, free = joint_weights(objective, *clips)
        weights = {"gradient_weight": of_gradient, "hessian_weight": of_hessian}
        unclipped = free and base.never_clips(objective, budget.relation, clip)
        return (problem.part(JointQuery, joint, 1.0, **weights),), unclipped
    unclipped = base.never_clips(objective, budget.relation, clip, hessian_clip)
    of_gradient, of_hessian = fractions(clip, hessian_clip, radius)
    gradient = problem.part(GradientQuery, joint, of_gradient, clip_norm=clip)
    hessian = problem.part(HessianQuery, joint, of_hessian, clip_norm=hessian_clip)
    return (gradient, hessian), unclipped


def fractions(clip: float, hessian_clip: float, radius: float) -> tuple[float, float]:
    """Returns the fractions of mu^2 for gradient and Hessian, for steps of length ``radius``."""
    # Minimises the model error sqrt(p) sigma_g r + |E| r^2 / 2 over a step of length r, with
    # |E| about tau sqrt(2 p): rho_g / rho_h = (sqrt(2) D_g / (D_F r))^(2/3), free of p.
    ratio = (math.sqrt(2) * clip / (hessian_clip * radius)) ** (2 / 3)
    fraction = min(max(ratio / (1 + ratio), 0.01), 0.99)
    return fraction, 1 - fraction


def joint_weights(
    objective: objectives.Objective, clip_norm: float | None, hessian_clip_norm: float | None
) -> tuple[float, float, bool]:
    """Returns the weights of a joint release, and whether the Hessian is free.

    By default they are the Lipschitz constant and the smoothness; for a loss of linear scores with
    constants they are such that the Hessian costs nothing, or little.
    """
    clip, hessian_clip = base.clip_norms(objective, clip_norm, hessian_clip_norm)
    # Also of a unit of several records: a mean of vectors within the joint bound is within it.
    linear, constants = objective.averaged, objective.constants
    if hessian_clip_norm is not None or linear is None:
        return clip, hessian_clip, False
    known = constants is not None
    if not known and linear.slope_within(jnp.zeros(())) is None:
        return clip, hessian_clip, False
    if (weights := linear.joint_weights(constants.lipschitz if known else clip)) is None:
        return clip, hessian_clip, False
    of_gradient, of_hessian = weights
    if clip_norm is not None:  # the gradient's weight is what was given
        return clip, round_up(clip * of_hessian), known and of_gradient == 1
    return round_up(clip * of_gradient), round_up(clip * of_hessian), known
