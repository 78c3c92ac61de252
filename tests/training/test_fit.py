"""``fit``: what it trains and refuses, that it is ``solve``, and what it measures on the way."""

import functools
import json
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from factories import Crash, mostly_ci
from flax import nnx

import dpjax
from dpjax import datasets
from dpjax._program import program_hash
from dpjax.accounting import Ledger
from dpjax.display.cards import ceil
from dpjax.driver import ResumeMismatch, Watch, loop, progress
from dpjax.training import evaluation
from dpjax.transforms import holds_noise

N, P, CLASSES, DELTA = 60, 4, 3, 1e-3
BUDGET = dpjax.PrivacyBudget(20.0, DELTA)
KEY = jax.random.wrap_key_data(np.array([314_159, 271_828], np.uint32), impl="threefry2x32")
START = jnp.zeros((P, CLASSES))
SGD, SAME = (optax.sgd(0.3, momentum=0.5) for _ in range(2))


def linear(params, x):
    return x @ params


def squared(outputs, y):
    return jnp.sum((outputs - y) ** 2)


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(CLASSES)(nn.tanh(nn.Dense(8)(x)))


class Nnx(nnx.Module):
    def __init__(self, rngs, normalise=None):
        self.layers = nnx.List([nnx.Linear(P, 8, rngs=rngs), nnx.Linear(8, CLASSES, rngs=rngs)])
        self.normalise = normalise

    def __call__(self, x):
        x = nnx.tanh(self.layers[0](x))
        x = x if self.normalise is None else self.normalise(x)
        return self.layers[1](x)


def records(rows=N, seed=0):
    x = np.random.default_rng(seed).normal(size=(rows, P)).astype(np.float32)
    return x, np.argmax(x[:, :CLASSES], axis=1)


def fitted(model=linear, data=None, **more):
    given = {"key": KEY, "batch_size": 10, "epochs": 2, "progress": False}
    if model is linear:
        given["params"] = START
    given |= more
    loss, budget = given.pop("loss", "cross_entropy"), given.pop("budget", BUDGET)
    optimizer = given.pop("optimizer", SGD)
    data = records() if data is None else data
    return dpjax.fit(model, loss, data, budget, optimizer, **given)


def configured(optimizer=SGD, budget=BUDGET, **more):
    objective = dpjax.objectives.cross_entropy(linear)
    sizes = {"data_size": N, "dimension": START.size, "batch_size": 10, "steps": 6} | more
    return dpjax.dp_optimizer(
        objective, budget, optimizer=optimizer, params=START, clip_norm=1.0, **sizes
    )


def bits(tree):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


@pytest.fixture
def unspent(monkeypatch):
    """Fails where the data are asked anything."""

    def advance(*given):
        raise AssertionError("the data were asked")

    monkeypatch.setattr(progress, "_advance", advance)


# What it trains.


@pytest.mark.parametrize(
    "model",
    [linear, pytest.param(Linen(), marks=pytest.mark.ci), Nnx(nnx.Rngs(0))],
    ids=["function", "linen", "nnx"],
)
def test_every_kind_of_model_learns_and_predicts(model):
    data = records(600)
    trained = fitted(model, data, batch_size=60, epochs=6, optimizer=optax.adam(0.05))
    x, y = records(700, seed=1)
    assert np.mean(trained.predict(x) == y) > 0.75
    outputs = trained.outputs(x)
    assert outputs.shape == (700, CLASSES)
    np.testing.assert_allclose(trained.model(x), outputs, atol=1e-5)


def test_without_classes_nothing_is_predicted():
    x, _ = records()
    with pytest.raises(ValueError, match="outputs"):
        fitted(data=(x, np.ones((N, CLASSES), np.float32)), loss=squared).predict(x)


@pytest.mark.ci
def test_an_nnx_module_is_left_as_it_was():
    model = Nnx(nnx.Rngs(0))
    before = bits(nnx.state(model))
    assert bits(fitted(model, steps=2, epochs=None).params) != before
    assert bits(nnx.state(model)) == before


def test_it_is_solve_of_an_ordinary_algorithm():
    trained = fitted()
    again = dpjax.solve(trained.solution.algorithm, records(), key=KEY, params=START)
    assert bits(trained.solution) == bits(again)
    assert trained.epsilon(DELTA) <= BUDGET.epsilon
    assert "\nDP optimizer is (20, 0.001)" in trained.guarantee()


def test_persons_are_trained_as_units():
    x, y = records()
    persons = np.arange(N) // 3
    found = fitted(groups=persons, max_records=2, exact=True)
    text = found.solution.guarantee()
    assert "one 'person' with all its rows" in " ".join(text.split())
    kept = np.arange(N) % 3 < 2
    alone = fitted(data=datasets.group(dpjax.Dataset(x, y), persons, 2))
    for one, other in zip(*map(jax.tree.leaves, (found.params, alone.params)), strict=True):
        np.testing.assert_array_equal(one, other)
    accuracy = np.mean(found.predict(x[kept]) == y[kept])
    assert found.exact_training["accuracy"][-1] == pytest.approx(accuracy)


@pytest.mark.ci
def test_a_factory_of_batches_is_trained_and_measured_alike():
    adam = functools.partial(dpjax.dp_adam, step_size=0.1, b1=0.8)
    trained = fitted(optimizer=adam, held_out=records(20, 1), accountant="rdp")
    algorithm = trained.solution.algorithm
    assert algorithm.title == "DP-Adam" and algorithm.accountant == "rdp"
    assert trained.exact_held_out["step"].tolist() == [6, 12]
    again = dpjax.solve(algorithm, records(), key=KEY, params=START)
    assert bits(trained.solution) == bits(again)


@pytest.mark.ci
def test_the_parameters_of_an_optimizer_are_those_of_the_dimension():
    """An optimizer that treats leaves differently is traced with the pytree it is for."""
    start = {"weights": START, "bias": jnp.zeros(CLASSES)}
    by_leaf = optax.multi_transform(
        {"slow": optax.sgd(0.1), "fast": optax.adam(0.1)}, {"weights": "slow", "bias": "fast"}
    )
    objective = dpjax.objectives.cross_entropy(lambda w, x: x @ w["weights"] + w["bias"])
    sizes = {"data_size": N, "steps": 2, "clip_norm": 1.0, "optimizer": by_leaf}
    dimension = START.size + CLASSES
    algorithm = dpjax.dp_optimizer(objective, BUDGET, dimension=dimension, params=start, **sizes)
    solution = dpjax.solve(algorithm, records(), key=KEY, params=start)
    assert not np.allclose(solution.params["bias"], 0)
    with pytest.raises(ValueError, match=f"params hold {dimension} numbers, but dimension=3"):
        dpjax.dp_optimizer(objective, BUDGET, dimension=3, params=start, **sizes)
    plain = dpjax.dp_optimizer(dpjax.objectives.logistic(), BUDGET, data_size=N, dimension=3)
    assert plain == dpjax.dp_optimizer(
        dpjax.objectives.logistic(), BUDGET, data_size=N, dimension=3
    )


def test_without_noise_it_is_optax_alone():
    optimizer, (x, y) = optax.adam(optax.linear_schedule(0.1, 0.01, 6)), records()
    objective = dpjax.objectives.cross_entropy(linear, dpjax.objectives.L2(0.1))
    algorithm = dpjax.dp_optimizer(
        objective,
        dpjax.PrivacyBudget(1e6, DELTA),
        optimizer=optimizer,
        data_size=N,
        dimension=START.size,
        params=START,
        batch_size=N,
        steps=6,
        clip_norm=100.0,
    )
    quiet = jax.tree.map(lambda leaf: leaf, algorithm)
    object.__setattr__(quiet.query, "noise_multiplier", 1e-7)
    found = dpjax.solve(quiet, (x, y), key=KEY, params=START).params
    params, state = START, optimizer.init(START)
    for _ in range(6):
        gradient = jax.grad(lambda w: dpjax.diagnostics.exact_objective(objective, w, (x, y)))
        updates, state = optimizer.update(gradient(params), state, params)
        params = optax.apply_updates(params, updates)
    np.testing.assert_allclose(found, params, atol=1e-4)


@pytest.mark.ci
def test_parameters_in_half_precision_stay_so_and_resume(tmp_path, crash):
    half = {"params": START.astype(jnp.bfloat16), "optimizer": optax.adam(0.1)}
    whole = fitted(**half)
    assert whole.params.dtype == jnp.bfloat16 and jnp.isfinite(whole.params).all()
    crash(5)
    with pytest.raises(Crash):
        fitted(**half, checkpoint=tmp_path / "c")
    crash(None)
    assert bits(fitted(**half, checkpoint=tmp_path / "c").solution) == bits(whole.solution)


@pytest.mark.ci
def test_in_float64():
    with jax.enable_x64(True):
        trained = fitted(
            params=jnp.zeros((P, CLASSES), jnp.float64), output="average", average_decay=0.9
        )
        assert trained.params.dtype == jnp.float64


def test_c33_an_impossible_label_and_a_nan_are_the_same_null_record():
    x, y = records()
    strange, broken = y.copy(), x.copy()
    strange[3], broken[3] = 77, np.nan
    found = [fitted(data=data, batch_size=N) for data in ((x, strange), (broken, y), (x, y))]
    one, other, neither = (bits(trained.params) for trained in found)
    assert one == other != neither


@pytest.mark.ci
def test_bytes_are_scaled_by_declared_bounds():
    x = np.random.default_rng(0).integers(0, 256, (N, 2, 2), dtype=np.uint8)
    y = records()[1]

    def flat(params, x):
        return x.ravel() @ params

    whole = {"params": START, "steps": 3, "epochs": None, "batch_size": N}
    trained = fitted(flat, (x, y), bounds=(0, 255), **whole)
    scaled = (x / np.float32(255)).reshape(N, 4)
    np.testing.assert_allclose(trained.outputs(x), scaled @ trained.params, atol=1e-5)
    wide = fitted(flat, (x.astype(np.int32) * 4 - 255, y), bounds=(0, 255), **whole)
    clamped = np.clip(x.astype(np.int32) * 4 - 255, 0, 255).reshape(N, 4) / np.float32(255)
    found = wide.outputs(x.astype(np.int32) * 4 - 255)
    np.testing.assert_allclose(found, clamped @ wide.params, atol=1e-5)


class Grouped(nn.Module):
    """Without a batch axis linen's GroupNorm would take the rows of an image for one."""

    @nn.compact
    def __call__(self, x):
        x = nn.GroupNorm(num_groups=2)(nn.Conv(4, (3, 3))(x))
        return nn.Dense(CLASSES)(x.reshape(x.shape[0], -1))


@pytest.mark.parametrize(
    ("model", "shape", "batched"),
    [
        (Grouped(), (6, 6, 1), True),
        (dpjax.models.CNN(), (28, 28), False),
        (Linen(), (P,), True),
        (Nnx(nnx.Rngs(0)), (P,), True),
    ],
)
def test_a_module_is_shown_a_batch_where_it_takes_one(model, shape, batched):
    from dpjax.training.network import network

    example = jax.ShapeDtypeStruct(shape, jnp.float32)
    found, params = network(model, example, None, lambda: KEY)
    assert found.batched is batched
    outputs = found(params, jnp.ones(shape))
    assert outputs.shape == ((10,) if model == dpjax.models.CNN() else (CLASSES,))
    # Made again it is equal, so that nothing compiles anew.
    again, same = network(model, example, None, lambda: KEY)
    assert again == found and hash(again) == hash(found) and bits(same) == bits(params)


# What it refuses, before anything is spent.


class Normed(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(CLASSES)(nn.BatchNorm(use_running_average=False)(x))


class Nested(nn.Module):
    @nn.compact
    def __call__(self, x):
        return Normed()(x)


class Counting(nn.Module):
    @nn.compact
    def __call__(self, x):
        seen = self.variable("counts", "seen", jnp.zeros, ())
        seen.value += jnp.sum(x)
        return nn.Dense(CLASSES)(x)


class Whole(nn.Module):
    @nn.compact
    def __call__(self, x):
        table = self.param("table", lambda key: jnp.ones((P, CLASSES), jnp.int32))
        return x @ table


RNGS = nnx.Rngs(0)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Normed(), "'BatchNorm_0' .*'batch_stats'.*'mean'.*use_running_average=True.*GroupNorm"),
        (Nested(), "'Normed_0/BatchNorm_0' .*GroupNorm"),
        (Counting(), "the module itself.*'counts'.*'seen'.*writes from the examples"),
        (Nnx(RNGS, nnx.BatchNorm(8, rngs=RNGS)), r"'normalise' .*BatchNorm.*'mean'.*GroupNorm"),
        (Whole(), "floating: 'table' of the model is int32"),
        (nn.Module, "model must be"),
        ("net", "model must be"),
    ],
)
def test_c31_a_model_with_state_names_its_layer(model, words, unspent):
    with pytest.raises(ValueError, match=words):
        fitted(model)


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.MultiSteps(SGD, 4),
        optax.MultiSteps(SGD, 4).gradient_transformation(),
        optax.chain(optax.clip(1.0), optax.MultiSteps(SGD, 4).gradient_transformation()),
    ],
)
def test_c15_multi_steps_is_refused(optimizer, unspent):
    with pytest.raises(ValueError, match="belongs to the gradient"):
        fitted(optimizer=optimizer)


@pytest.mark.parametrize(
    "noise",
    [
        dpjax.transforms.add_ball_noise(1.0, KEY),
        optax.contrib.differentially_private_aggregate(1.0, 1.0, 0),
        optax.add_noise(0.1, 0.5, 0),
    ],
)
def test_an_optimizer_with_noise_of_its_own_is_refused(noise, unspent):
    optimizer = optax.chain(noise, SGD)
    assert holds_noise(optimizer, START) and not holds_noise(SGD, START)
    with pytest.raises(ValueError, match="adds noise itself"):
        fitted(optimizer=optimizer)


IMAGES = np.zeros((N, 2, 2), np.uint8)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"params": None}, "params is required"),
        ({"params": jnp.zeros((P, CLASSES), jnp.int32)}, "floating"),
        ({"params": {}}, "no parameters"),
        ({"model": Nnx(nnx.Rngs(0)), "params": START}, "'layers/0/bias' is missing"),
        ({"model": Linen(), "params": {"Dense_0": START}}, "not those of the model"),
        ({"epochs": None}, "exactly one of epochs= and steps="),
        ({"steps": 3}, "exactly one of epochs= and steps="),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"evaluate_every": 0}, "evaluate_every"),
        ({"output": "average", "average_decay": 2.0}, "average_decay must be from 0 to 1"),
        ({"average_decay": 0.9, "output": "random"}, "average_decay=0.9"),
        ({"output": "best"}, "unknown output"),
        ({"accountant": "paper"}, "accountant='paper'"),
        ({"optimizer": 0.1}, "optimizer must be"),
        ({"optimizer": optax.adam}, "optax.adam.1e-3., or a factory"),
        ({"optimizer": optax.contrib.reduce_on_plateau()}, "'value'"),
        ({"loss": "hinge"}, "unknown loss 'hinge'"),
        ({"loss": lambda o, y: o}, "loss must give one number"),
        ({"metrics": {"all": lambda o, y: o}}, "'all' must give one number"),
        ({"model": lambda w, x: w, "params": START}, "logits"),
        ({"data": records()[0]}, "data must be a Dataset"),
        ({"data": (np.zeros((0, P)), np.zeros(0))}, "must hold at least one record"),
        ({"data": (np.zeros((3, P)), np.zeros(2))}, "the same number of rows"),
        ({"data": (IMAGES, records()[1])}, "bounds must be given"),
        ({"data": (IMAGES, records()[1]), "bounds": (255, 0)}, "low below high"),
        ({"held_out": (np.zeros((3, P + 1)), np.zeros(3))}, "records of held_out have shapes"),
        ({"budget": 1.0}, "budget must be"),
        ({"budget": dpjax.PrivacyBudget(1.0, DELTA, "add_or_remove_one")}, "data_size is required"),
        ({"data_size": N + 1}, "data_size=61"),
        ({"groups": np.zeros(N, int)}, "groups and max_records go together"),
        ({"groups": np.zeros(3, int), "max_records": 2}, "one entry for each record"),
        ({"key": None}, "key must be"),
    ],
)
def test_bad_input_is_told_before_anything_is_spent(more, words, unspent):
    with pytest.raises(ValueError, match=words):
        fitted(**more)


# Going on after a crash.


@pytest.mark.parametrize("step", mostly_ci([0, 8], [8]))
def test_a_resumed_run_is_the_uninterrupted_one_and_so_is_its_table(step, tmp_path, crash):
    given = {"model": Linen(), "held_out": records(20, 1), "evaluate_every": 0.5}
    whole = fitted(**given)
    crash(step)
    with pytest.raises(Crash):
        fitted(**given, checkpoint=tmp_path / "c")
    crash(None)
    # Another object of the same optimizer; the start is made again from the checkpoint's key.
    same = {"key": None, "optimizer": SAME, "checkpoint": tmp_path / "c"}
    for _ in range(2):
        resumed = fitted(**(given | same))
        assert bits(resumed.solution) == bits(whole.solution)
        assert bits(resumed.exact_held_out) == bits(whole.exact_held_out)
    assert (tmp_path / "c" / "evaluations.json").stat().st_mode & 0o777 == 0o600


def shifted(params, x):
    return x @ params + 1.0


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"optimizer": optax.sgd(0.2, momentum=0.5)}, "^optimizer computes something else"),
        ({"optimizer": optax.sgd(lambda _: 0.3, momentum=0.5)}, "^optimizer computes"),
        ({"model": shifted, "params": START}, r"^objective\.loss computes something else"),
        ({"loss": lambda o, y: -jnp.sum(o)}, r"^objective\.loss computes"),
        ({"params": START + 1}, "params"),
        ({"held_out": records(20, 2)}, "held_out"),
        ({"metrics": {"first": lambda o, y: o[0]}}, "held_out or metrics"),
    ],
)
def test_another_optimizer_model_loss_or_start_is_no_resume(changed, field, tmp_path, crash):
    given = {"checkpoint": tmp_path / "c"}
    if field.startswith("held_out"):
        given["held_out"] = records(20, 1)
    crash(6)
    with pytest.raises(Crash):
        fitted(**given)
    crash(None)
    with pytest.raises(ResumeMismatch, match=field):
        fitted(**(given | {"key": None} | changed))


def test_the_hash_of_held_out_records_needs_the_key(tmp_path):
    """Without it whoever reads the table could confirm a guess at the records."""

    def identity(name, key=KEY, held_out=None, **more):
        given = {"key": key, "checkpoint": tmp_path / name}
        fitted(**given, held_out=records(20, 1) if held_out is None else held_out, **more)
        return json.loads((tmp_path / name / "evaluations.json").read_text())["identity"]

    first = identity("first")
    assert identity("again") == first
    assert identity("other key", dpjax.random_key()) != first
    assert identity("other records", held_out=records(20, 2)) != first
    assert identity("on the training records too", exact=True) != first
    # The checkpoint's own key is read, so that another one is what is refused.
    with pytest.raises(ResumeMismatch, match="key is not the one"):
        identity("first", dpjax.random_key())


def digest(algorithm):
    return loop.describe(algorithm, records(), START).digest


def names(rate):
    schedule = optax.cosine_decay_schedule(rate, 9)
    optimizers = (
        optax.sgd(rate),
        optax.chain(optax.clip(1.0), optax.adamw(schedule)),
        optax.inject_hyperparams(optax.adam)(rate),
    )
    return [digest(configured(optimizer)) for optimizer in optimizers]


def test_an_optimizer_has_one_name_and_another_rate_another():
    """In every process, as ``tests/driver/test_checkpoint.py`` sees."""
    assert names(0.1) == names(0.1)
    assert len({*names(0.1), *names(0.2)}) == 6


def test_c6_another_optimizer_draws_other_noise():
    own = [
        loop.configuration_key(KEY, configured(optax.sgd(rate)), records(), START)
        for rate in (0.1, 0.1, 0.2)
    ]
    words = [bits(jax.random.key_data(key)) for key in own]
    assert words[0] == words[1] != words[2]


RATE = 0.1


def test_a_number_that_a_schedule_reads_from_its_module_is_noticed(monkeypatch):
    """Bytecode does not tell it; the program does."""
    algorithm = configured(optax.sgd(lambda count: RATE * 1.0))
    before = digest(algorithm)
    monkeypatch.setattr(sys.modules[__name__], "RATE", 0.2)
    assert digest(algorithm) != before


# Ledger, bar and compiling.


def test_the_ledger_books_all_steps_once(tmp_path):
    budget = dpjax.PrivacyBudget(10.0, DELTA)
    Ledger.create(tmp_path / "l", budget, parts=("north", "south")).close()
    data = dpjax.Dataset(*records(), name="made up", unit="visit")
    budget = dpjax.PrivacyBudget(2.0, DELTA)
    places = {"ledger": tmp_path / "l", "part": "north"}
    trained = fitted(data=data, budget=budget, output="random", **places)
    (entry,) = Ledger.read(tmp_path / "l").entries
    assert entry.finished and (entry.label, entry.part) == ("made up", "north")
    with Ledger.open(tmp_path / "l") as ledger:
        assert entry.cost == ledger.check(trained.solution.event)
    assert [release.count for release in trained.solution.event.releases] == [12]
    assert "one visit" in trained.guarantee() and "the part 'north'" in trained.guarantee()


def test_the_bar_names_the_epsilon_of_the_whole_run(capfd):
    trained = fitted(progress=True, held_out=records(20, 1))
    shown = capfd.readouterr().err
    assert f"epsilon {ceil(trained.epsilon(DELTA), 3)} in all" in shown
    assert f"held-out {100 * trained.exact_held_out['accuracy'][-1]:.1f} %" in shown


# A toy table: noise drowns its gradients, as a warning then says.
@pytest.mark.filterwarnings("ignore:the noisy gradients cannot be told:RuntimeWarning")
def test_another_epsilon_compiles_nothing():
    fitted(budget=dpjax.PrivacyBudget(1.0, DELTA))
    compiled = progress._advance._cache_size()
    fitted(budget=dpjax.PrivacyBudget(2.0, DELTA), held_out=records(20, 1), evaluate_every=0.3)
    assert progress._advance._cache_size() == compiled


# What it measures.


@pytest.mark.parametrize(
    ("every", "steps"),
    [(1.0, [6, 12]), (0.5, [3, 6, 9, 12]), (0.75, [4, 9, 12]), (9.0, [12]), (1e-9, range(1, 13))],
)
def test_held_out_records_are_measured_at_the_steps_asked_for(every, steps):
    # 4.5 steps are rounded to even.
    table = fitted(held_out=records(20, 1), evaluate_every=every).exact_held_out
    expected = [int(np.round(k * 4.5)) for k in (1, 2)] + [12] if every == 0.75 else list(steps)
    assert table["step"].tolist() == expected
    np.testing.assert_allclose(table["epoch"], table["step"] / 6)


def test_what_is_measured_is_the_exact_mean_and_changes_nothing(monkeypatch):
    monkeypatch.setattr(evaluation, "CHUNK", 16)
    x, y = records(37, 1)
    metrics = {"first": lambda outputs, y: outputs[0]}
    trained = fitted(held_out=(x, y), metrics=metrics, exact=True)
    logits = np.asarray(x @ trained.params)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()
    last = {name: column[-1] for name, column in trained.exact_held_out.items()}
    assert last["loss"] == pytest.approx(float(loss), rel=1e-5)
    assert last["accuracy"] == pytest.approx(np.mean(logits.argmax(1) == y))
    assert last["first"] == pytest.approx(logits[:, 0].mean(), rel=1e-4)
    assert trained.exact_training["step"].tolist() == [6, 12]
    unmeasured = fitted()
    assert bits(trained.solution) == bits(unmeasured.solution)
    assert unmeasured.exact_held_out is None and unmeasured.exact_training is None


def test_a_watch_sees_released_iterates_and_the_start():
    seen = {}
    watch = Watch(frozenset({0, 2, 6}), lambda step, w: str(seen.setdefault(step, w)), "training")
    solution = dpjax.run(
        configured(), records(), key=KEY, params=START, watch=watch, progress=False
    )
    assert sorted(seen) == [0, 2, 6] and bits(seen[0]) == bits(START)
    assert bits(seen[6]) == bits(solution.params) != bits(seen[2])


# Which iterate is the output.


def iterates(**more):
    seen = {}
    watch = Watch(frozenset(range(7)), lambda step, w: str(seen.setdefault(step, w)), "")
    given = {"key": KEY, "params": START, "progress": False}
    solution = dpjax.run(configured(**more), records(), **given, watch=watch)
    return [seen[step] for step in sorted(seen)], solution


def test_the_average_is_the_mean_at_first_and_then_decays():
    assert configured(output="average") == configured(output="average", average_decay=1.0)
    # The state's params are the iterates; the output is their average.
    for decay in (1.0, 0.5):
        algorithm = configured(output="average", average_decay=decay)
        mean = jnp.zeros_like(START)
        state, key = algorithm.init(START), KEY
        assert bits(algorithm.output(state)) == bits(START)
        for step in range(1, 5):
            noise = jax.random.normal(jax.random.fold_in(key, step), START.shape)
            state, _ = algorithm.step(key, state, lambda *given, noise=noise: noise)
            mean = mean + max(1 / step, 1 - decay) * (state.params - mean)
        np.testing.assert_allclose(algorithm.output(state), mean, rtol=1e-5)


@pytest.mark.ci
def test_a_random_iterate_is_drawn_from_the_key_alone_and_all_steps_are_charged():
    algorithm = configured(output="random", steps=4)
    assert algorithm.event == configured(steps=4).event
    keys = jax.random.split(KEY, 400)

    def one(key, data, params):
        return dpjax.solve(algorithm, data, key=key, params=params)

    solve = jax.jit(jax.vmap(one, in_axes=(0, None, None)))
    solution = solve(keys, records(), START)
    steps, status = np.asarray(solution.steps), np.asarray(solution.status)
    # Five standard deviations: fails with probability 2e-6 for another key.
    counts = np.bincount(steps, minlength=5)
    assert counts[0] == 0 and (abs(counts[1:] - 100) < 5 * np.sqrt(75)).all()
    stopped = np.where(steps < 4, dpjax.Status.STOPPED, dpjax.Status.FIXED_HORIZON)
    assert (status == stopped).all()
    assert (solve(keys, records(seed=5), START).steps == steps).all()


def test_seeds_under_vmap_train_as_fit_does_each():
    """Bit for bit, by the algorithm of a ``fit``, whose numbers are arrays; so they are in jit."""

    def hidden(params, x):
        return jnp.tanh(x @ params["hidden"]) @ params["out"]

    start = {"hidden": jnp.ones((P, 8)) / 4, "out": jnp.zeros((8, CLASSES))}
    more = {"batch_size": 20, "steps": 4, "params": start, "progress": False}
    trained = [
        dpjax.fit(hidden, "cross_entropy", records(), BUDGET, SGD, seed=seed, **more)
        for seed in range(3)
    ]

    def one(key):
        algorithm = trained[0].solution.algorithm
        return dpjax.solve(algorithm, records(), key=key, params=start).params

    keys = jax.vmap(jax.random.key)(jnp.arange(3))
    each = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(done.params for done in trained))
    assert bits(jax.vmap(one)(keys)) == bits(each)
    again = jax.jit(one)(keys[0])
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4), again, trained[0].params)


def test_a_random_iterate_is_what_was_there_when_it_was_taken():
    taken, solution = iterates(output="random")
    assert len(taken) == int(solution.steps) + 1 <= 7
    assert bits(taken[-1]) == bits(solution.params)
    trained = fitted(output="random", held_out=records(20, 1))
    assert trained.exact_held_out["step"][-1] == int(trained.solution.steps)


# Real data.


@pytest.mark.ci
def test_mnist_trains_the_cnn(real_data):
    if not (real_data / "mnist.npz").exists():
        pytest.skip("no mnist.npz in DPJAX_DATA")
    with np.load(real_data / "mnist.npz") as raw:
        data = raw["X_train"][:1024], raw["y_train"][:1024]
        held_out = raw["X_test"][:256], raw["y_test"][:256]
    trained = fitted(
        dpjax.models.CNN(),
        data,
        budget=dpjax.PrivacyBudget(50.0, 1e-5),
        optimizer=optax.sgd(1.0, momentum=0.5),
        batch_size=64,
        steps=10,
        epochs=None,
        bounds=(0, 255),
        held_out=held_out,
    )
    assert trained.exact_held_out["accuracy"][-1] > 0.3


def test_a_terminal_or_a_notebook_does_not_change_the_hash_of_a_program(monkeypatch):
    """JAX colours what it prints there: noise would differ, and a checkpoint not be resumed."""
    traced = jax.jit(lambda w: 2 * w), (1.0,)
    prints, hashes = set(), set()
    for colours in (False, True):
        monkeypatch.setattr("jax._src.pretty_printer.CAN_USE_COLOR", colours)
        prints.add(str(jax.make_jaxpr(traced[0])(*traced[1])))
        hashes.add(program_hash(traced))
    assert len(prints) == 2, "planted: no colours were printed"
    assert len(hashes) == 1


def nested(kind, constant):
    """A function of (3, 4) numbers that holds ``constant`` in a program inside its program."""

    def inner(w):
        return jax.jit(lambda w: jnp.sin(w) * constant)(w)

    custom_jvp, custom_vjp = jax.custom_jvp(inner), jax.custom_vjp(inner)
    custom_jvp.defjvp(lambda at, along: (inner(*at), along[0]))
    custom_vjp.defvjp(lambda w: (inner(w), None), lambda kept, slope: (slope,))
    return {
        "jit": inner,
        "checkpoint": jax.checkpoint(inner),
        "checkpoint twice": jax.checkpoint(lambda w: jax.checkpoint(inner)(w) + 1),
        "custom_jvp": custom_jvp,
        "custom_jvp, checkpoint": jax.checkpoint(custom_jvp),
        "custom_vjp": custom_vjp,
        "cond": lambda w: jax.lax.cond(w.sum() > 0, inner, jnp.cos, w),
        "cond, checkpoint": jax.checkpoint(lambda w: jax.lax.cond(w.sum() > 0, inner, jnp.cos, w)),
        "scan": lambda w: jax.lax.scan(lambda a, _: (inner(a), None), w, length=3)[0],
        "while": lambda w: jax.lax.while_loop(lambda a: a.sum() < 1, inner, w),
        "vmap": jax.vmap(lambda row: jax.checkpoint(jax.jit(lambda r: r * constant[0]))(row)),
    }[kind]


KINDS = (
    *("jit", "checkpoint", "checkpoint twice", "custom_jvp", "custom_jvp, checkpoint"),
    *("custom_vjp", "cond", "cond, checkpoint", "scan", "while", "vmap"),
)


@pytest.mark.parametrize("kind", KINDS)
def test_a_constant_of_a_program_inside_is_in_the_hash(kind):
    """Another constant is another training: it draws other noise, and resumes no checkpoint."""
    constants = jnp.arange(12.0).reshape(3, 4), jnp.arange(12.0).reshape(3, 4).at[0, 2].set(7.0)
    one, same, other = (
        program_hash((nested(kind, constant), (jnp.ones((3, 4)),)))
        for constant in (constants[0], constants[0], constants[1])
    )
    assert one == same and one != other
