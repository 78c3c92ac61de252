"""DP-STR (Wang and Xu 2020, algorithm 2): the trust-region method on a new batch in every step."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from dpjax import _validate, objectives, oracles
from dpjax._typing import Array, Params, pytree_dataclass, static
from dpjax.accounting import Event, PrivacyBudget, calibrate, compose
from dpjax.algorithms import base, trust_region
from dpjax.algorithms.trust_region import Queries, TrustRegionInfo, TrustRegionState
from dpjax.linalg.trust_region import BY_SIZE, Solver, check_solver

STEPS = 40


@pytree_dataclass
class StochasticTrustRegion(base.Algorithm):
    """Configuration of DP-STR; made by ``dp_stochastic_trust_region``.

    ``stages`` are the queries at each batch size, in the order of the steps: one joint query. In
    the paper's form, which benchmarks/papers builds, they are a gradient and a Hessian query, each
    on a draw of its own.
    """

    stages: tuple[Queries, ...]
    radius: Array | float
    radius_decay: Array | float
    damping: Array | tuple[float, ...]
    subproblem: Solver = static()

    title = "DP-STR"

    @property
    def queries(self) -> tuple[oracles.Query, ...]:
        return tuple(query for queries in self.stages for query in queries)

    @property
    def event(self) -> Event:
        return _event(self.stages, int(self.steps))

    def init(self, params: Params) -> TrustRegionState:
        return trust_region.start(params)

    def step(
        self, key: Array, state: TrustRegionState, ask: base.Ask
    ) -> tuple[TrustRegionState, TrustRegionInfo]:
        # Algorithm 2, with damping and a radius that shrinks.
        stages = len(self.stages)
        # ``steps_of_stage``, which builds the event, must count in the same way.
        stage = jnp.minimum(state.iteration * stages // self.steps, stages - 1)
        answer = self._ask(state.params, ask, stage)
        radius = self.radius * self.radius_decay ** state.iteration.astype(answer.hessian.dtype)
        # Each stage has noise of its own size, and so its own damping.
        damping = jnp.stack([jnp.asarray(d, radius.dtype) for d in self.damping])[stage]
        return trust_region.take_step(self, state, answer, radius, damping)

    def _ask(self, params: Params, ask: base.Ask, stage: Array) -> oracles.SecondOrderAnswer:
        if len(self.stages) == 1:
            return trust_region.ask_model(self.stages[0], params, ask)
        # Only this stage reads records, so that time follows its batch; the others answer 0.
        answers = [
            trust_region.ask_model(queries, params, ask, asked=stage == i)
            for i, queries in enumerate(self.stages)
        ]
        return jax.tree.map(lambda *each: jnp.stack(each)[stage], *answers)


def _event(stages: tuple[Queries, ...], steps: int) -> Event:
    return compose(
        query.event(steps_of_stage(steps, len(stages), stage))
        for stage, queries in enumerate(stages)
        for query in queries
    )


def steps_of_stage(steps: int, stages: int, stage: int) -> int:
    """Returns how many of ``steps`` iterations fall into ``stage``, as ``step`` counts them."""

    def first(stage: int) -> int:
        return -(-stage * steps // stages)  # the least i with i * stages // steps >= stage

    return first(stage + 1) - first(stage)


def dp_stochastic_trust_region(
    objective: objectives.Objective,
    budget: PrivacyBudget,
    *,
    data_size: int,
    dimension: int,
    batch_size: int | Sequence[int] | None = None,
    steps: int = STEPS,
    radius: float | None = None,
    final_radius: float | None = None,
    damping: float = 0.5,
    clip_norm: float | None = None,
    hessian_clip_norm: float | None = None,
    sampling: str = "poisson",
    max_batch_size: int | None = None,
    accountant: str = "pld",
    subproblem: Solver = BY_SIZE,
) -> StochasticTrustRegion:
    """Returns the stochastic private trust-region method, calibrated to the budget.

    Each step asks one batch, drawn on the device in time proportional to it, for gradient and
    Hessian as one release. By tight accounting of the draws the noise is about that of DP-TR, at a
    fraction of its time; the paper's advanced composition needs 17 to 22 times as much.

    Args:
      batch_size: by default n / 7. A sequence is a schedule, such as 2 %, 6 % and 20 % of n: the
        steps are split evenly, and all share one noise multiplier, so that noise falls as batches
        grow.
      the others: the same in all factories, see ``help(dpjax.algorithms)``.

    Privacy: releases T clipped sums over batches, divided by the declared batch size, with Gaussian
      noise; the rest is post-processing.

    Reference: Wang and Xu (2020), algorithm 2; one joint release, its accounting by privacy loss
      distributions, damping, the shrinking radius and growing batches are ours.

    >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-6)
    >>> algorithm = dp_stochastic_trust_region(
    ...     objectives.logistic(), budget, data_size=10_000, dimension=10, batch_size=1_000)
    >>> [(release.count, release.sampling) for release in algorithm.event.releases]
    [(40, 'poisson')]
    """
    problem = base.check_problem(objective, budget, data_size, dimension, accountant)
    base.check_smooth(objective, "DP-STR")
    steps = _validate.int32_count("steps", steps)
    subproblem = check_solver("subproblem", subproblem)
    n = problem.data_size
    batches = _batches(batch_size, n, steps)
    radii = trust_region.check_radii(objective, radius, final_radius)
    damping = _validate.non_negative("damping", damping)

    def draw(size: int) -> Any:
        # As if every stage drew in all steps: the maximum batch size is slightly larger.
        return oracles.batch_sampler(size, n, budget, steps, max_batch_size, sampling)

    stages = _joint_queries(problem, draw, batches, steps, (clip_norm, hessian_clip_norm))
    scales = [damping * trust_region.spectral_scale(queries[-1]) for queries in stages]
    algorithm = StochasticTrustRegion(
        stages=stages,
        **trust_region.shrinking(radii, steps),
        damping=tuple(map(base.to_leaf, scales)),
        subproblem=subproblem,
        **problem.plan(steps, 1),
    )
    problem.check_spent(algorithm.event)
    return algorithm


def _batches(batch_size: int | Sequence[int] | None, data_size: int, steps: int) -> list[int]:
    if batch_size is None:
        return [max(1, round(data_size / 7))]
    if not isinstance(batch_size, Sequence):
        return [oracles.check_batch_size(batch_size, data_size)]
    batches = [oracles.check_batch_size(batch, data_size) for batch in batch_size]
    if not 1 <= len(batches) <= steps:
        raise ValueError(
            f"batch_size must hold between 1 and steps={steps} sizes, got {len(batches)}."
        )
    if len(batches) > 1 and max(batches) == data_size:
        raise ValueError(
            f"a schedule of batch sizes must stay below data_size={data_size}, got {batches}."
        )
    return batches


def _joint_queries(
    problem: base.Problem, draw: Callable[[int], Any], batches: list[int], steps: int, clips: tuple
) -> tuple[tuple[oracles.JointQuery], ...]:
    clip, weight, _ = trust_region.joint_weights(problem.objective, *clips)
    # Each stage needs its own name, because noise keys derive from it.
    ends = [f"_{stage + 1}" for stage in range(len(batches))] if len(batches) > 1 else [""]
    queries = [
        oracles.JointQuery(
            setting=problem.setting.drawn_by(draw(batch)),
            noise_multiplier=1.0,
            gradient_weight=clip,
            hessian_weight=weight,
            label="gradient_and_hessian" + end,
        )
        for batch, end in zip(batches, ends, strict=True)
    ]

    def stages(multiplier: float) -> tuple[tuple[oracles.JointQuery], ...]:
        return tuple((dataclasses.replace(q, noise_multiplier=multiplier),) for q in queries)

    def event(multiplier: float) -> Event:
        return _event(stages(multiplier), steps)

    # One multiplier for all stages: of what batches of several sizes cost there is no closed form.
    return stages(calibrate(event, problem.budget, problem.accountant))
