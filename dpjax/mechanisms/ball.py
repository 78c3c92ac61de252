"""Noise uniform in a ball, of one radius over all leaves of a pytree."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpjax._typing import Array, Float, Key, PyTree, Real
from dpjax._wide import Expansion, float64, to_expansion, to_float64
from dpjax.mechanisms.fixed_point import FRACTION, standard_normal
from dpjax.mechanisms.keys import check_threefry, derive

GRID_BITS = 12
"""Sum and noise are rounded together to 2^-12 of the power of two below a coordinate's stddev."""

# The exponent of a float64: these bits alone are the power of two at or below it.
_EXPONENT = 0x7FF0_0000_0000_0000


def add_ball(
    key: Key[Array, ""],
    tree: PyTree[Float[Array | Expansion, "?*shape"], "PyTree"],
    radius: Real[Array, ""] | float,
) -> PyTree[Float[Array, "?*shape"], "PyTree"]:
    """Returns ``tree`` plus noise uniform in the d-ball, d the number of entries of all leaves.

    Args:
      key: a key used for nothing else, shape ().
      tree: pytree whose leaves are floating arrays or ``Expansion`` sums.
      radius: R, public, shape (), in the units of the leaves.

    Returns:
      A pytree like ``tree``. A normal vector has the direction, 64 random bits U the length
      R U^(1/d), both in float64.

    Raises:
      ValueError: if a leaf is not floating, there is none, or the key is not threefry.

    Privacy: with l2 sensitivity D of the whole tree this is (0, delta)-private, delta =
      ``accounting.ball_delta(D, R, d)``, the same at every epsilon: with that probability the
      answer tells neighbours apart with certainty. Sum and noise are rounded to a grid that depends
      on R and d alone. Noise from the surface, the sphere, would tell them apart always.

    Reference: Tholeti et al. (2021), algorithm 1, step 4.

    >>> noisy = add_ball(jax.random.key(0), {"a": jnp.zeros(2), "b": jnp.zeros(1)}, 1.0)
    >>> length = jnp.sqrt(jnp.sum(noisy["a"] ** 2) + noisy["b"][0] ** 2)
    >>> bool(length <= 1)
    True
    """
    check_threefry(key)
    leaves, structure = jax.tree.flatten(tree, is_leaf=lambda leaf: isinstance(leaf, Expansion))
    leaves = [leaf if isinstance(leaf, Expansion) else jnp.asarray(leaf) for leaf in leaves]
    for leaf in leaves:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise ValueError(f"noise needs floating leaves, got {leaf.dtype}.")
    dimension = sum(math.prod(leaf.shape) for leaf in leaves)
    if dimension == 0:
        raise ValueError("noise in a ball needs at least one entry to be added to.")
    # Direction and length must be independent, so their keys differ.
    keys = [derive(key, "direction", i) for i in range(len(leaves))]
    share = radial_share(derive(key, "radius", 0), dimension)
    with jax.enable_x64(True):
        normal = [
            float64(standard_normal(own, leaf.shape)) * 2.0**-FRACTION
            for own, leaf in zip(keys, leaves, strict=True)
        ]
        factor = float64(radius) * share / _norm(normal)
        # Standard deviation of one coordinate of a uniform point in the ball; it sets the grid.
        stddev = float64(radius) / float64(np.sqrt(dimension + 2))
        noisy = [
            _add_on_grid(leaf, factor * z, stddev) for leaf, z in zip(leaves, normal, strict=True)
        ]
    return jax.tree.unflatten(structure, noisy)


def _add_on_grid(value: Array | Expansion, noise: Array, stddev: Array) -> Array:
    """Returns ``value`` plus float64 noise, rounded together to a grid below ``stddev``."""
    bits = lax.bitcast_convert_type(stddev, jnp.int64) & jnp.int64(_EXPONENT)
    grid = lax.bitcast_convert_type(bits, jnp.float64) * 2.0**-GRID_BITS
    # Value and noise are rounded together, so that no low bits of the value remain.
    total = to_float64(to_expansion(value)) + noise
    # A radius of 0 has no grid.
    total = jnp.where(grid > 0, jnp.round(total / jnp.where(grid > 0, grid, 1)) * grid, total)
    return lax.convert_element_type(total, value.dtype)


def radial_share(key: Array, dimension: int) -> Array:
    """Returns U^(1/d), the length of a point uniform in the unit d-ball; float64, shape ()."""
    bits = jax.random.bits(key, (2,), jnp.uint32)
    with jax.enable_x64(True):
        # The midpoint of the interval that 64 bits leave, which is never 0.
        uniform = float64(bits[0]) * 2.0**-32 + float64(bits[1]) * 2.0**-64 + 2.0**-65
        return jnp.exp(jnp.log(uniform) * (1 / dimension))


def _norm(leaves: list[Array]) -> Array:
    total = jnp.zeros((), leaves[0].dtype)
    for leaf in leaves:
        total = total + jnp.sum(leaf * leaf)
    return jnp.sqrt(total)
