"""What objects print in a REPL and show in a notebook: short, escaped, and nothing secret."""

import copy
import dataclasses
import html.parser
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from factories import BUDGET, FACTORIES
from test_contract import build, records

import dpjax
from dpjax._typing import pytree_dataclass
from dpjax.display import cards
from dpjax.results.guarantee import Guarantee

KEY = jax.random.key(7)
VOID = {"br", "hr", "img", "meta", "input", "link"}


class Page(html.parser.HTMLParser):
    """Tags and text of a page whose tags must be closed in order."""

    def __init__(self, source):
        super().__init__()
        self.open, self.tags, self.words = [], set(), []
        self.feed(source)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        assert tag not in VOID
        self.open.append(tag)
        self.tags.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def check(shown, lines=3):
    """The words that an object prints, and those of its card."""
    words, page = repr(shown), Page(shown._repr_html_())
    assert page.tags <= {"div", "strong", "table", "tr", "th", "td", "pre"}
    if lines is not None:
        assert 0 < len(words.splitlines()) <= lines
        assert all(len(line) <= 100 and line == line.rstrip() for line in words.splitlines())
    for text in (words, page.text):
        assert "nan" not in text.lower() and "Array(" not in text and "array(" not in text
        assert "Traced<" not in text and "\x1b" not in text and "  " not in text.strip("\n")[:2]
    return words, page.text


@pytest.fixture(scope="module")
def solution():
    return dpjax.solve(build("dp-tr"), records(), key=KEY)


@pytest.fixture(scope="module")
def batch():
    algorithm = build("dp-tr")
    return jax.vmap(lambda key: dpjax.solve(algorithm, records(), key=key))(
        jax.random.split(KEY, 3)
    )


@pytest.mark.parametrize("name", list(FACTORIES))
def test_every_algorithm_shows_its_budget_and_its_noise(name):
    algorithm = build(name)
    words, page = check(algorithm)
    (release, *_) = algorithm.event.releases
    for text in (words, page):
        assert algorithm.title in text and "epsilon 1, delta 0.0001" in text
        assert "zero_out" in text and f"{release.noise_multiplier:.5g}" in text
        assert "NOT FOR RELEASE" not in text
    assert "steps: 6;" in words and "records declared 64" in page


@pytest.mark.parametrize("name", list(FACTORIES))
def test_an_algorithm_is_shown_while_jax_traces_it_and_in_a_batch(name):
    algorithm, shown = build(name), []

    @jax.jit
    def traced(algorithm):
        shown.append(check(algorithm))
        return 0

    traced(algorithm)
    many = jax.tree.map(lambda leaf: jnp.stack([jnp.asarray(leaf)] * 3), algorithm)
    jax.vmap(traced)(many)
    for words, page in shown:
        assert "epsilon traced" in words and "noise traced" in page and algorithm.title in page
    words, page = check(many)
    assert "steps: batched (3,)" in words and "noise batched (3,)" in page


def test_an_algorithm_is_shown_with_other_things_in_place_of_its_numbers():
    algorithm = build("dp-str")
    for other in (None, 0, object(), jax.ShapeDtypeStruct((), "float32"), "x", float("nan")):
        stood = jax.tree.map(lambda _, other=other: other, algorithm)
        check(stood)
        assert "DP-STR" in repr(stood)
    (query,) = algorithm.queries
    odd = dataclasses.replace(query, noise_multiplier=np.ones(3))
    one = dataclasses.replace(algorithm, stages=((odd,),))
    assert "noise: unknown" in check(one)[0]
    prefix = dataclasses.replace(algorithm, stages=None, declared=0)
    assert check(prefix) == ("StochasticTrustRegion, incomplete",) * 2
    assert check(object.__new__(dpjax.Ledger)) == ("Ledger, incomplete",) * 2


def test_a_notebook_shows_what_is_public_of_an_objective_a_data_set_and_a_history(solution):
    objective = dpjax.objectives.logistic_l2(0.25).weighted().of_units()
    page = Page(objective._repr_html_())
    assert "L2(strength=0.25)" in page.text and "with the record's weight" in page.text
    assert repr(objective).startswith("Objective(loss=")  # enters digests
    rows = {"age": np.full(71, 33.25), "y": np.ones(71)}
    schema = {"label": {"column": "y", "classes": [0, 1]}, "columns": {"age": {"bounds": [0, 100]}}}
    data = dpjax.datasets.load(rows, schema=schema)
    page = Page(data._repr_html_())
    assert "age" in page.text and "100" in page.text and "features" in page.text
    # Their number may be private.
    assert not any(private in page.text for private in ("71", "33.25", "0.3325"))
    empty = jax.tree.unflatten(jax.tree.structure(data), [None] * len(jax.tree.leaves(data)))
    assert Page(empty._repr_html_()).text == "Dataset, incomplete"
    page = Page(solution.history._repr_html_())
    assert f"{solution.history.step_norm[0]:.4g} to" in page.text and "nan" not in page.text


@pytest.mark.parametrize("name", list(FACTORIES))
def test_the_history_of_every_algorithm_has_a_card(name):
    algorithm = build(name)
    infos = jax.eval_shape(lambda: dpjax.solve(algorithm, records(), key=KEY).history)
    assert "History" in Page(infos._repr_html_()).text


def test_an_algorithm_whose_arrays_were_donated_is_shown():
    algorithm = jax.tree.map(jnp.asarray, build("dp-gd"))
    jax.tree.map(lambda leaf: leaf.delete(), algorithm)
    assert "steps: unknown" in check(algorithm)[0]


def test_an_algorithm_from_outside_is_shown_without_a_line_of_its_own():
    @pytree_dataclass
    class Heavy(type(build("dp-gd"))):
        @property
        def title(self):
            return "heavy ball"

    fields = {f.name: getattr(build("dp-gd"), f.name) for f in dataclasses.fields(Heavy)}
    assert check(Heavy(**fields))[0].startswith("Algorithm heavy ball\n")


def test_a_training_with_an_accuracy_shows_both():
    algorithm = dpjax.with_accuracy(lambda budget: build("dp-gd", budget), BUDGET)
    words, page = check(algorithm)
    assert words.startswith("Algorithm DP-GD\n") and "accuracy multiplier" in page


def test_a_solution_shows_what_its_guarantee_says(solution):
    words, page = check(solution)
    assert words.startswith("Solution by DP-TR\n") and "steps: 6 of 6" in words
    for text in (words, page):
        assert "NOT FOR RELEASE: reproducible noise, from a seed or a key" in text
    assert "all planned steps were taken" in page and "delta 0.0001" in page
    assert "epsilon 1 " in page and "(1, 0.0001)-diff" in solution.guarantee()
    released = dpjax.solve(build("dp-tr"), records(), key=dpjax.random_key())
    assert all("NOT FOR RELEASE" not in text for text in check(released))
    multiplier = f"{solution.algorithm.event.releases[0].noise_multiplier:.5g}"
    assert multiplier in repr(released) and multiplier in solution.guarantee()


def test_a_solution_never_prints_what_no_guarantee_covers(solution):
    secret = str(np.asarray(jax.random.key_data(KEY)).tolist())
    numbers = [f"{value:.4}"[:5] for value in np.asarray(solution.params).tolist()]
    for text in check(solution):
        assert secret not in text and not any(number in text for number in numbers)


def test_a_failed_run_says_what_to_do():
    solution = dpjax.solve(build("dp-tr"), records(), key=KEY)
    failed = dataclasses.replace(
        solution, status=jnp.int32(dpjax.Status.NOT_FINITE), params=solution.params * jnp.nan
    )
    words, page = check(dataclasses.replace(failed, reproducible=False))
    assert "the parameters are not finite" in words and "Raise epsilon" in page
    assert "status unknown" in check(dataclasses.replace(solution, status=jnp.int32(77)))[1]


@pytest.mark.ci
def test_a_batch_shows_its_shape(batch):
    words, page = check(batch)
    assert "epsilon: batched (3,)" in words and "status batched (3,)" in page
    assert check(jax.tree.map(lambda leaf: leaf[None], batch))[0].count("batched (1, 3)") == 3


def test_a_solution_is_shown_while_jax_traces_it():
    seen = []

    @jax.jit
    def traced(algorithm):
        seen.append(check(dpjax.solve(algorithm, records(), key=KEY)))
        return 0

    traced(build("dp-tr"))
    assert "epsilon: traced" in seen[0][0] and "noise traced" in seen[0][1]


def test_a_guarantee_is_a_str_in_a_box(solution):
    guarantee = solution.guarantee()
    assert isinstance(guarantee, str) and guarantee == str(guarantee) and hash(guarantee)
    assert type(str(guarantee)) is str and repr(guarantee) == guarantee
    box = check(guarantee, lines=None)[1]
    for line in guarantee.splitlines():
        assert " ".join(line.split()) in box
    back = pickle.loads(pickle.dumps(guarantee))
    assert type(back) is Guarantee and back == guarantee
    assert "one &lt;b&gt;" in dataclasses.replace(solution, unit="<b>").guarantee()._repr_html_()


def test_a_saved_solution_shows_its_guarantee(solution, tmp_path):
    dpjax.save(tmp_path / "model", solution)
    saved = dpjax.load(tmp_path / "model")
    words, page = check(saved)
    assert "NOT FOR RELEASE: reproducible" in words
    assert "DP-TR is (1, 0.0001)-differentially private" in words and "steps 6" in page
    assert type(saved.guarantee()) is Guarantee and saved.text == solution.guarantee()
    # A file of another dpjax may hold a text in other words.
    assert "Saved solution" in check(dataclasses.replace(saved, text="Other words."))[0]
    assert check(dataclasses.replace(saved, text=""))


def test_a_trained_network_shows_no_exact_value():
    x = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    trained = dpjax.fit(
        lambda params, x: x @ params,
        "cross_entropy",
        (x, (x[:, 0] > 0).astype(np.int32)),
        BUDGET,
        optax.sgd(0.1),
        params=jnp.zeros((4, 2)),
        epochs=2,
        batch_size=32,
        held_out=(x, (x[:, 0] > 0).astype(np.int32)),
        key=KEY,
    )
    words, page = check(trained)
    assert words.startswith("Trained network, by DP optimizer\n")
    assert "on held-out records (NOT PRIVATE, not shown)" in page
    assert str(trained.exact_held_out["loss"][0])[:6] not in page


def test_a_budget_prints_as_it_is_written_and_shows_a_table():
    assert repr(BUDGET) == "PrivacyBudget(epsilon=1.0, delta=0.0001, relation='zero_out')"
    assert "epsilon 1 delta 0.0001 relation zero_out" in check(BUDGET)[1]
    assert eval(repr(BUDGET), {"PrivacyBudget": dpjax.PrivacyBudget}) == BUDGET


def test_a_ledger_shows_what_is_left_and_the_name_of_its_file_alone(tmp_path):
    folder = tmp_path / "a-customer"
    folder.mkdir()
    with dpjax.Ledger.create(folder / "visits.ledger", BUDGET) as ledger:
        half = dataclasses.replace(BUDGET, epsilon=0.5)
        event = build("dp-gd", half).event
        ledger.reserve(run_id="secret-run", event=event, label="Ann", config_hash="0")
        for text in check(ledger):
            assert "Ledger visits.ledger" in text and "1 run, 1 unfinished (but spent)" in text
            assert "a-customer" not in text and str(tmp_path) not in text
            assert "Ann" not in text and "secret-run" not in text and ledger.anchor not in text
        left = f"{ledger.remaining_epsilon:.6g}"[:6]
        assert f"epsilon {left}" in repr(ledger) and f"epsilon {left}" in ledger._repr_html_()
        ledger.complete("secret-run")
        assert "booked: 1 run\n" in repr(ledger)
    check(ledger)  # closed
    check(dpjax.Ledger.read(folder / "visits.ledger"))


def test_a_name_with_a_tag_in_it_is_escaped(solution):
    name = "<script>alert('1')</script>&\n\n\x1b[31mred\u202e" + "long " * 60
    objective = dataclasses.replace(solution.algorithm.objective, name=name)
    (query,) = solution.algorithm.queries
    query = dataclasses.replace(
        query, setting=dataclasses.replace(query.setting, objective=objective)
    )
    algorithm = dataclasses.replace(solution.algorithm, queries=(query,))
    planted = dataclasses.replace(solution, algorithm=algorithm, unit=name)
    for shown in (algorithm, planted):
        source = shown._repr_html_()
        assert "<script>" not in source and "\u202e" not in source + repr(shown)
        assert "<script>alert('1')</script>&" in check(shown)[1]
    assert "<script>" not in planted.guarantee()._repr_html_()
    ends = cards.to_html(cards.Card(name, ((name, name),), name))
    assert "<script>" not in ends and Page(ends).text.count("<script>") == 4
    assert len(cards.to_text(cards.Card(name, ((name, name),), name)).splitlines()) == 3
    word = "x" * 500
    assert len(cards.to_text(cards.Card(word, ((word, word),), word)).splitlines()) == 3


def test_printing_changes_nothing_else(solution):
    algorithm = solution.algorithm
    for one in (build("dp-gd"), BUDGET):
        assert one == copy.deepcopy(one) == pickle.loads(pickle.dumps(one))
    assert hash(build("dp-gd")) == hash(build("dp-gd")) and hash(BUDGET) == hash(copy.copy(BUDGET))
    leaves, structure = jax.tree.flatten(solution)
    back = jax.tree.unflatten(structure, leaves)
    assert jax.tree.structure(back) == structure and repr(back) == repr(solution)
    assert jax.tree.structure(build("dp-tr")) == jax.tree.structure(algorithm)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(algorithm)]
    assert paths and not any("card" in path for path in paths)
    assert repr(pickle.loads(pickle.dumps(algorithm))) == repr(algorithm)


def test_what_is_printed_is_rounded_outwards_and_harms_no_terminal():
    assert cards.ceil(0.99991) == cards.ceil(1.0) == "1"
    assert cards.floor(-0.00011119) == "-0.0001112" and cards.floor(99.996) == "99.99"
    assert cards.printable("age\x1b[31m") == "age [31m"
