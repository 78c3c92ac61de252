"""The MNIST network of the papers on private SGD."""

import flax.linen as nn
import jax.numpy as jnp

from dpjax import _validate
from dpjax._typing import Array

ACTIVATIONS = {"tanh": jnp.tanh, "elu": nn.elu}


class CNN(nn.Module):
    """Two convolutions with overlapping max-pools, then two dense layers: 26,010 numbers.

    Call it on one image (28, 28) or (28, 28, 1), values of order 1; it gives 10 logits.

    Attributes:
      activation: ``"tanh"``, which bounds what a record can say, or ``"elu"``.

    Reference: Papernot, Thakurta, Song, Chien and Erlingsson (2021), "Tempered sigmoid activations
      for deep learning with differential privacy", table 1, for tanh; Zhang, Ma, Lou and Xiong
      (2021), section 4.1, for ELU.

    >>> import jax
    >>> params = CNN().init(jax.random.key(0), jnp.zeros((28, 28)))
    >>> sum(leaf.size for leaf in jax.tree.leaves(params))
    26010
    """

    activation: str = "tanh"

    @nn.compact
    def __call__(self, image: Array) -> Array:
        """Returns the logits (10,) of one image."""
        bend = ACTIVATIONS[_validate.choice("activation", self.activation, ACTIVATIONS)]
        x = image.reshape(28, 28, 1)
        x = bend(nn.Conv(16, (8, 8), strides=2, padding="SAME")(x))
        x = bend(nn.Conv(32, (4, 4), strides=2, padding="VALID")(_pool(x)))
        x = bend(nn.Dense(32)(_pool(x).ravel()))
        return nn.Dense(10)(x)


def _pool(x: Array) -> Array:
    # Maxima of shifted slices: the gradient of a window reduction is several times slower on CPU.
    x = jnp.maximum(x[1:], x[:-1])
    return jnp.maximum(x[:, 1:], x[:, :-1])
