"""Networks as people publish them, and the starting points that people have: no edit is needed."""

import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from factories import mostly_ci
from flax import nnx
from test_fit import CLASSES, KEY, N, P, bits, fitted, records, unspent
from test_fit_saved import EXAMPLE, WIDTH, Net, decided, frozen, layers_that_broadcast, rngs
from test_fit_trainable import named

import dpjax
from dpjax.derivatives import clipping
from dpjax.driver import ResumeMismatch
from dpjax.training.network import network
from dpjax.training.start import tree_of
from dpjax.tuning.tuned import Tuned

__all__ = ["layers_that_broadcast", "unspent"]
ONE = {"epochs": None, "steps": 1}
WORDS, LENGTH, HEADS = 11, 6, 2
TOKENS = np.random.default_rng(0).integers(0, WORDS, (N, LENGTH))


def linear(inside, outside):
    return nnx.Linear(inside, outside, rngs=rngs())


class Block(nnx.Module):
    """Attention and a dense layer, each beside a shortcut and after a norm, with dropout."""

    def __init__(self, rngs):
        self.before, self.norm = (nnx.LayerNorm(WIDTH, rngs=rngs) for _ in range(2))
        self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
        self.dense, self.drop = nnx.Linear(WIDTH, WIDTH, rngs=rngs), nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x):
        x = x + self.drop(self.attention(self.before(x)))
        return x + self.drop(nnx.gelu(self.dense(self.norm(x))))


class Reader(nnx.Module):
    """A transformer encoder: learned positions, blocks in a list, a pooled head."""

    def __init__(self):
        self.embed = nnx.Embed(WORDS, WIDTH, rngs=rngs())
        self.positions = nnx.Param(0.1 * jnp.ones((2 * LENGTH, WIDTH)))
        self.blocks = nnx.List([Block(rngs()) for _ in range(2)])
        self.head = linear(WIDTH, CLASSES)
        self.eval()

    def __call__(self, tokens):
        x = self.embed(tokens) + self.positions[: tokens.shape[-1]]
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(-2))


class Cached(nnx.Module):
    """A decoder that carries its caches of keys and values along, and is called on all tokens."""

    def __init__(self):
        self.embed, self.block = nnx.Embed(WORDS, WIDTH, rngs=rngs()), Block(rngs())
        self.block.attention.init_cache((1, LENGTH, WIDTH))
        self.head = linear(WIDTH, CLASSES)
        self.eval()

    def __call__(self, tokens):
        return self.head(self.block(self.embed(tokens))[..., -1, :])


class TiedHead(nnx.Module):
    """A language model whose last layer is its embedding."""

    def __init__(self):
        self.embed, self.dense = nnx.Embed(WORDS, WIDTH, rngs=rngs()), linear(WIDTH, WIDTH)

    def __call__(self, tokens):
        return self.embed.attend(jnp.tanh(self.dense(self.embed(tokens)))).mean(-2)


class Int8(nnx.Module):
    """A weight in 8 bits with its scales, as buffers, and an adapter beside it."""

    def __init__(self):
        table = np.random.default_rng(0).integers(-127, 128, (P, WIDTH))
        self.table = nnx.Variable(jnp.asarray(table, jnp.int8))
        self.scale = nnx.Variable(jnp.full(WIDTH, 0.01))
        self.lora = nnx.LoRA(P, 2, WIDTH, rngs=rngs())
        self.head = linear(WIDTH, CLASSES)

    def __call__(self, x):
        return self.head(jnp.tanh(x @ (self.table[...] * self.scale[...]) + self.lora(x)))


class Stacked(nnx.Module):
    """Layers with one more axis, which ``nnx.scan`` goes through."""

    def __init__(self):
        @nnx.split_rngs(splits=2)
        @nnx.vmap(in_axes=(0,), out_axes=0)
        def stack(rngs):
            return nnx.Linear(P, P, rngs=rngs)

        self.layers, self.head = stack(rngs()), linear(P, CLASSES)

    def __call__(self, x):
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        def through(x, layer):
            return jnp.tanh(layer(x))

        return self.head(through(x, self.layers))


class Normed(nn.Module):
    """Of linen, with statistics."""

    @nn.compact
    def __call__(self, x):
        x = nn.BatchNorm(use_running_average=True, name="norm")(nn.Dense(WIDTH, name="body")(x))
        return nn.Dense(CLASSES, name="head")(nn.tanh(x))


class Attending(nnx.Module):
    """An attention over positions, with adapters around two of its layers."""

    def __init__(self):
        self.embed = nnx.Embed(WORDS, WIDTH, rngs=rngs())
        self.key, self.head = linear(WIDTH, WIDTH), linear(WIDTH, CLASSES)
        self.query, self.value = (
            nnx.LoRA(WIDTH, 2, WIDTH, base_module=linear(WIDTH, WIDTH), rngs=rngs())
            for _ in range(2)
        )

    def __call__(self, tokens):
        x = self.embed(tokens)
        parts = (layer(x)[..., None, :] for layer in (self.query, self.key, self.value))
        return self.head(nnx.dot_product_attention(*parts)[..., 0, :].mean(-2))


def listed():
    return nnx.Sequential(linear(P, WIDTH), nnx.tanh, linear(WIDTH, CLASSES))


HEAD = {"head/bias", "head/kernel"}
ADAPTERS = {f"{layer}/lora_{one}" for layer in ("query", "value") for one in "ab"}
PUBLISHED = {
    "learned positions": (Reader, nnx.PathContains("positions"), {"positions"}),
    "eval dropout": (
        Reader,
        lambda path, leaf: "blocks" in path and "norm" in path,
        {f"blocks/{i}/norm/{name}" for i in range(2) for name in ("bias", "scale")},
    ),
    "a cache": (Cached, nnx.PathContains("head"), HEAD),
    "frozen batch norm": (
        lambda: Net(frozen(), evaluates=True),
        nnx.PathContains("last"),
        {"last/bias", "last/kernel"},
    ),
    "a tied head": (TiedHead, nnx.PathContains("embed"), {"embed/embedding"}),
    "int8 buffers": (
        Int8,
        (nnx.LoRAParam, nnx.PathContains("head")),
        {*HEAD, "lora/lora_a", "lora/lora_b"},
    ),
    "a scanned stack": (Stacked, nnx.PathContains("layers"), {"layers/bias", "layers/kernel"}),
    "linen statistics": (Normed, nnx.PathContains("head"), HEAD),
    "adapters of attention": (Attending, nnx.LoRAParam, ADAPTERS),
    "a list of layers": (listed, nnx.PathContains(2), {"layers/2/bias", "layers/2/kernel"}),
}
READS_TOKENS = Reader, Cached, TiedHead, Attending
KINDS = ["int8 buffers", "a list of layers"]


# After one step adapters that start at zero may not be told from noise.
@pytest.mark.filterwarnings("ignore:the noisy gradients cannot be told")
@pytest.mark.parametrize("name", mostly_ci(PUBLISHED, KINDS))
def test_a_network_as_it_is_published_trains_and_is_saved(name, tmp_path):
    make, trainable, expected = PUBLISHED[name]
    x, y = records()
    x = TOKENS if make in READS_TOKENS else x
    first = jax.eval_shape(lambda: jnp.asarray(x[0]))
    start = named(decided(make(), first)[1])
    trained = fitted(make(), (x, y), trainable=trainable, **ONE)
    published = named(trained.params)
    assert {path: leaf.shape for path, leaf in published.items()} == {
        path: leaf.shape for path, leaf in start.items()
    }
    moved = {path for path in start if bits(published[path]) != bits(start[path])}
    assert moved == expected
    dpjax.save(tmp_path / "saved", trained)
    saved = named(dpjax.load(tmp_path / "saved").params)
    assert all(bits(saved[path]) == bits(published[path]) for path in published)
    model = make()
    if isinstance(model, nnx.Module):
        nnx.update(model, trained.params)
        outputs = model(jnp.asarray(x[:1]))
    else:
        outputs = trained.model(jnp.asarray(x[:1]))
    np.testing.assert_allclose(outputs, trained.outputs(x[:1]), atol=1e-5)


# Where a training goes on.


@pytest.fixture(scope="module")
def trained():
    with jax.numpy_rank_promotion("allow"):
        return fitted(listed(), **ONE)


def flat(params, separator="."):
    return {name.replace("/", separator): np.asarray(leaf) for name, leaf in named(params).items()}


def by_orbax(tree, folder):
    with ocp.StandardCheckpointer() as writer:
        writer.save(folder / "saved", tree)
    return folder / "saved"


def by_safetensors(arrays, folder):
    writer = pytest.importorskip("safetensors.numpy")
    writer.save_file(arrays, folder / "saved.safetensors")
    return str(folder / "saved.safetensors")


def by_save(trained, folder):
    dpjax.save(folder / "saved", trained)
    return folder / "saved"


def state_of(params):
    module = listed()
    nnx.update(module, params)
    return nnx.state(module, nnx.Param)


STARTS = {
    "what fit returned": lambda trained, folder: trained,
    "its solution": lambda trained, folder: trained.solution,
    "what tune returned": lambda trained, folder: Tuned(trained.solution, {}, 0.0),
    "its file": by_save,
    "its file, loaded": lambda trained, folder: dpjax.load(by_save(trained, folder)),
    "a state": lambda trained, folder: state_of(trained.params),
    "orbax": lambda trained, folder: by_orbax(trained.params, folder),
    "orbax, of a state": lambda trained, folder: by_orbax(state_of(trained.params), folder),
    "safetensors": lambda trained, folder: by_safetensors(flat(trained.params), folder),
    "safetensors, by slashes": lambda trained, folder: by_safetensors(
        flat(trained.params, "/"), folder
    ),
}


@pytest.mark.parametrize("name", STARTS)
def test_a_training_goes_on_from_what_people_have(name, trained, tmp_path):
    _, start = decided(listed(), params=tree_of(STARTS[name](trained, tmp_path)))
    assert bits(start) == bits(trained.params)
    assert jax.tree.structure(start) == jax.tree.structure(trained.params)


def test_going_on_from_a_training_is_going_on_from_its_parameters(trained, tmp_path):
    found = [fitted(listed(), params=start, **ONE) for start in (trained, trained.params)]
    assert bits(found[0].solution) == bits(found[1].solution) != bits(trained.solution)
    first, second = (str(one.guarantee()) for one in found)
    # The guarantee is of the second training alone, and says what becomes of the first.
    said = " ".join(first.split())
    assert first == second
    assert "Not covered: " in said
    assert "other runs on the same data, which must be composed with this one" in said


def test_going_on_from_a_training_of_linen_keeps_its_other_collections():
    stats = {"norm": {"mean": jnp.ones(WIDTH), "var": jnp.full(WIDTH, 2.0)}}
    start = {"params": decided(Normed())[1], "batch_stats": stats}
    one = fitted(Normed(), params=start, **ONE)
    net, params = decided(Normed(), params=tree_of(one))
    assert bits(net.apply.state) == bits({"batch_stats": stats})
    assert bits(params) == bits(one.params)


def test_a_folder_of_orbax_keeps_the_lists_of_a_function_and_its_dtypes(tmp_path):
    tree = {"layers": [jnp.zeros(2), jnp.ones(3, jnp.bfloat16)], "scale": jnp.array(2, jnp.int8)}
    found = tree_of(str(by_orbax(tree, tmp_path)))
    assert jax.tree.structure(found) == jax.tree.structure(tree) and bits(found) == bits(tree)
    assert jax.tree.map(jnp.result_type, found) == jax.tree.map(jnp.result_type, tree)


def test_another_file_does_not_resume(trained, tmp_path):
    arrays, more = flat(trained.params), {"checkpoint": tmp_path / "run", **ONE}
    fitted(listed(), params=by_safetensors(arrays, tmp_path), **more)
    other = arrays | {"layers.0.bias": arrays["layers.0.bias"] + 1}
    with pytest.raises(ResumeMismatch):
        fitted(listed(), params=by_safetensors(other, tmp_path), **more)


def garbled(folder):
    (folder / "saved.safetensors").write_bytes(b"this is no header at all")
    return folder / "saved.safetensors"


OTHERS = {
    "another layout": (
        lambda start, folder: by_safetensors({n: a.T.copy() for n, a in start.items()}, folder),
        r"'layers/0/kernel' is float32\[8, 4\], and in the model float32\[4, 8\].*transpose",
    ),
    "other names": (
        lambda start, folder: by_orbax({"fc1": {"weight": start["layers.0.kernel"]}}, folder),
        "'layers/0/bias' is missing, and in the model .*rename",
    ),
    "more beside them": (
        lambda start, folder: by_safetensors(start | {"step": np.ones(1, np.float32)}, folder),
        r"'step' is float32\[1\], and in the model missing",
    ),
    "a folder above it": (
        lambda start, folder: by_orbax(start, folder).parent,
        "no checkpoint of orbax with one tree: name the folder that holds _METADATA",
    ),
    "another kind of file": (lambda start, folder: garbled(folder), "no file of safetensors"),
    "no file": (lambda start, folder: folder / "none", "there is no file"),
    "no file of safetensors": (lambda start, folder: folder / "a.safetensors", "No such file"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_start_that_is_not_the_models_is_refused(name, trained, tmp_path, unspent):
    make, words = OTHERS[name]
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        fitted(listed(), params=make(flat(trained.params), tmp_path))


def test_a_start_without_the_lists_that_a_function_reads_is_refused(tmp_path, unspent):
    arrays = {"layers.0": np.ones((P, CLASSES), np.float32)}
    with pytest.raises(ValueError, match=r"cannot be computed with params \{'layers': \{'0'"):
        fitted(lambda w, x: x @ w["layers"][0], params=by_safetensors(arrays, tmp_path))


def test_without_the_library_of_safetensors_the_error_names_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ImportError, match=r"pip install 'safetensors'"):
        tree_of(tmp_path / "model.safetensors")


# Ranks, and half precision.


def test_a_rank_above_the_width_is_refused_where_it_is_trained(unspent):
    for narrow in (nnx.LoRA(P, P + 1, WIDTH, rngs=rngs()), nnx.LoRA(WIDTH, P + 1, P, rngs=rngs())):
        model = nnx.Sequential(*[linear(P, WIDTH)] * (narrow.in_features == WIDTH), narrow)
        with pytest.raises(ValueError, match=f"has rank {P + 1}, .* width {P}: .* at most {P}"):
            fitted(model)
    with pytest.raises(ValueError, match=r"rank must be from 1 to width=8, got 9"):
        fitted(dpjax.models.Transformer(5, width=8, heads=2, rank=9), (TOKENS, records()[1]))
    model = nnx.Sequential(nnx.LoRA(P, P + 1, WIDTH, rngs=rngs()), linear(WIDTH, CLASSES))
    only = {"trainable": nnx.PathContains(1)}
    assert network(model, EXAMPLE, None, lambda: KEY, **only)[0].fixed is not None
    network(nnx.Sequential(nnx.LoRA(P, P, WIDTH, rngs=rngs())), EXAMPLE, None, lambda: KEY)


def test_parameters_in_half_precision_take_steps_below_their_spacing():
    start = jnp.ones((P, CLASSES), jnp.bfloat16)
    how = {"optimizer": optax.adam(1e-3), "params": start, "steps": 20, "epochs": None}
    trained = fitted(**how)
    assert trained.params.dtype == jnp.bfloat16
    assert np.mean(np.asarray(trained.params != start)) > 0.5
    # In half precision itself each step is lost: 1e-3 is below half of 2^-8.
    alone = dpjax.solve(trained.solution.algorithm, records(), key=KEY, params=start)
    assert bits(alone.params) == bits(start)
    # What it computes is what the network gives at the rounded parameters.
    x, _ = records()
    np.testing.assert_array_equal(trained.outputs(x), jnp.asarray(x) @ trained.params)


def in_half(params, x):
    return 100 * jnp.sum(jnp.tanh(x.astype(jnp.bfloat16) @ params["body"]) @ params["head"])


def of_gradients(params, x):
    rows = jax.vmap(jax.grad(in_half), (None, 0))(params, x)
    total = dpjax.transforms.clip_and_sum(1.0)
    return total.update(rows, total.init(params), params)[0]


def norm(tree):
    return np.linalg.norm(
        np.concatenate([np.ravel(x).astype(float) for x in jax.tree.leaves(tree)])
    )


DOORS = {
    **{
        method: dpjax.clipped_grad(in_half, clip_norm=1.0, method=method)
        for method in ("per_example", "book_keeping")
    },
    "gradients from elsewhere": of_gradients,
    "a Hessian": dpjax.clipped_hessian(in_half, clip_norm=1.0),
}


@pytest.mark.parametrize("name", DOORS)
def test_norms_of_parameters_in_half_precision_are_in_float32(name):
    draws = np.random.default_rng(0)
    shapes = {"body": (P, WIDTH), "head": (WIDTH, CLASSES)}
    params = {n: jnp.asarray(draws.normal(size=s), jnp.bfloat16) for n, s in shapes.items()}
    x = jnp.asarray(draws.normal(size=(1, P)), jnp.float32)
    clipped = jax.jit(DOORS[name])(params, x)
    assert {leaf.dtype for leaf in jax.tree.leaves(clipped)} == {jnp.dtype("float32")}
    # A single record is clipped to the bound but for the slack of float32, and never above it.
    assert clipping.SLACK - 2e-5 < norm(clipped) <= 1
    # By a norm in bfloat16 it would be off by more.
    rows = jax.grad(in_half)(params, x[0])
    half = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(rows)))
    assert abs(norm(jax.tree.map(lambda leaf: leaf.astype(float) / half, rows)) - 1) > 2e-4
