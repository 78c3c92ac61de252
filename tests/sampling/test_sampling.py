"""Samplers: exact probabilities, independence, capacity, and the release a draw makes."""

import dataclasses
import functools
import itertools
import math
from fractions import Fraction

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpjax import sampling
from dpjax.accounting import RELATIONS, Event, PrivacyBudget, epsilon
from dpjax.sampling import skips

BUDGET = PrivacyBudget(1.0, 1e-6)


def poisson(expected, n, **kwargs):
    return sampling.poisson(expected, n, **{"budget": BUDGET, "count": 100, **kwargs})


def raw(q, n, max_batch_size, exact=False):
    """A sampler of a coarse probability whose overflow nobody checked."""
    return sampling.Poisson.of(int(q * 2**64), q * n, max_batch_size, n, exact)


@functools.partial(jax.jit, static_argnames=("n", "count"))
def draws(sampler, n, count):
    keys = jax.random.split(jax.random.key(0), count)
    return jax.vmap(lambda key: sampler.sample(key, n))(keys)


def members(batch, n):
    """Bool (draws, n): who is in each batch."""
    batch = jax.tree.map(np.asarray, batch)
    found = np.zeros((len(batch.mask), n), int)
    np.add.at(found, (np.arange(len(batch.mask))[:, None], batch.indices), batch.mask)
    return found


def consistent(successes, trials, q, failure=1e-6):
    """Whether a binomial count is within its central interval, of miss probability ``failure``."""
    return stats.binom.ppf(failure / 2, trials, q) <= successes <= stats.binom.isf(
        failure / 2, trials, q
    )  # fmt: skip


@pytest.mark.parametrize(
    ("expected", "n"),
    [(1, 10**9), (0.07, 581_012), (256, 60_000), (1, 3), (5000, 35_000), (35_000 - 1e-3, 35_000),
     (1e-7, 2**30)],
)  # fmt: skip
def test_c36_the_probability_is_the_threshold_to_the_last_bit(expected, n):
    sampler = poisson(expected, n)
    threshold = (int(sampler.high) << 32) + int(sampler.low)
    assert Fraction(sampler.probability) == Fraction(threshold, 2**64)
    assert abs(Fraction(threshold, 2**64) - Fraction(expected) / n) < Fraction(1, 2**53)
    release = sampler.release("g", 1, noise_multiplier=1.0, relation="zero_out")
    assert release.sampling_probability == sampler.probability
    assert sampler.high.dtype == sampler.low.dtype == np.uint32


@pytest.mark.optimised
def test_c36_tiny_probabilities_are_drawn_as_declared():
    """At 1e-10, none of 7e7 coins: the float32 coin, a planted bug, has 2^-23 and gives 8."""
    q, n, steps = 1e-10, 2**20, 64
    sampler = raw(q, n, 64)
    trials = n * steps
    keys = jax.random.split(jax.random.key(3), steps)
    ours = jax.lax.map(lambda key: sampler.sample(key, n).mask.sum(), keys).sum()
    float32 = jax.lax.map(lambda key: jax.random.bernoulli(key, q, (n,)).sum(), keys).sum()
    assert consistent(int(ours), trials, q)
    assert not consistent(int(float32), trials, q)


def exact_thresholds(q, n):
    """2^64 P(A >= j) and 2^64 P(B >= j) of a gap base A + B, in rational numbers."""
    base = skips.skip_table(int(q * 2**64), n).shape[-1] + 1
    stay = 1 - q
    upper = [stay ** (base * j) for j in range(1, base)]
    lower = [(stay**j - stay**base) / (1 - stay**base) for j in range(1, base)]
    return base, [[chance * 2**64 for chance in row] for row in (upper, lower)]


@pytest.mark.optimised
@pytest.mark.parametrize(
    ("q", "n"),
    [(Fraction(1, 2), 10**6), (Fraction(1, 7), 35_000), (Fraction(1, 80), 10**5),
     (Fraction(1, 2**64), 40), (1 - Fraction(1, 2**20), 40), (Fraction(1, 3), 1)],
)  # fmt: skip
def test_c36_gaps_have_the_law_of_coins_to_the_last_bit(q, n, monkeypatch):
    q = Fraction(math.floor(q * 2**64), 2**64)
    table = skips.skip_table(int(q * 2**64), n)
    base, rows = exact_thresholds(q, n)
    ours = [[(int(h) << 32) + int(w) for h, w in zip(*row, strict=True)] for row in table]
    for found, exact in zip(*(list(itertools.chain(*t)) for t in (ours, rows)), strict=True):
        assert 0 <= exact - found < 1 or 0 < found - exact < Fraction(1, 2**64)
    rows = ours
    # Longer gaps than the digits hold are as rare as one in 2^64, or beyond every record.
    assert (1 - q) ** (base**2) < Fraction(1, 2**64) or base * (base - 1) >= n
    # At every threshold, and one to either side of it, the digits are those of exact arithmetic.
    numbers = sorted({min(max(t + d, 0), 2**64 - 1) for row in rows for t in row for d in (-1, 0)})
    words = np.array([[v >> 32, v & 0xFFFFFFFF] for v in numbers], np.uint32).T
    monkeypatch.setattr(jax.random, "bits", lambda *_: jnp.asarray(np.stack([words, words])))
    indices, mask = jax.jit(
        lambda: skips.geometric_skips(jax.random.key(0), table, len(numbers), n)
    )()
    digits = [np.array([sum(v < t for t in row) for v in numbers], object) for row in rows]
    place = np.cumsum(base * digits[0] + digits[1] + 1) - 1
    assert np.asarray(mask).tolist() == (place < n).tolist()
    assert np.asarray(indices).tolist() == np.where(place < n, place, 0).tolist()


@pytest.mark.parametrize(("size", "n"), [(1, 2), (2, 5), (16, 64), (50, 1000), (5000, 35_000)])
def test_c35_enough_trials_are_made(size, n):
    """Against the exact chance of too few distinct ones, by the recursion on their number."""
    trials, failure = skips.distinct_trials(size, n)
    assert failure <= 2.0**-64 and sampling.without_replacement(size, n).overflow <= 1e-10
    if n > 1000:
        seen = [np.unique(np.random.default_rng(i).integers(0, n, trials)).size for i in range(50)]
        assert size < min(seen) and trials < 1.2 * size
        return
    chances = np.zeros(size + 1)  # of each number of distinct ones, all from size on together
    chances[0] = 1
    stay = np.append(np.arange(size) / n, 1)
    for _ in range(trials):
        chances = chances * stay + np.append(0, (chances * (1 - stay))[:-1])
    assert chances[:-1].sum() <= failure * (1 + 1e-9)


@pytest.mark.parametrize(("high", "low"), [(0, 5), (7, 5), (0, 1), (2**32 - 1, 2**32 - 1)])
def test_c36_the_two_words_of_a_coin_are_compared_as_one_number(high, low, monkeypatch):
    words = sorted({w for h in (high, low) for w in (0, h - 1, h, h + 1) if 0 <= w < 2**32})
    pairs = np.array(list(itertools.product(words, words)), np.uint32).T
    monkeypatch.setattr(jax.random, "bits", lambda key, shape, dtype: jnp.asarray(pairs))
    n = pairs.shape[1]
    coin = dataclasses.replace(raw(0.5, n, n, exact=True), high=np.uint32(high), low=np.uint32(low))
    batch = jax.jit(lambda: coin.sample(jax.random.key(0), n))()
    drawn = set(np.asarray(batch.indices)[np.asarray(batch.mask)].tolist())
    numbers = [(int(a) << 32) + int(b) for a, b in pairs.T]
    assert drawn == {i for i, number in enumerate(numbers) if number < (high << 32) + low}


def test_an_epsilon_that_multiplies_the_error_of_64_bits_takes_coins():
    usual, huge = (poisson(50, 1000, budget=PrivacyBudget(eps, 1e-6)) for eps in (10.0, 100.0))
    assert usual.table is not None and huge.table is None
    assert (
        epsilon(
            Event((huge.release("g", 1, noise_multiplier=0.1, relation="zero_out"),), "zero_out"),
            1e-6,
            "zero_out",
        )
        < math.inf
    )


@pytest.mark.computes
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("q", [0.5, 0.05])
def test_c37_coins_are_independent_between_records_and_steps(q, exact):
    n, count = 40, 20_000
    found = members(draws(raw(q, n, n, exact), n, count), n)
    assert found.max() == 1
    for record in range(n):
        assert consistent(found[:, record].sum(), count, q)
    for first, second in [(0, 1), (0, 20), (3, 39), (20, 21)]:
        assert consistent((found[:, first] * found[:, second]).sum(), count, q**2)
        assert consistent((found[1:, first] * found[:-1, second]).sum(), count - 1, q**2)
    # Batch sizes vary as a binomial; shuffled or fixed batches, planted, do not vary.
    spread = found.sum(1).var() / (n * q * (1 - q))
    assert abs(spread - 1) < 6 * math.sqrt(2 / count)
    fixed = members(draws(sampling.WithoutReplacement(10, n), n, 500), n)
    assert fixed.sum(1).var() == 0


@pytest.mark.computes
def test_c35_subsets_are_uniform_and_without_repeats():
    n, size, count = 5, 2, 20_000
    found = members(draws(sampling.without_replacement(size, n), n, count), n)
    assert found.max() == 1 and np.all(found.sum(1) == size)
    codes = found @ 2 ** np.arange(n)
    observed = np.unique(codes, return_counts=True)[1]
    assert len(observed) == math.comb(n, size)
    assert stats.chisquare(observed).pvalue > 1e-6
    # Planted: jax.random.choice replaces unless it is told not to.
    keys = jax.random.split(jax.random.key(1), count)
    choice = jax.vmap(lambda key: jax.random.choice(key, n, (size,)))(keys)
    assert members(sampling.Batch(choice, jnp.ones_like(choice, bool)), n).max() == 2


@pytest.mark.parametrize("max_batch_size", [1, 20, 100])
def test_c41_the_first_records_are_kept_up_to_the_capacity(max_batch_size, monkeypatch):
    n, q = 100, 0.3
    key = jax.random.key(5)
    bits = jax.random.bits(key, (2, 2, n), jnp.uint32)
    monkeypatch.setattr(jax.random, "bits", lambda key, shape, dtype: bits[..., : shape[-1]])
    many = jax.jit(lambda: raw(q, n, n).sample(key, n))()
    drawn = np.asarray(many.indices)[np.asarray(many.mask)]
    assert np.all(np.diff(drawn) > 0) and len(drawn) > 20
    batch = jax.jit(lambda: raw(q, n, max_batch_size).sample(key, n))()
    assert batch.indices.shape == batch.mask.shape == (max_batch_size,)
    assert batch.indices.dtype == jnp.int32 and batch.mask.dtype == bool
    kept = drawn[:max_batch_size]
    assert np.asarray(batch.mask).tolist() == [i < len(kept) for i in range(max_batch_size)]
    assert np.asarray(batch.indices)[: len(kept)].tolist() == kept.tolist()


def test_c34_padding_points_at_a_row_that_is_there_and_is_masked():
    n = 6
    batch = draws(raw(0.3, n, 4), n, 500)
    indices, mask = np.asarray(batch.indices), np.asarray(batch.mask)
    assert indices.min() == 0 and indices.max() < n
    assert np.all(indices[~mask] == 0)
    # A masked row counts for nothing although record 0 is real; without the mask, planted, it does.
    values = np.ones(n)
    values[0] = 1e6
    total = np.where(mask, values[indices], 0).sum(1)
    absent = ~((indices == 0) & mask).any(1)
    assert np.all(total[absent] < 1e6) and np.any(values[indices].sum(1)[absent] >= 1e6)


@pytest.mark.parametrize(("q", "size"), [(2.0**-60, 0), (1 - 2.0**-50, 8)])
def test_c38_empty_and_full_batches_are_legal(q, size):
    indices, mask = (np.asarray(leaf)[0] for leaf in jax.tree.leaves(draws(raw(q, 8, 8), 8, 1)))
    assert mask.sum() == size and np.isfinite(indices).all()
    assert sorted(indices[mask].tolist()) == list(range(size))


@pytest.mark.parametrize("n", [1, 2])
def test_batches_of_one(n):
    batch = draws(raw(0.5, n, 1), n, 64)
    sizes = np.asarray(batch.mask).sum(1)
    assert set(sizes.tolist()) == {0, 1}
    assert np.asarray(sampling.full_batch(1).sample(jax.random.key(0), 1).indices).tolist() == [0]


def test_c39_the_divisor_is_declared_and_never_the_size_drawn():
    sampler = poisson(50, 1000)
    sizes = np.asarray(draws(sampler, 1000, 2000).mask).sum(1)
    assert len(set(sizes.tolist())) > 5
    assert sampler.expected == pytest.approx(sampler.probability * sampler.data_size)
    assert (
        sampling.without_replacement(50, 1000).expected == 50
        and sampling.full_batch(9).expected == 9
    )
    release = sampler.release("g", 1, noise_multiplier=2.0, relation="zero_out", record_norm=3.0)
    assert release.stddev == pytest.approx(2.0 * 3.0 / 50)


def test_c40_the_probability_comes_from_the_declared_n():
    """Where n is private the same sampler draws from any n, with the declared probability."""
    sampler = poisson(50, 1000, budget=PrivacyBudget(1.0, 1e-6, "add_or_remove_one"))
    for n in (1, 1000):
        found = np.asarray(draws(sampler, n, 2000).mask).sum()
        assert consistent(found, n * 2000, 0.05)
    with pytest.raises(ValueError, match="declare the public n"):
        sampling.without_replacement(50, 1000).sample(jax.random.key(0), 999)


@pytest.mark.parametrize(
    ("changed", "wrap"),
    [("high", np.uint32), ("low", jnp.uint32), ("data_size", None), ("table", None)],
)
def test_c60_the_table_follows_the_probability_that_is_replaced(changed, wrap):
    """Fails by chance with probability 1e-6."""
    sampler = raw(2.0**-10, 100, 100)
    values = {"high": 2**31, "low": 5, "data_size": 10**7, "table": sampler.table * 0}
    value = values[changed] if wrap is None else wrap(values[changed])
    other = dataclasses.replace(sampler, **{changed: value})
    expected = skips.skip_table((int(other.high) << 32) | int(other.low), other.data_size)
    np.testing.assert_array_equal(other.table, expected)
    assert (changed == "table") == np.array_equal(other.table, sampler.table)
    sizes = np.asarray(draws(other, 100, 200).mask).sum()
    assert consistent(sizes, 100 * 200, other.probability)
    # What has no value yet is left alone.
    jax.tree.map(lambda leaf: None, other)
    stacked = jax.tree.map(lambda a, b: np.stack([a, b]), other, other)
    assert stacked.table.shape == (2, *other.table.shape)


@pytest.mark.parametrize(("n", "q"), [(30, Fraction(1, 4)), (200, Fraction(1, 8))])
def test_c41_overflow_is_the_exact_tail_rounded_up(n, q):
    for max_batch_size in (0, n // 4, n // 2, n - 1, n):
        exact = sum(
            math.comb(n, k) * q**k * (1 - q) ** (n - k) for k in range(max_batch_size + 1, n + 1)
        )
        found = Fraction(skips.overflow_probability(float(q), max_batch_size, n))
        assert exact <= found <= exact * (1 + Fraction(1, 10**8)) + Fraction(1, 10**300)


@pytest.mark.parametrize("delta_share", [1e-1, 1e-3, 1e-5])
@pytest.mark.parametrize(("expected", "n"), [(10, 1000), (256, 60_000), (5000, 35_000)])
def test_c41_the_capacity_keeps_to_its_share_of_delta(expected, n, delta_share):
    sampler = poisson(expected, n, delta_share=delta_share)
    draw = (1 + math.e) * 100
    assert draw * sampler.overflow <= delta_share * BUDGET.delta
    allowed = min(delta_share * BUDGET.delta / draw / 2, 1e-20)
    assert stats.binom.sf(sampler.max_batch_size - 1, n, expected / n) > allowed
    release = sampler.release("g", 100, noise_multiplier=5.0, relation="zero_out")
    assert release.failure_probability == sampler.overflow > 0
    assert release.max_batch_size == sampler.max_batch_size
    clean = dataclasses.replace(release, failure_probability=0.0)
    charged, free = (
        epsilon(Event((one,), "zero_out"), 1e-6, "zero_out") for one in (release, clean)
    )
    assert free <= charged < free * (1 + delta_share)


@pytest.mark.parametrize(
    "sampler", [raw(0.3, 64, 32), sampling.WithoutReplacement(16, 64), sampling.FullBatch(64)]
)
def test_x64_jit_vmap_and_loops_draw_the_same_bits(sampler):
    keys = jax.random.split(jax.random.key(2), 5)
    draw = jax.jit(lambda key: sampler.sample(key, 64))
    plain = [draw(key) for key in keys]
    with jax.enable_x64(True):
        wide = [draw(key) for key in keys]
    together = jax.jit(jax.vmap(draw))(keys)

    @jax.jit
    def in_a_loop(out):
        def body(carry):
            step, out = carry
            batch = sampler.sample(keys[step], 64)
            return step + 1, jax.tree.map(lambda all_, one: all_.at[step].set(one), out, batch)

        return jax.lax.while_loop(lambda carry: carry[0] < 5, body, (0, out))[1]

    looped = in_a_loop(jax.tree.map(np.zeros_like, together))
    for step, one in enumerate(plain):
        for other in (
            wide[step],
            *(jax.tree.map(lambda a, i=step: a[i], b) for b in (together, looped)),
        ):
            assert other.indices.dtype == jnp.int32
            chex.assert_trees_all_equal(one, other)


def test_c48_another_probability_compiles_nothing_anew():
    def draw(sampler, key):
        return sampler.sample(key, 100).mask.sum()

    compiled = jax.jit(chex.assert_max_traces(draw, 1))
    for q in (0.1, 0.2, 0.9):
        compiled(raw(q, 100, 100), jax.random.key(0))
    stacked = jax.tree.map(lambda *a: np.stack(a), raw(0.01, 100, 100), raw(0.99, 100, 100))
    few, many = jax.jit(jax.vmap(draw, (0, None)))(stacked, jax.random.key(0))
    assert few < 20 < 80 < many
    one = jax.tree.map(lambda leaf: np.asarray(leaf)[1], stacked)
    assert one.probability == raw(0.99, 100, 100).probability


@pytest.mark.parametrize(
    ("sampler", "kind"),
    [
        (poisson(50, 1000), "poisson"),
        (sampling.without_replacement(50, 1000), "without_replacement"),
        (sampling.full_batch(1000), "none"),
    ],
)
def test_c37_a_release_names_the_draw_that_made_it(sampler, kind):
    release = sampler.release("g", 1, noise_multiplier=2.0, relation="replace_one")
    assert release.sampling == kind
    if kind != "none":
        assert release.sampling_probability == sampler.probability
        assert release.max_batch_size == sampler.max_batch_size
        assert release.failure_probability == sampler.overflow


@pytest.mark.parametrize("relation", RELATIONS)
def test_noise_of_multiplier_times_scale_is_what_is_accounted(relation):
    for sampler, moved in (
        (sampling.full_batch(1000), 2 if relation == "replace_one" else 1),
        (poisson(50, 1000), 1),
    ):
        release = sampler.release("g", 3, noise_multiplier=4.0, relation=relation, record_norm=0.5)
        assert release.stddev == pytest.approx(float(4.0 * sampler.scale(0.5, relation)))
        assert release.sensitivity == pytest.approx(moved * 0.5 / sampler.expected)
        assert Event((release,), relation).is_gaussian == isinstance(sampler, sampling.FullBatch)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: poisson(0, 10), "expected_batch must be"),
        (lambda: poisson(10, 10), "FullBatch"),
        (lambda: poisson(11, 10), "FullBatch"),
        (lambda: poisson(1e-30, 10), "above 0"),
        (lambda: poisson(1, 0), "data_size must be"),
        (lambda: poisson(1, 10.5), "data_size must be"),
        (lambda: poisson(1, 10, count=0), "count must be"),
        (lambda: poisson(1, 10, delta_share=2), "delta_share must be"),
        (lambda: poisson(1, 10, budget=1.0), "budget must be"),
        (lambda: poisson(100, 1000, max_batch_size=110), "raise max_batch_size to"),
        (lambda: poisson(100, 1000, max_batch_size=0), "max_batch_size must be"),
        (lambda: sampling.without_replacement(10, 10), "FullBatch"),
        (lambda: sampling.without_replacement(0, 10), "size must be"),
        (lambda: sampling.full_batch(0), "data_size must be"),
        (
            lambda: sampling.full_batch(3).release(
                "g", 1, noise_multiplier=1.0, relation="replace-one"
            ),
            "replace_one",
        ),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
