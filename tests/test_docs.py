"""The pages of docs: their code runs, top to bottom, and their links lead somewhere."""

import pathlib
import re

import pytest

DOCS = pathlib.Path(__file__).parents[1] / "docs"
PAGES = sorted(DOCS.glob("*.md"))
CODE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WITH_CODE = [page for page in PAGES if CODE.search(page.read_text())]


def name_of(page):
    return page.name


@pytest.mark.parametrize("page", WITH_CODE, ids=name_of)
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = page.read_text()
    names = {"__name__": page.stem}
    for block in CODE.finditer(text):
        before = text[: block.start(1)].count("\n")  # so that a traceback names the page's line
        exec(compile("\n" * before + block[1], page, "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_files(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target
