"""Gaussian noise for symmetric matrices, isometric in the Frobenius norm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._typing import Array
from dpjax._wide import Expansion
from dpjax.mechanisms import gaussian, lattice

if TYPE_CHECKING:
    from jaxtyping import Float, Key, Real


def add_symmetric_gaussian(
    key: Key[Array, ""],
    matrix: Float[Array | Expansion, "p p"],
    stddev: Real[Array, ""] | float,
    isometric: bool = True,
) -> Float[Array, "p p"]:
    """Returns ``matrix`` plus symmetric Gaussian noise.

    Args:
      key: a key used for nothing else, shape ().
      matrix: symmetric floating array or ``Expansion`` sum, shape (p, p); only its upper triangle
        is read.
      stddev: scalar; standard deviation of a diagonal entry.
      isometric: True for the Gaussian orthogonal form, variance stddev^2 on the diagonal and
        stddev^2 / 2 off it; False for the trust-region paper's, stddev^2 in the whole upper
        triangle.

    Returns:
      An exactly symmetric (p, p) array of the same dtype.

    Raises:
      ValueError: if ``matrix`` is not square.

    Privacy: (H_ii, sqrt(2) H_ij) is an isometry of the symmetric matrices with the Frobenius norm,
    in which the isometric form is spherical: with Frobenius sensitivity D it is the Gaussian
    mechanism of multiplier stddev / D. The paper's form is one as well, because the norm of the
    upper triangle is at most the Frobenius norm, with up to sqrt(2) times the spectral noise.

    Reference: Wang and Xu (2020), algorithm 1, step 4, for ``isometric=False``.

    >>> noisy = add_symmetric_gaussian(jax.random.key(0), jnp.zeros((3, 3)), 1.0)
    >>> bool((noisy == noisy.T).all())
    True
    """
    shape = matrix.shape
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ValueError(f"matrix must be square, got shape {shape}.")
    rows, columns = np.triu_indices(shape[0])
    relative = np.where(rows == columns, 1.0, np.sqrt(0.5) if isometric else 1.0)
    largest = lattice.in_float32(stddev)
    # ``lattice.scale_of`` makes up for the rounding of sqrt(1/2) and of this product.
    scale = largest * jnp.asarray(relative, jnp.float32)
    # The factor must not turn a tiny scale into 0, which would add no noise.
    scale = jnp.where(largest > 0, jnp.maximum(scale, lattice.TINY), largest)
    # Drawn for one triangle and copied, so that the answer is exactly symmetric.
    triangle = jax.tree.map(lambda leaf: leaf[rows, columns], matrix)
    upper = gaussian.perturb(key, triangle, scale)
    whole = jnp.zeros(shape, upper.dtype)
    return whole.at[rows, columns].set(upper).at[columns, rows].set(upper)
