"""Noise an attacker cannot read: exact tails, one grid, no low bits, whatever the mode or dtype."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpjax import _wide
from dpjax.mechanisms import add_symmetric_gaussian, perturb
from dpjax.mechanisms.gaussian import GRID_BITS
from dpjax.mechanisms.normal import normal_from_bits, standard_normal

pytestmark = pytest.mark.optimised

LEVEL = 1e-6
MANY = 10**7


def wide_normals(key, count):
    """Draws before the grid and the cast, as NumPy float64."""
    draw = jax.jit(
        lambda key: _wide.from_float64(standard_normal(key, (count,)), jnp.dtype("float32"))
    )
    return sum(np.asarray(term, np.float64) for term in draw(key).terms)


def tails_fit(draws):
    """Whether the counts beyond 3, 4 and 5 lie within exact binomial bounds at LEVEL."""
    n = draws.size
    for z in (3, 4, 5):
        low, high = stats.binom.ppf([LEVEL / 2, 1 - LEVEL / 2], n, 2 * stats.norm.sf(z))
        if not low <= np.sum(np.abs(draws) > z) <= high:
            return False
    return True


def moments_fit(draws):
    """Whether mean, variance and kurtosis lie where those of N(0, 1) do but for chance LEVEL."""
    z, n = stats.norm.isf(LEVEL / 2), draws.size
    return (
        abs(np.mean(draws)) < z / np.sqrt(n)
        and abs(np.mean(draws**2) - 1) < z * np.sqrt(2 / n)
        and abs(np.mean(draws**4) - 3) < z * np.sqrt(96 / n)
    )


def test_c1_ten_million_draws_have_the_moments_law_and_tails_of_the_gaussian():
    draws = wide_normals(jax.random.key(11), MANY)
    assert moments_fit(draws)
    assert tails_fit(draws)
    assert stats.kstest(draws, "norm").pvalue > LEVEL
    # Planted: a scale off by 0.2 %, and tails cut at 4.
    assert not moments_fit(1.002 * draws)
    assert not tails_fit(np.where(np.abs(draws) < 4, draws, 0))


def test_c1_float32_normals_are_cut_off_and_ours_are_not():
    words = jnp.array([[0, 1], [0, 0]], jnp.uint32)
    assert float(jnp.abs(_leading(normal_from_bits(words))).min()) > 9.1
    # What jax.random.normal can reach at most in float32.
    ends = np.sqrt(2) * jax.lax.erf_inv(jnp.nextafter(jnp.float32(1), jnp.float32(0)))
    assert float(ends) < 5.5


def test_c1_the_noise_that_is_added_reaches_nine_sigma(monkeypatch):
    """What ``perturb`` adds for the outermost bits, not only what the transform could give."""
    outermost = jnp.stack([jnp.uint32([0, 1]), jnp.uint32([0, 0])])
    monkeypatch.setattr(jax.random, "bits", lambda key, shape, dtype: outermost)
    noisy = perturb(jax.random.key(0), jnp.zeros(2), 2.0)
    assert float(noisy[0]) > 18 and float(noisy[1]) < -18


@jax.jit
def _leading(value):
    return _wide.from_float64(value, jnp.dtype("float32")).leading


@pytest.mark.parametrize("x64", [False, True])
def test_c1_chosen_bits_give_the_right_quantile_out_to_nine_sigma(x64):
    """Also where the two terms meet, at the median and at both ends."""
    z = np.concatenate([np.linspace(1e-6, 9.1, 400), [1e-9, 0.6744897501960817]])
    tails = 2 * stats.norm.sf(z)
    m = np.array([int(t * 2.0**63) for t in tails], dtype=np.uint64)
    high, low = (m >> np.uint64(32)).astype(np.uint32), m.astype(np.uint32)
    with jax.enable_x64(x64):
        bits = jnp.asarray(np.stack([high << np.uint32(1), low]))
        drawn = jax.jit(lambda b: _wide.from_float64(normal_from_bits(b), jnp.dtype("float32")))(
            bits
        )
    got = sum(np.asarray(term, np.float64) for term in drawn.terms)
    exact = stats.norm.isf((m.astype(np.float64) + 0.5) * 2.0**-64)
    np.testing.assert_allclose(got, exact, rtol=1e-10, atol=1e-12)
    assert np.max(got) > 9


@functools.partial(jax.jit, static_argnames=("fast", "count"))
def outputs(values, stddev, fast, count=64):
    noisy = functools.partial(perturb, unsafe_fast_noise=fast)
    return jax.vmap(noisy, (0, None, None))(jax.random.split(KEY, count), values, stddev)


@pytest.mark.parametrize("stddev", [1.0, 0.3, 1e-5, 700.0])
def test_c2_outputs_on_neighbours_lie_on_one_grid(stddev):
    values = jnp.float32([0.1, 0.1 + 2**-20, 1 / 3, 0.7]) * stddev
    grid = 2.0 ** (np.floor(np.log2(stddev)) - GRID_BITS)
    safe, fast = (np.asarray(outputs(values, stddev, fast)) for fast in (False, True))
    assert (safe / grid == np.round(safe / grid)).all()
    assert np.mean(fast / grid == np.round(fast / grid)) < 0.2


def test_c2_low_bits_do_not_tell_the_value():
    """The float32 mechanism's remainders betray which of two values was perturbed; ours do not."""

    def remainders(value, fast):
        drawn = np.asarray(outputs(value, 1.0, fast, count=4096))
        return set(np.ravel(drawn % 2.0**-12).tolist())

    zero, shifted = jnp.zeros(1), jnp.full(1, 2.0**-15)
    assert remainders(zero, False) == remainders(shifted, False) == {0.0}
    assert remainders(zero, True) != remainders(shifted, True)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_c3_noise_does_not_depend_on_the_dtype(dtype):
    """At least 20,000 values in 2^18 draws before the cast: bfloat16 normals have 128."""
    with jax.enable_x64(dtype == "float64"):
        value = jnp.zeros(2**18, dtype)
        noisy = jax.jit(perturb)
        assert noisy(KEY, value, 1.0).dtype == value.dtype
        before = noisy(KEY, _wide.widen(value), 1.0)
    assert len(np.unique(before)) > 20_000
    assert len(np.unique(jax.random.normal(KEY, (2**18,), jnp.bfloat16))) < 1000


KEY = jax.random.key(5)


def test_one_noise_in_every_mode():
    """With x64 on or off, eager, jitted, batched and in a loop: the same bits."""
    value, stddev = jnp.float32([0.5, -3.0, 2.0**20]), 0.7
    once = perturb(KEY, value, stddev)
    with jax.enable_x64(True):
        assert np.array_equal(once, perturb(KEY, value, stddev))
    assert np.array_equal(once, jax.jit(perturb)(KEY, value, stddev))
    batched = jax.vmap(perturb, (0, None, None))(jnp.stack([KEY, KEY]), value, stddev)
    assert np.array_equal(once, batched[1])
    scales = jax.vmap(perturb, (None, None, 0))(KEY, value, jnp.float32([0.7, 0.9]))
    assert np.array_equal(once, scales[0])

    def body(carry):
        step, _ = carry
        return step + 1, perturb(jax.random.fold_in(KEY, step), value, stddev)

    looped = jax.jit(lambda: jax.lax.while_loop(lambda c: c[0] < 3, body, (0, value)))()[1]
    assert np.array_equal(looped, perturb(jax.random.fold_in(KEY, 2), value, stddev))


def test_the_grid_is_below_every_entrys_noise():
    keys = jax.random.split(KEY, 50)
    draw = jax.jit(jax.vmap(lambda key: add_symmetric_gaussian(key, jnp.full((3, 3), 0.1), 1.0)))
    drawn = np.asarray(draw(keys))
    coarse, fine = 2.0**-GRID_BITS, 2.0 ** -(GRID_BITS + 1)
    diagonal, off = drawn[:, [0, 1, 2], [0, 1, 2]], drawn[:, 0, 1]
    assert (diagonal % coarse == 0).all() and (off % fine == 0).all()
    assert (off % coarse != 0).any()


def test_all_digits_of_a_wide_sum_are_perturbed():
    """Noise is added before the cast: a small sum beside a large one is not rounded away first."""
    with jax.enable_x64(True):
        total = _wide.from_float64(jnp.float64([2.0**24 + 0.5]), jnp.dtype("float32"))
    rounded = perturb(KEY, total, 2.0**-3)
    assert total.leading == 2.0**24
    assert rounded.dtype == jnp.float32
    draw = jax.jit(jax.vmap(lambda key: perturb(key, total, 4.0)))
    draws = draw(jax.random.split(KEY, 4096))
    assert abs(np.asarray(draws, np.float64).mean() - 2.0**24 - 0.5) < 5 * 4 / 64


def test_fast_noise_is_a_choice_by_name():
    value = jnp.zeros(3)
    fast = perturb(KEY, value, 1.0, unsafe_fast_noise=True)
    assert np.array_equal(fast, jax.random.normal(KEY, (3,)))
    assert not np.array_equal(fast, perturb(KEY, value, 1.0))


@pytest.mark.parametrize("stddev", [1e-37, 1e-20, 1.0])
@pytest.mark.parametrize("value", [3e38, -3e38, 1e9])
def test_c23_c24_a_large_value_on_a_fine_grid_is_itself(value, stddev):
    """The grid is of float64, not of integers: 1e38 times a grid of 1e-41 overflows nothing."""
    noisy = perturb(KEY, jnp.float32([value]), stddev)
    assert np.allclose(noisy, value, rtol=1e-6)
