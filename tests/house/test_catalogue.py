"""Every row of the catalogue of failures has a test that carries its number, or a line why not."""

import ast
import functools
import pathlib
import re

import pytest

TESTS = pathlib.Path(__file__).parents[1]
ROWS = range(1, 79)


def numbers(name):
    """The rows that the name of a test carries: test_c9_c10_... carries 9 and 10."""
    found = re.match(r"test_((?:c\d+_)+)", name)
    return {int(number) for number in re.findall(r"\d+", found[1])} if found else set()


@functools.cache
def written():
    names = set()
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                names.add(node.name)
    return names


def lines(text):
    """Yields (row, what is said of it) for each line of the table."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) > 3 and cells[1].isdigit():
            yield int(cells[1]), cells[3]


def faults(text, names):
    """What is wrong with the table, given the tests there are."""
    said = list(lines(text))
    found = []
    if [row for row, _ in said] != list(ROWS):
        found.append("every row has one line, in order")
    for row, cell in said:
        if re.match(r"cannot occur: .{20}", cell):
            continue
        named = re.findall(r"`(\w+)`", cell)
        if not named:
            found.append(f"row {row} has neither a test nor a reason")
        for name in named:
            if name not in names:
                found.append(f"row {row}: there is no {name}")
            if row not in numbers(name):
                found.append(f"row {row}: its number is not in {name}")
    tested = dict(said)
    for name in names:
        for row in numbers(name):
            if row not in tested or tested[row].startswith("cannot occur:"):
                found.append(f"{name} tests row {row}, and the table does not say so")
    return found


TABLE = (TESTS / "house" / "catalogue.md").read_text()


def test_every_row_is_tested_or_explained():
    assert faults(TABLE, written()) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("| 20 | ", "| 21 | "),
        ("test_c20_bad_numbers_are_named", "test_c20_nobody_wrote_this"),
        ("test_c20_bad_numbers_are_named", "test_c8_bad_keys"),
        ("`test_c20_bad_numbers_are_named`", ""),
        ("`test_c20_bad_numbers_are_named`", "cannot occur: no."),
        ("`test_c20_bad_numbers_are_named`", "cannot occur: but a test of that number is there"),
    ],
)
def test_a_planted_gap_is_found(old, new):
    assert old in TABLE
    assert faults(TABLE.replace(old, new), written())
