"""Gaussian noise for arrays and symmetric matrices, all of it added by ``perturb``."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._typing import Array, Float, Key, Real
from dpjax._wide import Expansion
from dpjax.mechanisms import lattice
from dpjax.mechanisms.fixed_point import FRACTION, standard_normal
from dpjax.mechanisms.keys import check_threefry


def perturb(
    key: Key[Array, ""],
    value: Float[Array | Expansion, "*shape"],
    stddev: Real[Array, "*#shape"] | float,
) -> Float[Array, "*shape"]:
    """Returns ``value`` plus independent N(0, stddev^2) noise; all Gaussian noise passes here.

    Args:
      key: a key used for nothing else, shape ().
      value: floating array of any shape, or an ``Expansion`` sum.
      stddev: public, broadcastable to ``value``.

    Returns:
      An array of the shape and dtype of ``value``.

    Raises:
      ValueError: for a key that is not threefry, or a ``stddev`` that is larger than ``value``.

    Privacy: draws have the Gaussian's tails to 10 stddev. Value and noise are integers on one
    lattice, added without rounding and then rounded to a grid that depends on ``stddev`` alone,
    before the sum is cast: what comes out holds no low bits of the value.

    Reference: Mironov, "On significance of the least significant bits for differential privacy"
    (2012), for the attack and the rounding.

    >>> perturb(jax.random.key(0), jnp.zeros(3), 0.0)
    Array([0., 0., 0.], dtype=float32)
    """
    check_threefry(key)
    with jax.enable_x64(True):
        # A tiny Python number must not become 0 in float32, which would add no noise.
        scale = stddev if isinstance(stddev, jax.Array) else lattice.in_float32(stddev)
        if jnp.broadcast_shapes(scale.shape, value.shape) != value.shape:
            # One draw at several scales tells the value: it is solved for.
            raise ValueError(
                f"stddev must fit shape {value.shape}, got {scale.shape}: broadcast the value."
            )
        return _perturbed(key, value, scale)


@jax.jit
def _perturbed(key: Array, value: Array | Expansion, stddev: Array) -> Array:
    """Returns ``value`` plus noise, by ``jit``: called alone it is one program, not thirty."""
    scale = lattice.scale_of(stddev)
    # The draws are int64, which JAX truncates to 32 bits outside this context.
    with jax.enable_x64(True):
        noise = lattice.in_units(standard_normal(key, value.shape), scale, FRACTION)
        return lattice.release(value, noise, scale)


def add_symmetric_gaussian(
    key: Key[Array, ""],
    matrix: Float[Array | Expansion, "p p"],
    stddev: Real[Array, ""] | float,
    isometric: bool = True,
) -> Float[Array, "p p"]:
    """Returns ``matrix`` plus symmetric Gaussian noise.

    Args:
      key: a key used for nothing else, shape ().
      matrix: symmetric, floating or ``Expansion``, (p, p); only its upper triangle is read.
      stddev: scalar; standard deviation of a diagonal entry.
      isometric: True for the Gaussian orthogonal form, variance stddev^2 on the diagonal and
        stddev^2 / 2 off it; False for the trust-region paper's, stddev^2 in the whole triangle.

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
    rows, columns = _triangle(shape[0])
    largest = lattice.in_float32(stddev)
    # ``lattice.scale_of`` makes up for the rounding of sqrt(1/2) and of this product.
    aside = largest * jnp.float32(np.sqrt(0.5) if isometric else 1.0)
    scale = jnp.where(rows == columns, largest, aside)
    # The factor must not turn a tiny scale into 0, which would add no noise.
    scale = jnp.where(largest > 0, jnp.maximum(scale, lattice.TINY), largest)
    # Drawn for one triangle and copied, so that the answer is exactly symmetric.
    triangle = jax.tree.map(lambda leaf: leaf[rows, columns], matrix)
    upper = perturb(key, triangle, scale)
    whole = jnp.zeros(shape, upper.dtype)
    return whole.at[rows, columns].set(upper).at[columns, rows].set(upper)


def _triangle(size: int) -> tuple[Any, Any]:
    """Returns rows and columns of the upper triangle's entries, row by row."""
    # Of a large matrix the program computes them: as constants they would be many megabytes of it.
    numbers = np if size <= 1024 else jnp
    starts = np.cumsum([0, *range(size, 1, -1)], dtype=np.int32)
    entries = numbers.arange(size * (size + 1) // 2)
    rows = numbers.searchsorted(starts, entries, side="right") - 1
    return rows, entries - numbers.asarray(starts)[rows] + rows
