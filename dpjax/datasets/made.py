"""Synthetic data: more features than records, of which few are informative."""

import numpy as np

from dpjax import _validate
from dpjax.datasets.base import Dataset


def sparse_high_dimensional(
    seed: int,
    data_size: int = 2_000,
    dimension: int = 4_000,
    *,
    informative: int = 10,
    active: int = 16,
    weight: float = 4.0,
) -> Dataset:
    """Returns made records of few words out of many, whose label a few frequent words decide.

    Each record has ``active`` distinct words, drawn with a chance that falls as 1 / (rank + 1) like
    in a text, each worth +1 or -1 over the root of ``active``: rows of norm 1, every feature within
    1. The label is +1 with probability 1 / (1 + e^-m) for m = <x, w>, where w is +-``weight`` on
    the ``informative`` first words and 0 elsewhere; so |w|_1 = informative * weight.

    Args:
      seed: of the records; the same seed makes the same ones.
      data_size: n.
      dimension: p, the number of words.
      informative: number of weights that are not 0.
      active: words of a record.
      weight: size of those weights.

    Returns:
      A ``Dataset`` with n training records and as many held-out ones, unit ``"row"``.

    Raises:
      ValueError: for more informative or active words than there are.

    Privacy: none is needed; the records are drawn from a published seed.

    >>> data = sparse_high_dimensional(0, 20, 50)
    >>> data.x.shape, data.test_x.shape, data.max_norm
    ((20, 50), (20, 50), 1.0)
    """
    n, p = (
        _validate.positive_int("data_size", data_size),
        _validate.positive_int("dimension", dimension),
    )
    for name, count in (("informative", informative), ("active", active)):
        if _validate.positive_int(name, count) > p:
            raise ValueError(f"{name} must be at most dimension={p}, got {count}.")
    random = np.random.default_rng(seed)
    w = np.zeros(p)
    w[:informative] = _validate.positive("weight", weight) * random.choice([-1, 1], informative)
    x, y = zip(*(_records(random, n, w, active) for _ in range(2)), strict=True)
    return Dataset(x[0], y[0], x[1], y[1], "sparse-high-dimensional", "row", 1.0)


def _records(
    random: np.random.Generator, n: int, w: np.ndarray, active: int
) -> tuple[np.ndarray, np.ndarray]:
    p = w.size
    # The first of p exponential clocks to ring: drawing without replacement, by these rates.
    clocks = random.exponential(size=(n, p)) * np.arange(2, p + 2)
    words = np.argpartition(clocks, active - 1, axis=1)[:, :active]
    x = np.zeros((n, p), np.float32)
    np.put_along_axis(x, words, random.choice([-1, 1], (n, active)) / np.sqrt(active), axis=1)
    heads = random.random(n) < 1 / (1 + np.exp(-(x @ w)))
    return x, np.where(heads, 1, -1).astype(np.float32)
