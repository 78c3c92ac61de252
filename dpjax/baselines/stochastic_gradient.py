"""DP-SGD (Bassily et al. 2014, Abadi et al. 2016): noisy proximal steps on Poisson batches."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax import _validate
from dpjax._typing import Array, Params, pytree_dataclass, static
from dpjax.accounting import PrivacyBudget
from dpjax.algorithms import base
from dpjax.algorithms.batches import MOMENTS, STEPS, calibrated_query
from dpjax.algorithms.certificate import widen
from dpjax.algorithms.common import Single, refuse_paper
from dpjax.algorithms.gradient_descent import default_step_size
from dpjax.objectives import Objective
from dpjax.oracles import GradientQuery

_FIRST = 64


class State(NamedTuple):
    """What the next step needs; all of it released."""

    params: Params
    mean: Params
    """Mean of the iterates after the start."""
    taken: Array


class Info(NamedTuple):
    """What a person watches; all of it released."""

    gradient_norm: Array
    """Norm of the noisy gradient; the regularizer's is in it if it has no proximal operator."""
    step_norm: Array
    """Length of the step taken."""


@pytree_dataclass
class StochasticGradient(Single):
    """Configuration of DP-SGD; made by ``dp_sgd``."""

    query: GradientQuery
    step_size: Array | float
    decay: Array | float
    averaged: bool = static()
    proximal: bool = static()

    title = "DP-SGD"

    def init(self, params: Params) -> State:
        """Returns the state at ``params``, with no iterate to average."""
        return State(params, jax.tree.map(jnp.zeros_like, widen(params)), jnp.zeros((), jnp.int32))

    def step(self, key: Array, state: State, ask: base.Ask) -> tuple[State, Info]:
        """One step of length step_size / t^decay, then the regularizer's proximal operator."""
        old = widen(state.params)
        gradient = ask(key, self.query.name, state.params)
        if not self.proximal:
            gradient = self.objective.regularize_gradient(gradient, old)
        taken = state.taken + 1
        norm = optax.tree.norm(gradient)
        rate = jnp.asarray(self.step_size, norm.dtype) * taken.astype(norm.dtype) ** -self.decay
        new = jax.tree.map(lambda w, g: w - rate * g, old, gradient)
        if self.proximal:
            new = self.objective.prox(new, rate)
        mean = jax.tree.map(lambda m, w: m + (w - m) / taken, state.mean, new)
        moved = optax.tree.norm(jax.tree.map(jnp.subtract, new, old))
        params = jax.tree.map(lambda w, n: n.astype(w.dtype), state.params, new)
        return State(params, mean, taken), Info(norm, moved)

    def output(self, state: State) -> Params:
        """Returns the last iterate, or the mean of all after the start."""
        if not self.averaged:
            return state.params
        return jax.tree.map(lambda w, m: m.astype(w.dtype), state.params, state.mean)


def dp_sgd(
    objective: Objective,
    budget: PrivacyBudget,
    *,
    data_size: int,
    dimension: int,
    batch_size: int | None = None,
    steps: int | None = None,
    step_size: float | None = None,
    decay: float = 0.5,
    average: bool = False,
    clip_norm: float | None = None,
    capacity: int | None = None,
    accountant: str = "pld",
    unsafe_fast_noise: bool = False,
) -> StochasticGradient:
    """Returns DP-SGD, calibrated to the budget: what private training is usually compared with.

    Args:
      objective: what to minimise. A regularizer with a proximal operator is handled by it, so that
        l1 penalties and convex sets (a projection) are exact; any other by its gradient.
      budget: what a whole run may spend.
      data_size: the declared public number of records n.
      dimension: number of parameters p.
      batch_size: expected size of a Poisson batch; by default n / 14, at most 16,384. ``data_size``
        asks every record at every step.
      steps: T; by default 600.
      step_size: of the first step; by default 64 / smoothness of one record's loss: rows of unit
        norm are served by weights of norm about 35, and the decay makes it small in time. For
        other models choose it.
      decay: the step t has length step_size / t^decay: 0.5 is Bassily et al.'s for convex losses,
        1 theirs for strongly convex ones, 0 a constant.
      average: whether to publish the mean of all iterates; by default the last one.
      clip_norm: bound on one record's gradient; by default the objective's Lipschitz constant.
      capacity: the most records a batch holds; by default the fewest that delta hardly notices.
      accountant: ``"pld"`` or ``"rdp"``.
      unsafe_fast_noise: plain float32 noise, see ``mechanisms.perturb``; NOT for a release.

    Returns:
      A frozen pytree for ``solve``.

    Raises:
      ValueError: for an argument out of range, a constant that is missing, or a budget that no
        noise reaches.

    Privacy: releases T clipped mean gradients with Gaussian noise, each of its own Poisson batch;
      every iterate is covered. Proximal steps and the mean are post-processing.

    Reference: Abadi et al. (2016), algorithm 1; Bassily, Smith and Thakurta (2014), algorithm 1,
      for the steps, with Poisson batches and exact accounting in place of theirs.

    >>> from dpjax import objectives
    >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-6)
    >>> algorithm = dp_sgd(objectives.logistic_l1(), budget, data_size=7_000, dimension=10, steps=9)
    >>> release = algorithm.event.releases[0]
    >>> release.count, round(release.sampling_probability, 3)
    (9, 0.071)
    """
    problem = base.check_problem(objective, budget, data_size, dimension, accountant)
    refuse_paper(accountant, "DP-SGD", MOMENTS)
    clip, _ = base.clip_norms(objective, clip_norm, 1.0)
    steps = _validate.positive_int("steps", STEPS if steps is None else steps)
    query = calibrated_query(
        problem,
        GradientQuery,
        (clip,),
        steps,
        batch_size=batch_size,
        capacity=capacity,
        unsafe_fast_noise=unsafe_fast_noise,
    )
    if step_size is None:
        # Of the data term: a proximal step needs no smoothness of the regularizer.
        step_size = _FIRST * default_step_size(dataclasses.replace(objective, regularizer=None))
    return StochasticGradient(
        query=query,
        step_size=base.positive_leaf("step_size", step_size),
        decay=base.to_leaf(_validate.non_negative("decay", decay)),
        averaged=_validate.flag("average", average),
        proximal=hasattr(objective.regularizer, "prox"),
        **problem.plan(steps),
    )
