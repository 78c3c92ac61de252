"""Synthetic data: sparse high-dimensional classification, and planted phase retrieval."""

from typing import NamedTuple

import numpy as np

from dpjax import _validate
from dpjax.datasets.dataset import Dataset


def sparse_high_dimensional(
    seed: int,
    data_size: int = 2_000,
    dimension: int = 4_000,
    *,
    informative: int = 10,
    active: int = 16,
    weight: float = 4.0,
) -> Dataset:
    """Returns sparse records over many words, whose label depends on a few frequent words.

    Each record has ``active`` distinct words, drawn with rates that fall as 1 / (rank + 1), as in
    text. Each has the value +1 or -1 over the root of ``active``: rows have norm 1, and features
    are within 1. The label is +1 with probability 1 / (1 + e^-m) for m = <x, w>, where w is
    +-``weight`` on the ``informative`` first words and 0 elsewhere; so |w|_1 = informative *
    weight.

    Args:
      seed: of the records; the same seed gives the same records.
      data_size: n.
      dimension: p, the number of words.
      informative: number of weights that are not 0.
      active: number of words in a record.
      weight: absolute value of those weights.

    Returns:
      A ``Dataset`` with n training records and n held-out ones, unit ``"row"``.

    Raises:
      ValueError: for more informative or active words than ``dimension``.

    Privacy: the records are synthetic, drawn from a public seed.

    >>> data = sparse_high_dimensional(0, 20, 50)
    >>> data.x.shape, data.test_x.shape, data.max_norm
    ((20, 50), (20, 50), 1.0)
    """
    n = _validate.positive_int("data_size", data_size)
    p = _validate.positive_int("dimension", dimension)
    for name, count in (("informative", informative), ("active", active)):
        if _validate.positive_int(name, count) > p:
            raise ValueError(f"{name} must be at most dimension={p}, got {count}.")
    random = np.random.default_rng(seed)
    w = np.zeros(p)
    # The first words are the most frequent ones, so that many records tell of these weights.
    w[:informative] = _validate.positive("weight", weight) * random.choice([-1, 1], informative)
    # One stream for both, so that held-out records are independent of those for training.
    x, y = zip(*(_records(random, n, w, active) for _ in range(2)), strict=True)
    return Dataset(x[0], y[0], x[1], y[1], "sparse-high-dimensional", "row", 1.0)


def _records(
    random: np.random.Generator, n: int, w: np.ndarray, active: int
) -> tuple[np.ndarray, np.ndarray]:
    p = w.size
    # The first of p exponential clocks to ring: weighted sampling without replacement.
    clocks = random.exponential(size=(n, p)) * np.arange(2, p + 2)
    words = np.argpartition(clocks, active - 1, axis=1)[:, :active]
    x = np.zeros((n, p), np.float32)
    np.put_along_axis(x, words, random.choice([-1, 1], (n, active)) / np.sqrt(active), axis=1)
    positive = random.random(n) < 1 / (1 + np.exp(-(x @ w)))
    return x, np.where(positive, 1, -1).astype(np.float32)


class Planted(NamedTuple):
    """Synthetic records, and the parameters that fit them exactly."""

    data: Dataset
    params: np.ndarray


def planted_phases(
    seed: int, data_size: int = 2_000, dimension: int = 10, *, norm: float | None = None
) -> Planted:
    """Returns records (a, b) with b = <a, w*>^2, whose loss is 0 at +-w* only.

    Directions a are uniform on the unit sphere, and so is that of w*. An intensity b is on average
    |w*|^2 / p, and at most |w*|^2.

    Args:
      seed: of the records; the same seed gives the same records.
      data_size: n.
      dimension: p.
      norm: |w*|; by default the root of p, for a mean intensity of 1.

    Returns:
      ``Planted(data, params)``: a ``Dataset`` without held-out records whose labels are the
      intensities, and w* of shape (p,).

    Raises:
      ValueError: for sizes below 1 or a norm that is not above 0.

    Privacy: the records are synthetic, drawn from a public seed.

    >>> data, w = planted_phases(0, 50, 4)
    >>> data.x.shape, data.max_norm, bool(np.allclose((data.x @ w) ** 2, data.y, atol=1e-5))
    ((50, 4), 1.0, True)
    """
    n = _validate.positive_int("data_size", data_size)
    p = _validate.positive_int("dimension", dimension)
    norm = np.sqrt(p) if norm is None else _validate.positive("norm", norm)
    random = np.random.default_rng(seed)
    w = _on_sphere(random.normal(size=p)) * norm
    x = _on_sphere(random.normal(size=(n, p))).astype(np.float32)
    # Of the rounded directions, so that the loss at w* is 0 but for rounding.
    y = ((x @ w) ** 2).astype(np.float32)
    return Planted(Dataset(x, y, None, None, "planted-phases", "row", 1.0), w)


def _on_sphere(x: np.ndarray) -> np.ndarray:
    # A normal vector has no preferred direction, so that this is uniform on the sphere.
    return x / np.linalg.norm(x, axis=-1, keepdims=True)
