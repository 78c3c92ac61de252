"""DP-SGD (Abadi et al. 2016) with any optax optimizer in place of plain steps, for networks."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax import _validate
from dpjax._typing import Array, Params, pytree_dataclass, static
from dpjax.accounting import PrivacyBudget
from dpjax.algorithms import base
from dpjax.algorithms.batches import MOMENTS, calibrated_query
from dpjax.algorithms.certificate import widen
from dpjax.algorithms.common import Single, check_smooth, refuse_paper
from dpjax.mechanisms import derive
from dpjax.objectives import Objective
from dpjax.oracles import NetworkQuery
from dpjax.transforms import check_optimizer


class State(NamedTuple):
    """What the next step needs; all of it released, or drawn without the data."""

    params: Params
    inner: optax.OptState
    mean: Params | None
    """Average of the iterates so far, where that is the output."""
    taken: Array
    stop: Array
    """Number of the iterate that is the output, drawn at the first step; int32."""


class Info(NamedTuple):
    """What a person watches; all of it released."""

    gradient_norm: Array
    """Norm of the noisy gradient, regularizer included, before the optimizer."""
    step_norm: Array
    """Length of the step taken."""


@pytree_dataclass
class Optimizer(Single):
    """Configuration of DP-SGD with an optax optimizer; made by ``dp_optimizer``."""

    query: NetworkQuery
    average: Array | float
    optimizer: optax.GradientTransformation = static()
    averaged: bool = static()
    random: bool = static()

    title = "DP-SGD"

    def init(self, params: Params) -> State:
        """Returns the state at ``params``; the optimizer works in float32 at least."""
        wide = widen(params)
        mean = jax.tree.map(jnp.zeros_like, wide) if self.averaged else None
        inner = jax.tree.map(jnp.asarray, self.optimizer.init(wide))
        last = jnp.asarray(jnp.iinfo(jnp.int32).max, jnp.int32)
        return State(params, inner, mean, jnp.zeros((), jnp.int32), last)

    def step(self, key: Array, state: State, ask: base.Ask) -> tuple[State, Info]:
        """One step of the optimizer, which is fed the noisy gradient and nothing else."""
        old = widen(state.params)
        gradient = ask(key, self.query.name, state.params)
        whole = self.objective.regularize_gradient(gradient, old)
        updates, inner = self.optimizer.update(whole, state.inner, old)
        # An update may hand a dtype on that its state did not begin with.
        inner = jax.tree.map(lambda was, new: jnp.asarray(new, was.dtype), state.inner, inner)
        new = jax.tree.map(lambda w, u: w + u.astype(w.dtype), old, updates)
        taken = state.taken + 1
        mean = state.mean
        if mean is not None:
            # The plain mean, until it is longer than the decay remembers.
            share = jnp.maximum(1 / taken, 1 - jnp.asarray(self.average, jnp.float32))
            mean = jax.tree.map(lambda m, w: m + share.astype(w.dtype) * (w - m), mean, new)
        params = jax.tree.map(lambda w, n: n.astype(w.dtype), state.params, new)
        info = Info(optax.tree.norm(whole), optax.tree.norm(updates))
        return State(params, inner, mean, taken, self._stop(key, state)), info

    def done(self, state: State) -> Array:
        """Stops at the iterate that was drawn, if one was."""
        return jnp.asarray(self.random) & (state.taken >= state.stop)

    def output(self, state: State) -> Params:
        """Returns the last iterate taken, or the average of all after the start."""
        if state.mean is None:
            return state.params
        # Before the first step there is none.
        return jax.tree.map(
            lambda w, m: jnp.where(state.taken > 0, m.astype(w.dtype), w), state.params, state.mean
        )

    def _stop(self, key: Array, state: State) -> Array:
        if not self.random:
            return state.stop
        # Of the key alone, so that each step draws the same number.
        last = jnp.asarray(self.steps, jnp.int32)
        return jax.random.randint(derive(key, "output", 0), (), 1, last + 1, jnp.int32)


def dp_optimizer(
    objective: Objective,
    budget: PrivacyBudget,
    optimizer: optax.GradientTransformation,
    *,
    data_size: int,
    params: Params,
    batch_size: int,
    steps: int,
    clip_norm: float | None = None,
    output: str = "last",
    average: float | None = None,
    capacity: int | None = None,
    per_layer: bool = False,
    memory_limit: int | None = None,
    accountant: str = "pld",
    unsafe_fast_noise: bool = False,
) -> Optimizer:
    """Returns DP-SGD whose steps an optax optimizer makes, calibrated to the budget.

    Args:
      objective: what to minimise.
      budget: what a whole run may spend.
      optimizer: fed the noisy mean gradient, in float32 at least; learning rate and schedule are
        its own.
      data_size: the declared public number of records n.
      params: the public starting point, or its shapes; what the optimizer is traced with.
      batch_size: expected size of a Poisson batch. ``data_size`` asks every record at every step.
      steps: T.
      clip_norm: bound on one record's gradient; by default the objective's Lipschitz constant.
      output: ``"last"``, or ``"random"``: an iterate drawn uniformly from all T. It is drawn before
        the first step, and no later step is taken.
      average: publish an average of the iterates after the start in place of the last: the plain
        mean, until it is longer than 1 / (1 - average) steps, and with this decay from then on;
        1.0 for the mean of all.
      capacity: the most records a batch holds; by default the fewest that delta hardly notices.
      per_layer: as in ``clipped_grad``: each leaf is clipped, within the same joint bound.
      memory_limit: bytes of one clipped sum, as in ``clipped_grad``.
      accountant: ``"pld"`` or ``"rdp"``.
      unsafe_fast_noise: plain float32 noise, see ``mechanisms.perturb``; NOT for a release.

    Returns:
      A frozen pytree for ``solve`` and ``run``. Built again with the same ``optimizer`` object it
      compiles nothing anew, at any epsilon.

    Raises:
      ValueError: for an argument out of range; an optimizer that adds noise, holds
        ``optax.MultiSteps``, or needs more than gradient and parameters; or a budget that no noise
        reaches.

    Privacy: releases T clipped mean gradients with Gaussian noise, each of its own Poisson batch;
      every iterate is covered. The optimizer, the average and the choice of an iterate are
      post-processing; the event is that of all T steps.

    Reference: Abadi et al. (2016), algorithm 1. Zhang et al. (2021), algorithm 1, for the random
      iterate.

    >>> from dpjax import objectives
    >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-6)
    >>> algorithm = dp_optimizer(
    ...     objectives.logistic(), budget, optax.sgd(0.5), data_size=7_000, params=jnp.zeros(10),
    ...     batch_size=500, steps=50)
    >>> release = algorithm.event.releases[0]
    >>> release.count, round(release.sampling_probability, 3)
    (50, 0.071)
    """
    check_optimizer(optimizer, params)
    _check_update(optimizer, params)
    leaves = jax.tree.leaves(params)
    dimension = sum(leaf.size for leaf in leaves)
    problem = base.check_problem(objective, budget, data_size, dimension, accountant)
    check_smooth(objective, "DP-SGD")
    refuse_paper(accountant, "DP-SGD", MOMENTS)
    clip, _ = base.clip_norms(objective, clip_norm, 1.0)
    steps = _validate.positive_int("steps", steps)
    _validate.choice("output", output, ("last", "random"))
    query = calibrated_query(
        problem,
        NetworkQuery,
        (clip,),
        steps,
        batch_size=batch_size,
        capacity=capacity,
        unsafe_fast_noise=unsafe_fast_noise,
        per_layer=per_layer,
        memory_limit=memory_limit,
    )
    return Optimizer(
        query=query,
        average=_average(average, output),
        optimizer=optimizer,
        averaged=average is not None,
        random=output == "random",
        **problem.plan(steps),
    )


def _average(average: float | None, output: str) -> float:
    if average is None:
        return 0.0
    if output == "random":
        raise ValueError(f"average={average!r} is for output='last': one iterate has no average.")
    return base.to_leaf(_validate.closed_unit("average", average))


def _check_update(optimizer: optax.GradientTransformation, params: Any) -> None:
    wide = jax.eval_shape(widen, params)
    try:
        jax.eval_shape(optimizer.update, wide, jax.eval_shape(optimizer.init, wide), wide)
    except TypeError as error:
        raise ValueError(
            f"optimizer must update from gradients and parameters alone, and failed: {error}. No "
            "loss value is released that could be passed to it."
        ) from error
