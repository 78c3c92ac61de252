"""A new algorithm is one file and one row of the registry: everything else is derived from them.

What is written by a command is then made anew: the tables by ``tests/house/test_tables.py
--write``, the pinned numbers by ``tests/contracts/test_pinned_numbers.py --write``.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import textwrap

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "your-own.md").read_text()
# The file and the row that docs/your-own.md tells its readers to add.
FILE = re.search(r"<!-- skeleton: heavy_ball.py -->\n```python\n(.*?)```", PAGE, re.DOTALL)[1]
ROW = re.search(r"^row = (Entry\(.*?^\))$", PAGE, re.DOTALL | re.MULTILINE)[1]
IMPORT = "from dpjax.algorithms.heavy_ball import heavy_ball\n"
# What the suites say of the new algorithm: contract, command line, audits, planted bugs, tables.
DERIVED = [
    "test_contract.py::test_factories_share_one_signature[heavy-ball]",
    "test_contract.py::test_epsilon_is_within_the_budget[1.0-pld-zero_out-heavy-ball]",
    "test_contract.py::test_a_pytree_of_parameters_and_a_plain_loss[heavy-ball]",
    "test_contract.py::test_the_result_has_the_dtype_of_the_parameters_whatever_the_data"
    "[heavy-ball-False]",
    "test_cli.py::test_calibrate_gives_the_epsilon_back[heavy-ball]",
    "test_cli.py::test_the_help_says_what_each_algorithm_asks[dpjax run]",
    "test_checkpoint.py::test_neither_checkpoint_nor_ledger_changes_the_result[heavy-ball]",
    "test_auditing.py::test_every_audit_claims_what_its_mechanism_says[heavy-ball]",
    "test_auditing.py::test_every_algorithm_is_attacked_as_a_whole",
    "test_mutants.py::test_an_audit_refutes_the_bug_of_its_row[heavy-ball]",
    "test_tables.py::test_the_tables_are_those_of_the_registry[docs/algorithms.md]",
    "test_tables.py::test_the_factory_is_where_the_table_says[heavy-ball]",
]


@pytest.fixture
def copy(tmp_path):
    """The repository with one file and one row more."""
    for folder in ("dpjax", "tests", "docs"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    room = tmp_path / "dpjax" / "algorithms"
    (room / "heavy_ball.py").write_text(FILE)
    registry = (room / "registry.py").read_text()
    row = textwrap.indent(f"{ROW},\n", "    ")
    with_row = registry.replace('\n)\n"""All algorithms', f'\n{row})\n"""All algorithms')
    with_import = with_row.replace(
        "from dpjax.algorithms.mirror", f"{IMPORT}from dpjax.algorithms.mirror"
    )
    assert len(with_import) == len(registry) + len(row) + len(IMPORT)
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


@pytest.mark.ci
def test_a_new_algorithm_is_one_file_and_one_row(copy):
    written = python(copy, "tests/house/test_tables.py", "--write")
    assert written.returncode == 0, written.stderr
    page = (copy / "docs" / "algorithms.md").read_text()
    assert "| `heavy_ball`, `heavy-ball` | every record, " in page
    names = [node.split("::") for node in DERIVED]
    nodes = [f"{next(copy.glob(f'tests/*/{file}'))}::{test}" for file, test in names]
    done = python(copy, "-m", "pytest", "-m", "ci or not ci", "-p", "no:cacheprovider", *nodes)
    assert done.returncode == 0, done.stdout
    assert f"{len(DERIVED)} passed" in done.stdout
