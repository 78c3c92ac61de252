"""Noise for prefix sums: its closed forms, its sensitivity, its end, and its optax face."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import linalg, stats

import dpjax
from dpjax.mechanisms import PrefixNoise, prefix_noise, tree
from dpjax.mechanisms.fixed_point import FRACTION
from dpjax.mechanisms.noise import Prefix
from dpjax.mechanisms.tree import KINDS
from dpjax.transforms import add_tree_noise

KEY = jax.random.key(5)
# Each statistical check fails by chance with this probability at most.
LEVEL = 1e-6
each_kind = pytest.mark.parametrize("kind", KINDS)


@functools.partial(jax.jit, static_argnames=("noise", "dimension"))
def increments(noise, dimension, key=KEY):
    """(2,000, K, dimension) of noise on increments of 0, a segment of each of as many keys."""
    leaves = jnp.arange(noise.horizon)

    def one(key):
        return jax.vmap(lambda leaf: noise.perturb(key, jnp.zeros(dimension), 1.0, leaf))(leaves)

    return jax.lax.map(one, jax.random.split(key, 2_000), batch_size=100)


@functools.partial(jax.jit, static_argnames="noise")
def perturbed(noise, value, leaf):
    return noise.perturb(KEY, value, 1.0, leaf)


@pytest.mark.computes
@each_kind
def test_the_noise_on_every_prefix_sum_has_its_closed_form(kind):
    """40,000 draws a sum: 2 % are 5.6 standard errors, and all sums are asked at once."""
    noise = PrefixNoise(kind, 64)
    sums = np.cumsum(increments(noise, 20), axis=1)
    measured = np.sqrt((sums**2).mean(axis=(0, 2)))
    # A mean of 40,000 squares errs by 0.7 %, of its root by 0.35 %: 2 % at LEVEL for all sums.
    assert np.abs(measured / noise.stddevs() - 1).max() < 0.02
    # A bug of 5 % is seen, as is the noise of another kind.
    assert np.abs(0.95 * measured / noise.stddevs() - 1).max() > 0.02
    for other in set(KINDS) - {kind}:
        wrong = PrefixNoise(other, 64).stddevs()
        assert np.abs(measured / wrong - 1).max() > 0.02


@pytest.mark.parametrize(
    ("horizon", "independent", "tree", "root"),
    [
        (16, (4.00, 2.92), (4.47, 3.21), (1.78, 1.71)),
        (64, (8.00, 5.70), (6.48, 4.59), (2.21, 2.13)),
        (256, (16.0, 11.3), (8.49, 6.00), (2.65, 2.56)),
        (1024, (32.0, 22.6), (10.5, 7.42), (3.12, 3.03)),
    ],
)
def test_errors_at_equal_privacy(horizon, independent, tree, root):
    """Maximum and root mean square over the steps, for s = 1 and mu = 1."""
    expected_of = {"independent": independent, "tree": tree, "square_root": root}
    for kind, expected in expected_of.items():
        noise = PrefixNoise(kind, horizon)
        found = noise.sensitivity * noise.stddevs()
        rms = np.sqrt((found**2).mean())
        # The tables count ceil(log2 K) + 1 levels at K = 2^k, which is the tree's height here too.
        assert (found.max(), rms) == pytest.approx(expected, rel=5e-3)


def test_the_default_has_a_third_of_the_tree_s_error():
    for horizon in (64, 256):
        root, tree = prefix_noise(horizon, 22), PrefixNoise("tree", horizon)
        assert root.kind == "square_root"
        ratio = root.stddevs().max() / (tree.sensitivity * tree.stddevs().max())
        assert ratio <= 0.35


@pytest.mark.parametrize(
    ("horizon", "cost"), [(32, 1e-8), (128, 2e-3), (512, 0.014), (2_000, 0.04)]
)
def test_the_weights_left_out_of_the_square_root_cost_little(horizon, cost):
    """Against all K of them: the root of A, its columns scaled, at equal privacy."""
    k = np.arange(1, horizon)
    root = np.concatenate([[1.0], np.cumprod((2 * k - 1) / (2 * k))])
    inverse = np.concatenate([[1.0], np.cumprod((2 * k - 3) / (2 * k))])
    norms = np.sqrt(np.cumsum(root**2)[::-1])
    squares = np.zeros(horizon)
    for j in range(horizon):
        squares[j:] += np.cumsum(norms[j:] * inverse[: horizon - j]) ** 2
    noise = PrefixNoise("square_root", horizon)
    ratios = noise.sensitivity * noise.stddevs() / np.sqrt(squares)
    assert ratios.mean() - 1 > -1e-8 and ratios.max() - 1 < cost
    # A band, which leaves out what is far back and nothing else, costs more at as many draws.
    if horizon == 512:
        banded = linalg.toeplitz(np.where(np.arange(horizon) < 32, inverse, 0.0), np.zeros(horizon))
        columns = np.linalg.norm(np.linalg.inv(banded), axis=0)[:, None]
        assert np.linalg.norm(np.cumsum(columns * banded, axis=0), axis=1).max() > 3.9


@each_kind
def test_one_record_moves_what_is_told_by_the_sensitivity_and_no_more(kind):
    """The Mahalanobis length of one increment, by the exact covariance of all increments."""
    horizon = 15
    noise = PrefixNoise(kind, horizon)
    covariance = covariance_of(noise)
    lengths = np.sqrt(np.diag(np.linalg.inv(covariance)))
    assert lengths.max() == pytest.approx(noise.sensitivity, rel=1e-9)
    # Booked a level too low a tree would claim less than the first leaf tells.
    assert lengths.max() > np.sqrt(max(noise.sensitivity**2 - 1, 0.5)) * 1.05


def covariance_of(noise):
    """Exact, of all increments."""
    inverse = np.linalg.inv(noise.strategy())
    return inverse @ inverse.T


@each_kind
def test_the_scores_of_a_segment_add_up_to_that_of_all_its_increments_at_once(kind):
    """Against the densities of one normal vector; a segment that follows starts afresh."""
    horizon, p, stddev = 5, 2, 0.7
    noise, random = PrefixNoise(kind, horizon), np.random.default_rng(0)
    seen, answers = Prefix(of=noise, leaf=0).initial_score(p), random.normal(size=(3, horizon, p))
    for segment in range(2):
        answer, mean, other = answers + segment
        score = 0.0
        for leaf in range(horizon):
            ratio, seen = Prefix(of=noise, leaf=leaf).score(
                seen, *(jnp.asarray(one[leaf]) for one in (answer, mean, other)), stddev
            )
            score += float(ratio)
        law = functools.partial(
            stats.multivariate_normal.logpdf, cov=stddev**2 * covariance_of(noise)
        )
        exact = sum(
            law(answer[:, j], other[:, j]) - law(answer[:, j], mean[:, j]) for j in range(p)
        )
        assert score == pytest.approx(exact, rel=1e-4, abs=1e-4)


@pytest.mark.computes
@each_kind
def test_the_covariance_is_the_one_that_the_sensitivity_is_read_from(kind):
    """And another key is another segment."""
    noise = PrefixNoise(kind, 7)
    drawn, other = (np.asarray(increments(noise, 50, key)) for key in (KEY, jax.random.key(6)))
    assert (drawn != other).mean() > 0.99  # the grid has 4,096 points in one deviation
    drawn = drawn.transpose(0, 2, 1).reshape(-1, 7)
    expected = covariance_of(noise)
    errors = (drawn.T @ drawn / len(drawn) - expected) * np.sqrt(len(drawn))
    scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)) + expected**2)
    assert np.abs(errors / scale).max() < stats.norm.isf(LEVEL / 98)


@each_kind
def test_c9_past_the_horizon_there_is_an_error_and_no_draw_that_was_used(kind):
    noise, value = PrefixNoise(kind, 5), jnp.zeros(3)
    for leaf in (5, 6, -1):
        with pytest.raises(ValueError, match="past the horizon"):
            noise.perturb(KEY, value, 1.0, leaf)
        assert np.isnan(perturbed(noise, value, leaf)).all()
    assert np.isfinite(perturbed(noise, value, 4)).all()


@each_kind
def test_x64_and_half_precision_get_the_same_noise(kind):
    noise = PrefixNoise(kind, 5)
    plain = perturbed(noise, jnp.zeros(3), 3)
    half = perturbed(noise, jnp.zeros(3, jnp.bfloat16), 3)
    assert half.dtype == jnp.bfloat16
    np.testing.assert_allclose(half.astype(np.float32), plain, rtol=1e-2)
    with jax.enable_x64(True):
        wide = perturbed(noise, jnp.zeros(3, jnp.float64), 3)
    np.testing.assert_allclose(wide, plain, rtol=1e-6)
    # On a grid that depends on the noise's scale alone.
    assert (4096 * np.asarray(wide) == np.round(4096 * np.asarray(wide))).all()


def test_bad_numbers_are_named():
    for bad, message in (
        ({"horizon": 0}, "horizon must be"),
        ({"dimension": 0}, "dimension must be"),
        ({"kind": "sphere"}, "unknown kind 'sphere'"),
        ({"kind": "square_root", "horizon": 4_097}, "at most 4,096, got 4,097"),
    ):
        with pytest.raises(ValueError, match=message):
            prefix_noise(**({"horizon": 4, "dimension": 2} | bad))
    with pytest.raises(ValueError, match="threefry"):
        PrefixNoise("tree", 4).perturb(jax.random.key(0, impl="rbg"), jnp.zeros(1), 1.0, 0)


# In an optax chain.


@each_kind
def test_a_chain_adds_the_noise_of_one_prefix_sum_however_many_updates(kind):
    noise = add_tree_noise(1.0, KEY, horizon=16, kind=kind)
    params = {"a": jnp.zeros(400), "b": jnp.zeros((20, 20))}
    optimizer = optax.chain(noise, optax.sgd(1.0))

    def one(carry, _):
        params, state = carry
        updates, state = optimizer.update(jax.tree.map(jnp.zeros_like, params), state)
        params = optax.apply_updates(params, updates)
        return (params, state), params

    _, released = jax.lax.scan(one, (params, optimizer.init(params)), length=17)
    released = np.concatenate(
        [np.reshape(leaf, (17, -1)) for leaf in jax.tree.leaves(released)], axis=1
    )
    drawn, stddev = released[14], PrefixNoise(kind, 16).stddevs()[14]
    low, high = np.sqrt(stats.chi2.ppf([LEVEL / 2, 1 - LEVEL / 2], drawn.size) / drawn.size)
    assert low < drawn.std() / stddev < high
    assert not np.array_equal(drawn[:400], drawn[400:])
    assert np.isfinite(released[15]).all() and np.isnan(released[16]).all()  # the horizon is passed


def test_the_event_of_a_chain_is_one_gaussian_to_each_record():
    noise = add_tree_noise(3.0, KEY, horizon=15, kind="tree")
    common = {"sensitivity": 0.5, "data_size": 150}
    event = noise.event(15, relation="replace_one", **common)
    assert event.gaussian_mu == pytest.approx(0.5 * 2 / 3.0)
    with pytest.raises(ValueError, match="past the horizon"):
        noise.event(16, relation="zero_out", **common)
    with pytest.raises(ValueError, match="shifts later ones"):
        noise.event(15, relation="add_or_remove_one", **common)
    assert dpjax.accounting.epsilon(event, 1e-5, "replace_one") < 2


@pytest.mark.parametrize("horizon", [1, 2, 16, 100])
def test_what_is_accounted_is_the_matrix_of_the_integers_that_multiply(horizon, monkeypatch):
    """Draw i is 1 in entry i alone: exact weights of the noise, whose covariance tells a record."""
    noise, one = PrefixNoise("square_root", horizon), 1 << FRACTION
    size = 1 << (horizon - 1).bit_length()

    def draws(words, shape):
        with jax.enable_x64(True):
            return jnp.where(words == jnp.arange(*shape, dtype=jnp.uint32)[None], one, 0)

    # Draws have the word of their key for a key.
    monkeypatch.setattr(tree, "fold", lambda key, word: word)
    monkeypatch.setattr(tree, "standard_normal", draws)
    rows = [np.asarray(noise._increment(KEY, leaf, (size,))) for leaf in range(horizon)]
    matrix = np.stack(rows).astype(np.float64) * 2.0**-52
    np.testing.assert_array_equal(matrix, tree._square_root(horizon).matrix())
    largest = np.sqrt(np.diag(np.linalg.inv(matrix @ matrix.T)).max())
    assert noise.sensitivity == pytest.approx(largest, rel=1e-11)
    # No draw of an increment is used twice, and a record tells more where weights are left out.
    assert abs(noise.sensitivity - 1) < (1e-7 if size <= 32 else 2e-3)
