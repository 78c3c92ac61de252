"""Noise, step size and T of DP-AccMD, and its factory ``dp_accelerated_mirror_descent``."""

import math
import warnings
from typing import NamedTuple

from dpjax import _validate
from dpjax.accounting import PrivacyBudget
from dpjax.algorithms import base
from dpjax.algorithms.batches import calibrated_query
from dpjax.algorithms.common import LONGEST, proximal
from dpjax.algorithms.gradient_descent_calibration import noise_of_one, paper_multiplier
from dpjax.algorithms.mirror_descent import MirrorDescent
from dpjax.algorithms.mirror_maps import p_norm
from dpjax.objectives import L1Ball, L2Ball, Objective
from dpjax.oracles import GradientQuery


class Geometry(NamedTuple):
    """What theorem 5.4 needs to know of a ball.

    Attributes:
      spread: the largest Bregman divergence from the centre, D.
      noise: what a standard normal vector adds to a mirror step, W: the largest trace of the
        inverse Hessian of psi, p on the l2 ball and 1 on the l1 ball.
    """

    spread: float
    noise: float


def dp_accelerated_mirror_descent(
    objective: Objective,
    budget: PrivacyBudget,
    *,
    data_size: int,
    dimension: int,
    domain: L2Ball | L1Ball | None = None,
    steps: int | None = None,
    step_size: float | None = None,
    smoothness: float | None = None,
    clip_norm: float | None = None,
    accountant: str = "pld",
    unsafe_fast_noise: bool = False,
) -> MirrorDescent:
    """Returns private accelerated mirror descent: convex losses in an l2 or l1 ball, p above n too.

    On the l1 ball the noise is felt in the largest of its p entries and not in their norm, so that
    the bound on the excess risk grows with ln p, that of projected gradient descent with sqrt(p).

    Args:
      objective: what to minimise, convex; a regularizer must be smooth and is added exactly.
      budget: what a whole run may spend.
      data_size: the declared public number of records n.
      dimension: number of parameters p.
      domain: ``L2Ball(radius)`` or ``L1Ball(radius)`` of ``dpjax.objectives``; required. A start
        outside is brought back along its ray; the step size is that of a start at the centre.
      steps: T; by default where the first term of the bound below is a quarter of the second, at
        most 2,048.
      step_size: r_k alpha_{k+1} in units of the l2 step, at most 1 / smoothness; by default the one
        that minimises the bound for T steps.
      smoothness: L with respect to the norm of the ball; by default the objective's l2 smoothness,
        which serves both. Entries |x_ij| <= b make it b^2 times that of the l1 norm, and T about
        b times that many: declare it where b is public. Only utility depends on it.
      clip_norm: bound on one record's gradient; by default the objective's Lipschitz constant.
      accountant: ``"pld"``, ``"rdp"``, or ``"paper"`` for the noise of the paper's theorem 5.3 with
        the constant of ``dp_gradient_descent`` (replace-one).
      unsafe_fast_noise: plain float32 noise, see ``mechanisms.perturb``; NOT for a release.

    Returns:
      A frozen pytree for ``solve``.

    Raises:
      ValueError: for a domain that is none, not bounded or no such ball, an argument out of range,
        a constant that is missing, or a budget that no noise reaches.

    Privacy: releases T clipped mean gradients with Gaussian noise, one an iteration; z, y and all
      that lies between them are post-processing.

    Reference: Wang, Ye and Xu (2017), algorithm 3, with these corrections.

      - As printed y_{k+1} minimises a model with the exact gradient and y_T is released, which is
        not private. Here the noisy gradient that moves z moves y too.
      - As printed the model has no closed form on the l1 ball. Here y_{k+1} = r_k z_{k+1} + (1 -
        r_k) y_k, the point that the proof compares with (Tseng 2008; Lan 2012), on both balls.
      - alpha_{k+1} = (k + 2) / (4 L) is for L with respect to |.|_C, in which w is 1-strongly
        convex. For L of the l2 norm it lacks a factor: |v|_2 <= R |v|_C, so L R^2 serves, with the
        radius R of the ball and not its diameter.

      All is stated here for psi = R^2 w, which is 1-strongly convex in |.| = R |.|_C: |x|^2 / 2 on
      the l2 ball, a p-norm function on the l1 ball. With h = r_k alpha_{k+1} below 1 / L, D = max
      psi and S = sum of j^2 for j = 2 .. T + 1, after Lan (2012), theorem 2,

        E F(y_T) - min F <= (4 D / h + h V S / (2 (1 - L h))) / (T + 1)^2,

      where V = E |noise|_*^2 is at most sigma^2 (width^2 + 1), width that of the unit ball. It is
      least at 1 / h = L + sqrt(V S / (8 D)), and for sigma^2 = T sigma_1^2 its second term then
      hardly depends on T. On the l1 ball V counts the largest of p entries, about 2 ln p; to first
      order in the step the noise costs what the inverse Hessian of psi makes of it, sigma^2 at
      most. The default h and T take that for V; with the bound's own the steps come out too short.

    >>> from dpjax import objectives
    >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-6)
    >>> algorithm = dp_accelerated_mirror_descent(objectives.logistic(), budget,
    ...     data_size=10_000, dimension=20_000, domain=objectives.L1Ball(20.0))
    >>> algorithm.steps
    764
    """
    problem = base.check_problem(objective, budget, data_size, dimension, accountant)
    clip, _ = base.clip_norms(objective, clip_norm, 1.0)
    ball = geometry(domain, problem.dimension)
    bound = _smoothness(objective, smoothness)
    if steps is None:
        steps = theory_steps(ball, bound, noise_of_one(problem, clip))
    steps = _validate.positive_int("steps", steps)
    query = calibrated_query(
        problem,
        GradientQuery,
        (clip,),
        steps,
        batch_size=problem.data_size,
        capacity=None,
        unsafe_fast_noise=unsafe_fast_noise,
        multiplier=paper_multiplier(budget, steps) if accountant == "paper" else None,
    )
    if step_size is None:
        step_size = theory_step_size(ball, bound, float(query.stddev), steps)
    return MirrorDescent(
        query=query,
        step_size=_check_step_size(step_size, bound),
        radius=base.positive_leaf("radius", domain.radius),  # pyright: ignore
        steps=steps,
        declared=base.Declared(budget.epsilon, budget.delta),
        ball="l1" if isinstance(domain, L1Ball) else "l2",
        max_steps=max(steps, LONGEST),
        dimension=problem.dimension,
        accountant=accountant,
    )


def geometry(domain: L2Ball | L1Ball | None, dimension: int) -> Geometry:
    """Returns the numbers of a ball.

    Raises:
      ValueError: for no domain, or one whose Bregman projection is not known here.
    """
    if domain is None:
        raise ValueError(
            "domain is required: DP-AccMD stays in a bounded set. Pass L2Ball(radius) or "
            "L1Ball(radius) of dpjax.objectives."
        )
    if not isinstance(domain, L2Ball | L1Ball):
        raise ValueError(
            f"domain must be an L2Ball or an L1Ball of dpjax.objectives, got {domain!r}; "
            "dp_gradient_descent projects on any convex set that is the objective's regularizer."
        )
    if isinstance(domain, L2Ball):
        return Geometry(domain.radius**2 / 2, float(dimension))
    return Geometry(domain.radius**2 / (2 * p_norm(dimension).modulus), 1.0)


def theory_steps(ball: Geometry, smoothness: float, noise_of_one: float) -> int:
    """Returns the T at which 4 D L / (T + 1)^2 is a quarter of the noise's sqrt(8 D V / (3 T)).

    Where they are equal, as in theorem 5.4, half as many gradients have 1.6 times the bound.
    """
    ratio = smoothness * math.sqrt(6 * ball.spread / ball.noise) / noise_of_one
    return int(min(max(round(2 * math.sqrt(ratio)) - 1, 1), LONGEST))


def theory_step_size(ball: Geometry, smoothness: float, stddev: float, steps: int) -> float:
    """Returns the step size that minimises the bound after ``steps`` steps."""
    squares = (steps + 1) * (steps + 2) * (2 * steps + 3) / 6 - 1
    noise = stddev * math.sqrt(ball.noise * squares / (8 * ball.spread))
    return 1 / (smoothness + noise)


def _smoothness(objective: Objective, given: float | None) -> float:
    if proximal(objective):
        raise ValueError(
            f"the regularizer of {objective.name} must be smooth: pass a set as domain=, and an "
            "l1 penalty as the L1Ball it stands for."
        )
    found = objective.smoothness if given is None else given
    if found is None:
        raise ValueError(f"smoothness is required: {objective.name} has no smoothness constant.")
    return _validate.normal("smoothness", found)


def _check_step_size(step_size: float, smoothness: float) -> float:
    leaf = base.positive_leaf("step_size", step_size)
    if leaf > 1 / smoothness * (1 + 1e-6):
        warnings.warn(
            f"step_size={step_size:g} is above 1 / smoothness = {1 / smoothness:g}, to which the "
            "theory of DP-AccMD holds; the guarantee of privacy stands.",
            UserWarning,
            stacklevel=3,
        )
    return leaf
