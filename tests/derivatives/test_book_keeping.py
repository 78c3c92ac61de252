"""Every way to a clipped sum of gradients gives the same one, whatever the network."""

import functools
import itertools

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from factories import mostly_ci
from jax import lax

from dpjax import clipped_grad, objectives
from dpjax.derivatives import clipping, general, primitives
from dpjax.derivatives.ghost import bookkeeping, ghost_norm
from dpjax.models import CNN, Transformer, next_token

ROWS = 11


def normal(*shape, seed=0):
    return np.asarray(np.random.default_rng(seed + sum(shape)).normal(size=shape))


def dense(params, x):
    hidden = jnp.tanh(x @ params["w"] + params["b"])
    return jnp.sum(jax.nn.elu(hidden @ params["v"]) ** 2)


def twice(params, x):
    hidden = jnp.tanh(x @ params["w"])
    return jnp.sum(jnp.sin(hidden @ params["w"] + params["b"]) ** 2)


def turned(params, x):
    # The weight as the first argument, turned, and seen through a reshape.
    hidden = jnp.tanh(params["w"].T @ x)
    return jnp.sum(hidden * (params["flat"].reshape(3, 5) @ x)[:3].sum()) ** 2


def sequence(params, x):
    # 4 positions of 5 numbers: the same weight at each.
    hidden = jax.nn.gelu(x @ params["w"] + params["b"][None])
    return jnp.sum(jnp.tanh(hidden).mean(0) @ params["v"]) ** 2


def normed(params, x):
    centred = (x - x.mean()) * lax.rsqrt(x.var() + 1e-3)
    return jnp.sum(jnp.tanh(params["scale"] * centred - params["shift"]) @ params["w"]) ** 2


def embedded(params, x):
    rows = jnp.take(params["table"], x.astype(int), axis=0)
    return jnp.sum(jnp.tanh(rows @ params["w"]) ** 2)


def tied(params, x):
    rows = params["table"][x.astype(int)]
    return jax.nn.logsumexp(jnp.tanh(rows.sum(0)) @ params["table"].T)


def recurrent(params, x):
    def step(h, row):
        return jnp.tanh(row @ params["w"] + h @ params["u"]), None

    return jnp.sum(lax.scan(step, jnp.zeros(3, x.dtype), x)[0] ** 2)


def remembered(params, x):
    return jax.checkpoint(dense)(params, x)


def standardised(params, x):
    # A weight that is not the parameter with its entries moved about.
    w = params["w"] / jnp.linalg.norm(params["w"])
    return jnp.sum(jnp.tanh(x @ w)) ** 2 + jnp.sum(params["w"] ** 2)


def scaled(params, x):
    # JAX multiplies and adds scalars without spreading them out first.
    return jnp.sum(jnp.tanh(params["s"] * (x @ params["w"]) - params["t"])) ** 2


def unused(params, x):
    return dense(params, x) + 0 * jnp.sum(x)


def biased(out, bias):
    """``out + bias`` as JAX writes it where ranks are promoted."""
    return out + jnp.expand_dims(bias, range(out.ndim - bias.ndim))


def convolution(groups, dims, turn=lambda kernel: kernel, **settings):
    def loss(params, x):
        out = lax.conv_general_dilated(
            x[None],
            turn(params["k"]),
            feature_group_count=groups,
            **settings,
            dimension_numbers=dims,
        )
        return jnp.sum(jnp.tanh(biased(out, params["b"])) ** 2)

    return loss


def repeated(params, x):
    def step(image, _):
        out = lax.conv_general_dilated(
            image[None], params["k"], (1, 1), "SAME", dimension_numbers=PLANE
        )
        return jnp.tanh(out[0]), None

    return jnp.sum(lax.scan(step, x, length=3)[0] ** 2)


def mlp(**more):
    return {"w": normal(5, 3), "b": normal(3), "v": normal(3, 4)} | more


FLAT = normal(ROWS, 5)
TOKENS = np.random.default_rng(2).integers(0, 6, (ROWS, 4)).astype(float)
IMAGES = normal(ROWS, 7, 6, 4)
PLANE = ("NHWC", "HWIO", "NHWC")
# Name: loss, parameters, records, and the ways found for the leaves.
LOSSES = {
    "dense": (dense, mlp(), FLAT, "Materialized Rank1 Rank1"),
    "used twice": (twice, {"w": normal(5, 5), "b": normal(5)}, FLAT, "Materialized GhostNorm"),
    "turned": (turned, {"w": normal(5, 3), "flat": normal(15)}, FLAT, "Rank1 Rank1"),
    "sequence": (sequence, mlp(), normal(ROWS, 4, 5), "Materialized Rank1 Materialized"),
    "long rows": (
        sequence,
        {"w": normal(90, 80), "b": normal(80), "v": normal(80, 2)},
        normal(ROWS, 3, 90) / 9,
        "Materialized Rank1 GhostNorm",
    ),
    "normed": (
        normed,
        {"scale": normal(5), "shift": normal(5), "w": normal(5, 2)},
        FLAT,
        "Materialized Materialized Rank1",
    ),
    "embedded": (
        embedded,
        {"table": normal(6, 3), "w": normal(3, 2)},
        TOKENS,
        "GhostNorm Materialized",
    ),
    "tied": (tied, {"table": normal(6, 3)}, TOKENS, "GhostNorm"),
    "recurrent": (
        recurrent,
        {"w": normal(5, 3), "u": normal(3, 3)},
        normal(ROWS, 4, 5),
        "Materialized Materialized",
    ),
    "remembered": (remembered, mlp(), FLAT, "Materialized Rank1 Rank1"),
    "standardised": (standardised, {"w": normal(5, 3)}, FLAT, "Materialized"),
    "scaled": (
        scaled,
        {"s": normal(), "t": normal(), "w": normal(5, 3)},
        FLAT,
        "Materialized Materialized Rank1",
    ),
    "unused": (unused, mlp(z=normal(2)), FLAT, "Materialized Rank1 Rank1 Materialized"),
    "plain": (
        convolution(1, PLANE, window_strides=(2, 1), padding=[(1, 2), (0, 1)]),
        {"k": normal(3, 2, 4, 5), "b": normal(5)},
        IMAGES,
        "Materialized Materialized",
    ),
    "holes": (
        convolution(1, PLANE, window_strides=(1, 1), padding="SAME", rhs_dilation=(2, 1)),
        {"k": normal(3, 2, 4, 5), "b": normal(5)},
        IMAGES,
        "Materialized Materialized",
    ),
    "groups": (
        convolution(2, PLANE, window_strides=(1, 1), padding="SAME"),
        {"k": normal(3, 3, 2, 8), "b": normal(8)},
        normal(ROWS, 8, 8, 4),
        "Materialized Materialized",
    ),
    "unit kernel": (  # no parameter with its entries moved about: every record has its own
        convolution(
            1, PLANE, lambda k: k / jnp.linalg.norm(k), window_strides=(1, 1), padding="SAME"
        ),
        {"k": normal(3, 2, 4, 5), "b": normal(5)},
        IMAGES,
        "Materialized Materialized",
    ),
    "repeated": (repeated, {"k": normal(2, 2, 3, 3)}, normal(ROWS, 4, 5, 3), "Materialized"),
    "line": (
        convolution(1, ("NCH", "OIH", "NCH"), window_strides=(2,), padding=[(-1, 3)]),
        {"k": normal(3, 7, 4), "b": normal(3, 1)},
        normal(ROWS, 7, 9),
        "Materialized Materialized",
    ),
}
# One loss for each kind of part, and what records may not be mixed by.
KINDS = ("dense", "long rows", "embedded", "plain")
CONVOLUTIONS = ("plain", "groups", "unit kernel")
WAYS = {
    "book-keeping": {"method": "book_keeping"},
    "per example": {"method": "per_example"},
}


def made(name, dtype):
    loss, *arrays, ways = LOSSES[name]
    params, records = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf, dtype)), arrays)
    return loss, params, records, ways


@functools.partial(jax.jit, static_argnums=0)
def gradients(loss, params, records):
    """One row per record."""
    one = jax.vmap(jax.grad(loss), (None, 0))(params, records)
    return jax.vmap(lambda tree: jax.flatten_util.ravel_pytree(tree)[0])(one)


def reference(rows, clip_norm, keep):
    """The clipped sum of the gradients in ``rows``."""
    rows = np.asarray(rows, np.float64)
    clipped = np.minimum(1, clipping.SLACK * clip_norm / np.linalg.norm(rows, axis=1))
    return (np.asarray(keep) * clipped) @ rows


@functools.partial(jax.jit, static_argnums=(0, 1))
def clipped_sum(loss, how, params, records, mask, clip_norm):
    total = clipped_grad(loss, clip_norm=clip_norm, **dict(how))(params, records, mask)
    return jax.flatten_util.ravel_pytree(total)[0]


def flat_sum(loss, params, records, mask, clip_norm=1.0, **how):
    found = clipped_sum(loss, tuple(how.items()), params, records, mask, clip_norm)
    return np.asarray(found, np.float64)


def distance(got, expected):
    return np.linalg.norm(got - expected) / np.linalg.norm(expected)


# One of each way to measure a layer, where rounding hides little; the others are CI's.
FEW = [(name, True) for name in ("used twice", "embedded", "tied", "recurrent", "groups", *KINDS)]
FEW.append(("dense", False))


# Where rounding hides little, and in float32.
@pytest.mark.parametrize(
    ("name", "x64"),
    mostly_ci([*((name, True) for name in LOSSES), *((name, False) for name in KINDS)], FEW),
)
def test_all_ways_agree(name, x64):
    dtype = np.dtype("float64" if x64 else "float32")
    with jax.enable_x64(x64):
        loss, params, records, ways = made(name, dtype)
        reading = bookkeeping.read(loss, params, records)
        assert " ".join(type(part).__name__ for part in reading.parts) == ways
        mask = np.arange(ROWS) % 5 != 3
        rows = gradients(loss, params, records)
        clip_norm = float(np.median(np.linalg.norm(rows, axis=1)))
        expected = reference(rows, clip_norm, mask)
        each = [WAYS["book-keeping"]]
        if name in (*KINDS, *CONVOLUTIONS):  # of other losses the rest does the same
            needed = bookkeeping.bytes_per_record(loss, reading, params, records)
            pieces = {"memory_limit": 4 * needed}  # of four records
            each = [*WAYS.values(), {"method": "book_keeping"} | pieces]
        for how in each:
            got = flat_sum(loss, params, records, mask, clip_norm, **how)
            assert distance(got, expected) < (1e-10 if x64 else 1e-5), how


@pytest.mark.parametrize(
    ("name", "x64"),
    [(name, False) for name in ("dense", "sequence", "long rows", "normed", "recurrent")]
    + [(name, x64) for name in CONVOLUTIONS for x64 in (False, True)],
)
@pytest.mark.parametrize("way", WAYS)
def test_a_record_that_is_not_finite_is_null_and_leaves_the_others_alone(name, way, x64):
    with jax.enable_x64(x64):
        loss, params, records, _ = made(name, np.float64 if x64 else np.float32)
        spoilt = np.array(records)
        spoilt[2], spoilt[7] = np.nan, np.inf
        got = flat_sum(loss, params, spoilt, np.ones(ROWS, bool), **WAYS[way])
        mask = ~np.isin(np.arange(ROWS), (2, 7))
        assert np.array_equal(got, flat_sum(loss, params, records, mask, **WAYS[way]))


@pytest.mark.optimised
def test_a_gradient_that_cancels_over_positions_is_still_within_its_bound():
    # The terms of the pairs cancel to 1e-12 of each: unguarded, the norm could come out as 0.
    def cancelling(params, x):
        hidden = x @ params["w"]
        return 1e7 * jnp.sum(hidden[0] - hidden[1])

    params = {"w": jnp.asarray(normal(90, 80), jnp.float32)}
    rows = jnp.asarray(normal(ROWS, 90), jnp.float32)
    records = jnp.stack([rows, rows * (1 + 1e-6)], axis=1)
    (part,) = bookkeeping.read(cancelling, params, records).parts
    assert isinstance(part, ghost_norm.GhostNorm)
    for record in np.asarray(records):
        got = flat_sum(cancelling, params, record[None], None, 1e-3, method="book_keeping")
        assert np.linalg.norm(got) <= 1e-3


@pytest.mark.optimised
@pytest.mark.parametrize("name", mostly_ci(LOSSES, ["dense", "used twice", "embedded", "plain"]))
def test_no_record_contributes_more_than_the_clip_norm(name):
    loss, params, records, _ = made(name, jnp.float32)
    records, one = np.asarray(records), np.arange(ROWS) == 4
    for scale, clip_norm in itertools.product((1e-18, 1.0, 1e3, 1e18), (1e-6, 1.0, 1e6)):
        scaled = records if name in ("embedded", "tied") else records * np.float32(scale)
        got = flat_sum(loss, params, scaled, one, clip_norm, method="book_keeping")
        assert np.linalg.norm(got) <= clip_norm


@pytest.mark.optimised
@pytest.mark.parametrize("name", mostly_ci(["dense", "long rows", "embedded"], ["dense"]))
def test_no_record_contributes_more_in_float64_at_any_scale(name):
    # Squares of 1e-154 leave float64's range; the cotangents they are multiplied with are 1e154.
    with jax.enable_x64(True):
        loss, params, records, _ = made(name, jnp.float64)

        def stretched(params, row):
            return row[1] * loss(params, row[0])

        exponents = np.array([-200.0, -154.0, 0.0, 100.0, 154.0])
        small = 0 * exponents if name == "embedded" else exponents
        rows = np.asarray(records[0]) * 10.0 ** small.reshape(-1, *[1] * (records.ndim - 1))

        @jax.jit
        def each(batches, clip_norm):
            total = clipped_grad(stretched, clip_norm=clip_norm, method="book_keeping")
            return jax.vmap(total, (None, 0))(params, batches)

        for clip_norm, by in itertools.product((1e-160, 1.0), (1e-154, 1.0, 1e154)):
            batches = rows[:, None], np.full((len(rows), 1), by)
            sums = jax.tree.leaves(each(batches, clip_norm))
            flat = np.concatenate([np.reshape(leaf, (len(rows), -1)) for leaf in sums], axis=1)
            assert (np.linalg.norm(flat / clip_norm, axis=1) <= 1).all()


@pytest.mark.parametrize("copied", [False, True])
def test_a_convolution_inside_a_loop_mixes_no_records(copied):
    with jax.enable_x64(True):
        params = {"k": normal(3, 3, 3, 2, 2), "w": normal(32, 3), "v": normal(4, 4)}

        def loss(params, x):
            def layer(x, kernel):
                # Of a unit kernel, which is no parameter, every record has its own.
                kernel = kernel / jnp.linalg.norm(kernel) if copied else kernel
                out = lax.conv_general_dilated(
                    x[None], kernel, (1, 1), "SAME", dimension_numbers=PLANE
                )
                return jnp.tanh(out[0]), None

            return jnp.sum(lax.scan(layer, x, params["k"])[0].ravel() @ params["w"]) ** 2

        images, others = normal(6, 4, 4, 2), np.arange(6) != 2
        assert bookkeeping.read(loss, params, images).plan.sequential == copied
        spoilt = np.where(others[:, None, None, None], images, np.nan)
        got = flat_sum(loss, params, spoilt, np.ones(6, bool), method="book_keeping")
        expected = flat_sum(loss, params, images, others, method="book_keeping")
        assert np.array_equal(got, expected) and np.abs(got).max() > 0


def test_a_convolution_may_ask_for_another_dtype():
    def loss(params, x):
        out = lax.conv_general_dilated(
            x[None],
            params["k"],
            (1, 1),
            "SAME",
            dimension_numbers=PLANE,
            preferred_element_type=jnp.float32,
        )
        return jnp.sum(jnp.tanh(biased(out, params["b"])) ** 2)

    params = {"k": jnp.asarray(normal(3, 2, 4, 5), jnp.bfloat16), "b": jnp.zeros(5)}
    images = jnp.asarray(IMAGES, jnp.bfloat16)
    ways = [flat_sum(loss, params, images, None, method=m) for m in ("book_keeping", "per_example")]
    assert distance(*ways) < 0.02


def test_neighbours_in_any_order_are_summed_from_materialized_gradients():
    loss, params, records, _ = made("long rows", jnp.float32)
    kinds = [type(part).__name__ for part in bookkeeping.read(loss, params, records, True).parts]
    assert kinds == ["Materialized", "Rank1", "Materialized"]
    total = clipped_grad(loss, clip_norm=1.0, method="book_keeping", permutation_invariant=True)
    wide = jax.jit(lambda records: total.wide(params, records).leading)
    there, back = wide(records), wide(records[::-1])
    assert np.array_equal(there, back)


@pytest.mark.parametrize("name", ["dense", "used twice", "sequence", "plain"])
def test_a_layer_is_clipped_by_itself(name):
    loss, params, records, _ = made(name, jnp.float32)
    total = clipped_grad(loss, clip_norm=0.3, per_layer=True)
    each = jax.jit(total)
    got = each(params, records, np.ones(ROWS, bool))
    bound = 0.3 / np.sqrt(len(params))
    gradients = jax.jit(jax.vmap(jax.grad(loss), (None, 0)))(params, records)
    for key in params:
        rows = np.asarray(gradients[key], np.float64).reshape(ROWS, -1)
        clipped = np.minimum(1, bound / np.linalg.norm(rows, axis=1))
        assert distance(np.ravel(got[key]), clipped @ rows) < 1e-5
    one = each(params, records, np.arange(ROWS) == 0)
    assert np.linalg.norm(np.concatenate([np.ravel(leaf) for leaf in one.values()])) <= 0.3
    assert total.sensitivity("zero_out", rows=1) == pytest.approx(0.3, rel=3e-3)


def test_the_network_of_the_papers_takes_its_convolutions_as_arrays_and_no_others():
    objective = objectives.cross_entropy(CNN().apply)
    params = jax.jit(CNN().init)(jax.random.key(0), jnp.zeros((28, 28)))
    batch = jnp.asarray(normal(4, 28, 28), jnp.float32), jnp.arange(4)
    reading = bookkeeping.read(objective, params, batch)
    assert [type(part).__name__ for part in reading.parts].count("Rank1") == 2
    assert not reading.plan.copied
    ways = [
        flat_sum(objective, params, batch, None, clip_norm=2.0, method=m)
        for m in ("auto", "per_example")
    ]
    assert distance(*ways) < 1e-5


@pytest.mark.ci
def test_flax_layers_are_found():
    class Net(nn.Module):
        @nn.compact
        def __call__(self, tokens):
            x = nn.Embed(6, 8)(tokens)
            x = nn.LayerNorm()(x + nn.MultiHeadDotProductAttention(num_heads=2)(x))
            x = nn.GroupNorm(num_groups=2)(nn.Conv(8, (3,))(x))
            return nn.Dense(3)(jax.nn.elu(x).mean(0))

    tokens = jnp.asarray(TOKENS, int)
    params = jax.jit(Net().init)(jax.random.key(0), tokens[0])
    objective = objectives.cross_entropy(Net().apply)
    batch = tokens, jnp.arange(ROWS) % 3
    assert not bookkeeping.read(objective, params, batch).plan.copied
    expected = flat_sum(objective, params, batch, None, method="per_example")
    got = flat_sum(objective, params, batch, None, method="book_keeping")
    assert distance(got, expected) < 1e-5


def test_half_precision_parameters_are_summed_in_float32():
    loss, params, records, _ = made("dense", jnp.bfloat16)
    got = jax.jit(clipped_grad(loss, clip_norm=1.0, method="book_keeping"))(params, records)
    chex.assert_trees_all_equal_shapes_and_dtypes(got, made("dense", jnp.float32)[1])
    exact = flat_sum(*made("dense", jnp.float32)[:3], None)
    assert distance(np.asarray(jax.flatten_util.ravel_pytree(got)[0]), exact) < 0.05


def images(params, x):
    return jax.nn.logsumexp(CNN().apply(params, x))


def wide(params, x):
    return jnp.sum(jnp.tanh(jnp.tanh(x @ params[0]) @ params[1]) ** 2)


def language(params, x):
    model = Transformer(vocabulary=128, width=32, depth=1)
    return next_token(model.apply(params, x), x)


def started(rows):
    tokens = np.arange(rows * 32).reshape(rows, 32) % 127 + 1
    model = Transformer(vocabulary=128, width=32, depth=1)
    return model.init(jax.random.key(0), tokens[0]), tokens


@pytest.mark.optimised
@pytest.mark.parametrize("name", mostly_ci(["images", "wide", "language"], ["wide"]))
def test_the_memory_of_a_record_is_within_twice_what_the_compiler_counts(name):
    few, many = 64, 256
    if name == "language":
        loss, (params, records) = language, started(many)
    elif name == "images":
        records = normal(many, 28, 28).astype(np.float32)
        params = jax.jit(CNN().init)(jax.random.key(0), records[0])
        loss = images
    else:
        params = [jnp.ones((200, 300)), jnp.ones((300, 40))]
        loss, records = wide, np.ones((many, 200), np.float32)
    reading = bookkeeping.read(loss, params, records)
    gradient = general.gradient_of_record(loss, params)

    def materialized(params, rows):
        each = jax.vmap(general.gradient_of_record(loss, params))(rows)
        return jnp.sum(each**2, axis=1) @ each

    def counted(function):
        """What one more record adds, between ``few`` and ``many``."""
        programs = [jax.jit(function).lower(params, records[:n]).compile() for n in (few, many)]
        first, last = (program.memory_analysis().temp_size_in_bytes for program in programs)
        return (last - first) / (many - few)

    def keeping(params, rows):
        return bookkeeping.gradient_sum(loss, params, rows, None, 1.0, False, len(rows))

    ours = bookkeeping.bytes_per_record(loss, reading, params, records)
    assert 0.5 < ours / counted(keeping) < 2
    ours = primitives.bytes_alive(gradient, primitives.example_of(records))
    assert 0.5 < ours / counted(materialized) < 2


def test_values_that_no_record_enters_are_not_counted_for_each():
    table = jnp.ones((100, 100), jnp.bfloat16)
    alone = primitives.bytes_alive(lambda x: x @ table.astype("float32").T, jnp.ones(100))
    assert alone == 400
    # Inside a loop only what it carries and one of its steps are alive.
    looped = primitives.bytes_alive(
        lambda x: lax.fori_loop(0, 9, lambda i, x: jnp.sin(jnp.cos(x)), x), jnp.ones(100)
    )
    assert looped <= 800


@pytest.mark.parametrize(("backend", "rows"), [("cpu", 1), ("gpu", 16)])
def test_an_accelerator_takes_more_gradients_at_once_than_a_cache_holds(monkeypatch, backend, rows):
    # Failed where the cache of a CPU decided everywhere: one record at a time.
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    params, records = jnp.ones(2**20), jnp.ones((16, 1))
    total = clipped_grad(lambda w, x: jnp.sum(w * x), clip_norm=1.0, method="per_example")
    assert f"f32[{rows},1048576]" in str(jax.make_jaxpr(total)(params, records))


def test_a_loss_that_ignores_its_record_takes_a_limit_too():
    total = clipped_grad(lambda w, x: jnp.sum(w**2), clip_norm=1.0, memory_limit=10**6)
    chex.assert_tree_all_finite(total(jnp.ones(3), jnp.ones((4, 2))))


def test_keys_and_parameters_may_be_vmapped():
    loss, params, records, _ = made("plain", jnp.float32)
    total = jax.jit(clipped_grad(loss, clip_norm=1.0, method="book_keeping"))
    both = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), params)
    got = jax.vmap(lambda p: total(p, records))(both)
    for i in range(2):
        alone = total(jax.tree.map(lambda leaf, i=i: leaf[i], both), records)
        chex.assert_tree_all_finite(alone)
        one = jax.tree.map(lambda leaf, i=i: leaf[i], got)
        chex.assert_trees_all_close(one, alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"memory_limit": 100}, "memory_limit=100 bytes is below what one example needs"),
        ({"memory_limit": 0}, "memory_limit"),
        ({"method": "ghost"}, "unknown method 'ghost'"),
        ({"per_layer": True, "method": "per_example"}, "per_layer needs another"),
        ({"method": "two_pass"}, "unknown method 'two_pass'"),
    ],
)
def test_bad_settings_are_named(settings, words):
    loss, params, records, _ = made("dense", jnp.float32)
    with pytest.raises(ValueError, match=words):
        clipped_grad(loss, clip_norm=1.0, **settings)(params, records)


def test_integer_parameters_are_refused():
    with pytest.raises(ValueError, match="params must be floating"):
        clipped_grad(dense, clip_norm=1.0, method="book_keeping")(
            {"w": jnp.ones((5, 3), int), "b": jnp.ones(3), "v": jnp.ones((3, 4))}, FLAT
        )
