"""Several processes of one training: process 0 decides and writes, and all begin alike or not."""

import dataclasses
import functools
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from dpjax._messages import SECRET, SECRET_FILE, TAG, Seal, pack, secret, unpack
from dpjax.placement.shard import SHARE, own_rows

_Value = TypeVar("_Value")
# What a failure of the network begins with, in the words of gRPC.
_STATUSES = "INTERNAL:", "UNKNOWN:", "UNAVAILABLE:", "DEADLINE_EXCEEDED:", "ABORTED:", "CANCELLED:"
# Bytes at least: messages are padded to a power of two, so that few programs serve all.
_WORDS = 256


class ProcessLost(RuntimeError):
    """Another process of the training ended or cannot be reached, so this one cannot go on."""


@dataclasses.dataclass(frozen=True)
class Team:
    """The processes of one training."""

    size: int = 1
    rank: int = 0
    """Of this process; 0 owns the key, the checkpoint and the ledger."""
    mesh: Mesh | None = None

    @property
    def leads(self) -> bool:
        """Whether this process decides and writes."""
        return self.rank == 0

    def rows(self, n: int) -> list[range]:
        """Returns which of n records this process reads; together the processes read each once."""
        if self.mesh is None:
            return [range(n)]
        # So few lie on one device.
        if n <= SHARE:
            return [range(n)] if self.leads else []
        return own_rows(n, self.mesh)

    def from_first(self, make: Callable[[], _Value]) -> _Value:
        """Returns what ``make`` returns in process 0, where alone it is called.

        The result is one that ``_messages.pack`` takes. What ``make`` raises is raised here; in the
        other processes as the built-in class of it.

        Privacy: the key goes this way. Without a shared secret it crosses the network in clear, and
          any value is taken from whoever is process 0; with one it is encrypted and authenticated.
        """
        if self.size == 1:
            return make()
        value, error, message = None, None, b""
        if self.leads:
            try:
                value = make()
            # The others wait for it; it is raised below, here as there.
            except Exception as raised:
                error = raised
            message = _packed(value, error)
        with reaching_others(self):
            message = _broadcast(message, self.leads)
        if not self.leads:
            value, error = unpack(message)
        if error is not None:
            raise error
        return value  # pyright: ignore[reportReturnType]

    def gather(self, words: bytes) -> list[bytes]:
        """Returns what each process passes, of one length."""
        if self.size == 1:
            return [words]
        with reaching_others(self):
            seal = _seal()
            place = seal.next()
            rows = _gathered(seal.close(place, self.rank, words))
        return [seal.open(place, rank, row) for rank, row in enumerate(rows)]

    def agree(self, fields: dict[str, str]) -> None:
        """Raises unless every process passes the same, under the same names."""
        # Digests have one length, and hold nothing of what they are of.
        digests = self.gather(b"".join(_sha256(value.encode()) for value in fields.values()))
        differing = [
            name
            for place, name in enumerate(fields)
            # A SHA-256 has 32 bytes.
            if len({digest[32 * place : 32 * place + 32] for digest in digests}) > 1
        ]
        if differing:
            raise ValueError(
                f"the {self.size} processes of this run differ in {', '.join(differing)}: each has "
                "to make the same call, by the same versions. Nothing was asked or spent."
            )


ALONE = Team()
"""A training of one process."""


def team(mesh: Mesh | None) -> Team:
    """Returns the processes whose devices are in a mesh."""
    if mesh is None:
        return ALONE
    ranks = {device.process_index for device in mesh.devices.flat}
    if len(ranks) == 1:
        return ALONE
    # All processes of JAX join in a broadcast: some of them would wait for the others.
    if len(ranks) < jax.process_count():
        raise ValueError(
            f"the records lie on devices of {len(ranks)} of {jax.process_count()} processes; take "
            "those of one process, or of all."
        )
    return Team(len(ranks), jax.process_index(), mesh)


@contextmanager
def reaching_others(team: Team) -> Iterator[None]:
    """Turns a failure of the network between processes into words."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        # JAX raises either, depending on when it notices.
        if team.size == 1 or not str(error).startswith(_STATUSES):
            raise
        raise ProcessLost(
            f"another of the {team.size} processes ended or cannot be reached, so this one ends. "
            "A ledger shows the run as spent; with a checkpoint, the same call in every process "
            "goes on from it and spends nothing more."
        ) from error


@functools.cache
def _seal() -> Seal:
    """The seal of this process and the others, whose session each of them helps to draw."""
    shared = secret()
    nonce = bytes(TAG) if shared is None else os.urandom(TAG)
    nonces = _gathered(nonce)
    nonces[jax.process_index()] = nonce  # whatever came back: so no session is an earlier one
    if bytes(TAG) in nonces and set(nonces) != {bytes(TAG)}:
        raise ValueError(f"some processes of this run have {SECRET} or {SECRET_FILE}, others none.")
    return Seal(shared, _sha256(b"".join(nonces)))


def _packed(value: object, error: Exception | None) -> bytes:
    try:
        return pack(None if error is not None else value, error)
    except TypeError as raised:  # the others wait for a message
        return pack(None, RuntimeError(f"{raised}"))


def _gathered(words: bytes) -> list[bytes]:
    rows = multihost_utils.process_allgather(_words(words))
    return [row.tobytes()[: len(words)] for row in np.asarray(rows)]


def _broadcast(message: bytes, leads: bool) -> bytes:
    seal = _seal()
    # First, as a broadcast needs one shape everywhere.
    size = int.from_bytes(_sealed(seal, len(message).to_bytes(8), 8, 8, leads))
    return _sealed(seal, message, size, max(_WORDS, 1 << size.bit_length()), leads)


def _sealed(seal: Seal, message: bytes, size: int, most: int, leads: bool) -> bytes:
    place = seal.next()
    framed = seal.close(place, 0, message).ljust(TAG + most, b"\0") if leads else bytes(TAG + most)
    sent = multihost_utils.broadcast_one_to_all(_words(framed), is_source=leads)
    return seal.open(place, 0, np.asarray(sent).tobytes()[: TAG + size])


def _words(message: bytes) -> np.ndarray:
    return np.frombuffer(message.ljust(-(-len(message) // 4) * 4, b"\0"), np.uint32)


def _sha256(message: bytes) -> bytes:
    return hashlib.sha256(message).digest()
