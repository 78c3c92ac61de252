"""Texts of the printed guarantee about a release and its accounting."""

from typing import NamedTuple

from dpjax._typing import Relation

LOSSES = "privacy loss distributions, discretised so that epsilon is rounded up"

ADDED = (
    "drawn from a table by integers, up to 10 standard deviations, and added to the sum without "
    "rounding; the two are rounded once, to a grid of spacing 2^-8 standard deviations or finer, "
    "and then converted to the output type."
)
_WIDE_SUMS = (
    "clipped contributions are added in float64 within chunks of rows and as integers across "
    "chunks; the worst-case rounding error is included in the sensitivity or bound above."
)


class ReleaseWords(NamedTuple):
    """Text about a release, from the query that makes it.

    Attributes:
      noise: what is released, and with which noise.
      bound: what enforces the bound on one record.
      note: a remark on the bound and the noise, or nothing.
      sums: how the contributions of records are added up.
    """

    noise: str = "means of clipped contributions, with Gaussian noise"
    bound: str = "enforced by clipping"
    note: str = ""
    sums: str = (
        "clipped contributions are added in float32 within blocks of at most 128 rows, in float64 "
        "(on a GPU or TPU as integers) within chunks of blocks, and as integers across chunks; the "
        "worst-case rounding error is included in the sensitivity or bound above."
    )

    def sums_under(self, relation: Relation) -> str:
        """Returns ``sums``, for a relation under which the common rows of neighbours may shift."""
        shifts = relation == "add_or_remove_one"
        return _WIDE_SUMS if shifts and self.sums == ReleaseWords().sums else self.sums


class LawWords(NamedTuple):
    """Text about an event that is not accounted by composing privacy losses.

    Attributes:
      accounting: how epsilon is computed.
      profile: the guarantee at other deltas.
      group: the guarantee for a group of k records.
      drawn: how the noise is drawn, added and rounded.
      covered: what the guarantee is for.
      tuning: the choice of settings that is not covered.
    """

    accounting: str
    profile: str
    group: str = "the guarantee is (k epsilon, k e^((k-1) epsilon) delta)-differential privacy"
    drawn: str = f"Gaussian noise is {ADDED}"
    covered: str = "every iterate and noisy answer"
    tuning: str = "hyperparameter tuning on the same data"


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
