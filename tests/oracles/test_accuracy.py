"""The released estimate of accuracy: its count, its noise, its part in the event and the ledger."""

import dataclasses
import functools
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import dpjax
from dpjax.accounting import PrivacyBudget, epsilon
from dpjax.cli import main
from dpjax.oracles import AccuracyQuery, GradientQuery, Setting, bind

N, P = 300, 3
LEVEL = 1e-6  # of a false alarm, in each statistical test here
BUDGET = PrivacyBudget(2.0, 1e-4)
LOGISTIC = dpjax.objectives.logistic()
LOSSES = {"margin": LOGISTIC, "network": dpjax.objectives.two_layer()}


def records():
    random = np.random.default_rng(0)
    x = random.normal(size=(N, P)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x, np.where(x[:, 0] + 0.3 * random.normal(size=N) > 0, 1, -1).astype(np.float32)


def params_of(objective):
    return jax.random.normal(jax.random.key(1), (objective.parameters(P),))


def query_of(objective, relation="zero_out", multiplier=2.0):
    return AccuracyQuery(setting=Setting(objective, N, relation), noise_multiplier=multiplier)


def build(make=dpjax.dp_gradient_descent, budget=BUDGET, share=0.2, **more):
    made = functools.partial(make, LOGISTIC, data_size=N, dimension=P, steps=4, **more)
    return dpjax.with_accuracy(made, budget, epsilon=share)


@pytest.mark.parametrize("prepared", [True, False])
@pytest.mark.parametrize("name", LOSSES)
def test_the_count_is_that_of_the_labels_predicted(name, prepared):
    objective, (x, y) = LOSSES[name], records()
    params, query = params_of(objective), query_of(objective)
    exact = int((objective.predict(params, x) == y).sum())
    data = bind(query, (x, y)) if prepared else (jnp.asarray(x), jnp.asarray(y))
    assert float(query.exact(data, params)[0].leading) == exact
    assert 0 < exact < N


@pytest.mark.parametrize("name", LOSSES)
def test_a_record_moves_the_count_by_one_at_most_whatever_it_holds(name):
    objective, (x, y) = LOSSES[name], records()
    params, query = params_of(objective), query_of(objective)

    @jax.jit
    def count(x, y):
        return query.exact(bind(query, (x, y)), params)[0].leading

    whole, sizes = float(count(x, y)), set()
    right = int(np.argmax(np.asarray(objective.predict(params, x)) == y))
    for feature in (np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45, 0.0, 1.0):
        for label in (1.0, -1.0, 0.0, 2.0, np.nan, np.inf):
            other_x, other_y = x.copy(), y.copy()
            other_x[right], other_y[right] = feature, label
            sizes.add(float(count(other_x, other_y)) - whole)
    assert sizes == {0.0, -1.0}
    assert query.sensitivity == 1 / N == query_of(objective, "replace_one").sensitivity


@dataclasses.dataclass(frozen=True)
class Mixing:
    """Scores of which each depends on all rows that are shown together."""

    def parameters(self, features):
        return features

    def score(self, params, x):
        return x @ params * jnp.sign(jnp.sum(x[:, 0]))


def test_a_model_that_mixes_rows_lets_no_record_decide_about_another():
    objective = dpjax.Objective(lambda w, e: jnp.sum(w**2), model=Mixing())
    query, params = query_of(objective), jnp.ones(P)
    x, y = records()
    other = x.copy()
    other[0] = -1e6 * np.sign(x[:, 0].sum())  # turns the sum of all, and would turn every label
    counts = [float(query.exact((rows, y), params)[0].leading) for rows in (x, other)]
    assert abs(counts[0] - counts[1]) <= 1
    plain = [(objective.predict(params, rows) == y).sum() for rows in (x, other)]
    assert abs(int(plain[0]) - int(plain[1])) > 10  # the model does mix


def follows(draws, mean, stddev):
    """Whether a KS and a two-sided variance test at LEVEL accept N(mean, stddev^2)."""
    z = (np.asarray(draws, np.float64) - mean) / stddev
    low, high = stats.chi2.ppf([LEVEL / 2, 1 - LEVEL / 2], z.size) / z.size
    return stats.kstest(z, "norm").pvalue > LEVEL and low < (z**2).mean() < high


K = 3


def persons():
    """Each has up to K records; some have none that counts."""
    random = np.random.default_rng(4)
    x = random.normal(size=(N, K, P)).astype(np.float32)
    y = np.where(x[..., 0] + 0.3 * random.normal(size=(N, K)) > 0, 1, -1).astype(np.float32)
    present = random.random((N, K)) < 0.7
    x[5, 0], x[6], y[7, 1], y[8] = np.nan, np.inf, 3, np.nan
    return (x, y), present


def share_of_each(objective, params, data):
    (x, y), present = data
    valid = present & np.isfinite(x).all(axis=2) & (np.abs(y) == 1)
    found = objective.predict(params, np.where(np.isfinite(x), x, 0).reshape(-1, P))
    right = valid & (np.asarray(found).reshape(N, K) == y)
    return right.sum(axis=1) / np.maximum(valid.sum(axis=1), 1)


def of_units(query, data, prepared=True):
    first = GradientQuery(setting=query.setting, noise_multiplier=1.0, clip_norm=1.0)
    data = jax.tree.map(jnp.asarray, data)
    return bind(first, data) if prepared else data


@pytest.mark.parametrize("prepared", [True, False])
@pytest.mark.parametrize("name", LOSSES)
def test_a_person_counts_as_the_mean_of_their_records(name, prepared):
    objective, data = LOSSES[name], persons()
    params, query = params_of(objective), query_of(objective.of_units())
    exact = share_of_each(objective, params, data).sum()
    found = query.exact(of_units(query, data, prepared), params)[0].leading
    assert float(found) == pytest.approx(exact, rel=1e-6) and 0.2 * N < exact < 0.8 * N


@pytest.mark.parametrize("relation", ["zero_out", "replace_one"])
def test_a_person_moves_the_sum_by_one_at_most_however_many_records_are_theirs(relation):
    query, params = query_of(LOGISTIC.of_units(), relation), params_of(LOGISTIC)
    (x, y), present = persons()
    sums = []
    for own, label in itertools.product((x[0], 1e9 * x[0], np.full_like(x[0], np.nan)), (1, -1, 9)):
        for held in (np.ones(K, bool), np.arange(K) == 0, np.zeros(K, bool)):
            x[0], y[0], present[0] = own, label * np.sign(own @ params), held
            total = query.exact(of_units(query, ((x, y), present)), params)[0]
            sums.append(float(total.leading))
    assert 1 - 1e-6 < max(sums) - min(sums) <= 1 + 1e-6  # float32 of a sum near N / 2
    assert query.sensitivity == (1 + query.rounding_error) / N


@pytest.mark.parametrize("relation", ["zero_out", "replace_one"])
@pytest.mark.parametrize("units", [False, True])
def test_the_noise_added_is_the_noise_accounted(relation, units):
    """Of 20,000 draws; noise wrong by 5 % is 14 standard errors away."""
    objective = LOGISTIC.of_units() if units else LOGISTIC
    query, params = query_of(objective, relation), params_of(LOGISTIC)
    data = of_units(query, persons()) if units else bind(query, records())
    keys = jax.random.split(jax.random.key(2), 20_000)
    draws = jax.vmap(lambda key: query.answer(key, data, params))(keys)
    mean = float(query.exact(data, params)[0].leading) / N
    (release,) = query.event(1).releases
    assert release.noise_multiplier == 2.0 and release.sampling == "none"
    stddev = release.stddev
    assert stddev == 2 * query.sensitivity and dict(release.components)["accuracy"] == stddev
    assert follows(draws, mean, stddev)
    assert not follows(draws, mean, 0.95 * stddev) and not follows(draws, mean, stddev / 0.95)


@pytest.mark.parametrize("relation", ["zero_out", "replace_one"])
@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize(
    ("make", "more"),
    [
        (dpjax.dp_trust_region, {}),
        (dpjax.dp_gradient_descent, {}),
        (dpjax.dp_adam, {"batch_size": 60}),
        (dpjax.dp_subspace_trust_region, {"batch_size": 60, "subspace_dimension": 2}),
    ],
)
def test_training_and_estimate_together_keep_the_budget(make, more, accountant, relation):
    budget = dataclasses.replace(BUDGET, relation=relation)
    if relation == "replace_one" and more and accountant == "rdp":
        return  # no Renyi accounting of Poisson batches is known there
    algorithm = build(make, budget, **more, accountant=accountant)
    spent = epsilon(algorithm.event, budget.delta, relation)
    assert spent <= budget.epsilon
    names = [release.name for release in algorithm.event.releases]
    assert names[-1] == "accuracy" and len(names) == 2
    training = epsilon(algorithm.algorithm.event, budget.delta, relation)
    assert training < spent
    if accountant == "pld":
        # Gaussians: nothing is wasted, and the estimate costs the training hardly anything.
        floor = (budget.epsilon - 0.2) * (1 - 1e-5) if more else budget.epsilon * (1 - 1e-5)
        assert spent > floor and training > (budget.epsilon - 0.2) * (1 - 1e-5)


def test_one_solution_one_guarantee_and_one_line_in_the_ledger(tmp_path):
    algorithm = build()
    path = tmp_path / "ledger"
    dpjax.Ledger.create(path, BUDGET).close()
    more = {"key": dpjax.random_key(), "ledger": path, "label": "visits", "progress": False}
    solution = dpjax.run(algorithm, records(), **more, checkpoint=tmp_path / "run")
    (entry,) = dpjax.Ledger.read(path).entries
    assert entry.finished and "accuracy: once;" in solution.guarantee()
    assert solution.guarantee().startswith("DP-GD is (2, 0.0001)-differentially private.")
    assert algorithm.algorithm.epsilon() < algorithm.epsilon() == solution.epsilon(1e-4) <= 2.0
    assert entry.cost == 1 - dpjax.Ledger.read(path).remaining
    # The same answer again, not another one.
    again = dpjax.run(
        algorithm, records(), ledger=path, label="visits", progress=False,
        checkpoint=tmp_path / "run",
    )  # fmt: skip
    assert float(again.accuracy) == float(solution.accuracy)
    assert len(dpjax.Ledger.read(path).entries) == 1


def test_the_training_is_the_one_it_would_be_and_the_estimate_is_near():
    algorithm, data = build(dpjax.dp_trust_region), records()
    keys = jax.random.split(jax.random.key(3), 400)
    batch = jax.vmap(lambda key: dpjax.solve(algorithm, data, key=key))(keys)
    accuracy = functools.partial(dpjax.diagnostics.exact_accuracy, LOGISTIC)
    exact = np.asarray(jax.jit(jax.vmap(accuracy, (0, None, None)))(batch.params, *data))
    low, high = batch.accuracy_interval(0.9)
    inside = int(((low <= exact) & (exact <= high)).sum())
    assert stats.binomtest(inside, 400, 0.9).pvalue > LEVEL
    assert batch.certificate is not None and np.std(batch.accuracy - exact) > 0
    narrow = batch.accuracy_interval(0.5)
    inside = int(((narrow[0] <= exact) & (exact <= narrow[1])).sum())
    assert stats.binomtest(inside, 400, 0.9).pvalue < LEVEL  # another level is noticed


@pytest.mark.ci
def test_a_search_and_an_estimate_are_of_persons():
    (x, y), present = persons()
    data = dpjax.Dataset(x, y, present=present, unit="patient")
    make = functools.partial(
        dpjax.dp_trust_region, LOGISTIC.of_units(), data_size=N, dimension=P, steps=4
    )
    loud = dataclasses.replace(BUDGET, epsilon=8.0)
    solution = dpjax.run(dpjax.with_accuracy(make, loud, epsilon=4.0), data, seed=0)
    exact = share_of_each(LOGISTIC, solution.params, ((x, y), present)).mean()
    assert abs(float(solution.accuracy) - exact) < 0.05
    assert "the mean over records of the fraction" in solution.guarantee()
    tuned = dpjax.tune(make, {"radius": [1.0, 3.0]}, data, loud, seed=0, trials=2, cap=4)
    assert abs(tuned.score - exact) < 0.2 and tuned.epsilon() <= 8


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: build(share=2.0), "must be below that of the budget, 2, got 2"),
        (lambda: build(share=0.0), "epsilon of the accuracy must be"),
        (lambda: query_of(LOGISTIC, "add_or_remove_one"), "not released under relation='add_or_"),
        (lambda: query_of(dpjax.objectives.pca()), "predicts no label"),
        (
            lambda: build(dpjax.stochastic_spider, PrivacyBudget(8.0, 1e-3), batch_size=8),
            "reads each record only once",
        ),
        (lambda: dpjax.solve(plain(), records(), seed=0).accuracy_interval(), "with_accuracy"),
    ],
)
def test_what_cannot_be_estimated_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@dataclasses.dataclass(frozen=True)
class Table:
    """Scores that are a column: times labels (n,) they would be a table, a record n entries."""

    def parameters(self, features):
        return features

    def score(self, params, x):
        return (x @ params)[:, None]


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        (Table(), records(), "one score for each row"),
        (dpjax.objectives.two_layer().model, records()[0], r"examples \(x, y\)"),
        (dpjax.objectives.two_layer().model, (records()[0][:, :2], records()[1]), "does not score"),
    ],
)
def test_what_has_no_score_is_refused_before_anything_is_spent(model, data, message, monkeypatch):
    def spent(*args):
        raise AssertionError("the budget was spent")

    loss = dpjax.Objective(lambda w, e: jnp.sum(w**2), model=model, name="own")
    make = functools.partial(
        dpjax.dp_gradient_descent, loss, data_size=N, dimension=model.parameters(P), clip_norm=1.0,
        steps=2, step_size=0.1, certify=None,
    )  # fmt: skip
    for loop in ("advance", "finish", "bind_records"):
        monkeypatch.setattr(f"dpjax.driver.loop.{loop}", spent)
    algorithm = dpjax.with_accuracy(make, BUDGET)
    for run in (dpjax.solve, dpjax.run):
        with pytest.raises(ValueError, match=message):
            run(algorithm, data, key=jax.random.key(0))


def plain():
    return dpjax.dp_gradient_descent(LOGISTIC, BUDGET, data_size=N, dimension=P, steps=4)


@pytest.mark.ci
def test_the_command_line_prints_and_writes_the_estimate(capsys, tmp_path):
    file = tmp_path / "out.json"
    argv = ["run", "dp-gd", "--steps", "3", "--estimate", "0.1", "--json", str(file)]
    assert main(argv) == 0
    out = capsys.readouterr().out
    found = json.loads(file.read_text())
    assert "accuracy on the training records: 0." in out and "(95% confidence interval" in out
    assert "DP-GD is (1, 4.953e-06)-differentially private" in out and "- accuracy: once;" in out
    accuracy = found["accuracy"]
    assert accuracy["lower"] < accuracy["estimate"] < accuracy["upper"]
    assert 0.999 < found["epsilon"] <= 1 and found["noise"][-1]["name"] == "accuracy"
    assert main(["run", "dp-gd", "--steps", "3", "--json", str(file)]) == 0
    assert json.loads(file.read_text())["accuracy"] is None
    assert "accuracy" not in capsys.readouterr().out
