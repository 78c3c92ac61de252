"""The papers' code uses dpjax as a stranger does, and stays small."""

import ast
import importlib
import pathlib

import pytest

from benchmarks.papers import PAPERS
from dpjax.cli import reproduce

FOLDER = pathlib.Path(__file__).parents[1]
FILES = sorted(path for path in FOLDER.rglob("*.py") if "tests" not in path.parts)
LINES = 5_228  # the letter of the papers: their own rows, tests of significance
# What these files take from files of ``dpjax.algorithms`` though no room names it as public: it
# would have to become so for a stranger to write them.
BESIDE = {
    "convex.py": ["base"],
    "exact_anchor.py": ["base"],
    "noise.py": ["base"],
    "spiders.py": ["base"],
}


def not_public(source):
    """What a file imports of dpjax that no room names as public."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] == "dpjax":
            public = importlib.import_module(node.module)
            names = getattr(public, "__all__", [n for n in vars(public) if not n.startswith("_")])
            private = node.module.count(".") > 1 or "._" in node.module
            yield from (a.name for a in node.names if private or a.name not in names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_imports_public_names_and_says_what_it_is(path):
    source = path.read_text()
    assert list(not_public(source)) == BESIDE.get(path.name, [])
    # The variants are algorithms with a guarantee.
    assert path.parent != FOLDER or "NOT PRIVATE" in source.splitlines()[0]
    assert len(source.splitlines()) <= 450
    for node in ast.walk(ast.parse(source)):
        assert not isinstance(node, ast.FunctionDef) or node.end_lineno - node.lineno < 75


def test_private_names_are_noticed():
    planted = "from dpjax._program import trace\nfrom dpjax.driver import loop"
    assert list(not_public(planted)) == ["trace", "loop"]
    assert list(not_public("from dpjax.driver.loop import solve")) == ["solve"]


def test_the_papers_are_small():
    assert sum(len(path.read_text().splitlines()) for path in FILES) <= LINES


def test_the_command_of_the_package_knows_the_papers():
    assert tuple(PAPERS) == reproduce._PAPERS
