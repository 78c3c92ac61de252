"""Sums of integers: any split of the chunks adds to the same bits, and rounding has its bound."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax._linear import Margin
from dpjax.derivatives import chunks, integers, linear_model, linear_records, rounding
from dpjax.derivatives.integers import SPACING, Summand

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


@pytest.mark.parametrize("any_order", [False, True])
def test_the_sum_over_records_does_not_depend_on_the_order_of_chunks(any_order):
    n, p = 128 * 96, 64
    keys = jax.random.split(jax.random.key(0), 2)
    records = linear_records.prepare((jax.random.normal(keys[0], (n, p)), jnp.ones(n)))
    width = chunks.blocks_per_chunk(96, 128 * p, linear_records._NUMBERS)
    assert 96 % width == 0 and width < 96
    turned = jax.tree.map(lambda leaf: jnp.roll(leaf, width, axis=0), records)
    w = jax.random.normal(keys[1], (p,))

    def sums(records):
        both = linear_model.linear_sums(
            Margin(lambda m: jnp.logaddexp(0.0, -m)),
            records,
            w,
            gradient_weight=1.0,
            hessian_weight=0.2,
            clip_norm=1.0,
            any_order=any_order,
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
        minus = integers._plus(nothing, jnp.float64(-1))
        assert int(integers._integers(minus)) == -1
        far = integers._plus(minus, jnp.float64(2.0**40))
        assert int(integers._integers(far)) == 2**40 - 1
