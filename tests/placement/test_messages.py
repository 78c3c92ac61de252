"""What crosses between processes: values and errors, never code; sealed where there is a secret."""

import os
import pickle

import jax.numpy as jnp
import numpy as np
import pytest
from several import on_processes

from dpjax import _messages
from dpjax._messages import Seal, pack, unpack
from dpjax.accounting import LedgerError

SECRET = b"s" * 32
KEY = np.arange(4, dtype=np.uint32)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -3,
        0.1 + 0.2,
        "Grüße",
        (1, [2, (3,)], {"a": (None, {"b": 2.5})}),
        KEY,
        (KEY, np.float32(2.5), np.zeros((2, 0)), np.asarray(jnp.ones(3, jnp.bfloat16))),
    ],
    ids=str,
)
def test_a_value_arrives_as_it_was(value):
    def same(first, second):
        if isinstance(first, np.ndarray | np.generic):
            assert first.dtype == second.dtype and first.tobytes() == second.tobytes()
        elif isinstance(first, tuple | list):
            assert type(first) is type(second) and len(first) == len(second)
            list(map(same, first, second))
        else:
            assert first == second and type(first) is type(second)

    received, error = unpack(pack(value))
    same(value, received)
    assert error is None


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (LedgerError("spent"), ValueError),
        (OSError(28, "No space left on device", "ledger"), OSError),
        (FileNotFoundError(2, "No such file", "ledger"), FileNotFoundError),
        (pickle.PicklingError("x"), RuntimeError),
        (ZeroDivisionError("x"), ArithmeticError),
    ],
)
def test_an_error_arrives_as_a_built_in_one(error, kind):
    _, received = unpack(pack(None, error))
    assert type(received) is kind and str(received) == str(error)


class Runs:
    def __reduce__(self):
        return print, ("run",)


@pytest.mark.parametrize(
    "head",
    [
        b"[null, null",
        b"3",
        b'[{"os.system": ["id"]}, null]',
        b'[null, ["SystemExit", ["1"]]]',
        b'[null, ["eval", ["1"]]]',
        b'[{"array": ["O", [1]]}, null]',
        b'[{"array": ["float32", [9]]}, null]',
        b'[{"array": []}, null]',
        b"[null, []]",
        b"[" * 100_000,
    ],
)
def test_c77_a_message_runs_nothing(head, capsys):
    """What was unpickled ran whatever the sender wrote, and whoever came first was the sender."""
    for message in (len(head).to_bytes(8) + head, pickle.dumps(Runs())):
        with pytest.raises(ValueError):
            unpack(message)
    assert not capsys.readouterr().out
    with pytest.raises(TypeError, match="cannot be sent"):
        pack(Runs())


def test_c77_a_sealed_message_opens_in_its_place_alone():
    message = pack(KEY)
    sender, receiver = Seal(SECRET, b"session"), Seal(SECRET, b"session")
    place, here = sender.next(), receiver.next()
    sealed = sender.close(place, 0, message)
    assert receiver.open(here, 0, sealed) == message
    assert KEY.tobytes() in message and KEY.tobytes() not in sealed
    changed = bytearray(sealed)
    changed[-1] ^= 1
    later = receiver.next()
    for key, where, rank, sent in [
        (SECRET, here, 0, bytes(changed)),
        (SECRET, here, 1, sealed),  # another sender
        (SECRET, later, 0, sealed),  # sent again
        (SECRET, Seal(SECRET, b"later").next(), 0, sealed),  # of an earlier session
        (b"t" * 32, here, 0, sealed),
        (None, here, 0, sealed),
        (SECRET, here, 0, Seal(None, b"session").close(here, 0, message)),
    ]:
        with pytest.raises(RuntimeError, match="not what its sender sealed"):
            Seal(key).open(where, rank, sent)
    again = sender.close(sender.next(), 0, message)
    assert again[_messages.TAG :] != sealed[_messages.TAG :]  # no stream is used twice


def test_c77_a_secret_is_long_and_its_file_closed_to_others(tmp_path, monkeypatch):
    assert _messages.secret() is None
    monkeypatch.setenv(_messages.SECRET, "a secret that is shared")
    by_word = _messages.secret()
    file = tmp_path / "secret"
    file.write_text("a secret that is shared\n")
    file.chmod(0o644)
    monkeypatch.setenv(_messages.SECRET_FILE, str(file))
    with pytest.raises(ValueError, match="of mode 600"):
        _messages.secret()
    file.chmod(0o600)
    assert _messages.secret() == by_word
    file.write_text("short")
    with pytest.raises(ValueError, match="openssl rand"):
        _messages.secret()
    monkeypatch.setattr(os, "geteuid", lambda: file.stat().st_uid + 1)
    monkeypatch.setattr(
        os, "fstat", lambda _: os.stat_result([0o100600, 0, 0, 1, 5, 0, 0, 0, 0, 0])
    )
    with pytest.raises(ValueError, match="yours, or root's"):
        _messages.secret()


@pytest.mark.ci
@pytest.mark.parametrize(
    ("secret", "words"),
    [
        ('f"the secret of process {jax.process_index()}"', "not the same in every process"),
        ('"the secret of one alone" * jax.process_index()', "some processes of this run have"),
    ],
)
def test_c77_processes_of_different_secrets_ask_nothing(secret, words):
    program = f"""
import os
os.environ["DPJAX_SECRET"] = {secret}
try:
    dpjax.solve(algorithm("dp-gd"), shard((x, y)), key=dpjax.random_key())
except (RuntimeError, ValueError) as error:
    found["refused"] = str(error)
"""
    for found in on_processes(program):
        assert words in found["refused"]
