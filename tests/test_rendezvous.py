"""How the processes of a training meet: all hear the same outcome, whoever else connects."""

import concurrent.futures
import contextlib
import re
import socket
import threading

import pytest
from several import free_port

from dpjax import _rendezvous, distributed

VERSIONS = {"dpjax": "1.0", "jax": "0.10.2"}


def meet(port, processes, process, *, host="127.0.0.1", timeout=30.0, versions=VERSIONS):
    """What one process hears."""
    try:
        _rendezvous.meet(f"{host}:{port}", processes, process, timeout, versions)
    except OSError as error:
        return str(error)
    return "met"


@contextlib.contextmanager
def meeting(port, processes, calls):
    """Lets processes meet, each a number and what is special; yields futures of what they hear."""
    with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
        yield [
            pool.submit(meet, port, **{"processes": processes, "process": process, **more})
            for process, more in calls
        ]


def connected(port):
    """A connection with process 0, which may not listen yet."""
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection(("127.0.0.1", port), timeout=30)


def hello(process, processes=3):
    same = {"processes": str(processes), **VERSIONS}
    return _rendezvous._message(process=process, same=same)


@pytest.mark.parametrize(
    ("processes", "calls", "heard"),
    [
        (1, [(0, {})], "met"),
        (3, [(2, {}), (0, {}), (1, {})], "met"),
        (3, [(0, {}), (1, {}), (1, {})], "two processes were started as process 1"),
        (
            2,
            [(0, {}), (1, {"processes": 3})],
            "process 1 has processes '3' where process 0 has '2'",
        ),
        (
            3,
            [(0, {}), (1, {"versions": {"dpjax": "1.1"}}), (2, {})],
            "process 1 has dpjax '1.1' where process 0 has '1.0', jax 'None' where process 0 has",
        ),
        (
            4,
            [(0, {"timeout": 1.0}), (2, {})],
            r"processes 1, 3 of 4 did not join within 1 seconds\. .*wait longer",
        ),
        (
            2,
            [(1, {"timeout": 0.2})],
            r"process 0 did not answer at 127.0.0.1 port \d+ within 0.2 seconds \(Connection ref",
        ),
    ],
    ids=["alone", "all", "one number twice", "numbers", "versions", "missing", "no process 0"],
)
def test_all_hear_that_all_are_there_or_what_is_wrong(processes, calls, heard, monkeypatch):
    monkeypatch.setattr(_rendezvous, "_GRACE_SECONDS", 0.5)
    with meeting(free_port(), processes, calls) as futures:
        said = {future.result() for future in futures}
    assert len(said) == 1
    expected = heard if heard == "met" else f"the training did not begin: .*{heard}"
    assert re.match(expected, said.pop())


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_processes_meet_by_name_and_address_and_leave_the_port_to_jax(host):
    if ":" in host and not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    port = free_port()
    with meeting(port, 2, [(0, {}), (1, {"host": host})]) as futures:
        assert [future.result() for future in futures] == ["met", "met"]
    _rendezvous._listener(port).close()


def test_the_coordinator_listens_where_jax_is_told_to(monkeypatch):
    port = free_port()
    monkeypatch.setenv("JAX_COORDINATOR_BIND_ADDRESS", f"127.0.0.1:{port}")
    with meeting(port, 2, [(0, {}), (1, {})]) as futures:
        assert [future.result() for future in futures] == ["met", "met"]
    monkeypatch.setenv("JAX_COORDINATOR_BIND_ADDRESS", f"203.0.113.1:{port}")
    assert "process 0 cannot listen at 203.0.113.1" in meet(port, 2, 0)


def test_whoever_else_connects_is_ignored():
    port, header = free_port(), _rendezvous._HEADER
    strays = [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(range(256)) * 20,
        header,
        header.ljust(_rendezvous._SIZE),
        (header + b"[1]").ljust(_rendezvous._SIZE),
        (header + b"[" * 2000).ljust(_rendezvous._SIZE),
        b"dpjax\x02".ljust(_rendezvous._SIZE),
        hello("1"),
        hello(0),
        _rendezvous._message(process=1),
    ]
    with meeting(port, 3, [(0, {}), (1, {})]) as futures, contextlib.ExitStack() as stack:
        for stray in strays:
            for leaves in (True, False):
                connection = stack.enter_context(connected(port))
                connection.sendall(stray)
                if leaves:
                    connection.close()
        assert not any(future.done() for future in futures)
        assert [meet(port, 3, 2), *(future.result() for future in futures)] == ["met"] * 3


def test_a_process_that_dies_while_it_waits_ends_all_others_at_once(monkeypatch):
    """Also one that waits already, and one that comes late."""
    monkeypatch.setattr(_rendezvous, "_GRACE_SECONDS", 30.0)
    port = free_port()
    with meeting(port, 4, [(0, {})]) as futures, connected(port) as waiting:
        with connected(port) as dying:
            for process, connection in ((1, waiting), (2, dying)):
                connection.sendall(hello(process, 4))
                assert _rendezvous._read(connection)["wait"] > 0
        told = _rendezvous._read(waiting)["wrong"]
        assert not futures[0].done()
        late = meet(port, 4, 3)
        assert late == futures[0].result() == f"the training did not begin: {told}"
    assert told == "process 2 ended before all 4 had joined."


@contextlib.contextmanager
def answering(answer, then_closes):
    """A program that listens, reads what is said, and answers; yields its port."""

    def serve():
        with contextlib.suppress(OSError):
            while True:
                with listener.accept()[0] as connection:
                    connection.sendall(answer(connection.recv(_rendezvous._SIZE)))
                    then_closes or connection.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


WELCOME = _rendezvous._message(wait=0.0)


@pytest.mark.parametrize(
    ("answer", "then_closes", "heard"),
    [
        (
            lambda said: b"HTTP/1.1 400 Bad Request\r\n",
            True,
            "(another program, or another version",
        ),
        (lambda said: said, False, "(another program"),
        (lambda said: b"", True, "(the connection was closed)"),
        (lambda said: b"", False, "(timed out)"),
        (lambda said: WELCOME, True, "process 0 ended, or cannot be reached any more"),
        (lambda said: WELCOME, False, "process 0 ended, or cannot be reached any more"),
    ],
    ids=["HTTP", "echo", "closes", "silent", "ends", "falls silent"],
)
def test_what_answers_and_is_no_process_0_is_waited_for_until_the_bound(
    answer, then_closes, heard, monkeypatch
):
    monkeypatch.setattr(_rendezvous, "_ANSWER_SECONDS", 0.3)
    with answering(answer, then_closes) as port:
        assert heard in meet(port, 2, 1, timeout=0.4)


def test_a_port_that_tcp_connects_with_itself_is_left_to_process_0(monkeypatch):
    port = free_port()

    def with_itself(address, timeout):
        connection = socket.socket()
        connection.settimeout(timeout)
        connection.bind(address)
        connection.connect(address)
        return connection

    monkeypatch.setattr(socket, "create_connection", with_itself)
    assert "another program" in meet(port, 2, 1, timeout=0.05)
    _rendezvous._listener(port).close()


def test_a_port_that_is_taken_is_named_at_once():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = meet(taken.getsockname()[1], 2, 0)
    assert "of the coordinator is in use on this machine" in said


@pytest.mark.parametrize("address", ["node0", ":1234", "node0:", "node0:0", "node0:65536", "n:1a"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(ValueError, match="coordinator must be HOST:PORT"):
        distributed.initialize(address, 2, 1)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"timeout": 0.0}, "timeout must be a finite number above 0"),
        ({"timeout": 1e9}, r"timeout must be at most 1e\+06 seconds"),
        ({"processes": 0}, "processes must be at least 1"),
        ({"process": 2}, "process must be from 0 to 1, got 2"),
        ({"process": "1"}, "process must be from 0 to 1, got '1'"),
    ],
)
def test_what_initialize_cannot_mean_is_refused_before_it_waits(more, message):
    with pytest.raises(ValueError, match=message):
        distributed.initialize(**{"coordinator": "h:1", "processes": 2, "process": 0} | more)
