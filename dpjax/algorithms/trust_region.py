"""DP-TR (Wang and Xu 2020, algorithm 1): the differentially private trust-region method."""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from dpjax import _validate
from dpjax._typing import Array, Params, Relation, static
from dpjax.accounting import Event, compose
from dpjax.algorithms import base
from dpjax.algorithms.certificate import Certificate, NoiseBounds, certify, scope_of, widen
from dpjax.linalg import trust_region_step
from dpjax.objectives import Objective
from dpjax.oracles import GradientQuery, HessianQuery, JointQuery, Query, SecondOrderAnswer


class State(NamedTuple):
    """What the next step needs; all of it released."""

    params: Params
    queried: Params
    answer: SecondOrderAnswer
    multiplier: Array
    iteration: Array


class Info(NamedTuple):
    """What a person watches; all of it released."""

    gradient_norm: Array
    """Norm of the noisy gradient, regularizer included, before the step."""
    multiplier: Array
    """Dual variable of the subproblem; 0 when the step lies inside the radius."""
    radius: Array
    """Radius of this iteration."""
    step_norm: Array
    """Length of the step taken."""
    model_decrease: Array
    """Decrease of the noisy, damped quadratic model."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrustRegion:
    """Configuration of DP-TR; made by ``dp_trust_region``."""

    queries: tuple[JointQuery] | tuple[GradientQuery, HessianQuery]
    radius: Array | float
    radius_decay: Array | float
    damping: Array | float
    stop_below: Array | float
    steps: Array | int
    bounds: NoiseBounds
    beta: Array | float
    declared: base.Declared
    max_steps: int = static()
    dimension: int = static()
    stopping: bool = static()
    certified: str | None = static()
    unclipped: bool = static()
    accountant: str = static()

    @property
    def title(self) -> str:
        """Name for people."""
        return "DP-TR"

    @property
    def objective(self) -> Objective:
        """What is minimised."""
        return self.queries[0].objective

    @property
    def relation(self) -> Relation:
        """The neighbouring relation."""
        return self.queries[0].relation

    @property
    def event(self) -> Event:
        """``steps`` answers, and one more if the output is certified."""
        return event_of(self.queries, int(self.steps), self.certified)

    def init(self, params: Params) -> State:
        """Returns the state at ``params``."""
        zero = jnp.zeros_like(ravel_pytree(widen(params))[0])
        answer = SecondOrderAnswer(zero, jnp.zeros((zero.size, zero.size), zero.dtype))
        return State(params, params, answer, jnp.array(jnp.inf, zero.dtype), jnp.array(0))

    def step(self, key: Array, state: State, ask: base.Ask) -> tuple[State, Info]:
        """One iteration of algorithm 1, with damping and a radius that shrinks."""
        answer = self._ask(key, state.params, ask)  # steps 3 and 4
        wide = widen(state.params)
        flat, unravel = ravel_pytree(wide)
        whole = self.objective.regularize_gradient(unravel(answer.gradient), wide)
        gradient = ravel_pytree(whole)[0]
        hessian = self.objective.regularize_hessian(answer.hessian, wide)
        # Noise must not pass for negative curvature: lift the spectrum by its typical size.
        damped = hessian + self.damping * jnp.eye(flat.size, dtype=hessian.dtype)
        radius = self.radius * self.radius_decay ** state.iteration.astype(hessian.dtype)
        move, multiplier = trust_region_step(gradient, damped, radius)  # step 5
        moved = unravel(flat + move)  # step 6
        params = jax.tree.map(lambda new, old: new.astype(old.dtype), moved, state.params)
        info = Info(
            gradient_norm=jnp.linalg.norm(gradient),
            multiplier=multiplier,
            radius=radius,
            step_norm=jnp.linalg.norm(move),
            model_decrease=-(gradient @ move + move @ damped @ move / 2),
        )
        iteration = state.iteration + 1
        return State(params, state.params, answer, multiplier, iteration), info

    def done(self, state: State) -> Array:
        """Step 7, if asked for: multiplier + damping at most sqrt(alpha rho)."""
        if not self.stopping:
            return jnp.asarray(False)
        return state.multiplier + self.damping <= self.stop_below

    def output(self, state: State) -> Params:
        """Returns the last iterate, w_T if the stopping rule never fired."""
        return state.params

    def certify(
        self, key: Array, state: State, ask: base.Ask, unit_rows: bool
    ) -> tuple[Certificate | None, Params | None]:
        """Returns bounds at the last query, or asks once more and returns them at the output."""
        if self.certified is None:
            return None, None
        params, answer = state.queried, state.answer
        if self.certified == "output":
            params, answer = state.params, self._ask(key, state.params, ask)
        _, unravel = ravel_pytree(widen(params))
        gradient = unravel(answer.gradient)
        upper, lower = certify(self.objective, params, gradient, answer.hessian, self.bounds)
        scope = scope_of(self.unclipped and unit_rows)
        return Certificate(upper, lower, self.beta, self.certified, scope), params

    def _ask(self, key: Array, params: Params, ask: base.Ask) -> SecondOrderAnswer:
        if len(self.queries) == 1:
            return ask(key, self.queries[0].name, params)
        gradient, hessian = (ask(key, query.name, params) for query in self.queries)
        return SecondOrderAnswer(ravel_pytree(gradient)[0], hessian)


def event_of(queries: tuple[Query, ...], steps: int, certified: str | None) -> Event:
    """Returns what ``steps`` iterations release, one more where the output is certified."""
    count = steps + (certified == "output")
    return compose(query.event(count) for query in queries)


def paper_schedule(objective: Objective, alpha: float = 0.1) -> dict[str, float]:
    """Returns the paper's own radius and stopping rule, as arguments of ``dp_trust_region``.

    Args:
      objective: whose Hessian-Lipschitz constant rho is used.
      alpha: target accuracy of the second-order stationary point.

    Returns:
      radius = final_radius = sqrt(alpha / rho), no damping, and the stopping rule
      multiplier <= sqrt(alpha rho).

    Raises:
      ValueError: if the objective has no constants, or alpha is not above 0.

    Reference: Wang and Xu (2020), theorem 2. At alpha = 0.1 the rule fires after one or two
    iterations on the paper's data, far from the optimum.

    >>> from dpjax import objectives
    >>> round(paper_schedule(objectives.logistic())["radius"], 3)
    1.019
    """
    if objective.constants is None:
        raise ValueError(f"{objective.name} has no Hessian-Lipschitz constant.")
    alpha = _validate.positive("alpha", alpha)
    radius = math.sqrt(alpha / objective.constants.hessian_lipschitz)
    return {"radius": radius, "final_radius": radius, "damping": 0.0, "stopping_alpha": alpha}
