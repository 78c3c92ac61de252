"""Losses that draw: dropout, random views, and ``loss(params, example, key)`` of one's own."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from factories import Crash, mostly_ci
from flax import nnx
from several import on_devices
from test_fit import CLASSES, KEY, N, P, bits, fitted, records, unspent
from test_fit_saved import WIDTH, Net, layers_that_broadcast, rngs

import dpjax
from dpjax import auditing
from dpjax.derivatives import clipped_grad
from dpjax.driver import progress, resume
from dpjax.objectives import Objective
from dpjax.objectives.keyed import Keyed
from dpjax.oracles import GradientQuery, Setting
from dpjax.oracles.keyed import placed, redrawn
from dpjax.training import network as networks

__all__ = ["layers_that_broadcast", "unspent"]
SHORT = {"epochs": None, "steps": 3}
BUDGET = dpjax.PrivacyBudget(20.0, 1e-3)


class Linen(nn.Module):
    rate: float = 0.5

    @nn.compact
    def __call__(self, x):
        hidden = nn.tanh(nn.Dense(WIDTH)(x))
        return nn.Dense(CLASSES)(nn.Dropout(self.rate, deterministic=False)(hidden))


class Attending(nn.Module):
    """Its attention has dropout of its own, which an attribute or an argument turns on."""

    by_argument: bool = False

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(4)(x[..., None])
        on = None if self.by_argument else False
        attend = nn.MultiHeadDotProductAttention(2, dropout_rate=0.5, deterministic=on)
        x = attend(x, x, deterministic=False) if self.by_argument else attend(x, x)
        return nn.Dense(CLASSES)(x.mean(-2))


class Repeated(nnx.Module):
    """Layers in a loop, whose streams are split."""

    def __init__(self):
        @nnx.split_rngs(splits=2)
        @nnx.vmap(axis_size=2)
        def layers(streams):
            return Net(nnx.Dropout(0.5, rngs=streams)).inside

        self.first, self.last = (nnx.Linear(P, WIDTH, rngs=rngs()) for _ in range(2))
        self.last = nnx.Linear(WIDTH, CLASSES, rngs=rngs())
        self.drops = layers(rngs())

    def __call__(self, x):
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        def dropped(x, layer):
            return layer(x)

        return self.last(dropped(jnp.tanh(self.first(x)), self.drops))


def function(params, x, key):
    hidden = jnp.tanh(x @ params["first"])
    if key is not None:
        hidden *= 2 * jax.random.bernoulli(key, 0.5, hidden.shape)
    return hidden @ params["last"]


def weights():
    one, other = jax.random.split(jax.random.key(3))
    first = 0.5 * jax.random.normal(one, (P, WIDTH))
    return {"first": first, "last": jax.random.normal(other, (WIDTH, CLASSES))}


def shifted(x, key):
    return x + jax.random.normal(key, x.shape)


DRAWING = {
    "nnx": lambda: {"model": Net(nnx.Dropout(0.5, rngs=rngs()))},
    "linen": lambda: {"model": Linen()},
    "linen attention": lambda: {"model": Attending()},
    "linen attention, by an argument": lambda: {"model": Attending(by_argument=True)},
    "nnx in a loop": lambda: {"model": Repeated()},
    "function": lambda: {"model": function, "params": weights()},
    "views": lambda: {"model": Net(), "augment": shifted, "views": 3},
}


def drawn(loss, seed=0):
    """Records of one step as a loss that draws reads them."""
    return redrawn(jax.random.key(seed), placed(Objective(loss), records()))


def loss(params, example, key):
    x, _ = example
    return params @ (x if key is None else x * jax.random.uniform(key, x.shape))


@pytest.mark.parametrize("name", mostly_ci(DRAWING, ["nnx", "linen", "views"]))
def test_a_network_draws_in_training_and_not_elsewhere(name):
    one, again = (fitted(**DRAWING[name](), **SHORT) for _ in range(2))
    assert bits(one.params) == bits(again.params)
    assert one.network == again.network
    x, _ = records()
    assert bits(one.outputs(x)) == bits(one.outputs(x))
    # The same network with nothing drawn learns something else from the same draws of records.
    objective = objectives_of(name)
    params, example = one.params, (jnp.asarray(x[0]), 1)
    of_keys = [
        objective.loss(params, Keyed(example, jnp.array([0, k], jnp.uint32))) for k in (1, 1, 2)
    ]
    assert of_keys[0] == of_keys[1] != of_keys[2] != objective(params, example)


def objectives_of(name):
    """The objective that ``fit`` trains by."""
    held = {}

    def kept(objective, *arguments, **more):
        held["objective"] = objective
        return dpjax.dp_sgd(objective, *arguments, step_size=0.1, **more)

    fitted(**DRAWING[name](), **SHORT, optimizer=kept)
    return held["objective"]


@pytest.mark.parametrize("name", mostly_ci(DRAWING, ["nnx", "views"]))
@pytest.mark.parametrize("units", [False, True])
def test_clipped_sums_are_those_of_gradients_by_example(name, units):
    """Ghost norms and book-keeping see the same draws as a derivative of each record."""
    objective = objectives_of(name)
    params = fitted(**DRAWING[name](), **SHORT).params
    data = records()
    if units:
        objective = objective.of_units()
        data = jax.tree.map(lambda leaf: leaf.reshape(-1, 2, *leaf.shape[1:]), data)
        data = data, np.ones(data[1].shape, bool)
    batch = redrawn(KEY, placed(objective, data))

    def one(example):
        gradient = jax.grad(objective.loss)(params, example)
        norm = optax.tree.norm(gradient)
        return jax.tree.map(lambda leaf: leaf * jnp.minimum(1, 0.1 / norm), gradient)

    expected = jax.tree.map(lambda leaf: leaf.sum(axis=0), jax.vmap(one)(batch))
    found = clipped_grad(objective, clip_norm=0.1)(params, batch)
    for a, b in zip(*map(jax.tree.leaves, (expected, found)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_a_key_follows_from_the_step_and_the_place_in_the_data():
    batch = drawn(loss)
    words = np.asarray(batch.words)
    assert len({tuple(row) for row in words}) == N
    # Whoever else is drawn, and wherever a record stands in the batch.
    few = jax.tree.map(lambda leaf: leaf[np.array([7, 3, 7])], placed(Objective(loss), records()))
    assert np.array_equal(redrawn(jax.random.key(0), few).words, words[[7, 3, 7]])
    assert not np.any(np.asarray(drawn(loss, seed=1).words) == words)


@pytest.mark.parametrize("kind", ["own loss", "units", "add_or_remove_one", "all records"])
def test_a_loss_of_ones_own_has_a_key(kind):
    x, y = records()
    given = {"data_size": N, "dimension": P, "steps": 3, "clip_norm": 1.0, "step_size": 0.1}
    relation = "add_or_remove_one" if kind == "add_or_remove_one" else "zero_out"
    budget, data, objective = dpjax.PrivacyBudget(20.0, 1e-3, relation), (x, y), Objective(loss)
    if kind == "units":
        data = dpjax.datasets.group(dpjax.Dataset(x, y), np.arange(N) // 3, 3)
        objective, given["data_size"] = objective.of_units(), N // 3
    factory = dpjax.dp_gradient_descent if kind == "all records" else dpjax.dp_sgd
    given |= {} if kind == "all records" else {"batch_size": 10}

    def trained(objective):
        solution = dpjax.solve(factory(objective, budget, **given), data, key=KEY)
        assert solution.certificate is None or not objective.draws
        return np.asarray(solution.params)

    plain = Objective(lambda w, example: loss(w, example, None))
    plain = plain.of_units() if kind == "units" else plain
    assert bits(trained(objective)) == bits(trained(objective))
    assert np.max(np.abs(trained(objective) - trained(plain))) > 1e-3
    # What is drawn by a key that its author has bound is no draw of dpjax's.
    assert not Objective(lambda w, example, key=KEY: loss(w, example, key)).draws


def test_a_resumed_run_draws_what_it_would_have_drawn(tmp_path, monkeypatch):
    given = DRAWING["nnx"]() | {"epochs": None, "steps": 4}
    whole = bits(fitted(**given).params)
    monkeypatch.setattr(resume, "SAVE_SECONDS", 0.0)
    advance = progress._advance

    def crash(bound, carry, until):
        if int(carry.step) == 2:
            raise Crash
        return advance(bound, carry, until)

    monkeypatch.setattr(progress, "_advance", crash)
    with pytest.raises(Crash):
        fitted(**given, checkpoint=tmp_path / "run")
    monkeypatch.setattr(progress, "_advance", advance)
    assert bits(fitted(**given, checkpoint=tmp_path / "run").params) == whole


def test_on_disk_and_on_four_devices_the_same_is_drawn():
    found = on_devices(
        """
import optax
from dpjax.distributed import shard, stream

def loss(params, example, key):
    x, _ = example
    return params @ (x if key is None else x * jax.random.uniform(key, x.shape))

objective, start = dpjax.objectives.Objective(loss), jnp.zeros(4)
sizes = {"data_size": len(y), "dimension": 4, "steps": 3, "clip_norm": 1.0, "step_size": 0.1}
batch, every = (
    make(objective, dpjax.PrivacyBudget(20.0, 1e-6), **sizes, **more)
    for make, more in [(dpjax.dp_sgd, {"batch_size": 500}), (dpjax.dp_gradient_descent, {})]
)
rows = tuple(map(stream, (x, y)))
found["batch"] = [bits(dpjax.solve(batch, data, key=jax.random.key(0)))
                  for data in ((x, y), shard((x, y), jax.devices()[:4]), rows)]
found["every"] = [bits(dpjax.solve(every, data, key=jax.random.key(0)))
                  for data in ((x, y), shard((x, y), jax.devices()[:4]))]
try:
    dpjax.solve(every, rows, key=jax.random.key(0))
except ValueError as error:
    found["refused"] = str(error)
"""
    )
    assert len(set(found["batch"])) == len(set(found["every"])) == 1
    assert "from memory" in found["refused"]


class Tokens(nnx.Module):
    def __init__(self):
        self.table = nnx.Embed(4, CLASSES, rngs=rngs())

    def __call__(self, x):
        return self.table(x).sum(axis=0)


class Noisy(nnx.Module):
    """Draws whatever its attributes say."""

    def __init__(self):
        self.last, self.streams = nnx.Linear(P, CLASSES, rngs=rngs()), rngs()

    def __call__(self, x):
        return self.last(x + self.streams.noise.normal(x.shape))


class NoisyLinen(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(CLASSES)(x + jax.random.normal(self.make_rng("noise"), x.shape))


class Undecided(nnx.Module):
    """Its attention says nothing of dropout, which flax refuses in training."""

    def __init__(self):
        self.attend = nnx.MultiHeadAttention(2, 4, dropout_rate=0.5, decode=False, rngs=rngs())
        self.last = nnx.Linear(4, CLASSES, rngs=rngs())

    def __call__(self, x):
        return self.last(self.attend(x[:, None] * jnp.ones(4)).mean(0))


class Deciding(nnx.Module):
    """``deterministic`` follows from something else, as it may."""

    deterministic = property(lambda self: True)

    def __init__(self):
        self.last = nnx.Linear(P, CLASSES, rngs=rngs())

    def __call__(self, x):
        return self.last(x)


class Dropped(nn.Module):
    @nn.compact
    def __call__(self, carry, _):
        return nn.Dropout(0.5, deterministic=False)(carry), None


class Masks(nn.Module):
    """A loop that splits the stream of dropout alone."""

    @nn.compact
    def __call__(self, x):
        how = {"split_rngs": {"params": False, "dropout": True}, "length": 3}
        return nn.scan(Dropped, variable_broadcast="params", **how)()(x, None)[0]


def test_a_stream_that_is_split_by_its_name_draws_anew_in_each_pass():
    left = networks.Flax(Masks(), {}).drawn({}, jnp.ones(64), jax.random.key(1))
    # Three masks leave an eighth, and one mask three times a half.
    assert 0 < np.mean(np.asarray(left) > 0) < 0.3


def test_a_module_whose_attribute_follows_from_something_else_trains_as_it_is():
    assert not fitted(Deciding(), **SHORT).network.draws


def test_a_trained_linen_network_is_called_without_streams():
    trained, x = fitted(Linen(), **SHORT), records()[0]
    np.testing.assert_allclose(trained.model(x[0]), trained.outputs(x)[0], rtol=1e-5)


@pytest.mark.parametrize("key", [None, KEY, np.zeros(2, np.uint32)])
def test_a_key_that_is_bound_is_no_draw_of_dpjax(key):
    assert not Objective(functools.partial(loss, key=key)).draws


def test_what_could_not_draw_is_refused_where_it_is_made():
    with pytest.raises(ValueError, match="cross_entropy takes a network without key"):
        dpjax.objectives.cross_entropy(function)
    with pytest.raises(ValueError, match="a closed form cannot"):
        Objective(loss, margin=jnp.square)


def test_an_audit_knows_one_loss():
    query = GradientQuery(
        setting=Setting(Objective(lambda w, x, key: x @ w), 2, "zero_out"),
        noise_multiplier=1.0,
        clip_norm=1.0,
    )
    pair = auditing.canaries.NeighbouringPair(jnp.zeros((2, 3)), jnp.eye(2, 3), "zero_out")
    with pytest.raises(ValueError, match="audit the algorithm with a loss without key"):
        auditing.games.play(auditing.games.single_answer(query, pair, 3), KEY, 10)


class Switched(nn.Module):
    """As flax's own examples have it: an argument turns dropout on."""

    @nn.compact
    def __call__(self, x, train=False):
        hidden = nn.tanh(nn.Dense(WIDTH)(x))
        return nn.Dense(CLASSES)(nn.Dropout(0.5, deterministic=not train)(hidden))


class Own(nn.Dropout):
    """A class of one's own."""


class SwitchedOwn(nn.Module):
    @nn.compact
    def __call__(self, x, train=False):
        return nn.Dense(CLASSES)(Own(0.5)(x, deterministic=not train))


class Calm(nnx.Module):
    def __init__(self):
        self.drop, self.last = nnx.Dropout(0.5, rngs=rngs()), nnx.Linear(P, CLASSES, rngs=rngs())

    def __call__(self, x, train=False):
        return self.last(self.drop(x, deterministic=not train))


@pytest.mark.parametrize("make", [Switched, SwitchedOwn, Calm])
def test_dropout_that_no_training_turns_on_is_a_warning(make):
    with pytest.warns(UserWarning, match="dropout, but none changes an output in training"):
        assert not fitted(make(), **SHORT).network.draws
    if make is Calm:
        silent = make()
        silent.eval()
        assert not fitted(silent, **SHORT).network.draws  # warnings are errors in these tests
        return
    module = make()
    params = module.init(KEY, jnp.zeros(P))["params"]

    def drawing(params, x, key):
        streams = None if key is None else {"dropout": key}
        return module.apply({"params": params}, x, train=key is not None, rngs=streams)

    assert fitted(drawing, params=params, **SHORT).network.draws


REFUSED = {
    "dropout that flax refuses": ({"model": Undecided()}, "not computed in training: No `determin"),
    "views that read no key": ({"augment": lambda x, key: x + 1}, "does not read its key"),
    "views that the model does not take": (
        {"model": Tokens(), "augment": shifted, "data": (np.ones((N, P), np.int32), records()[1])},
        "or the model of it, cannot be computed",
    ),
    "nnx that draws in evaluation": (
        {"model": Noisy()},
        "even where dropout is off.*deterministic",
    ),
    "linen that draws in evaluation": ({"model": NoisyLinen()}, "even where dropout is off"),
    "views of nothing": ({"views": 3}, "goes with augment="),
    "no view": ({"augment": shifted, "views": 0}, "views must be"),
    "a view of another shape": ({"augment": lambda x, key: x[:2]}, "augment is .* it returns"),
    "a view of a batch": (
        {"augment": lambda x, key: jax.vmap(jnp.roll, (0, None))(x[:, None, :], 1)},
        "without a batch axis.* cannot be computed",
    ),
    "a view that holds the records": (
        {"augment": lambda x, key: shifted(x, key) + jnp.asarray(records()[0])[0]},
        "as many rows as the training data",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_drawn_is_refused(name, unspent):
    given, words = REFUSED[name]
    with pytest.raises(ValueError, match=words):
        fitted(**given)


def test_derivatives_of_one_function_are_not_asked_of_a_loss_that_draws():
    sizes = {"data_size": N, "dimension": P, "steps": 3, "clip_norm": 1.0}
    given = dpjax.dp_trust_region(Objective(loss), BUDGET, hessian_clip_norm=1.0, **sizes)
    with pytest.raises(ValueError, match=r"draws random numbers.*method of gradients of batches"):
        dpjax.solve(given, records(), key=KEY)
