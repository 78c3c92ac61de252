"""DPageEM (Zhang et al. 2021): stagewise DP-SGD with early momentum."""

import math
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
    sampling: str = "poisson",
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

    Privacy: releases T clipped mean gradients with Gaussian noise, each of its own batch; every
      iterate is covered. Stages, momentum and the choice of output are post-processing. The paper
      draws ``"without_replacement"`` and accounts for Poisson batches: here each is accounted for
      as drawn.

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
    sizes = (batch_size, max_batch_size)
    query = base.gradient_query(problem, total, clip_norm, sizes, sampling=sampling)
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


def paper_stages(
    objective: objectives.Objective,
    budget: PrivacyBudget,
    *,
    data_size: int,
    dimension: int,
    theta: float,
    mu: float,
    c4: float = 0.125,
    momentum: float = 0.9,
    on_fraction: float = _ON,
    clip_norm: float | None = None,
) -> dict[str, Any]:
    """Returns theorem 3.2's step size, stages and momentum, as arguments of ``dpagem``.

    K = log2(n^2 epsilon^2 theta^2 mu / (d L^2 ln(1/delta))), rounded up; T0 is the least of which
    eta0 = 1 / (c4 theta mu ((T0 - t0) + t0 / (2 (1 - rho)))) is at most
    min(theta (1 - rho)^2 / (2 beta), 1), for beta the objective's smoothness.

    Args:
      theta: of weak quasi-convexity, <grad F(w), w - w*> >= theta (F(w) - F*); 1 if F is convex.
      mu: of the Polyak-Lojasiewicz condition, |grad F|^2 >= 2 mu (F - F*); public, as theta.
      c4: above 0, below 2. A stage is proved to halve the gap up to 1/4 where the momentum is 0;
        the paper says up to 2, which is false.
      momentum: rho, on for t0 = ``on_fraction`` T0 steps.
      clip_norm: L; it and the others are as in ``dpagem``.

    Reference: Zhang et al. (2021), theorem 3.2, whose bound on eta0 prints max for min.

    >>> sizes = {"data_size": 1_000, "dimension": 10, "theta": 1.0, "mu": 0.1}
    >>> schedule = paper_stages(objectives.logistic_l2(0.1), PrivacyBudget(1.0, 1e-4), **sizes,
    ...     momentum=0.0, on_fraction=0.0)
    >>> schedule["first_steps"], schedule["stages"], round(schedule["step_size"], 3)
    (80, 11, 1.0)
    """
    problem = base.check_problem(objective, budget, data_size, dimension, "pld")
    clip, _ = base.clip_norms(objective, clip_norm, 1.0)
    beta = base.required("smoothness", objective.smoothness, None, objective)
    theta, mu = _validate.positive("theta", theta), _validate.positive("mu", mu)
    if mu > beta * (1 + 1e-6):
        raise ValueError(f"mu must be at most the objective's smoothness {beta:g}, got {mu:g}.")
    if not 0 < c4 < 2:
        raise ValueError(f"c4 must be above 0 and below 2, got {c4!r}.")
    gain = 1 / (2 * (1 - _validate.decay("momentum", momentum)))
    share = _validate.closed_unit("on_fraction", on_fraction)
    most = min(theta * (1 - momentum) ** 2 / (2 * beta), 1.0)
    needed = 1 / (c4 * theta * mu)
    first = math.ceil(needed / (most * (1 - share + share * gain)))
    # Rounded so that eta0, which makes the equation exact, is not above its bound.
    on = math.ceil(share * first) if gain > 1 else math.floor(share * first)
    signal = (problem.data_size * budget.epsilon * theta) ** 2 * mu
    noise = problem.dimension * clip**2 * math.log(1 / budget.delta)
    return {
        "step_size": needed / (first - on + on * gain),
        "first_steps": first,
        "first_on_steps": on,
        "stages": max(1, math.ceil(math.log2(signal / noise))),
        "momentum": momentum,
    }


def _stages(
    schedule: str,
    steps: int | None,
    first_steps: int | None,
    stages: int | None,
    stage_steps: tuple[int, ...] | None,
) -> tuple[int, StageSteps]:
    """Returns T, and the length of the first stage or of each."""
    steps, stages = (
        _validate.optional_count(name, value)
        for name, value in (("steps", steps), ("stages", stages))
    )
    given = _given(first_steps=first_steps, stages=stages, stage_steps=stage_steps)
    if schedule != "stagewise":
        if given:
            raise ValueError(
                f"schedule={schedule!r} has one stage, of all steps: leave out {_listed(given)}, "
                "or take schedule='stagewise'."
            )
        steps = base.STEPS if steps is None else steps
        return steps, steps
    if first_steps is None and stage_steps is None:
        return _fitted(base.STEPS if steps is None else steps, stages)
    if stage_steps is None:
        lengths = _validate.positive_int("first_steps", first_steps)
        if stages is None:
            # The most whole stages within T, so that an error names the T below.
            fitting = _STAGES if steps is None else (steps // lengths + 1).bit_length() - 1
            stages = max(fitting, 1)
        total = lengths * (2**stages - 1)
    else:
        if len(given) > 1:
            raise ValueError(f"give the stages once: of {_listed(given)} keep stage_steps alone.")
        if not isinstance(stage_steps, tuple | list):
            raise ValueError(f"stage_steps must be a tuple of whole numbers, got {stage_steps!r}.")
        lengths = tuple(stage_steps)
        transforms.check_stages(lengths, "stage_steps")
        total = sum(lengths)
    if steps not in (None, total):
        raise ValueError(
            f"the stages of {_listed(given)} add up to {total}, not to steps={steps}: take "
            f"steps={total} or leave it out, or give other stages."
        )
    return total, lengths


def _fitted(steps: int, stages: int | None) -> tuple[int, StageSteps]:
    """Returns T, and the length of the first of the stages that are made to fit."""
    # K stages of 1, 2, 4, ... steps have 2^K - 1 steps; the last may be cut short.
    most = steps.bit_length()
    stages = min(_STAGES, most) if stages is None else stages
    if stages > most:
        raise ValueError(
            f"stages={stages} do not fit in steps={steps}, even if the first lasts 1 step: take "
            f"stages={most} at most, or steps={2 ** (stages - 1)} at least."
        )
    return steps, -(-steps // (2**stages - 1))


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
