"""Spiders before adaptive batches: fixed batches, independent noise, periodic full gradients."""

import math

from dpjax.accounting import PrivacyBudget
from dpjax.algorithms import base
from dpjax.algorithms.spider import Spider
from dpjax.algorithms.spider_theory import KEPT, Settings, configure
from dpjax.objectives import Objective


def fixed_batch_spider(
    objective: Objective,
    budget: PrivacyBudget,
    *,
    data_size: int,
    dimension: int,
    alpha: float | None = None,
    batch_size: int | None = None,
    difference_size: int | None = None,
    drift_threshold: float | None = None,
    step_size: float | None = None,
    kick: float | None = None,
    kick_threshold: float | None = None,
    frozen_steps: int | None = None,
    steps: int | None = None,
    candidates: int | None = None,
    kept: float = KEPT,
    clip_norm: float | None = None,
    hessian_clip_norm: float | None = None,
    smoothness: float | None = None,
    hessian_lipschitz: float | None = None,
    initial_gap: float | None = None,
    accountant: str = "pld",
    beta: float = 0.05,
) -> Spider:
    """Returns Stochastic SpiderBoost with a drift threshold: fixed batches, independent noise.

    Its arguments are as in ``stochastic_spider``, with these differences. ``difference_size`` is
    the number of records of every difference, by default an eighth of ``batch_size``.
    ``drift_threshold`` is of M^2 times the sum of *squared* steps; by default the square of what
    ``stochastic_spider`` takes. ``accountant`` is ``"pld"`` or ``"rdp"``.

    Returns:
      A frozen pytree for ``solve``.

    Raises:
      ValueError: as ``stochastic_spider``.

    Privacy: as ``stochastic_spider``; the noise of each difference follows what it can move, and
      adds up over a segment.

    Reference: Ganesh, Liu, Oh and Thakurta, "Private (stochastic) non-convex optimization
      revisited" (2023), algorithm 1.

    >>> from dpjax import objectives
    >>> budget = PrivacyBudget(epsilon=2.0, delta=1e-6)
    >>> algorithm = fixed_batch_spider(
    ...     objectives.sigmoid_l2(), budget, data_size=35_000, dimension=22)
    >>> algorithm.estimate.batch_size, algorithm.difference_size
    (3937, 492)
    """
    title = "Spider with fixed batches"
    problem = base.check_problem(objective, budget, data_size, dimension, accountant)
    settings = Settings(
        alpha=alpha,
        batch_size=batch_size,
        difference_size=difference_size,
        drift_threshold=drift_threshold,
        step_size=step_size,
        kick=kick,
        kick_threshold=kick_threshold,
        frozen_steps=frozen_steps,
        steps=steps,
        noise="independent",
        fixed=True,
        squared_drift=True,
        candidates=candidates,
        kept=kept,
        beta=beta,
        clip_norm=clip_norm,
        hessian_clip_norm=hessian_clip_norm,
        smoothness=smoothness,
        hessian_lipschitz=hessian_lipschitz,
        initial_gap=initial_gap,
    )
    return configure(Spider, title, problem, settings)


def spider_boost(
    objective: Objective,
    budget: PrivacyBudget,
    *,
    data_size: int,
    dimension: int,
    alpha: float | None = None,
    batch_size: int | None = None,
    difference_size: int | None = None,
    period: int = 16,
    step_size: float | None = None,
    steps: int | None = None,
    candidates: int | None = None,
    kept: float = KEPT,
    clip_norm: float | None = None,
    hessian_clip_norm: float | None = None,
    smoothness: float | None = None,
    hessian_lipschitz: float | None = None,
    initial_gap: float | None = None,
    accountant: str = "pld",
    beta: float = 0.05,
) -> Spider:
    """Returns private SpiderBoost: the gradient is renewed every ``period`` steps; no kicks.

    Its arguments are as in ``stochastic_spider``, with these differences. ``difference_size`` is
    the number of records of every difference, by default an eighth of ``batch_size``. ``period`` is
    the number of steps from one fresh gradient to the next. ``accountant`` is ``"pld"`` or
    ``"rdp"``.

    Returns:
      A frozen pytree for ``solve``.

    Raises:
      ValueError: as ``stochastic_spider``.

    Privacy: as ``stochastic_spider``.

    Reference: Arora, Bassily, Gonzalez, Guzman, Menart and Ullah, "Faster rates of convergence to
      stationary points in differentially private optimization" (2023), algorithm 1, here in one
      pass.

    >>> from dpjax import objectives
    >>> budget = PrivacyBudget(epsilon=2.0, delta=1e-6)
    >>> algorithm = spider_boost(
    ...     objectives.sigmoid_l2(), budget, data_size=35_000, dimension=22, period=8)
    >>> algorithm.estimate.correlation.horizon
    8
    """
    title = "SpiderBoost"
    problem = base.check_problem(objective, budget, data_size, dimension, accountant)
    settings = Settings(
        alpha=alpha,
        batch_size=batch_size,
        difference_size=difference_size,
        drift_threshold=math.inf,
        step_size=step_size,
        horizon=period,
        kick=0.0,
        steps=steps,
        noise="independent",
        fixed=True,
        candidates=candidates,
        kept=kept,
        beta=beta,
        clip_norm=clip_norm,
        hessian_clip_norm=hessian_clip_norm,
        smoothness=smoothness,
        hessian_lipschitz=hessian_lipschitz,
        initial_gap=initial_gap,
    )
    return configure(Spider, title, problem, settings)
