"""DPageEM (Zhang et al. 2021): stagewise DP-SGD with early momentum."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax import _validate, objectives, transforms
from dpjax._typing import Array, Params, pytree_dataclass, static
from dpjax._wide import at_least_float32
from dpjax.accounting import PrivacyBudget
from dpjax.algorithms import base
from dpjax.algorithms.descent import OutputRule, OutputState, Steps, draw_iterate, output_rule
from dpjax.algorithms.gradient_descent import batch_step_size
from dpjax.oracles import GradientQuery
from dpjax.transforms import StageSteps

# The power of t that divides the step size; stages halve it instead.
POWERS = {"constant": 0.0, "inverse": 1.0, "inverse_sqrt": 0.5}
SCHEDULES = ("stagewise", *POWERS)
_STAGES = 4
# The first step over 1 / smoothness: for rows of unit norm, whose weights are large.
_FIRST = 8
_ON = 0.5


class StagewiseState(NamedTuple):
    """The state of DPageEM; all of it released."""

    params: Params
    place: Array
    """The next step's position in the plan of T steps; a random output leaves some out."""
    previous: Params
    """The displacement of the step before."""
    drawn: Array | None
    """The number of the stage's iterate that is its output, drawn in its first step; else None."""
    output: OutputState


class StagewiseInfo(NamedTuple):
    """Metrics of a step; released, or public."""

    _repr_html_ = base.history_html
    gradient_norm: Array
    """Norm of the noisy gradient, regularizer included, before the step."""
    step_norm: Array
    """Length of the step taken, momentum included."""
    stage: Array
    """Number of the stage, from 0."""
    step_size: Array
    """What the gradient was multiplied with."""


@pytree_dataclass
class Stagewise(base.SingleQueryAlgorithm):
    """Configuration of DPageEM and the paper's other methods; made by ``dpagem``."""

    query: GradientQuery
    step_size: Array | float
    momentum: Array | float
    stage_steps: Array | int | tuple[Array | int, ...]
    """Length of the first stage, doubled from stage to stage; or of each."""
    on_steps: Array | int | tuple[Array | int, ...]
    """Number of steps with momentum at the start of the first stage, doubled too; or of each."""
    rule: OutputRule
    schedule: str = static()

    title = "DPageEM"

    def init(self, params: Params) -> StagewiseState:
        still = jax.tree.map(jnp.zeros_like, at_least_float32(params))
        zero = jnp.zeros((), jnp.int32)
        drawn = zero if self.rule.kind == "random" else None
        return StagewiseState(params, zero, still, drawn, self.rule.init(params))

    def step(
        self, key: Array, state: StagewiseState, ask: base.Ask
    ) -> tuple[StagewiseState, StagewiseInfo]:
        # Algorithm 2, line 4; momentum is of noisy displacements and nothing else.
        gradient = ask(self.query, state.params)
        gradient = self.objective.regularize_gradient(gradient, at_least_float32(state.params))
        rate = self._rate(state.place)
        move = jax.tree.map(lambda g: -rate.astype(g.dtype) * g, gradient)
        momentum = transforms.early_momentum(self.momentum, self.stage_steps, self.on_steps)
        before = transforms.EarlyMomentumState(state.place, state.previous)
        move, after = momentum.update(move, before)
        params = jax.tree.map(lambda w, m: w + m.astype(w.dtype), state.params, move)
        norm = optax.tree.norm(gradient)
        stage, _ = transforms.stage_of(state.place, self.stage_steps)
        public = (value.astype(norm.dtype) for value in (stage, rate))
        info = StagewiseInfo(norm, optax.tree.norm(move), *public)
        # A random output is drawn stage by stage, with the next position.
        output = self.rule.update(key, state.output, at_least_float32(params), self.steps)
        place, drawn = self._after(key, state)
        return StagewiseState(params, place, after.previous, drawn, output), info  # pyright: ignore

    def done(self, state: StagewiseState) -> Array:
        # A random output skips positions, so that the plan ends after fewer than T steps.
        return state.place >= self.steps

    def output(self, state: StagewiseState) -> Params:
        return self.rule.output(state.output, state.params)

    def _rate(self, place: Array) -> Array:
        # By position in the plan: a stage has its own rate, also after one that ended early.
        if self.schedule == "stagewise":
            return transforms.stagewise(self.step_size, self.stage_steps)(place)
        return Steps(self.step_size, POWERS[self.schedule]).rate(place)

    def _after(self, key: Array, state: StagewiseState) -> tuple[Array, Array | None]:
        """Returns the next step's position, and the number of the stage's iterate that is drawn."""
        place = state.place
        if state.drawn is None:
            return place + 1, None
        # Algorithm 2 outputs one of a stage's iterates, and the next stage starts there. As it is
        # drawn from a key alone, what comes after it in the stage need not be computed.
        stage, position = transforms.stage_of(place, self.stage_steps)
        start = place - position
        # T may cut the last stage short.
        end = jnp.minimum(start + transforms.updates_in(stage, self.stage_steps), self.steps)
        drawn = jnp.where(position == 0, draw_iterate(key, end - start), state.drawn)
        return jnp.where(position + 1 >= drawn, end, place + 1).astype(place.dtype), drawn


def dpagem(
    objective: objectives.Objective,
    budget: PrivacyBudget,
    *,
    data_size: int,
    dimension: int,
    batch_size: int | None = None,
    steps: int | None = None,
    first_steps: int | None = None,
    stages: int | None = None,
    stage_steps: tuple[int, ...] | None = None,
    step_size: float | None = None,
    schedule: str = "stagewise",
    momentum: float = 0.9,
    momentum_when: str = "early",
    on_fraction: float | None = None,
    first_on_steps: int | tuple[int, ...] | None = None,
    output: str = "last",
    average_decay: float | None = None,
    clip_norm: float | None = None,
    max_batch_size: int | None = None,
    accountant: str = "pld",
) -> Stagewise:
    """Returns stagewise DP-SGD with early momentum, calibrated to the budget.

    From stage to stage the step size halves and the number of steps doubles; heavy-ball momentum is
    on for the first part of every stage, and a stage starts at rest. The paper's other methods are
    settings of the same code: DPageS is ``momentum_when="never"``; DP-SGD-const, -c/t and -c/sqrt t
    add ``schedule="constant"``, ``"inverse"``, ``"inverse_sqrt"``; DP-SGDM-const is constant with
    ``"always"`` and DP-SGDEM-const with ``"early"``.

    Args:
      objective: what to minimise. Its regularizer must be smooth.
      steps: T; by default what the stages add up to, or 600.
      first_steps: T0; stage k lasts T0 2^k steps, k from 0, and T must be the end of a stage. By
        default the fewest for which ``stages`` stages reach T; the last is then cut short at T.
      stages: K; by default 4.
      stage_steps: the length of each stage, in place of the three above; T must be their sum.
      step_size: eta0, of the first stage; by default 8 / smoothness of one record's loss. For a
        network take 0.5.
      schedule: ``"stagewise"``, or of one stage of all steps: ``"constant"``, ``"inverse"``
        (eta0 / t), ``"inverse_sqrt"``.
      momentum: rho, from 0 to below 1.
      momentum_when: ``"early"``, ``"always"`` or ``"never"``.
      on_fraction: share of a stage in which early momentum is on; by default a half.
      first_on_steps: in place of it, t_on: momentum is on for t_on 2^k steps of stage k. A tuple
        where ``stage_steps`` is one.
      output: as in all factories, but ``"random"`` is of each stage, as in the paper: an iterate
        drawn uniformly from the stage's, after which the next stage begins.
      the others: the same in all factories, see ``help(dpjax.algorithms)``.

    Privacy: releases T clipped mean gradients with Gaussian noise, each of its own Poisson batch;
      every iterate is covered. Stages, momentum and the choice of output are post-processing. The
      paper draws batches of fixed size and accounts for Poisson ones: here both are Poisson.

    Reference: Zhang, Ma, Lou and Xiong (2021), algorithms 1 and 2, with theorem 3.2's stages.

    >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-6)
    >>> algorithm = dpagem(
    ...     objectives.logistic(), budget, data_size=7_000, dimension=10, first_steps=10, stages=3)
    >>> algorithm.event.releases[0].count
    70
    """
    problem = base.check_problem(objective, budget, data_size, dimension, accountant)
    base.check_smooth(objective, "DPageEM")
    _validate.choice("schedule", schedule, SCHEDULES)
    total, lengths = _stages(schedule, steps, first_steps, stages, stage_steps)
    _validate.int32_count("steps", total)
    on_steps = _on_steps(lengths, momentum_when, on_fraction, first_on_steps)
    query = base.gradient_query(problem, total, clip_norm, (batch_size, max_batch_size))
    return Stagewise(
        query=query,
        step_size=batch_step_size(objective, step_size, _FIRST),
        momentum=base.to_leaf(_validate.decay("momentum", momentum)),
        stage_steps=lengths,
        on_steps=on_steps,
        rule=output_rule(output, average_decay),
        schedule=schedule,
        **problem.plan(total),
    )


def _stages(
    schedule: str,
    steps: int | None,
    first_steps: int | None,
    stages: int | None,
    stage_steps: tuple[int, ...] | None,
) -> tuple[int, StageSteps]:
    """Returns T, and the length of the first stage or of each."""
    steps = _validate.optional_count("steps", steps)
    given = _given(first_steps=first_steps, stages=stages, stage_steps=stage_steps)
    if schedule != "stagewise":
        if given:
            raise ValueError(
                f"schedule={schedule!r} has one stage, of all steps: leave out {_listed(given)}, "
                "or take schedule='stagewise'."
            )
        steps = base.STEPS if steps is None else steps
        return steps, steps
    if stage_steps is not None:
        if len(given) > 1:
            raise ValueError(f"give the stages once: of {_listed(given)} keep stage_steps alone.")
        if not isinstance(stage_steps, tuple | list):
            raise ValueError(f"stage_steps must be a tuple of whole numbers, got {stage_steps!r}.")
        lengths = tuple(stage_steps)
        transforms.check_stages(lengths, "stage_steps")
        total = sum(lengths)
        if steps not in (None, total):
            raise ValueError(
                f"stage_steps={lengths} add up to {total}, not to steps={steps}: take steps={total}"
                f" or leave it out, or give stages that add up to {steps}."
            )
        return total, lengths
    stages = _validate.optional_count("stages", stages)
    if first_steps is not None:
        return _doubled(steps, _validate.positive_int("first_steps", first_steps), stages)
    # Neither the first stage nor all are given: T is, and the stages are made to fit.
    steps = base.STEPS if steps is None else steps
    # K stages of 1, 2, 4, ... steps have 2^K - 1 steps; the last may be cut short.
    most = steps.bit_length()
    if stages is None:
        stages = min(_STAGES, most)
    if stages > most:
        raise ValueError(
            f"stages={stages} do not fit in steps={steps}, even if the first lasts 1 step: take "
            f"stages={most} at most, or steps={2 ** (stages - 1)} at least."
        )
    return steps, -(-steps // (2**stages - 1))


def _doubled(steps: int | None, first: int, stages: int | None) -> tuple[int, StageSteps]:
    if stages is None and steps is not None:
        # The most whole stages within T, so that an error names the T below.
        stages = max((steps // first + 1).bit_length() - 1, 1)
    stages = _STAGES if stages is None else stages
    total = first * (2**stages - 1)
    if steps in (None, total):
        return total, first
    fits = [f"steps={total} ({stages} stages)"]
    if steps is not None and steps > total:
        fits.append(f"steps={first * (2 ** (stages + 1) - 1)} ({stages + 1} stages)")
    raise ValueError(
        f"{stages} stages of first_steps={first} doubled add up to {total}, not to steps={steps}: "
        f"take {' or '.join(fits)}, or leave first_steps out."
    )


def _on_steps(
    lengths: StageSteps,
    momentum_when: str,
    on_fraction: float | None,
    first_on_steps: int | tuple[int, ...] | None,
) -> StageSteps:
    """Returns the number of steps with momentum, in the first stage or in each."""
    _validate.choice("momentum_when", momentum_when, ("early", "always", "never"))
    given = _given(on_fraction=on_fraction, first_on_steps=first_on_steps)
    if given and momentum_when != "early":
        raise ValueError(
            f"momentum_when={momentum_when!r} already fixes which steps use momentum: leave out "
            f"{_listed(given)}, or take momentum_when='early'."
        )
    if len(given) > 1:
        raise ValueError(f"give one of {_listed(given)}, not both.")
    if first_on_steps is not None:
        transforms.check_on_steps(first_on_steps, lengths)
        return first_on_steps
    fraction = {"always": 1.0, "never": 0.0}.get(momentum_when, on_fraction)
    fraction = _validate.closed_unit("on_fraction", _ON if fraction is None else fraction)
    return jax.tree.map(lambda length: round(fraction * length), lengths)


def _given(**arguments: Any) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}


def _listed(given: dict) -> str:
    return " and ".join(f"{name}={value!r}" for name, value in given.items())
