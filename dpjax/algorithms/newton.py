"""DP-Newton with double noise (Ganesh et al. 2023): noisy gradients and noisy directions."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from dpjax import _validate, objectives
from dpjax._typing import Array, Params, pytree_dataclass
from dpjax._wide import at_least_float32
from dpjax.accounting import Event, PrivacyBudget, compose, gaussian_multiplier, round_up
from dpjax.algorithms import base, schedules
from dpjax.algorithms.base import StepInfo
from dpjax.oracles import GradientQuery, NewtonQuery

MAX_STEPS = 256
_STEPS = 12


class NewtonState(NamedTuple):
    """The state of DP-Newton; released."""

    params: Params
    iteration: Array


@pytree_dataclass
class Newton(base.FieldsAlgorithm):
    """Configuration of DP-Newton; made by ``dp_newton``."""

    gradient: GradientQuery
    direction: NewtonQuery
    step_size: Array | float

    title = "DP-Newton, double noise"

    @property
    def event(self) -> Event:
        return compose(query.event(int(self.steps)) for query in self.queries)

    def init(self, params: Params) -> NewtonState:
        return NewtonState(params, jnp.array(0))

    def step(self, key: Array, state: NewtonState, ask: base.Ask) -> tuple[NewtonState, StepInfo]:
        # w - step_size (f(H) (gradient + first noise) + second noise), algorithm 3.
        wide = at_least_float32(state.params)
        noisy = self.objective.regularize_gradient(ask(self.gradient, state.params), wide)
        gradient, unravel = ravel_pytree(noisy)
        # Asked of the unit vector: the noise then grows with the gradient's norm, which is known.
        norm = jnp.linalg.norm(gradient)
        along = jnp.where(norm > 0, gradient / jnp.where(norm > 0, norm, 1), 0)
        direction = ask(self.direction, state.params, along=along)
        move = -schedules.at_step(self.step_size, state.iteration) * norm * direction
        params = jax.tree.map(
            lambda w, m: w + m.astype(w.dtype), state.params, unravel(move.astype(gradient.dtype))
        )
        return NewtonState(params, state.iteration + 1), StepInfo(norm, jnp.linalg.norm(move))


def dp_newton(
    objective: objectives.Objective,
    budget: PrivacyBudget,
    *,
    data_size: int,
    dimension: int,
    steps: int | None = None,
    modification: str = "add",
    floor: float | None = None,
    gradient_share: float = 0.5,
    step_size: optax.ScalarOrSchedule = 1.0,
    clip_norm: float | None = None,
    hessian_clip_norm: float | None = None,
    accountant: str = "pld",
) -> Newton:
    """Returns the private Newton method with double noise, calibrated to the budget.

    Args:
      objective: what to minimise; meant for convex losses of a margin. For others the negative part
        of the curvature counts as 0.
      steps: T; by default 12.
      modification: ``"add"`` (H + floor I) or ``"clip"`` (eigenvalues below the floor rise to it).
      floor: lambda_0; by default the paper's (trace / (rho n^2))^(1/3), rho the zCDP of one
        direction, with the Hessian clip norm in place of the trace.
      gradient_share: part of the privacy, as mu^2 of Gaussian differential privacy, that goes to
        the gradients.
      step_size: of the Newton step, a number or an optax schedule; 1 is the paper's, smaller is
        damped.
      the others: the same in all factories, see ``help(dpjax.algorithms)``.

    Privacy: releases T noisy gradients g and T noisy directions f(H) g, each one Gaussian; H itself
      never leaves. The second noise is scaled by |g|, which was released before. See
      ``NewtonQuery`` for the sensitivity.

    Reference: Ganesh, Haghifam, Steinke and Thakurta, "Faster differentially private convex
      optimization via second-order methods" (2023), algorithm 3, accounted exactly.

    >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-6)
    >>> algorithm = dp_newton(objectives.logistic(), budget, data_size=10_000, dimension=10)
    >>> [(release.name, release.count) for release in algorithm.event.releases]
    [('gradient', 12), ('newton_direction', 12)]
    """
    problem = base.check_problem(objective, budget, data_size, dimension, accountant)
    base.check_smooth(objective, "DP-Newton")
    clip, hessian_clip = base.clip_norms(objective, clip_norm, hessian_clip_norm)
    steps = _validate.int32_count("steps", _STEPS if steps is None else steps)
    fraction = _validate.open_unit("gradient_share", gradient_share)
    draws = 2 * problem.dimension  # a gradient and a direction
    multiplier = gaussian_multiplier(budget, steps, accountant, noise_draws=draws)
    if floor is None:
        # It bounds the inverse's sensitivity: the more noise, the higher it pays to lift it. The
        # paper estimates the trace at every step, which costs budget and moves its cube root by
        # little. zCDP of one direction is 1 / (2 multiplier^2), for records that move the mean by
        # 1/n.
        for_direction = round_up(multiplier / math.sqrt(1 - fraction))
        moved = problem.setting.sampler.scale(for_direction, budget.relation)
        floor = float((2 * hessian_clip * moved**2) ** (1 / 3))
    algorithm = Newton(
        gradient=problem.part(GradientQuery, multiplier, fraction, clip_norm=clip),
        direction=problem.part(
            NewtonQuery,
            multiplier,
            1 - fraction,
            clip_norm=hessian_clip,
            floor=base.positive_leaf("floor", floor),
            modification=modification,
            dimension=problem.dimension,
        ),
        step_size=schedules.scheduled("step_size", step_size, problem, steps, base.positive_leaf),
        **problem.plan(steps, MAX_STEPS),
    )
    problem.check_spent(algorithm.event)
    return algorithm
