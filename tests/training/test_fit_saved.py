"""Networks as people save them: what the trace of a call shows as fixed trains, and stays."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from factories import mostly_ci
from flax import nnx
from test_fit import CLASSES, KEY, N, P, bits, fitted, records, unspent

import dpjax
from dpjax.training.network import network

__all__ = ["unspent"]
SHORT = {"epochs": None, "steps": 2}


@pytest.fixture(autouse=True)
def layers_that_broadcast():
    with jax.numpy_rank_promotion("allow"):  # as some of flax do
        yield


WIDTH = 8
EXAMPLE = jax.ShapeDtypeStruct((P,), jnp.float32)


def rngs():
    return nnx.Rngs(0)


class Net(nnx.Module):
    """A hidden layer, what a test puts behind it, and the outputs."""

    def __init__(self, inside=None, dtype=jnp.float32, evaluates=False, **held):
        self.first = nnx.Linear(P, WIDTH, param_dtype=dtype, rngs=rngs())
        self.last = nnx.Linear(WIDTH, CLASSES, param_dtype=dtype, rngs=rngs())
        self.inside = inside
        for name, value in held.items():
            setattr(self, name, value)
        if evaluates:
            self.eval()

    def __call__(self, x):
        x = self.first(x)
        return self.last(jnp.tanh(x if self.inside is None else self.inside(x)))


class Holding(Net):
    """Adds what it holds."""

    def __call__(self, x):
        return self.last(jnp.tanh(self.first(x) + jnp.asarray(self.held[...])))


class Averaged(Net):
    def __call__(self, x):
        return super().__call__(x) + self.held.mean()


class ShapedByNumPy(Net):
    def __call__(self, x):
        return super().__call__(x.reshape(*x.shape[:-1], self.held[0]))


class Quantised(nnx.Module):
    def __init__(self):
        self.table = nnx.Variable(jnp.arange(-16, 16, dtype=jnp.int8).reshape(P, WIDTH))
        self.scale = nnx.Param(jnp.full(WIDTH, 0.01))
        self.last = nnx.Linear(WIDTH, CLASSES, rngs=rngs())

    def __call__(self, x):
        return self.last(jnp.tanh(x @ (self.table[...] * self.scale[...])))


class Tied(nnx.Module):
    def __init__(self):
        self.first = nnx.Linear(P, WIDTH, rngs=rngs())
        self.last = nnx.Linear(WIDTH, CLASSES, rngs=rngs())
        self.again = self.first
        self.mask = nnx.Variable(jnp.arange(WIDTH) % 2)

    def __call__(self, x):
        return self.last(self.again(x) * self.mask[...] + self.first(x))


class Recurrent(nnx.Module):
    """Draws its initial carry from a stream, by an initializer that gives zeros."""

    def __init__(self):
        self.rnn = nnx.RNN(nnx.GRUCell(1, WIDTH, rngs=rngs()), rngs=rngs())
        self.last = nnx.Linear(WIDTH, CLASSES, rngs=rngs())

    def __call__(self, x):
        return self.last(self.rnn(x[..., None])[..., -1, :])


class Applied(nnx.Module):
    """A block within a transformation of nnx, which hands all state in and out."""

    def __init__(self, through, use_running_average=True):
        norm = nnx.BatchNorm(WIDTH, use_running_average=use_running_average, rngs=rngs())
        self.block = Net(norm)
        self.through = through

    def __call__(self, x):
        return self.through(lambda block, x: block(x))(self.block, x)


class Counted(Net):
    def __call__(self, x):
        self.count[...] += 1
        return super().__call__(x)


class Rewritten(Net):
    """Writes what it holds, in one of several ways."""

    def __call__(self, x):
        held, change = self.held[...], self.change
        self.held = change(held, x) if isinstance(self.held, np.ndarray) else self.held
        if isinstance(self.held, nnx.Variable):
            self.held[...] = change(held, x)
        return self.last(jnp.tanh(self.first(x) + held))


class Layers(nn.Module):
    """A linen network around a layer."""

    inside: nn.Module = None

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(WIDTH)(x)
        return nn.Dense(CLASSES)(nn.tanh(x if self.inside is None else self.inside(x)))


class Shift(nn.Module):
    """Holds a constant that is drawn, as random features are."""

    @nn.compact
    def __call__(self, x):
        def drawn():
            return jax.random.normal(self.make_rng("params"), (x.shape[-1],))

        return x + self.variable("constants", "shift", drawn).value


class Sowing(nn.Module):
    @nn.compact
    def __call__(self, x):
        self.sow("intermediates", "input", x)
        return x


class Scanned(nn.Module):
    """Checkpointed blocks in a loop, as large models are written."""

    training: bool = False

    @nn.compact
    def __call__(self, x):
        class Block(nn.Module):
            training: bool

            @nn.compact
            def __call__(self, x, _):
                norm = nn.BatchNorm(use_running_average=not self.training)
                return nn.Dense(x.shape[-1])(norm(x)), None

        axes, rngs = {"params": 0, "batch_stats": 0}, {"params": True}
        blocks = nn.scan(nn.remat(Block), variable_axes=axes, split_rngs=rngs, length=2)
        return blocks(self.training)(x, None)[0]


class TiedLinen(nn.Module):
    @nn.compact
    def __call__(self, x):
        shared = nn.Dense(P)
        return nn.Dense(CLASSES)(nn.BatchNorm(use_running_average=True)(shared(shared(x))))


def frozen(scale=2.0):
    norm = nnx.BatchNorm(WIDTH, rngs=rngs())
    norm.var[...] = jnp.full(WIDTH, scale)
    return norm


def square():
    return nnx.Linear(WIDTH, WIDTH, rngs=rngs())


def spectral(**more):
    return nnx.SpectralNorm(square(), rngs=rngs(), **more)


def rewriting(change, held=None):
    return Rewritten(held=nnx.Variable(HELD) if held is None else held, change=change)


def of_linen(module, **changed):
    variables = module.init(jax.random.key(1), jnp.zeros((1, P)))
    return {"model": module, "params": {**variables, **changed}}


BODY = P * WIDTH + WIDTH + WIDTH * CLASSES + CLASSES
HELD = jnp.linspace(0.0, 1.0, WIDTH)
LINEN_STATISTICS = {"batch_stats": {"inside": {"mean": HELD, "var": 1 + HELD}}}
SAVED = {
    "a constant array": (lambda: Holding(held=HELD), BODY),
    "an array of NumPy": (lambda: Holding(held=np.asarray(HELD)), BODY),
    "a variable": (lambda: Holding(held=nnx.Variable(HELD)), BODY),
    "a cache": (lambda: Holding(held=nnx.Cache(HELD)), BODY),
    "a mask of booleans": (lambda: Holding(held=nnx.Variable(HELD > 0.5)), BODY),
    "sizes in NumPy": (lambda: ShapedByNumPy(held=np.array([P, 1])), BODY),
    "a key that is not used": (lambda: Net(key=jax.random.key(5)), BODY),
    "int8 beside scales": (Quantised, WIDTH + WIDTH * CLASSES + CLASSES),
    "tied weights": (Tied, BODY),
    "evaluated dropout": (lambda: Net(nnx.Dropout(0.5, rngs=rngs()), evaluates=True), BODY),
    "dropout of 0": (lambda: Net(nnx.Dropout(0.0, rngs=rngs())), BODY),
    "deterministic dropout": (
        lambda: Net(nnx.Dropout(0.5, deterministic=True, rngs=rngs())),
        BODY,
    ),
    "evaluated batch norm": (lambda: Net(frozen(), evaluates=True), BODY + 2 * WIDTH),
    "a norm of weights": (lambda: Net(nnx.WeightNorm(square(), rngs=rngs())), BODY + 72),
    "an evaluated spectral norm": (lambda: Net(spectral(), evaluates=True), BODY + 72),
    "a spectral norm without updates": (lambda: Net(spectral(update_stats=False)), BODY + 72),
    "a recurrent carry": (Recurrent, 3 * (WIDTH + WIDTH * WIDTH + WIDTH) + 27),
    "low-rank adapters": (lambda: Net(nnx.LoRA(WIDTH, 2, WIDTH, rngs=rngs())), BODY + 4 * WIDTH),
    "a jitted block": (lambda: Applied(nnx.jit), BODY + 2 * WIDTH),
    "a checkpointed block": (lambda: Applied(nnx.remat), BODY + 2 * WIDTH),
    "a count that nothing reads": (lambda: Counted(count=nnx.Variable(jnp.array(0))), BODY),
    "a model that sows": (lambda: {"model": Layers(Sowing())}, BODY),
    "half precision": (lambda: Holding(held=HELD, dtype=jnp.bfloat16), BODY),
    "linen statistics": (
        lambda: of_linen(Layers(nn.BatchNorm(use_running_average=True)), **LINEN_STATISTICS),
        BODY + 2 * WIDTH,
    ),
    "a linen loop": (lambda: {"model": Layers(Scanned())}, BODY + 2 * (2 * 8 + 8 * 8 + 8)),
    "linen constants": (lambda: {"model": Layers(Shift())}, BODY),
    "linen dropout of 0": (
        lambda: {"model": Layers(nn.Dropout(0.0, deterministic=False))},
        BODY,
    ),
    "tied linen weights": (lambda: of_linen(TiedLinen()), 4 * P + P + 2 * P + P * 3 + 3),
}


def held_bits(trained_or_net):
    leaves = jax.tree.leaves(trained_or_net.apply.state)
    is_key = [jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves]
    return bits([jax.random.key_data(x) if k else x for x, k in zip(leaves, is_key, strict=True)])


def given(model):
    return model if isinstance(model, dict) else {"model": model}


def decided(model, x=EXAMPLE, params=None):
    return network(model, x, params, lambda: KEY)


# Of the kinds of what a trace shows as fixed those that are cheap.
KINDS = [
    *("a constant array", "a variable", "tied weights", "a jitted block", "linen constants"),
]


@pytest.mark.parametrize("name", mostly_ci(SAVED, KINDS))
def test_a_network_as_it_is_saved_trains_and_what_it_holds_stays(name):
    make, size = SAVED[name]
    model = given(make())
    net, start = decided(model["model"], params=model.get("params"))
    trained = fitted(**model, **SHORT)
    assert sum(leaf.size for leaf in jax.tree.leaves(trained.params)) == size
    assert jax.tree.all(jax.tree.map(lambda leaf: jnp.isfinite(leaf).all(), trained.params))
    assert bits(trained.params) != bits(start)
    assert trained.network == net and hash(trained.network) == hash(net)
    assert held_bits(trained.network) == held_bits(net)
    x, _ = records()
    tolerance = 0.1 if name == "half precision" else 1e-4
    np.testing.assert_allclose(trained.model(x), trained.outputs(x), atol=tolerance)


WRITTEN = {
    "batch norm in training": (
        lambda: Net(nnx.BatchNorm(WIDTH, rngs=rngs())),
        r"'inside' of the model \(a BatchNorm\) .*'mean', which a call writes from the examples.*"
        "use_running_average=True; or use GroupNorm",
    ),
    "linen batch norm in training": (
        lambda: Layers(nn.BatchNorm(use_running_average=False)),
        "'inside' .*'batch_stats'.*'mean'",
    ),
    "a spectral norm in training": (lambda: Net(spectral()), "'inside' .*update_stats=False"),
    "a memory of examples": (
        lambda: rewriting(lambda held, x: held + x.sum()),
        "from the examples",
    ),
    "a memory in NumPy": (
        lambda: rewriting(lambda held, x: held + x.sum(), np.ones(WIDTH)),
        "from the examples",
    ),
    "a memory at times": (
        lambda: rewriting(lambda h, x: jax.lax.cond(x.sum() > 0, jnp.sin, lambda h: h, h)),
        "from the examples",
    ),
    "an equal value": (lambda: rewriting(lambda held, x: held + 0), "'held' in each call"),
    "a count that is read": (lambda: rewriting(lambda held, x: held + 1), "'held' in each call"),
    "a jitted batch norm": (
        lambda: Applied(nnx.jit, use_running_average=False),
        "'block/inside' .*from the examples",
    ),
    "a linen loop in training": (
        lambda: Layers(Scanned(training=True)),
        "'inside/ScanCheckpointBlock_0/BatchNorm_0' .*'mean'",
    ),
    "integer weights": (
        lambda: Net(table=nnx.Param(jnp.ones(2, jnp.int8))),
        "floating: 'table' .*int8",
    ),
    "a constant of a row each": (
        lambda: Averaged(held=jnp.ones((N, 1))),
        "as many rows as the training data",
    ),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_what_a_call_writes_is_refused_for_that_reason(name, unspent):
    make, words = WRITTEN[name]
    with pytest.raises(ValueError, match=words):
        fitted(make())


def test_an_array_of_numpy_is_not_written_in_place(unspent):
    class InPlace(Holding):
        def __call__(self, x):
            self.held += 1.0
            return super().__call__(x)

    held = np.ones(WIDTH, np.float32)
    with pytest.raises(ValueError, match=r"cannot be computed .*read-only"):
        fitted(InPlace(held=held))
    assert (held == 1).all() and held.flags.writeable


def test_a_model_is_another_by_what_it_holds_and_left_as_it_was():
    held = np.ones(WIDTH, np.float32)
    model = Holding(held=held)
    net, params = decided(model)
    assert decided(Holding(held=np.ones(WIDTH, np.float32)))[0] == net
    other, _ = decided(Holding(held=jnp.full(WIDTH, 2.0)))
    assert other.program != net.program and other != net
    before = net(params, jnp.ones(P))
    held[:] = 5.0
    assert bits(net(params, jnp.ones(P))) == bits(before)
    assert bits(decided(model, params=nnx.state(model, nnx.Param))[1]) == bits(params)
    assert decided(model)[0].program not in (net.program, other.program)
    _, with_others = decided(Layers(Shift()))
    assert bits(with_others) == bits(decided(Layers())[1])


def test_a_function_may_hold_a_key_that_it_never_changes():
    key = jax.random.key(3)

    def features(params, x):
        return jnp.cos(x @ jax.random.normal(key, (P, WIDTH))) @ params

    fitted(features, params=jnp.zeros((WIDTH, CLASSES)), **SHORT)


def test_float64_beside_constants():
    with jax.enable_x64(True):
        trained = fitted(Holding(held=np.linspace(0, 1, WIDTH), dtype=jnp.float64), **SHORT)
        assert {leaf.dtype for leaf in jax.tree.leaves(trained.params)} == {np.dtype("float64")}


# Going on from parameters.


class Listed(nnx.Module):
    """Its parameters are named by numbers, which a file holds as words."""

    def __init__(self):
        self.layers = nnx.List([Holding(held=HELD)])

    def __call__(self, x):
        return self.layers[0](x)


@pytest.mark.parametrize(
    ("make", "variables"),
    [
        (Listed, None),
        pytest.param(
            lambda: Layers(Shift()),
            {"constants": {"inside": {"shift": HELD}}},
            marks=pytest.mark.ci,
        ),
    ],
    ids=["nnx", "linen"],
)
def test_a_training_goes_on_from_a_file(make, variables, tmp_path):
    def start(params):
        return {"params": params if variables is None else {"params": params, **variables}}

    _, initial = decided(make(), params=start(decided(make())[1])["params"])
    x, y = records()
    one = fitted(make(), held_out=(x, y), **start(initial), **SHORT)
    dpjax.save(tmp_path / "saved", one)
    saved = dpjax.load(tmp_path / "saved").params
    still = fitted(make(), **start(saved), **SHORT, optimizer=optax.sgd(0.0), held_out=(x, y))
    assert bits(still.params) == bits(one.params)
    assert jax.tree.structure(still.params) == jax.tree.structure(one.params)
    assert still.exact_held_out["loss"][-1] == one.exact_held_out["loss"][-1]
    if variables is None:
        module = make()
        nnx.update(module, one.params)
        outputs = module(x)
    else:
        outputs = make().apply({"params": saved, **variables}, x)
    np.testing.assert_allclose(outputs, one.outputs(x), atol=1e-5)


@pytest.mark.parametrize("make", [Net, Layers], ids=["nnx", "linen"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda leaf: {"kernel": leaf.T}, r"kernel' is float32\[8, 4\].*float32\[4, 8\]"),
        (lambda leaf: {"kernel": leaf.astype(jnp.bfloat16)}, r"kernel' is bfloat16\[4, 8\]"),
        (lambda leaf: {"more": leaf}, r"more' is float32\[4, 8\], and in the model missing"),
        (lambda leaf: {"kernel": None}, r"kernel' is missing, and in the model float32.*nnx.state"),
    ],
    ids=["shape", "dtype", "more", "missing"],
)
def test_parameters_of_another_model_are_refused_by_leaf(make, change, words):
    params = decided(make())[1]
    first = next(name for name in ("first", "Dense_0") if name in params)
    params = {**params, first: params[first] | change(params[first]["kernel"])}
    with pytest.raises(ValueError, match=f"not those of the model: '(params/)?{first}/{words}"):
        decided(make(), params=params)


def test_linen_parameters_without_the_other_collections_are_refused():
    model = Layers(nn.BatchNorm(use_running_average=True))
    with pytest.raises(ValueError, match=r"'batch_stats/inside/mean' is missing.*module\.init"):
        decided(model, params=decided(model)[1])
