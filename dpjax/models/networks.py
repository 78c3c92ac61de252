"""The networks of the papers on private SGD, whose layers see one image each."""

import flax.linen as nn
import jax.numpy as jnp

from dpjax import _validate
from dpjax._typing import Array

# Divides the channels of every stage of ResNet20.
_GROUPS = 8
ACTIVATIONS = {"tanh": jnp.tanh, "elu": nn.elu}


class CNN(nn.Module):
    """Two convolutions with overlapping max-pools, then two dense layers: 26,010 numbers.

    Call it on one image (28, 28), or (height, width, colours), of order 1; it gives 10 logits.

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
        x = image.reshape(28, 28, 1) if image.size == 784 else image
        if x.ndim != 3 or min(x.shape[:2]) < 13 or x.shape[2] > 4:  # most likely images of a batch
            words = "(height, width, colours), sides from 13 up and up to 4 colours"
            raise ValueError(f"image must be (28, 28), or {words}, got {image.shape}: use vmap.")
        x = bend(nn.Conv(16, (8, 8), strides=2, padding="SAME")(x))
        x = bend(nn.Conv(32, (4, 4), strides=2, padding="VALID")(_pool(x)))
        x = bend(nn.Dense(32)(_pool(x).ravel()))
        return nn.Dense(10)(x)


def _pool(x: Array) -> Array:
    # Maxima of shifted slices: the gradient of a window reduction is several times slower on CPU.
    x = jnp.maximum(x[1:], x[:-1])
    return jnp.maximum(x[:, 1:], x[:, :-1])


class ResNet20(nn.Module):
    """Nineteen 3x3 convolutions, most of them in nine blocks, and a dense layer: 269,722 numbers.

    Call it on one image (32, 32, 3), values of order 1; it gives 10 logits. Stages have 16, 32 and
    64 channels and three blocks, and the second and third begin with a stride of 2. Where the shape
    changes, the shortcut leaves out every other pixel and fills new channels with zeros (option A),
    so it has no parameters. Each convolution is normalised over 8 groups of channels of its own
    image, where the original couples the images of a batch; ELU in place of ReLU. An image of zeros
    has no finite gradient at the start, and then is a null record.

    Reference: He, Zhang, Ren and Sun (2016), "Deep residual learning for image recognition",
      section 4.2; Wu and He (2018), "Group normalization".

    >>> import jax
    >>> params = jax.eval_shape(ResNet20().init, jax.random.key(0), jnp.zeros((32, 32, 3)))
    >>> sum(leaf.size for leaf in jax.tree.leaves(params))
    269722
    """

    @nn.compact
    def __call__(self, image: Array) -> Array:
        """Returns the logits (10,) of one image."""
        x = nn.elu(_normed(_conv(16)(image.reshape(32, 32, 3))))
        for channels in (16, 32, 64):
            for _ in range(3):
                x = _Block(channels)(x)
        return nn.Dense(10)(jnp.mean(x, axis=(0, 1)))


class _Block(nn.Module):
    """Two convolutions beside a shortcut."""

    channels: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        stride = 1 if x.shape[-1] == self.channels else 2
        y = nn.elu(_normed(_conv(self.channels, stride)(x)))
        # No activation before the shortcut is added (He et al. 2016).
        y = _normed(_conv(self.channels)(y))
        kept = x[::stride, ::stride]
        return nn.elu(y + jnp.pad(kept, ((0, 0), (0, 0), (0, self.channels - x.shape[-1]))))


def _conv(channels: int, stride: int = 1) -> nn.Conv:
    # Padded alike on both sides, so that with a stride it is centred on the pixels that are kept.
    kernel = {"use_bias": False, "kernel_init": nn.initializers.he_normal()}
    return nn.Conv(channels, (3, 3), strides=stride, padding=1, **kernel)


def _normed(x: Array) -> Array:
    # All axes by name: flax takes the first for a batch, and here it is the height.
    return nn.GroupNorm(_GROUPS, reduction_axes=(-3, -2, -1))(x)
