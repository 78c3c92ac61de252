"""The released count of records: which count, how far one moves it, its noise, and who is told."""

import dataclasses
import functools
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from factories import N, P, make, toy, toy_records
from scipy import stats

import dpjax
from dpjax.accounting import PrivacyBudget, epsilon
from dpjax.cli import main
from dpjax.oracles import CountQuery, GradientQuery, Setting, bind
from dpjax.reporting import facts_of

BUDGET = PrivacyBudget(2.0, 1e-4)
LOUD = PrivacyBudget(8.0, 1e-4)
RELATIONS = ("zero_out", "replace_one", "add_or_remove_one")
X, Y = toy_records()
ONES = (Y > 0).astype(np.float32)


def linear(w, x):
    return x @ w


def alone(x, y):
    return x, y


def persons(x, y):
    """Each of two records."""
    return (np.stack([x, x], 1), np.stack([y, y], 1)), np.ones((len(y), 2), bool)


LOGISTIC, NETWORK = dpjax.objectives.logistic(), dpjax.objectives.cross_entropy(linear)
TWO = dpjax.objectives.two_layer(2)
FLAT, WIDE = jnp.zeros(P), jnp.zeros((P, 2))
# Objective, parameters, labels, and how examples are made of rows and labels.
WAYS = {
    "signs": (LOGISTIC, FLAT, Y, alone),
    "classes": (dpjax.objectives.softmax(3), jnp.zeros(3 * P), ONES, alone),
    "numbers": (dpjax.objectives.least_squares(), FLAT, Y / 2, alone),
    "two layers": (TWO, jnp.ones(TWO.parameters(P)), Y, alone),
    "a network": (NETWORK, WIDE, ONES, alone),
    "persons": (LOGISTIC.of_units(), FLAT, Y, persons),
    "persons and a network": (NETWORK.of_units("sum"), WIDE, ONES, persons),
}


def query_of(objective, relation="zero_out"):
    return CountQuery(setting=Setting(objective, N, relation), noise_multiplier=2.0)


def counting(way, relation="zero_out", prepared=True):
    """Counts rows with labels: prepared as they are in a training, or as they are drawn."""
    objective, params, _, examples = WAYS[way]
    query = query_of(objective, relation)
    first = GradientQuery(setting=query.setting, noise_multiplier=1.0, clip_norm=1.0)

    @jax.jit
    def count(data):
        return query.exact(bind(first, data) if prepared else data, params)[0].leading

    return lambda x, y: float(count(jax.tree.map(jnp.asarray, examples(x, y))))


@pytest.mark.parametrize("prepared", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_null_records_do_not_count(way, prepared):
    y, count = WAYS[way][2], counting(way, prepared=prepared)
    assert count(X, y) == N
    x, labels = X.copy(), y.copy()
    x[:6, 1], x[6:9, 0], labels[9:12], labels[12:16] = np.nan, -np.inf, np.nan, 7.0
    assert count(x, labels) == N - 16
    assert count(x * np.nan, labels) == 0


@pytest.mark.parametrize("prepared", [True, False])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_person_counts_once_who_has_a_record_that_counts(reduction, prepared, monkeypatch):
    monkeypatch.setitem(WAYS, "here", (LOGISTIC.of_units(reduction), FLAT, Y, lambda *data: data))
    count = counting("here", prepared=prepared)
    (x, y), present = persons(X, Y)
    x[:5, 0, 0] = np.nan  # one of two
    present[3:9] = False  # nobody
    y[20:27, 1], present[20:27, 0] = 0.5, False  # one that is null, one that is not there
    assert count((x, y), present) == N - 6 - 7


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("way", WAYS)
def test_a_record_moves_the_number_by_one_at_most(way, relation):
    y, count = WAYS[way][2], counting(way, relation)
    whole, moved = count(X, y), set()
    for feature, label in itertools.product((np.nan, -np.inf, 3e38, 1e-45, 0.0), (1.0, np.nan)):
        x, labels = X.copy(), y.copy()
        x[5], labels[5] = feature, label
        moved.add(count(x, labels) - whole)
    if relation == "add_or_remove_one":
        assert whole - count(np.delete(X, 5, 0), np.delete(y, 5)) == 1
    assert moved <= {0.0, -1.0} and -1.0 in moved
    query = query_of(WAYS[way][0], relation)
    if relation == "add_or_remove_one" and not query.in_any_row:
        # A gradient that is finite in one row may not be in another.
        with pytest.raises(ValueError, match=r"the count amplifies that"):
            query.event(1)
        return
    (release,) = query.event(1).releases
    assert query.sensitivity == 1 / N == release.sensitivity and release.stddev == 2 / N


@pytest.mark.parametrize("way", ["signs", "a network", "persons"])
def test_the_noise_added_is_the_noise_accounted(way):
    """Of 20,000 draws, at a level of 1e-6; noise wrong by 5 % is 10 standard errors away."""
    objective, params, y, examples = WAYS[way]
    query = query_of(objective)
    data = bind(query, jax.tree.map(jnp.asarray, examples(X, y)))
    keys = jax.random.split(jax.random.key(2), 20_000)
    draws = jax.vmap(lambda key: query.answer(key, data, params))(keys)
    z = (np.asarray(draws, np.float64) - 1) / query.event(1).releases[0].stddev
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], z.size) / z.size
    assert stats.kstest(z, "norm").pvalue > 1e-6 and low < (z**2).mean() < high
    assert not low < (z**2).mean() / 0.95**2 < high and not low < (z**2).mean() * 0.95**2 < high


SETTINGS = {"data_size": N, "dimension": P, "steps": 3}


def counted(name="dp-gd", budget=BUDGET, share=0.02, objective=None, **more):
    made = functools.partial(make, name, objective=objective or LOGISTIC, **SETTINGS | more)
    return dpjax.with_count(made, budget, share=share)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(
    ("name", "more"), [("dp-gd", {}), ("dp-tr", {}), ("dp-adam", {"batch_size": 16})]
)
def test_training_and_count_together_keep_the_budget(name, more, relation):
    """And the count costs what it says: half of its share, in noise, where nothing is drawn."""
    budget = dataclasses.replace(BUDGET, relation=relation)
    if more and relation == "add_or_remove_one":
        more = more | {"max_batch_size": N}
    algorithm = counted(name, budget, **more)
    spent = epsilon(algorithm.event, budget.delta, relation)
    assert spent <= budget.epsilon and [r.name for r in algorithm.event.releases][-1] == "count"
    assert epsilon(algorithm.algorithm.event, budget.delta, relation) < spent
    if not more:
        plain = make(name, budget, objective=LOGISTIC, **SETTINGS)
        louder = algorithm.event.releases[0].noise_multiplier / (
            plain.event.releases[0].noise_multiplier
        )
        assert louder == pytest.approx(0.98**-0.5, rel=1e-5) and spent > 0.99999 * budget.epsilon
    else:
        assert spent > 0.98 * budget.epsilon


def half(x=X, y=Y):
    """Every second label is none."""
    return x, np.where(np.arange(len(y)) % 2, y, np.nan).astype(np.float32)


FEW = "only about .* of 64 declared records count, and hardly more than .*: the others are null"


def test_half_of_the_records_null_is_told_and_a_whole_table_is_not():
    """By noise alone of 1,000 trainings one is told; 12 at a level of 1e-9."""
    algorithm = counted(budget=LOUD)
    keys = jax.random.split(jax.random.key(5), 1_000)

    @jax.jit
    def trained(y):
        return jax.vmap(lambda key: dpjax.solve(algorithm, (X, y), key=key))(keys)

    whole, few = trained(Y), trained(half()[1])
    told = [
        sum("records count" in "".join(each) for each in batch.remarks) for batch in (whole, few)
    ]
    assert told[0] <= 12 and told[1] == 1_000
    for batch, exact in ((whole, 1.0), (few, 0.5)):
        low, high = batch.counted_interval(0.9)
        inside = int(((low <= exact) & (exact <= high)).sum())
        assert stats.binomtest(inside, 1_000, 0.95 if exact == 1 else 0.9).pvalue > 1e-6
        assert low.min() >= 0 and high.max() <= 1


def test_where_n_is_private_more_than_were_declared_may_count():
    budget = dataclasses.replace(LOUD, relation="add_or_remove_one")
    solution = dpjax.solve(counted(budget=budget, data_size=32), (X, Y), seed=0)
    low, high = solution.counted_interval()
    assert low > 1 and high > 2 * 0.9 and not solution.remarks


@pytest.mark.ci
def test_with_an_accuracy_both_are_in_one_event_one_file_and_one_report(tmp_path):
    made = functools.partial(dpjax.with_accuracy, functools.partial(toy, "dp-gd"), epsilon=0.5)
    algorithm = dpjax.with_count(made, LOUD)
    solution = dpjax.run(algorithm, half(), seed=0, checkpoint=tmp_path / "run", progress=False)
    assert [release.name for release in algorithm.event.releases][1:] == ["accuracy", "count"]
    assert algorithm.epsilon() <= 8 and "count: once;" in solution.guarantee()
    same = dpjax.solve(algorithm, half(), seed=0)
    assert float(solution.counted) == float(same.counted) != float(same.accuracy)
    dpjax.save(tmp_path / "model", solution)
    saved = dpjax.load(tmp_path / "model")
    assert saved.counted == float(solution.counted) and saved.accuracy == float(solution.accuracy)
    facts = [facts_of(each) for each in (solution, saved)]
    assert facts[0].answers == facts[1].answers and set(facts[0].answers) == {"accuracy", "counted"}
    ends = [float(end) for end in solution.counted_interval()]
    assert [facts[0].answers["counted"][name] for name in ("lower", "upper")] == ends
    words = f"records that count: {64 * saved.counted:.0f} of 64 (95% confidence interval "
    assert any(line.startswith(words) for line in facts[1].answer_lines)
    page = dpjax.report(solution, tmp_path / "page.html") or (tmp_path / "page.html").read_text()
    assert "<dt>records that count</dt>" in page


@pytest.mark.ci
def test_a_network_is_counted_through_fit():
    def factory(objective, budget, **settings):
        made = functools.partial(dpjax.dp_adam, objective, step_size=0.1, **settings)
        return dpjax.with_count(made, budget)

    sizes = {"batch_size": 32, "steps": 2, "params": np.zeros((P, 2), np.float32)}
    with pytest.warns(RuntimeWarning, match=FEW):
        trained = dpjax.fit(
            linear, "cross_entropy", half(y=ONES), LOUD, factory, seed=0, progress=False, **sizes
        )
    assert float(trained.solution.counted) == pytest.approx(0.5, abs=0.4)


def test_records_count_though_the_training_diverges():
    """The question is asked where the training begins."""
    objective = dpjax.Objective(lambda w, e: e[1] * jnp.exp(w @ e[0]), name="steep")
    algorithm = counted(budget=LOUD, objective=objective, clip_norm=1.0, step_size=1e38)
    solution = dpjax.solve(algorithm, (X, np.ones(N, np.float32)), seed=0)
    assert not np.isfinite(np.asarray(objective.loss(solution.params, (X[0], 1.0))))
    assert solution.counted_interval()[1] == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        *((functools.partial(counted, share=share), "share of the count") for share in (0, 1, -1)),
        (
            lambda: counted("spider", objective=dpjax.objectives.logistic_nonconvex()),
            "reads each record only once, so it cannot release the count",
        ),
        (
            lambda: dpjax.solve(toy("dp-gd"), toy_records(), seed=0).counted_interval(),
            "no count was released; build the algorithm with dpjax.with_count",
        ),
    ],
)
def test_what_cannot_be_counted_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.ci
def test_the_command_line_counts_and_says_it_everywhere(capsys, tmp_path):
    x, y = (np.tile(each, (20,) + (1,) * (each.ndim - 1)) for each in half())
    np.savez(tmp_path / "table.npz", x=x, y=np.nan_to_num(y, nan=3))
    (tmp_path / "bounds.json").write_text(json.dumps([[-1, 1]] * P))
    paths = {name: str(tmp_path / name) for name in ("a.json", "b.json", "model")}
    table = ["--data", str(tmp_path / "table.npz"), "--classes=-1,1"]
    data = [*table, "--bounds", str(tmp_path / "bounds.json")]
    files = ["--json", paths["a.json"], "--save", paths["model"]]
    assert main(["run", "dp-gd", *data, "--steps", "2", "--seed", "0", *files, "--count"]) == 0
    printed = capsys.readouterr().out
    assert "records that count: 6" in printed and " of 1,280 (95% confidence interval" in printed
    assert "warning: only about 6" in printed and "  - count: once; sensitivity 0.00078" in printed
    assert main(["show", paths["model"], "--json", paths["b.json"]]) == 0
    assert "records that count 6" in " ".join(capsys.readouterr().out.split())
    run, shown = (json.loads((tmp_path / name).read_text()) for name in ("a.json", "b.json"))
    assert run["counted"] == shown["counted"] | {"confidence": 0.95}
    assert run["counted"]["lower"] < 0.5 < run["counted"]["upper"] and run["accuracy"] is None
    assert run["noise"][-1]["name"] == "count" and 0.999 < run["epsilon"] <= 1
    assert main(["run", *data, "--count", "0.1", "--estimate", "0.2", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "- accuracy: once;" in printed and "- count: once;" in printed
