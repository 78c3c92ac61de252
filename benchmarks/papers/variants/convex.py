"""What the convex ERM paper's tables compare: perturbation with an added ridge, Frank-Wolfe."""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import dpjax
from dpjax.accounting import PrivacyBudget, gaussian_multiplier, gumbel_multiplier
from dpjax.algorithms import Algorithm, SingleQueryAlgorithm, base
from dpjax.objectives import L2, L1Ball, Objective
from dpjax.oracles import SelectionQuery, accumulate, zeros


def ridged(
    make: str, objective: Objective, budget: PrivacyBudget, *, distance: float = 10.0, **sizes: Any
) -> Algorithm:
    """Returns ``make``, output or objective perturbation, of a convex loss with a ridge added.

    The ridge mu balances noise and what it moves a minimiser of length ``distance`` by: for output
    perturbation mu^3 = 2 M p (m G / (n distance))^2, m its multiplier; for objective perturbation G
    sqrt(p ln(1/delta)) / (n epsilon distance), as Kifer et al. (2012), or the least allowed.
    """
    if objective.regularizer is not None:
        raise ValueError(f"the ridge is added to a plain loss, got {objective.regularizer!r}.")
    (slope, smoothness, _), n, p = objective.constants, sizes["data_size"], sizes["dimension"]  # pyright: ignore
    if make == "output_perturbation":
        noise = gaussian_multiplier(budget, 1, noise_draws=p) * slope / (n * distance)
        strength = (2 * smoothness * p * noise**2) ** (1 / 3)
    else:
        strength = slope * math.sqrt(p * math.log(1 / budget.delta)) / (n * budget.epsilon)
        least = 1.001 * smoothness / (n * math.expm1(min(budget.epsilon / 2, 700)))
        strength = max(strength / distance, least)
    ridge = dataclasses.replace(objective, regularizer=L2(strength))
    return getattr(dpjax, make)(ridge, budget, **sizes)


@dpjax.pytree_dataclass(kw_only=True)
class VertexQuery(SelectionQuery):
    """Asks which vertex v of an l1 ball, r e_j or -r e_j, has the least <v, mean gradient>.

    Privacy: the exponential mechanism. Every entry of a record's gradient is cut at ``clip_norm``
      b, so that it moves a score -<v, g> / r by b / n (``replace_one``: 2 b / n).
    """

    name = "vertex"
    gradients_per_record = 1
    closed_form = False  # pyright: ignore[reportAssignmentType]

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


class FrankWolfeState(NamedTuple):
    """The state of Frank-Wolfe; all of it released."""

    params: Any
    count: jax.Array


class FrankWolfeInfo(NamedTuple):
    """What a history keeps of a step: its length. No gradient is released."""

    step_norm: jax.Array


@dpjax.pytree_dataclass
class FrankWolfe(SingleQueryAlgorithm):
    """Configuration of ``frank_wolfe``."""

    query: VertexQuery
    radius: jax.Array | float

    title = "DP-Frank-Wolfe"

    def init(self, params: Any) -> FrankWolfeState:
        """Returns the start, which the first step leaves."""
        return FrankWolfeState(params, jnp.zeros((), jnp.int32))

    def step(self, key: Any, state: FrankWolfeState, ask: Any) -> Any:
        """Returns the state after a step of size 2 / (t + 2) to the chosen vertex."""
        w, most = state.params, self.query.candidates
        place = ask(self.query, w, filled=most)
        entry = (jnp.where(place < most // 2, 1, -1) * self.radius).astype(w.dtype)
        vertex = jnp.zeros_like(w).at[place % (most // 2)].set(entry)
        move = (2 / (state.count + 2)).astype(w.dtype) * (vertex - w)
        return FrankWolfeState(w + move, state.count + 1), FrankWolfeInfo(jnp.linalg.norm(move))


def frank_wolfe(
    objective: Objective, budget: PrivacyBudget, *, data_size: int, dimension: int, domain: L1Ball,
    steps: int = 30, clip_norm: float | None = None, accountant: str = "pld",
) -> FrankWolfe:  # fmt: skip
    """Returns private Frank-Wolfe on the l1 ball ``domain``, whose noise grows with ln p.

    ``clip_norm``, b, bounds every entry of a record's gradient, by default at the l2 constant.

    Privacy: releases T places, each by the exponential mechanism at the same pure epsilon.

    Reference: Talwar, Thakurta and Zhang, "Nearly optimal private LASSO" (2015), algorithm 2, with
      Gumbel noise for Laplace noise: it composes better, its log-ratios having a bounded range.
    """
    problem = base.check_problem(objective, budget, data_size, dimension, accountant)
    base.check_smooth(objective, "DP-Frank-Wolfe")
    if not isinstance(domain, L1Ball):
        raise ValueError(f"domain must be an L1Ball of dpjax.objectives, got {domain!r}.")
    bound, _ = base.clip_norms(objective, clip_norm, 1.0)
    query = VertexQuery(
        setting=problem.setting, noise_multiplier=gumbel_multiplier(1.0), clip_norm=bound,
        gradient_tolerance=1.0, curvature_tolerance=1.0, dimension=problem.dimension,
        candidates=2 * problem.dimension)  # fmt: skip
    query, radius = problem.calibrated(query, lambda q: q.event(steps)), domain.radius
    algorithm = FrankWolfe(query=query, radius=base.to_leaf(radius), **problem.plan(steps))
    problem.check_spent(algorithm.event)
    return algorithm
