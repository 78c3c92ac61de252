"""Random keys: fresh ones, those derived by purpose and step, and which have been used."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import threading
import zlib
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from dpjax._typing import Array, Integer, Key, PyTree, UInt32


def random_key() -> Key[Array, ""]:
    """Returns a fresh threefry key of 128 bits from operating-system entropy, for one training.

    ``jax.random.key(seed)`` keeps 32 bits of its seed unless x64 is on, which is few enough to
    search; noise for a release should start here. Call it for every training, in the process that
    trains: where a key that was folded or split from another one comes from cannot be seen, so
    that its results are not ``releasable``.

    Returns:
      A typed key, shape ().

    Raises:
      NotImplementedError: if the operating system has no source of entropy; there is no fallback.

    Privacy: whoever holds the key can subtract the noise. Do not log, return or store it.

    >>> random_key().shape
    ()
    """
    words = np.frombuffer(os.urandom(16), dtype=np.uint32)
    note_random(words)
    # Of a program that is traced here it is a constant, and refused: every call would repeat it.
    with jax.ensure_compile_time_eval():
        return jax.random.wrap_key_data(jnp.asarray(words), impl="threefry4x32")


def seed_key(seed: int) -> Key[Array, ""]:
    """Returns the threefry key that holds all 64 bits of ``seed``, for runs to be repeated.

    Args:
      seed: from 0 to 2^64 - 1. Below 2^32 it is the key that ``jax.random.key(seed)`` gives.

    Raises:
      ValueError: for anything else; nothing is truncated.

    Privacy: a seed can be guessed, and with it the noise. NOT for a release.

    >>> bool(seed_key(7) == jax.random.key(7)), bool(seed_key(7) == seed_key(7 + 2**32))
    (True, False)
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**64:
        got = "one outside of that" if isinstance(seed, int | np.integer) else _type_of(seed)
        raise ValueError(f"seed must be an integer from 0 to 2^64 - 1, got {got}.")
    words = np.array([int(seed) >> 32, int(seed) & 0xFFFF_FFFF], np.uint32)
    return jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")


def as_key(key: Key[Array, ""] | UInt32[Array, " 2"]) -> Key[Array, ""]:
    """Returns ``key`` as one typed threefry key, or raises.

    Args:
      key: a typed key of shape (), or the uint32 pair that ``jax.random.PRNGKey`` makes.

    Raises:
      ValueError: if it is missing, not a key, a batch of keys, or of an implementation other than
        threefry (rbg repeats itself under vmap).

    >>> as_key(jax.random.key(0)).shape
    ()
    """
    advice = (
        "pass key=dpjax.random_key(), or seed=INTEGER for an experiment whose result must not be "
        "released."
    )
    if key is None or not hasattr(key, "dtype"):
        raise ValueError(f"key must be a JAX random key, got {_type_of(key)}; {advice}")
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        if key.dtype != jnp.uint32 or key.shape != (2,):
            raise ValueError(
                f"key must be a JAX random key, got {key.dtype} of shape {key.shape}; {advice}"
            )
        key = jax.random.wrap_key_data(key, impl="threefry2x32")
    check_threefry(key)
    if key.shape != ():
        raise ValueError(
            f"key must be one key, got a batch of shape {key.shape}; "
            "run many seeds with jax.vmap(lambda key: solve(algorithm, data, key=key))(keys)."
        )
    return key


def _type_of(key: object) -> str:
    # Whatever it is, its digits may be a secret.
    return "None" if key is None else f"an object of type {type(key).__name__}"


def purpose_word(purpose: str) -> int:
    """Returns the 32 bits of a purpose that its key is made of; two with the same share a key."""
    # 32 bits suffice: a program has few purposes, and its programmer names them, not an attacker.
    return zlib.crc32(purpose.encode())


def derive(key: Key[Array, ""], purpose: str, step: Integer[Array, ""] | int) -> Key[Array, ""]:
    """Returns the key for one purpose at one step.

    The noise of a step depends on (root key, purpose, step) alone, so a resumed run draws the same
    noise, and two purposes never share any.

    Args:
      key: root key, shape ().
      purpose: a fixed word, such as the name of a query.
      step: int or int array, shape ().

    >>> root = jax.random.key(0)
    >>> bool(derive(root, "gradient", 0) == derive(root, "hessian", 0))
    False
    """
    check_threefry(key)
    crc = jnp.uint32(purpose_word(purpose))
    return fold(key, jnp.stack([crc, jnp.asarray(step).astype(jnp.uint32)]))


@functools.partial(jax.jit, inline=True)
def fold(key: Key[Array, ""], words: UInt32[Array, " k"]) -> Key[Array, ""]:
    """Returns ``key`` folded with one word after another, as ``jax.random.fold_in`` does.

    Args:
      key: shape ().
      words: (k,), uint32.

    >>> key = random_key()
    >>> bool(fold(key, jnp.uint32([7])) == jax.random.fold_in(key, 7))
    True
    """
    # In a loop, and the hash of a 128-bit key in another: XLA writes that of JAX out in full, again
    # for whatever reads it. Compiling took three times as long, and a vmap over runs 1,000 times.
    fold_in = _wide_fold_in if is_wide(key) else jax.random.fold_in
    return lax.fori_loop(0, words.shape[0], lambda i, folded: fold_in(folded, words[i]), key)


def random_words(key: Key[Array, ""], counts: UInt32[Array, " n"]) -> UInt32[Array, "width n"]:
    """Returns random words, as many a column as the key itself has: 2 or 4.

    Column i is what ``jax.random.fold_in(key, counts[i])`` holds: one whole hash, of which
    ``jax.random.bits`` keeps 32 bits. The ``counts`` are folded into this key nowhere else.
    """
    return jnp.stack(_wide_hash(key, counts) if is_wide(key) else _hash(key, counts))


def is_wide(key: Array) -> bool:
    """Returns whether the key has 128 bits."""
    return str(jax.random.key_impl(key)) == "threefry4x32"


# The constant of Threefry's key schedule (Salmon, Moraes, Dror and Shaw 2011).
_PARITY = 0x1BD11BDA
# Of the eight rounds after which they repeat, four by four: the two rotations of each.
_ROTATIONS = (((10, 26), (11, 21), (13, 27), (23, 5)), ((6, 20), (17, 11), (25, 10), (18, 20)))


def _hash(key: Array, word: Array) -> tuple[Array, Array]:
    """Returns the two words of ``jax.random.fold_in`` of a threefry2x32 key, to the bit.

    On CPU every array that a loop carries is computed by itself, the whole round again: so both
    words are one of 64 bits.
    """
    words = jax.random.key_data(key)
    schedule = jnp.append(words, lax.reduce_xor(words, (0,)) ^ jnp.uint32(_PARITY))
    rotations = jnp.array(((13, 15, 26, 6), (17, 29, 16, 24)), jnp.uint32)

    def packed(a: Array, b: Array) -> Array:
        return a.astype(jnp.uint64) << 32 | b.astype(jnp.uint64)

    def four_rounds(i: Array, state: Array) -> Array:
        a, b = (state >> 32).astype(jnp.uint32), state.astype(jnp.uint32)
        for j in range(4):
            a = a + b
            b = _rotate(b, rotations[i % 2, j]) ^ a
        count = jnp.asarray(i + 1, jnp.uint32)
        return packed(a + schedule[(i + 1) % 3], b + schedule[(i + 2) % 3] + count)

    with jax.enable_x64(True):
        start = packed(jnp.broadcast_to(words[0], word.shape), word + words[1])
        state = lax.fori_loop(jnp.int32(0), jnp.int32(5), four_rounds, start)
        return (state >> 32).astype(jnp.uint32), state.astype(jnp.uint32)


def _wide_fold_in(key: Array, word: Array) -> Array:
    return jax.random.wrap_key_data(jnp.stack(_wide_hash(key, word)), impl="threefry4x32")


def _wide_hash(key: Array, word: Array) -> tuple[Array, ...]:
    """Returns the same of a threefry4x32 key, four words: 20 rounds, in a loop of four.

    Reference: Salmon, Moraes, Dror and Shaw (2011), Parallel random numbers: as easy as 1, 2, 3.
    """
    words = jax.random.key_data(key)
    schedule = jnp.append(words, lax.reduce_xor(words, (0,)) ^ jnp.uint32(_PARITY))
    rotations = jnp.array(_ROTATIONS, jnp.uint32)

    def four_rounds(i: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        a, b, c, d = state
        for j in range(4):
            first, second = rotations[i % 2, j, 0], rotations[i % 2, j, 1]
            # Odd rounds mix each of the first and third word with the other of their partners.
            b, d = (d, b) if j % 2 else (b, d)
            a, c = a + b, c + d
            b, d = _rotate(b, first) ^ a, _rotate(d, second) ^ c
            b, d = (d, b) if j % 2 else (b, d)
        added = [schedule[(i + j) % 5] for j in range(1, 5)]
        count = (i + 1).astype(jnp.uint32)
        return a + added[0], b + added[1], c + added[2], d + added[3] + count

    start = [jnp.broadcast_to(words[i], word.shape) for i in range(4)]
    start[3] += word.astype(jnp.uint32)
    # Counters of 64 bits, which the x64 mode makes, are 10 times as slow to compile for a TPU.
    with jax.enable_x64(False):
        return lax.fori_loop(0, 5, four_rounds, tuple(start))


def _rotate(word: Array, by: Array) -> Array:
    return (word << by) | (word >> (jnp.uint32(32) - by))


def check_threefry(key: Array) -> None:
    """Raises for a key that is not threefry's, traced too: rbg repeats itself under ``vmap``."""
    if "threefry" not in (name := str(jax.random.key_impl(key))):
        raise ValueError(f"key must be a threefry key, got {name}; pass dpjax.random_key().")


# Hashes of keys. A key itself is a secret, and is kept nowhere.
_RANDOM: set[bytes] = set()
_CLAIMED: dict[bytes, str | None] = {}
_LOCK = threading.Lock()


def note_random(words: np.ndarray) -> None:
    """Notes the words of a key that were drawn from the operating system."""
    _RANDOM.add(_mark(words))


def guessable(key: Array) -> bool:
    """Returns whether ``key`` may come from a seed, which can be guessed.

    A key that is folded or split from that of a 32-bit seed looks like any other, and two minutes
    of search find the seed. So only a key that ``random_key`` returned in this process is known to
    be none of those. A traced key cannot be read: of 128 bits it passes, of 64 it does not.
    """
    if not is_wide(key):
        return True
    return not isinstance(key, Tracer) and _mark(_words(key)) not in _RANDOM


def claim(key: Array, advice: str, owner: str | None = None) -> bool:
    """Notes that noise is about to be drawn with ``key``; one of several threads succeeds.

    With one key the noise on neighbouring data sets is the same, and the difference of two results
    is the record. Only keys of 128 bits are noted, as ``random_key`` makes them: one of 64 bits is
    a choice by name, and a traced one cannot be read. ``owner`` may claim the key again, such as a
    run that is resumed; for another one it raises with ``advice``. Returned is whether the key is
    noted by this call: not before, and not one of those that are not noted.
    """
    if isinstance(key, Tracer) or not is_wide(key):
        return False
    mark = _mark(_words(key))
    with _LOCK:
        taken = mark in _CLAIMED
        if taken and (owner is None or _CLAIMED[mark] != owner):
            raise ValueError(
                "key has been used by another training or optimizer chain, whose noise would be "
                "repeated; " + advice
            )
        _CLAIMED[mark] = owner
    return not taken


@contextlib.contextmanager
def claimed(key: Array, advice: str, owner: str | None = None) -> Iterator[None]:
    """Claims ``key`` for what is about to begin, and gives it back if that fails to begin."""
    noted = claim(key, advice, owner)
    try:
        yield
    except Exception:
        # Ctrl-C is not an Exception: a run that it stops may have drawn noise, and keeps its key.
        if noted:
            with _LOCK:
                del _CLAIMED[_mark(_words(key))]
        raise


def check_traced(key: Array, data: PyTree) -> None:
    """Raises if one key of ``random_key`` would serve all data that ``jit`` or ``vmap`` traces."""
    traced = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(data))
    if traced and not isinstance(key, Tracer) and is_wide(key):
        raise ValueError(
            "key is a constant of a function that jit or vmap runs on other data: each run would "
            "have the same noise. Pass the key as an argument of that function, a new one for each."
        )


def _forget() -> None:
    """Forgets, in a process that was forked, which keys are random: its parent holds them too."""
    global _LOCK
    # Claims are kept: a key that the parent has used counts as used here too.
    _RANDOM.clear()
    _LOCK = threading.Lock()  # a thread of the parent may have held it


os.register_at_fork(after_in_child=_forget)


def _words(key: Array) -> np.ndarray:
    with jax.ensure_compile_time_eval():  # a key from outside may be read while tracing
        return np.asarray(jax.random.key_data(key))


def _mark(words: np.ndarray) -> bytes:
    return hashlib.blake2b(words.tobytes(), digest_size=16).digest()
