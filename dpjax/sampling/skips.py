"""Sampling at a cost that scales with the batch: geometric skips, and first distinct draws."""

import bisect
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from scipy import special

from dpjax._typing import Array

_POINT = 192  # binary digits of the powers below: their errors are far below 2^-64
_TINIEST = -64 * math.log(2)
_UP = 1 + 1e-9  # the binomial tails of scipy are good to about 1e-12
_BASE = 32  # enough from a probability of 1 in 23 on, so that these are of one shape


@functools.lru_cache(maxsize=32)
def skip_table(threshold: int, n: int) -> np.ndarray:
    """Returns thresholds that turn random bits into geometric skips between included records.

    Between two records included with probability q lie G that are not, P(G >= g) = (1 - q)^g.
    In G = base A + B the digits A and B are independent, which keeps the tables short. They are
    uint32 (2, 2, base - 1): 2^64 P(A >= j), then 2^64 P(B >= j), j = 1, 2, ..., each as upper and
    lower words, rounded down. ``threshold`` is 2^64 q, between 1 and 2^64 - 1; gaps of n, the
    declared number, and more are alike.
    """
    one = 1 << _POINT
    stay = one - (threshold << (_POINT - 64))  # 1 - q, exact
    # Long enough where two digits reach n, or longer gaps have probability below 2^-64.
    log, base = math.log1p(-threshold / 2**64) if threshold < 2**64 - 2**11 else -math.inf, _BASE
    while log * base**2 > _TINIEST - 1 and base * (base - 1) < n:
        base *= 2
    powers = [one]
    # Integers throughout: floats would lose the last of 64 bits of powers near 1.
    for _ in range(base):
        powers.append((powers[-1] * stay) >> _POINT)
    whole = powers.pop()  # (1 - q)^base
    lower = [((power - whole) << 64) // (one - whole) for power in powers[1:]]
    upper, power = [], one
    for _ in range(base - 1):
        power = (power * whole) >> _POINT
        upper.append(power >> (_POINT - 64))
    words = [[[t >> 32 for t in row], [t & 0xFFFFFFFF for t in row]] for row in (upper, lower)]
    table = np.array(words, np.uint32)
    # One table serves all samplers of this probability.
    table.flags.writeable = False
    return table


def skip_error(table: Array | np.ndarray | None, count: int) -> float:
    """Returns a bound on the total variation between ``count`` gaps as drawn and as they should be.

    Each threshold is off by less than 2^-64, and by at most that the longest gaps are cut. Without
    a table each record has its own Bernoulli trial, and nothing is off.
    """
    return 0.0 if table is None else count * (table.shape[-1] + 2) * 2.0**-64


def geometric_skips(
    key: Array, table: Array | np.ndarray, count: int, n: int
) -> tuple[Array, Array]:
    """Returns the first ``count`` of the records drawn, in order, and which of them there are.

    Indices are int32, 0 where there is none. The key is for this draw alone.
    """
    bits = jax.random.bits(key, (2, 2, count), jnp.uint32)
    with jax.enable_x64(True):
        numbers, thresholds = _join(bits), _join(jnp.asarray(table))[:, ::-1]
        # Thresholds fall with the digit; reversed they rise, as searchsorted needs them.
        most = thresholds.shape[1]
        upper, lower = (
            most - jnp.searchsorted(thresholds[i], numbers[i], side="right") for i in range(2)
        )
        # Each gap is followed by one included record, hence the 1; places count from 0.
        place = jnp.cumsum(upper * (most + 1) + lower + 1) - 1
        mask = place < n
        return lax.convert_element_type(jnp.where(mask, place, 0), jnp.int32), mask


def bernoulli_mask(
    key: Array, threshold: tuple[Array | np.uint32, Array | np.uint32], count: int, n: int
) -> tuple[Array, Array]:
    """Returns what ``geometric_skips`` does by a trial of each record: exact, in time O(n).

    The ``threshold`` is 2^64 q, as upper and lower word.
    """
    high, low = threshold
    # Two words a record: 32 bits would round a small probability by much of itself.
    bits = jax.random.bits(key, (2, n), jnp.uint32)
    rank = jnp.cumsum((bits[0] < high) | ((bits[0] == high) & (bits[1] < low)), dtype=jnp.int32)
    place = jnp.arange(1, count + 1, dtype=jnp.int32)
    mask = place <= rank[-1]
    return jnp.where(mask, jnp.searchsorted(rank, place).astype(jnp.int32), 0), mask


def overflow_probability(probability: float, max_batch_size: int, n: int) -> float:
    """Returns P(Binomial(n, probability) > max_batch_size), rounded up."""
    if max_batch_size >= n:
        return 0.0
    tail = float(special.betainc(max_batch_size + 1, n - max_batch_size, probability))
    return min(1.0, max(tail * _UP, float(np.finfo(float).tiny)))


def largest_overflow(probability: float, max_batch_size: int, n: int) -> float:
    """Returns a bound on P(Binomial(m, q) > ceil(m / n) B), B = max_batch_size, for all m.

    Up to n it is ``overflow_probability``. Above, with k = ceil(m / n), at least 2, Binomial(m, q)
    is at most Binomial(k n, q) in distribution, and where B / n > q that one exceeds k B with
    probability at most exp(-k n KL(B / n || q)), by Chernoff's bound. It is largest at k = 2.

    >>> print(round(largest_overflow(0.5, 51, 100), 3))
    0.961
    """
    part = max_batch_size / n
    if part >= 1:
        return 0.0
    if part <= probability:
        return 1.0
    drawn = part * math.log(part / probability)
    others = (1 - part) * (math.log1p(-part) - math.log1p(-probability))
    divergence = drawn + others - 1e-13 * (drawn + abs(others))  # rounded down
    crowd = min(1.0, max(math.exp(-2 * n * max(divergence, 0.0)), float(np.finfo(float).tiny)))
    return max(overflow_probability(probability, max_batch_size, n), crowd)


def distinct_trials(count: int, n: int) -> tuple[int, float]:
    """Returns how many uniform draws from n hold ``count`` distinct ones, at most n / 2.

    And a bound, at most 2^-64, on the probability that they do not: all lie in a set of count - 1
    (union bound), or their number is far below its mean (McDiarmid).
    """
    if count == 1:
        return 1, 0.0
    # The logarithm of how many sets of count - 1 there are.
    sets = math.lgamma(n + 1) - math.lgamma(count) - math.lgamma(n - count + 2)

    def log_failure(trials: int) -> float:
        union = sets + trials * math.log((count - 1) / n)
        excess = -n * math.expm1(trials * math.log1p(-1 / n)) - count
        return min(union, -2 * excess**2 / trials if excess > 0 else 0.0)

    high = count
    while log_failure(high) > _TINIEST:
        high *= 2
    trials = bisect.bisect_left(
        range(high), True, lo=count, key=lambda trials: log_failure(trials) <= _TINIEST
    )
    return trials, math.exp(log_failure(trials)) * (1 + 1e-6)


def uniform_error(trials: int, n: int) -> float:
    """Returns a bound on the total variation of ``trials`` indices made of 64 bits from uniform.

    The probability of an index is off by less than 2^-64, so that one draw is n^2 2^-128 off in
    chi squared, which bounds the divergence; divergences add up: the rest is Pinsker's inequality.
    """
    return math.sqrt(trials / 2) * n * 2.0**-64


def distinct(key: Array, count: int, trials: int, n: int) -> tuple[Array, Array]:
    """Returns the first ``count`` distinct ones of ``trials`` uniform draws from n < 2^31 records.

    Whatever their number is, each set of that size is as likely. Returned is what
    ``geometric_skips`` returns, and ``trials`` are from ``distinct_trials``.
    """
    bits = jax.random.bits(key, (2, trials), jnp.uint32)
    with jax.enable_x64(True):
        high, low = (lax.convert_element_type(word, jnp.uint64) for word in bits)
        size, half = jnp.uint64(n), jnp.uint64(32)
        # The upper half of the product of 64 bits and n.
        drawn = lax.convert_element_type((high * size + ((low * size) >> half)) >> half, jnp.int32)
    order = jnp.arange(trials, dtype=jnp.int32)
    # A stable sort puts the first draw of each index in front, which alone counts.
    ascending, when = lax.sort((drawn, order), num_keys=1, is_stable=True)
    first = jnp.append(True, ascending[1:] != ascending[:-1])
    rank = jnp.cumsum(jnp.zeros(trials, bool).at[when].set(first), dtype=jnp.int32)
    place = jnp.arange(1, count + 1, dtype=jnp.int32)
    mask = place <= rank[-1]
    return jnp.where(mask, drawn[jnp.searchsorted(rank, place)], 0), mask


def _join(words: Array) -> Array:
    """uint64 of upper and lower words along axis 1; call it under ``enable_x64``."""
    wide = lax.convert_element_type(words, jnp.uint64)
    return (wide[:, 0] << jnp.uint64(32)) | wide[:, 1]
