"""What an optimizer has inside: noise of its own, or ``optax.MultiSteps``, which breaks noise."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

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
    if isinstance(optimizer, optax.MultiSteps) or _holds(optimizer, optax.MultiStepsState, params):
        raise ValueError(
            "optax.MultiSteps breaks the noise of a step: noise is added to every piece of a "
            "batch, or once for several draws. Micro-batching belongs to the gradient: take it "
            "off; clipped_grad(..., memory_limit=...) sums a batch in pieces."
        )


def holds_noise(optimizer: optax.GradientTransformation, params: Params | None = None) -> bool:
    """Returns whether an optimizer adds noise of dpjax's own.

    Args:
      optimizer: an optax transformation.
      params: what it is to be initialised with, where it reads their structure.

    >>> holds_noise(optax.adam(1e-3))
    False
    """
    return _holds(optimizer, NoiseState, params)


def _holds(optimizer: Any, kind: type, params: Params | None) -> bool:
    state = jax.eval_shape(optimizer.init, jnp.zeros(1) if params is None else params)
    leaves = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, kind))
    return any(isinstance(leaf, kind) for leaf in leaves)
