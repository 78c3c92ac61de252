"""The file of a ledger: append-only JSON lines, each with a checksum and the hash of the last.

A crash can leave the last line torn. It is recognised, because a line opens with the hash of the
line before it, and dropped by the next writer. Any other damage is refused.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from dpjax import _durable

# Stands for the hash of a line before the first.
_FIRST = "0" * 64


class LedgerError(ValueError):
    """A ledger file that is damaged, or that another process holds."""


class HashChain(NamedTuple):
    """The checked content of a ledger file: its lines and their hashes, ``size`` bytes in all.

    The ``head`` is the last hash; in a ``torn`` file an incomplete line follows.
    """

    lines: tuple[dict[str, Any], ...]
    head: str
    digests: tuple[str, ...]
    size: int
    torn: bool


def parse(content: bytes, name: str = "ledger") -> HashChain:
    """Returns the lines in ``content``; raises naming the first that is not as it was written."""
    lines, digests = [], [_FIRST]
    *complete, tail = content.split(b"\n")
    for number, raw in enumerate(complete, 1):
        read = _unseal(raw, digests[-1])
        if read is None and number == 1 and not raw.startswith(b'{"previous":'):
            raise LedgerError(f"{name} is not a ledger of `dpjax ledger`, or damaged at line 1.")
        if read is None:
            raise _damaged(name, number)
        lines.append(read)
        digests.append(_digest(raw))
    size = len(content) - len(tail)
    if _unseal(tail, digests[-1]) is not None:
        # Only the newline is missing. Whatever took it, an intent that can be read stays spent.
        lines.append(_unseal(tail, digests[-1]))
        digests.append(_digest(tail))
        size, tail = len(content), b""
    # A file system may extend a file before it writes into it.
    start = tail.rstrip(b"\0")
    opening = f'{{"previous":"{digests[-1]}",'.encode()
    if not (opening.startswith(start) or start.startswith(opening)):
        raise _damaged(name, len(complete) + 1)
    if _unseal(start[:-1], digests[-1]) is not None:
        # Not torn: a whole line, and something else where its newline was.
        raise _damaged(name, len(complete) + 1)
    return HashChain(tuple(lines), digests[-1], tuple(digests[1:]), size, bool(tail))


def line(content: dict[str, Any], previous: str) -> bytes:
    """Returns ``content`` as a line, to follow the line whose hash is ``previous``."""
    body = {"previous": previous, **content}
    return _dump({**body, "seal": _digest(_dump(body))}) + b"\n"


def read(path: str | os.PathLike) -> HashChain:
    """Returns the checked content of a file; takes no lock and changes nothing."""
    return parse(pathlib.Path(path).read_bytes(), os.fspath(path))


class HashChainFile:
    """A ledger file open for writing, and locked until it is closed.

    A file lock excludes every other opener, in this process and in others; a thread lock excludes
    the threads that share this object. A forked process would share the file lock, which would
    then exclude neither of the two: it does not inherit the file.

    ``first`` is the content of the first line of a new file; None opens one that exists.
    """

    def __init__(self, path: str | os.PathLike, first: dict[str, Any] | None = None):
        self._path = pathlib.Path(path)
        self._process = os.getpid()
        self._lock = threading.Lock()
        # O_EXCL: if two processes declare a budget in one file, one must fail.
        new = 0 if first is None else os.O_CREAT | os.O_EXCL
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | new, 0o666)
        # Runs when the object goes, and before the interpreter takes its modules apart.
        self._let_go = weakref.finalize(self, os.close, self._descriptor)
        _OPEN.add(self)
        try:
            # Lock before reading, so that no other writer's line is missed.
            if not _durable.lock(self._descriptor):
                raise LedgerError(
                    f"{path} is being written by another run; wait for it, or close the other "
                    "Ledger. Two writers would spend one budget twice."
                )
            if first is not None:
                self.chain = HashChain((), _FIRST, (), 0, False)
                self._write(first)
                _durable.sync_folder(self._path.absolute().parent)
                return
            self.chain = read(path)
            # A file without one whole line may not be a ledger, and is left unchanged.
            if self.chain.torn and self.chain.lines:
                os.ftruncate(self._descriptor, self.chain.size)
                os.fsync(self._descriptor)
                self.chain = self.chain._replace(torn=False)
        except BaseException:
            self._let_go()
            if first is not None:
                # Nothing was spent in it yet, and half a declaration would only be in the way.
                with contextlib.suppress(OSError):
                    os.unlink(path)
            raise

    def append(self, decide: Callable[[], dict[str, Any] | None]) -> None:
        """Appends the line that ``decide`` returns, None for none, and returns once it is on disk.

        It may read ``chain``, and must not append. No other thread can append between its decision
        and the line. If writing fails the line is taken back and the file is closed, because a disk
        that failed once may report success for what it has lost.
        """
        # Before the lock, which a thread of the other process may have held when it forked.
        if self._process != os.getpid():
            raise LedgerError(
                f"{self._path} was opened by another process, from which this one was forked, and "
                "both would spend its budget. Open it again here with Ledger.open, once the other "
                "process has closed it."
            )
        with self._lock:
            content = decide()
            if content is not None:
                self._write(content)

    def _write(self, content: dict[str, Any]) -> None:
        if not self._let_go.alive:
            raise LedgerError(f"{self._path} is closed; open it again with Ledger.open.")
        descriptor, written = self._descriptor, self.chain
        if written.size and not self._in_place():
            self._let_go()
            raise LedgerError(
                f"{self._path} was replaced or changed by something else while a run held it; "
                "`dpjax ledger verify` says whether it is whole."
            )
        added = line(content, written.head)
        # A crash took the newline of the last line, see ``parse``.
        if written.size and os.pread(descriptor, 1, written.size - 1) != b"\n":
            added = b"\n" + added
        head = _digest(added.strip(b"\n"))
        try:
            _durable.write_all(descriptor, added)
            lines = (*written.lines, {"previous": written.head, **content})
            digests, size = (*written.digests, head), written.size + len(added)
            self.chain = HashChain(lines, head, digests, size, torn=False)
        except BaseException:
            # Also on Ctrl-C: a line of which nobody knows if it is whole must not stay.
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, written.size)
            self._let_go()
            raise

    def _in_place(self) -> bool:
        # A file that was moved away takes lines that nobody will ever read.
        here = os.fstat(self._descriptor)
        try:
            there = os.stat(self._path)
        except FileNotFoundError:
            return False
        return os.path.samestat(here, there) and here.st_size == self.chain.size

    def close(self) -> None:
        """Releases the file lock, once a line that another thread writes is on the disk."""
        with self._lock:
            self._let_go()


_OPEN: "weakref.WeakSet[HashChainFile]" = weakref.WeakSet()


def _disown() -> None:
    """Closes all files in a forked process; the parent keeps their locks."""
    for file in tuple(_OPEN):
        file._let_go()
        # Another thread may have held it, and there is no such thread here.
        file._lock = threading.Lock()


os.register_at_fork(after_in_child=_disown)


def _unseal(raw: bytes, previous: str) -> dict[str, Any] | None:
    try:
        content = {k: v for k, v in json.loads(raw).items() if k not in ("previous", "seal")}
        # Byte for byte: JSON has many ways to write what means the same.
        if line(content, previous) == raw + b"\n":
            return {"previous": previous, **content}
    except (ValueError, TypeError, AttributeError, RecursionError):
        pass
    return None


def _dump(content: dict[str, Any]) -> bytes:
    # One spelling, because lines are compared byte for byte; JSON has none for NaN.
    return json.dumps(content, separators=(",", ":"), allow_nan=False).encode()


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


def _damaged(name: str, number: int) -> LedgerError:
    return LedgerError(
        f"{name} is damaged at line {number}: it is not as it was written. What it spent cannot be "
        "known; restore it from a copy, and check that copy against a hash you noted elsewhere."
    )
