"""Spiders before adaptive batches, with fixed batches and independent noise; and Gauss-PSGD."""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import dpjax
from dpjax.accounting import PrivacyBudget
from dpjax.algorithms import EscapeRule, Spider, base, gaussian_push, stochastic_spider
from dpjax.objectives import Objective


@dpjax.pytree_dataclass
class SquaredDriftSpider(Spider):
    """Spider that is renewed where M^2 times the sum of squared steps is large."""

    def drift_of(self, length: jax.Array) -> jax.Array:
        """Returns the square of what Spider adds."""
        return super().drift_of(length) ** 2


def fixed_batch_spider(
    objective: Objective,
    budget: PrivacyBudget,
    *,
    data_size: int,
    dimension: int,
    drift_threshold: float | None = None,
    accountant: str = "pld",
    **settings: Any,
) -> SquaredDriftSpider:
    """Returns Stochastic SpiderBoost with a drift threshold: fixed batches, independent noise.

    Args:
      objective: as in ``stochastic_spider``, like ``budget``, ``data_size``, ``dimension`` and
        ``accountant``.
      budget: of a whole run.
      data_size: n.
      dimension: p.
      drift_threshold: of M^2 times the sum of *squared* steps; by default the square of what
        ``stochastic_spider`` takes.
      accountant: ``"pld"`` or ``"rdp"``.
      **settings: of ``stochastic_spider``; ``difference_size`` is an eighth of the batch by
        default.

    Privacy: as ``stochastic_spider``; the noise of each difference follows what it can move, and
      adds up over a segment.

    Reference: Ganesh, Liu, Oh and Thakurta, "Private (stochastic) non-convex optimization
      revisited" (2023), algorithm 1.

    >>> budget = PrivacyBudget(epsilon=2.0, delta=1e-6)
    >>> algorithm = fixed_batch_spider(
    ...     dpjax.objectives.sigmoid_l2(), budget, data_size=35_000, dimension=22)
    >>> algorithm.estimate.batch_size, algorithm.difference_size
    (3937, 492)
    """
    settings |= {"drift_threshold": drift_threshold, "noise": "independent"}
    sizes = {"data_size": data_size, "dimension": dimension, "accountant": accountant}
    spider = _fixed_batches(stochastic_spider(objective, budget, **sizes, **settings))
    if drift_threshold is None:
        squared = base.positive_leaf("drift_threshold", spider.drift_threshold**2)  # pyright: ignore[reportArgumentType]
        spider = dataclasses.replace(spider, drift_threshold=squared)
    fields: dict[str, Any] = {f.name: getattr(spider, f.name) for f in dataclasses.fields(spider)}
    fields["name"] = "Spider with fixed batches"
    return SquaredDriftSpider(**fields)


def spider_boost(
    objective: Objective,
    budget: PrivacyBudget,
    *,
    data_size: int,
    dimension: int,
    period: int = 16,
    accountant: str = "pld",
    **settings: Any,
) -> Spider:
    """Returns private SpiderBoost: the gradient is renewed every ``period`` steps; no kicks.

    Args:
      objective: as in ``fixed_batch_spider``, like all that is not named here.
      budget: of a whole run.
      data_size: n.
      dimension: p.
      period: steps from one fresh gradient to the next.
      accountant: ``"pld"`` or ``"rdp"``.
      **settings: of ``stochastic_spider``, but for drift and kicks.

    Privacy: as ``stochastic_spider``.

    Reference: Arora, Bassily, Gonzalez, Guzman, Menart and Ullah, "Faster rates of convergence to
      stationary points in differentially private optimization" (2023), algorithm 1, here in one
      pass.

    >>> budget = PrivacyBudget(epsilon=2.0, delta=1e-6)
    >>> algorithm = spider_boost(
    ...     dpjax.objectives.sigmoid_l2(), budget, data_size=35_000, dimension=22, period=8)
    >>> algorithm.estimate.correlation.horizon
    8
    """
    settings |= {"drift_threshold": math.inf, "horizon": period, "kick": 0.0}
    sizes = {"data_size": data_size, "dimension": dimension, "accountant": accountant}
    spider = stochastic_spider(objective, budget, **sizes, **settings, noise="independent")
    return dataclasses.replace(_fixed_batches(spider), name="SpiderBoost")


def _fixed_batches(spider: Spider) -> Spider:
    if spider.difference_size is not None:
        return spider
    return dataclasses.replace(spider, difference_size=max(1, int(spider.estimate.batch_size) // 8))


class Watch(NamedTuple):
    """Where a possible saddle was met, and for how long the iterate has stayed near it."""

    origin: Any
    watching: jax.Array
    waited: jax.Array
    ended: jax.Array
    """Whether it stayed for good: ``origin`` is then the output."""


@dpjax.pytree_dataclass
class EscapeByDrift(EscapeRule):
    """Gauss-PSGD's rule: noise at every step near a possible saddle, until the model drifts away.

    Args:
      kick: root mean square length of the noise.
      kick_threshold: norm of the estimate at which a saddle is possible.
      escape_steps: how long to wait for the escape; a point that keeps the iterate so long ends the
        run, and is its output.
      escape_distance: how far the iterate has to come in that time.
    """

    kick: jax.Array | float
    kick_threshold: jax.Array | float
    escape_steps: jax.Array | int
    escape_distance: jax.Array | float

    def init(self, params: Any) -> Watch:
        """Returns that nothing is watched."""
        no = jnp.array(False)
        return Watch(params, no, jnp.zeros((), jnp.int32), no)

    def update(self, key, gradient, state, params):
        """Returns the noise; see ``EscapeRule``."""
        gone = _distance(params, state.origin)
        watching = state.watching & (gone < self.escape_distance)
        ended = watching & (state.waited + 1 >= self.escape_steps)
        begins = ~watching & (optax.tree.norm(gradient) <= self.kick_threshold)
        origin = jax.tree.map(lambda new, old: jnp.where(begins, new, old), params, state.origin)
        near = watching | begins
        waited = jnp.where(watching, state.waited + 1, 0).astype(jnp.int32)
        push = gaussian_push(key, gradient, jnp.where(near, self.kick, 0.0))
        return push, near, Watch(origin, near, waited, ended)

    def ended(self, state: Watch) -> jax.Array:
        """Returns whether a point kept the iterate."""
        return state.ended

    def output(self, state: Watch, params: Any) -> Any:
        """Returns the point that kept the iterate; the last iterate where none did."""
        return jax.tree.map(lambda at, last: jnp.where(state.ended, at, last), state.origin, params)


def _distance(here: Any, there: Any) -> jax.Array:
    def widen(leaf: jax.Array) -> jax.Array:
        return leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))

    return optax.tree.norm(jax.tree.map(lambda a, b: widen(a) - widen(b), here, there))


def gauss_psgd(
    objective: Objective,
    budget: PrivacyBudget,
    *,
    data_size: int,
    dimension: int,
    escape_steps: int | None = None,
    escape_distance: float | None = None,
    accountant: str = "pld",
    **settings: Any,
) -> Spider:
    """Returns Gauss-PSGD on Spider's estimates: it stops where it stays, and selects nothing.

    Where the estimate is small, Gaussian noise is added to every step. If the model drifts by
    ``escape_distance`` within ``escape_steps``, that was a saddle and the descent goes on; if it
    stays, that point is the output. No private selection is needed, and none is paid for.

    Args:
      objective: as in ``stochastic_spider``, like all that is not named here.
      budget: of a whole run.
      data_size: n.
      dimension: p.
      escape_steps: Gamma, how long to wait; by default 16 M / sqrt(rho alpha).
      escape_distance: R; by default sqrt(alpha / rho), the way on which a curvature of
        sqrt(rho alpha) may be lost.
      accountant: ``"pld"`` or ``"rdp"``.
      **settings: of ``stochastic_spider``, but for ``frozen_steps``; ``kick`` and
        ``kick_threshold`` are those of the noise near a saddle.

    Returns:
      A frozen pytree for ``solve``; its status tells whether a point kept it.

    Privacy: as ``stochastic_spider``, on all records; waiting and stopping read released values.

    Reference: Tao et al., "Second-order convergence in private stochastic non-convex optimization"
      (2025), for the escape by model drift, one try for each point.

    >>> budget = PrivacyBudget(epsilon=2.0, delta=1e-6)
    >>> algorithm = gauss_psgd(
    ...     dpjax.objectives.sigmoid_l2(), budget, data_size=35_000, dimension=22)
    >>> algorithm.score is None
    True
    """
    sizes = {"data_size": data_size, "dimension": dimension, "accountant": accountant}
    settings |= {"frozen_steps": escape_steps, "candidates": 0}
    spider: Any = stochastic_spider(objective, budget, **sizes, **settings)
    kicks, (alpha, curvature) = spider.escape, spider.tolerances
    if escape_steps is None:
        longest = spider.max_steps
        escape_steps = math.ceil(min(16 * spider.estimate.smoothness / curvature, longest))
    distance = alpha / curvature if escape_distance is None else escape_distance
    distance = base.positive_leaf("escape_distance", distance)
    rule = EscapeByDrift(kicks.kick, kicks.kick_threshold, escape_steps, distance)
    return dataclasses.replace(spider, escape=rule, name="Gauss-PSGD")
