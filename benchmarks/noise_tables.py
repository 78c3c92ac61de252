"""Makes and certifies the tables of quantiles that noise is drawn from.

Run ``python benchmarks/noise_tables.py`` to write ``dpjax/mechanisms/normal.npy`` and
``gumbel.npy``, or with ``--check`` to recompute them and compare. Both print a proved bound on the
error of every octave.

A piece of a table is an interval of tail probabilities [c - h, c + h]. There s = (c - u) / h runs
from -1 to 1, and the quantile f is a power series in s: all arithmetic on it is done by Python's
integers in units of 2^-256, as intervals.
"""

import argparse
import functools
import math
from pathlib import Path

import mpmath
import numpy as np

UNIT = 256
TERMS = 48
FOLDER = Path(__file__).parent.parent / "dpjax" / "mechanisms"


def normal_series(centre, half):
    """Returns the power series of z(c - h s), P(|Z| > z(u)) = u, as integers in units of 2^-UNIT.

    z'' = z z'^2 in -u, and with z >= 0 and z' > 0 all terms are positive.
    """
    from scipy import special

    with mpmath.workdps(100):
        u = mpmath.mpf(centre.numerator) / centre.denominator
        z = -mpmath.mpf(float(special.ndtri(float(u) / 2)))
        for _ in range(3):
            step = (mpmath.erfc(z / mpmath.sqrt(2)) - u) / (
                mpmath.sqrt(2 / mpmath.pi) * mpmath.exp(-z * z / 2)
            )
            z += step / (1 + z * step / 2)
        slope = mpmath.sqrt(mpmath.pi / 2) * mpmath.exp(z * z / 2)
        slope *= mpmath.mpf(half.numerator) / half.denominator
        series = [int(mpmath.floor(mpmath.ldexp(v, UNIT))) for v in (z, slope)]
    squares = []
    for k in range(TERMS - 2):
        d = [(i + 1) * series[i + 1] for i in range(k + 1)]
        squares.append(sum(d[i] * d[k - i] for i in range(k + 1)) >> UNIT)
        total = sum(series[i] * squares[k - i] for i in range(k + 1)) >> UNIT
        series.append(total // ((k + 2) * (k + 1)))
    return series


@functools.cache
def to_polynomial(count):
    """Returns the matrix from ``TERMS`` series terms in s to ``count`` coefficients in y.

    y = (1 + s) / 2 runs from 0 to 1; the polynomial is the interpolant at Chebyshev nodes.
    """
    with mpmath.workdps(100):
        nodes = [mpmath.cos((2 * i + 1) * mpmath.pi / (2 * count)) for i in range(count)]
        values = mpmath.matrix(count, TERMS)
        inverse = mpmath.matrix(count, count)
        for i, node in enumerate(nodes):
            for k in range(TERMS):
                values[i, k] = node**k
            for k in range(count):
                inverse[i, k] = ((1 + node) / 2) ** k
        product = inverse**-1 * values
        return [
            [int(mpmath.nint(mpmath.ldexp(product[i, k], UNIT))) for k in range(TERMS)]
            for i in range(count)
        ]


def fit(series, count, fraction):
    """Returns the coefficients in y, integers in units of 2^-fraction, of a power series in s."""
    shift = 2 * UNIT - fraction
    return [
        (sum(a * b for a, b in zip(row, series, strict=True)) + (1 << shift - 1)) >> shift
        for row in to_polynomial(count)
    ]
