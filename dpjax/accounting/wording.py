"""Texts of the printed guarantee about a release and its accounting."""

from typing import NamedTuple

LOSSES = "privacy loss distributions, discretised so that epsilon is rounded up"


class ReleaseWords(NamedTuple):
    """Text about a release, from the query that makes it.

    Attributes:
      noise: which noise is added to what.
      bound: what enforces the bound on one record.
      note: a remark on the bound and the noise, or nothing.
      sums: how the contributions of records are added up.
    """

    noise: str = "Gaussian noise on means of clipped contributions"
    bound: str = "enforced by clipping"
    note: str = ""
    sums: str = (
        "clipped contributions are added in float32 over at most 128 rows and in float64 across "
        "such blocks; the worst-case rounding error is included in the sensitivity."
    )


class LawWords(NamedTuple):
    """Text about an event that is not accounted by composing privacy losses.

    Attributes:
      accounting: how epsilon is computed.
      profile: the guarantee at other deltas.
      group: the guarantee for a group of k records.
      drawn: how the noise is drawn, the beginning of a sentence.
    """

    accounting: str
    profile: str
    group: str = "the guarantee is (k epsilon, k e^((k-1) epsilon) delta)"
    drawn: str = "Noise is drawn with tails exact up to 9 sigma,"


def times(count: int) -> str:
    """Returns a count as English: once, or how many times.

    >>> times(1), times(3)
    ('once', '3 times')
    """
    return "once" if count == 1 else f"{count} times"


def ceil(value: float, digits: int = 4) -> str:
    """Returns ``value`` in decimal, rounded up but for one part in 10^7, which float32 cannot tell.

    >>> ceil(0.99991), ceil(1.0)
    ('1', '1')
    """
    text = f"{value:.{digits}g}"
    if float(text) < value * (1 - 1e-7):
        unit = 10.0 ** (float(f"{value:e}".split("e")[1]) - digits + 1)
        text = f"{float(text) + unit:.{digits}g}"
    return text
