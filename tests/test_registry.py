"""A new algorithm is one file and one row of the registry: everything else is derived from them.

What is written by a command is then made anew: the tables by ``tests/test_tables.py --write``, the
pinned numbers by ``tests/test_pinned_numbers.py --write``.
"""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
FILE = '''"""DP-GD at half the step size, for the test that adds it."""

from typing import Any

from dpjax.accounting import PrivacyBudget
from dpjax.algorithms.descent import Descent
from dpjax.algorithms.gradient_descent import dp_gradient_descent
from dpjax.objectives import Objective


def dp_slow_descent(
    objective: Objective,
    budget: PrivacyBudget,
    *,
    data_size: int,
    dimension: int,
    steps: int | None = None,
    step_size: float = 0.5,
    clip_norm: float | None = None,
    accountant: str = "pld",
) -> Descent:
    """Returns DP-GD at half of ``step_size``."""
    return dp_gradient_descent(
        objective,
        budget,
        data_size=data_size,
        dimension=dimension,
        steps=steps,
        step_size=step_size / 2,
        clip_norm=clip_norm,
        accountant=accountant,
        certify=None,
    )
'''
IMPORT = "from dpjax.algorithms.slow_descent import dp_slow_descent\n"
ROW = """    Entry(
        name="dp-slow",
        factory=dp_slow_descent,
        asks="every record, for a gradient, of which half is taken",
        example=Example(plain=CLIP),
        scenario=Scenario(
            loss="alternating", settings={"steps": 20, "step_size": 2.0, "clip_norm": 1e-3}
        ),
    ),
"""
# What the suites say of the new algorithm: contract, command line, audits, planted bugs, tables.
DERIVED = [
    "test_contract.py::test_factories_share_one_signature[dp-slow]",
    "test_contract.py::test_epsilon_is_within_the_budget[1.0-pld-zero_out-dp-slow]",
    "test_contract.py::test_a_pytree_of_parameters_and_a_plain_loss[dp-slow]",
    "test_cli.py::test_calibrate_gives_the_epsilon_back[dp-slow]",
    "test_cli.py::test_the_help_says_what_each_algorithm_asks[dpjax run]",
    "test_checkpoint.py::test_neither_checkpoint_nor_ledger_changes_the_result[dp-slow]",
    "test_auditing.py::test_every_audit_claims_what_its_mechanism_says[dp-slow]",
    "test_auditing.py::test_every_algorithm_is_attacked_as_a_whole",
    "test_mutants.py::test_an_audit_stands[dp-slow]",
    "test_tables.py::test_the_tables_are_those_of_the_registry[README.md]",
    "test_tables.py::test_the_tables_are_those_of_the_registry[docs/algorithms.md]",
    "test_tables.py::test_the_factory_is_where_the_table_says[dp-slow]",
]


@pytest.fixture
def copy(tmp_path):
    """The repository with one file and one row more."""
    for folder in ("dpjax", "tests", "docs"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    for file in ("README.md", "pyproject.toml"):
        shutil.copy(ROOT / file, tmp_path)
    room = tmp_path / "dpjax" / "algorithms"
    (room / "slow_descent.py").write_text(FILE)
    registry = (room / "registry.py").read_text()
    with_row = registry.replace('\n)\n"""All of', f'\n{ROW})\n"""All of')
    with_import = with_row.replace(
        "from dpjax.algorithms.spider", f"{IMPORT}from dpjax.algorithms.spider"
    )
    assert len(with_import) == len(registry) + len(ROW) + len(IMPORT)
    (room / "registry.py").write_text(with_import)
    return tmp_path


def python(folder, *arguments):
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_new_algorithm_is_one_file_and_one_row(copy):
    written = python(copy, "tests/test_tables.py", "--write")
    assert written.returncode == 0, written.stderr
    assert "| `dp_slow_descent`, `dp-slow` | every record, " in (copy / "README.md").read_text()
    nodes = [f"tests/{node}" for node in DERIVED]
    done = python(copy, "-m", "pytest", "-p", "no:cacheprovider", *nodes)
    assert done.returncode == 0, done.stdout
    assert f"{len(DERIVED)} passed" in done.stdout
