"""Perturbed gradient descent (Tholeti et al. 2021), with noise uniform in a ball: a baseline."""

import dataclasses
import math

from dpjax import _validate, objectives
from dpjax.accounting import PrivacyBudget, ball_radius, ball_share, epsilon, round_up
from dpjax.algorithms import base
from dpjax.algorithms.descent import Descent, Steps
from dpjax.oracles import BallQuery, batch_sampler

TITLE = "PrGD (ball noise)"
_STEPS = 10
# Of delta, set aside: as a leaf it is rounded to float32, and printed to one part in 10^7.
_ROUNDING = 2e-7
# Noise of a larger multiplier would come near the end of float32's range.
_LARGEST = 2.0**100


def perturbed_gradient_descent(
    objective: objectives.Objective,
    budget: PrivacyBudget,
    *,
    data_size: int,
    dimension: int,
    batch_size: int = 1,
    steps: int | None = None,
    step_size: float | None = None,
    radius: float | None = None,
    clip_norm: float | None = None,
    sampling: str = "poisson",
    max_batch_size: int | None = None,
    noise: str = "ball",
    acknowledge_weak_delta: bool = False,
    accountant: str = "pld",
) -> Descent:
    """Returns gradient descent with noise uniform in a ball: a baseline, useless beside Gaussians.

    At the same delta and epsilon = 1 Gaussian noise is 10^4 times smaller: to train a model take
    ``dp_gradient_descent`` or ``dp_sgd``. This is the paper's method, for comparisons.

    Args:
      budget: what a whole run may spend. The noise is calibrated to its delta alone; the guarantee
        is (0, delta), and so holds at every epsilon.
      batch_size: by default 1, as the paper's.
      steps: T; by default 10, as the radius grows with T.
      step_size: by default such that the noise alone moves the parameters by about 1 in all, and at
        most 1 / smoothness.
      radius: of the ball, in the units of the mean gradient; by default the smallest that delta
        allows. The paper's is 1.0.
      clip_norm: as in all factories, C. The paper's distance of gradients D is 2 C under
        ``replace_one`` and C elsewhere.
      noise: ``"ball"``. Noise from its surface, the sphere, has no privacy at all and is refused.
      acknowledge_weak_delta: True allows a delta above 1/n, which publishing a random record in
        full would meet.
      accountant: ``"pld"``, the closed form; ball noise has no Renyi divergence.
      the others: the same in all factories, see ``help(dpjax.algorithms)``.

    Privacy: releases T clipped mean gradients with ball noise, each of its own batch. It is
      (0, 1 - (1 - q delta_1)^T)-private, exactly: with up to that probability an answer shows for
      certain that a record is there. The paper calls delta of order T/n private; publishing T
      random records in full has the same delta.

    Reference: Tholeti et al., "On the differentially private nature of perturbed gradient
      descent" (2021), algorithm 1 and theorem 1: one index a step is ``batch_size=1`` with
      ``sampling="without_replacement"``.

    >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-5)
    >>> algorithm = perturbed_gradient_descent(
    ...     objectives.logistic(), budget, data_size=7_000, dimension=10, steps=5)
    >>> epsilon(algorithm.event, 1e-5, "zero_out"), round(float(algorithm.query.radius))
    (0.0, 93)
    """
    problem = base.check_problem(objective, budget, data_size, dimension, accountant)
    base.check_smooth(objective, "perturbed_gradient_descent")
    _check_choices(budget, problem.data_size, noise, accountant, acknowledge_weak_delta)
    clip, _ = base.clip_norms(objective, clip_norm, 1.0)
    steps = _validate.int32_count("steps", _STEPS if steps is None else steps)
    n, dimension = problem.data_size, problem.dimension
    sampler = batch_sampler(batch_size, n, budget, steps, max_batch_size, sampling)
    unit = BallQuery(
        setting=problem.setting.drawn_by(sampler),
        noise_multiplier=1.0,
        clip_norm=clip,
        dimension=dimension,
    )
    if radius is None:
        # What overflowing batches cost of delta, at epsilon 0.
        delta = (1 - _ROUNDING) * budget.delta - 2 * steps * sampler.overflow
        multiplier = ball_radius(1.0, ball_share(delta, steps, sampler.probability), dimension)
    else:
        multiplier = base.positive_leaf("radius", radius) / float(unit.sensitivity)
    # A coordinate of a uniform point in the ball has standard deviation radius / sqrt(d + 2).
    multiplier = round_up(multiplier / math.sqrt(dimension + 2))
    if multiplier > _LARGEST:
        raise ValueError(f"delta={budget.delta:g} is too small for any noise here; raise it.")
    query = dataclasses.replace(unit, noise_multiplier=multiplier)
    event = query.event(steps)
    base.check_noise(event)
    # Not ``check_spent``: epsilon is 0 or infinite at this delta, and the error should state delta.
    if epsilon(event, (1 - _ROUNDING) * budget.delta, budget.relation) > 0:
        (release,) = event.releases
        # Overflowing batches cost (1 + e^epsilon) times their probability, and epsilon is 0.
        delta = release.certain_delta() + 2 * event.failure_probability
        raise ValueError(
            f"this noise gives delta {delta:.4g} at every epsilon ({budget.relation}), over the "
            f"budget of {budget.delta:g}; raise the radius, or leave it out."
        )
    if step_size is None:
        # T steps of independent noise move the parameters by sqrt(T) times one.
        step_size = 1 / (float(query.radius) * math.sqrt(steps))
        if objective.constants is not None:
            step_size = min(step_size, 1 / objective.constants.smoothness)
    rule = Steps(base.positive_leaf("step_size", step_size))
    return Descent(query=query, rule=rule, name=TITLE, **problem.plan(steps))


def _check_choices(
    budget: PrivacyBudget, n: int, noise: str, accountant: str, acknowledged: bool
) -> None:
    if noise == "sphere":
        raise ValueError(
            "noise='sphere' has no privacy at all: every answer lies at exactly the radius from "
            "the true gradient, which distinguishes neighbours with certainty. Use 'ball'."
        )
    if noise == "gaussian":
        raise ValueError(
            "noise='gaussian' is not implemented here; use dp_gradient_descent(batch_size=...) or "
            "dp_sgd."
        )
    _validate.choice("noise", noise, ("ball",))
    if accountant == "rdp":
        raise ValueError("accountant='rdp' has no bound: ball noise has no Renyi divergence.")
    _validate.flag("acknowledge_weak_delta", acknowledged)
    if budget.delta > 1 / n and not acknowledged:
        raise ValueError(
            f"delta={budget.delta:g} is above 1/n = {1 / n:.3g}: a mechanism that publishes one "
            "random record in full is (0, 1/n)-private, and for ball noise delta is the whole "
            "guarantee, the same at every epsilon. Lower delta, or pass "
            "acknowledge_weak_delta=True to accept this one."
        )
