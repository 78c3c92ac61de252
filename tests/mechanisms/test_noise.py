"""Noise an attacker cannot read: exact tails, one grid, no low bits, whatever the mode or dtype."""

import functools
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from factories import mostly_ci
from scipy import stats

from dpjax import _wide
from dpjax.mechanisms import add_symmetric_gaussian, fixed_point, perturb, prefix_noise
from dpjax.mechanisms.fixed_point import FRACTION, normal_from_bits, standard_normal
from dpjax.mechanisms.lattice import GRID_BITS

pytestmark = pytest.mark.optimised

LEVEL = 1e-6
MANY = 10**7


def wide_normals(key, count):
    """Draws before the grid and the cast, as NumPy float64."""
    return as_numbers(standard_normal(key, (count,)))


def as_numbers(draws):
    """Multiples of 2^-56 as NumPy float64."""
    return np.asarray(draws).astype(np.float64) * 2.0**-FRACTION


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


@pytest.mark.ci
def test_c1_ten_million_draws_have_the_moments_law_and_tails_of_the_gaussian():
    draws = wide_normals(jax.random.key(11), MANY)
    assert moments_fit(draws)
    assert tails_fit(draws)
    assert stats.kstest(draws, "norm").pvalue > LEVEL
    # Planted: a scale off by 0.2 %, and tails cut at 4.
    assert not moments_fit(1.002 * draws)
    assert not tails_fit(np.where(np.abs(draws) < 4, draws, 0))


OUTERMOST = np.uint32([[0, 1], [0, 0]])


def test_c1_float32_normals_are_cut_off_and_ours_are_not():
    drawn = as_numbers(normal_from_bits(OUTERMOST, np.zeros((2, 2), np.uint32)))
    assert drawn[0] > 9.9 and drawn[1] < -9.9
    # What jax.random.normal can reach at most in float32.
    ends = np.sqrt(2) * jax.lax.erf_inv(jnp.nextafter(jnp.float32(1), jnp.float32(0)))
    assert float(ends) < 5.5


def test_c1_the_noise_that_is_added_reaches_ten_sigma(monkeypatch):
    """What ``perturb`` adds for the outermost bits, not only what the transform could give."""

    def words(key, counts):
        del key
        return jnp.zeros((2, counts.size), jnp.uint32).at[0, 1].set(1)

    monkeypatch.setattr(fixed_point, "random_words", words)
    noisy = perturb(jax.random.key(0), jnp.zeros((1, 2)), 2.0)  # of a shape that no other test has
    assert float(noisy[0, 0]) > 19.9 and float(noisy[0, 1]) < -19.9


@pytest.mark.parametrize("x64", [False, True])
def test_c1_chosen_bits_give_the_right_quantile_out_to_nine_sigma(x64):
    """Also where two pieces meet, at the median and at both ends."""
    z = np.concatenate([np.linspace(1e-6, 9.1, 400), [1e-9, 0.6744897501960817]])
    tails = 2 * stats.norm.sf(z)
    m = np.array([int(t * 2.0**63) for t in tails], dtype=np.uint64)
    high, low = (m >> np.uint64(32)).astype(np.uint32), m.astype(np.uint32)
    middle = np.uint32([[1 << 31], [0]]) + np.zeros_like(np.stack([high, low]))
    with jax.enable_x64(x64):
        got = as_numbers(normal_from_bits(np.stack([high << np.uint32(1), low]), middle))
    exact = stats.norm.isf((m.astype(np.float64) + 0.5) * 2.0**-64)
    np.testing.assert_allclose(got, exact, rtol=2e-13, atol=1e-15)
    assert np.max(got) > 9


def plain(key, values, stddev):
    """The noise that is not safe: drawn and added in float32."""
    return values + stddev * jax.random.normal(key, values.shape)


@functools.partial(jax.jit, static_argnames=("noisy", "count"))
def outputs(values, stddev, noisy=perturb, count=64):
    return jax.vmap(noisy, (0, None, None))(jax.random.split(KEY, count), values, stddev)


@pytest.mark.parametrize("stddev", [1.0, 0.3, 1e-5, 700.0])
def test_c2_outputs_on_neighbours_lie_on_one_grid(stddev):
    values = jnp.float32([0.1, 0.1 + 2**-20, 1 / 3, 0.7]) * stddev
    grid = 2.0 ** (np.floor(np.log2(stddev)) - GRID_BITS)
    safe, unsafe = (np.asarray(outputs(values, stddev, noisy)) for noisy in (perturb, plain))
    assert (safe / grid == np.round(safe / grid)).all()
    assert np.mean(unsafe / grid == np.round(unsafe / grid)) < 0.2


def test_c2_low_bits_do_not_tell_the_value():
    """The float32 mechanism's remainders betray which of two values was perturbed; ours do not."""

    def remainders(value, noisy):
        drawn = np.asarray(outputs(value, 1.0, noisy, count=4096))
        return set(np.ravel(drawn % 2.0**-GRID_BITS).tolist())

    zero, shifted = jnp.zeros(1), jnp.full(1, 2.0**-15)
    assert remainders(zero, perturb) == remainders(shifted, perturb) == {0.0}
    assert remainders(zero, plain) != remainders(shifted, plain)


@pytest.mark.parametrize(
    "dtype", mostly_ci(["bfloat16", "float16", "float32", "float64"], ["bfloat16", "float32"])
)
def test_c3_noise_does_not_depend_on_the_dtype(dtype):
    """At least 1,500 values in 2^18 draws before the cast: bfloat16 normals have 128."""
    with jax.enable_x64(dtype == "float64"):
        value = jnp.zeros(2**18, dtype)
        noisy = jax.jit(perturb)
        assert noisy(KEY, value, 1.0).dtype == value.dtype
        before = noisy(KEY, _wide.to_expansion(value), 1.0)
    assert len(np.unique(before)) > 1_500
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


@pytest.mark.parametrize("stddev", [1e-37, 1e-20, 1.0])
@pytest.mark.parametrize("value", [3e38, -3e38, 1e9])
def test_c23_c24_a_large_value_on_a_fine_grid_is_itself(value, stddev):
    """Beyond the integers a value is handed on: 1e38 times a grid of 1e-41 overflows nothing."""
    noisy = perturb(KEY, jnp.float32([value]), stddev)
    assert np.allclose(noisy, value, rtol=1e-6)


@pytest.mark.parametrize("value", [0.0, 0.37, -1e-3, 2.0**20 + 0.3, 1e-30, -(2.0**40)])
@pytest.mark.parametrize("stddev", [1.0, 0.7, 3e-5])
def test_value_and_noise_are_rounded_once_together(value, stddev):
    """As Python's own integers say it: the total of value and noise, to the nearest grid point."""
    shape = (40,)
    noisy = np.asarray(perturb(KEY, jnp.full(shape, value, jnp.float32), stddev), np.float64)
    draws = [int(draw) for draw in np.asarray(standard_normal(KEY, shape))]
    # The standard deviation is eight units of its last place above what was asked.
    scale = Fraction(float(np.float32(stddev))) + 8 * Fraction(
        float(np.spacing(np.float32(stddev)))
    )
    grid = Fraction(2) ** (int(np.floor(np.log2(stddev))) - GRID_BITS)
    unit = grid / 2**44
    for got, draw in zip(noisy, draws, strict=True):
        noise = math.floor(scale * draw / 2**FRACTION / unit + Fraction(1, 2)) * unit
        total = Fraction(float(np.float32(value))) + noise
        assert got == np.float32(float(math.floor(total / grid + Fraction(1, 2)) * grid))


@pytest.mark.parametrize("stddev", [1e-300, 1e-40, jnp.float32(1e-40), 1.2e-38])
def test_a_stddev_that_processors_take_for_0_adds_noise(stddev):
    released = perturb(jax.random.key(0), jnp.full(8, 1e-37), stddev)
    assert (released != jnp.full(8, 1e-37)).any()
    matrix = add_symmetric_gaussian(jax.random.key(0), jnp.full((8, 8), 1e-37), stddev)
    assert jnp.unique(matrix).size > 10
    increment = prefix_noise(4, 8).perturb(jax.random.key(0), jnp.full(8, 1e-37), stddev, 1)
    assert (increment != jnp.full(8, 1e-37)).any()


@pytest.mark.parametrize("shape", [(), (1,), (3, 1)])
def test_one_draw_is_never_added_at_two_scales(shape):
    # The two answers would be solved for the value and the draw.
    with pytest.raises(ValueError, match="stddev must fit"):
        perturb(jax.random.key(0), jnp.ones(shape), jnp.ones((*shape[:-1], 2)))
