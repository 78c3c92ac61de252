"""What a trust-region step asks: gradient and Hessian, and how the noise is split between them."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpjax import _validate, objectives
from dpjax._typing import Params
from dpjax.accounting import gaussian_multiplier, round_up
from dpjax.algorithms import base
from dpjax.oracles import (
    GradientQuery,
    HessianQuery,
    JointQuery,
    SecondOrderAnswer,
    WeightedQuery,
)

RELEASES = ("joint", "separate")
# The filter squares variances in float32; with less an answer is all noise.
LEAST_SHARE = 1e-8
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


def shares(weights: Any, steps: int, extra: bool, allowed: bool) -> np.ndarray | None:
    """Returns each answer's share of mu^2, float64 (T,), or None for equal ones.

    Args:
      weights: those of the T steps, public, or None.
      extra: whether an answer is asked after the steps, with the noise of the last one.
      allowed: whether a release is joint and every step is taken.

    Raises:
      ValueError: where weights are not allowed, or are no T normal numbers that sum to one,
        or one is below ``LEAST_SHARE`` times the largest.
    """
    if weights is None:
        return None
    if not allowed:
        raise ValueError("weights are for release='joint' and no stopping_alpha: leave them out.")
    try:
        shape = np.shape(weights)
    except ValueError:  # of a ragged list
        shape = ()
    if shape != (steps,):
        raise ValueError(
            f"weights must be a sequence of {steps} numbers, one for each step, got "
            f"{f'shape {shape}' if shape else _validate.shown(weights)}."
        )
    parts = [_validate.normal(f"weights[{i}]", weight) for i, weight in enumerate(weights)]
    if abs((total := math.fsum(parts)) - 1) > 1e-6:
        raise ValueError(
            f"weights are the steps' shares of the budget and must sum to one, got {total:.9g}: "
            "divide them by their sum."
        )
    if min(parts) < LEAST_SHARE * max(parts):
        raise ValueError(
            f"every weight must be at least {LEAST_SHARE:g} times the largest, got {min(parts):g} "
            f"beside {max(parts):g}: leave that step out."
        )
    parts += parts[-1:] * extra
    return np.asarray(parts) / math.fsum(parts)


def queries_of(
    problem: base.Problem,
    count: int,
    release: str,
    clips: tuple[float | None, float | None],
    radius: float,
    weights: np.ndarray | None = None,
) -> tuple[Queries, bool]:
    """Returns the queries, for ``count`` answers, and whether clipping provably never acts.

    Shares of mu^2 are equal, or ``weights`` (count,) of a joint release, see ``shares``.
    """
    objective, budget = problem.objective, problem.budget
    clip, hessian_clip = base.clip_norms(objective, *clips)
    draws = problem.dimension * (problem.dimension + 1)  # of gradient and Hessian
    joint = gaussian_multiplier(budget, count, problem.accountant, noise_draws=draws)
    if release == "joint":
        of_gradient, of_hessian, free = joint_weights(objective, *clips)
        of_parts = {"gradient_weight": of_gradient, "hessian_weight": of_hessian}
        unclipped = free and base.never_clips(objective, budget.relation, clip)
        if weights is None:
            return (problem.part(JointQuery, joint, 1.0, **of_parts),), unclipped
        # The multiplier is the last answer's, which the certificate and the error bars speak of.
        factors = np.array([round_up(math.sqrt(weights[-1] / w)) for w in weights], np.float32)
        last = count * weights[-1]
        query = problem.part(WeightedQuery, joint, last, factors=factors, **of_parts)
        return (query,), unclipped
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
