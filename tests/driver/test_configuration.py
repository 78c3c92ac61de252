"""What is trained is known by the program that JAX traces: another loss draws other noise."""

import dataclasses
import functools
import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from factories import BUDGET, Crash, make, quiet, unit_records

import dpjax
from dpjax._typing import pytree_dataclass
from dpjax.derivatives import primitives
from dpjax.driver import ResumeMismatch, configuration, loop
from dpjax.objectives import Objective

N, P = 40, 3
# 64 bits: dpjax does not note which of these have been used.
KEY = jax.random.wrap_key_data(np.array([5, 6], np.uint32), impl="threefry2x32")
START = jnp.zeros(P)
records = functools.partial(unit_records, N, P)
# What a loss reads from its module.
TARGET = 0.25


def build(loss, regularizer=None, **more):
    objective = Objective(loss, regularizer, constants=(1.0, 1.0, 1.0))
    return make(
        "dp-gd", objective=objective, **({"data_size": N, "dimension": P} | SETTINGS | more)
    )


SETTINGS = {"steps": 2, "step_size": 0.5, "initial_gap": 1.0}


def digest(loss, examples=None, params=START, **more):
    examples = records() if examples is None else examples
    return loop.describe(build(loss, **more), examples, params).digest


def word(loss, examples=None):
    examples = records() if examples is None else examples
    key = loop.configuration_key(KEY, build(loss), examples, START)
    return tuple(np.asarray(jax.random.key_data(key)).tolist())


def base(w, e, target):
    return jnp.sum(jnp.sin(w - target) * e[0])


def keyword_only(target):
    def loss(w, e, *, at=target):
        return base(w, e, at)

    return loss


def default(target):
    return lambda w, e, at=target: base(w, e, at)


def closure(target):
    return lambda w, e: base(w, e, target)


def constant_array(target):
    held = jnp.full(P, target)
    return lambda w, e: base(w, e, held)


def numpy_array(target):
    held = np.full(P, target, np.float32)
    return lambda w, e: base(w, e, held)


class Callable:
    def __init__(self, target):
        self.target = target

    def __call__(self, w, e):
        return base(w, e, self.target)

    def method(self, w, e):
        return base(w, e, self.target)


class Slots:
    __slots__ = ("target",)

    def __init__(self, target):
        self.target = target

    def __call__(self, w, e):
        return base(w, e, self.target)


def by_module(w, e):
    return base(w, e, TARGET)


def in_a_module(source):
    """Returns what makes a loss in a module of its own, whose text is ``source`` at a target."""

    def make_loss(target):
        module = {"base": base}
        exec(source.format(target=target), module)
        return module["loss"]

    return make_loss


module_variable = in_a_module("TARGET = {target}\ndef loss(w, e): return base(w, e, TARGET)")
helper_function = in_a_module(
    "def target(): return {target}\ndef loss(w, e): return base(w, e, target())"
)


def nested_jit(target):
    inner = jax.jit(lambda w: w - jnp.full(P, target))
    return lambda w, e: jnp.sum(jnp.sin(inner(w)) * e[0])


def jvp_rule(target):
    @jax.custom_jvp
    def inner(w):
        return jnp.sin(w)

    inner.defjvp(lambda at, along: (inner(*at), (1 + target) * along[0]))
    return lambda w, e: jnp.sum(inner(w) * e[0])


def vjp_rule(target):
    @jax.custom_vjp
    def inner(w):
        return jnp.sin(w)

    inner.defvjp(lambda w: (inner(w), None), lambda _, slope: ((1 + target) * slope,))
    return lambda w, e: jnp.sum(inner(w) * e[0])


def rule_of_a_rule(target):
    """Value and gradient are the same; the Hessian is not."""

    @jax.custom_jvp
    def slope(w):
        return jnp.cos(w)

    slope.defjvp(lambda at, along: (slope(*at), target * along[0]))

    @jax.custom_jvp
    def inner(w):
        return jnp.sin(w)

    inner.defjvp(lambda at, along: (inner(*at), slope(*at) * along[0]))
    return lambda w, e: jnp.sum(inner(w) * e[0])


def looped(target):
    held = jnp.full(P, target)

    def loss(w, e):
        moved, _ = jax.lax.scan(lambda at, _: (at - held, None), w, length=3)
        return jnp.sum(jnp.sin(moved) * e[0])

    return loss


KINDS = {
    "keyword-only default": keyword_only,
    "default": default,
    "closure": closure,
    "array in a closure": constant_array,
    "NumPy array in a closure": numpy_array,
    "callable object": Callable,
    "callable object with slots": Slots,
    "bound method": lambda target: Callable(target).method,
    "module variable": module_variable,
    "helper function": helper_function,
    "partial": lambda target: functools.partial(base, target=target),
    "jitted": lambda target: jax.jit(closure(target)),
    "jitted inside": nested_jit,
    "custom_jvp": jvp_rule,
    "custom_vjp": vjp_rule,
    "rule of a rule": rule_of_a_rule,
    "scan": looped,
    "checkpoint": lambda target: jax.checkpoint(constant_array(target)),
    "wraps": lambda target: functools.wraps(base)(closure(target)),
}
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


@each_kind
def test_c54_another_loss_has_another_hash_and_another_key(kind):
    assert digest(kind(0.25)) != digest(kind(0.5))
    assert word(kind(0.25)) != word(kind(0.5))


@each_kind
def test_c54_a_loss_that_is_made_again_has_the_same_hash(kind):
    assert digest(kind(0.25)) == digest(kind(0.25))
    assert word(kind(0.25)) == word(kind(0.25))


def all_digests():
    return [digest(kind(0.25)) for kind in KINDS.values()]


def test_c54_the_hash_is_the_same_in_another_process():
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}; "
        "import test_configuration as this; print(*this.all_digests())"
    )
    other = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONHASHSEED": "3"},
    )
    assert other.stdout.split() == all_digests()


class Shrinkage:
    """A regularizer that keeps its strength where no field tells it."""

    def __init__(self, strength):
        self.strength = strength

    def __call__(self, w):
        return self.strength * jnp.sum(w**2) / 2

    def prox(self, w, step_size):
        return w / (1 + step_size * self.strength)


def penalty(strength):
    def regularizer(w):
        return strength * jnp.sum(w**2)

    return regularizer


@pytest.mark.parametrize("kind", [penalty, Shrinkage, dpjax.objectives.L2])
def test_c54_a_regularizer_counts_by_what_it_computes(kind):
    loss = closure(0.25)
    hashes = [digest(loss, regularizer=kind(s)) for s in (0.1, 0.2, 0.1)]
    assert hashes[0] == hashes[2] != hashes[1]


def test_c54_a_margin_counts_by_what_it_computes():
    def objective(target):
        def margin(m):
            return jnp.logaddexp(0.0, target - m)

        def loss(w, e):
            return 0.0 * jnp.sum(w)

        return Objective(loss, margin=margin, constants=(1.0, 1.0, 1.0))

    algorithms = [make("dp-gd", objective=objective(t), data_size=N, dimension=P) for t in (0, 1)]
    found = {loop.describe(each, records(), START).digest for each in algorithms}
    assert len(found) == 2


def test_c54_the_attack_on_one_key_for_two_losses_fails():
    """With the same noise the difference of two releases would be that of two exact gradients."""

    class Weighted:
        def __init__(self, weight):
            self.weight = weight

        def __call__(self, w, e):
            return self.weight * jnp.dot(w, e[0])

    data, more = records(), {"steps": 1, "step_size": 1.0, "clip_norm": 2.0}
    losses = [Weighted(weight) for weight in (0.5, 1.0)]
    algorithms = [build(loss, **more) for loss in losses]
    released = [
        -np.asarray(dpjax.solve(each, data, key=KEY).params, np.float64) for each in algorithms
    ]
    guess = 2 * (released[1] - released[0])
    mean = data[0].mean(0)
    stddev = float(algorithms[0].query.stddev)
    assert np.abs(guess - mean).max() > 0.05 * stddev
    # Planted: the same noise in both.
    noise = stddev * np.random.default_rng(0).standard_normal(P)
    np.testing.assert_allclose(2 * ((mean + noise) - (mean / 2 + noise)), mean, atol=1e-5)


@pytest.mark.ci
def test_c54_a_change_of_an_attribute_or_a_module_is_trained_on(monkeypatch):
    """JAX would go on with what it compiled: the old loss, under a ledger that names the new."""
    traced = []
    others = jax.jit(lambda x: traced.append(x))
    others(1.0)
    loss = Callable(0.0)
    quietly = quiet(build(loss), steps=1)
    first = dpjax.solve(quietly, records(), key=KEY)
    loss.target = 1.0
    second = dpjax.solve(quietly, records(), key=KEY)
    fresh = dpjax.solve(quiet(build(Callable(1.0)), steps=1), records(), key=KEY)
    assert not np.allclose(first.params, second.params, rtol=1e-3)
    np.testing.assert_array_equal(second.params, fresh.params)
    quietly = quiet(build(by_module), steps=1)
    first = dpjax.run(quietly, records(), key=KEY)
    monkeypatch.setattr(sys.modules[__name__], "TARGET", 1.0)
    second = dpjax.run(quietly, records(), key=KEY)
    assert not np.allclose(first.params, second.params, rtol=1e-3)
    # What the rest of the process has compiled is kept.
    others(1.0)
    assert len(traced) == 1


def test_a_loss_is_traced_anew_where_its_program_is_rewritten():
    loss, record = Callable(0.0), (jnp.zeros(P), 1.0)
    before = primitives.trace(loss, START, record)
    loss.target = 1.0
    assert str(primitives.trace(loss, START, record)) != str(before)


def test_c54_a_loss_that_calls_python_is_refused_before_the_data_are_asked(tmp_path):
    def double(w):
        return jax.pure_callback(lambda w: w, jax.ShapeDtypeStruct((P,), jnp.float32), w)

    ruled = jax.custom_jvp(double)
    ruled.defjvp(lambda at, along: (ruled(*at), along[0]))
    key, ledger = dpjax.random_key(), tmp_path / "ledger"
    dpjax.accounting.Ledger.create(ledger, dpjax.PrivacyBudget(9.0, 1e-3)).close()
    for inner in (double, ruled):
        algorithm = build(lambda w, e, inner=inner: jnp.sum(inner(w)))
        with pytest.raises(ValueError, match="calls Python or C while it runs"):
            dpjax.solve(algorithm, records(), key=key)
        with pytest.raises(ValueError, match="calls Python or C while it runs"):
            dpjax.run(algorithm, records(), key=key, ledger=ledger, label="visits")
    assert dpjax.accounting.Ledger.read(ledger).entries == ()


def test_c54_the_number_of_rows_is_not_in_the_hash():
    """It may be private, and a ledger shows the hash."""
    fewer = tuple(leaf[1:] for leaf in records())
    budget = dpjax.PrivacyBudget(1.0, 1e-4, "add_or_remove_one")
    for loss in (closure(0.25), closure(0.5)):
        assert digest(loss, budget=budget) == digest(loss, fewer, budget=budget)
    assert word(closure(0.25)) == word(closure(0.25), fewer)


def test_c54_a_number_that_vmap_runs_over_in_a_loss_is_folded_into_the_key():
    targets = jnp.array([0.25, 0.5, 0.25])
    folded = jax.vmap(
        lambda t: jax.random.key_data(
            loop.configuration_key(KEY, build(closure(t)), records(), START)
        )
    )
    words = [tuple(row) for row in np.asarray(folded(targets)).tolist()]
    assert words[0] == words[2] != words[1]


@pytree_dataclass
class Foreign:
    """A user's own algorithm, which halves what it is told, or whatever ``rule`` does with it."""

    algorithm: object
    rule: object = dataclasses.field(metadata={"static": True})

    def __getattr__(self, name):
        return getattr(object.__getattribute__(self, "algorithm"), name)

    def step(self, key, state, ask):
        def changed(*args, **public):
            return jax.tree.map(self.rule, ask(*args, **public))

        return self.algorithm.step(key, state, changed)


def test_c54_an_algorithm_of_the_user_counts_by_its_program():
    def described(factor):
        algorithm = Foreign(build(closure(0.25)), lambda answer: factor * answer)
        return loop.describe(algorithm, records(), START)

    assert described(0.5).digest == described(0.5).digest != described(0.25).digest
    assert "program" in described(0.5).settings
    assert "program" not in loop.describe(build(closure(0.25)), records(), START).settings
    key = loop.configuration_key(KEY, Foreign(build(closure(0.25)), jnp.negative), records(), START)
    assert word(closure(0.25)) != tuple(np.asarray(jax.random.key_data(key)).tolist())


# Resuming.


def test_c54_a_copied_checkpoint_is_not_resumed_under_another_loss(tmp_path, crash):
    places = {"checkpoint": tmp_path / "c", "progress": False}
    crash(1)
    with pytest.raises(Crash):
        dpjax.run(build(Callable(0.25)), records(), key=KEY, **places)
    crash(None)
    with pytest.raises(ResumeMismatch, match=r"^objective\.loss computes something else"):
        dpjax.run(build(Callable(0.5)), records(), key=None, **places)
    assert int(dpjax.run(build(Callable(0.25)), records(), key=None, **places).steps) == 2


def test_a_resumed_run_says_which_setting_was_what(tmp_path):
    places = {"checkpoint": tmp_path / "c", "progress": False}
    dpjax.run(build(closure(0.25)), records(), key=KEY, **places)
    with pytest.raises(ResumeMismatch, match=r"^step_size was 0\.5 when .* and is 0\.25 now"):
        dpjax.run(build(closure(0.25), step_size=0.25), records(), key=None, **places)
    with pytest.raises(ResumeMismatch, match=r"^epsilon was 1\.0 when .* and is 2\.0 now"):
        budget = dpjax.PrivacyBudget(2.0, BUDGET.delta)
        dpjax.run(build(closure(0.25), budget=budget), records(), key=None, **places)
    manifest = json.loads((tmp_path / "c" / "manifest.json").read_text())
    assert manifest["settings"]["algorithm"] == "Descent"


def test_a_checkpoint_of_an_earlier_format_says_so(tmp_path, monkeypatch):
    places = {"checkpoint": tmp_path / "c", "progress": False}
    monkeypatch.setattr("dpjax.driver.checkpoint._FORMAT", "dpjax-checkpoint-1")
    dpjax.run(build(closure(0.25)), records(), key=KEY, **places)
    monkeypatch.undo()
    with pytest.raises(ResumeMismatch, match="made by another dpjax"):
        dpjax.run(build(closure(0.25)), records(), key=None, **places)


# A loss that does not fit.


def test_a_loss_of_a_dictionary_without_params_says_what_is_missing():
    algorithm = build(lambda w, e: jnp.sum(w["slope"] * e[0]))
    for train in (dpjax.solve, dpjax.run):
        with pytest.raises(ValueError, match="pass a public starting point as params="):
            train(algorithm, records(), key=KEY)
    params = {"slope": jnp.zeros(P)}
    assert dpjax.solve(algorithm, records(), key=KEY, params=params).params["slope"].shape == (P,)


@pytest.mark.ci
def test_another_call_traces_a_loss_of_the_user_anew_and_none_of_dpjax(monkeypatch):
    data, traced = records(), []
    trace = configuration.trace

    def noted(function, *arguments):
        traced.append(function)
        return trace(function, *arguments)

    own = make("dp-gd", objective=dpjax.objectives.logistic_l2(0.1), data_size=N, dimension=P)
    users = build(lambda w, example: jnp.sum((w - example[0]) ** 2))
    for algorithm in (own, users):
        dpjax.solve(algorithm, data, key=KEY)
    monkeypatch.setattr(configuration, "trace", noted)
    dpjax.solve(own, data, key=KEY)
    assert not traced
    dpjax.solve(users, data, key=KEY)
    assert traced


class Shifted:
    """A model whose score is shifted, and nothing else of the objective is."""

    def __init__(self, shift):
        self.shift = shift

    def score(self, params, x):
        return x @ params + self.shift

    def parameters(self, dimension):
        return dimension


def test_c54_a_model_counts_by_how_it_scores():
    """The accuracy that a training releases is made of it."""
    loss = closure(0.1)

    def described(shift):
        objective = Objective(loss, constants=(1.0, 1.0, 1.0), model=Shifted(shift))
        algorithm = make("dp-gd", objective=objective, data_size=N, dimension=P, **SETTINGS)
        return loop.describe(algorithm, records(), START).digest

    assert described(0.5) == described(0.5)
    assert described(0.5) != described(-5.0)


@jax.custom_batching.custom_vmap
def centred(x):
    return x


@centred.def_vmap
def _(size, batched, x):
    return x - x.mean(0, keepdims=True), True


@pytest.mark.parametrize(
    ("inner", "message"),
    [
        (centred, "rule of its own for batches"),
        (lambda x: (jax.debug.print("{}", x), x)[1], "calls Python or C while it runs"),
    ],
    ids=["rule for batches", "print"],
)
def test_c54_what_sees_a_batch_or_prints_a_record_is_refused(inner, message):
    with pytest.raises(ValueError, match=message):
        dpjax.solve(build(lambda w, e: w @ inner(e[0])), records(), key=KEY)


def test_c32_a_rule_for_batches_lets_no_record_reach_another():
    x = jnp.zeros((100, 2)).at[1:].set(0.01)
    clipped = dpjax.clipped_grad(lambda w, e: w @ centred(e), clip_norm=1.0)
    sums = [clipped(jnp.zeros(2), rows) for rows in (x, x.at[0, 0].set(500.0))]
    moved = jnp.linalg.norm(sums[1] - sums[0])
    assert moved <= clipped.sensitivity("zero_out", rows=100)
    # Planted: what vmap alone would do.
    batch = jax.vmap(centred)(x.at[0, 0].set(500.0)) - jax.vmap(centred)(x)
    assert jnp.linalg.norm(jnp.clip(batch, -1, 1).sum(0)) > 50
