"""DP-STR (Wang and Xu 2020, algorithm 2): the trust-region method on a new batch in every step."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dpjax import _validate, objectives, oracles
from dpjax._typing import Array, Params, pytree_dataclass, static
from dpjax.accounting import Event, PrivacyBudget, calibrate, compose, round_up
from dpjax.algorithms import base, model_queries, schedules, trust_region
from dpjax.algorithms.model_queries import Queries
from dpjax.algorithms.trust_region import TrustRegionInfo, TrustRegionState
from dpjax.linalg.trust_region import BY_SIZE, Solver, check_solver

STEPS = 40


@pytree_dataclass
class StochasticTrustRegion(base.Algorithm):
    """Configuration of DP-STR; made by ``dp_stochastic_trust_region``.

    ``stages`` are the queries at each batch size: a joint one, or in the paper's form one for the
    gradient and one for the Hessian, each on a draw of its own.
    """

    stages: tuple[Queries, ...]
    radius: Array | float
    radius_decay: Array | float
    damping: Array | tuple[Any, ...]
    stop_below: Array | float
    stopping: bool = static()
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
        stage, damping = self._stage(state.iteration)
        answer = self._ask(state.params, ask, stage)
        radius = schedules.radius_at(self, state.iteration, answer.hessian.dtype)
        return trust_region.take_step(self, state, answer, radius, damping.astype(radius.dtype))

    def done(self, state: TrustRegionState) -> Array:
        # Step 7 reads the multiplier of the noisy model: post-processing of the released answers.
        if not self.stopping:
            return jnp.asarray(False)
        _, damping = self._stage(state.iteration - 1)
        return state.multiplier + damping <= self.stop_below

    def _stage(self, iteration: Array) -> tuple[Array, Array]:
        # ``steps_of_stage``, which builds the event, must count in the same way.
        stages = len(self.stages)
        stage = jnp.minimum(iteration * stages // self.steps, stages - 1)
        # Each stage has noise of its own size, and so its own damping.
        damping = jnp.stack([jnp.asarray(d) for d in self.damping])[stage]
        return stage, schedules.at_step(damping, iteration)

    def _ask(self, params: Params, ask: base.Ask, stage: Array) -> oracles.SecondOrderAnswer:
        if len(self.stages) == 1:
            return model_queries.ask_model(self.stages[0], params, ask)
        # Only this stage reads records, so that time follows its batch; the others answer 0.
        answers = [
            model_queries.ask_model(queries, params, ask, asked=stage == i)
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
    radius: optax.ScalarOrSchedule | None = None,
    final_radius: float | None = None,
    damping: optax.ScalarOrSchedule = 0.5,
    clip_norm: float | None = None,
    hessian_clip_norm: float | None = None,
    sampling: str = "poisson",
    max_batch_size: int | None = None,
    release: str = "joint",
    hessian_batch_size: int | None = None,
    stopping_alpha: float | None = None,
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
      release: ``"joint"``, or ``"separate"`` as in the paper: the gradient of one batch and the
        Hessian of another, drawn independently, are two releases.
      hessian_batch_size: |T| of separate releases; by default ``batch_size``, which is |S|.
      stopping_alpha: as in ``dp_trust_region``; the output is then w_{k+1}, where the rule fired.
        ``paper_schedule`` with ``dimension=`` has the paper's form.
      the others: the same in all factories, see ``help(dpjax.algorithms)``.

    Privacy: releases T clipped sums over batches, divided by the declared batch size, with Gaussian
      noise; the rest, the stopping rule too, is post-processing. Separate releases are 2 T, on
      independent draws. The guarantee is that of all T steps even if the run stops before.

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
    n = problem.data_size
    batches = _batches(batch_size, n, steps)
    hessian_batch = _hessian_batch(release, hessian_batch_size, batches, n)
    radii = schedules.check_radii(problem, radius, final_radius, steps)
    kappa = schedules.scheduled("damping", damping, problem, steps, _validate.non_negative)

    def draw(size: int) -> Any:
        # As if every stage drew in all steps: the maximum batch size is slightly larger.
        return oracles.batch_sampler(size, n, budget, steps, max_batch_size, sampling)

    clips = (clip_norm, hessian_clip_norm)
    if hessian_batch is None:
        queries_of = _joint_queries(problem, draw, batches, clips)
    else:
        sizes, typical = (*batches, hessian_batch), schedules.typical_radius(radii)
        queries_of = _separate_queries(problem, draw, sizes, clips, typical)
    scale = calibrate(lambda scale: _event(queries_of(scale), steps), budget, accountant)
    stages = queries_of(scale)
    scales = [kappa * model_queries.spectral_scale(queries[-1]) for queries in stages]
    algorithm = StochasticTrustRegion(
        stages=stages,
        **schedules.shrinking(radii, steps),
        damping=tuple(map(base.to_leaf, scales)),
        stop_below=trust_region.stopping_level(objective, stopping_alpha),
        stopping=stopping_alpha is not None,
        subproblem=check_solver("subproblem", subproblem),
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


def _hessian_batch(release: str, size: int | None, batches: list[int], n: int) -> int | None:
    if _validate.choice("release", release, model_queries.RELEASES) == "joint":
        if size is not None:
            raise ValueError("hessian_batch_size is for release='separate', with a batch each.")
        return None
    if len(batches) > 1:
        raise ValueError("a schedule of batch sizes is for release='joint'.")
    size = batches[0] if size is None else size
    return oracles.check_batch_size(size, n, "hessian_batch_size")


def _joint_queries(
    problem: base.Problem, draw: Callable[[int], Any], batches: list[int], clips: tuple
) -> Callable[[float], tuple[Queries, ...]]:
    clip, weight, _ = model_queries.joint_weights(problem.objective, *clips)
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
    # One multiplier for all stages: of what batches of several sizes cost there is no closed form.
    return lambda scale: tuple((_with_noise(query, scale),) for query in queries)


def _separate_queries(
    problem: base.Problem, draw: Callable[[int], Any], sizes: tuple, clips: tuple, radius: float
) -> Callable[[float], tuple[Queries, ...]]:
    norms = base.clip_norms(problem.objective, *clips)
    fractions = model_queries.fractions(*norms, radius)
    kinds = (oracles.GradientQuery, oracles.HessianQuery)
    queries = [
        kind(setting=problem.setting.drawn_by(draw(size)), noise_multiplier=1.0, clip_norm=norm)
        for kind, size, norm in zip(kinds, sizes, norms, strict=True)
    ]
    # By the central limit of T draws mu^2 is T q^2 (exp(1 / multiplier^2) - 1): with this noise
    # gradient and Hessian spend their fractions of it, however small their batches are.
    shares = [f * (problem.data_size / size) ** 2 for f, size in zip(fractions, sizes, strict=True)]

    def stage(scale: float) -> Any:
        noise = [round_up(math.log1p(share / scale**2) ** -0.5) for share in shares]
        return tuple(map(_with_noise, queries, noise))

    return lambda scale: (stage(scale),)


def _with_noise(query: Any, multiplier: float) -> Any:
    return dataclasses.replace(query, noise_multiplier=multiplier)
