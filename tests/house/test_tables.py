"""Pages have the tables of the registry and of wrappers.

``python tests/house/test_tables.py --write`` writes them.
"""

import pathlib
import re
import sys

import pytest

# Where this is run as a script: this checkout, whichever dpjax is installed, and what tests share.
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "harness"))
sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

import wrappers
from factories import refuses

import dpjax
from dpjax.algorithms import ALL
from dpjax.auditing import AUDITS

ROOT = pathlib.Path(__file__).parents[2]
# Marker of a table -> its head, and what a row says of an entry.
HEADS = {
    "algorithms": ("factory, on the command line", "what a step asks"),
    "audits": ("audit", "budget", "n, p", "runs", "least share of the claim"),
    "refusals": ("algorithm", "relation", "accountants"),
    "wrappers": ("`optax.`", "around a private chain", "after the noise"),
}


def factory(entry):
    """Where users find the factory."""
    return entry.factory.__name__


def algorithms():
    for entry in ALL.values():
        title = f"`{factory(entry)}`" + ("" if entry.one_release else f", `{entry.name}`")
        yield title, entry.asks


def audits():
    for name, entry in ALL.items():
        it, of = entry.scenario, AUDITS[name]
        budget, sizes = f"({it.epsilon:g}, {it.delta:g})", f"{it.data_size}, {it.dimension}"
        yield f"`{name}`", budget, sizes, f"{of.runs:,}", f"{of.gate:.2f}"


def refusals():
    for name in dpjax.ALGORITHMS:
        refused = refuses(name)
        for relation in dict.fromkeys(relation for relation, _ in refused):
            of = ", ".join(f'"{other}"' for at, other in refused if at == relation)
            yield f"`{name}`", f'"{relation}"', of


def table(name):
    rows = {
        "algorithms": algorithms,
        "audits": audits,
        "refusals": refusals,
        "wrappers": wrappers.printed,
    }[name]()
    lines = [HEADS[name], ["---"] * len(HEADS[name]), *rows]
    drawn = "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
    return drawn.replace(" --- ", "---").replace("---||", "---|")


def filled(text):
    """The text of a page with its tables made anew."""
    return re.sub(
        r"(<!-- (\w+): made by .* -->\n)(?s:.*?)(?=<!-- end -->)",
        lambda found: found[1] + table(found[2]),
        text,
    )


PAGES = {"docs/algorithms.md": len(HEADS) - 1, "docs/optax.md": 1}


@pytest.mark.parametrize("page", PAGES)
def test_the_tables_are_those_of_the_registry(page):
    text = (ROOT / page).read_text()
    assert text.count("<!-- end -->") == PAGES[page]
    assert filled(text) == text, "run python tests/house/test_tables.py --write"


@pytest.mark.parametrize("name", ALL)
def test_the_factory_is_where_the_table_says(name):
    assert getattr(dpjax, factory(ALL[name])) is ALL[name].factory


if __name__ == "__main__":
    for page in PAGES:
        text = (ROOT / page).read_text()
        if sys.argv[1:] == ["--write"]:
            (ROOT / page).write_text(filled(text))
        print(page, "is as made" if filled(text) == text else "has other tables")
