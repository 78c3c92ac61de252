"""The built site: where the search leads, what links lead to, what a page loads, formulas.

They need the extra ``docs``, which CI has: all carry its marker.
"""

import collections
import html.parser
import json
import pathlib
import re
import subprocess
import sys
import tomllib
import urllib.parse

import pytest

ROOT = pathlib.Path(__file__).parents[2]
pytestmark = pytest.mark.ci
# Attributes by which a page loads something.
LOADS = {"script": "src", "img": "src", "link": "href", "source": "src", "iframe": "src"}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site, as it is published."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True)
    return folder


class Page(html.parser.HTMLParser):
    """What a page links to, loads, and can be linked to at."""

    def __init__(self, text):
        super().__init__()
        self.links, self.loads, self.ids, self.tags = [], [], set(), collections.Counter()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1
        attributes = dict(attrs)
        self.ids |= {attributes[name] for name in ("id", "name") if attributes.get(name)}
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])
        if attributes.get(LOADS.get(tag)) and attributes.get("rel") not in ("canonical", "edit"):
            self.loads.append(attributes[LOADS[tag]])


def pages(site):
    return {path: Page(path.read_text()) for path in site.rglob("*.html")}


def broken(site, found):
    """Links that lead to no file of the site or to no place on its page."""
    for path, page in found.items():
        for link in [*page.links, *page.loads]:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            place = urllib.parse.unquote(parts.path)
            base = site if place.startswith("/") else path.parent
            target = (base / place.lstrip("/")).resolve() if place else path
            target = target / "index.html" if target.is_dir() else target
            anchor = urllib.parse.unquote(parts.fragment)
            there = target.is_file() and (
                not anchor or target.suffix != ".html" or anchor in found[target].ids
            )
            if not there and anchor != "__codelineno":
                yield path.relative_to(site), link


def test_links_lead_somewhere_and_nothing_is_loaded_from_elsewhere(site):
    found = pages(site)
    assert len(found) > 50
    assert list(broken(site, found)) == []
    outside = re.compile(r"(https?:)?//")
    assert [load for page in found.values() for load in page.loads if outside.match(load)] == []
    # Planted.
    path = site / "index.html"
    planted = Page('<a href="quickstrat/">a</a><a href="quickstart/#nowhere">b</a>')
    assert len(list(broken(site, found | {path: planted}))) == 2


def test_the_head_has_version_and_repository(site):
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for page in ("index.html", "networks/index.html"):
        header = re.search(r"<header.*?</header>", (site / page).read_text(), re.DOTALL)[0]
        assert 'title="Repository"' in header and f">{version}<" in header


def test_formulas_are_typeset_and_pictures_open_in_full(site):
    privacy = (site / "privacy/index.html").read_text()
    assert Page(privacy).tags["math"] >= 5 and "$$" not in privacy
    assert 'class="glightbox"' in privacy
    assert "$$" not in (site / "networks/index.html").read_text()


class Search:
    """The theme's search, as far as it decides on the order: its index, fields and boosts."""

    def __init__(self, index):
        from lunr.builder import Builder
        from lunr.stop_word_filter import stop_word_filter

        self.parents = {doc["location"]: doc["location"].partition("#")[0] for doc in index["docs"]}
        separator = index["config"]["separator"]
        builder = Builder()
        builder.pipeline.add(stop_word_filter)
        builder.ref("location")
        for name, field in index["config"]["fields"].items():
            builder.field(name, boost=field["boost"])
        for doc in index["docs"]:
            text = re.sub(r"<[^>]+>", " ", doc["text"])
            words = [re.sub(separator, " ", field) for field in (doc["title"], text)]
            fields = dict(zip(("title", "text", "tags"), (*words, ""), strict=True))
            builder.add(fields | {"location": doc["location"]}, {"boost": doc.get("boost", 1)})
        self.index = builder.build()

    def __call__(self, words):
        """Pages in the order in which they are shown."""
        terms = words.split()
        scores = {}
        for result in self.index.search(" ".join(f"{term}*" for term in terms)):
            met = [
                any(word.startswith(term) for word in result["match_data"].metadata)
                for term in terms
            ]
            whole = result["ref"] == self.parents[result["ref"]]
            scores[result["ref"]] = result["score"] * (1 + (whole + sum(met) / len(terms)) ** 2)
        order = sorted(scores, key=scores.get, reverse=True)
        return list(dict.fromkeys(self.parents[ref].strip("/") for ref in order)), order


@pytest.fixture(scope="module")
def search(site):
    return Search(json.loads((site / "search" / "search_index.json").read_text()))


@pytest.mark.parametrize(
    ("words", "lead_to"),
    [
        ("pandas", "own-table"),
        ("missing values", "own-table"),
        ("batch size", "networks"),
        ("learning rate", "networks"),
        ("multiclass", "scikit-learn"),
        ("save model", "quickstart"),
    ],
)
def test_the_search_leads_to_guides(search, words, lead_to):
    shown, _ = search(words)
    assert shown[0] == lead_to, shown[:5]
    assert not any(page.startswith(("gallery", "changelog", "api")) for page in shown[:2])
