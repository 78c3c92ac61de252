"""The public face: what ``dir`` shows, and what can be had without waiting for JAX."""

import importlib.metadata
import runpy
import subprocess
import sys

import pytest

import dpjax
from dpjax.cli.main import COMMANDS, parser

HELP = """
import sys
from dpjax.cli import main
assert main([]) == 0
for words in (["--help"], ["-h"], ["no-such-command"]):
    try:
        main(words)
    except SystemExit as stop:
        assert stop.code == (0 if words[0].startswith("-") else 2)
    else:
        raise AssertionError(words)
slow = {"jax", "numpy", "scipy", "flax", "optax", "rich"} & set(sys.modules)
assert not slow, slow
"""


def test_help_needs_no_jax_and_is_what_the_bare_command_prints():
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, *others = done.stdout.split("usage: dpjax")[1:]
    assert len(others) == 2 and set(others) == {first}
    assert all(f"  {name} " in first or f"  {name}\n" in first for name in COMMANDS)
    assert "invalid choice: 'no-such-command'" in done.stderr


def test_the_help_lists_the_commands_there_are():
    (commands,) = (one for one in parser()._actions if one.dest == "==SUPPRESS==")
    assert list(commands.choices) == list(COMMANDS)


def test_dir_shows_the_public_face_and_nothing_else():
    assert dir(dpjax) == sorted(dpjax.__all__) and not {"Any", "importlib"} & set(dir(dpjax))
    assert all(getattr(dpjax, name) is not None for name in dir(dpjax))
    assert set(dpjax._ROOM_OF) < set(dpjax.__all__)


def test_the_version_is_printed_without_jax():
    code = (
        "import sys\n"
        "from dpjax.cli import main\n"
        "try:\n    main(['--version'])\nexcept SystemExit as stop:\n    assert stop.code == 0\n"
        "assert not {'jax', 'numpy'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"dpjax {importlib.metadata.version('dpjax')}\n"


def test_windows_is_refused_in_one_sentence(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(ImportError, match=r"on Windows, run it in WSL 2\.$"):
        runpy.run_path(dpjax.__file__)


def test_the_version_is_known_without_jax():
    code = "import sys, dpjax; print(dpjax.__version__); assert 'jax' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == dpjax.__version__ == importlib.metadata.version("dpjax")
