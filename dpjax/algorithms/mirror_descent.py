"""DP-AccMD (Wang, Ye and Xu 2017, algorithm 3): accelerated mirror descent inside a ball."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from dpjax import _validate, objectives
from dpjax._typing import Array, Params, pytree_dataclass, static
from dpjax._wide import at_least_float32
from dpjax.accounting import PrivacyBudget
from dpjax.algorithms import base
from dpjax.algorithms.base import StepInfo
from dpjax.algorithms.gradient_descent import noise_of_one
from dpjax.oracles import GradientQuery


class MirrorState(NamedTuple):
    """The state of DP-AccMD; all of it released."""

    params: Params
    """y of the paper, which is the output."""
    point: Array
    """z of the paper, shape (p,)."""
    dual: Array
    """Gradient of the mirror function at z, shape (p,)."""
    count: Array


@pytree_dataclass
class MirrorDescent(base.SingleQueryAlgorithm):
    """Configuration of DP-AccMD; made by ``dp_accelerated_mirror_descent``."""

    query: GradientQuery
    step_size: Array | float
    radius: Array | float
    ball: str = static()
    """``"l1"`` or ``"l2"``."""

    title = "DP-AccMD"

    def init(self, params: Params) -> MirrorState:
        flat, unravel = ravel_pytree(at_least_float32(params))
        length = jnp.sum(jnp.abs(flat)) if self.ball == "l1" else jnp.linalg.norm(flat)
        # A start outside is brought back along its ray; inside, no division by a length of 0.
        outside = length > self.radius
        point = jnp.where(outside, flat * (self.radius / jnp.where(outside, length, 1)), flat)
        point = point.astype(flat.dtype)
        dual = to_dual(point, p_norm(self.dimension)) if self.ball == "l1" else point
        start = optax.tree.cast_like(unravel(point), params)
        return MirrorState(start, point, dual, jnp.zeros((), jnp.int32))

    def step(self, key: Array, state: MirrorState, ask: base.Ask) -> tuple[MirrorState, StepInfo]:
        # One noisy gradient, asked at x between y and z and used by both:
        # x_{k+1} = r_k z_k + (1 - r_k) y_k; z_{k+1} the mirror step from z_k of length alpha_{k+1};
        # y_{k+1} = r_k z_{k+1} + (1 - r_k) y_k; r_k = 2 / (k + 2) and r_k alpha_{k+1} = step_size.
        before, unravel = ravel_pytree(at_least_float32(state.params))
        weight = (2 / (state.count + 2)).astype(before.dtype)
        between = unravel(weight * state.point + (1 - weight) * before)
        asked = optax.tree.cast_like(between, state.params)
        # The regularizer's gradient belongs to the point that was asked, after its rounding.
        gradient = ask(self.query, asked)
        gradient = self.objective.regularize_gradient(gradient, at_least_float32(asked))
        gradient, _ = ravel_pytree(gradient)
        length = jnp.asarray(self.step_size).astype(before.dtype) / weight
        point, dual = self._into_the_ball(state.dual - length * gradient.astype(before.dtype))
        after = weight * point + (1 - weight) * before
        params = optax.tree.cast_like(unravel(after), state.params)
        info = StepInfo(optax.tree.norm(gradient), optax.tree.norm(after - before))
        return MirrorState(params, point, dual, state.count + 1), info

    def _into_the_ball(self, dual: Array) -> tuple[Array, Array]:
        """Returns the mirror step's point in the ball, and the mirror function's gradient there."""
        radius = jnp.asarray(self.radius).astype(dual.dtype)
        if self.ball == "l1":
            return from_dual(dual, p_norm(self.dimension), radius)
        point = dual * jnp.minimum(1, radius / jnp.maximum(jnp.linalg.norm(dual), radius))
        return point, point


def dp_accelerated_mirror_descent(
    objective: objectives.Objective,
    budget: PrivacyBudget,
    *,
    data_size: int,
    dimension: int,
    domain: objectives.L2Ball | objectives.L1Ball | None = None,
    steps: int | None = None,
    step_size: float | None = None,
    smoothness: float | None = None,
    clip_norm: float | None = None,
    accountant: str = "pld",
) -> MirrorDescent:
    """Returns private accelerated mirror descent: convex losses in an l2 or l1 ball, p above n too.

    On the l1 ball the noise is felt in the largest of its p entries and not in their norm, so that
    the bound on the excess risk grows with ln p, that of projected gradient descent with sqrt(p).

    Args:
      objective: what to minimise, convex; its regularizer must be smooth.
      domain: ``L2Ball(radius)`` or ``L1Ball(radius)`` of ``dpjax.objectives``; required. A start
        outside is brought back along its ray; the step size is that of a start at the centre.
      steps: T; by default where the first term of the bound below is a quarter of the second, at
        most 2,048.
      step_size: r_k alpha_{k+1} in units of the l2 step, at most 1 / smoothness; by default the one
        that minimises the bound for T steps.
      smoothness: L with respect to the norm of the ball; by default the objective's l2 smoothness,
        which serves both. Entries |x_ij| <= b make it b^2 times that of the l1 norm, and T about
        b times that many: declare it where b is public. Only utility depends on it.
      the others: the same in all factories, see ``help(dpjax.algorithms)``.

    Privacy: releases T clipped mean gradients with Gaussian noise, one an iteration; z, y and all
      that lies between them are post-processing.

    Reference: Wang, Ye and Xu (2017), algorithm 3, with these corrections.

      - As printed y_{k+1} minimises a model with the exact gradient and y_T is released, which is
        not private, and on the l1 ball has no closed form. Here y_{k+1} = r_k z_{k+1} + (1 - r_k)
        y_k, the point that the proof compares with (Tseng 2008; Lan 2012), on both balls.
      - alpha_{k+1} = (k + 2) / (4 L) is for L with respect to |.|_C, in which w is 1-strongly
        convex. For L of the l2 norm it lacks a factor: |v|_2 <= R |v|_C, so L R^2 serves, with the
        radius R of the ball and not its diameter.

      All is stated here for psi = R^2 w, which is 1-strongly convex in |.| = R |.|_C: |x|^2 / 2 on
      the l2 ball, a p-norm function on the l1 ball. With h = r_k alpha_{k+1} below 1 / L, D = max
      psi and S = sum of j^2 for j = 2 .. T + 1, after Lan (2012), theorem 2,

        E F(y_T) - min F <= (4 D / h + h V S / (2 (1 - L h))) / (T + 1)^2,

      where V = E |noise|_*^2 is at most sigma^2 (width^2 + 1), width that of the unit ball.

    >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-6)
    >>> algorithm = dp_accelerated_mirror_descent(objectives.logistic(), budget,
    ...     data_size=10_000, dimension=20_000, domain=objectives.L1Ball(20.0))
    >>> algorithm.steps
    764
    """
    problem = base.check_problem(objective, budget, data_size, dimension, accountant)
    clip, _ = base.clip_norms(objective, clip_norm, 1.0)
    ball = geometry(domain, problem.dimension)
    if base.proximal(objective):
        raise ValueError(
            f"the regularizer of {objective.name} must be smooth: pass a set as domain=, and an "
            "l1 penalty as the L1Ball it stands for."
        )
    bound = base.required("smoothness", smoothness, objective.smoothness, objective)
    bound = _validate.normal("smoothness", bound)
    if steps is None:
        steps = theory_steps(ball, bound, noise_of_one(problem, clip))
    steps = _validate.int32_count("steps", steps)
    query = base.calibrated_query(problem, GradientQuery, steps, problem.data_size, clip_norm=clip)
    if step_size is None:
        step_size = theory_step_size(ball, bound, float(query.stddev), steps)
    step_size, most = base.positive_leaf("step_size", step_size), 1 / bound
    holds = "to which the theory of DP-AccMD holds; the guarantee of privacy stands."
    base.warn_if_above(step_size, most, f"1 / smoothness = {most:g}, {holds}")
    return MirrorDescent(
        query=query,
        step_size=step_size,
        radius=base.positive_leaf("radius", domain.radius),  # pyright: ignore
        ball="l1" if isinstance(domain, objectives.L1Ball) else "l2",
        **problem.plan(steps),
    )


class Geometry(NamedTuple):
    """The numbers of a ball in theorem 5.4."""

    spread: float
    """The largest Bregman divergence from the centre, D."""
    noise: float
    """What a standard normal vector adds to a mirror step: the largest trace of psi's inverse
    Hessian, p on the l2 ball and 1 on the l1 ball."""


def geometry(domain: objectives.L2Ball | objectives.L1Ball | None, dimension: int) -> Geometry:
    """Returns the numbers of a ball, or raises for a domain without a Bregman projection here."""
    if domain is None:
        raise ValueError(
            "domain is required: DP-AccMD stays in a bounded set. Pass L2Ball(radius) or "
            "L1Ball(radius) of dpjax.objectives, on the command line --domain l2:10 or l1:10."
        )
    if not isinstance(domain, objectives.L2Ball | objectives.L1Ball):
        raise ValueError(
            f"domain must be an L2Ball or an L1Ball of dpjax.objectives, got {domain!r}; "
            "dp_gradient_descent projects on any convex set that is the objective's regularizer."
        )
    if isinstance(domain, objectives.L2Ball):
        return Geometry(domain.radius**2 / 2, float(dimension))
    return Geometry(domain.radius**2 / (2 * p_norm(dimension).modulus), 1.0)


# The bound on the excess risk is least at 1 / h = L + sqrt(V S / (8 D)), and for sigma^2 =
# T sigma_1^2 its second term then hardly depends on T. On the l1 ball V counts the largest of p
# entries, about 2 ln p; to first order in the step the noise costs what the inverse Hessian of psi
# makes of it, sigma^2 at most. The default h and T take that for V: with the bound's own V the
# steps come out too short.


def theory_steps(ball: Geometry, smoothness: float, noise_of_one: float) -> int:
    """Returns the T at which 4 D L / (T + 1)^2 is a quarter of the noise's sqrt(8 D V / (3 T))."""
    # Where they are equal, as in theorem 5.4, half as many gradients have 1.6 times the bound.
    ratio = smoothness * math.sqrt(6 * ball.spread / ball.noise) / noise_of_one
    return int(min(max(round(2 * math.sqrt(ratio)) - 1, 1), base.MAX_STEPS))


def theory_step_size(ball: Geometry, smoothness: float, stddev: float, steps: int) -> float:
    """Returns the step size that minimises the bound after ``steps`` steps."""
    squares = (steps + 1) * (steps + 2) * (2 * steps + 3) / 6 - 1  # of 2 .. T + 1
    noise = stddev * math.sqrt(ball.noise * squares / (8 * ball.spread))
    return 1 / (smoothness + noise)


class PNorm(NamedTuple):
    """psi(x) = |x|_q^2 / (2 modulus), which is 1-strongly convex with respect to |.|_1."""

    q: float
    # (q - 1) p^(-2 (q - 1) / q), since |x|_q^2 / 2 is (q - 1)-strongly convex with respect to
    # |.|_q, and |x|_1 is at most p^((q - 1) / q) |x|_q.
    modulus: float


def p_norm(dimension: int) -> PNorm:
    """Returns the p-norm function of least range on the l1 ball.

    Reference: Beck and Teboulle (2003), "Mirror descent and nonlinear projected subgradient
      methods", for the p-norm functions.
    """
    # With s = (q - 1) / q its range is e^(2 s ln p) (1 - s) / (2 s) on the unit ball, least where
    # 2 s (1 - s) ln p = 1: about e ln p, where the usual q = 1 + 1 / ln p has e^2 ln p / 2. Below
    # 8 coordinates q = 2 is best.
    log = math.log(_validate.positive_int("dimension", dimension))
    s = (1 - math.sqrt(1 - 2 / log)) / 2 if log > 2 else 0.5
    q = 1 / (1 - s)
    return PNorm(q, (q - 1) * math.exp(-2 * s * log))


def to_dual(x: Array, psi: PNorm) -> Array:
    """Returns the gradient of ``psi`` at ``x``, shape (p,)."""
    # Powers of the ratios to the largest entry neither overflow nor underflow.
    top = jnp.max(jnp.abs(x))
    ratio = jnp.abs(x) / _above_zero(top)
    norm = jnp.sum(ratio**psi.q) ** (1 / psi.q)
    return top / psi.modulus * _above_zero(norm) ** (2 - psi.q) * ratio ** (psi.q - 1) * jnp.sign(x)


def from_dual(dual: Array, psi: PNorm, radius: Array | float) -> tuple[Array, Array]:
    """Returns argmin over |z|_1 <= ``radius`` of psi(z) - <dual, z>, and psi's gradient there."""
    # The gradient at the minimum is ``dual`` with every entry brought nearer to zero by one
    # threshold nu >= 0, and the point's l1 norm grows as nu falls. What is left of the largest
    # entry, u, is found by bisection: it is at most radius / modulus, because |z|_1 >= |z|_q >=
    # modulus u.
    conjugate = psi.q / (psi.q - 1)
    # Distances below the largest entry, so that a threshold close to it keeps its digits.
    top = jnp.max(jnp.abs(dual))
    below = jnp.abs(dual) - top

    def at(left: Array) -> tuple[Array, Array]:
        shrunk = jnp.maximum(below + left, 0)
        ratio = shrunk / _above_zero(left)
        norm = _above_zero(jnp.sum(ratio**conjugate)) ** (1 / conjugate)
        return psi.modulus * left * norm ** (2 - conjugate) * ratio ** (conjugate - 1), shrunk

    def halve(_: int, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bracket
        middle = (low + high) / 2
        inside = jnp.sum(at(middle)[0]) <= radius
        return jnp.where(inside, middle, low), jnp.where(inside, high, middle)

    highest = jnp.minimum(jnp.asarray(radius / psi.modulus, dual.dtype), top)
    halvings = jnp.finfo(dual.dtype).nmant + 2  # down to the last bit of the mantissa
    left, _ = jax.lax.fori_loop(0, halvings, halve, (jnp.zeros_like(top), highest))
    point, shrunk = at(left)
    return point * jnp.sign(dual), shrunk * jnp.sign(dual)


def _above_zero(value: Array) -> Array:
    return jnp.maximum(value, jnp.finfo(value.dtype).tiny)
