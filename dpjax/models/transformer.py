"""A small transformer of one sequence: a language model, or a classifier."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from dpjax._typing import Array, Float, Int

# Wavelengths of the rotary positions go up to 2 pi times this (Su et al. 2021).
_BASE = 10_000.0


class Transformer(nn.Module):
    """Predicts the next token of a sequence, or the class of a whole one.

    Call it on the tokens of one example, integers (length,) below ``vocabulary``; 0 is padding.
    Each layer is attention, then two dense layers with GELU, both beside a shortcut and after an
    RMS norm of the position. Positions are rotary, so that any length will do. The embedding is
    also the last layer of a language model (tied).

    Attributes:
      vocabulary: number of tokens.
      width: features at each position, a multiple of twice ``heads``.
      depth: number of layers.
      heads: of attention.
      classes: None for a language model: every position sees itself and those before, and gives
        the logits (length, vocabulary) of the next token. Otherwise every position sees all, and
        the logits are (classes,), from the mean over positions.
      rank: of changes to the dense layers, trained in place of the layers themselves (LoRA): their
        parameters are named ``lora``. None for no changes.
      remat: compute each layer again in the backward pass, which then holds less.
      dtype: to compute in, such as ``jnp.bfloat16``; parameters, norms and logits are float32.

    Reference: Vaswani et al. (2017), "Attention is all you need"; Zhang and Sennrich (2019), "Root
      mean square layer normalization"; Su et al. (2021), "RoFormer", for rotary positions; Press
      and Wolf (2017), "Using the output embedding to improve language models"; Hu et al. (2022),
      "LoRA: Low-rank adaptation of large language models".

    >>> model = Transformer(vocabulary=50, width=16, depth=1, heads=2)
    >>> params = jax.jit(model.init)(jax.random.key(0), jnp.arange(1, 9))
    >>> model.apply(params, jnp.arange(1, 9)).shape
    (8, 50)
    """

    vocabulary: int
    width: int = 128
    depth: int = 4
    heads: int = 4
    classes: int | None = None
    rank: int | None = None
    remat: bool = False
    dtype: jax.typing.DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, tokens: Int[Array, " length"]) -> Float[Array, "..."]:
        """Returns the logits of one sequence."""
        if self.width % (2 * self.heads):
            raise ValueError(f"width must be a multiple of 2 * heads, got {self.width}.")
        if self.rank is not None and not 0 < self.rank <= self.width:
            raise ValueError(f"rank must be from 1 to width={self.width}, got {self.rank}.")
        # Logits of order 1 from a position of norm sqrt(width).
        start = nn.initializers.normal(self.width**-0.5)
        embed = nn.Embed(self.vocabulary, self.width, dtype=self.dtype, embedding_init=start)
        real = tokens != 0
        # Padding comes last, so that what is causal never sees it.
        seen = jnp.tri(tokens.size, dtype=bool) if self.classes is None else real[None]
        x = embed(tokens) * self.width**0.5
        for i in range(self.depth):
            layer = nn.remat(_Layer) if self.remat else _Layer
            x = layer(self.heads, self.rank, self.dtype, name=f"layer_{i}")(x, seen)
        x = nn.RMSNorm(dtype=self.dtype)(x)
        if self.classes is None:
            return embed.attend(x).astype(jnp.float32)
        mean = jnp.sum(x, axis=0, where=real[:, None]) / jnp.maximum(jnp.sum(real), 1)
        return nn.Dense(self.classes)(mean)


class _Layer(nn.Module):
    """Attention, then two dense layers."""

    heads: int
    rank: int | None
    dtype: jax.typing.DTypeLike

    @nn.compact
    def __call__(self, x: Array, seen: Array) -> Array:
        width, norm = x.shape[1], nn.RMSNorm(dtype=self.dtype)
        parts = self._dense("attend", 3 * width, norm(x)).reshape(len(x), 3, self.heads, -1)
        query, key, value = _rotated(parts[:, 0]), _rotated(parts[:, 1]), parts[:, 2]
        out = jax.nn.dot_product_attention(query, key, value, mask=seen[None])
        x = x + self._dense("out", width, out.reshape(x.shape))
        hidden = self._dense("up", 4 * width, nn.RMSNorm(dtype=self.dtype)(x))
        return x + self._dense("down", width, nn.gelu(hidden))

    def _dense(self, name: str, features: int, x: Array) -> Array:
        out = nn.Dense(features, dtype=self.dtype, name=name)(x)
        if self.rank is None:
            return out
        # Beside the layer, not added to its weight: both factors stay layers of their own. The
        # second starts at zero, so that at first nothing changes.
        how = {"use_bias": False, "dtype": self.dtype}
        low = nn.Dense(self.rank, name=f"{name}_lora_a", **how)(x)
        zero = nn.initializers.zeros
        return out + nn.Dense(features, kernel_init=zero, name=f"{name}_lora_b", **how)(low)


def _rotated(x: Array) -> Array:
    """Returns ``x`` (length, heads, k), each pair of entries turned by an angle of its position."""
    length, _, k = x.shape
    frequency = _BASE ** (-jnp.arange(0, k, 2) / k)
    angle = jnp.outer(jnp.arange(length), frequency)[:, None]
    # Angles in float32, whatever is computed in: bfloat16 tells no positions above 256 apart.
    cos, sin = jnp.cos(angle).astype(x.dtype), jnp.sin(angle).astype(x.dtype)
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def next_token(logits: Float[Array, "length vocabulary"], tokens: Int[Array, " length"]) -> Array:
    """Returns the mean cross-entropy of each token but the first, from the logits before it.

    A loss for ``fit``, of one sequence that is features and label; 0 is padding, and left out.

    >>> float(next_token(jnp.zeros((3, 4)), jnp.array([1, 2, 0]))) == float(jnp.log(4.0))
    True
    """
    ahead = tokens[1:]
    # From sums of exponentials: no array of log probabilities is written.
    chosen = jnp.take_along_axis(logits[:-1], ahead[:, None], axis=1)[:, 0]
    losses = jax.nn.logsumexp(logits[:-1], axis=1) - chosen
    real = ahead != 0
    return jnp.sum(losses, where=real) / jnp.maximum(jnp.sum(real), 1)
