"""Private random search: which training is released, that nothing else is, and what refuses it."""

import dataclasses
import functools
import itertools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from factories import mostly_ci
from jax.experimental import checkify
from scipy import stats

import dpjax
from dpjax import auditing, tuning
from dpjax.accounting import (
    Event,
    NumberOfTrials,
    SearchRelease,
    SinglePassRelease,
    epsilon,
    parallel,
)
from dpjax.cli import main
from dpjax.datasets import group
from dpjax.driver import loop
from dpjax.results import guarantee
from dpjax.tuning import search, trials
from dpjax.tuning.score import public_score

# A statistical test fails by chance with this probability at most.
LEVEL = 1e-6
ROWS, WIDTH = 200, 3
BUDGET = dpjax.PrivacyBudget(1.0, 1e-4)
SETTINGS = {"step_size": [0.5, 2.0, 8.0]}
TRIALS = {"trials": 2.0, "cap": 6}


def records():
    random = np.random.default_rng(0)
    x = random.normal(size=(ROWS, WIDTH)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x, np.where(x[:, 0] > 0, 1.0, -1.0).astype(np.float32)


def make(budget, **setting):
    objective = dpjax.objectives.logistic_l2(setting.pop("regularization", 1e-3))
    setting = {"steps": 3, "certify": None} | setting
    return dpjax.dp_gradient_descent(objective, budget, data_size=ROWS, dimension=WIDTH, **setting)


@pytest.fixture(scope="module")
def planned():
    return tuning.plan(make, SETTINGS, BUDGET, **TRIALS)


@functools.partial(jax.jit, static_argnums=(4, 5, 6))
def _draw(*own):
    return trials.draw(*own)


def drawn_by(plan, key, slots=6):
    """What the search of a plan draws; SECRET but in tests."""
    stacked = trials.stack(plan.algorithms)
    start = jnp.zeros(WIDTH)
    own = (stacked, records(), key, start, plan.release.number, len(plan.settings), slots)
    return _draw(*own)


@jax.jit
def _train(algorithm, key):
    start = jnp.zeros(WIDTH)
    bound = loop.bind_training(algorithm, records(), key, start)
    carry = loop.advance(bound, loop.start(bound, start), algorithm.steps)
    return loop.finish(bound, carry, "row", False)


def of_one(plan, drawn, place):
    """The training at one place of a draw, made by the loop of every training."""
    algorithm = jax.tree.map(jnp.asarray, plan.algorithms[int(drawn.settings[place])])
    return _train(algorithm, drawn.keys[place])


# What is released.


@pytest.mark.parametrize("seed", range(4))
def test_the_training_of_the_largest_score_among_those_that_count_is_released(planned, seed):
    tuned = tuning.run_plan(planned, records(), seed=seed)
    drawn = drawn_by(planned, jax.random.key(seed))
    live = int(drawn.live.sum())
    assert drawn.live[:live].all() and 1 <= live <= 6
    solutions = [of_one(planned, drawn, place) for place in range(live)]
    best = max(range(live), key=lambda place: float(solutions[place].accuracy))
    assert tuned.score == float(solutions[best].accuracy)
    assert tuned.settings == planned.settings[int(drawn.settings[best])]
    np.testing.assert_array_equal(tuned.params, solutions[best].params)
    np.testing.assert_array_equal(
        tuned.solution.history.step_norm, solutions[best].history.step_norm
    )


@pytest.mark.ci
def test_trainings_in_pieces_or_at_once_are_the_same_search(planned, monkeypatch):
    entered = []
    whole = search._advance

    def counted(stacked, drawn, carries, records, params, rounds):
        entered.append((len(drawn.settings), int(rounds)))
        return whole(stacked, drawn, carries, records, params, rounds)

    monkeypatch.setattr(search, "_advance", counted)
    one = 4 * ROWS * (WIDTH + 1)
    found = [
        tuning.run_plan(planned, records(), seed=3, memory_limit=limit)
        for limit in (search.MEMORY, 2 * one, 1)
    ]
    pure = jax.jit(
        functools.partial(trials.search, planned.algorithms, number=planned.release.number)
    )(records(), jax.random.key(3), jnp.zeros(WIDTH))
    for tuned in found:
        np.testing.assert_array_equal(tuned.params, found[0].params)
        np.testing.assert_array_equal(tuned.params, pure.solution.params)
        assert (tuned.score, tuned.settings) == (found[0].score, found[0].settings)
    assert found[0].score == float(pure.score)
    # How many steps at once is left to the machine's speed, and how many trainings is not.
    assert [size for size, _ in itertools.groupby(size for size, _ in entered)] == [6, 2, 1]


@pytest.mark.parametrize("output", mostly_ci(["last", "random"], ["last"]))
def test_all_trainings_and_steps_are_made_whatever_is_drawn(output, monkeypatch):
    """Also of a training that ends early: a random iterate, after which no step is taken."""
    plan = tuning.plan(functools.partial(make, output=output), SETTINGS, BUDGET, **TRIALS)
    steps, start = [], jnp.zeros(WIDTH)
    whole = search._advance

    def counted(stacked, drawn, carries, records, params, rounds):
        steps.append((drawn.settings.shape, int(rounds)))
        return whole(stacked, drawn, carries, records, params, rounds)

    monkeypatch.setattr(search, "_advance", counted)
    made = []
    for seed in range(6):
        steps.clear()
        tuning.run_plan(plan, records(), seed=seed)
        made.append(({shape for shape, _ in steps}, sum(rounds for _, rounds in steps)))
    # K differs, and so do the settings; what is computed does not.
    lives = {int(drawn_by(plan, jax.random.key(seed)).live.sum()) for seed in range(6)}
    assert len(lives) > 1
    assert made == [({(6,)}, 3)] * 6
    # A training that is over keeps what it has while the others go on.
    drawn = drawn_by(plan, jax.random.key(0))
    stacked = trials.stack(plan.algorithms)
    carries = search._begin(stacked, drawn, records(), start)
    after = whole(stacked, drawn, carries, records(), start, 3)
    taken = np.asarray(after.step)
    assert (taken == 3).all() if output == "last" else (taken < 3).any()


def test_the_number_of_trainings_and_their_settings_have_the_declared_laws(planned):
    keys = jax.random.split(jax.random.key(0), 20_000)
    drawn = jax.jit(jax.vmap(lambda key: drawn_by(planned, key)[1:]))(keys)
    settings, live = map(np.asarray, drawn)
    counts = np.bincount(live.sum(axis=1), minlength=7)[1:]
    expected = planned.release.number.probabilities * len(keys)
    assert stats.chisquare(counts, expected).pvalue > LEVEL
    # A number that is fixed, or one without its cap, would be noticed.
    wrong = NumberOfTrials(2.3, 6).probabilities * len(keys)
    assert stats.chisquare(counts, wrong).pvalue < LEVEL
    drawn_each = np.bincount(settings.ravel(), minlength=3)
    assert stats.chisquare(drawn_each).pvalue > LEVEL
    # Independent of one another, and of K.
    together = np.histogram2d(settings[:, 0], settings[:, 1], bins=3)[0]
    assert stats.chi2_contingency(together).pvalue > LEVEL
    assert stats.ks_2samp(live.sum(axis=1)[settings[:, 0] == 0], live.sum(axis=1)).pvalue > LEVEL


def test_of_the_other_trainings_nothing_is_kept(planned):
    tuned = tuning.run_plan(planned, records(), seed=0)
    one = dpjax.solve(planned.algorithms[0], records(), seed=0)
    released, alone = (
        sorted(np.shape(leaf) for leaf in jax.tree.leaves(solution))
        for solution in (tuned.solution, one)
    )
    # The same arrays as of one training, without its accuracy; and two numbers of the budget.
    assert released == sorted([*alone, (), ()][1:])
    assert set(vars(tuned)) == {"solution", "settings", "score"}
    assert isinstance(tuned.score, float) and tuned.solution.accuracy is None
    assert set(tuned.settings) == {"step_size"}


def test_the_noise_on_the_score_is_the_noise_accounted(planned):
    """Of searches that are one training nearly always, so that no score is the largest of many."""
    number, start = NumberOfTrials(1.0001, 2), jnp.zeros(WIDTH)
    run = functools.partial(trials.search, planned.algorithms, number=number)
    keys = jax.random.split(jax.random.key(1), 600)
    best = jax.jit(jax.vmap(lambda key: run(records(), key, start)))(keys)
    x, y = records()
    predicted = np.sign(np.asarray(best.solution.params) @ x.T)
    noise = np.asarray(best.score) - (predicted == y).mean(axis=1)
    stddev = planned.algorithms[0].event.releases[-1].stddev
    assert stats.kstest(noise, "norm", args=(0.0, stddev)).pvalue > LEVEL
    assert stats.kstest(noise, "norm", args=(0.0, 0.5 * stddev)).pvalue < LEVEL


def test_scores_that_are_no_numbers_lose_and_one_training_always_counts(planned):
    drawn = drawn_by(planned, jax.random.key(3))
    stacked, start = trials.stack(planned.algorithms), jnp.zeros(WIDTH)
    carries = search._begin(stacked, drawn, records(), start)
    chosen = functools.partial(
        search._choose, stacked, drawn, carries, records(), start, unit="row", bounded_rows=False
    )
    never = public_score(lambda params: jnp.nan * params.sum())
    none = chosen(never, None)
    assert int(none.setting) == int(drawn.settings[0]) and none.score == -jnp.inf
    np.testing.assert_array_equal(chosen(never, none).score, none.score)
    assert jnp.isfinite(chosen(public_score(jnp.linalg.norm), none).score)


# The guarantee.


def test_every_part_of_a_searched_training_is_said_to_be_of_each():
    parts = (SinglePassRelease("a", 1, 2.0, data_size=9),) * 2
    number = NumberOfTrials(2.0, 6)
    release = SearchRelease.of([(parallel("all", parts),)], number, settings=3)
    said = [
        line for line in guarantee.describe(release).splitlines() if "of each training, a" in line
    ]
    assert len(said) == len(parts) + 1  # and that they use disjoint records


def test_the_guarantee_is_that_of_the_search(planned, tmp_path):
    tuned = tuning.run_plan(planned, dpjax.Dataset(*records(), name="made"), seed=0)
    assert tuned.epsilon() == pytest.approx(planned.epsilon, rel=1e-9) and tuned.epsilon() <= 1
    assert not tuned.releasable
    text = " ".join(tuned.guarantee().split())
    for words in (
        "NOT FOR RELEASE: reproducible noise",
        "settings from a private random search is (",
        "1e-04)-differentially private" if "1e-04)" in text else "0.0001)-differentially private",
        "the best of K trainings; each draws one of 3 declared settings",
        "geometric with mean 2, conditioned on 1 to 6; 6 trainings are made whatever K is",
        "K and all others are secret",
        "of each training, gradient: 3 times",
        "of each training, accuracy: once",
        "the released training, its setting and its score",
        "Not covered: the choice of the declared settings",
    ):
        assert words in text, words
    for item in ("the number K", "of each training, gradient", "of each training, accuracy"):
        assert f"\n  - {item}: " in tuned.guarantee()
    dpjax.save(tmp_path / "model", tuned)
    loaded = dpjax.load(tmp_path / "model")
    assert loaded.text == tuned.guarantee()
    assert loaded.epsilon(1e-4) == tuned.epsilon(1e-4)
    np.testing.assert_array_equal(loaded.params, tuned.params)
    x, _ = records()
    np.testing.assert_array_equal(loaded.predict(x), tuned.predict(x))
    assert "step_size" in repr(tuned) and "score" in repr(tuned)


def test_a_search_within_the_budget_of_every_accounting(planned):
    assert 0.999 < planned.epsilon <= BUDGET.epsilon
    assert planned.training_budget.epsilon < BUDGET.epsilon
    for algorithm in planned.algorithms:
        names = [release.name for release in algorithm.event.releases]
        assert names == ["gradient", "accuracy"]
        spent = algorithm.epsilon(BUDGET.delta)
        assert spent <= planned.training_budget.epsilon
    # The noise that is added is the noise that is accounted: of the algorithms that are trained.
    trainings = [algorithm.event.releases for algorithm in planned.algorithms]
    again = dpjax.accounting.SearchRelease.of(
        trainings, planned.release.number, settings=len(trainings)
    )
    assert again == planned.release


@pytest.mark.parametrize("factory", [dpjax.dp_adam, dpjax.dp_trust_region])
def test_batches_and_hessians_are_searched_too(factory):
    settings = {"clip_norm": [0.5, 1.0]}  # one clips, the other provably does not
    made = functools.partial(
        factory, dpjax.objectives.logistic(), data_size=2_000, dimension=WIDTH, steps=4
    )
    plan = tuning.plan(made, settings, BUDGET, **TRIALS)
    assert 0.999 < plan.epsilon <= BUDGET.epsilon
    assert 1.05 < plan.noise_ratio < 1.5


@pytest.mark.ci
def test_a_certificate_of_the_winner_fails_as_often_as_any_of_the_trainings_may():
    made = functools.partial(make, certify="last_query", beta=0.01)
    tuned = tuning.tune(made, SETTINGS, records(), BUDGET, seed=0, **TRIALS)
    assert tuned.solution.certificate.beta == pytest.approx(0.02, rel=1e-6)
    made = functools.partial(make, certify="last_query", beta=0.6)
    tuned = tuning.tune(made, SETTINGS, records(), BUDGET, seed=0, **TRIALS)
    assert tuned.solution.certificate is None and tuned.solution.certified_params is None


def test_the_price_is_held_against_composition():
    few = tuning.plan(make, {"step_size": [1.0, 2.0]}, BUDGET, trials=10)
    assert few.composition_ratio < few.noise_ratio
    assert any("costs more than training all 2 settings" in line for line in few.advice())
    many = tuning.plan(make, {"step_size": np.geomspace(0.1, 10, 32)}, BUDGET, trials=10)
    assert many.composition_ratio > 5 and many.noise_ratio < 1.8
    assert "about what training on" in many.advice()[-1]
    # By hand: 32 trainings and scores, each with the noise times sqrt(32).
    mu = many.algorithms[0].event.gaussian_mu
    whole = 1 / dpjax.accounting.gaussian_multiplier(BUDGET, 1)
    assert many.composition_ratio / many.noise_ratio == pytest.approx(
        math.sqrt(32) * mu / whole, rel=1e-4
    )


# Scores.


def test_a_score_on_public_records_costs_nothing_and_takes_any_function():
    x, y = records()
    objective = dpjax.objectives.logistic_l2(1e-3)
    public = tuning.PublicAccuracy.of(objective, (x[:50], y[:50]))
    noisy = tuning.plan(make, SETTINGS, BUDGET, **TRIALS)
    free = tuning.plan(make, SETTINGS, BUDGET, score=public, **TRIALS)
    assert [release.name for release in free.algorithms[0].event.releases] == ["gradient"]
    assert free.noise_ratio < 0.98 * noisy.noise_ratio
    tuned = tuning.run_plan(free, (x, y), seed=0)
    assert tuned.score == float(public(tuned.params))
    assert "from released parameters and public records" in str(tuned.guarantee())
    norm = tuning.tune(make, SETTINGS, (x, y), BUDGET, seed=0, score=jnp.linalg.norm, **TRIALS)
    assert norm.score == pytest.approx(float(jnp.linalg.norm(norm.params)))


def test_persons_have_either_score_and_a_private_n_needs_a_public_one():
    x, y = records()
    data = group(dpjax.Dataset(x, y, max_norm=1.0), by=np.arange(ROWS) // 2, max_records=2)
    objective = dpjax.objectives.logistic_l2(1e-3).of_units()
    made = functools.partial(
        dpjax.dp_gradient_descent,
        objective,
        data_size=data.size,
        dimension=WIDTH,
        steps=3,
        certify=None,
    )
    assert tuning.plan(made, SETTINGS, BUDGET, **TRIALS).epsilon <= 1
    public = tuning.PublicAccuracy.of(objective, (x[:50], y[:50]))
    assert tuning.tune(made, SETTINGS, data, BUDGET, seed=0, score=public, **TRIALS).score > 0.5
    hidden = dpjax.PrivacyBudget(1.0, 1e-4, "add_or_remove_one")
    with pytest.raises(ValueError, match="pass score="):
        tuning.plan(make, SETTINGS, hidden, **TRIALS)
    assert tuning.plan(make, SETTINGS, hidden, score=public, **TRIALS).epsilon <= 1


def printed(params):
    jax.debug.print("{}", params)
    return params.sum()


def called_back(params):
    return jax.pure_callback(np.sum, jax.ShapeDtypeStruct((), jnp.float32), params)


def told(params):
    jax.experimental.io_callback(print, None, params)
    return params.sum()


def foreign(params):
    call = jax.ffi.ffi_call("sum", jax.ShapeDtypeStruct((), jnp.float32), vmap_method="sequential")
    return call(params)


def checked(params):
    checkify.check(params[0] < 1, "not")
    return params.sum()


def printed_somewhere(params):
    return jax.lax.cond(True, printed, printed, params)


def ref_writer():
    kept = jax.new_ref(jnp.zeros(WIDTH))

    def score(params):
        kept[...] = params
        return params.sum()

    return score


def test_c76_a_public_score_that_tells_of_every_training_is_refused(tmp_path):
    """A score is computed of all trainings, and the search pays for one of them."""
    path = tmp_path / "book"
    budget = dpjax.PrivacyBudget(1.0, 1e-4, BUDGET.relation)
    refused = {
        "calls Python": (
            printed,
            called_back,
            told,
            lambda w: jax.lax.cond(True, printed, printed, w),
        ),
        "mutable array": (ref_writer(),),
        "Python or C": (foreign,),
        "one real number": (
            lambda params: params,
            lambda params: params.sum() * 1j,
            lambda params: jax.random.key(0),
        ),
        "cannot be computed": (
            lambda params: params @ jnp.ones(WIDTH + 1),
            lambda params: params[params > 0].sum(),
            checked,
        ),
    }
    with dpjax.Ledger.create(path, budget, renyi_order=8.0) as ledger:
        for words, scores in refused.items():
            for score in scores:
                with pytest.raises(ValueError, match=words):
                    tuning.tune(
                        make, SETTINGS, records(), BUDGET, seed=0, score=score, ledger=ledger,
                        label="x", **TRIALS,
                    )  # fmt: skip
        assert not ledger.entries


def test_a_score_that_is_none_is_named():
    with pytest.raises(ValueError, match="score must be 'accuracy'"):
        public_score("accurracy")
    with pytest.raises(ValueError, match="predicts no label"):
        tuning.PublicAccuracy.of(dpjax.objectives.OBJECTIVES["pca"](), records())
    with pytest.raises(ValueError, match="pass score="):
        tuning.plan(
            functools.partial(
                dpjax.dp_gradient_descent,
                dpjax.objectives.OBJECTIVES["pca"](),
                data_size=ROWS,
                dimension=WIDTH,
            ),
            {"steps": [1, 2]},
            BUDGET,
        )


# What is refused, before anything is spent.


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"settings": {}}, "name nothing to vary"),
        ({"settings": {"step_size": []}}, "name nothing to vary"),
        ({"settings": {"step_size": 0.1}}, "must be a sequence of values"),
        ({"settings": "step_size"}, "must be a dict"),
        ({"settings": [1, 2]}, "must be a dict"),
        ({"settings": {"step_size": np.ones(5_000)}}, "more than 4,096"),
        ({"settings": {"step_size": [1.0, -1.0]}}, "step_size.*-1.0.*cannot be searched"),
        ({"settings": {"no_such": [1.0]}}, "no_such.*cannot be searched"),
        ({"settings": {"output": ["last", "average"]}}, "need different programs"),
        ({"trials": 1.0}, "trials must be above 1"),
        ({"cap": 2}, "below the cap"),
        ({"shape": -1.0}, "shape"),
        ({"score_share": 1.0}, "score_share"),
        ({"budget": 1.0}, "budget must be a PrivacyBudget"),
        ({"key": None}, "key"),
        ({"memory_limit": 0}, "memory_limit"),
        ({"ledger": "absent"}, "label is required"),
        ({"data": dpjax.distributed.shard(records())}, "one device"),
        ({"params": jnp.zeros(WIDTH + 1)}, "params hold"),
        ({"data": (records()[0], records()[1][:-1])}, "same number of rows"),
    ],
)
def test_bad_input_is_named_before_anything_is_spent(change, words, monkeypatch):
    def spent(*arguments, **options):
        raise AssertionError("the budget was spent")

    monkeypatch.setattr(search, "_search", spent)
    given = {"settings": SETTINGS, "data": records(), "budget": BUDGET, "seed": 0} | TRIALS
    if "key" in change:
        given.pop("seed")
    given |= change
    with pytest.raises(ValueError, match=words):
        tuning.tune(make, given.pop("settings"), given.pop("data"), given.pop("budget"), **given)


def test_an_algorithm_for_other_neighbours_than_the_budget_is_refused():
    other = dpjax.PrivacyBudget(1.0, 1e-4, "replace_one")

    def other_make(budget, **setting):
        return make(other, **setting)

    with pytest.raises(ValueError, match="an algorithm for 'replace_one'"):
        tuning.plan(other_make, SETTINGS, BUDGET, score=jnp.linalg.norm)


def test_noise_that_spends_all_of_delta_is_refused():
    objective = dpjax.objectives.logistic_l2()
    made = functools.partial(
        dpjax.perturbed_gradient_descent,
        objective,
        data_size=ROWS,
        dimension=WIDTH,
        batch_size=20,
        steps=2,
    )
    public = tuning.PublicAccuracy.of(objective, records())
    with pytest.raises(ValueError, match="Noise in a ball"):
        tuning.plan(made, {"step_size": [0.1]}, BUDGET, score=public, **TRIALS)


@pytest.mark.ci
def test_a_winner_that_is_not_finite_warns():
    def absurd(budget, **setting):
        objective = dpjax.objectives.logistic_l2(1.0)
        return dpjax.dp_gradient_descent(
            objective, budget, data_size=ROWS, dimension=WIDTH, steps=12, certify=None, **setting
        )

    with pytest.warns(RuntimeWarning, match="not finite"):
        tuning.tune(absurd, {"step_size": [1e30]}, records(), BUDGET, seed=0, **TRIALS)


def test_records_on_disk_are_refused():
    streamed = jax.tree.map(lambda leaf: dpjax.distributed.stream(leaf), records())
    with pytest.raises(ValueError, match="in memory"):
        tuning.tune(make, SETTINGS, streamed, BUDGET, seed=0, **TRIALS)


def test_settings_are_a_grid_or_a_list():
    grid = tuning.expand({"a": (1, 2), "b": [3.0]})
    assert grid == tuning.expand([{"a": 1, "b": 3.0}, {"a": 2, "b": 3.0}])
    (value,) = tuning.expand({"a": np.array([0.5])})[0].values()
    assert type(value) is float


def test_c43_a_search_is_booked_and_a_key_serves_one(planned, tmp_path):
    data = dpjax.Dataset(*records(), name="made")
    dpjax.Ledger.create(tmp_path / "gaussian", BUDGET, unsampled=True).close()
    with pytest.raises(ValueError, match="samples or selects"):
        tuning.run_plan(planned, data, seed=0, ledger=tmp_path / "gaussian")
    allowed = dpjax.PrivacyBudget(1.6, 1e-4)
    dpjax.Ledger.create(tmp_path / "renyi", allowed, parts=("north", "south")).close()
    key = dpjax.random_key()
    tuned = tuning.run_plan(planned, data, key=key, ledger=tmp_path / "renyi", part="north")
    assert tuned.releasable and "the part 'north'" in tuned.guarantee()
    with dpjax.Ledger.open(tmp_path / "renyi") as ledger:
        (entry,) = ledger.entries
        assert entry.label == "made" and entry.finished
        assert entry.draws > 0 and entry.part == "north"
        assert ledger.of("south").remaining == 1
        before = ledger.remaining
        with pytest.raises(ValueError, match="used by another training"):
            tuning.run_plan(planned, data, key=key)
        # A second search does not fit, and is refused before it begins.
        assert before < entry.cost
        with pytest.raises(ValueError, match="would exceed the budget"):
            tuning.run_plan(planned, data, key=dpjax.random_key(), ledger=ledger)


@pytest.mark.parametrize("memory", [tuning.search.MEMORY, 1])
def test_a_search_that_was_interrupted_goes_on_bit_for_bit(planned, tmp_path, memory, monkeypatch):
    """In one piece, and in pieces of one training each."""
    data, folder = dpjax.Dataset(*records(), name="made"), tmp_path / "search"
    dpjax.Ledger.create(tmp_path / "ledger", dpjax.PrivacyBudget(1.6, 1e-4)).close()
    how = {"ledger": tmp_path / "ledger", "memory_limit": memory, "checkpoint": folder}
    whole = tuning.run_plan(planned, data, seed=3, memory_limit=memory)
    advance, asked = tuning.search._advance, iter(range(100))

    def interrupted(*arguments):
        if next(asked) == 2:
            raise KeyboardInterrupt
        return advance(*arguments)

    monkeypatch.setattr(tuning.search, "_advance", interrupted)
    monkeypatch.setattr(tuning.search, "_PIECE_SECONDS", 0.0)  # one step at a time
    with pytest.raises(KeyboardInterrupt, match="goes on from what was saved and spends nothing"):
        tuning.run_plan(planned, data, seed=3, **how)
    monkeypatch.undo()
    for _ in range(2):  # and again, when it has ended
        again = tuning.run_plan(planned, data, **how)
        assert (again.score, again.settings) == (whole.score, whole.settings)
        np.testing.assert_array_equal(again.params, whole.params)
        assert not again.releasable
    with dpjax.Ledger.open(tmp_path / "ledger") as ledger:
        (entry,) = ledger.entries
        assert entry.finished
    # Another score would choose another of the trainings: a second release.
    other = dataclasses.replace(planned, score=tuning.score.public_score(lambda params: params[0]))
    with pytest.raises(dpjax.ResumeMismatch, match=r"^score of the search computes something else"):
        tuning.run_plan(other, data, **how)
    with pytest.raises(dpjax.ResumeMismatch, match=r"^memory_limit of the search was enough for "):
        tuning.run_plan(planned, data, **how | {"memory_limit": 10_000})


def test_a_score_that_reads_what_changed_is_computed_anew(tmp_path):
    """JAX compiles a function once; the checkpoint's name for it is that of what it is now."""
    sign = [1.0]
    chosen = tuning.plan(make, SETTINGS, BUDGET, score=lambda params: sign[0] * params[0], **TRIALS)
    how = {"seed": 0, "checkpoint": tmp_path / "search"}
    first = tuning.run_plan(chosen, records(), **how)
    sign[0] = -1.0
    second = tuning.run_plan(chosen, records(), seed=0)
    assert (first.score, second.score) == (first.params[0], -second.params[0])
    with pytest.raises(dpjax.ResumeMismatch, match=r"^score of the search computes something else"):
        tuning.run_plan(chosen, records(), **how)


# Attacked.


@pytest.mark.ci
@pytest.mark.parametrize(("name", "runs"), [("search", 20_000), ("search-accuracy", 4_000)])
def test_an_audit_of_few_runs_does_not_refute_the_search(name, runs, monkeypatch):
    """A whole search; ``dpjax audit`` makes many times as many runs and asks for power."""
    # On which side of 1 the noise found lies is known without the digits, at 0.3 s for each bit.
    monkeypatch.setattr("dpjax.accounting.one_run._PRECISION", 1.0)
    found = auditing.audit(name, key=jax.random.key(4), runs=runs)
    assert not found.refuted and 0 < found.ratio < 1


# The command line and the estimator.


@pytest.fixture
def table(tmp_path):
    random = np.random.default_rng(0)
    rows = [f"{a:.3f},{b:.3f},{int(a + b > 1)}" for a, b in random.random((300, 2)).tolist()]
    for name in ("my", "public"):
        (tmp_path / f"{name}.csv").write_text("\n".join(["a,b,sick", *rows]) + "\n")
    (tmp_path / "bounds.json").write_text('{"a": [0, 1], "b": [0, 1]}')
    return [
        "--data", str(tmp_path / "my.csv"), "--label", "sick", "--classes", "0,1",
        "--bounds", str(tmp_path / "bounds.json"), "--intercept",
    ]  # fmt: skip


FEW = ["--steps", "3", "--trials", "2", "--cap", "4", "--epsilon", "3"]


@pytest.mark.ci
def test_the_command_searches_writes_and_says_the_price(table, tmp_path, capsys):
    model, out = str(tmp_path / "model"), str(tmp_path / "out.json")
    words = ["tune", "dp-gd", *table, *FEW, "--save", model, "--json", out]
    words += ["--grid", "learning-rate=1,4", "regularization=1e-4,1e-2"]
    assert main([*words, "--dry-run"]) == 0
    dry = capsys.readouterr().out
    assert "nothing was spent" in dry and "settings from a private random search" in dry
    assert "times the noise" in dry and "plain composition" in dry
    assert not (tmp_path / "model").exists()
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "chosen: " in said and "optimistic" in said and "releasable: false" not in said
    content = json.loads((tmp_path / "out.json").read_text())
    assert content["releasable"] and content["epsilon"] <= 3
    assert content["chosen"] in content["settings"] and len(content["settings"]) == 4
    assert set(content["chosen"]) == {"step_size", "regularization"}
    assert content["noise"][0]["cap"] == 4 and content["noise"][0]["mechanism"] == "search"
    assert 0 < content["noise_ratio"] < content["composition_ratio"]
    assert dpjax.load(model).text in said


@pytest.mark.ci
def test_the_command_scores_on_public_records_and_books(table, tmp_path, capsys):
    ledger = str(tmp_path / "ledger")
    create = ["ledger", "create", ledger, "--epsilon", "4", "--delta", "1e-3"]
    assert main([*create, "--parts", "north", "south"]) == 0
    words = ["tune", "dp-gd", *table, *FEW, "--grid", "learning_rate=1,4", "--ledger", ledger]
    words += ["--part", "north"]
    words += ["--public", str(tmp_path / "public.csv"), "--seed", "0"]
    assert main([*words, "--dry-run"]) == 0 and main(words) == 0
    said = capsys.readouterr().out
    assert "the accuracy on" in said and "releasable: false" in said
    assert [entry.part for entry in dpjax.Ledger.read(ledger).entries] == ["north"]
    assert said.count("the part 'north'") == 2


@pytest.mark.ci
def test_the_command_scores_persons_on_public_records(table, tmp_path, capsys):
    for name in ("my", "public"):
        head, *rows = (tmp_path / f"{name}.csv").read_text().splitlines()
        rows = [f"{row},{place // 3}" for place, row in enumerate(rows)]
        (tmp_path / f"{name}.csv").write_text("\n".join([f"{head},who", *rows, ""]))
    words = ["tune", "dp-gd", *table, *FEW, "--grid", "learning_rate=1,4", "--seed", "0"]
    words += ["--public", str(tmp_path / "public.csv"), "--unit", "who", "--max-records", "2"]
    assert main(words) == 0 and "one 'who' with all its rows" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["spider"], "no settings that a search takes by default"),
        (["--grid", "learning_rate"], "NAME=VALUES"),
        (["--grid", "radius=1,2", "radius=3"], "twice"),
        (["dp-gd", "--grid", "radius=1,2"], "setting of dp-gd"),
        (["--trials", "0.5"], "trials must be above 1"),
        (["dp-gd", "--radius", "2"], "takes no radius"),
        (["--save", "/no/such/folder/model"], "cannot be written"),
    ],
)
def test_the_command_names_what_is_wrong(more, words, capsys):
    assert main(["tune", *more]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", mostly_ci([n for n, e in dpjax.algorithms.ALL.items() if e.grid], ["dp-tr", "dp-adam"])
)
def test_default_grids_are_of_one_program_and_of_arguments_that_exist(name):
    entry = dpjax.algorithms.ALL[name]
    made = functools.partial(
        entry.factory,
        dpjax.objectives.logistic_nonconvex(),
        data_size=2_000,
        dimension=WIDTH,
        **entry.example.required,
    )
    plan = tuning.plan(made, tuning.default_settings(entry.grid, name), BUDGET, trials=3)
    assert plan.epsilon <= 1 and plan.noise_ratio < 1.6
    assert plan.composition_ratio > plan.noise_ratio


@pytest.mark.ci
def test_the_estimator_searches(tmp_path):
    random = np.random.default_rng(0)
    x = random.uniform(0, 100, (500, 2))
    y = np.where(x[:, 0] > x[:, 1], "rain", "sun")
    given = {"classes": ("rain", "sun"), "bounds": (0, 100), "epsilon": 3.0}
    given |= {"solver": "dp-gd", "solver_options": {"steps": 3}}
    settings = {"step_size": [1.0, 4.0], "regularization": [1e-4, 1e-2]}
    model = dpjax.estimators.DPLogisticRegression(**given, tune=settings, random_state=2)
    model.fit(x, y)
    assert set(model.settings_) == set(settings)
    assert "private random search" in model.guarantee_ and not model.releasable_
    assert "rain" in model.guarantee_
    assert model.score(x, y) > 0.7
    plain = dpjax.estimators.DPLogisticRegression(**given, random_state=0).fit(x, y)
    assert plain.settings_ == {} and "search" not in plain.guarantee_
    wrong = dpjax.estimators.DPLogisticRegression(**given, tune={"radius": [1]})
    with pytest.raises(ValueError, match="setting of dp-gd"):
        wrong.fit(x, y)
    spent = epsilon(model.solution_.event, 1 / 5_000, "zero_out")
    assert spent <= 3 and isinstance(model.solution_.event, Event)
