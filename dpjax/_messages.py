"""What processes send one another: JSON and raw arrays, sealed where there is a secret."""

import hashlib
import hmac
import itertools
import json
import os
import stat
from typing import Any

import jax.numpy as jnp
import numpy as np

SECRET, SECRET_FILE = "DPJAX_SECRET", "DPJAX_SECRET_FILE"
"""Environment variables: the secret of the processes, or the file of mode 600 that holds it."""
TAG = 32
# As many bytes as a guess should have to get right.
_SHORTEST = 16
# What may be raised anew elsewhere, the most special first; no other class is ever called.
_ERRORS = (FileNotFoundError, FileExistsError, PermissionError, OSError, ImportError)
_ERRORS += (ValueError, TypeError, ArithmeticError, RuntimeError)


def pack(value: Any = None, error: Exception | None = None) -> bytes:
    """Returns a value, or an error in its place, as bytes.

    The value is of None, bools, numbers, strings, arrays, tuples, lists and dictionaries of
    strings; a named tuple arrives as a tuple, and of an error its words and its built-in class.
    """
    arrays: list[np.ndarray] = []

    def plain(value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, np.ndarray | np.generic):
            arrays.append(np.ascontiguousarray(value))
            # The shape of the value itself: ascontiguousarray makes (1,) of a scalar.
            return {"array": [str(value.dtype), list(np.shape(value))]}
        if isinstance(value, dict):
            return {"dict": [[str(name), plain(item)] for name, item in value.items()]}
        if isinstance(value, tuple | list):
            return {"list" if isinstance(value, list) else "tuple": [*map(plain, value)]}
        raise TypeError(f"{type(value).__name__} cannot be sent to another process.")

    # Of built-in classes alone: calling another could do anything.
    kind = next((kind for kind in _ERRORS if isinstance(error, kind)), RuntimeError)
    said = [str(error)]
    if isinstance(error, OSError) and error.errno is not None:
        said = [error.errno, str(error.strerror), error.filename and str(error.filename)]
    raised = None if error is None else [kind.__name__, said]
    head = json.dumps([plain(value), raised]).encode()
    return len(head).to_bytes(8) + head + b"".join(array.tobytes() for array in arrays)


def unpack(message: bytes) -> tuple[Any, Exception | None]:
    """Returns the value and the error of ``pack``; nothing in a message is ever run."""
    size = int.from_bytes(message[:8])
    place = 8 + size

    def value_of(plain: Any) -> Any:
        nonlocal place
        if not isinstance(plain, dict):
            return plain
        ((kind, held),) = plain.items()
        if kind == "array":
            # A negative length would take all that is left.
            dtype, shape = jnp.dtype(held[0]), tuple(map(abs, held[1]))
            begin, place = place, place + int(np.prod(shape)) * dtype.itemsize
            return np.frombuffer(message[begin:place], dtype).reshape(shape)
        if kind == "dict":
            return {name: value_of(item) for name, item in held}
        return {"tuple": tuple, "list": list}[kind](map(value_of, held))

    try:
        value, raised = json.loads(message[8 : 8 + size])
        kinds = {kind.__name__: kind for kind in _ERRORS}
        error = None if raised is None else kinds[raised[0]](*raised[1])
        return value_of(value), error
    except (LookupError, TypeError, OverflowError, RecursionError) as wrong:
        raise ValueError("a message between processes cannot be read.") from wrong


def secret() -> bytes | None:
    """Returns the secret that the processes share, or None."""
    words = os.environ.get(SECRET, "").strip().encode()
    if path := os.environ.get(SECRET_FILE):
        # A pipe in its place would wait for ever.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            # Of the file that is open, which nobody can exchange any more.
            status = os.fstat(file.fileno())
            is_private = stat.S_ISREG(status.st_mode) and status.st_uid in (0, os.geteuid())
            if not is_private or status.st_mode & 0o077:
                raise ValueError(
                    f"{SECRET_FILE}={path} must be a file that nobody else may read: yours, or "
                    "root's, and of mode 600."
                )
            words = file.read().strip()
    elif not words:
        return None
    if len(words) < _SHORTEST:
        raise ValueError(
            f"the secret of {SECRET_FILE if path else SECRET} has {len(words)} bytes, and at least "
            f"{_SHORTEST} are needed: make one by `openssl rand -hex 32`."
        )
    # A key of one length, whatever the secret's.
    return hashlib.sha256(words).digest()


class Seal:
    """Encrypts and authenticates messages under a secret; without one, finds accidents alone.

    Each message is sealed for its sender and its place in the order of all: one that is sent again,
    or by another, or in another session, does not open. Each process helps to draw ``session``.
    """

    def __init__(self, secret: bytes | None, session: bytes = b""):
        self._secret, self._session = secret, session
        self._number = itertools.count()

    def next(self) -> bytes:
        """Returns the place of a message, the same in every process."""
        return self._session + next(self._number).to_bytes(8)

    def close(self, place: bytes, sender: int, message: bytes) -> bytes:
        """Returns a message sealed: its tag of ``TAG`` bytes, and as many bytes as it has."""
        sealed = self._hidden(place, sender, message)
        return self._tag(place, sender, sealed) + sealed

    def open(self, place: bytes, sender: int, sealed: bytes) -> bytes:
        """Returns the message, or raises if it is not the one that was sealed for this place."""
        tag, sealed = sealed[:TAG], sealed[TAG:]
        if not hmac.compare_digest(tag, self._tag(place, sender, sealed)):
            raise RuntimeError(
                "a message between processes is not what its sender sealed: it arrived changed, "
                f"or {SECRET} or {SECRET_FILE} is not the same in every process."
            )
        return self._hidden(place, sender, sealed)

    def _tag(self, place: bytes, sender: int, sealed: bytes) -> bytes:
        return hmac.digest(self._key(b"tag"), place + sender.to_bytes(8) + sealed, "sha256")

    def _hidden(self, place: bytes, sender: int, message: bytes) -> bytes:
        # A stream of SHAKE-256 under the secret; no two messages have one place and sender.
        if self._secret is None:
            return message
        key = self._key(b"stream") + place + sender.to_bytes(8)
        stream = np.frombuffer(hashlib.shake_256(key).digest(len(message)), np.uint8)
        return (np.frombuffer(message, np.uint8) ^ stream).tobytes()

    def _key(self, use: bytes) -> bytes:
        return hmac.digest(self._secret or b"", use, "sha256")
