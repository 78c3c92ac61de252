"""Sums of integers: any split of the chunks adds to the same bits, and rounding has its bound."""

import itertools
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from factories import mostly_ci, solved, toy, toy_records

import dpjax
from dpjax.derivatives import chunks, integers, rounding
from dpjax.derivatives.integers import SPACING, Summand
from dpjax.derivatives.linear import scaled_rows as linear_records
from dpjax.derivatives.linear import sums as linear_sums
from dpjax.objectives.linear import Margin

FLOAT32 = jnp.dtype("float32")


def value(expansion):
    """Of an ``Expansion``, in float64."""
    return np.sum(np.asarray(expansion.terms, np.float64), axis=0)


def summed(summand, chunks):
    total = summand.zero()
    for chunk in chunks:
        total = summand.add(total, jnp.asarray(chunk))
    return summand.finish(total)


@pytest.mark.parametrize("bound", [1e-30, 0.3, 1.0, 1e30])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_grid_is_as_fine_as_is_charged(bound, dtype):
    with jax.enable_x64(dtype == "float64"):
        rng = np.random.default_rng(0)
        chunks = (rng.uniform(-128, 128, (5, 2, 40)) * bound).astype(dtype)
        summand = Summand((40,), jnp.dtype(dtype), bound)
        off = np.abs(value(summed(summand, chunks)) - chunks.astype(np.float64).sum((0, 1)))
        in_float64 = 2.0**-52 * np.abs(chunks.astype(np.float64)).sum((0, 1))
        assert (off <= 5 * SPACING / 2 * bound + in_float64).all()


def test_every_order_and_split_gives_the_same_bits():
    rng = np.random.default_rng(1)
    size = (6, 3, 20)
    chunks = (rng.normal(size=size) * 10 ** rng.uniform(-9, 0, size)).astype(np.float32)
    exact, blocks = Summand((20,), FLOAT32, 4.0), chunks.sum(axis=1)
    orders = list(itertools.permutations(range(6)))[::90]
    found = {value(summed(exact, chunks[list(order)])).tobytes() for order in orders}
    assert len(found) == 1
    # Planted: sums of floats depend on the order.
    assert len({blocks[list(order)].cumsum(axis=0)[-1].tobytes() for order in orders}) > 1


def test_two_billion_rows_at_their_bound_fit():
    """All as large as may be: the sum is theirs, with either sign."""
    chunk, count = rounding.CHUNK, 2**31 // rounding.CHUNK
    bounds = np.float32([1.0, 0.7, -1.0, -0.7])
    summand = Summand((4,), FLOAT32, jnp.abs(bounds))
    parts = jnp.asarray(bounds * chunk)[None]
    total = jax.lax.fori_loop(0, count, lambda _, t: summand.add(t, parts), summand.zero())
    expected = bounds.astype(np.float64) * 2.0**31
    assert np.allclose(value(summand.finish(total)), expected, rtol=1e-15)


@pytest.mark.parametrize("permutation_invariant", [False, True])
def test_the_sum_over_records_does_not_depend_on_the_order_of_chunks(permutation_invariant):
    n, p = 128 * 96, 64
    keys = jax.random.split(jax.random.key(0), 2)
    records = linear_records.prepare((jax.random.normal(keys[0], (n, p)), jnp.ones(n)))
    width = chunks.blocks_per_chunk(96, 128 * p, linear_records._NUMBERS)
    assert 96 % width == 0 and width < 96
    turned = jax.tree.map(lambda leaf: jnp.roll(leaf, width, axis=0), records)
    w = jax.random.normal(keys[1], (p,))

    def sums(records):
        both = linear_sums.score_sums(
            Margin(lambda m: jnp.logaddexp(0.0, -m)),
            records,
            w,
            weights=(1.0, 0.2),
            clip_norm=1.0,
            permutation_invariant=permutation_invariant,
        )
        return [value(total).tobytes() for total in both]

    assert sums(records) == sums(turned)


def test_a_bound_of_its_own_for_each_number():
    bounds = jnp.float32([[1e-3], [1e3]])
    parts = jnp.float32([[[1e-3, -5e-4], [1e3, 3e2]]])
    assert (value(summed(Summand((2, 2), FLOAT32, bounds), [parts])) == parts[0]).all()
    # Planted: on the grid of the larger bound the small numbers are rounded.
    coarse = value(summed(Summand((2, 2), FLOAT32, 1e15), [parts]))
    assert not (coarse[0] == parts[0, 0]).all()


def test_words_carry_over():
    nothing, _ = Summand((), FLOAT32, 1.0).zero()
    with jax.enable_x64(True):
        minus = integers._plus(nothing, jnp.int64(-1))
        assert int(integers._integers(minus)) == -1
        far = integers._plus(minus, jnp.int64(2**40))
        assert int(integers._integers(far)) == 2**40 - 1


# Where a device has no float64.


@pytest.fixture
def elsewhere(monkeypatch):
    """Sums as any device but a CPU makes them."""
    monkeypatch.setattr(
        integers.lax, "platform_dependent", lambda *arguments, default, **_: default(*arguments)
    )
    jax.clear_caches()
    yield
    jax.clear_caches()


def noisy_parts(seed, count=32, size=300):
    """Blocks of numbers of every size, some exactly between two integers."""
    rng = np.random.default_rng(seed)
    parts = rng.normal(size=(count, size)) * 10.0 ** rng.uniform(-12, 2, (count, size))
    parts = parts.astype(np.float32)
    parts[0, :50], parts[1, :50] = np.arange(50) * 2.0**-32, -np.arange(50) * 2.0**-31
    return parts


@pytest.mark.parametrize("bound", [1.0, 1.7, 2.0**-40, 2.0**60])
def test_the_integers_of_a_block_are_those_of_python(bound):
    parts = noisy_parts(2) * np.float32(bound)
    summand = Summand(parts.shape[1:], FLOAT32, bound)
    power, inverse = summand._grid()
    with jax.enable_x64(True):
        inverse = jnp.broadcast_to(inverse, parts.shape[1:])
        coarse, fine = jax.jit(integers.of_blocks)(jnp.asarray(parts), inverse)
        found = [int(c) * 2**30 + int(f) for c, f in zip(coarse, fine, strict=True)]
    unit = Fraction(float(power)) / 2**60
    for column, got in zip(parts.T, found, strict=True):
        assert got == sum(round(Fraction(float(part)) / unit) for part in column)


@pytest.mark.parametrize("scale", mostly_ci([1e-12, 1e-5, 1.0, 300.0], [1e-5, 300.0]))
def test_terms_in_float32_hold_the_whole_sum(scale, elsewhere):
    parts = noisy_parts(3, 64) * np.float32(scale)
    summand, exact = Summand(parts.shape[1:], FLOAT32, 1e3), parts.astype(np.float64).sum(axis=0)
    finished = summed(summand, [parts[:32], parts[32:]])
    off = np.abs(value(finished) - exact)
    assert (off <= 65 * SPACING * 1e3 + 2.0**-50 * np.abs(parts).sum(axis=0)).all()
    assert np.allclose(finished.leading, exact, rtol=2.0**-23, atol=65 * SPACING * 1e3)


@pytest.mark.parametrize("coarse, fine", [(2**30, 2**43), (2**30, -(2**43)), (-(2**45), 2**52)])
def test_the_leading_term_is_the_sum_rounded_whatever_many_blocks_leave(coarse, fine):
    total = [integers.Words(jnp.int32(n >> 32), jnp.uint32(n & 0xFFFFFFFF)) for n in (coarse, fine)]
    terms = integers._as_float32(tuple(total), jnp.float32(1))
    wanted = Fraction(coarse * 2**30 + fine, 2**60)
    assert float(terms[0]) == float(np.float32(float(wanted)))
    assert sum(Fraction(float(term)) for term in terms) == wanted


@pytest.mark.parametrize(
    "name", mostly_ci(["dp-gd", "dp-tr", "dp-svrg", "dp-subspace-tr"], ["dp-tr", "dp-svrg"])
)
def test_a_training_is_the_same_but_for_rounding_without_float64(name, elsewhere):
    found = dpjax.solve(toy(name), toy_records(), key=jax.random.key(7)).params
    assert np.allclose(found, solved(name).params, rtol=1e-4, atol=1e-6)


def test_a_hessian_is_exactly_symmetric():
    rng = np.random.default_rng(4)
    parts = rng.normal(size=(3, 5, 4)).astype(np.float32)
    total = summed(Summand((5, 4), FLOAT32, 4.0, squares=1), [parts])
    exact = parts.astype(np.float64).sum(axis=0)
    assert (value(total)[:4] == value(total)[:4].T).all()
    mean = np.concatenate([(exact[:4] + exact[:4].T) / 2, exact[4:]])
    assert np.allclose(value(total), mean, rtol=0, atol=1e-15)
