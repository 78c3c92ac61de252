"""Layers of transformers: how each is clipped, and that its clipped sum is the per-example one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from factories import mostly_ci
from jax import lax

from dpjax import clipped_grad, models
from dpjax.derivatives import clipping
from dpjax.derivatives.ghost import bookkeeping
from dpjax.objectives.units import UnitLoss

ROWS, LENGTH, WIDTH, WORDS = 5, 3, 24, 26
TOKENS = np.random.default_rng(0).integers(0, WORDS, (ROWS, LENGTH))
TOKENS[:, 2] = TOKENS[:, 0]  # a word that a record has twice


def normal(*shape):
    return np.random.default_rng(sum(shape)).normal(size=shape) / np.sqrt(shape[-2])


TABLE, SQUARE, LAYERS = normal(WORDS, WIDTH), normal(WIDTH, WIDTH), normal(3, WIDTH, WIDTH)
TURNS = np.linspace(0, 2, LENGTH)[:, None]
FIXED = normal(WIDTH, WIDTH)


def scored(x):
    return jnp.sum(jnp.sin(x)) ** 2


def looked_up(p, tokens):
    return scored(p["table"][tokens])


def looked_up_twice(p, tokens):
    return scored(p["table"][tokens] + jnp.take(p["table"], tokens[::-1], axis=0))


def tied(p, tokens):
    return jax.nn.logsumexp(jnp.tanh(p["table"][tokens]) @ p["table"].T, axis=1).sum()


def tied_by_einsum(p, tokens):
    return jnp.sin(jnp.einsum("vd,td->vt", p["table"], jnp.tanh(p["table"][tokens]))).sum()


def positioned(p, tokens):
    return scored(p["table"][tokens] + p["positions"][:LENGTH])


def rms_norm(p, tokens):
    x = p["table"][tokens]
    return scored(x * lax.rsqrt(jnp.mean(x**2, axis=1, keepdims=True) + 1e-6) * p["scale"][None])


def scaled_twice(p, tokens):
    scale = p["scale"][None]
    return scored(jnp.sin(p["table"][tokens] * scale) * scale)


def layer_norm(p, tokens):
    x = p["table"][tokens]
    x = (x - x.mean(1, keepdims=True)) * lax.rsqrt(x.var(1, keepdims=True) + 1e-6)
    return scored(x * p["scale"][None] + p["shift"][None])


def attention(p, tokens):
    x = p["table"][tokens]
    query, key, value = jnp.moveaxis(jnp.einsum("td,dshk->tshk", x, p["qkv"]), 1, 0)
    # Rotary: pairs of entries turned by an angle of the position.
    query, key = (
        jnp.concatenate([a * jnp.cos(t) - b * jnp.sin(t), a * jnp.sin(t) + b * jnp.cos(t)], axis=2)
        for each in (query, key)
        for a, b, t in [(*jnp.split(each, 2, axis=2), jnp.asarray(TURNS[:, None], x.dtype))]
    )
    scores = jnp.where(jnp.tri(LENGTH, dtype=bool), jnp.einsum("thk,shk->hts", query, key), -1e4)
    out = jnp.einsum("hts,shk->thk", jax.nn.softmax(scores), value)
    return scored(jnp.einsum("thk,hkd->td", out, p["out"]))


def block(x, w):
    return x + jnp.tanh(x @ w)


def repeated(p, tokens):
    return scored(block(block(p["table"][tokens], p["w"]), p["w"]))


def repeated_turned(p, tokens):
    return scored(jnp.tanh(p["table"][tokens] @ p["w"]) @ p["w"].T)


def scanned(p, tokens, layer=block):
    def step(x, w):
        return layer(x, w), None

    return scored(lax.scan(step, p["table"][tokens], p["layers"])[0])


def scanned_scales(p, tokens):
    def step(x, both):
        return block(x, both[0]) * both[1][None], None

    return scored(lax.scan(step, p["table"][tokens], (p["layers"], p["scales"]))[0])


def scanned_twice(p, tokens):
    def step(x, both):
        return jnp.tanh(x @ both[0] + both[1][None]) @ both[0].T, None

    x = p["start"][None] + p["table"][tokens]
    carried = lax.scan(step, x, (p["layers"], p["biases"]))[0]
    # What a loop starts from is copied, where it is a parameter.
    last = lax.scan(lambda h, row: (jnp.sin(h + row), None), p["start"], x)[0]
    return scored(carried) + scored(last)


def scanned_vectors(p, tokens):
    x = jnp.tanh(p["table"][tokens]).mean(0)
    return scored(lax.scan(lambda x, w: (jnp.sin(w @ x), None), x, p["layers"])[0])


def scanned_tables(p, tokens):
    start = jnp.zeros((LENGTH, WIDTH), p["tables"].dtype)
    return scored(lax.scan(lambda x, t: (x + jnp.sin(t[tokens]), None), start, p["tables"])[0])


def recurrent(p, tokens):
    def step(h, row):
        return jnp.tanh(row @ p["w"] + h @ p["u"]), None

    x = p["table"][tokens]
    return scored(lax.scan(step, jnp.zeros_like(x[0]), x)[0])


def universal(p, tokens):
    # The same stack of layers, twice: a loop of stacked weights in a loop that has one of each.
    def twice(x, _):
        return lax.scan(lambda x, w: (block(x, w), None), x, p["layers"])[0], None

    return scored(lax.scan(twice, p["table"][tokens], length=2)[0])


def rematerialized(p, tokens):
    return scored(jax.checkpoint(block)(p["table"][tokens], p["w"]))


def scanned_rematerialized(p, tokens):
    return scanned(p, tokens, jax.checkpoint(block))


def frozen(p, tokens):
    x = jnp.asarray(TABLE, p["a"].dtype)[tokens]
    # Low-rank changes of a constant weight.
    return scored(x @ jnp.asarray(FIXED, x.dtype) + x @ p["a"] @ p["b"])


def half_frozen_scan(p, tokens):
    # The layers are constants, the scales are trained.
    def step(x, both):
        return block(x, both[0]) * both[1][None], None

    x = jnp.asarray(TABLE, p["scales"].dtype)[tokens]
    return scored(lax.scan(step, x, (jnp.asarray(LAYERS, x.dtype), p["scales"]))[0])


STACK, ONES = {"table": TABLE, "layers": LAYERS}, np.ones(WIDTH)
WORD = {"table": TABLE}
# Name: loss, parameters, and how each is clipped: a star for a copy of each record.
KINDS = {
    "embedding": (looked_up, WORD, "GhostNorm"),
    "embedding used twice": (looked_up_twice, WORD, "GhostNorm"),
    "tied": (tied, WORD, "GhostNorm"),
    "tied by einsum": (tied_by_einsum, WORD, "GhostNorm"),
    "positions": (positioned, WORD | {"positions": normal(9, WIDTH)}, "Materialized* GhostNorm"),
    "RMSNorm": (rms_norm, WORD | {"scale": ONES}, "Materialized GhostNorm"),
    "scale used twice": (scaled_twice, WORD | {"scale": ONES}, "Materialized GhostNorm"),
    "LayerNorm": (
        layer_norm,
        WORD | {"scale": ONES, "shift": 0 * ONES},
        "Materialized Materialized GhostNorm",
    ),
    "attention, rotary": (
        attention,
        WORD | {"qkv": normal(WIDTH, 3, 3, 8), "out": normal(3, 8, WIDTH)},
        "GhostNorm GhostNorm GhostNorm",
    ),
    "repeated": (repeated, WORD | {"w": SQUARE}, "GhostNorm GhostNorm"),
    "repeated, turned": (repeated_turned, WORD | {"w": SQUARE}, "GhostNorm GhostNorm"),
    "scanned": (scanned, STACK, "Stacked GhostNorm"),
    "scanned scales": (
        scanned_scales,
        STACK | {"scales": normal(3, WIDTH)},
        "Stacked Materialized GhostNorm",
    ),
    "used twice in a step, with a bias, and a start that is learned": (
        scanned_twice,
        STACK | {"biases": normal(3, WIDTH), "start": normal(2, WIDTH)[0]},
        "Materialized Materialized Materialized* GhostNorm",
    ),
    "scanned vectors": (scanned_vectors, STACK, "Stacked GhostNorm"),
    "scanned tables": (scanned_tables, {"tables": normal(2, WORDS, WIDTH)}, "Stacked"),
    "recurrent": (recurrent, WORD | {"w": SQUARE, "u": SQUARE}, "GhostNorm GhostNorm GhostNorm"),
    "loop in a loop": (universal, STACK, "Stacked GhostNorm"),
    "rematerialised": (rematerialized, WORD | {"w": SQUARE}, "GhostNorm GhostNorm"),
    "scanned, rematerialised": (scanned_rematerialized, STACK, "Stacked GhostNorm"),
    "frozen, low rank": (
        frozen,
        {"a": normal(WIDTH, 2), "b": normal(2, WIDTH)},
        "GhostNorm GhostNorm",
    ),
    "frozen in a loop": (half_frozen_scan, {"scales": normal(3, WIDTH)}, "Materialized"),
}
DAILY = ("tied", "repeated, turned", "scanned scales", "scanned, rematerialised")


def ways(reading):
    copied = reading.plan.copied
    return " ".join(type(x).__name__ + "*" * (x.leaf in copied) for x in reading.parts)


def cast(tree, dtype):
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf), dtype), tree)


def flat(tree):
    return np.asarray(jax.flatten_util.ravel_pytree(tree)[0], np.float64)


def compared(loss, params, records, **how):
    """The distance of the clipped sum from the per-example one."""
    each = jax.jit(jax.vmap(jax.grad(loss), (None, 0)))(params, records)
    count = jax.tree.leaves(records)[0].shape[0]
    rows = np.concatenate([np.reshape(leaf, (count, -1)) for leaf in jax.tree.leaves(each)], axis=1)
    rows = np.asarray(rows, np.float64)
    norms = np.linalg.norm(rows, axis=1)
    clip_norm = float(np.median(norms))
    total = clipped_grad(loss, clip_norm=clip_norm, method="book_keeping", **how)
    expected = np.minimum(1, clipping.SLACK * clip_norm / norms) @ rows
    return np.linalg.norm(flat(jax.jit(total)(params, records)) - expected) / np.linalg.norm(
        expected
    )


@pytest.mark.parametrize(
    ("name", "x64"),
    mostly_ci([(n, x64) for n in KINDS for x64 in (True, False)], [(n, True) for n in DAILY]),
)
def test_a_layer_is_clipped_as_its_per_example_gradients_are(name, x64):
    with jax.enable_x64(x64):
        loss, params, expected = KINDS[name]
        params, tokens = cast(params, float), jnp.asarray(TOKENS)
        assert ways(bookkeeping.read(loss, params, tokens)) == expected
        assert compared(loss, params, tokens) < (1e-10 if x64 else 1e-5)


@pytest.mark.parametrize("name", mostly_ci(KINDS, ["tied", "scanned, rematerialised"]))
def test_units_are_clipped_as_their_per_example_gradients_are(name):
    loss, params, _ = KINDS[name]
    units = np.stack([TOKENS, (TOKENS + 3) % WORDS], axis=1)
    present = np.ones((ROWS, 2), bool)
    present[1, 0] = False
    records = jnp.asarray(units), jnp.asarray(present)
    with jax.enable_x64(True):
        unit_loss, params = UnitLoss(loss, "mean"), cast(params, float)
        copied = bookkeeping.read(unit_loss, params, records).plan.copied
        # A slice of a parameter, or a start, is added to the records of a unit alike.
        assert bool(copied) == (name == "positions" or "start" in params)
        assert compared(unit_loss, params, records) < 1e-10


@pytest.mark.parametrize("name", mostly_ci(KINDS, ["tied", "scanned, rematerialised"]))
def test_norms_and_sums_of_a_loss_in_bfloat16_are_in_float32(name):
    loss, params, _ = KINDS[name]

    def half(params, tokens):
        return loss(cast_down(params), tokens).astype(jnp.float32)

    params, tokens = cast(params, jnp.float32), jnp.asarray(TOKENS[:1])
    reading = bookkeeping.read(half, params, tokens)
    assert ways(reading) == KINDS[name][2]
    got = jax.jit(clipped_grad(half, clip_norm=1e-3, method="book_keeping"))(params, tokens)
    assert {leaf.dtype for leaf in jax.tree.leaves(got)} == {jnp.dtype("float32")}
    # A norm, a factor or a sum in bfloat16 would be off by 1e-3.
    assert np.linalg.norm(flat(got)) == pytest.approx(clipping.SLACK * 1e-3, rel=1e-5)


def cast_down(params):
    return jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)


@pytest.mark.parametrize(("width", "kept"), [(16, False), (1100, True)])
def test_large_gradients_are_made_layer_by_layer_though_all_are_materialised(
    width, kept, monkeypatch
):
    def loss(w, x):
        return scored(x @ w)

    w, x = jnp.zeros((64, width)), jnp.zeros((2, 600, 64))
    assert not bookkeeping.read(loss, w, x).saves
    called, keeping = [], bookkeeping.gradient_sum

    def counted(*given, **how):
        called.append(how)
        return keeping(*given, **how)

    monkeypatch.setattr(bookkeeping, "gradient_sum", counted)
    jax.eval_shape(clipped_grad(loss, clip_norm=1.0), w, x)
    assert bool(called) == kept


def test_a_loop_of_no_steps_and_a_record_of_no_tokens_add_nothing():
    with jax.enable_x64(True):
        params = cast({"table": TABLE, "none": np.zeros((0, WIDTH, WIDTH)), "w": SQUARE}, float)

        def loss(p, tokens):
            x = lax.scan(lambda x, w: (block(x, w), None), p["table"][tokens], p["none"])[0]
            return scored(jnp.ones((1, WIDTH)) @ p["w"] + x.sum()) + scored(p["table"][tokens[:0]])

        assert compared(loss, params, jnp.asarray(TOKENS)) < 1e-10


@pytest.mark.ci
@pytest.mark.parametrize(("classes", "dtype"), [(None, "float32"), (3, "bfloat16")])
def test_no_layer_of_the_transformer_is_copied(classes, dtype):
    how = {"classes": classes, "dtype": jnp.dtype(dtype), "rank": 2, "remat": classes is None}
    model = models.Transformer(vocabulary=WORDS, width=16, depth=1, heads=2, **how)

    def loss(params, tokens):
        logits = model.apply(params, tokens)
        if classes is None:
            return models.next_token(logits, tokens)
        return jax.nn.logsumexp(logits) - logits[tokens[0] % classes]

    tokens = jnp.asarray(np.tile(TOKENS, 2)).at[:, 5].set(0)
    params = jax.jit(model.init)(jax.random.key(0), tokens[0])
    assert not bookkeeping.read(loss, params, tokens).plan.copied
    assert compared(loss, params, tokens) < (1e-5 if dtype == "float32" else 0.02)


def test_padding_changes_nothing_in_the_transformer():
    words = jnp.array([3, 1, 4, 1, 5])
    padded = jnp.pad(words, (0, 3))
    for classes in (None, 3):
        model = models.Transformer(vocabulary=6, width=8, depth=1, heads=2, classes=classes)
        params = jax.jit(model.init)(jax.random.key(0), words)
        one, other = (jax.jit(model.apply)(params, each) for each in (words, padded))
        np.testing.assert_allclose(one, other[:5] if classes is None else other, atol=1e-5)
    assert models.next_token(jnp.ones((8, 6)), padded) == models.next_token(jnp.ones((5, 6)), words)
