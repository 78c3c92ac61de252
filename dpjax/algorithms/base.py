"""``Algorithm``, its declared numbers, and what every factory checks and calibrates."""

import dataclasses
import enum
import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _validate, accounting
from dpjax._typing import Array, Params, Relation, static
from dpjax.accounting import Event, PrivacyBudget
from dpjax.algorithms.card import AlgorithmBase
from dpjax.algorithms.certificate import Certificate, ErrorBars
from dpjax.display.cards import history_html
from dpjax.objectives import Objective, has_proven_constants
from dpjax.oracles import Evaluations, GradientQuery, Query, Setting, batch_sampler

Ask = Callable[..., Any]
"""``ask(query, params, **public)`` returns the noisy answer of one query of the algorithm."""

# One compiled program serves every plan of up to this many steps.
MAX_STEPS = 2048
# Default of the first-order methods that draw batches.
STEPS = 600
# By default no batch is larger, so that the time of a step stays bounded as n grows.
_LARGEST_BATCH = 16_384


class Status(enum.IntEnum):
    """How a run ended; ``message`` says it in words and what to do next."""

    FIXED_HORIZON = 0
    STOPPED = 1
    NOT_FINITE = 2
    EXHAUSTED = 3

    @property
    def message(self) -> str:
        """One sentence for people."""
        return (
            "all planned steps were taken.",
            "the stopping rule fired; the guarantee is still that of all steps.",
            "the parameters are not finite; the budget is spent. Raise epsilon, or lower the step "
            "size or the radius, before another run.",
            "the records are used up: each is read once, and fewer are left than the next batch "
            "needs. Use more records, or smaller batches, to take more steps.",
        )[self]


class StepInfo(NamedTuple):
    """What a history keeps of a step of most methods; all of it released."""

    _repr_html_ = history_html
    gradient_norm: Array
    """Norm of the noisy gradient, regularizer included, where it was asked."""
    step_norm: Array
    """Length of the step taken."""


class Declared(NamedTuple):
    """The budget's numbers as leaves, so that another epsilon compiles nothing anew."""

    epsilon: Array | float
    delta: Array | float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Algorithm(AlgorithmBase):
    """A frozen dataclass, registered as a pytree: numbers are leaves, structure is static.

    ``step`` sees no data. It calls ``ask(query, params, **public)`` with one of ``queries`` and
    what is public or was released before, and reads the noisy answer; all of its state and info is
    post-processing of such answers. ``key`` is that step's own, for public coins such as kicks and
    the draw of an output: the noise of an answer has another. What a whole run shall know, such as
    which iterate is its output, is drawn in the first step and kept in the state.

    In one step a query is asked once, in the body of ``step`` itself and in no loop, ``jit``,
    ``vmap`` or ``cond`` of it; ``finalize`` and ``certify`` count as one step together. Otherwise
    noise would be repeated, which raises while tracing. A step that needs no answer asks on a
    condition, with ``asked=`` or one that the query has.

    A subclass has ``title``, ``queries``, ``event``, ``init`` and ``step``. The other methods are
    defined here for a state that has ``params``: all planned steps, the last iterate, no bounds.
    The fields below are what ``Problem.plan`` returns.
    """

    steps: Array | int
    """Planned number of steps T; a leaf."""
    declared: Declared
    """The budget."""
    max_steps: int = static()
    """Length of the history; structure."""
    dimension: int = static()
    """Number of parameters p."""
    accountant: str = static()
    """What calibrated the noise."""

    @property
    def objective(self) -> Objective:
        """What is minimised; that of the first query."""
        return self.queries[0].objective

    @property
    def relation(self) -> Relation:
        """The neighbouring relation; that of the first query."""
        return self.queries[0].relation

    @property
    def evaluations(self) -> Evaluations:
        """Gradients of one record that a whole run computes, as declared and padded; on the host.

        A selection, which reads Hessians, is not counted, nor noise on what was asked before.
        """
        queries = {query.name: query for query in self.queries}
        parts = [part for release in self.event.releases for part in release.parts()]
        counts = [queries[p.name].evaluations(p.count) for p in parts if p.name in queries]
        return Evaluations(*map(sum, zip(*counts, strict=True)))

    def init(self, params: Params) -> Any:
        """Returns the first state."""
        raise NotImplementedError

    def begin(self, key: Array, state: Any, ask: Ask) -> Any:
        """Returns the state after what is asked once, before the first step."""
        return state

    def fixed(self, state: Any) -> dict[str, Any]:
        """Returns what all steps hand to their queries alike, see ``Query.arranged``; released."""
        return {}

    def step(self, key: Array, state: Any, ask: Ask) -> tuple[Any, Any]:
        """Returns the next state and what a person wants to watch; ``key`` is the step's own."""
        raise NotImplementedError

    def done(self, state: Any) -> Array:
        """Returns whether to stop before all steps; a function of released values alone."""
        return jnp.asarray(False)

    def termination_status(self, state: Any) -> Array:
        """Returns the status of a run that ``done`` ended; a function of released values alone."""
        return jnp.asarray(Status.STOPPED)

    def finalize(self, key: Array, state: Any, ask: Ask) -> Any:
        """Returns the state after what is asked once, when the steps are over."""
        return state

    def iterate(self, state: Any) -> Params:
        """Returns where the steps have led so far; released, and perhaps not the output."""
        return state.params

    def output(self, state: Any) -> Params:
        """Returns the parameters to publish."""
        return state.params

    def certify(
        self, key: Array, state: Any, ask: Ask, bounded_rows: bool
    ) -> tuple[Certificate | None, Params | None]:
        """Returns bounds on the true derivatives, and the parameters they hold at.

        None by default: the answer of a batch or in a subspace bounds no derivative of the mean
        over all records.
        """
        return None, None

    def error_bars(self, state: Any, bounded_rows: bool) -> ErrorBars | None:
        """Returns how noise spread the parameters, or None; a function of released values alone.

        None by default: they need gradient and Hessian of all records at one point.
        """
        return None

    def answers(self, state: Any) -> dict[str, Array]:
        """Returns, by its query, what ``with_accuracy`` and ``with_count`` ask for at the end."""
        return {}


class FieldsAlgorithm(Algorithm):
    """An algorithm whose queries are those among its fields, in their order."""

    @property
    def queries(self) -> tuple[Query, ...]:
        return tuple(value for value in vars(self).values() if isinstance(value, Query))


class SingleQueryAlgorithm(Algorithm):
    """One query, asked at every step."""

    query: Any

    @property
    def queries(self) -> tuple[Query, ...]:
        return (self.query,)

    @property
    def event(self) -> Event:
        return self.query.event(int(self.steps))


class Problem(NamedTuple):
    """The arguments that all factories share, checked."""

    objective: Objective
    budget: PrivacyBudget
    data_size: int
    dimension: int
    accountant: str

    @property
    def setting(self) -> Setting:
        """The setting of a query that reads all records."""
        relation, dimension = self.budget.relation, self.dimension
        return Setting(self.objective, self.data_size, relation, dimension=dimension)

    def plan(self, steps: int, history: int = MAX_STEPS) -> dict[str, Any]:
        """Returns the fields of ``Algorithm``, for a history of at least ``history`` steps."""
        # Histories of one length share a compiled program, whatever the number of steps.
        return {
            "steps": _validate.int32_count("steps", steps),
            "declared": Declared(self.budget.epsilon, self.budget.delta),
            "max_steps": max(steps, history),
            "dimension": self.dimension,
            "accountant": self.accountant,
        }

    def part(self, kind: Any, multiplier: float, fraction: float, **fields: Any) -> Any:
        """Returns a query of all records that has this fraction of the privacy of a multiplier."""
        # 1 / multiplier^2 of Gaussian releases adds up, as mu^2 does.
        multiplier = accounting.round_up(multiplier / math.sqrt(fraction))
        return kind(setting=self.setting, noise_multiplier=multiplier, **fields)

    def calibrated(self, query: Any, make_event: Callable[[Any], Event]) -> Any:
        """Returns the query with the least noise whose ``make_event(query)`` fits the budget."""

        def noisy(multiplier: float) -> Any:
            return dataclasses.replace(query, noise_multiplier=multiplier)

        def event(multiplier: float) -> Event:
            return make_event(noisy(multiplier))

        return noisy(accounting.calibrate(event, self.budget, self.accountant))

    def check_spent(self, event: Event, least: float = 1.0) -> None:
        """Raises if ``event``, all that a run releases, exceeds the budget or loses its noise.

        ``least`` is the least noise of a release over the largest.
        """
        check_noise(event, least)
        accounting.check_spent(event, self.budget, self.accountant, "use accountant='pld'.")


def check_problem(
    objective: Objective, budget: PrivacyBudget, data_size: int, dimension: int, accountant: str
) -> Problem:
    """Returns the arguments all factories share, or raises naming the one that is wrong."""
    if not isinstance(objective, Objective):
        raise ValueError(
            f"objective must be a dpjax Objective, got {_validate.shown(objective)}; wrap a loss "
            "of one example as dpjax.objectives.Objective(loss)."
        )
    PrivacyBudget.check(budget)
    if accountant in ("paper", "paper-literal"):
        raise ValueError(
            f"accountant={accountant!r} is no accountant: take 'pld' or 'rdp'. The noise of the "
            "papers' formulas, and the epsilon that it is, are in benchmarks/papers/noise.py."
        )
    _validate.choice("accountant", accountant, accounting.ACCOUNTANTS)
    # A training's key reads numbers as float32: what it cannot tell apart the program must not.
    objective = jax.tree.map(lambda x: to_leaf(x) if type(x) is float else x, objective)
    data_size = _validate.positive_int("data_size", data_size)
    dimension = _validate.positive_int("dimension", dimension)
    return Problem(objective, budget, data_size, dimension, accountant)


def clip_norms(
    objective: Objective, clip_norm: float | None, hessian_clip_norm: float | None
) -> tuple[float, float]:
    """Returns gradient and Hessian clip norms, by default the objective's constants or defaults."""
    # Constants and defaults both begin with the bounds on gradient and Hessian. A method that asks
    # for no Hessian passes 1.0 for its norm, so that none is required.
    known = (objective.constants or objective.defaults or (None, None))[:2]
    names, norms = ("clip_norm", "hessian_clip_norm"), []
    for name, norm, usual in zip(names, (clip_norm, hessian_clip_norm), known, strict=True):
        norm = required(name, norm, usual, objective)
        norms.append(positive_leaf(name, _validate.clip_norm(name, norm)))
    return norms[0], norms[1]


def required(name: str, value: float | None, usual: float | None, objective: Objective) -> float:
    """Returns an argument, by default the objective's constant, or raises if there is neither."""
    value = usual if value is None else value
    if value is None:
        raise ValueError(
            f"{name} is required: the objective {objective.name!r} declares no constant to take as "
            f"default. Pass {name}=."
        )
    return value


def never_clips(
    objective: Objective, relation: Relation, clip_norm: float, hessian_clip_norm: float = math.inf
) -> bool:
    """Returns whether n is public, and no gradient and Hessian of a row |x| <= 1 is clipped.

    Constants that a user declares prove nothing, so this is for dpjax's own losses.
    """
    constants = objective.constants if has_proven_constants(objective) else None
    # Where n is private the released mean is over a declared n, not the objective's.
    if constants is None or relation == "add_or_remove_one":
        return False
    # A clip norm at the constant was rounded to float32, and so is what it is compared with.
    lipschitz, smoothness = map(to_leaf, constants[:2])
    return clip_norm >= lipschitz and hessian_clip_norm >= smoothness


def to_leaf(value: Any) -> Any:
    """Returns ``value`` rounded to float32, as it will be once it is an array of a pytree.

    What is accounted on the host is then the very number the program reads.
    """
    with np.errstate(all="ignore"):
        narrow = np.float32(value)
    return narrow if np.ndim(narrow) else float(narrow)


def positive_leaf(name: str, value: float) -> float:
    """Returns ``to_leaf(value)``, or raises if it is not above 0 and normal in float32."""
    return to_leaf(_validate.normal(name, value))


def check_noise(event: Event, least: float = 1.0) -> None:
    """Raises if a standard deviation is lost in float32, so that no noise would be added.

    ``least`` is the least noise of a release over the largest, which the event has.
    """
    tiny = float(jnp.finfo(jnp.float32).tiny)
    for release in event.releases:
        # The noise is made from the sensitivity, which must not be lost before it.
        mean = min(release.stddev, release.sensitivity)
        for name, stddev in (("mean", mean), *release.components):
            if not tiny <= least * stddev < math.inf:
                raise ValueError(
                    f"the noise on the {name} of {release.name} has standard deviation {stddev:g}, "
                    "which float32 cannot hold; rescale the loss or the clip norm."
                )


def warn_if_above(step_size: float, most: float, words: str, stacklevel: int = 3) -> None:
    """Warns the caller of the factory, which calls this, of a step that its theory excludes."""
    if step_size > most * (1 + 1e-6):
        warnings.warn(f"step_size={step_size:g} is above {words}", stacklevel=stacklevel)


def initial_gap(objective: Objective, given: float | None) -> float:
    """Returns a public bound on L(w0) - min L at w0 = 0.

    A loss of linear scores that is never negative has at w = 0 a largest value over all records,
    which bounds its mean too; an objective may state another bound among its defaults. Where none
    is known this raises: the papers take it from the data, which is a release.
    """
    if given is not None:
        return positive_leaf("initial_gap", given)
    if objective.defaults is not None:
        return objective.defaults.initial_gap
    if objective.averaged is None:
        raise ValueError(
            "initial_gap is required: a public bound on L(w0) - min L, not read off the data."
        )
    # At w = 0 all scores are 0, whatever the features; min L is at least 0.
    gap = objective.averaged.at_zero
    if not (math.isfinite(gap) and gap > 0):
        raise ValueError(
            f"initial_gap is required: {gap}, the loss of {objective.name} at w = 0, is no bound."
        )
    return gap


def proximal(objective: Objective) -> bool:
    """Returns whether the regularizer has a proximal operator and no gradient, as l1 penalties."""
    regularizer = objective.regularizer
    return hasattr(regularizer, "prox") and getattr(regularizer, "smoothness", None) is None


def check_smooth(objective: Objective, title: str) -> None:
    """Raises for a penalty or set that is not smooth, whose derivatives would leave it out."""
    if proximal(objective):
        raise ValueError(
            f"{title} needs a smooth regularizer, but {objective.name} has "
            f"{objective.regularizer!r}. dp_gradient_descent, dp_svrg, dp_svrg_plus_plus and "
            "dp_sgd accept l1 penalties and convex sets."
        )


def calibrated_query(
    problem: Problem,
    kind: Any,
    steps: int,
    batch_size: int | None = None,
    max_batch_size: int | None = None,
    sampling: str = "poisson",
    **fields: Any,
) -> Any:
    """Returns a query whose Gaussian noise lets it be asked ``steps`` times within the budget.

    Args:
      problem: from ``algorithms.base.check_problem``.
      kind: class of the query.
      steps: T.
      batch_size: as in every factory, see ``help(dpjax.algorithms)``.
      max_batch_size: of a batch, as in every factory.
      sampling: as in the factories that have it.
      **fields: the other fields of the query, such as its clip norms.

    Raises:
      ValueError: for a batch or max_batch_size out of range, noise that float32 cannot hold, or a
        budget that is not met.
    """
    budget, n = problem.budget, problem.data_size
    if batch_size is None:
        batch_size = min(max(n // 14, 1), _LARGEST_BATCH)
    sampler = batch_sampler(batch_size, n, budget, steps, max_batch_size, sampling)
    query = kind(setting=problem.setting.drawn_by(sampler), noise_multiplier=1.0, **fields)
    # How many numbers of noise an answer has decides what drawing them costs.
    draws = query.noise_draws
    multiplier = accounting.gaussian_multiplier(budget, steps, problem.accountant, sampler, draws)
    query = dataclasses.replace(query, noise_multiplier=multiplier)
    # Checked on the final query, because its numbers are rounded after the calibration.
    problem.check_spent(query.event(steps))
    return query


def gradient_query(
    problem: Problem,
    steps: int,
    clip_norm: float | None,
    sizes: tuple[int | None, int | None],
    kind: type[GradientQuery] = GradientQuery,
    **fields: Any,
) -> Any:
    """Returns ``calibrated_query`` for gradients, ``sizes`` the batch's expected and the most."""
    clip, _ = clip_norms(problem.objective, clip_norm, 1.0)
    return calibrated_query(problem, kind, steps, *sizes, clip_norm=clip, **fields)
