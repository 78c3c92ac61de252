"""``Dataset``, the raw ``Table`` behind it, and the scaling that looks at one record at a time."""

import dataclasses
import math

import jax
import numpy as np

from dpjax._typing import Array, PyTree

ROWS_AT_ONCE = (
    8192  # bounds every temporary: the float64 copy of one block of 54 features is 3.5 MB
)

Ranges = tuple[np.ndarray, np.ndarray]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """Features and labels for training, and what a guarantee about them has to mention.

    A JAX pytree: the four arrays are leaves, the rest is static. Nothing is checked here, because
    JAX rebuilds it with tracers; ``load`` checks what it reads. The arrays do not appear in its
    ``repr``, nor does their length, which is private under ``"add_or_remove_one"``.

    Args:
      x: (n, p) float32 features, one record a row, or images (n, ...). A row with a NaN is a null
        record: training drops it.
      y: (n,) float32 labels, -1 or +1, or classes from 0 up of images. NaN is an impossible label
        and makes a null record too.
      test_x: (m, p) float32 held-out features, or None.
      test_y: (m,) float32 held-out labels, or None.
      name: what to call the data in results.
      unit: what one row is, hence what the guarantee protects: ``"row"``, ``"person-year"``, ...
      max_norm: 1.0 where every row was divided by its own norm (up to float32 rounding), else None.
        Not checked, and no guarantee rests on it; the scope of a certificate does.

    Privacy: raw data; only an oracle may release anything computed from it.

    >>> data = Dataset(np.ones((3, 2), np.float32), np.ones(3, np.float32), name="ones")
    >>> data
    Dataset(name='ones', unit='row', max_norm=None)
    >>> data.size, data.dimension
    (3, 2)
    """

    x: Array | np.ndarray = dataclasses.field(repr=False)
    y: Array | np.ndarray = dataclasses.field(repr=False)
    test_x: Array | np.ndarray | None = dataclasses.field(default=None, repr=False)
    test_y: Array | np.ndarray | None = dataclasses.field(default=None, repr=False)
    name: str = dataclasses.field(default="data", metadata={"static": True})
    unit: str = dataclasses.field(default="row", metadata={"static": True})
    max_norm: float | None = dataclasses.field(default=None, metadata={"static": True})

    @property
    def size(self) -> int:
        """Number of training records, null records included."""
        return self.x.shape[0]

    @property
    def dimension(self) -> int:
        """Number of features, the intercept included where there is one; of pixels, of an image."""
        return math.prod(self.x.shape[1:])

    @property
    def examples(self) -> tuple[Array | np.ndarray, Array | np.ndarray]:
        """The training records as a tree with a shared leading axis: ``(x, y)``."""
        return self.x, self.y


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """A data set as its file has it: values before any scaling, labels already -1, +1 or NaN.

    Args:
      name: what to call it.
      columns: the p feature names.
      x: (n, p) numbers of any real dtype.
      y: (n,) float32 labels.
      ranges: lowest and highest value of each feature, declared and not measured, each (p,)
        float64; None where the features are used as they are.
      test_x: (m, p) numbers, or None.
      test_y: (m,) float32 labels, or None.
      unit: what one row is.

    Privacy: raw data.
    """

    name: str
    columns: tuple[str, ...]
    x: np.ndarray
    y: np.ndarray
    ranges: Ranges | None
    test_x: np.ndarray | None = None
    test_y: np.ndarray | None = None
    unit: str = "row"


def encode_labels(raw: np.ndarray) -> np.ndarray:
    """Two-valued labels as -1 and +1, and anything else as NaN.

    Args:
      raw: (n,) numbers or booleans; 1 means +1, and 0 or -1 mean -1.

    Returns:
      (n,) float32 in {-1, +1, NaN}.

    Privacy: each label depends on its own record alone, so a strange one is no error, which
    would depend on the data; it makes a null record that training drops.

    >>> encode_labels(np.array([0, 1, -1, 7]))
    array([-1.,  1., -1., nan], dtype=float32)
    """
    labels = np.full(raw.shape, np.nan, np.float32)
    labels[raw == 1] = 1.0
    labels[(raw == 0) | (raw == -1)] = -1.0
    return labels


def normalise(x: np.ndarray, ranges: Ranges | None, intercept: bool = False) -> np.ndarray:
    """Clamps and scales each feature to its declared range, then divides each row by its norm.

    Works in place, on blocks of rows, where ``x`` is float32 and gets no intercept.

    Args:
      x: (n, p) numbers of any real dtype; overwritten in the case above.
      ranges: lowest and highest value of each feature, mapped to 0 and 1; None leaves them.
      intercept: append a feature that is 1 before the division.

    Returns:
      (n, p) or (n, p + 1) float32, rows of norm 1 up to rounding. A zero row stays zero. A row
      with a NaN or an infinity becomes NaN throughout: a null record, dropped by training.

    Privacy: each row depends on its own record alone (the ranges are declared, not measured), so
    the same adjacency holds before and after.

    >>> low, high = np.zeros(2), np.array([30.0, 100.0])
    >>> normalise(np.array([[0, 50], [90, 100], [0, 0]]), (low, high)).round(4)
    array([[0.    , 1.    ],
           [0.7071, 0.7071],
           [0.    , 0.    ]], dtype=float32)
    """
    rows, features = x.shape
    in_place = x.dtype == np.float32 and x.flags.writeable and not intercept
    out = x if in_place else np.empty((rows, features + intercept), np.float32)
    with np.errstate(all="ignore"):
        for start in range(0, rows, ROWS_AT_ONCE):
            block = finite_or_nan(x[start : start + ROWS_AT_ONCE])
            if ranges is not None:
                low, high = ranges
                np.clip(block, low, high, out=block)
                block -= low
                block /= high - low
            norm = np.sqrt(np.einsum("ij,ij->i", block, block) + intercept)[:, None]
            norm[norm == 0] = 1.0
            out[start : start + ROWS_AT_ONCE, :features] = block / norm
            if intercept:
                out[start : start + ROWS_AT_ONCE, features:] = 1.0 / norm
    return out


def finite_or_nan(block: np.ndarray) -> np.ndarray:
    """A float64 copy in which infinities are NaN too, so that clamping cannot make them finite.

    >>> finite_or_nan(np.array([1, np.inf]))
    array([ 1., nan])
    """
    with np.errstate(all="ignore"):
        block = block.astype(np.float64)
    block[~np.isfinite(block)] = np.nan
    return block


def check_arrays(name: str, tree: PyTree) -> None:
    """Raises if a leaf of ``tree`` is no array, without printing what it holds.

    >>> check_arrays("data", (np.zeros(2), np.zeros(2)))
    """
    for leaf in jax.tree.leaves(tree):
        if not isinstance(leaf, np.ndarray | np.generic | jax.Array | int | float | complex):
            raise ValueError(
                f"{name} holds a {type(leaf).__name__} where an array belongs. Of a pandas table "
                "pass the numbers, such as table.to_numpy(dtype='float32')."
            )
