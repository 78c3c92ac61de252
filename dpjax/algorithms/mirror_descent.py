"""DP-AccMD (Wang, Ye and Xu 2017, algorithm 3): accelerated mirror descent inside a norm's ball."""

import math
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
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


@runtime_checkable
class MirrorMap(Protocol):
    """The set of all x with ``norm(x) <= radius``, and a function psi on it: a pytree.

    For a centrally symmetric convex set C and the paper's w: ``norm`` is R |.|_C, ``radius`` is R,
    the largest l2 norm in C, and psi is R^2 w. Points are flat, shape (p,), and keep their dtype.

    Privacy: post-processing; a map sees released values alone.
    """

    radius: Array | float
    spread: Array | float
    """D: a bound on psi in the set less psi(0)."""
    noise: Array | float
    """The largest trace of psi's inverse Hessian, or more, as a normal's mean squared dual norm."""

    def norm(self, x: Array) -> Array:
        """Returns |x|, shape (), not below the l2 norm (lemma 5.1)."""
        ...

    def value(self, x: Array) -> Array:
        """Returns psi(x), shape (): 1-strongly convex with respect to ``norm``."""
        ...

    def gradient(self, x: Array) -> Array:
        """Returns that of psi at ``x``."""
        ...

    def step(self, dual: Array) -> tuple[Array, Array]:
        """Returns z, the argmin over the set of psi(z) - <dual, z>, and psi's gradient at z."""
        ...


@pytree_dataclass
class BallMap(MirrorMap):
    """The l2 ball with psi(x) = |x|_2^2 / 2, or the l1 ball with the ``p_norm`` function."""

    radius: Array | float
    spread: Array | float
    noise: Array | float
    p_norm: "PNorm | None" = static()

    def norm(self, x: Array) -> Array:
        return jnp.sum(jnp.abs(x)) if self.p_norm else jnp.linalg.norm(x)

    def value(self, x: Array) -> Array:
        q, modulus = self.p_norm or (2.0, 1.0)
        return jnp.sum(jnp.abs(x) ** q) ** (2 / q) / (2 * modulus)

    def gradient(self, x: Array) -> Array:
        return to_dual(x, self.p_norm) if self.p_norm else x

    def step(self, dual: Array) -> tuple[Array, Array]:
        radius = jnp.asarray(self.radius).astype(dual.dtype)
        if self.p_norm:
            return from_dual(dual, self.p_norm, radius)
        point = dual * jnp.minimum(1, radius / jnp.maximum(jnp.linalg.norm(dual), radius))
        return point, point


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
    mirror_map: MirrorMap

    title = "DP-AccMD"

    def init(self, params: Params) -> MirrorState:
        flat, unravel = ravel_pytree(at_least_float32(params))
        length, radius = self.mirror_map.norm(flat), self.mirror_map.radius
        # A start outside is brought back along its ray; inside, no division by a length of 0.
        outside = length > radius
        point = jnp.where(outside, flat * (radius / jnp.where(outside, length, 1)), flat)
        point = point.astype(flat.dtype)
        dual = self.mirror_map.gradient(point).astype(flat.dtype)
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
        moved = self.mirror_map.step(state.dual - length * gradient.astype(before.dtype))
        point, dual = (part.astype(before.dtype) for part in moved)
        after = weight * point + (1 - weight) * before
        params = optax.tree.cast_like(unravel(after), state.params)
        info = StepInfo(optax.tree.norm(gradient), optax.tree.norm(after - before))
        return MirrorState(params, point, dual, state.count + 1), info


def dp_accelerated_mirror_descent(
    objective: objectives.Objective,
    budget: PrivacyBudget,
    *,
    data_size: int,
    dimension: int,
    domain: objectives.L2Ball | objectives.L1Ball | None = None,
    mirror_map: MirrorMap | None = None,
    steps: int | None = None,
    step_size: float | None = None,
    smoothness: float | None = None,
    clip_norm: float | None = None,
    accountant: str = "pld",
) -> MirrorDescent:
    """Returns private accelerated mirror descent: convex losses in a bounded set, p above n too.

    On the l1 ball the noise is felt in the largest of its p entries and not in their norm, so that
    the bound on the excess risk grows with ln p, that of projected gradient descent with sqrt(p).

    Args:
      objective: what to minimise, convex; its regularizer must be smooth.
      domain: ``L2Ball(radius)`` or ``L1Ball(radius)`` of ``dpjax.objectives``, each with a map of
        dpjax's; required, unless ``mirror_map`` is given. A start outside is brought back along its
        ray; the step size is that of a start at the centre.
      mirror_map: another centrally symmetric convex set and its mirror function, a ``MirrorMap``;
        refused unless it is 1-strongly convex, with the right step, at 20 random pairs.
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
        y_k, the point that the proof compares with (Tseng 2008; Lan 2012), in every set.
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
    if mirror_map is None:
        mirror_map = map_of(domain, problem.dimension)
    elif domain is None:
        mirror_map = _checked_map(mirror_map, problem.dimension, smoothness is None)
    else:
        raise ValueError("give domain or mirror_map, which has a set of its own, not both.")
    if base.proximal(objective):
        raise ValueError(
            f"the regularizer of {objective.name} must be smooth: pass a set as domain=, and an "
            "l1 penalty as the L1Ball it stands for."
        )
    bound = base.required("smoothness", smoothness, objective.smoothness, objective)
    bound = _validate.normal("smoothness", bound)
    if steps is None:
        steps = theory_steps(mirror_map, bound, noise_of_one(problem, clip))
    steps = _validate.int32_count("steps", steps)
    query = base.calibrated_query(problem, GradientQuery, steps, problem.data_size, clip_norm=clip)
    if step_size is None:
        step_size = theory_step_size(mirror_map, bound, float(query.stddev), steps)
    step_size, most = base.positive_leaf("step_size", step_size), 1 / bound
    holds = "to which the theory of DP-AccMD holds; the guarantee of privacy stands."
    base.warn_if_above(step_size, most, f"1 / smoothness = {most:g}, {holds}")
    return MirrorDescent(
        query=query,
        step_size=step_size,
        mirror_map=mirror_map,
        **problem.plan(steps),
    )


def map_of(domain: objectives.L2Ball | objectives.L1Ball | None, dimension: int) -> BallMap:
    """Returns dpjax's map of a ball, or raises for a domain that it has none of."""
    if domain is None:
        raise ValueError(
            "domain is required: DP-AccMD stays in a bounded set. Pass L2Ball(radius) or L1Ball("
            "radius) of dpjax.objectives, --domain l2:10 or l1:10, or another set as mirror_map=."
        )
    if not isinstance(domain, objectives.L2Ball | objectives.L1Ball):
        raise ValueError(
            f"domain must be an L2Ball or an L1Ball of dpjax.objectives, got {domain!r}; another "
            "needs mirror_map=, or dp_gradient_descent with the set as the objective's regularizer."
        )
    radius = base.positive_leaf("radius", domain.radius)
    if isinstance(domain, objectives.L2Ball):
        return BallMap(radius, radius**2 / 2, float(dimension), None)
    return BallMap(radius, radius**2 / (2 * p_norm(dimension).modulus), 1.0, p_norm(dimension))


def _checked_map(given: Any, dimension: int, by_l2: bool) -> MirrorMap:
    """Returns a map with rounded leaves, or raises unless it is as it must be at random pairs."""
    if jax.tree_util.all_leaves([given]) or not isinstance(given, MirrorMap):
        raise ValueError(
            "mirror_map must be a dpjax.pytree_dataclass with all that dpjax.algorithms.MirrorMap "
            f"lists, got {given!r}."
        )
    given = jax.tree.map(lambda leaf: base.to_leaf(leaf) if type(leaf) is float else leaf, given)
    for name in ("radius", "spread", "noise"):
        _validate.normal(f"mirror_map.{name}", getattr(given, name))
    random = np.random.default_rng(20)  # public, as the pairs are: no record is read
    with jax.enable_x64(True), jax.ensure_compile_time_eval():
        for _ in range(20):
            # From well inside the set to far outside.
            duals = random.normal(size=(2, dimension)) * 10 ** random.uniform(-2, 2, (2, 1))
            duals *= float(given.radius) / math.sqrt(dimension)
            _check_pair(given, jnp.asarray(duals), by_l2)
    return given


def _check_pair(given: MirrorMap, duals: Array, by_l2: bool) -> None:
    dual, flat = duals[0], duals.shape[1:]
    returned = given.step(dual), given.gradient(dual), given.value(dual), given.norm(dual)
    if jax.tree.map(jnp.shape, returned) != ((flat, flat), flat, (), ()):
        raise ValueError(
            f"mirror_map.step must return two arrays of shape {flat}, gradient one, and value and "
            "norm numbers."
        )
    (a, _), (b, _) = map(given.step, duals)
    psi, theirs, least = (given.value(x) for x in (a, b, jnp.zeros_like(a)))
    convex = psi - theirs - given.gradient(b) @ (a - b)
    better = theirs - psi - dual @ (b - a)
    apart, above = given.norm(a - b), 1 + 1e-6
    half = apart**2 / 2 / above - 1e-6 * (abs(psi) + abs(theirs))
    pair = f"at a random pair in the set, with |a - b|^2 / 2 = {apart**2 / 2:.4g}, "
    # As what must hold, so that NaN does not.
    for holds, words in (
        (convex >= half, f" must be 1-strongly convex in its norm: {pair}psi(a) - psi(b) - "
         f"<gradient(b), a - b> is {convex:.4g}. Scale psi up, or the norm down."),
        (better >= half and given.norm(a) <= above * given.radius, ".step must return the argmin "
         f"of psi(z) - <dual, z> in the set: {pair}the other point is {better:.4g} worse."),
        (psi - least <= above * given.spread, f".spread must be {psi - least:.4g} or more."),
        (not by_l2 or above * apart >= jnp.linalg.norm(a - b), ".norm must not be below the l2 "
         "norm, which the objective's smoothness is for: scale it, or give smoothness= in it."),
    ):  # fmt: skip
        if not holds:
            raise ValueError("mirror_map" + words)


# The bound on the excess risk is least at 1 / h = L + sqrt(V S / (8 D)), and for sigma^2 =
# T sigma_1^2 its second term then hardly depends on T. On the l1 ball V counts the largest of p
# entries, about 2 ln p; to first order in the step the noise costs what the inverse Hessian of psi
# makes of it, sigma^2 at most. The default h and T take that for V: with the bound's own V the
# steps come out too short.


def theory_steps(ball: MirrorMap, smoothness: float, noise_of_one: float) -> int:
    """Returns the T at which 4 D L / (T + 1)^2 is a quarter of the noise's sqrt(8 D V / (3 T))."""
    # Where they are equal, as in theorem 5.4, half as many gradients have 1.6 times the bound.
    ratio = smoothness * math.sqrt(6 * ball.spread / ball.noise) / noise_of_one
    return int(min(max(round(2 * math.sqrt(ratio)) - 1, 1), base.MAX_STEPS))


def theory_step_size(ball: MirrorMap, smoothness: float, stddev: float, steps: int) -> float:
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
