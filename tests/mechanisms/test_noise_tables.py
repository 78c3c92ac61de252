"""Standard noise by integers: certified tables, the same words on all devices, exact cells."""

import hashlib
import importlib.util
import pathlib
import re
import warnings

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy import stats

from dpjax.mechanisms import fixed_point
from dpjax.mechanisms.fixed_point import (
    FRACTION,
    GUMBEL_ERROR,
    NORMAL_ERROR,
    gumbel_from_bits,
    normal_from_bits,
    standard_gumbel,
    standard_normal,
)
from dpjax.mechanisms.keys import random_words

PATH = pathlib.Path(__file__).parents[2] / "benchmarks" / "noise_tables.py"
CHECKSUMS = {
    "normal": "ce473b99e9a3f7bfe6b5ae13b678744bc21b6673fe1edb16d12f1832c49c5b5b",
    "gumbel": "f94790138eb712dc2d3c71c6e5ca1704b9a20c51f1d52a9d8355a444ef774f0c",
}
LAWS = {"normal": (normal_from_bits, NORMAL_ERROR), "gumbel": (gumbel_from_bits, GUMBEL_ERROR)}
LEVEL = 1e-6


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("noise_tables", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def to_words(numbers, lowest=0):
    """Numbers of 127 bits as first and second words, uint32 (4, n), the lowest bit beside them."""
    numbers = [int(number) for number in numbers]
    rows = [[(n >> 96) << 1 | lowest for n in numbers]]
    rows += [[n >> shift & 0xFFFF_FFFF for n in numbers] for shift in (64, 32, 0)]
    return np.array(rows, np.uint32)


def of_all_octaves(count):
    """Random numbers of 127 bits, of each number of leading zeros, and the ends of each octave."""
    rng = np.random.default_rng(3)
    numbers = [int.from_bytes(rng.bytes(16)) >> 1 + i % 128 for i in range(count)]
    return [0, *numbers, *(2**i for i in range(127)), *(2**i - 1 for i in range(1, 128))]


def drawn(law, words, long=True):
    """What a law makes of words, as Python's integers; without second words if not ``long``."""
    second = (jnp.asarray(words[2:]),) if long else ()
    return [int(v) for v in np.asarray(LAWS[law][0](jnp.asarray(words[:2]), *second))]


def by_python(table, below, words, long):
    """The integer program in Python's own integers of any width."""
    draws, (_, octaves, pieces, _) = [], table.shape
    bits, mask, table = pieces.bit_length() - 1, 2**32 - 1, table.astype(object)
    for a, b, c, d in words.T.tolist():
        number = (a >> 1) << 32 | b
        whole = (number << 64 | c << 32 | d) * 2 + 1 if long else (2 * number + 1) << 64
        octave = min(128 - whole.bit_length(), octaves - 1)
        rest = whole << octave + 1 + bits + 64
        piece, x = (rest >> 192) % pieces, (rest >> 128) % 2**64
        left, right = divmod(2**64 - 1 - x, 2**32)
        *row, last = table[a & 1 if len(table) == 2 else 0, octave, piece]
        value = row.pop() + (last * left >> 32)
        for coefficient in row[::-1]:
            top = value >> 32
            lost = (top * right >> 32) + ((value & mask) * left >> 32)
            value = coefficient + top * left + lost
        draws.append(-(value >> below) if a & 1 else value >> below)
    return draws


@pytest.mark.parametrize("long", [True, False])
@pytest.mark.parametrize("law", LAWS)
def test_words_are_those_that_pythons_integers_make(law, long, script):
    table, below = fixed_point._table(law), script.TABLES[law][1]
    for lowest in (0, 1):
        words = to_words(of_all_octaves(1024), lowest)
        assert drawn(law, words, long) == by_python(table, below, words, long)
    wrong = np.roll(table, 1, axis=2)  # Off by a piece.
    assert drawn(law, words, long) != by_python(wrong, below, words, long)


def exact(law, u, lower):
    """The quantile itself, to 30 digits, from Newton's method on logarithms."""
    if law == "gumbel":
        return mpmath.log(-mpmath.log(u / 2)) * -1 if lower else -mpmath.log(-mpmath.log1p(-u / 2))
    z = -mpmath.mpf(stats.norm.ppf(float(u / 2)))
    for _ in range(2):
        slope = mpmath.sqrt(2 / mpmath.pi) * mpmath.exp(-z * z / 2)
        z += (mpmath.erfc(z / mpmath.sqrt(2)) - u) / slope
    return -z if lower else z


@pytest.mark.parametrize("law", LAWS)
def test_draws_are_quantiles_to_the_proved_bound_out_to_the_last_octave(law):
    ends = 76 if law == "normal" else 64
    numbers = [n for n in of_all_octaves(128) if n >> 127 - ends]
    with mpmath.workdps(50):
        for lower in (0, 1):
            for number, draw in zip(numbers, drawn(law, to_words(numbers, lower)), strict=True):
                u = mpmath.mpf(2 * number + 1) / mpmath.mpf(2) ** 128
                error = abs(mpmath.ldexp(draw, -FRACTION) - exact(law, u, lower))
                assert error <= LAWS[law][1], (law, number)


@pytest.mark.parametrize("law", LAWS)
def test_the_table_is_the_one_that_was_certified(law, script):
    table = fixed_point._table(law)
    assert hashlib.sha256(table.tobytes()).hexdigest() == CHECKSUMS[law]
    rng = np.random.default_rng(5)
    places = [tuple(int(rng.integers(n)) for n in table.shape[:3]) for _ in range(6)]
    for place in [*places, (0, 0, 0), tuple(n - 1 for n in table.shape[:3])]:
        series, most, ratio = script.series_of(law, *place)
        row = [int(c) for c in table[place]]
        assert row == script.fitted(law, series)
        assert script.bound(law, row, series, most, ratio) <= LAWS[law][1]
        # Planted: one unit in the place of 2^-40, in any coefficient.
        for i in range(len(row)):
            wrong = list(row)
            wrong[i] += 1 << FRACTION + script.TABLES[law][1] - 40
            assert script.bound(law, wrong, series, most, ratio) > 2 * LAWS[law][1]


@pytest.mark.parametrize("law", LAWS)
def test_pieces_join(law):
    _, octaves, pieces, _ = fixed_point._table(law).shape
    starts = [
        (pieces + j) << 127 - pieces.bit_length() - k for k in range(octaves) for j in range(pieces)
    ]
    for lower in (0, 1):
        above = np.array(drawn(law, to_words(starts, lower)))
        below = np.array(drawn(law, to_words([start - 1 for start in starts[:-pieces]], lower)))
        gaps = np.abs(above[:-pieces] - below)
        assert gaps.max() <= 2 * LAWS[law][1] * 2**FRACTION


def released(numbers, second):
    """Draws, in units, as ``standard_normal`` makes them of 127 bits."""
    words = to_words(numbers)
    if second:
        long = words[0] >> 1 < 1 << 31 - fixed_point._LONG
        words[2:] = np.where(long, words[2:], np.uint32([[1 << 31], [0]]))
    return np.array(drawn("normal", words, second))


def counts_beyond(ends, second):
    """How many of the 2^127 numbers give draws at or above each of the ends: by bisection."""
    low, high = [0] * len(ends), [2**127] * len(ends)
    units = np.round(np.asarray(ends) * 2.0**20).astype(np.int64) << FRACTION - 20
    for _ in range(127):
        middle = [(a + b) // 2 for a, b in zip(low, high, strict=True)]
        reached = released(middle, second) >= units
        low = [m if r else a for m, a, r in zip(middle, low, reached, strict=True)]
        high = [b if r else m for m, b, r in zip(middle, high, reached, strict=True)]
    return high


def test_a_cell_of_the_grid_has_the_gaussians_probability_to_the_last_octave():
    # The table, and what rounding a product and three terms of a value adds.
    width, error = 2.0**-9, 2.0**-50
    assert error >= fixed_point.NORMAL_ERROR + 4 * 2.0**-53
    starts = np.round(np.linspace(0, 9.93, 200) / width) * width
    ends = np.concatenate([starts, starts + width])
    ratios = {}
    for second in (True, False):
        counts = counts_beyond(ends, second)
        with mpmath.workdps(50):
            tails = [mpmath.erfc(mpmath.mpf(end) / mpmath.sqrt(2)) for end in ends]
            ratios[second] = np.array(
                [
                    abs(
                        float(
                            mpmath.log(mpmath.mpf(max(counts[i] - counts[i + 200], 1)) / 2**127)
                            - mpmath.log(tails[i] - tails[i + 200])
                        )
                    )
                    for i in range(200)
                ]
            )
    # PRIVACY: the logarithm of the factor that the guarantee states, of a cell of [a, a + width).
    bits = np.where(starts < 4.0088, 63, 127)  # The end of the 14th octave.
    charged = 2 * error / width * np.exp((starts + width) * width)
    charged += 2 / (2.0**bits * 2 * stats.norm.pdf(starts + width) * width)
    assert (ratios[True] <= charged).all()
    assert charged.max() <= 2.0**-39
    # Planted: without second words there are too few numbers far out.
    beyond = starts > 5
    assert (ratios[False][~beyond & (starts < 4)] <= charged[~beyond & (starts < 4)]).all()
    assert (ratios[False][beyond] > charged[beyond]).mean() > 0.9


KEYS = {
    "64 bits": lambda: jax.random.key(4),
    "128 bits": lambda: jax.random.wrap_key_data(jnp.uint32([1, 2, 3, 4]), impl="threefry4x32"),
}


@pytest.mark.parametrize("width", KEYS)
def test_random_words_are_whole_hashes(width):
    key = KEYS[width]()
    counts = jnp.uint32([0, 5, 2**31])
    each = [jax.random.key_data(jax.random.fold_in(key, count)) for count in counts]
    for on in (False, True):
        with jax.enable_x64(on):
            assert (np.asarray(random_words(key, counts)) == np.stack(each, 1)).all()


@pytest.mark.parametrize("width, few", [("64 bits", 0), ("64 bits", 112), ("128 bits", 0)])
def test_each_draw_far_out_has_a_second_word_of_its_own(width, few, monkeypatch):
    # From octave 2 on, so that columns have many: no one's word is that of another.
    monkeypatch.setattr(fixed_point, "_LONG", 2)
    key, columns, rows = KEYS[width](), 7, fixed_point._ROWS
    size, second, rank = columns * rows, [], np.zeros(columns, int)
    words = np.asarray(random_words(key, jnp.arange(2 * size, dtype=jnp.uint32)))
    for i in range(size):
        column = i % columns
        if words[0, i] >> 1 >= 1 << 29:
            second.append([1 << 31, 0])
        elif len(words) == 4:
            second.append(words[2:, i])
        elif few:
            second.append(words[:, size + i])
        else:
            second.append(words[:, size + rank[column] * columns + column])
            rank[column] += 1
    assert few or len(words) == 4 or rank.max() > 2
    wanted = drawn("normal", np.uint32(np.concatenate([words[:2, :size], np.transpose(second)])))
    with jax.enable_x64(True):
        draws = fixed_point._some(normal_from_bits, key, columns, few)
        assert np.asarray(draws).tolist() == wanted


@pytest.mark.parametrize("width", KEYS)
def test_bits_depend_on_neither_the_mode_nor_vmap(width):
    keys = jax.random.split(KEYS[width](), 3)
    wanted = np.stack([np.asarray(standard_normal(key, (40, 3))) for key in keys])
    assert wanted.dtype == np.int64
    for on in (False, True):
        with jax.enable_x64(on), warnings.catch_warnings(action="error"):
            batch = jax.jit(jax.vmap(lambda key: standard_normal(key, (40, 3))))(keys)
        assert (np.asarray(batch) == wanted).all()


@pytest.mark.parametrize("width", KEYS)
def test_several_keys_draw_each_as_it_would_draw_many(width):
    """A draw in 2^14 has a second word: some of the 2,100,000 of these keys."""
    keys = jax.random.split(KEYS[width](), 3)
    draws = np.asarray(standard_normal(keys, (70_000, 10)))
    wanted = [np.asarray(standard_normal(key, (70_000, 10))) for key in keys]
    assert (draws == np.stack(wanted)).all()
    draws = np.asarray(standard_normal(keys, (10, 3)))
    assert stats.kstest(draws.ravel() / 2.0**FRACTION, stats.norm.cdf).pvalue > LEVEL
    assert np.unique(draws).size == 90


@pytest.mark.parametrize(
    "draw, law", [(standard_normal, stats.norm), (standard_gumbel, stats.gumbel_r)]
)
def test_draws_have_their_law(draw, law, monkeypatch):
    # Several parts of a loop, the last of them not whole.
    size = 3 * fixed_point._LOOP - 5
    draws = np.asarray(draw(jax.random.key(8), (size,)))
    assert stats.kstest(draws / 2.0**FRACTION, law.cdf).pvalue > LEVEL
    assert np.unique(draws).size == size
    odd = np.count_nonzero(draws & 1)
    assert stats.binomtest(odd, size).pvalue > LEVEL
    assert draw(jax.random.key(8), (0, 2)).shape == (0, 2)
    assert draw(jax.random.key(8), ()).shape == ()


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
@pytest.mark.parametrize("width", KEYS)
def test_programs_of_other_devices_hold_no_float64(width, platform):
    key = KEYS[width]()
    with warnings.catch_warnings(action="error"):
        lowered = jax.export.export(
            jax.jit(lambda key: (standard_normal(key, (70,)), standard_gumbel(key, (5,)))),
            platforms=[platform],
        )(jax.ShapeDtypeStruct((), key.dtype))
    text = lowered.mlir_module()
    assert "i64" in text
    assert not re.search(r"\bf64\b|xf64>|xf32>|custom_call", text)
