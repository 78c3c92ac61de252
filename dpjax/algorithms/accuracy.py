"""``with_accuracy``: a training that also releases the accuracy of its final parameters."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax.numpy as jnp

from dpjax import _validate
from dpjax._typing import Array, Params, pytree_dataclass
from dpjax.accounting import (
    Event,
    PrivacyBudget,
    Release,
    check_spent,
    compose,
    gaussian_multiplier,
)
from dpjax.accounting import epsilon as epsilon_of
from dpjax.algorithms import base
from dpjax.algorithms.accounted import Accounted
from dpjax.algorithms.certificate import Certificate
from dpjax.algorithms.error_bars import ErrorBars
from dpjax.oracles import AccuracyQuery, Query, Setting

# Of the training's epsilon: what passing through float32 and the root finders may cost.
_ROUNDING = 1e-6


class State(NamedTuple):
    """What the next step needs; all of it released."""

    inner: Any
    """Of the training."""
    accuracy: Array
    """NaN until the steps are over."""


@pytree_dataclass
class WithAccuracy(Accounted):
    """Configuration of a training that ends with an estimate; made by ``with_accuracy``."""

    algorithm: base.Algorithm
    query: AccuracyQuery
    declared: base.Declared

    def __getattr__(self, name: str) -> Any:
        # What is not said here, the training says. While a copy is being made it has none yet.
        return getattr(object.__getattribute__(self, "algorithm"), name)

    @property
    def queries(self) -> tuple[Query, ...]:
        """Those of the training, and that of the accuracy."""
        return (*self.algorithm.queries, self.query)

    @property
    def event(self) -> Event:
        """All that the training releases, and the accuracy once."""
        return compose([self.algorithm.event, self.query.event(1)])

    def init(self, params: Params) -> State:
        """Returns the state at ``params``."""
        return State(self.algorithm.init(params), jnp.full((), jnp.nan))

    def step(self, key: Array, state: State, ask: base.Ask) -> tuple[State, Any]:
        """One step of the training."""
        inner, info = self.algorithm.step(key, state.inner, ask)
        return state._replace(inner=inner), info

    def done(self, state: State) -> Array:
        """Returns whether the training stops."""
        return self.algorithm.done(state.inner)

    def stopped(self, state: State) -> Array:
        """Returns the status of a training that stopped."""
        return self.algorithm.stopped(state.inner)

    def close(self, key: Array, state: State, ask: base.Ask) -> State:
        """Asks what the training asks last, and then for the accuracy of its output."""
        inner = self.algorithm.close(key, state.inner, ask)
        return State(inner, ask(self.query, self.algorithm.output(inner)))

    def iterate(self, state: State) -> Params:
        """Returns the last iterate of the training."""
        return self.algorithm.iterate(state.inner)

    def output(self, state: State) -> Params:
        """Returns the parameters to publish."""
        return self.algorithm.output(state.inner)

    def certify(
        self, key: Array, state: State, ask: base.Ask, unit_rows: bool
    ) -> tuple[Certificate | None, Params | None]:
        """Returns the bounds of the training."""
        return self.algorithm.certify(key, state.inner, ask, unit_rows)

    def error_bars(self, state: State, unit_rows: bool) -> ErrorBars | None:
        """Returns those of the training."""
        return self.algorithm.error_bars(state.inner, unit_rows)

    def accuracy(self, state: State) -> Array:
        """Returns the noisy accuracy."""
        return state.accuracy


def with_accuracy(
    make: Callable[[PrivacyBudget], base.Algorithm],
    budget: PrivacyBudget,
    *,
    epsilon: float = 0.1,
    unsafe_fast_noise: bool = False,
) -> base.Algorithm:
    """Returns a training that also releases the accuracy of its final parameters, with noise.

    Both together stay within the budget, as one event. Of the records that are trained on, so it
    says whether training worked, and is as optimistic as any training accuracy.

    Args:
      make: ``make(budget) -> algorithm``, a factory with all its arguments but the budget.
      budget: what training and estimate may spend together.
      epsilon: of the estimate alone, at the budget's delta; below the budget's.
      unsafe_fast_noise: of the estimate, as in the factories; NOT for a release.

    Returns:
      A frozen pytree for ``solve`` and ``run``. The solution's ``accuracy`` is the estimate, and
      ``accuracy_interval`` a confidence interval around it.

    Raises:
      ValueError: for an epsilon that is not below the budget's, a training that predicts no label,
        one whose accounting has no room for another question, or as ``make``.

    Privacy: one more Gaussian mechanism, of sensitivity 1 / n, composed with those of the training.

    >>> import functools
    >>> from dpjax import algorithms, objectives
    >>> make = functools.partial(algorithms.dp_trust_region, objectives.logistic(),
    ...     data_size=10_000, dimension=10)
    >>> algorithm = with_accuracy(make, PrivacyBudget(epsilon=1.0, delta=1e-6))
    >>> [release.name for release in algorithm.event.releases]
    ['gradient_and_hessian', 'accuracy']
    """
    share = _validate.positive("epsilon of the accuracy", epsilon)
    multiplier = gaussian_multiplier(dataclasses.replace(budget, epsilon=share), 1)
    if share >= budget.epsilon or multiplier <= gaussian_multiplier(budget, 1):
        raise ValueError(
            f"epsilon of the accuracy must be below that of the budget, {budget.epsilon:g}, got "
            f"{share:g}; a tenth of it suffices for thousands of records."
        )
    _validate.flag("unsafe_fast_noise", unsafe_fast_noise)
    accountant = "pld"
    # Exact for Gaussian trainings, so that the estimate costs next to nothing; else what is left.
    for spend in (_left_by_gaussians(budget, multiplier), budget.epsilon - share):
        algorithm = make(dataclasses.replace(budget, epsilon=spend))
        accountant = base.recount_accountant(algorithm.accountant)
        whole = _ending(algorithm, budget, multiplier, unsafe_fast_noise)
        if epsilon_of(whole.event, budget.delta, budget.relation, accountant) <= budget.epsilon:
            return cast(base.Algorithm, whole)  # the rest of which the training says
    advice = "lower the epsilon of the accuracy."
    check_spent(whole.event, budget, accountant, advice)  # raises
    raise AssertionError("a budget is kept or it is not")


def _left_by_gaussians(budget: PrivacyBudget, multiplier: float) -> float:
    """Returns the epsilon that a Gaussian training may have beside one release."""
    mu = 1 / gaussian_multiplier(budget, 1)
    left = math.sqrt(mu**2 - multiplier**-2)
    event = Event((Release("training", 1, noise_multiplier=1 / left),), budget.relation)
    return (1 - _ROUNDING) * epsilon_of(event, budget.delta, budget.relation)


def _ending(
    algorithm: base.Algorithm, budget: PrivacyBudget, multiplier: float, unsafe_fast_noise: bool
) -> WithAccuracy:
    (first, *_), releases = algorithm.queries, algorithm.event.releases
    if any(release.ends_early for release in releases):
        raise ValueError(
            f"{algorithm.title} reads each record only once, so it cannot release an accuracy "
            "over all records at the end. Leave the accuracy out."
        )
    if any(query.remembers for query in algorithm.queries):
        raise ValueError(
            f"{algorithm.title} with an exact anchor cannot release an accuracy as well. Leave "
            "the accuracy out, or use anchor='noisy'."
        )
    whole = Setting(
        first.objective, first.data_size, first.relation, unsafe_fast_noise=unsafe_fast_noise
    )
    query = AccuracyQuery(setting=whole, noise_multiplier=multiplier)
    declared = base.Declared(budget.epsilon, budget.delta)
    return WithAccuracy(algorithm, query, declared)
