"""DP-Adam (Abadi et al. 2016 with Kingma and Ba 2015): optax's Adam on noisy gradients."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax import _validate
from dpjax._typing import Array, Params, pytree_dataclass
from dpjax.accounting import PrivacyBudget
from dpjax.algorithms import base
from dpjax.algorithms.batches import STEPS, calibrated_query
from dpjax.algorithms.certificate import widen
from dpjax.algorithms.common import Single, check_smooth, refuse_paper
from dpjax.objectives import Objective
from dpjax.oracles import GradientQuery


class State(NamedTuple):
    """What the next step needs; all of it released."""

    params: Params
    taken: Array
    moments: optax.OptState


class Info(NamedTuple):
    """What a person watches; all of it released."""

    gradient_norm: Array
    """Norm of the noisy gradient, regularizer included, before the step."""
    step_norm: Array
    """Length of the step taken."""


@pytree_dataclass
class Adam(Single):
    """Configuration of DP-Adam; made by ``dp_adam``."""

    query: GradientQuery
    step_size: Array | float
    final_step_size: Array | float
    b1: Array | float
    b2: Array | float
    eps: Array | float

    title = "DP-Adam"

    def init(self, params: Params) -> State:
        """Returns the state at ``params``, with both moments 0."""
        return State(params, jnp.zeros((), jnp.int32), self._moments().init(widen(params)))

    def step(self, key: Array, state: State, ask: base.Ask) -> tuple[State, Info]:
        """One step of Adam; both moments are fed the noisy gradient and nothing else."""
        gradient = ask(key, self.query.name, state.params)
        whole = self.objective.regularize_gradient(gradient, widen(state.params))
        direction, moments = self._moments().update(whole, state.moments)
        rate = self._rate(state.taken)
        move = jax.tree.map(lambda d: -rate.astype(d.dtype) * d, direction)
        params = jax.tree.map(lambda w, m: w + m.astype(w.dtype), state.params, move)
        taken = state.taken + 1
        return State(params, taken, moments), Info(optax.tree.norm(whole), optax.tree.norm(move))

    def _moments(self) -> optax.GradientTransformation:
        return optax.scale_by_adam(self.b1, self.b2, self.eps)  # pyright: ignore[reportArgumentType]

    def _rate(self, taken: Array) -> Array:
        # Geometric, from the first rate at the first step to the last one at the last.
        passed = taken / jnp.maximum(jnp.asarray(self.steps) - 1, 1)
        first, last = jnp.asarray(self.step_size), jnp.asarray(self.final_step_size)
        return first * (last / first) ** passed.astype(first.dtype)


def dp_adam(
    objective: Objective,
    budget: PrivacyBudget,
    *,
    data_size: int,
    dimension: int,
    batch_size: int | None = None,
    steps: int | None = None,
    step_size: float = 2.0,
    final_step_size: float | None = None,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    clip_norm: float | None = None,
    capacity: int | None = None,
    accountant: str = "pld",
    unsafe_fast_noise: bool = False,
) -> Adam:
    """Returns DP-Adam, calibrated to the budget: the first-order baseline of every comparison.

    Args:
      objective: what to minimise.
      budget: what a whole run may spend.
      data_size: the declared public number of records n.
      dimension: number of parameters p.
      batch_size: expected size of a Poisson batch; by default n / 14, at most 16,384. ``data_size``
        asks every record at every step.
      steps: T; by default 600.
      step_size: of the first step. Rows of unit norm are served by weights of norm about 35, so
        it is large; for a network take 1e-3.
      final_step_size: of the last step, geometric in between; by default 1/300 of the first.
      b1: decay of the mean of gradients, from 0 to below 1.
      b2: decay of the mean of their squares, from 0 to below 1.
      eps: added to the root of that mean.
      clip_norm: bound on one record's gradient; by default the objective's Lipschitz constant.
      capacity: the most records a batch holds; by default the fewest that delta hardly notices.
      accountant: ``"pld"`` or ``"rdp"``; there is no paper's noise formula.
      unsafe_fast_noise: plain float32 noise, see ``mechanisms.perturb``; NOT for a release.

    Returns:
      A frozen pytree for ``solve``.

    Raises:
      ValueError: for an argument out of range, a constant that is missing, or a budget that no
        noise reaches.

    Privacy: releases T clipped mean gradients with Gaussian noise, each of its own Poisson batch;
      every iterate is covered. Both moments are post-processing of them.

    Reference: Kingma and Ba (2015), algorithm 1, on the gradients of Abadi et al. (2016), algorithm
      1, without the factor by which noise biases the second moment.

    >>> from dpjax import objectives
    >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-6)
    >>> algorithm = dp_adam(objectives.logistic(), budget, data_size=7_000, dimension=10, steps=50)
    >>> release = algorithm.event.releases[0]
    >>> release.count, round(release.sampling_probability, 3)
    (50, 0.071)
    """
    problem = base.check_problem(
        objective, budget, data_size, dimension, accountant, unsafe_fast_noise
    )
    check_smooth(objective, "DP-Adam")
    refuse_paper(accountant, "DP-Adam", "no paper states a noise formula for it")
    clip, _ = base.clip_norms(objective, clip_norm, 1.0)
    steps = _validate.positive_int("steps", STEPS if steps is None else steps)
    query = calibrated_query(
        problem,
        GradientQuery,
        steps,
        clip_norm=clip,
        batch_size=batch_size,
        capacity=capacity,
    )
    rate = base.positive_leaf("step_size", step_size)
    final = rate / 300 if final_step_size is None else final_step_size
    return Adam(
        query=query,
        step_size=rate,
        final_step_size=base.positive_leaf("final_step_size", final),
        b1=base.to_leaf(_validate.decay("b1", b1)),
        b2=base.to_leaf(_validate.decay("b2", b2)),
        eps=base.positive_leaf("eps", eps),
        **problem.plan(steps),
    )
