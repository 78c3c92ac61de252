"""The processes of a training meet before JAX joins them, or each says in a sentence why not.

Process 0 listens at the port that JAX's coordinator takes afterwards. Every other process connects,
says which it is, and waits for the outcome. Its connection closes when it dies. JAX alone would
wait for a process that is missing, dead or started otherwise, then abort and not say which it was.
"""

import contextlib
import errno
import json
import os
import selectors
import socket
import time
from typing import Any

_HEADER = b"dpjax\x01"  # the last byte is the version of these messages
_SIZE = 2048  # bytes of every message: the header, then JSON
_LONGEST = 400  # characters of a sentence: it fits into a message even at four bytes each
# A program that does not answer a hello for so long is no process 0.
_ANSWER_SECONDS = 10.0
_RETRY_SECONDS = 0.1
# Processes that connect this much later than something went wrong still hear what it was.
_GRACE_SECONDS = 2.0
_LONGER = "where they start further apart, wait longer (timeout, --start-timeout SECONDS)."


class _NotOursError(Exception):
    """The other side is another program, or a dpjax of other messages."""


def meet(
    coordinator: str, processes: int, process: int, timeout: float, versions: dict[str, str]
) -> None:
    """Returns once all processes are there; the coordinator's port is then free again.

    Args:
      coordinator: ``"host:port"`` of process 0.
      processes: how many there are.
      process: which this is, from 0 on.
      timeout: seconds to wait; once process 0 answers, its own count.
      versions: of packages by name, which have to be the same everywhere.

    Raises:
      OSError: in every process, if one is missing after the timeout, ends, or differs; or if the
        port is in use.
      ValueError: if the coordinator is not ``"host:port"``.

    Privacy: of the records nothing is read.
    """
    host, port = _address(coordinator)
    same = {"processes": str(processes), **versions}
    if process == 0:
        with contextlib.closing(_Host(_listener(port), processes, same, timeout)) as hosting:
            wrong = hosting.gather()
    else:
        wrong = _visit(host, port, _message(process=process, same=same), timeout)
    if wrong:
        raise OSError(f"the training did not begin: {wrong}")


def _address(text: str) -> tuple[str, int]:
    """Returns host and port.

    >>> _address("[::1]:1234"), _address("node-0.cluster:80")
    (('::1', 1234), ('node-0.cluster', 80))
    """
    host, _, port = text.rpartition(":")
    if not (host and port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise ValueError(
            f"coordinator must be HOST:PORT of process 0, such as node0:1234, got {text!r}."
        )
    return host.removeprefix("[").removesuffix("]"), int(port)


def _listener(port: int) -> socket.socket:
    """Returns a socket that listens where JAX's coordinator will: on all interfaces by default."""
    bound = os.environ.get("JAX_COORDINATOR_BIND_ADDRESS", f"[::]:{port}")
    host, port = _address(bound)
    dual = host == "::" and socket.has_dualstack_ipv6()
    host = "" if host == "::" and not dual else host
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server(
            (host, port), family=family, backlog=socket.SOMAXCONN, dualstack_ipv6=dual
        )
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise OSError(
                f"port {port} of the coordinator is in use on this machine, by another program or "
                "another process 0: choose another port, the same for all processes."
            ) from error
        raise OSError(
            f"process 0 cannot listen at {bound}: {error.strerror}. Choose another port for the "
            "coordinator, or another JAX_COORDINATOR_BIND_ADDRESS."
        ) from error


class _Host:
    """Process 0, which gathers the others and tells them all the same.

    Whatever connects and does not say a hello is left alone: ports are scanned.
    """

    def __init__(
        self, listener: socket.socket, processes: int, same: dict[str, str], timeout: float
    ):
        self._processes, self._same, self._timeout = processes, same, timeout
        self._deadline = time.monotonic() + timeout
        self._wrong = ""
        self._missing = set(range(1, processes))
        self._said: dict[socket.socket, bytes] = {}
        self._waiting: dict[socket.socket, int] = {}
        self._listener, self._selector = listener, selectors.DefaultSelector()
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)

    def close(self) -> None:
        self._selector.close()
        for connection in (self._listener, *self._said):
            connection.close()

    def gather(self) -> str:
        """Returns what is wrong, or nothing if all are there, once the others have been told."""
        while self._missing and (left := self._deadline - time.monotonic()) > 0:
            for ready, _ in self._selector.select(left):
                if ready.fileobj is self._listener:
                    self._accept()
                else:
                    self._hear(ready.fileobj)  # pyright: ignore[reportArgumentType]
            if self._wrong:
                self._tell()
        if self._missing and not self._wrong:
            named = "process " if len(self._missing) == 1 else "processes "
            named += ", ".join(map(str, sorted(self._missing)[:8]))
            named += ", ..." if len(self._missing) > 8 else ""
            self._refuse(
                f"{named} of {self._processes} did not join within {self._timeout:g} seconds. See "
                f"that each was started, with an address that reaches process 0; {_LONGER}"
            )
        self._listener.close()  # before the others go on: JAX then takes its port
        self._tell()
        return self._wrong

    def _refuse(self, wrong: str) -> None:
        self._wrong = self._wrong or wrong[:_LONGEST]
        self._deadline = min(self._deadline, time.monotonic() + _GRACE_SECONDS)

    def _tell(self) -> None:
        for connection in list(self._waiting):
            with contextlib.suppress(OSError):
                connection.sendall(_message(wrong=self._wrong))
            self._part(connection)

    def _part(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        del self._said[connection]
        self._waiting.pop(connection, None)
        connection.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it may be gone already
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            self._said[connection] = b""
            self._selector.register(connection, selectors.EVENT_READ)

    def _hear(self, connection: socket.socket) -> None:
        try:
            words = connection.recv(_SIZE)
        except BlockingIOError:
            return
        except OSError:
            words = b""
        if connection in self._waiting:
            if not words:
                process = self._waiting[connection]
                self._refuse(f"process {process} ended before all {self._processes} had joined.")
                self._part(connection)
            return
        self._said[connection] += words
        try:
            hello = _content(self._said[connection])
            if hello is not None:
                self._welcome(connection, hello)
            elif not words:
                self._part(connection)
        except _NotOursError:
            self._part(connection)

    def _welcome(self, connection: socket.socket, hello: dict[str, Any]) -> None:
        process, same = hello.get("process"), hello.get("same")
        if type(process) is not int or process < 1 or not isinstance(same, dict):
            raise _NotOursError
        differing = [
            f"{name} {str(same.get(name))[:20]!r} where process 0 has {own!r}"
            for name, own in self._same.items()
            if same.get(name) != own
        ]
        if differing:
            self._refuse(
                f"process {process} has {', '.join(differing)}. Start all with the same number of "
                "processes and the same versions."
            )
        elif process in self._waiting.values():
            self._refuse(
                f"two processes were started as process {process}. Give each a number of its own "
                f"(--process), from 0 to {self._processes - 1}."
            )
        self._missing.discard(process)
        self._waiting[connection] = process
        with contextlib.suppress(OSError):  # if it is gone already, that is heard next
            left = max(self._deadline - time.monotonic(), 0.0)
            connection.sendall(_message(wait=left))


def _visit(host: str, port: int, hello: bytes, timeout: float) -> str:
    """Returns what process 0 says is wrong, or what is wrong with it, or nothing if all met."""
    deadline, reason = time.monotonic() + timeout, ""
    while (left := deadline - time.monotonic()) > 0:
        try:
            limit = min(left, _ANSWER_SECONDS)
            with socket.create_connection((host, port), timeout=limit) as connection:
                # Where nobody listens on its own machine, TCP may connect a port with itself, which
                # must not keep process 0 from listening there afterwards.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                connection.sendall(hello)
                wait = _read(connection).get("wait")
                if not isinstance(wait, int | float):
                    raise _NotOursError
                return _outcome(connection, wait)
        except _NotOursError:
            reason = "another program, or another version of dpjax, answers there"
        except OSError as error:
            reason = error.strerror or str(error)
        time.sleep(min(_RETRY_SECONDS, left))
    return (
        f"process 0 did not answer at {host} port {port} within {timeout:g} seconds ({reason}). "
        f"See that it was started, with the same address; {_LONGER}"
    )


def _outcome(connection: socket.socket, seconds: float) -> str:
    connection.settimeout(seconds + _ANSWER_SECONDS)
    try:
        return str(_read(connection).get("wrong"))
    except (OSError, _NotOursError):
        return "process 0 ended, or cannot be reached any more, before all had joined."


def _message(**content: Any) -> bytes:
    return (_HEADER + json.dumps(content, ensure_ascii=False).encode()).ljust(_SIZE)


def _content(said: bytes) -> dict[str, Any] | None:
    """Returns what a message holds, or None while it is not complete.

    Raises:
      _NotOursError: if it is no such message.
    """
    if not _HEADER.startswith(said[: len(_HEADER)]):
        raise _NotOursError
    if len(said) < _SIZE:
        return None
    try:
        content = json.loads(said[len(_HEADER) :])
    except (ValueError, RecursionError):
        raise _NotOursError from None
    if not isinstance(content, dict):
        raise _NotOursError
    return content


def _read(connection: socket.socket) -> dict[str, Any]:
    said = b""
    while (content := _content(said)) is None:
        words = connection.recv(_SIZE - len(said))
        if not words:
            raise ConnectionError("the connection was closed")
        said += words
    return content
