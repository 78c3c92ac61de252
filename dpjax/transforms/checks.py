"""Checks of an optimizer: whether it adds noise, or contains ``optax.MultiSteps``."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax.contrib import DifferentiallyPrivateAggregateState

from dpjax import _validate
from dpjax._typing import Params
from dpjax.transforms.noise import NoiseState


def check_no_multi_steps(optimizer: Any, params: Params | None = None) -> None:
    """Raises if ``optax.MultiSteps`` is anywhere in an optimizer.

    It hands an optimizer the mean of k updates: noise added before it is added k times and divided
    by k, noise after it once for k draws of records; neither is what one event a step says.

    Args:
      optimizer: an optax transformation, or an ``optax.MultiSteps``.
      params: what it is to be initialised with, where it reads their structure.

    Raises:
      ValueError: saying how to split a batch instead.

    >>> check_no_multi_steps(optax.adam(1e-3))
    >>> check_no_multi_steps(  # doctest: +ELLIPSIS
    ...     optax.MultiSteps(optax.adam(1e-3), 4))
    Traceback (most recent call last):
    ...
    ValueError: optax.MultiSteps breaks the noise of a step: ...
    """
    if isinstance(optimizer, optax.MultiSteps) or _holds(
        _state(optimizer, params), (optax.MultiStepsState,)
    ):
        raise ValueError(
            "optax.MultiSteps breaks the noise of a step: noise is added to every micro-batch, "
            "or once for several draws. Micro-batching belongs to the gradient: remove it; "
            "clipped_grad(..., memory_limit=...) accumulates a batch in micro-batches."
        )


def holds_noise(optimizer: optax.GradientTransformation, params: Params | None = None) -> bool:
    """Returns whether an optimizer adds noise of its own: by dpjax or optax, or with any key.

    Args:
      optimizer: an optax transformation.
      params: what it is to be initialised with, where it reads their structure.

    >>> holds_noise(optax.adam(1e-3))
    False
    """
    state = _state(optimizer, params)
    keys = [jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in jax.tree.leaves(state)]
    return any(keys) or _holds(state, (NoiseState, DifferentiallyPrivateAggregateState))


def check_optimizer(optimizer: Any, params: Params) -> None:
    """Raises for an optimizer that would break the noise or add it twice.

    Args:
      optimizer: an optax transformation.
      params: what it is for, or shapes.

    Raises:
      ValueError: for what is none, ``optax.MultiSteps``, or one that adds noise itself.

    >>> check_optimizer(optax.sgd(0.1), jnp.zeros(2))
    """
    if not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        raise ValueError(
            "optimizer must be an optax transformation such as optax.adam(1e-3), got "
            f"{_validate.shown(optimizer)}."
        )
    check_no_multi_steps(optimizer, params)
    if holds_noise(optimizer, params):
        raise ValueError(
            "optimizer adds noise itself, and so does the training: pass only what follows the "
            "noise, such as optax.sgd(0.1) or optax.adam(1e-3); clipping and noise are "
            "clip_norm= and the budget."
        )


def _state(optimizer: Any, params: Params | None) -> Any:
    return jax.eval_shape(optimizer.init, jnp.zeros(1) if params is None else params)


def _holds(state: Any, kinds: tuple[type, ...]) -> bool:
    def found(node: Any) -> bool:
        return isinstance(node, kinds)

    return any(map(found, jax.tree.leaves(state, is_leaf=found)))
