"""DP-TR (Wang and Xu 2020, algorithm 1): the differentially private trust-region method."""

import math

import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from dpjax import _validate
from dpjax._typing import Array, Params, pytree_dataclass, static
from dpjax.accounting import Event, compose
from dpjax.algorithms import base
from dpjax.algorithms.certificate import Certificate, NoiseBounds, certify, scope_of, widen
from dpjax.algorithms.common import Common
from dpjax.algorithms.model_step import Info, State, start, take_step
from dpjax.objectives import Objective
from dpjax.oracles import GradientQuery, HessianQuery, JointQuery, Query, SecondOrderAnswer


@pytree_dataclass
class TrustRegion(Common):
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
    subproblem: str = static()

    @property
    def title(self) -> str:
        """Name for people."""
        return "DP-TR"

    @property
    def event(self) -> Event:
        """``steps`` answers, and one more if the output is certified."""
        return event_of(self.queries, int(self.steps), self.certified)

    def init(self, params: Params) -> State:
        """Returns the state at ``params``."""
        return start(params)

    def step(self, key: Array, state: State, ask: base.Ask) -> tuple[State, Info]:
        """One iteration of algorithm 1, with damping and a radius that shrinks."""
        answer = self._ask(key, state.params, ask)  # steps 3 and 4
        radius = self.radius * self.radius_decay ** state.iteration.astype(answer.hessian.dtype)
        return take_step(self.objective, state, answer, radius, self.damping, self.subproblem)

    def done(self, state: State) -> Array:
        """Step 7, if asked for: multiplier + damping at most sqrt(alpha rho)."""
        if not self.stopping:
            return jnp.asarray(False)
        return state.multiplier + self.damping <= self.stop_below

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
