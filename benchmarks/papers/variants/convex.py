"""What the convex ERM paper's tables compare: noise on a descent's end, a ridge, Frank-Wolfe."""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

import dpjax
from dpjax.accounting import PrivacyBudget, gumbel_multiplier
from dpjax.algorithms import (  # fmt: skip
    Algorithm,
    SingleQueryAlgorithm,
    base,
    objective_perturbation,
    output_perturbation,
)
from dpjax.objectives import L2, L1Ball, Objective
from dpjax.oracles import MinimizerQuery, ObjectiveQuery, SelectionQuery, accumulate, zeros


@dpjax.pytree_dataclass(kw_only=True)
class DescentQuery(MinimizerQuery):
    """Asks for w_T of gradient descent from 0 on the objective, plus N(0, stddev^2 I).

    Rows y x longer than 1 are scaled to length 1, and slopes are cut at the constant G.

    Privacy: the Gaussian mechanism. For phi convex with curvature M, eta <= 1 / (M + mu) makes a
      step a contraction by 1 - eta mu, and one record moves it by eta G / n (``replace_one``: twice
      that), so w_T by eta G (1 + (1 - eta mu) + ...) / n, T terms. In float64 a step errs by (n +
      (2 T + 2) (p + 2) + 64) 2^-53 eta G at most, on either data set: margins, slopes, their sum.

    Reference: Zhang, Zheng, Mou and Wang (2017); Hardt, Recht and Singer (2016), lemma 3.7.
    """

    iterations: int = dpjax.static()  # pyright: ignore[reportIncompatibleVariableOverride]
    step_size: float = dpjax.static()

    name = "descent"
    closed_form = False  # pyright: ignore[reportAssignmentType]
    description = "the end of a gradient descent on all records, plus Gaussian noise"

    def bound(self, params: Any = None, **public: Any) -> float:
        """What one record moves w_T by, times n."""
        (slope, _, mu), eta, steps = self._numbers, self.step_size, self.iterations
        return slope * ((1 - (1 - eta * mu) ** steps) / mu if mu else eta * steps)

    @property
    def sensitivity(self) -> float:
        """How far one record moves w_T, rounding of both descents included."""
        n, steps = self.data_size, 2 * self.iterations + 2
        errors = 2 * n * (n + steps * (self.setting.dimension + 2) + 64) * 2.0**-53
        return self.sampler.scale(self.bound(), self.relation) * (1 + errors)  # pyright: ignore

    def exact(self, records: Any, params: Any, mask: Any = None, **public: Any) -> Any:
        """Returns w_T, (p,). NOT PRIVATE."""
        most, _, mu = self._numbers
        slope = jax.vmap(jax.grad(self.objective.margin))  # pyright: ignore
        with jax.enable_x64(True):
            x, y = (part.astype(jnp.float64) for part in records)
            rows = jnp.where(jnp.isfinite(x * y[:, None]).all(1, keepdims=True), x * y[:, None], 0)
            rows = rows / jnp.maximum(jnp.linalg.norm(rows, axis=1, keepdims=True), 1)

            def body(_: Any, w: jax.Array) -> jax.Array:
                weights = jnp.clip(slope(jnp.sum(rows * w[None], axis=1)), -most, most)
                gradient = jnp.sum(rows * weights[:, None], axis=0) / float(self.data_size)
                return w - self.step_size * (gradient + mu * w)

            start, last = jnp.zeros(rows.shape[1], jnp.float64), jnp.int32(self.iterations)
            end = lax.fori_loop(jnp.int32(0), last, body, start)
            return (accumulate(zeros(end.shape, records[0].dtype), end[None]),)


def descent_perturbation(
    objective: Objective,
    budget: PrivacyBudget,
    *,
    iterations: int | None = None,
    step_size: float | None = None,
    distance: float = 10.0,
    **sizes: Any,
) -> Algorithm:
    """Returns gradient descent with noise on its end alone, as ``dpjax.output_perturbation`` else.

    ``objective`` has no regularizer, or ``L2``; ``step_size``, eta, is at most 1 / (M + mu), the
    default. ``iterations``, T, minimises distance^2 / (2 eta T) + M p stddev^2 / 2, which gives the
    rate (sqrt(p) / (n epsilon))^(2/3); ``distance`` is a public guess of |w*|.

    Privacy: releases one vector, see ``DescentQuery``.
    """
    if not isinstance(ridge := objective.regularizer or L2(0.0), L2):
        raise ValueError(f"the descent takes no regularizer or L2, got {ridge!r}.")
    # Any ridge: what is checked of the margin, and the noise of one release, depend on none.
    some = dataclasses.replace(objective, regularizer=ridge if ridge.strength else L2(1.0))
    made: Any = output_perturbation(some, budget, **sizes)
    largest = 1 / (objective.constants.smoothness * (1 + 1e-6) + ridge.strength)  # pyright: ignore
    if not 0 < (eta := largest if step_size is None else step_size) <= largest:
        raise ValueError(f"step_size must be above 0 and at most {largest:g}, got {eta:g}.")
    own = dataclasses.replace(objective, regularizer=ridge)
    setting = dataclasses.replace(made.query.setting, objective=own)
    noisy = {"setting": setting, "noise_multiplier": made.query.noise_multiplier, "step_size": eta}
    if iterations is None:
        one = float(DescentQuery(iterations=1, **noisy).stddev)
        cube = distance**2 * largest / (2 * made.dimension * one**2 * eta)
        iterations = int(min(max(round(cube ** (1 / 3)), 1), base.MAX_STEPS))
    query = DescentQuery(iterations=iterations, **noisy)
    return dataclasses.replace(made, query=query, title="descent perturbation")


def ridge_perturbation(
    objective: Objective, budget: PrivacyBudget, *, distance: float = 10.0, **sizes: Any
) -> Algorithm:
    """Returns objective perturbation of a convex loss, with the ridge that Kifer et al. (2012) add.

    Its strength is G sqrt(p ln(1/delta)) / (n epsilon distance), where what it moves the minimum by
    and what noise costs are alike, or the least that the proof allows; ``distance`` as before.
    """
    if objective.regularizer is not None:
        raise ValueError(f"the ridge is added to a plain loss, got {objective.regularizer!r}.")
    (slope, smoothness, _), n = objective.constants, sizes["data_size"]  # pyright: ignore
    noise = slope * math.sqrt(sizes["dimension"] * math.log(1 / budget.delta)) / budget.epsilon
    least = 1.001 * smoothness / math.expm1(min(budget.epsilon / 2, 700))
    ridge = L2(base.to_leaf(max(noise / distance, least) / n))
    return objective_perturbation(
        dataclasses.replace(objective, regularizer=ridge), budget, **sizes
    )


class PointState(NamedTuple):
    """Where the steps have led, and how many there were; released."""

    params: Any
    count: jax.Array


class _Pointwise(SingleQueryAlgorithm):
    radius: Any

    def init(self, params: Any) -> PointState:
        return PointState(params, jnp.zeros((), jnp.int32))

    def _moved(self, state: PointState, new: Any) -> tuple[PointState, base.StepInfo]:
        length = jnp.linalg.norm(new - state.params)
        after = PointState(new.astype(state.params.dtype), state.count + 1)
        return after, base.StepInfo(jnp.full_like(length, jnp.nan), length)  # no gradient is known


@dpjax.pytree_dataclass
class Projected(_Pointwise):
    """Objective perturbation, projected on an l1 ball: post-processing."""

    query: ObjectiveQuery
    radius: jax.Array | float

    title = "objective perturbation, projected"

    def step(self, key: Any, state: PointState, ask: Any) -> Any:
        """Returns the projection of the one answer."""
        answer = ask(self.query, state.params)
        return self._moved(state, optax.projections.projection_l1_ball(answer, self.radius))


def projected_perturbation(
    objective: Objective, budget: PrivacyBudget, *, domain: L1Ball, **more: Any
) -> Projected:
    """Returns ``ridge_perturbation`` and a projection, for Talwar et al. (2014), inside a set."""
    made: Any = ridge_perturbation(objective, budget, **more)
    fields = {field.name: getattr(made, field.name) for field in dataclasses.fields(Algorithm)}
    return Projected(query=made.query, radius=base.positive_leaf("radius", domain.radius), **fields)


@dpjax.pytree_dataclass(kw_only=True)
class VertexQuery(SelectionQuery):
    """Asks which vertex v of an l1 ball, r e_j or -r e_j, has the least <v, mean gradient>.

    Privacy: the exponential mechanism. Every entry of a record's gradient is cut at ``clip_norm``
      b, so that it moves a score -<v, g> / r by b / n (``replace_one``: 2 b / n).

    Reference: Talwar, Thakurta and Zhang (2015), with Gumbel noise for their Laplace noise: at the
      same pure epsilon it composes better, as the range of its log-ratios is bounded.
    """

    name = "vertex"
    gradients_per_record = 1
    closed_form = False  # pyright: ignore[reportAssignmentType]
    description = "a vertex of an l1 ball, chosen by the exponential mechanism"

    def exact(self, records: Any, params: Any, mask: Any = None, **public: Any) -> Any:
        """Returns the scores of r e_1 .. r e_p, -r e_1 .. -r e_p. NOT PRIVATE."""
        gradients = jax.vmap(jax.grad(self.objective.loss), (None, 0))(params, records)
        usable = jnp.isfinite(gradients).all(axis=1, keepdims=True)
        bounded = jnp.clip(jnp.where(usable, gradients, 0.0), -self.clip_norm, self.clip_norm)
        total = accumulate(zeros(params.shape, gradients.dtype), bounded)
        with jax.enable_x64(True):
            mean = sum(term.astype(jnp.float64) for term in total.terms[::-1]) / self.data_size
            # The regularizer's is exact, and reads no record.
            mean = mean + self.objective.regularize_gradient(jnp.zeros_like(params), params)
            both = jnp.concatenate([-mean, mean])
            return (accumulate(zeros(both.shape, gradients.dtype), both[None]),)


@dpjax.pytree_dataclass
class FrankWolfe(_Pointwise):
    """Configuration of ``frank_wolfe``."""

    query: VertexQuery
    radius: jax.Array | float

    title = "DP-Frank-Wolfe"

    def step(self, key: Any, state: PointState, ask: Any) -> Any:
        """Returns the state after a step of size 2 / (t + 2) to the chosen vertex."""
        w, most = state.params, self.query.candidates
        place = ask(self.query, w, filled=most)
        entry = (jnp.where(place < most // 2, 1, -1) * self.radius).astype(w.dtype)
        vertex = jnp.zeros_like(w).at[place % (most // 2)].set(entry)
        return self._moved(state, w + (2 / (state.count + 2)).astype(w.dtype) * (vertex - w))


def frank_wolfe(
    objective: Objective,
    budget: PrivacyBudget,
    *,
    data_size: int,
    dimension: int,
    domain: L1Ball,
    steps: int = 30,
    clip_norm: float | None = None,
    accountant: str = "pld",
) -> FrankWolfe:
    """Returns private Frank-Wolfe on the l1 ball ``domain``, whose noise grows with ln p.

    ``clip_norm``, b, bounds every entry of a record's gradient, by default at the l2 constant;
    theory's order of ``steps``, T, is (n epsilon)^(2/3).

    Privacy: releases T places, by the exponential mechanism; all have the same pure epsilon.

    Reference: Talwar, Thakurta and Zhang, "Nearly optimal private LASSO" (2015), algorithm 2.
    """
    problem = base.check_problem(objective, budget, data_size, dimension, accountant)
    base.check_smooth(objective, "DP-Frank-Wolfe")
    if not isinstance(domain, L1Ball):
        raise ValueError(f"domain must be an L1Ball of dpjax.objectives, got {domain!r}.")
    bound, _ = base.clip_norms(objective, clip_norm, 1.0)
    query = VertexQuery(
        setting=problem.setting, noise_multiplier=gumbel_multiplier(1.0), clip_norm=bound,
        gradient_tolerance=1.0, curvature_tolerance=1.0, dimension=dimension,
        candidates=2 * problem.dimension,
    )  # fmt: skip
    query = problem.calibrated(query, lambda query: query.event(steps))
    radius = base.positive_leaf("radius", domain.radius)
    algorithm = FrankWolfe(query=query, radius=radius, **problem.plan(steps))
    problem.check_spent(algorithm.event)
    return algorithm
