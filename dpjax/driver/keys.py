"""The key of one training: no two trainings share noise, even where the user repeats a key."""

import jax
import jax.numpy as jnp
from jax import lax

from dpjax._typing import Array, PyTree
from dpjax.algorithms import Algorithm
from dpjax.driver import fingerprint
from dpjax.mechanisms import as_key, derive, seed_key


def root_key(key: Array | None, seed: int | None) -> Array:
    """Returns the key that the caller chose, or made from the seed.

    Args:
      key: as ``solve`` takes it.
      seed: as ``solve`` takes it.

    Raises:
      ValueError: for both or neither, a key that is none, or a seed that would be truncated.
    """
    if seed is None:
        return as_key(key)  # pyright: ignore[reportArgumentType] # None is refused there
    if key is not None:
        raise ValueError("pass key= or seed=, not both.")
    return seed_key(seed)


def training_key(key: Array, algorithm: Algorithm, examples: PyTree) -> Array:
    """Returns ``key`` folded with the configuration and the data, inside the program.

    The same key with another noise scale, objective or record gives independent noise, so that no
    difference of two trainings is free of it; with all the same it gives the same training.

    Args:
      key: root key, shape ().
      algorithm: numbers and structure; functions count by their code.
      examples: the records.

    Privacy: secret like the key. The two words that stand for the data come from a hash whose
    multipliers the key draws; for every data set the folded key is as random as the root.
    """
    structure = fingerprint.config(jax.tree.map(lambda leaf: None, algorithm))
    numbers = jnp.stack([_number(leaf) for leaf in jax.tree.leaves(algorithm)])
    inputs = [numbers[None], *(_words(leaf) for leaf in jax.tree.leaves(examples))]
    widths = [words.shape[1] for words in inputs]
    bits = jax.random.bits(derive(key, "training", 0), (2, sum(widths)), jnp.uint32)
    summary = [jnp.uint32(int(structure[i : i + 8], 16)) for i in (0, 8)]
    first = 0
    for words, width in zip(inputs, widths, strict=True):
        multipliers = bits[:, first : first + width] | 1
        summary = [_mix(s) + _hash(m, words) for s, m in zip(summary, multipliers, strict=True)]
        first += width
    for word in summary:
        key = jax.random.fold_in(key, word)
    return key


def _number(leaf: Array | float) -> Array:
    # In float32, so that x64 mode and stacking do not matter.
    leaf = jnp.asarray(leaf)
    if leaf.dtype == jnp.uint32:
        return leaf
    return lax.bitcast_convert_type(leaf.astype(jnp.float32), jnp.uint32)


def _words(leaf: Array) -> Array:
    """The bits of an array (n, ...) as uint32 (n, k)."""
    leaf = jnp.asarray(leaf)
    if leaf.dtype == jnp.bool_:
        leaf = leaf.astype(jnp.uint8)
    kind = {1: jnp.uint8, 2: jnp.uint16}.get(leaf.dtype.itemsize, jnp.uint32)
    return lax.bitcast_convert_type(leaf, kind).astype(jnp.uint32).reshape(leaf.shape[0], -1)


def _hash(multipliers: Array, words: Array) -> Array:
    """A word that tells arrays (n, k) apart: a keyed sum a row, mixed with its place, summed."""
    rows = jnp.sum(words * multipliers, axis=1, dtype=jnp.uint32)
    places = jnp.arange(words.shape[0], dtype=jnp.uint32) * jnp.uint32(0x9E3779B9)
    return jnp.sum(_mix(_mix(rows) + places), dtype=jnp.uint32)


def _mix(x: Array) -> Array:
    """The finalizer of MurmurHash3 (Appleby): every bit of the input reaches every one."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
