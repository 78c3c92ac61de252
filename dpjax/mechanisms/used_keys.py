"""Keys of this process: which hold the system's entropy, and which have been used."""

import contextlib
import hashlib
import os
import threading
from collections.abc import Iterator

import jax
import numpy as np
from jax.core import Tracer

from dpjax._typing import Array, PyTree

# Hashes of keys. A key itself is a secret, and is kept nowhere.
_RANDOM: set[bytes] = set()
_CLAIMED: dict[bytes, str | None] = {}
_LOCK = threading.Lock()


def note_random(words: np.ndarray) -> None:
    """Notes the words of a key that were drawn from the operating system."""
    _RANDOM.add(_hash(words))


def guessable(key: Array) -> bool:
    """Returns whether ``key`` may come from a seed, which can be guessed.

    A key that is folded or split from that of a 32-bit seed looks like any other, and two minutes
    of search find the seed. So only a key that ``random_key`` returned in this process is known to
    be none of those. A traced key cannot be read: of 128 bits it passes, of 64 it does not.
    """
    if not _has_128_bits(key):
        return True
    return not isinstance(key, Tracer) and _hash(_words(key)) not in _RANDOM


def claim(key: Array, advice: str, owner: str | None = None) -> bool:
    """Notes that noise is about to be drawn with ``key``; one of several threads succeeds.

    With one key the noise on neighbouring data sets is the same, and the difference of two results
    is the record. Only keys of 128 bits are noted, as ``random_key`` makes them: one of 64 bits is
    a choice by name, and a traced one cannot be read.

    Args:
      key: shape ().
      advice: what to do about a key that is taken, for the error.
      owner: who may claim the key again, such as a run that is resumed; None for nobody.

    Returns:
      Whether the key is noted by this call: not before, and not one of those that are not noted.

    Raises:
      ValueError: if the key is taken by another owner.
    """
    if isinstance(key, Tracer) or not _has_128_bits(key):
        return False
    mark = _hash(_words(key))
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
    """Claims ``key`` for what is about to begin, and gives it back if that fails to begin.

    Takes and raises what ``claim`` does.
    """
    noted = claim(key, advice, owner)
    try:
        yield
    except Exception:
        # Ctrl-C is not an Exception: a run that it stops may have drawn noise, and keeps its key.
        if noted:
            with _LOCK:
                del _CLAIMED[_hash(_words(key))]
        raise


def check_traced(key: Array, data: PyTree) -> None:
    """Raises if one key of ``random_key`` would serve many data sets of a transformation.

    Raises:
      ValueError: if ``data`` are traced by ``jit`` or ``vmap``, and ``key`` is not.
    """
    traced = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(data))
    if traced and not isinstance(key, Tracer) and _has_128_bits(key):
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


def _has_128_bits(key: Array) -> bool:
    return "threefry4x32" in str(jax.random.key_impl(key))


def _words(key: Array) -> np.ndarray:
    with jax.ensure_compile_time_eval():  # a key from outside may be read while tracing
        return np.asarray(jax.random.key_data(key))


def _hash(words: np.ndarray) -> bytes:
    return hashlib.blake2b(words.tobytes(), digest_size=16).digest()
