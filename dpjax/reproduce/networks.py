"""NOT PRIVATE: a training of ``solve`` that is looked at on its way, and a network's accuracy."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from dpjax._typing import Array, Params
from dpjax.algorithms import Algorithm
from dpjax.datasets import Dataset
from dpjax.driver import trajectory

# Images that accuracy is counted on at once.
_CHUNK = 250


def train(
    algorithm: Algorithm,
    data: Dataset,
    key: Array,
    params: Params,
    at: list[int],
    look: Callable[[Params], Any],
) -> list[Any]:
    """Returns what ``look`` says of the iterates of ``solve`` after the steps ``at``.

    Args:
      algorithm: calibrated.
      data: arrays of JAX.
      key: of this training.
      params: where it starts.
      at: step numbers, growing.
      look: from parameters to what is wanted.

    >>> import dpjax
    >>> algorithm = dpjax.dp_adam(
    ...     dpjax.objectives.logistic(), dpjax.PrivacyBudget(1.0, 1e-3),
    ...     data_size=50, dimension=2, steps=4)
    >>> data = Dataset(jnp.ones((50, 2)), jnp.ones(50))
    >>> seen = train(algorithm, data, jax.random.key(0), jnp.zeros(2), [2, 4], jnp.shape)
    >>> seen
    [(2,), (2,)]
    """
    path = trajectory(algorithm, data, key=key, params=params, at=at).params
    return [look(jax.tree.map(lambda leaf: leaf[place], path)) for place in range(len(at))]  # noqa: B023


def exact_share(apply: Callable[..., Array], params: Params, x: Array, y: Array) -> float:
    """Returns the share of images whose largest logit is their label's. NOT PRIVATE.

    Args:
      apply: of the network, for one image.
      params: its parameters.
      x: images.
      y: labels.

    >>> exact_share(lambda w, x: x * w, jnp.ones(2), jnp.eye(2), jnp.array([0.0, 0.0]))
    0.5
    """
    hits = [
        _hits(apply, params, x[first : first + _CHUNK], y[first : first + _CHUNK])
        for first in range(0, len(y), _CHUNK)
    ]
    return sum(map(int, hits)) / len(y)


@functools.partial(jax.jit, static_argnames="apply")
def _hits(apply: Callable[..., Array], params: Params, x: Array, y: Array) -> Array:
    logits = jax.vmap(functools.partial(apply, params))(x)
    # Parameters that are not finite predict nothing.
    return jnp.sum((jnp.argmax(logits, axis=1) == y) & jnp.isfinite(logits).all(axis=1))
