"""DP-TR (Wang and Xu 2020, algorithm 1), and the step on a noisy model that its variants share."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from dpjax import _validate, objectives
from dpjax._typing import Array, Params, pytree_dataclass, static
from dpjax._wide import at_least_float32
from dpjax.accounting import Event, PrivacyBudget, compose, round_up
from dpjax.algorithms import base, certificate, model_queries, schedules
from dpjax.algorithms.certificate import Certificate, ErrorBars, NoiseBounds
from dpjax.algorithms.filtering import FilteredModel, filtered, unfiltered
from dpjax.algorithms.gradient_descent import noise_bounds
from dpjax.algorithms.model_queries import Queries, ask_model, spectral_scale
from dpjax.linalg import symmetric_top_eigenvalue_quantile, trust_region_step
from dpjax.linalg.trust_region import BY_SIZE, Solver, check_solver
from dpjax.oracles import JointQuery, SecondOrderAnswer, WeightedQuery

# Of the first step where answers are filtered: measured, larger ones lose more than they gain.
_FILTERED_RADIUS = 8.0
CERTIFICATES = ("last_query", "output")


class TrustRegionState(NamedTuple):
    """The state of DP-TR and DP-STR; all of it released."""

    params: Params
    query_point: Params
    """Where the last answer was asked."""
    answer: SecondOrderAnswer
    multiplier: Array
    iteration: Array
    model: FilteredModel | None = None
    """What all answers say of ``query_point``; None where a step reads the last one alone."""


class TrustRegionInfo(NamedTuple):
    """Metrics of a step; all of it released."""

    _repr_html_ = base.history_html
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


# By default accelerators multiply matrices in 8 to 11 bits, and the step would be as inexact.
@jax.default_matmul_precision("highest")
def take_step(
    algorithm: Any,
    state: TrustRegionState,
    answer: SecondOrderAnswer,
    radius: Array,
    damping: Array | float,
    model: FilteredModel | None = None,
) -> tuple[TrustRegionState, TrustRegionInfo]:
    """Returns the state after steps 5 and 6 of algorithm 1, and its metrics.

    ``answer`` holds the noisy data terms at ``state.params``, and ``model`` what is read in its
    place, if not None; those of the objective's exact regularizer are added.

    Privacy: post-processing of the answers.
    """
    objective, wide = algorithm.objective, at_least_float32(state.params)
    flat, unravel = ravel_pytree(wide)

    def regularized(gradient: Array) -> Array:
        return ravel_pytree(objective.regularize_gradient(unravel(gradient), wide))[0]

    terms = answer if model is None else model
    gradient = regularized(terms.gradient)
    hessian = objective.regularize_hessian(terms.hessian, wide)
    move, info = minimize_model(gradient, hessian, damping, radius, algorithm.subproblem)
    # Whatever a step reads: a history shows what was released.
    info = info._replace(gradient_norm=jnp.linalg.norm(regularized(answer.gradient)))
    params = optax.tree.cast_like(unravel(flat + move), state.params)
    after = (params, state.params, answer, info.multiplier, state.iteration + 1, model)
    return TrustRegionState(*after), info


@jax.default_matmul_precision("highest")
def minimize_model(
    gradient: Array, hessian: Array, damping: Array | float, radius: Array, *solver: Solver
) -> tuple[Array, TrustRegionInfo]:
    """Returns the step of ``trust_region_step`` on the damped model, and its metrics."""
    # Noise must not pass for negative curvature: lift the spectrum by its typical size.
    hessian = hessian + damping * jnp.eye(gradient.size, dtype=hessian.dtype)
    move, multiplier = trust_region_step(gradient, hessian, radius, *solver)
    info = TrustRegionInfo(
        gradient_norm=jnp.linalg.norm(gradient),
        multiplier=multiplier,
        radius=radius,
        step_norm=jnp.linalg.norm(move),
        model_decrease=-(gradient @ move + move @ hessian @ move / 2),
    )
    return move, info


@pytree_dataclass
class TrustRegion(base.Algorithm):
    """Configuration of DP-TR; made by ``dp_trust_region``."""

    queries: Queries
    radius: Array | float
    radius_decay: Array | float
    damping: Array | float
    stop_below: Array | float
    bounds: NoiseBounds
    beta: Array | float
    stopping: bool = static()
    certified: str | None = static()
    unclipped: bool = static()
    filtering: bool = static()
    subproblem: Solver = static()

    title = "DP-TR"

    @property
    def event(self) -> Event:
        count = int(self.steps) + (self.certified == "output")
        return compose(query.event(count) for query in self.queries)

    def _factor(self, iteration: Array) -> Array | float:
        """Noise of an answer over that of the last one."""
        query = self.queries[0]
        return jnp.asarray(query.factors)[iteration] if isinstance(query, WeightedQuery) else 1.0

    def _stddevs(self, iteration: Array) -> tuple[Array | float, Array | float]:
        """Noise on a coordinate of the gradient, and on a diagonal entry of the Hessian."""
        factor = self._factor(iteration)
        return self.queries[0].stddev * factor, self.queries[-1].hessian_stddev * factor

    def _ask(self, state: TrustRegionState, ask: base.Ask) -> SecondOrderAnswer:
        weighted = isinstance(self.queries[0], WeightedQuery)
        public = {"iteration": state.iteration} if weighted else {}
        return ask_model(self.queries, state.params, ask, **public)

    def init(self, params: Params) -> TrustRegionState:
        state = start(params)
        model = unfiltered(state.answer, self._stddevs(state.iteration)) if self.filtering else None
        return state._replace(model=model)

    def step(
        self, key: Array, state: TrustRegionState, ask: base.Ask
    ) -> tuple[TrustRegionState, TrustRegionInfo]:
        # Algorithm 1, with damping, a radius that shrinks, and a filter over the answers.
        answer = self._ask(state, ask)  # steps 3 and 4
        radius = schedules.radius_at(self, state.iteration, answer.hessian.dtype)
        if (model := state.model) is not None:
            here, before = (ravel_pytree(w)[0] for w in (state.params, state.query_point))
            move = at_least_float32(here) - at_least_float32(before)
            stddevs = self._stddevs(state.iteration)
            model = filtered(model, state.iteration, move, answer, stddevs)
        damping = self._damping(model, state.iteration)
        return take_step(self, state, answer, radius, damping, model)

    def _damping(self, model: FilteredModel | None, iteration: Array) -> Array | float:
        damping = schedules.at_step(self.damping, iteration)
        if model is None:
            return damping * self._factor(iteration)
        # Of an average of Hessians there is less noise to pass for negative curvature.
        return damping * jnp.sqrt(model.hessian_variance) / self.queries[-1].hessian_stddev

    def done(self, state: TrustRegionState) -> Array:
        # Step 7: Lagrange multiplier + damping at most sqrt(alpha rho).
        if not self.stopping:
            return jnp.asarray(False)
        damping = self._damping(state.model, state.iteration - 1)  # that of the last step
        return state.multiplier + damping <= self.stop_below

    def certify(
        self, key: Array, state: TrustRegionState, ask: base.Ask, bounded_rows: bool
    ) -> tuple[Certificate | None, Params | None]:
        if self.certified is None:
            return None, None
        params, answer = state.query_point, state.answer
        if self.certified == "output":
            # Here no answer was asked yet: one more release, which ``event`` counts.
            params, answer = state.params, self._ask(state, ask)
        gradient = ravel_pytree(at_least_float32(params))[1](answer.gradient)
        answer = gradient, answer.hessian
        return certificate.certify(self, params, answer, self.certified, bounded_rows)

    def error_bars(self, state: TrustRegionState, bounded_rows: bool) -> ErrorBars | None:
        last = self.queries[-1]
        if not last.isometric:  # their formula is that of isometric noise
            return None
        unclipped = jnp.asarray(self.unclipped)
        form = self.objective.averaged
        if isinstance(last, JointQuery) and form is not None:
            # A loss without a Lipschitz constant, as the squared one, has a bounded slope at w.
            length = jnp.linalg.norm(ravel_pytree(state.query_point)[0])
            if (slope := form.slope_within(length)) is not None:
                joint = (slope / last.gradient_weight) ** 2 + 1 / last.hessian_weight**2
                unclipped = unclipped | (joint <= 1)
        before = jnp.maximum(self._factor(jnp.maximum(state.iteration - 2, 0)), 1.0)
        return certificate.error_bars(self, state, unclipped & bounded_rows, before)


def dp_trust_region(
    objective: objectives.Objective,
    budget: PrivacyBudget,
    *,
    data_size: int,
    dimension: int,
    steps: int | None = None,
    radius: optax.ScalarOrSchedule | None = None,
    final_radius: float | None = None,
    damping: optax.ScalarOrSchedule | None = None,
    clip_norm: float | None = None,
    hessian_clip_norm: float | None = None,
    release: str = "joint",
    stopping_alpha: float | None = None,
    filtering: bool = True,
    weights: Sequence[float] | None = None,
    accountant: str = "pld",
    certify: str | None = "last_query",
    beta: float = 0.05,
    subproblem: Solver = BY_SIZE,
) -> TrustRegion:
    """Returns the differentially private trust-region method, calibrated to the budget.

    Args:
      dimension: number of parameters p; time is O(n p^2 + p^3) a step.
      steps: T; each reads all records once, or twice in separate releases. By default 32; 16 for a
        robust loss of a residual, and 1 for the squared loss.
      radius: of the first iteration, as in all factories; the default is for the weights of a
        linear model on rows of norm 1. An objective of your own, such as a network, whose weights
        are smaller, needs a smaller one: try 3, or the norm of the start.
      damping: kappa, as in all factories; by default 1/2, or 1 for the squared loss.
      hessian_clip_norm: as in all factories; if it is given for a joint release, the certificate
        refers to the clipped objective.
      release: ``"joint"`` (gradient and Hessian as one Gaussian) or ``"separate"`` (two).
      stopping_alpha: stop when the Lagrange multiplier + kappa * (the noise's spectral scale) is at
        most sqrt(alpha rho); None to take all steps. The paper proves it for a constant radius
        alone, see ``paper_schedule``. As noisy values then select the last iterate, the certificate
        there spends beta / T on each iterate (a union bound).
      filtering: whether a step reads all answers so far, gradients by a Kalman filter and Hessians
        by an average, instead of the last one; it costs no privacy. The certificate and the error
        bars rest on the last answer alone.
      weights: the steps' public shares of the budget's mu^2, T numbers that sum to one, for a joint
        release without a stopping rule; by default all are equal. With ``certify="output"`` its
        answer has the last one's share too, and all are divided by 1 + weights[-1].
      certify: ``"last_query"`` (free; w_{T-1} of a full run), ``"output"`` (one more release) or
        None.
      the others: the same in all factories, see ``help(dpjax.algorithms)``.

    Privacy: releases means of clipped per-record gradients and Hessians with Gaussian noise, T
      times, or T + 1 with ``certify="output"``; filter, subproblem, multiplier, step, stopping
      and certificate are post-processing. The guarantee is that of all releases even if the run
      stops before.

    Reference: Wang and Xu (2020), algorithm 1, theorem 1; the joint release, the isometric noise,
      damping, the filter and the shrinking radius are ours.

    >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-6)
    >>> algorithm = dp_trust_region(
    ...     objectives.logistic(), budget, data_size=10_000, dimension=10)
    >>> [release.count for release in algorithm.event.releases]
    [32]
    """
    problem = base.check_problem(objective, budget, data_size, dimension, accountant)
    base.check_smooth(objective, "DP-TR")
    region = schedules.region_of(objective)
    steps = _validate.int32_count("steps", region.steps if steps is None else steps)
    subproblem = check_solver("subproblem", subproblem)
    if certify is not None:
        _validate.choice("certify", certify, CERTIFICATES)
    if _validate.flag("filtering", filtering) and radius is None:
        radius = min(region.radius, _FILTERED_RADIUS)
    radii = schedules.check_radii(problem, radius, final_radius, steps)
    _validate.choice("release", release, model_queries.RELEASES)
    clips = (clip_norm, hessian_clip_norm)
    typical = schedules.typical_radius(radii)
    extra, whole = certify == "output", release == "joint" and stopping_alpha is None
    shares = model_queries.shares(weights, steps, extra, whole)
    asked = steps + extra, release, clips, typical, shares
    queries, unclipped = model_queries.queries_of(problem, *asked)
    beta = _validate.open_unit("beta", beta)
    # A rule that looks at the noise picks the iterate: then every one must be covered.
    picked = stopping_alpha is not None and certify == "last_query"
    damping = region.damping if damping is None else damping
    kappa = schedules.scheduled("damping", damping, problem, steps, _validate.non_negative)
    algorithm = TrustRegion(
        queries=queries,
        **schedules.shrinking(radii, steps),
        damping=base.to_leaf(kappa * spectral_scale(queries[-1])),
        stop_below=stopping_level(objective, stopping_alpha),
        bounds=_noise_bounds(queries, dimension, beta / steps if picked else beta),
        beta=beta,
        stopping=stopping_alpha is not None,
        certified=certify,
        unclipped=unclipped,
        filtering=filtering,
        subproblem=subproblem,
        **problem.plan(steps, 1),
    )
    problem.check_spent(algorithm.event)
    return algorithm


def paper_schedule(
    objective: objectives.Objective,
    alpha: float = 0.1,
    initial_gap: float | None = None,
    dimension: int | None = None,
    zeta: float = 0.05,
) -> dict[str, Any]:
    """Returns the paper's own radius, steps and stopping rule, as arguments of ``dp_trust_region``.

    These are radius = final_radius = sqrt(alpha / rho), T = 6 sqrt(rho) Delta / alpha^1.5, rounded
    up, no damping or filter, and the stopping rule multiplier <= sqrt(alpha rho). A step that does
    not stop lowers the objective by alpha^1.5 / (3 sqrt(rho)) without noise; half of it is left for
    noise.

    Args:
      objective: it must have a Hessian-Lipschitz constant rho, its regularizer included.
      alpha: target accuracy of the second-order stationary point, above 0.
      initial_gap: Delta, a public bound on L(w0) - min L; by default that at w = 0 of a loss of
        linear scores, as ln 2 of the logistic one.
      dimension: p, for ``dp_stochastic_trust_region``: separate releases and theorem 4's batches
        are added, |S| = (G / alpha)^2 ln(p / zeta) and |T| = M^2 ln(p / zeta) / (alpha rho), with 1
        for the constants that it leaves open.
      zeta: probability of theorem 4, below 1.

    Raises:
      ValueError: if rho or Delta is not known, or T is 2^31 or more.

    Reference: Wang and Xu (2020), theorems 2 and 4. At alpha = 0.1 the rule fires after one or two
    iterations on the paper's data, far from the optimum.

    >>> schedule = paper_schedule(objectives.logistic())
    >>> round(schedule["radius"], 3), schedule["steps"]
    (1.019, 41)
    """
    rho, alpha = _rho(objective, "paper_schedule"), _validate.normal("alpha", alpha)
    radius = math.sqrt(alpha / rho)
    steps = math.ceil(6 * rho**0.5 * base.initial_gap(objective, initial_gap) / alpha**1.5)
    steps = _validate.int32_count("steps of paper_schedule", steps)
    radii = {"radius": radius, "final_radius": radius}
    schedule = {**radii, "steps": steps, "damping": 0.0, "stopping_alpha": alpha}
    if dimension is None:
        return schedule | {"filtering": False}
    log = math.log(_validate.positive_int("dimension", dimension))
    log -= math.log(_validate.open_unit("zeta", zeta))
    # A batch is for the data term alone: its constants.
    of_gradient, of_hessian, _ = cast(Any, objective.constants)
    sizes = (log * (of_gradient / alpha) ** 2, log * of_hessian**2 / (alpha * rho))
    batches = zip(("batch_size", "hessian_batch_size"), map(math.ceil, sizes), strict=True)
    return schedule | dict(batches, release="separate")


def _noise_bounds(queries: Queries, dimension: int, beta: float) -> NoiseBounds:
    # Both bounds hold together with probability 1 - beta: each may fail with half of it.
    gradient, last = noise_bounds(queries[0], dimension, beta / 2).gradient, queries[-1]
    quantile = symmetric_top_eigenvalue_quantile(dimension, 1 - beta / 2, last.isometric)
    hessian = float(last.hessian_stddev) * quantile
    hessian += certificate.CLIP_SLACK * float(last.hessian_bound)
    return NoiseBounds(gradient, round_up(hessian))


def stopping_level(objective: objectives.Objective, alpha: float | None) -> float:
    """Returns sqrt(alpha rho), of step 7; minus infinity without a rule, which is never reached."""
    if alpha is None:
        return -math.inf
    rho, alpha = _rho(objective, "stopping_alpha"), _validate.positive("stopping_alpha", alpha)
    return base.to_leaf(math.sqrt(alpha * rho))


def _rho(objective: objectives.Objective, name: str) -> float:
    if (rho := objective.hessian_lipschitz) is None:
        raise ValueError(
            f"{name} needs {objective.name}'s Hessian-Lipschitz constant: give the objective "
            "constants=, and a regularizer of your own an attribute hessian_lipschitz."
        )
    return rho
