"""Synthetic intensities of a planted vector: phase retrieval whose minima are known."""

from typing import NamedTuple

import numpy as np

from dpjax import _validate
from dpjax.datasets.base import Dataset


class Planted(NamedTuple):
    """Made records, and the vector that explains them exactly."""

    data: Dataset
    params: np.ndarray


def planted_phases(
    seed: int, data_size: int = 2_000, dimension: int = 10, *, norm: float | None = None
) -> Planted:
    """Returns records (a, b) with b = <a, w*>^2, whose loss is 0 at +-w* and nowhere else.

    Directions a are uniform on the unit sphere, and so is that of w*. An intensity b is on average
    |w*|^2 / p, and at most |w*|^2.

    Args:
      seed: of the records; the same seed makes the same ones.
      data_size: n.
      dimension: p.
      norm: |w*|; by default the root of p, for a mean intensity of 1.

    Returns:
      ``Planted(data, params)``: a ``Dataset`` without held-out records whose labels are the
      intensities, and w* of shape (p,).

    Raises:
      ValueError: for sizes below 1 or a norm that is not above 0.

    Privacy: none is needed; the records are drawn from a published seed.

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
    y = ((x @ w) ** 2).astype(np.float32)
    return Planted(Dataset(x, y, None, None, "planted-phases", "row", 1.0), w)


def _on_sphere(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)
