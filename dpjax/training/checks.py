"""Which optax optimizers ``fit`` cannot be handed, told from their state before any is made."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax.contrib import DifferentiallyPrivateAggregateState

from dpjax._typing import Params
from dpjax.transforms import NoiseState


def check_no_multi_steps(optimizer: Any, params: Params) -> None:
    """Raises for an optimizer that gathers several gradients into one step.

    Args:
      optimizer: an optax transformation.
      params: what it is for, or shapes.

    Raises:
      ValueError: for ``optax.MultiSteps``, alone or within a chain.

    >>> check_no_multi_steps(optax.adam(1e-3), jnp.zeros(2))
    """
    if isinstance(optimizer, optax.MultiSteps) or _holds(
        optimizer, params, (optax.MultiStepsState,)
    ):
        raise ValueError(
            "optimizer must not be an optax.MultiSteps: each micro-batch would have its own draw "
            "and its own noise, so that a step has more noise than its batch needs. Micro-batching "
            "belongs to the gradient, which adds all micro-batches of a draw before the noise: "
            "pass the optimizer within, and the whole batch_size."
        )


def holds_noise(optimizer: Any, params: Params) -> bool:
    """Returns whether an optimizer adds noise of its own: by dpjax's transforms, or with a key.

    Args:
      optimizer: an optax transformation.
      params: what it is for, or shapes.

    >>> import dpjax
    >>> noise = dpjax.transforms.add_ball_noise(2.0, dpjax.random_key())
    >>> holds_noise(optax.chain(noise, optax.sgd(0.1)), jnp.zeros(2))
    True
    """
    state = jax.eval_shape(optimizer.init, params)
    keys = [jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in jax.tree.leaves(state)]
    return any(keys) or _holds(optimizer, params, (NoiseState, DifferentiallyPrivateAggregateState))


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
            f"{optimizer!r}."
        )
    check_no_multi_steps(optimizer, params)
    if holds_noise(optimizer, params):
        raise ValueError(
            "optimizer adds noise itself, which fit does too: pass what follows the noise, such as "
            "optax.sgd(0.1) or optax.adam(1e-3); clipping and noise are clip_norm= and the budget."
        )


def _holds(optimizer: Any, params: Params, kinds: tuple[type, ...]) -> bool:
    state = jax.eval_shape(optimizer.init, params)

    def found(node: Any) -> bool:
        return isinstance(node, kinds)

    return any(map(found, jax.tree.leaves(state, is_leaf=found)))
