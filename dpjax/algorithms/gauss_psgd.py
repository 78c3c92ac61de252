"""Gauss-PSGD (Tao et al. 2025): noise near saddles, and drift that detects the escape."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax._typing import Array, Params, pytree_dataclass
from dpjax.accounting import PrivacyBudget
from dpjax.algorithms import base
from dpjax.algorithms.certificate import widen
from dpjax.algorithms.spider import Spider, State
from dpjax.algorithms.spider_theory import Settings, configure
from dpjax.objectives import Objective


class Watch(NamedTuple):
    """Where a possible saddle was met, and for how long the iterate has stayed near it."""

    origin: Params
    watching: Array
    waited: Array
    ended: Array
    """Whether it stayed for good: ``origin`` is then the output."""


@pytree_dataclass
class GaussPSGD(Spider):
    """Configuration of Gauss-PSGD; made by ``gauss_psgd``."""

    escape_distance: Array | float = 1.0

    @property
    def title(self) -> str:
        """Name for people."""
        return self.name

    def done(self, state: State) -> Array:
        """Returns whether a point kept the iterate, or the records ran out."""
        return state.escape.ended | super().done(state)

    def stopped(self, state: State) -> Array:
        return jnp.where(state.escape.ended, base.Status.STOPPED, base.Status.EXHAUSTED)

    def output(self, state: State) -> Params:
        """Returns the point that kept the iterate; the last iterate where none did."""
        return jax.tree.map(
            lambda kept, last: jnp.where(state.escape.ended, kept, last),
            state.escape.origin,
            state.params,
        )

    def _first_escape(self, params: Params) -> Watch:
        no = jnp.array(False)
        return Watch(params, no, jnp.zeros((), jnp.int32), no)

    def _escape(
        self, key: Array, state: State, whole: Params, drift: Array
    ) -> tuple[Params, Array, Watch, Array]:
        watch = state.escape
        gone = optax.tree.norm(jax.tree.map(jnp.subtract, widen(state.params), widen(watch.origin)))
        watching = watch.watching & (gone < self.escape_distance)
        ended = watching & (watch.waited + 1 >= self.frozen_steps)
        begins = ~watching & (optax.tree.norm(whole) <= self.kick_threshold)
        origin = jax.tree.map(
            lambda new, old: jnp.where(begins, new, old), state.params, watch.origin
        )
        near = watching | begins
        waited = jnp.where(watching, watch.waited + 1, 0).astype(jnp.int32)
        push = self._gaussian(key, whole, jnp.where(near, self.kick, 0.0))
        return push, near, Watch(origin, near, waited, ended), drift


def gauss_psgd(
    objective: Objective,
    budget: PrivacyBudget,
    *,
    data_size: int,
    dimension: int,
    alpha: float | None = None,
    batch_size: int | None = None,
    drift_threshold: float | None = None,
    step_size: float | None = None,
    horizon: int | None = None,
    noise: str | None = None,
    kick: float | None = None,
    kick_threshold: float | None = None,
    escape_steps: int | None = None,
    escape_distance: float | None = None,
    steps: int | None = None,
    clip_norm: float | None = None,
    smoothness: float | None = None,
    hessian_lipschitz: float | None = None,
    initial_gap: float | None = None,
    accountant: str = "pld",
) -> GaussPSGD:
    """Returns Gauss-PSGD on Spider's estimates: it stops where it stays, and selects nothing.

    Where the estimate is small, Gaussian noise is added to every step. If the model drifts by
    ``escape_distance`` within ``escape_steps``, that was a saddle and the descent goes on; if it
    stays, that point is the output. No private selection is needed, and none is paid for.

    Its arguments are as in ``stochastic_spider``, with these differences. ``kick`` is the root mean
    square length of the noise of every step near a possible saddle; ``kick_threshold`` is the norm
    of the estimate at which a saddle is possible. ``escape_steps`` is Gamma, how long to wait; by
    default 16 M / sqrt(rho alpha). ``escape_distance`` is R, by default sqrt(alpha / rho), the way
    on which a curvature of sqrt(rho alpha) may be lost.

    Returns:
      A frozen pytree for ``solve``; its status tells whether a point kept it.

    Raises:
      ValueError: as ``stochastic_spider``.

    Privacy: as ``stochastic_spider``, on all records; waiting and stopping read released values.

    Reference: Tao et al., "Second-order convergence in private stochastic non-convex optimization"
      (2025), for the escape by model drift, one try for each point.

    >>> from dpjax import objectives
    >>> budget = PrivacyBudget(epsilon=2.0, delta=1e-6)
    >>> algorithm = gauss_psgd(objectives.sigmoid_l2(), budget, data_size=35_000, dimension=22)
    >>> algorithm.score is None
    True
    """
    settings = Settings(
        alpha=alpha,
        batch_size=batch_size,
        drift_threshold=drift_threshold,
        step_size=step_size,
        horizon=horizon,
        noise=noise,
        kick=kick,
        kick_threshold=kick_threshold,
        frozen_steps=escape_steps,
        patience=16,
        steps=steps,
        candidates=0,
        clip_norm=clip_norm,
        smoothness=smoothness,
        hessian_lipschitz=hessian_lipschitz,
        initial_gap=initial_gap,
    )
    problem = base.check_problem(objective, budget, data_size, dimension, accountant)
    made = configure(GaussPSGD, "Gauss-PSGD", problem, settings)
    target, curvature = made.tolerances
    distance = target / curvature if escape_distance is None else escape_distance
    return dataclasses.replace(
        made, escape_distance=base.positive_leaf("escape_distance", distance)
    )
