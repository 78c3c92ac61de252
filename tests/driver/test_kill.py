"""The kill test in short; the whole is ``python tests/harness/kill.py --runs 30 --kills 50``."""

import os
import pathlib
import subprocess
import sys

import pytest


@pytest.mark.ci
def test_killed_runs_end_as_if_they_had_not_been():
    """Six kills at random and one at every named point; the planted bugs must be noticed.

    A process of its own, because it forks, which JAX in use does not survive.
    """
    script = pathlib.Path(__file__).parents[1] / "harness" / "kill.py"
    root = str(script.parent.parent)
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    # Thousands of steps are run for one compiled program.
    kept = {k: v for k, v in os.environ.items() if k != "JAX_DISABLE_MOST_OPTIMIZATIONS"}
    killing = subprocess.run(
        [sys.executable, str(script), "--runs", "4", "--kills", "6", "--compile-once"],
        capture_output=True,
        text=True,
        env=kept | {"PYTHONPATH": path},
    )
    assert killing.returncode == 0, killing.stdout + killing.stderr
    assert "6 kills at random" in killing.stdout
