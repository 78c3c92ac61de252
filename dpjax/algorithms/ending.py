"""``with_accuracy``, ``with_count``, ``with_canaries``: a training that also releases a number."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp

from dpjax import _validate, accounting
from dpjax._typing import Array, Params, pytree_dataclass, static
from dpjax.accounting import Event, PrivacyBudget, Release, compose, gaussian_multiplier
from dpjax.accounting.one_run import LEAST, right_guesses
from dpjax.algorithms import base
from dpjax.algorithms.card import AlgorithmBase, Wraps
from dpjax.mechanisms import derive
from dpjax.oracles import AccuracyQuery, CanarySetting, CountQuery, Query, Setting

# Of the training's epsilon: what passing through float32 and the root finders may cost.
_ROUNDING = 1e-6


class EndingState(NamedTuple):
    """The state of a training with a query at the end; all of it released."""

    inner: Any
    """The state of the training."""
    start: Params | None
    """The starting point, if the query is asked there."""
    answer: Array
    """NaN until the steps are over."""


class CanaryState(NamedTuple):
    """The state of a training with canaries; ``included``, drawn at the first step, is SECRET."""

    inner: Any
    step: Array
    included: Array
    scores: Array


def _of_training(name: str) -> Callable[..., Any]:
    """A method that hands the training its own state."""

    def method(self: Any, *arguments: Any) -> Any:
        states = (
            value.inner if isinstance(value, EndingState | CanaryState) else value
            for value in arguments
        )
        return getattr(self.algorithm, name)(*states)

    return method


@pytree_dataclass
class _Ending(Wraps, AlgorithmBase):
    """A training, and one query when its steps are over; made by the functions below."""

    algorithm: base.Algorithm
    query: Query
    declared: base.Declared

    fixed, done, termination_status, iterate, output, certify, error_bars = map(
        _of_training,
        ("fixed", "done", "termination_status", "iterate", "output", "certify", "error_bars"),
    )

    @property
    def queries(self) -> tuple[Query, ...]:
        return (*self.algorithm.queries, self.query)

    @property
    def event(self) -> Event:
        return compose([self.algorithm.event, self.query.event(1)])

    def init(self, params: Params) -> EndingState:
        # Losses are finite where a training begins, also if it diverges.
        start = params if isinstance(self.query, CountQuery) else None
        return EndingState(self.algorithm.init(params), start, jnp.full((), jnp.nan))

    def begin(self, key: Array, state: EndingState, ask: base.Ask) -> EndingState:
        return state._replace(inner=self.algorithm.begin(key, state.inner, ask))

    def step(self, key: Array, state: EndingState, ask: base.Ask) -> tuple[EndingState, Any]:
        # The history is the training's: the query at the end adds nothing to it.
        inner, info = self.algorithm.step(key, state.inner, ask)
        return state._replace(inner=inner), info

    def finalize(self, key: Array, state: EndingState, ask: base.Ask) -> EndingState:
        state = state._replace(inner=self.algorithm.finalize(key, state.inner, ask))
        at = self.output(state) if state.start is None else state.start
        return state._replace(answer=ask(self.query, at))

    def answers(self, state: EndingState) -> dict[str, Array]:
        return {**self.algorithm.answers(state.inner), self.query.name: state.answer}


def with_accuracy(
    make: Callable[[PrivacyBudget], base.Algorithm], budget: PrivacyBudget, *, epsilon: float = 0.1
) -> base.Algorithm:
    """Returns a training that also releases the accuracy of its final parameters, with noise.

    Together they stay within the budget, as one event. The solution's ``accuracy`` is estimated on
    the training records, is optimistic about new ones, and has an ``accuracy_interval``. A training
    that predicts no label, or whose accounting allows no other query, raises a ``ValueError``.

    Args:
      make: ``make(budget) -> algorithm``, a factory with all its arguments but the budget.
      budget: what training and estimate may spend together.
      epsilon: of the estimate alone, at the budget's delta; below the budget's.

    Privacy: one more Gaussian mechanism, of sensitivity 1 / n, composed with those of the training.

    >>> import functools
    >>> from dpjax import algorithms, objectives
    >>> make = functools.partial(algorithms.dp_trust_region, objectives.logistic(),
    ...     data_size=10_000, dimension=10)
    >>> algorithm = with_accuracy(make, PrivacyBudget(epsilon=1.0, delta=1e-6))
    >>> [release.name for release in algorithm.event.releases]
    ['gradient_and_hessian', 'accuracy']
    """
    epsilon = _validate.positive("epsilon of the accuracy", epsilon)
    part = dataclasses.replace(budget, epsilon=epsilon)
    multiplier = gaussian_multiplier(part, 1, noise_draws=1)
    # Epsilons that differ by less than float32 tells apart have the same multiplier.
    if epsilon >= budget.epsilon or multiplier <= gaussian_multiplier(budget, 1, noise_draws=1):
        raise ValueError(
            f"epsilon of the accuracy must be below that of the budget, {budget.epsilon:g}, got "
            f"{epsilon:g}; a tenth of it suffices for thousands of records."
        )
    return _with(AccuracyQuery, make, budget, multiplier, epsilon)


def with_count(
    make: Callable[[PrivacyBudget], base.Algorithm], budget: PrivacyBudget, *, share: float = 0.02
) -> base.Algorithm:
    """Returns a training that also releases how many of the declared records count, with noise.

    A null record, with a feature that is not finite or a label that the loss does not accept, is
    left out without a warning, which would tell it; gradients do not show if half of them are. The
    solution's ``counted`` is the share of the declared n records, or units, that count, and
    ``counted_interval`` a confidence interval around it.

    Args:
      make: as in ``with_accuracy``; ``functools.partial(with_accuracy, make)`` is one too.
      budget: what training and count may spend together.
      share: of the budget's mu^2, as which unsampled Gaussian releases add up: 0.02 makes the noise
        of such a training 1 % larger. At (1, 1e-5) the number of records then has noise of
        standard deviation 26.4, whatever n.

    Privacy: one more Gaussian mechanism, of sensitivity 1 / n, composed with those of the training.

    >>> from dpjax import algorithms, objectives
    >>> algorithm = with_count(lambda rest: algorithms.dp_gradient_descent(objectives.logistic(),
    ...     rest, data_size=10_000, dimension=10), PrivacyBudget(epsilon=1.0, delta=1e-5))
    >>> print(round(10_000 * algorithm.event.releases[-1].stddev, 1))
    26.4
    """
    share = _validate.open_unit("share of the count", share)
    multiplier = gaussian_multiplier(budget, 1, noise_draws=1) / math.sqrt(share)
    alone = Event((Release("count", 1, multiplier, noise_draws=1),), budget.relation)
    spent = accounting.epsilon(alone, budget.delta, budget.relation)
    return _with(CountQuery, make, budget, multiplier, spent)


@pytree_dataclass
class _WithCanaries(Wraps, AlgorithmBase):
    """A training, whose answers are attacked; made by ``with_canaries``."""

    algorithm: base.Algorithm
    canaries: int = static()

    done, termination_status, iterate, output, error_bars = map(
        _of_training, ("done", "termination_status", "iterate", "output", "error_bars")
    )

    def init(self, params: Params) -> CanaryState:
        included, scores = (jnp.zeros(self.canaries, kind) for kind in (bool, jnp.float32))
        return CanaryState(self.algorithm.init(params), jnp.zeros((), jnp.int32), included, scores)

    def step(self, key: Array, state: CanaryState, ask: base.Ask) -> tuple[CanaryState, Any]:
        drawn = jax.random.bernoulli(derive(key, "canaries", 0), shape=state.included.shape)
        included, scores = jnp.where(state.step == 0, drawn, state.included), state.scores

        def scored(query: Any, params: Params, **public: Any) -> Any:
            nonlocal scores
            answer = ask(query, params, included=included, **public)
            scores += query.canary_scores(answer).astype(scores.dtype)
            return answer

        inner, info = self.algorithm.step(key, state.inner, scored)
        return CanaryState(inner, state.step + 1, included, scores), info

    def finalize(self, key: Array, state: CanaryState, ask: base.Ask) -> CanaryState:
        return state._replace(inner=self.algorithm.finalize(key, state.inner, ask))

    def certify(self, *_: Any) -> tuple[None, None]:
        # The gradients that a certificate is made of hold the canaries.
        return None, None

    def answers(self, state: CanaryState) -> dict[str, Array]:
        guesses = right_guesses(state.scores, state.included, self.canaries // 2)
        return {**self.algorithm.answers(state.inner), "canaries": guesses}


def with_canaries(algorithm: base.Algorithm, canaries: int) -> base.Algorithm:
    """Returns the training with K made-up records, and an attack on its answers by them.

    The gradient of a canary is C, the clip norm, in a public coordinate of its own, at all
    parameters. A fair coin, drawn in the first step, puts it into the data; each batch draws it as
    it draws a record. It is added behind the clipping and before the noise. Scores of released
    answers guess the coins: the solution has how many guesses are right, never the coins, and
    its ``audit()`` is the lower bound on epsilon.

    Args:
      algorithm: made by a factory with ``data_size`` = rows + K: n counts the canaries, in divisors
        and in the probability q of a record.
      canaries: K, from 20 to a tenth of the rows; 1,000 refute half the noise. They add K q / 2
        gradients of norm C to a batch, which costs accuracy.

    Raises:
      ValueError: for another K, more canaries than parameters, or an algorithm that asks for
        something else than mean gradients of all records or of Poisson batches.

    Privacy: the guarantee of a record is unchanged. Given the coins and draws of the canaries,
      which depend on no record, what they add is the same in neighbouring sums, and is added
      without rounding: the distance of these, the draws of records, the noise and the event are as
      without canaries. So it holds for the mixture too, even jointly with the coins.

    Reference: Steinke, Nasr and Jagielski (2023), section 6, whose canaries these are.
    """
    canaries = _validate.positive_int("canaries", canaries)
    rows = algorithm.queries[0].data_size - canaries
    # n, which every query divides by, counts canaries: those must be in every answer.
    others = [query for query in algorithm.queries if not query.takes_canaries]
    if others:
        asked = ", ".join(f"{type(q).__name__} of {type(q.sampler).__name__}" for q in others)
        raise ValueError(
            "canaries join mean gradients with Gaussian noise, of all records (FullBatch) or of "
            f"Poisson batches, and {algorithm.title} asks {asked}: take dp_gradient_descent, "
            "dp_sgd, dp_adam or dp_optimizer without other answers, or leave canaries out."
        )
    most = min(rows // 10, algorithm.dimension)
    if not LEAST <= canaries <= most:
        raise ValueError(
            f"canaries must be from {LEAST} to {most}, a tenth of the rows (data_size without the "
            f"canaries: {rows}) and one for each parameter at most, got {canaries}."
        )

    def counted(part: Any) -> Any:
        known = isinstance(part, Setting)
        return CanarySetting(**vars(part), canaries=canaries) if known else part

    algorithm = jax.tree.map(counted, algorithm, is_leaf=lambda part: isinstance(part, Setting))
    return cast(base.Algorithm, _WithCanaries(algorithm, canaries))


@pytree_dataclass
class Beside(Wraps, AlgorithmBase):
    """An algorithm, and what another releases of the same records: one event for both."""

    algorithm: base.Algorithm
    declared: base.Declared
    other: Event = static()

    @property
    def event(self) -> Event:
        return compose([self.other, self.algorithm.event])


def beside(
    make: Callable[[PrivacyBudget], base.Algorithm], budget: PrivacyBudget, other: base.Algorithm
) -> tuple[Beside, Beside]:
    """Returns a training within what ``other``, of one Gaussian release, leaves; and ``other``.

    Privacy: the event, hence guarantee and line in a ledger, of either is that of both.
    """
    (release,) = other.event.releases
    spent = accounting.epsilon(other.event, budget.delta, budget.relation)
    declared = base.Declared(budget.epsilon, budget.delta)

    def join(training: base.Algorithm) -> Beside:
        return Beside(training, declared, other.event)

    both = _within(budget, make, join, release.noise_multiplier, spent, "the bounds spend")
    return both, Beside(other, declared, both.algorithm.event)


def _with(
    kind: type[Query],
    make: Callable[[PrivacyBudget], base.Algorithm],
    budget: PrivacyBudget,
    multiplier: float,
    alone: float,
) -> base.Algorithm:
    """Returns a training within what the query, which by itself spends ``alone``, leaves it."""

    def join(training: base.Algorithm) -> _Ending:
        # The accounting of one pass rests on each record entering a single answer.
        if any(release.ends_early for release in training.event.releases):
            raise ValueError(
                f"{training.title} reads each record only once, so it cannot release the "
                f"{kind.name} of all records at the end. Leave it out."
            )
        # All records are asked once, however the training draws its batches.
        query = kind(setting=training.queries[0].setting.of_all, noise_multiplier=multiplier)
        return _Ending(training, query, base.Declared(budget.epsilon, budget.delta))

    ending = _within(budget, make, join, multiplier, alone, f"the {kind.name} spends")
    return cast(base.Algorithm, ending)  # by ``Wraps`` it has what an algorithm has


def _within(
    budget: PrivacyBudget,
    make: Callable[[PrivacyBudget], base.Algorithm],
    join: Callable[[base.Algorithm], Any],
    multiplier: float,
    alone: float,
    what_spends: str,
) -> Any:
    """Returns ``join`` of a training that leaves what one release spends by itself, ``alone``."""
    # Gaussian mechanisms add up in mu^2 = 1 / multiplier^2, exactly.
    mu = 1 / gaussian_multiplier(budget, 1, noise_draws=0)
    left = 1 / math.sqrt(mu**2 - multiplier**-2)
    event = Event((Release("training", 1, noise_multiplier=left),), budget.relation)
    of_gaussians = (1 - _ROUNDING) * accounting.epsilon(event, budget.delta, budget.relation)
    # Exact for Gaussian trainings, so that the answer costs next to nothing; else what is left.
    for spend in (of_gaussians, budget.epsilon - alone):
        both = join(make(dataclasses.replace(budget, epsilon=spend)))
        spent = accounting.epsilon(both.event, budget.delta, budget.relation, both.accountant)
        if spent <= budget.epsilon:
            return both
    # It raises, as more is spent.
    accounting.check_spent(both.event, budget, both.accountant, f"lower what {what_spends}.")
    return both
