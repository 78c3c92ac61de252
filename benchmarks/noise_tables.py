"""Makes and certifies the tables of quantiles that noise is drawn from.

Run ``python benchmarks/noise_tables.py --write`` to write ``dpjax/mechanisms/normal.npy`` and
``gumbel.npy``, without it to certify the files that are there (30 seconds). It prints a proved
bound on the error of the draws, octave by octave.

A piece is an interval of probabilities u = c - h s, s from -1 to 1, in which s = 2 y - 1 for the y
that ``dpjax.mechanisms.fixed_point.evaluate`` counts. On it a quantile is a power series in s,
known as intervals of Python's integers in units of 2^-UNIT. What is proved is the sum of

- the series beyond TERMS: a function bounded by B on the disk of radius c / 2 about c has terms of
  at most B (2 h / c)^k there (Cauchy's estimate);
- the difference of both polynomials: at most the sum of its Chebyshev coefficients, in exact
  arithmetic, the rounding of the coefficients with it;
- the units that Horner's rule loses, 3 a product, the last rounding, and the end of the word.

Only the start of a normal series, one quantile a piece, trusts mpmath's erfc, to 40 of 100 digits.
"""

import argparse
import functools
from fractions import Fraction
from math import comb, log2
from pathlib import Path

import mpmath
import numpy as np
from scipy import special

UNIT, TERMS, DIGITS = 200, 26, 100
FRACTION = 56
FOLDER = Path(__file__).parent.parent / "dpjax" / "mechanisms"
# Sides, octaves, pieces, coefficients; bits of a coefficient below the unit of a draw.
TABLES = {"normal": ((1, 76, 64, 7), 3), "gumbel": ((2, 64, 16, 8), 1)}


def integers(value):
    """Returns a number as an interval in units of 2^-UNIT, 40 digits of it trusted."""
    middle = int(mpmath.nint(mpmath.ldexp(value, UNIT)))
    return middle - (1 << UNIT - 150), middle + (1 << UNIT - 150)


def dot(left, right):
    """Returns the interval of a sum of products of intervals."""
    ends = [[a * b for a in x for b in y] for x, y in zip(left, right, strict=True) if x[1] or x[0]]
    return sum(min(e) for e in ends) >> UNIT, -(-sum(max(e) for e in ends) >> UNIT)


def divided(x, count):
    """Returns the interval x divided by a positive integer."""
    return x[0] // count, -(-x[1] // count)


def normal_series(centre, half):
    """Returns the series of z, P(|Z| > z(u)) = u. In -u it solves z'' = z z'^2.

    As z >= 0 and z' > 0 in c, all its terms are positive; so they are bounded by those in 0 < s of
    the real z(c / 2), below 16, which is the bound B.
    """
    with mpmath.workdps(DIGITS):
        u = mpmath.mpf(centre.numerator) / centre.denominator
        z = -mpmath.mpf(special.ndtri(float(u) / 2))
        for _ in range(3):
            step = mpmath.erfc(z / mpmath.sqrt(2)) - u
            step *= mpmath.sqrt(mpmath.pi / 2) * mpmath.exp(z * z / 2)
            z += step / (1 + z * step / 2)
        ends = [mpmath.erfc((z + e) / mpmath.sqrt(2)) for e in (-(mpmath.mpf(10) ** -60), 0)]
        ends += [mpmath.erfc((z + mpmath.mpf(10) ** -60) / mpmath.sqrt(2))]
        if not ends[0] > u > ends[2]:
            raise ArithmeticError(f"no quantile at {u}.")
        slope = mpmath.sqrt(mpmath.pi / 2) * mpmath.exp(z * z / 2)
        series = [integers(z), integers(slope * half.numerator / half.denominator)]
    squares, slopes = [], []
    for k in range(TERMS - 2):
        slopes.append(tuple((k + 1) * end for end in series[k + 1]))
        squares.append(dot(slopes, slopes[::-1]))
        series.append(divided(dot(series[: k + 1], squares[::-1]), (k + 2) * (k + 1)))
    return series, 16


def gumbel_series(centre, half, side):
    """Returns the series of -log(-log(1 - u)) (side 0), or of log(-log(u)) (side 1), u < 1/2.

    On the disk L = -log(1 - u) is u times a number of real part above 1 / 1.75, so |log L| is at
    most log(3.5 / c) + pi; and -log(u) has a real part above log(4/3), |log| below 8: B is 64.
    """
    with mpmath.workdps(DIGITS):
        origin = 1 - centre if side == 0 else centre
        start = -mpmath.log(mpmath.mpf(origin.numerator) / origin.denominator)
        ratio = half / origin * (-1 if side == 0 else 1)
        terms = [
            integers(mpmath.mpf((ratio**k).numerator) / (ratio**k).denominator / (k * start))
            for k in range(1, TERMS)
        ]
        series = [integers(mpmath.log(start))]
    # The logarithm of a series 1 + m_1 s + ...: k g_k = k m_k - sum of i g_i m_(k - i).
    for k in range(1, TERMS):
        known = [tuple(i * end for end in series[i]) for i in range(1, k)]
        low, high = divided(dot(known, terms[: k - 1][::-1]), k)
        series.append((terms[k - 1][0] - high, terms[k - 1][1] - low))
    return [(-x[1], -x[0]) for x in series] if side == 0 else series, 64


def series_of(name, side, octave, piece):
    """Returns series, B, and half / centre of one piece."""
    pieces = TABLES[name][0][2]
    half = Fraction(1, 2 * pieces << octave + 1)
    if name == "gumbel":
        half /= 2
    centre = (2 * pieces + 2 * piece + 1) * half
    found = normal_series(centre, half) if name == "normal" else gumbel_series(centre, half, side)
    return *found, half / centre


@functools.cache
def interpolation(count):
    """Returns the matrix from TERMS terms in s to ``count`` coefficients in y, by interpolation."""
    with mpmath.workdps(DIGITS):
        nodes = [mpmath.cos((2 * i + 1) * mpmath.pi / (2 * count)) for i in range(count)]
        inverse = mpmath.matrix([[((1 + s) / 2) ** k for k in range(count)] for s in nodes]) ** -1
        product = inverse * mpmath.matrix([[s**k for k in range(TERMS)] for s in nodes])
        return [[integers(product[i, k])[0] for k in range(TERMS)] for i in range(count)]


def fitted(name, series):
    """Returns the coefficients of a piece, half a unit of the draws in the first."""
    (_, _, _, count), below = TABLES[name]
    shift, middle = 2 * UNIT - FRACTION - below, [(low + high) // 2 for low, high in series]
    rows = [sum(a * b for a, b in zip(row, middle, strict=True)) for row in interpolation(count)]
    rows = [(row + (1 << shift - 1)) >> shift for row in rows]
    return [rows[0] + (1 << below - 1), *rows[1:]]


def bound(name, coefficients, series, most, ratio):
    """Returns a proved bound on |draw - quantile|, a Fraction, for one piece's coefficients."""
    count, below = len(coefficients), TABLES[name][1]
    unit = 1 << UNIT - FRACTION - below
    exact = [coefficients[0] - (1 << below - 1), *coefficients[1:]]
    # In s: y^k = 2^-k (1 + s)^k, in units of 2^-(UNIT + count).
    other = [
        sum(unit * c * comb(k, i) << count - k for k, c in enumerate(exact) if k >= i)
        for i in range(TERMS)
    ]
    differences = [
        2 * b - (low + high << count) for b, (low, high) in zip(other, series, strict=True)
    ]
    # s^k = 2^-k sum of binomial(k, j) T_|k - 2 j|, in units of 2^-(UNIT + count + 1 + TERMS).
    chebyshev = [0] * TERMS
    for k, difference in enumerate(differences):
        for j in range(k + 1):
            chebyshev[abs(k - 2 * j)] += difference * comb(k, j) << TERMS - k
    total = Fraction(sum(map(abs, chebyshev)), 1 << UNIT + count + 1 + TERMS)
    total += Fraction(sum(high - low for low, high in series), 1 << UNIT)
    total += 2 * most * (2 * ratio) ** TERMS
    products = Fraction(3 * (count - 1), 1 << FRACTION + below)
    word = sum(k * abs(c) for k, c in enumerate(exact)) * Fraction(1, 1 << FRACTION + below + 64)
    return total + products + word + Fraction(1, 2 << FRACTION)


def certify(name, table=None):
    """Returns the table and the bound of each of its octaves, (sides, octaves) of floats.

    Args:
      name: ``normal`` or ``gumbel``.
      table: the one to be certified; None makes it.
    """
    shape, _ = TABLES[name]
    made = np.zeros(shape, np.int64) if table is None else table
    bounds = np.zeros(shape[:3])
    for place in np.ndindex(shape[:3]):
        series, most, ratio = series_of(name, *place)
        if table is None:
            made[place] = fitted(name, series)
        bounds[place] = bound(name, [int(c) for c in made[place]], series, most, ratio)
    return made, bounds.max(2)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    for name in TABLES:
        path = FOLDER / f"{name}.npy"
        table, bounds = certify(name, None if arguments.write else np.load(path))
        if arguments.write:
            np.save(path, table)
        print(f"\n{name}, {table.nbytes:,} bytes: |error| at most 2^{log2(bounds.max()):.2f}\n")
        print("| side | octave | |error| at most |\n|---|---|---|")
        for (side, octave), value in np.ndenumerate(bounds):
            print(f"| {side} | {octave} | 2^{log2(value):.2f} |")


if __name__ == "__main__":
    main()
