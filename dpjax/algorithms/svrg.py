"""DP-SVRG and DP-SVRG++ (Wang, Ye and Xu 2017, algorithms 1 and 2), with noise on both parts."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax import _validate, objectives, oracles
from dpjax._typing import Array, Params, pytree_dataclass, static
from dpjax._wide import at_least_float32
from dpjax.accounting import Event, PrivacyBudget, compose, gaussian_multiplier
from dpjax.algorithms import base

# From 32 on the theorems allow the step 1 / L of the full gradient; smaller batches than 128 were
# measured to lose more to noise than they save in records.
_BATCHES = 128, 16_384


class SvrgState(NamedTuple):
    """The state of DP-SVRG; all of it released."""

    params: Params
    anchor: Params
    """The point of this epoch at which the gradient of all records was released."""
    gradient: Params
    """The noisy gradient at the anchor, without the regularizer."""
    average: Params
    """Mean of the iterates of this epoch."""
    count: Array
    """Steps taken in this epoch."""
    length: Array
    """Steps of this epoch in all; 0 before the first."""


class SvrgInfo(NamedTuple):
    """Metrics of a step; all of it released."""

    _repr_html_ = base.history_html
    data_gradient_norm: Array
    """Norm of the variance-reduced noisy gradient, without the regularizer, which has a prox."""
    step_norm: Array
    """Length of the step taken."""
    distance: Array
    """From anchor to iterate; the noise on the difference grows with it, up to a maximum."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SvrgEpochs(base.Algorithm):
    """The steps of algorithms 1 and 2; a subclass implements ``estimate``, which asks the queries.

    In the paper's notation, ``epochs`` is T, ``epoch_length`` m and ``step_size`` eta.
    """

    step_size: Array | float
    epoch_length: Array | int
    doubling: bool = static()

    @property
    def title(self) -> str:
        return "DP-SVRG++" if self.doubling else "DP-SVRG"

    @property
    def epochs(self) -> int:
        """T, the epochs that the planned steps begin; on the host."""
        return epochs_of(int(self.steps), int(self.epoch_length), self.doubling)

    def init(self, params: Params) -> SvrgState:
        wide = at_least_float32(params)
        zero = jnp.zeros((), jnp.int32)
        return SvrgState(params, params, jax.tree.map(jnp.zeros_like, wide), wide, zero, zero)

    def step(self, key: Array, state: SvrgState, ask: base.Ask) -> tuple[SvrgState, SvrgInfo]:
        # Lines 5 to 7; where an epoch begins, lines 2 to 4 first.
        state, refresh = self._entered(state)
        released, estimate = self.estimate(state, refresh, ask)
        moved = jax.tree.map(
            lambda w, v: w - (self.step_size * v).astype(w.dtype), state.params, estimate
        )
        params = self.objective.prox(moved, self.step_size)
        # A running mean, as an epoch that T cuts short has one too.
        count = state.count + 1
        average = jax.tree.map(
            lambda mean, w: mean + (w.astype(mean.dtype) - mean) / count.astype(mean.dtype),
            state.average,
            params,
        )
        moves = _distance(params, state.params), _distance(state.params, state.anchor)
        info = SvrgInfo(optax.tree.norm(estimate), *moves)
        return SvrgState(params, state.anchor, released, average, count, state.length), info

    def output(self, state: SvrgState) -> Params:
        return optax.tree.cast_like(state.average, state.params)

    def _entered(self, state: SvrgState) -> tuple[SvrgState, Array]:
        """The state in the epoch of the next step, and whether that step begins it."""
        # At the start both are 0, so that the first step begins an epoch.
        refresh = state.count == state.length
        return optax.tree.where(refresh, self._next_epoch(state), state), refresh

    def estimate(self, state: SvrgState, refresh: Array, ask: base.Ask) -> tuple[Params, Params]:
        """Returns what is released of the gradient at the anchor, and v_t; asks each query once.

        ``refresh`` is whether the step begins an epoch, so that ``state.anchor`` is a new one.
        """
        raise NotImplementedError

    def _next_epoch(self, state: SvrgState) -> SvrgState:
        anchor = self.output(state)
        first = jnp.asarray(self.epoch_length).astype(jnp.int32)
        if self.doubling:
            # Epoch s has 2^s m steps, and goes on where the one before ended.
            length = jnp.where(state.length == 0, 2 * first, 2 * state.length)
            params = state.params
        else:
            length, params = first, anchor
        zeros = jnp.zeros_like(state.count)
        return SvrgState(params, anchor, state.gradient, state.average, zeros, length)


@pytree_dataclass
class VarianceReduced(SvrgEpochs):
    """Configuration of DP-SVRG and DP-SVRG++; made by ``dp_svrg`` and ``dp_svrg_plus_plus``.

    The paper adds noise to v_t as a whole. Here v_t is the sum of two noisy answers: the gradient
    at the anchor, asked once an epoch, and at every step how the batch's gradient changed since.
    """

    anchor: oracles.AnchorQuery
    difference: oracles.DifferenceQuery

    @property
    def queries(self) -> tuple[oracles.Query, ...]:
        # The difference is first: it fixes the form of the records.
        return (self.difference, self.anchor)

    @property
    def event(self) -> Event:
        differences = self.difference.event(int(self.steps))
        return compose([self.anchor.event(self.epochs), differences])

    def estimate(self, state: SvrgState, refresh: Array, ask: base.Ask) -> tuple[Params, Params]:
        answer = ask(self.anchor, state.anchor, refresh=refresh)
        # Where the epoch goes on, the query reads no record, and the old answer stays.
        anchored = optax.tree.where(refresh, answer, state.gradient)
        change = ask(self.difference, state.params, anchor=state.anchor)
        return anchored, jax.tree.map(jnp.add, change, anchored)


def _distance(*points: Params) -> Array:
    return optax.tree.norm(jax.tree.map(jnp.subtract, *map(at_least_float32, points)))


class Settings(NamedTuple):
    """The numbers of both queries."""

    clip_norm: float
    smoothness: float
    batch_size: int | None
    max_batch_size: int | None
    anchor_share: float

    def sized(self, data_size: int, steps_of_a_pass: float) -> "Settings":
        """Returns these with a batch size, at whose default so many steps read as one pass does."""
        size = self.batch_size
        if size is None:
            # A difference takes two gradients of a record.
            size = min(max(round(data_size / (2 * steps_of_a_pass)), _BATCHES[0]), _BATCHES[1])
            size = min(size, data_size)
        return self._replace(batch_size=oracles.check_batch_size(size, data_size))

    def variance(self, data_size: int) -> float:
        """The variance of a batch's mean over that of one record's part."""
        size = self.batch_size or data_size
        return 0.0 if size == data_size else 1 / size


def _settings(
    objective: objectives.Objective, clip_norm: float | None, smoothness: float | None, *sizes: Any
) -> Settings:
    """Returns the numbers of both queries, by default the objective's constants."""
    _ = objective.prox  # raises where there is none
    clip, _ = base.clip_norms(objective, clip_norm, 1.0)
    usual = None if objective.constants is None else objective.constants.smoothness
    smoothness = base.required("smoothness", smoothness, usual, objective)
    settings = Settings(clip, base.positive_leaf("smoothness", smoothness), *sizes)
    _validate.open_unit("anchor_share", settings.anchor_share)
    return settings


def _needed(objective: objectives.Objective, mu: float | None, argument: str) -> float:
    """Returns mu, or raises if there is none to choose ``argument`` by."""
    if mu is None:
        raise ValueError(
            f"strong_convexity must be above 0 to choose {argument}, and {objective.name} is not "
            f"known to be strongly convex: add L2, give {argument}, or take dp_svrg_plus_plus."
        )
    return mu


def _first_step_size(settings: Settings, given: float | None) -> float:
    """Returns eta as far as it is known before the batch: the given one, or 1 / L."""
    return 1 / settings.smoothness if given is None else _validate.normal("step_size", given)


def _step_size(settings: Settings, n: int, given: float | None, factors: tuple[int, int]) -> float:
    """Returns eta, by default below the bound of the theorem so that (4) has a solution."""
    variance = settings.variance(n)
    most, usual = (1 / (settings.smoothness * max(1.0, factor * variance)) for factor in factors)
    if given is None:
        return usual
    # Privacy does not depend on it: a warning, not an error.
    words = f"the bound of the theorem for batches of b: min(1 / L, b / ({factors[0]} L))"
    words = f"{most:.4g}, {words}. Above it the theorem does not apply."
    base.warn_if_above(_validate.normal("step_size", given), most, words, stacklevel=4)
    return given


def _noise(problem: base.Problem, clip: float) -> float:
    """Returns G sqrt(p ln(1/delta)) / (n epsilon), the error that noise leaves."""
    budget, p = problem.budget, problem.dimension
    return clip * math.sqrt(p * math.log(1 / budget.delta)) / (problem.data_size * budget.epsilon)


def _all_steps(epochs: int | None, steps: int | None, total: Callable[[int], int]) -> int:
    """Returns the inner steps of all epochs."""
    if steps is not None:
        if epochs is not None:
            raise ValueError(f"give epochs={epochs} or steps={steps}, not both.")
        return _validate.int32_count("steps", steps)
    planned = total(_validate.positive_int("epochs", epochs))
    if planned >= 2**31:
        raise ValueError(f"epochs={epochs} have 2^31 steps or more: take fewer or shorter epochs.")
    return planned


def epochs_of(steps: int, epoch_length: int, doubling: bool) -> int:
    """Returns how many epochs of m steps, or of 2 m, 4 m and so on, begin within ``steps``."""
    lengths = -(-steps // epoch_length)
    # The first T doubling epochs have (2^(T + 1) - 2) m steps.
    return (lengths + 1).bit_length() - 1 if doubling else lengths


def _configured(
    problem: base.Problem, settings: Settings, steps: int, eta: float, length: int, doubling: bool
) -> VarianceReduced:
    """Returns the algorithm, with both queries calibrated to the budget."""
    budget, n, epochs = problem.budget, problem.data_size, epochs_of(steps, length, doubling)
    # mu^2 of Gaussians is a sum over releases: the anchors spend a fraction of it. The differences,
    # on sampled batches, have no mu, and are calibrated to what the anchors leave.
    draws, clip = problem.dimension, settings.clip_norm
    whole = gaussian_multiplier(budget, epochs, problem.accountant, noise_draws=draws)
    anchor = problem.part(oracles.AnchorQuery, whole, settings.anchor_share, clip_norm=clip)
    batch, most = settings.batch_size or n, settings.max_batch_size
    difference = oracles.DifferenceQuery(
        setting=problem.setting.drawn_by(oracles.batch_sampler(batch, n, budget, steps, most)),
        noise_multiplier=1.0,
        clip_norm=clip,
        smoothness=settings.smoothness,
    )
    anchors = anchor.event(epochs)
    difference = problem.calibrated(difference, lambda q: compose([anchors, q.event(steps)]))
    algorithm = VarianceReduced(
        anchor=anchor,
        difference=difference,
        step_size=base.positive_leaf("step_size", eta),
        epoch_length=length,
        doubling=doubling,
        # Theory chooses T: rounded up to a power of 2, similar plans share one program.
        **problem.plan(steps, max(1 << (steps - 1).bit_length(), base.MAX_STEPS)),
    )
    # Close to the anchor the noise of a difference is smaller than the event says.
    base.check_noise(difference.event(steps), oracles.LEAST)
    problem.check_spent(algorithm.event)
    return algorithm


def dp_svrg(
    objective: objectives.Objective,
    budget: PrivacyBudget,
    *,
    data_size: int,
    dimension: int,
    epochs: int | None = None,
    epoch_length: int | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    step_size: float | None = None,
    clip_norm: float | None = None,
    smoothness: float | None = None,
    strong_convexity: float | None = None,
    initial_gap: float | None = None,
    anchor_share: float = 0.6,
    max_batch_size: int | None = None,
    accountant: str = "pld",
) -> VarianceReduced:
    """Returns DP-SVRG, calibrated to the budget: for strongly convex objectives with a prox.

    The output is the mean of the iterates of the last epoch.

    Args:
      objective: what to minimise; its regularizer must have a proximal operator.
      epochs: T; by default theorem 4.2's, log2(gap n^2 epsilon^2 mu / (p G^2 ln(1/delta))): each
        epoch halves the gap, until the noise is left.
      epoch_length: m; by default the least of inequality (4), about 2 / (eta mu).
      steps: inner steps in all, instead of ``epochs``; the last epoch may then end early.
      batch_size: by default n / (2 m), at least 128 (or n) and at most 16,384, so that the steps of
        an epoch read as much as its anchor.
      step_size: eta; by default 1 / L, for batches below 32 records b / (32 L). A
        ``UserWarning`` is issued above the theorem's bound, min(1 / L, b / (12 L)).
      smoothness: L of the data term; by default the objective's constant. Clipping enforces it.
      strong_convexity: mu; by default the regularizer's.
      anchor_share: fraction of the squared mu of Gaussian privacy that the anchors spend.
      the others: the same in all factories, see ``help(dpjax.algorithms)``.

    Privacy: releases T clipped mean gradients and, at every inner step, the clipped difference to
      the anchor on a Poisson batch of its own, with Gaussian noise; every iterate is covered.

    Reference: Wang, Ye and Xu (2017), algorithm 1 and theorem 4.2. Noise is added to anchor and
      difference separately: noise on v_t alone would have to hide the anchor's exact gradient at
      every step, and the paper's formula for it is not private. For batches the variance in
      inequality (4) is divided by b, as in Konecny, Liu, Richtarik and Takac, "Mini-batch
      semi-stochastic gradient descent in the proximal setting" (2016).

    >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-6)
    >>> algorithm = dp_svrg(
    ...     objectives.logistic_l2(1e-2), budget, data_size=10_000, dimension=10, epochs=4)
    >>> [(release.name, release.count) for release in algorithm.event.releases]
    [('anchor', 4), ('difference', 248)]
    """
    problem = base.check_problem(objective, budget, data_size, dimension, accountant)
    settings = _settings(objective, clip_norm, smoothness, batch_size, max_batch_size, anchor_share)
    mu = getattr(objective.regularizer, "strong_convexity", None) or None
    if strong_convexity is not None:
        mu = _validate.normal("strong_convexity", strong_convexity)
    length = _validate.optional_count("epoch_length", epoch_length)
    # The default batch depends on the length, the length on the step size, and the step size on the
    # batch: a first step size without a batch breaks the cycle.
    typical_length = length
    if typical_length is None:
        initial_step_size = _first_step_size(settings, step_size)
        typical_length = 2 / (initial_step_size * _needed(objective, mu, "epoch_length"))
    settings = settings.sized(problem.data_size, typical_length)
    # By theorem 4.2 eta is at most b / (12 L), but inequality (4) has solutions only below b / (24
    # L); hence the 32.
    eta = _step_size(settings, problem.data_size, step_size, (12, 32))
    if length is None:
        # Of inequality (4), with 8 eta L divided by the batch size.
        theta = 8 * eta * settings.smoothness * settings.variance(problem.data_size)
        if theta >= 1 / 3:
            raise ValueError(
                f"no epoch_length satisfies inequality (4) of theorem 4.2 at step_size={eta:g}; "
                f"take one below {eta / (3 * theta):.4g}, or give epoch_length."
            )
        assert mu is not None  # the batch size was chosen by it
        length = math.floor((1 / (eta * mu) + theta) / (0.5 - 1.5 * theta)) + 1
    if steps is None and epochs is None:
        gap = base.initial_gap(objective, initial_gap)
        noise = _noise(problem, settings.clip_norm) ** 2 / _needed(objective, mu, "epochs")
        epochs = max(1, math.ceil(math.log2(max(gap / noise, 1.0))))
    steps = _all_steps(epochs, steps, lambda count: count * length)
    return _configured(problem, settings, steps, eta, length, doubling=False)


def dp_svrg_plus_plus(
    objective: objectives.Objective,
    budget: PrivacyBudget,
    *,
    data_size: int,
    dimension: int,
    epochs: int | None = None,
    epoch_length: int | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    step_size: float | None = None,
    clip_norm: float | None = None,
    smoothness: float | None = None,
    initial_gap: float | None = None,
    anchor_share: float = 0.6,
    max_batch_size: int | None = None,
    accountant: str = "pld",
) -> VarianceReduced:
    """Returns DP-SVRG++, calibrated to the budget: for convex objectives, strongly or not.

    Epoch s has 2^s m steps and goes on where the one before ended; only the anchor is an average.

    Its arguments are as in ``dp_svrg``, with these defaults. ``epochs``, T, is theorem 4.4's,
    log2(gap n epsilon / (G sqrt(p ln(1/delta)))), and ``epoch_length``, m, is 1 / eta, theorem
    4.4's order of L. ``batch_size`` is such that all steps together read as much as all anchors, if
    eta is 1 / L or what is given; at least 128 (or n) and at most 16,384. ``step_size``, eta, is 1
    / L, for batches below 13 records b / (13 L).

    Privacy: releases T clipped mean gradients and, at every inner step, the clipped difference to
      the anchor on a Poisson batch of its own, with Gaussian noise; every iterate is covered.

    Reference: Wang, Ye and Xu (2017), algorithm 2 and theorem 4.4, after Allen-Zhu and Yuan (2016);
      noise and batches as in ``dp_svrg``.

    >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-6)
    >>> algorithm = dp_svrg_plus_plus(
    ...     objectives.logistic(), budget, data_size=10_000, dimension=10, epochs=4)
    >>> [(release.name, release.count) for release in algorithm.event.releases]
    [('anchor', 4), ('difference', 30)]
    """
    problem = base.check_problem(objective, budget, data_size, dimension, accountant)
    settings = _settings(objective, clip_norm, smoothness, batch_size, max_batch_size, anchor_share)
    if steps is None and epochs is None:
        gap = base.initial_gap(objective, initial_gap)
        ratio = gap / _noise(problem, settings.clip_norm)
        epochs = max(1, math.ceil(math.log2(max(ratio, 1.0))))
    length = _validate.optional_count("epoch_length", epoch_length)

    def total_steps(length: int) -> int:
        # m times 2 + 4 + ... + 2^T; 31 epochs have more steps than are allowed, as have all above.
        return _all_steps(epochs, steps, lambda T: (2 ** (min(T, 31) + 1) - 2) * length)

    initial_length = length or math.ceil(1 / _first_step_size(settings, step_size))
    total = total_steps(initial_length)
    # The average over epochs, because their lengths differ by powers of 2.
    typical_length = total / epochs_of(total, initial_length, True)
    settings = settings.sized(problem.data_size, typical_length)
    eta = _step_size(settings, problem.data_size, step_size, (13, 13))
    length = length or math.ceil(1 / eta)
    return _configured(problem, settings, total_steps(length), eta, length, doubling=True)
