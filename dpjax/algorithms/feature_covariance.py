"""DP-FC: gradient descent in coordinates whitened by a private second moment of the features."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpjax import _validate, objectives
from dpjax._typing import Array, Params, pytree_dataclass
from dpjax._wide import at_least_float32
from dpjax.accounting import Event, PrivacyBudget, compose, gaussian_multiplier
from dpjax.algorithms import base
from dpjax.algorithms.base import StepInfo
from dpjax.oracles import MomentQuery, PreconditionedQuery


class FeatureCovarianceState(NamedTuple):
    """The state of DP-FC; all of it released."""

    params: Params
    # What follows is None before the second moment is asked.
    weights: Any
    """The same for whitened features, a row of p weights for each of K scores."""
    velocity: Any
    preconditioner: Any
    """A, (p, p): whitened features are A x."""
    trace: Any
    """The sum of all eigenvalues of the whitened second moment over the largest; at least 1."""


@pytree_dataclass
class FeatureCovariance(base.FieldsAlgorithm):
    """Configuration of DP-FC; made by ``dp_feature_covariance``."""

    gradient: PreconditionedQuery
    moment: MomentQuery
    step_size: Array | float
    momentum: Array | float

    title = "DP-FC"

    @property
    def event(self) -> Event:
        return compose([self.gradient.event(int(self.steps)), self.moment.event(1)])

    def init(self, params: Params) -> FeatureCovarianceState:
        return FeatureCovarianceState(params, None, None, None, None)

    @jax.default_matmul_precision("highest")
    def begin(
        self, key: Array, state: FeatureCovarianceState, ask: base.Ask
    ) -> FeatureCovarianceState:
        values, vectors = jnp.linalg.eigh(ask(self.moment, state.params))
        # Noise may hide smaller eigenvalues, or make them negative.
        raised = jnp.maximum(values, jnp.asarray(self.moment.noise_norm, values.dtype))
        # If one eigenvalue stands out of the noise, that alone is 1.
        trace = jnp.maximum(jnp.sum(values / raised), 1)
        # The mean squared norm of whitened features is then 1.
        lengths = jnp.sqrt(raised * trace)[None]
        rows = at_least_float32(state.params).reshape(-1, len(values))
        weights, matrix = (rows @ vectors) * lengths, (vectors / lengths).T
        return FeatureCovarianceState(state.params, weights, jnp.zeros_like(weights), matrix, trace)

    def fixed(self, state: FeatureCovarianceState) -> dict[str, Any]:
        return {"preconditioner": state.preconditioner}

    @jax.default_matmul_precision("highest")
    def step(
        self, key: Array, state: FeatureCovarianceState, ask: base.Ask
    ) -> tuple[FeatureCovarianceState, StepInfo]:
        gradient = ask(self.gradient, state.weights.reshape(-1), **self.fixed(state))
        wide, matrix = at_least_float32(state.params), state.preconditioner
        # The regularizer is one of the weights of x: by the chain rule.
        penalty = self.objective.regularize_gradient(jnp.zeros_like(wide), wide)
        shape = state.weights.shape
        gradient = gradient.reshape(shape) + penalty.reshape(shape) @ matrix.T
        velocity = jnp.asarray(self.momentum, gradient.dtype) * state.velocity + gradient
        # The largest eigenvalue of the whitened second moment is 1 / trace.
        move = -jnp.asarray(self.step_size, gradient.dtype) * state.trace * velocity
        weights = state.weights + move
        params = (weights @ matrix).reshape(-1).astype(state.params.dtype)
        state = state._replace(params=params, weights=weights, velocity=velocity)
        return state, StepInfo(jnp.linalg.norm(gradient), jnp.linalg.norm(move))


def dp_feature_covariance(
    objective: objectives.Objective,
    budget: PrivacyBudget,
    *,
    data_size: int,
    dimension: int,
    steps: int | None = None,
    step_size: float | None = None,
    momentum: float = 0.9,
    clip_norm: float = 0.1,
    feature_norm: float = 1.0,
    covariance_share: float = 0.2,
    accountant: str = "pld",
) -> FeatureCovariance:
    """Returns gradient descent on features that a private second moment has whitened.

    For a linear model on many correlated features, as of ``dpjax.features`` or a frozen network.
    Records stay in memory, with a copy that is whitened.

    Args:
      objective: a loss of linear scores, of records, such as ``softmax``. Gradients are clipped to
        a fraction, so that its penalty weighs more than elsewhere: take a small one.
      steps: T; by default 300.
      step_size: of heavy-ball steps, over the largest eigenvalue of the whitened second moment; by
        default 1 over the smoothness of loss and penalty.
      momentum: at least 0 and below 1.
      clip_norm: on one record's gradient for whitened features, of root mean square norm 1.
      feature_norm: bound to which features are scaled down for the second moment alone.
      covariance_share: part of the privacy, as mu^2, that goes to the second moment.
      the others: the same in all factories, see ``help(dpjax.algorithms)``.

    Privacy: releases the features' second moment, then T gradients of all records, each by a
      Gaussian mechanism. Whitening is a function of the released moment: eigenvalues below its
      noise's spectral norm are raised to that, and one scale follows from its trace.

    Reference: Mehta et al., "Differentially private image classification from features" (2022),
      DP-FC; clipping and noise in whitened coordinates, and the floor, are ours.

    >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-6)
    >>> algorithm = dp_feature_covariance(
    ...     objectives.softmax(3), budget, data_size=10_000, dimension=3 * 20)
    >>> [(release.name, release.count) for release in algorithm.event.releases]
    [('preconditioned_gradient', 300), ('second_moment', 1)]
    """
    problem = base.check_problem(objective, budget, data_size, dimension, accountant)
    base.check_smooth(objective, "DP-FC")
    outputs = problem.setting.linear.outputs
    features, rest = divmod(problem.dimension, outputs)
    if rest:
        raise ValueError(
            f"dimension must be a multiple of the {outputs} scores of {objective.name}, got "
            f"{problem.dimension}: {outputs} times the number of features."
        )
    steps = _validate.int32_count("steps", 300 if steps is None else steps)
    share = _validate.open_unit("covariance_share", covariance_share)
    clip, _ = base.clip_norms(objective, clip_norm, 1.0)
    norm = base.positive_leaf("feature_norm", _validate.clip_norm("feature_norm", feature_norm))
    # What one record moves the mean by, of which the noise is a multiple.
    _validate.normal("feature_norm ** 2 / data_size", norm**2 / problem.setting.data_size)
    draws = features**2 + steps * problem.dimension
    noise = gaussian_multiplier(budget, 1, accountant, noise_draws=draws)
    moment = problem.part(MomentQuery, noise, share, clip_norm=norm)
    setting = dataclasses.replace(problem.setting, dimension=features)
    moment = dataclasses.replace(moment, setting=setting)
    if step_size is None:
        whole = base.required("step_size", None, objective.smoothness, objective)
        of_data = objective.constants.smoothness  # pyright: ignore[reportOptionalMemberAccess]
        # The penalty is one of w A, and |A|^2 is at most 1 over this floor and the trace.
        step_size = 1 / (of_data + (whole - of_data) / float(moment.noise_norm))
    algorithm = FeatureCovariance(
        # T answers share their part alike.
        gradient=problem.part(PreconditionedQuery, noise * steps**0.5, 1 - share, clip_norm=clip),
        moment=moment,
        step_size=base.positive_leaf("step_size", step_size),
        momentum=base.to_leaf(_validate.decay("momentum", momentum)),
        **problem.plan(steps),
    )
    problem.check_spent(algorithm.event)
    return algorithm
