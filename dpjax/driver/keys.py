"""The key of one training: no default, no reuse, no truncated seed."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from dpjax._typing import Array, Params
from dpjax.algorithms import Algorithm
from dpjax.driver.configuration import Configuration
from dpjax.mechanisms import as_key, derive, fold, seed_key
from dpjax.mechanisms.keys import guessable, note_random
from dpjax.placement.processes import Team

# What to do about a key that another training has claimed.
ADVICE = "pass a new dpjax.random_key(), or seed=INTEGER for a research run that is to be repeated."


class MissingKeyError(TypeError, ValueError):
    """Neither a key nor a seed was passed: a missing argument, for which there is no default."""


def root_key(key: Array | None, seed: int | None) -> Array:
    """Returns the key that the caller chose, or made from the seed.

    Both are as ``solve`` takes them.

    Raises:
      ValueError: for both, a key that is none, or a seed that would be truncated.
      MissingKeyError: for neither.
    """
    if seed is None and key is None:
        raise MissingKeyError(
            "key must be a JAX random key, and has no default: pass key=dpjax.random_key(), or "
            "seed=INTEGER for an experiment whose result must not be released."
        )
    if seed is None:
        return as_key(key)  # pyright: ignore[reportArgumentType]
    if key is not None:
        raise ValueError("pass key= or seed=, not both.")
    return seed_key(seed)


def key_of_first(team: Team, key: Array) -> Array:
    """Returns the key of process 0, where each process has its own of ``random_key``.

    Privacy: the key crosses the network between the processes.
    """
    # A guessable key is the same in all processes, which have compared it; a traced key cannot be
    # sent.
    if team.size == 1 or isinstance(key, Tracer) or guessable(key):
        return key
    words = team.from_first(lambda: np.asarray(jax.random.key_data(key)))
    # Otherwise only process 0 knows that the key is random, and the others report it as guessable.
    note_random(words)
    return jax.random.wrap_key_data(jnp.asarray(words), impl=str(jax.random.key_impl(key)))


def training_key(
    key: Array, algorithm: Algorithm, params: Params, structure: Configuration
) -> Array:
    """Returns ``key`` folded with configuration and starting point, inside the program.

    The same key with another noise scale or objective gives independent noise, so that noise of
    two known scales does not cancel; with all the same it gives the same training. ``structure`` is
    that of the algorithm without its numbers, which count by themselves.

    Privacy: secret like the key.
    """
    leaves = map(_numbers, jax.tree.leaves(algorithm))
    numbers = jnp.concatenate([*leaves, *map(_bits, jax.tree.leaves((params, structure.traced)))])
    # Odd factors are invertible modulo 2^32: two lists that differ in one number never have equal
    # sums.
    multipliers = jax.random.bits(derive(key, "training", 0), (2, numbers.size), jnp.uint32) | 1
    digest = structure.digest
    words = jnp.uint32([int(digest[i : i + 8], 16) for i in (0, 8)])
    return fold(key, words ^ jnp.sum(_mix(numbers)[None] * multipliers, axis=1, dtype=jnp.uint32))


def _numbers(leaf: Array | float) -> Array:
    # In float32, so that x64 mode and stacking do not matter.
    leaf = jnp.ravel(leaf)
    # Half of a 64-bit number, such as a sampler's probability; float32 would drop its low bits.
    if leaf.dtype == jnp.uint32:
        return leaf
    return lax.bitcast_convert_type(leaf.astype(jnp.float32), jnp.uint32)


def _bits(leaf: Array) -> Array:
    # Every bit: two losses whose constants differ in the last one are two losses.
    leaf = jnp.ravel(leaf)
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jnp.ravel(jax.random.key_data(leaf))
    if leaf.dtype == jnp.bool_:
        leaf = leaf.astype(jnp.uint8)
    if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
        leaf = jnp.concatenate([leaf.real, leaf.imag])
    # Casting 8 bytes to 4 adds an axis of two words.
    word = {1: jnp.uint8, 2: jnp.uint16}.get(leaf.dtype.itemsize, jnp.uint32)
    return jnp.ravel(lax.bitcast_convert_type(leaf, word)).astype(jnp.uint32)


def _mix(x: Array) -> Array:
    """The finalizer of MurmurHash3 (Appleby): every bit of the input reaches every one."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
