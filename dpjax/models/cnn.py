"""The MNIST network of the papers on private SGD."""

import flax.linen as nn
import jax.numpy as jnp

from dpjax._typing import Array


class CNN(nn.Module):
    """Two convolutions with tanh and overlapping max-pools, then two dense layers: 26,010 numbers.

    Call it on one image (28, 28) or (28, 28, 1), values of order 1; it gives 10 logits.

    Reference: Papernot, Thakurta, Song, Chien and Erlingsson (2021), "Tempered sigmoid activations
    for deep learning with differential privacy", table 1.

    >>> import jax
    >>> params = CNN().init(jax.random.key(0), jnp.zeros((28, 28)))
    >>> sum(leaf.size for leaf in jax.tree.leaves(params))
    26010
    """

    @nn.compact
    def __call__(self, image: Array) -> Array:
        """Returns the logits (10,) of one image."""
        x = image.reshape(28, 28, 1)
        x = jnp.tanh(nn.Conv(16, (8, 8), strides=2, padding="SAME")(x))
        x = jnp.tanh(nn.Conv(32, (4, 4), strides=2, padding="VALID")(_pool(x)))
        x = jnp.tanh(nn.Dense(32)(_pool(x).ravel()))
        return nn.Dense(10)(x)


def _pool(x: Array) -> Array:
    # Maxima of shifted slices: the gradient of a window reduction is several times slower on CPU.
    x = jnp.maximum(x[1:], x[:-1])
    return jnp.maximum(x[:, 1:], x[:, :-1])
