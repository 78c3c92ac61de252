"""What ``show`` prints and a report holds: all that was released, nothing else, and it is safe."""

import csv
import dataclasses
import html.parser
import json
import pathlib
import re
import tempfile
import tomllib

import jax
import numpy as np
import pytest
from factories import FACTORIES, make
from scipy import stats

import dpjax
from dpjax.accounting import Event, Ledger, NumberOfTrials, Release, SearchRelease
from dpjax.algorithms import ErrorBars
from dpjax.cli import main
from dpjax.datasets import Preprocessing, load
from dpjax.datasets.encoders import Numeric
from dpjax.display.cards import ceil
from dpjax.reporting import facts_of, officer, page, pictures
from dpjax.results import guarantee
from dpjax.results.coefficients import coefficients
from dpjax.results.guarantee import describe
from dpjax.results.prediction import Score

EVIL = '<script>alert("1")</script>'
NO, YES = "no<b>", "yes&amp;"
# Cells that no schema declares, and that nobody may read in what is released.
SECRETS = ["Guadeloupe", "37.4121", "88.4242"]
N = 400
ONE_PASS = "each in at most one answer"
SCHEMA = {
    "quoted_line_breaks": False,
    "label": {"column": "y", "classes": [NO, YES]},
    "columns": {
        EVIL: {"bounds": [0, 100]},
        "place": {"levels": ["oslo", "a & <i>b"], "other": True},
    },
}
LABELS = {
    "two": SCHEMA["label"],
    "three": {"column": "k", "classes": ["x", EVIL, "z"]},
    "number": {"column": "rent", "bounds": [0, 100]},
}
OBJECTIVES = {
    "two": dpjax.objectives.logistic_l2(1e-2),
    "three": dpjax.objectives.softmax(3, 3e-2),
    "number": dpjax.objectives.least_squares(1e-2),
}


def table(folder):
    """A table with secret cells, in a file."""
    rng = np.random.default_rng(0)
    size = rng.uniform(0, 100, N).round(2)
    place = rng.choice(["oslo", "a & <i>b", SECRETS[0]], N)
    rent = np.clip(size * 0.6 + 10 * (place == "oslo") + rng.normal(0, 5, N), 0, 100).round(2)
    size[0], rent[0] = SECRETS[1:]
    y = np.where(size + rng.normal(0, 20, N) > 50, YES, NO)
    k = np.array(["x", EVIL, "z"])[np.digitize(size, [33, 66])]
    with open(folder / "t.csv", "w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow([EVIL, "place", "rent", "y", "k"])
        lines.writerows(zip(size.tolist(), place, rent.tolist(), y, k, strict=True))
    return folder / "t.csv"


def trained(path, label, key=None, **more):
    ignored = {held["column"]: {"ignore": True} for name, held in LABELS.items() if name != label}
    schema = SCHEMA | {"label": LABELS[label], "columns": SCHEMA["columns"] | ignored}
    data, objective = load(path, schema=schema), OBJECTIVES[label]
    algorithm = dpjax.dp_trust_region(
        objective,
        dpjax.PrivacyBudget(8.0, 1e-4),
        data_size=N,
        dimension=objective.parameters(data.dimension),
        **{"steps": 1 if label == "number" else 3} | more,
    )
    return dpjax.solve(algorithm, data, key=dpjax.random_key() if key is None else key)


@pytest.fixture(scope="module")
def solutions(tmp_path_factory):
    """A training of each kind of label, without the intervals that depend on its noise."""
    path = table(tmp_path_factory.mktemp("table"))
    made = {name: trained(path, name) for name in LABELS}
    return {name: dataclasses.replace(s, error_bars=bars_of(s.params)) for name, s in made.items()}


def bars_of(params, **more):
    given = {
        "estimate": np.asarray(params, np.float64) + 0.125,
        "covariance": np.eye(len(params)) / 64,
        "shift": 0.0,
        "travelled": 0.0,
        "interior": True,
        "definite": True,
        "unclipped": True,
    }
    return ErrorBars(**given | more)


class Page(html.parser.HTMLParser):
    """Elements, attributes and text of a page, whose elements end in order."""

    def __init__(self, source):
        super().__init__()
        self.source, self.open, self.words = source, [], []
        self.elements, self.attributes = set(), []
        assert source.startswith("<!DOCTYPE html>\n<html lang=")
        self.feed(source)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.elements.add(tag)
        self.attributes += attrs
        if tag not in ("meta", "wbr"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.add(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.words.append(data)

    @property
    def text(self):
        return one_line("".join(self.words))


def one_line(text):
    return " ".join(str(text).split())


def page_of(solution, folder, **more):
    dpjax.report(solution, folder / "r.html", **more)
    assert sorted(file.name for file in folder.iterdir()) == ["r.html"]
    return Page((folder / "r.html").read_text(encoding="utf-8"))


# The page


@pytest.mark.parametrize("label", LABELS)
def test_a_page_holds_what_was_released(label, solutions, tmp_path):
    solution = solutions[label]
    found, held = page_of(solution, tmp_path), solution.coefficients()
    facts = facts_of(solution)
    assert one_line(solution.guarantee()) in found.text
    for words in (facts.claim, f"at most {facts.factor} times what it is", held.caption):
        assert one_line(words) in found.text
    assert f"norm at most {ceil(facts.certificate['gradient_norm_upper'])}" in found.text
    for name, _, values, ends in held.rows():
        assert one_line(name) in found.text
        for at, value in enumerate(values):
            assert f"{value:+.4g}" in found.text
            assert f"{ends[0, at]:.4g} to {ends[1, at]:.4g}" in found.text
    assert "gradient and hessian" in found.text
    assert f"{solution.event.releases[0].noise_multiplier:.5g}" in found.text
    assert "NOT FOR RELEASE" not in found.text and "NOT PRIVATE" not in found.text
    assert "dpjax predict model new.csv --out predictions.csv" in found.text
    assert {"whisker", "dot"} <= {value for key, value in found.attributes if key == "class"}
    # A saved model makes the same page, which says that a file was read.
    dpjax.save(tmp_path / "r.html", solution)
    saved = dpjax.load(tmp_path / "r.html")
    added = saved.guarantee().removesuffix(saved.text)
    assert "the file claims:" in added and saved.text == solution.guarantee()
    assert found.source.count(f"<dd>{saved.description.date}</dd>") == 1
    assert page_of(saved, tmp_path).source.replace(added, "") == found.source
    assert "Where several records are of one person, each is protected by itself" in found.text


@pytest.mark.parametrize("label", LABELS)
def test_a_page_is_one_file_whose_names_are_text(label, solutions, tmp_path):
    found = page_of(solutions[label], tmp_path, title=EVIL, model=f"{EVIL} & 'model'")
    assert not found.elements & {"script", "link", "img", "iframe", "object", "base", "i", "form"}
    keys = {key for key, _ in found.attributes}
    assert not keys & {"src", "href", "xlink:href", "action", "data", "srcset"}
    assert not any(key.startswith("on") for key in keys)
    for loaded in ("http://", "https://", "url(", "@import"):
        assert loaded not in found.source
    assert ("http-equiv", "Content-Security-Policy") in found.attributes
    assert EVIL in found.text and "a & <i>b" in found.text and EVIL not in found.source


def test_neither_key_nor_records_are_in_what_is_written(tmp_path, capsys):
    key, folder = jax.random.key(987_654_321), tmp_path / "page"
    folder.mkdir()
    solution = trained(table(tmp_path), "two", key=key)
    dpjax.save(tmp_path / "model", solution)
    found = page_of(solution, folder)
    assert main(["show", str(tmp_path / "model"), "--json", str(tmp_path / "json")]) == 0
    saved = (tmp_path / "model").read_bytes().decode("latin-1")
    shown = capsys.readouterr().out + (tmp_path / "json").read_text()
    for secret in (*SECRETS, "987654321", "987,654,321"):
        assert not any(secret in text for text in (found.source, shown, saved))
    # Noise that a seed may make is said before all else.
    assert found.text.index("NOT FOR RELEASE") < found.text.index("differentially private")
    assert shown.index("NOT FOR RELEASE") < shown.index("differentially private")


def test_exact_values_are_marked_and_make_the_page_one_that_is_not_for_release(solutions, tmp_path):
    exact = {"exact_accuracy": 0.8125, "exact_objective": None}
    found = page_of(solutions["two"], tmp_path, exact=exact)
    assert "NOT FOR RELEASE: this page holds exact values" in found.text
    assert "Exact values: NOT PRIVATE" in found.text and "0.8125" in found.text
    assert "exact_objective" not in found.text
    nothing = page_of(solutions["two"], tmp_path, exact={"exact_accuracy": None})
    assert "NOT FOR RELEASE" not in nothing.text


@pytest.mark.parametrize(
    ("bars", "why"),
    [
        ({"interior": False}, "the last step was cut off by the trust region"),
        ({"shift": 9.0}, "the loss is curved too much over the range of the noise"),
        (None, "they need the gradient and the Hessian of all records at the last step"),
    ],
)
def test_where_there_are_no_intervals_the_reason_is_said(bars, why, solutions, tmp_path, capsys):
    held = solutions["two"]
    bars = None if bars is None else bars_of(held.params, **bars)
    solution = dataclasses.replace(held, error_bars=bars)
    dpjax.save(tmp_path / "r.html", solution)
    assert main(["show", str(tmp_path / "r.html")]) == 0
    found = page_of(solution, tmp_path)
    for text in (found.text, one_line(capsys.readouterr().out)):
        assert f"No intervals for the effect of privacy noise: {why}" in text
    assert "whisker" not in [value for key, value in found.attributes if key == "class"]


def test_what_has_no_coefficients_says_so(solutions, tmp_path):
    dpjax.save(tmp_path / "r.html", solutions["two"])
    network = dataclasses.replace(dpjax.load(tmp_path / "r.html"), score=Score())
    found = page_of(network, tmp_path)
    assert "The model is not a linear one" in found.text
    assert "The file of a network holds its parameters, not its code" in found.text


def test_a_search_says_how_its_training_was_chosen(solutions, tmp_path):
    dpjax.save(tmp_path / "r.html", solutions["two"])
    saved = dpjax.load(tmp_path / "r.html")
    search = SearchRelease.of([saved.event.releases], NumberOfTrials(3, 7), settings=12)
    found = page_of(dataclasses.replace(saved, event=Event((search,), "zero_out")), tmp_path)
    assert "private random search over 12: this training had the largest score" in found.text
    assert "at most 7." in found.text and "gradient and hessian" in found.text


@pytest.mark.parametrize("name", FACTORIES)
def test_the_releases_of_every_algorithm_have_a_row(name, solutions, tmp_path):
    event = make(name, data_size=N, dimension=3, steps=4).event
    dpjax.save(tmp_path / "r.html", solutions["two"])
    found = page_of(dataclasses.replace(dpjax.load(tmp_path / "r.html"), event=event), tmp_path)
    rows = found.text.partition("standard deviation of noise")[2].partition("Coefficients")[0]
    for part in (part for release in event.releases for part in release.parts()):
        assert part.name.replace("_", " ") in rows
        assert f"{part.noise_multiplier:.5g}" in rows
        assert part.ends_early == (ONE_PASS in rows)
        assert not part.is_subsampled or f"probability {part.sampling_probability:.4g}" in rows


def test_without_matplotlib_a_page_has_its_numbers_and_says_what_draws(
    solutions, tmp_path, monkeypatch
):
    monkeypatch.setattr(page.plotting, "is_available", lambda: False)
    found = page_of(solutions["two"], tmp_path)
    assert "svg" not in found.elements and "python -m pip install 'matplotlib'" in found.text
    assert f"{solutions['two'].params[0]:+.4g}" in found.text


def test_words_are_broken_joined_and_escaped_where_they_may_be():
    assert str(page._breakable("soil_type=<1>")) == "soil_<wbr>type=<wbr>&lt;1&gt;"
    assert page._escaped("a|b <i>\n") == r"a\|b \<i\>"
    long = "x" * 99
    assert officer.unfilled(f"{long}\nmore\nNext.") == f"{long} more\nNext."
    released = "Released:\n  - one,\n    with its noise\n  - two"
    assert officer.unfilled(released) == "Released:\n  - one, with its noise\n  - two"
    lines = guarantee._lines("A claim\nof words.\n\n\n- an item\n- another\n  one")
    filled = [guarantee._filled(line) for line in lines]
    assert filled == ["A claim of words.", "  - an item", "  - another one"]


@pytest.mark.parametrize("names", [("no", "yes"), tuple(f"a long level {i}" for i in range(9))])
def test_a_confusion_matrix_has_a_field_for_each_count(names):
    counts = 100 * np.eye(len(names)) - 7
    drawn = pictures.matrix(counts, names)
    assert drawn.count("fill: var(--c0)") == counts.size
    assert drawn.count(">93<") == (2 if len(names) == 2 else 0)  # of many there is no room
    assert pictures.matrix(0 * counts, names).count("fill: var(--c0)") == counts.size


def test_a_picture_shows_what_can_be_drawn():
    steps = np.array([1.0, np.nan, 10.0, -1.0, 100.0])
    curve = pictures.curves({"a": steps}, level=5.0)
    assert curve.count("<circle") == 3 and "var(--alarm)" in curve and "#0000" not in curve
    assert not pictures.curves({"a": np.zeros(3)}) and not pictures.curves({})
    assert not pictures.curves({"a": np.full(3, -1.0)})
    assert pictures.curves({"a": np.arange(1.0, 1e5)}).count("L ") < 700
    names = tuple(Numeric(name, 0, 1) for name in ("a $x$ \x1b", "\u4e2d", "b"))
    bars = bars_of(np.array([1.0, -1.0, 30.0]))
    for held, whiskers in ((bars, True), (None, False)):
        held = coefficients(np.array([1.0, -1.0, 30.0]), Preprocessing(names), held)
        drawn = pictures.forest(held)
        assert ("whisker" in drawn) == whiskers and drawn.count("<circle") == 2
        assert ">a $x$<" in drawn and ">\u4e2d<" in drawn and "\u25b6" in drawn
    # No bound, and nothing beyond the figure: a page does not cut at the axes.
    wide = np.array([np.inf, 1.0, 1e3])
    drawn = pictures.forest(dataclasses.replace(held, noise=wide, lower=-wide, upper=wide))
    paths = " ".join(re.findall(r' d="([^"]*)"', drawn))
    assert max(float(x) for x in re.findall(r"[ML] (\S+)", paths)) == 302.4  # 4.2 inches
    assert pictures.forest(
        dataclasses.replace(held, lower=np.full(3, -np.inf), upper=np.full(3, np.inf))
    )
    held.values[1] = np.nan
    assert not pictures.forest(held)


def test_a_page_that_cannot_be_made_is_refused(solutions, tmp_path):
    batch = jax.tree.map(lambda leaf: np.stack([leaf] * 2), solutions["two"])
    with pytest.raises(ValueError, match="report takes one solution; index a batch"):
        dpjax.report(batch, tmp_path / "r.html")
    with pytest.raises(
        ValueError, match=r"a report must end in \.html, \.md or \.json, got 'r\.pdf'"
    ):
        dpjax.report(solutions["two"], "r.pdf")
    assert not list(tmp_path.iterdir())


@pytest.mark.ci
def test_run_writes_a_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = ["run", "--steps", "2", "--report", "r.html", "--save", "m", "--estimate", "0.1"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    found = Page((tmp_path / "r.html").read_text())
    assert "wrote r.html" in printed and "DP-TR on randhie" in found.text
    assert "dpjax predict m new.csv" in found.text
    assert "accuracy on the training records" in found.text
    assert printed.partition("DP-TR is")[2].split()[0] in found.text


def test_the_wheel_has_every_template_and_table():
    root = pathlib.Path(dpjax.__file__).parent
    project = tomllib.loads((root.parent / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["dpjax"]
    data = [file.relative_to(root) for file in root.rglob("*.*") if file.is_file()]
    data = [file for file in data if file.suffix not in (".py", ".pyc")]
    assert len(data) >= 7
    assert not [file for file in data if not any(map(file.match, patterns))]


# What an officer asks

DOCS = (pathlib.Path(dpjax.__file__).parents[1] / "docs" / "own-table.md").read_text()
QUESTIONS = re.findall(r"^\| (.*\?) \| (.*) \|$", DOCS, re.MULTILINE)


def test_every_question_of_the_docs_has_its_heading(solutions, tmp_path):
    with Ledger.create(tmp_path / "ledger", dpjax.PrivacyBudget(9.0, 1e-3)) as ledger:
        paths = [tmp_path / f"r.{ending}" for ending in ("html", "md", "json")]
        for path in paths:
            dpjax.report(solutions["two"], path, author="A. Meyer <i>", ledger=ledger)
    assert len(QUESTIONS) == 12
    html, card, content = (path.read_text() for path in paths)
    for _, heading in QUESTIONS:
        assert html.count(f"<h2>{heading}</h2>") == card.count(f"\n## {heading}\n") == 1
        assert json.loads(content)["sections"][heading] is not None
    for text in (html, card, content):
        assert "Meyer" in text and "epsilon 9, delta 0.001" in text and "100 %" in text
        assert "gradient 1, Hessian 0.3" in text and "k, rent" in text
        assert not any(secret in text for secret in SECRETS)
    assert "<i>" not in html.replace("a &amp; &lt;i&gt;", "") and "Meyer <i>" not in card


def test_a_declaration_has_a_fingerprint_and_no_record_moves_it(solutions, tmp_path):
    first = str(solutions["two"].preprocessing)
    table(tmp_path)
    other = (tmp_path / "t.csv").read_text().replace(SECRETS[1], "99.5")
    (tmp_path / "t.csv").write_text(other)
    assert str(trained(tmp_path / "t.csv", "two").preprocessing) == first
    found = [page_of(solutions[name], tmp_path / name).text for name in made(tmp_path, LABELS)]
    prints = [re.search(r"SHA-256\): (\w{64})", text)[1] for text in found]
    assert len(set(prints)) == len(LABELS)


def made(folder, names):
    for name in names:
        (folder / name).mkdir()
    return names


@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 3.0])
def test_an_attacker_finds_no_more_than_the_page_says_and_nearly_as_much(mu, solutions):
    """Of one Gaussian answer the best test is known; half the noise finds more than is said."""
    event = Event((Release("gradient", 1, noise_multiplier=1 / mu),), "zero_out")
    dpjax.save(path := f"{tempfile.mkdtemp()}/model", solutions["two"])
    facts = facts_of(dataclasses.replace(dpjax.load(path), event=event))
    best = 2 * stats.norm.cdf(mu / 2) - 1
    assert best <= facts.advantage <= 1.1 * best + 0.01
    assert 2 * stats.norm.cdf(mu) - 1 > facts.advantage
    for alarms, most in facts.found.items():
        exact = stats.norm.sf(stats.norm.isf(alarms) - mu)
        assert exact <= most <= 1.2 * exact + 0.01


def test_what_fit_and_tune_return_make_the_page_of_their_solution(solutions, tmp_path):
    held = solutions["two"]
    told = page_of(held, tmp_path).source
    for wrapped in (dpjax.Tuned(held, {}, 0.5), dpjax.Trained(held, None, True)):
        assert page_of(wrapped, tmp_path).source == told


def test_who_is_protected_and_a_batch_or_another_object_is_refused(solutions, tmp_path):
    rows = {"who": np.repeat(np.arange(60), 2), "x": np.arange(120) / 120, "y": [0, 1] * 60}
    schema = {
        "label": {"column": "y", "classes": [0, 1]},
        "columns": {"x": {"bounds": [0, 1]}},
        "unit": {"column": "who", "max_records": 3},
    }
    data = load(rows, schema=schema)
    objective = dpjax.objectives.logistic_l2(1e-2).of_units()
    budget = dpjax.PrivacyBudget(8.0, 1e-4)
    sizes = {"data_size": data.size, "dimension": data.dimension, "steps": 2}
    algorithm = dpjax.dp_gradient_descent(objective, budget, **sizes)
    found = page_of(dpjax.solve(algorithm, data, key=dpjax.random_key()), tmp_path)
    assert "A record is one 'who' with all its rows." in found.text
    assert "One 'who' with all its rows, called a record here. The first 3 rows of" in found.text
    assert "Where several records are of one person" not in found.text
    assert "says whose a record is; not used otherwise" in found.text
    with pytest.raises(ValueError, match="pass a Solution, what load, fit or tune returned"):
        dpjax.report(algorithm, tmp_path / "r.html")


# The command that prints


@pytest.mark.parametrize("label", LABELS)
def test_show_prints_what_was_trained_and_its_coefficients(label, solutions, tmp_path, capsys):
    solution = solutions[label]
    dpjax.save(tmp_path / "model", solution)
    assert main(["show", str(tmp_path / "model"), "--json", str(tmp_path / "json")]) == 0
    shown = capsys.readouterr().out
    # As text, without markup, in which a guarantee stands as it was printed.
    assert not re.search("^#|^[|]", shown, re.MULTILINE) and solution.guarantee() in shown
    printed = one_line(shown)
    content, held = json.loads((tmp_path / "json").read_text()), solution.coefficients()
    assert printed.startswith(f"DP-TR, {OBJECTIVES[label].name} In short --------")
    assert f"parameters {solution.params.size} " in printed
    assert one_line(solution.guarantee()) in printed and one_line(held.caption) in printed
    assert f"norm at most {ceil(facts_of(solution).certificate['gradient_norm_upper'])}" in printed
    assert all(describe(release) in printed for release in solution.event.releases)
    for name, _, values, ends in held.rows():
        assert one_line(name) in printed
        assert f"{ends[0, 0]:.4g} {ends[1, 0]:.4g} +-" in printed
        assert re.search(re.escape(f"{values[0]:.4g}"), printed)
    assert content["coefficients"]["names"] == list(held.names)
    for field in ("values", "lower", "upper"):
        np.testing.assert_array_equal(content["coefficients"][field], getattr(held, field))
    assert content["epsilon"] == pytest.approx(solution.epsilon()) and content["releasable"]
    assert content["n"] == N and content["unit"] == "row"
    assert str(solution.guarantee()) in content["guarantee"]


def test_intervals_take_the_confidence_that_is_asked_for(solutions, tmp_path):
    held = solutions["two"]
    narrow, wide = held.coefficients(0.5), held.coefficients(0.99)
    assert (narrow.upper - narrow.lower < wide.upper - wide.lower).all()
    assert re.search("Each 50 % interval", narrow.interval_caption)
    with pytest.raises(ValueError, match="confidence"):
        held.coefficients(1.0)
    batch = jax.tree.map(lambda leaf: np.stack([leaf] * 2), held)
    with pytest.raises(ValueError, match="coefficients are of one solution"):
        batch.coefficients()
    dpjax.save(tmp_path / "model", held)
    layers = dataclasses.replace(dpjax.load(tmp_path / "model"), score=Score("two-layer", 4))
    with pytest.raises(ValueError, match="two layers has no coefficients"):
        layers.coefficients()
