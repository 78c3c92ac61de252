"""Gaussian noise for arrays and pytrees; ``add_on_grid`` is the only function that adds noise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from dpjax._typing import Array
from dpjax._wide import Expansion, float64, to_float64, widen
from dpjax.mechanisms.base import check_threefry, fold
from dpjax.mechanisms.normal import standard_normal

if TYPE_CHECKING:
    from jaxtyping import Float, Key, PyTree, Real

GRID_BITS = 12
"""Sum and noise are rounded together to multiples of 2^-12 times the power of two below stddev."""

_EXPONENT = 0x7FF0_0000_0000_0000


def perturb(
    key: Key[Array, ""],
    value: Float[Array | Expansion, "*shape"],
    stddev: Real[Array, "*#shape"] | float,
    *,
    unsafe_fast_noise: bool = False,
) -> Float[Array, "*shape"]:
    """Returns ``value`` plus independent N(0, stddev^2) noise; all Gaussian noise passes here.

    Args:
      key: a key used for nothing else, shape ().
      value: floating array of any shape, or an ``Expansion`` sum.
      stddev: public, broadcastable to ``value``.
      unsafe_fast_noise: True draws and adds in float32, NOT SAFE for a release: such noise has
        2^23 values and none beyond 5.42 stddev, and its low bits give the sum away.

    Returns:
      An array of the shape and dtype of ``value``.

    Raises:
      ValueError: for a key that is not threefry.

    Privacy: draws have the Gaussian's tails to 9.15 stddev. Noise is added in float64 and the sum
    rounded to a grid that depends on ``stddev`` alone, before it is cast: what comes out holds no
    low bits of the value.

    Reference: Mironov, "On significance of the least significant bits for differential privacy"
    (2012), for the attack and the rounding.

    >>> perturb(jax.random.key(0), jnp.zeros(3), 0.0)
    Array([0., 0., 0.], dtype=float32)
    """
    check_threefry(key)
    if unsafe_fast_noise:
        narrow = value.leading if isinstance(value, Expansion) else widen(value).leading
        noise = jax.random.normal(key, narrow.shape, narrow.dtype)
        return (narrow + jnp.asarray(stddev, noise.dtype) * noise).astype(_dtype(value))
    with jax.enable_x64(True):
        return _perturbed(key, value, float64(stddev))


@jax.jit
def _perturbed(key: Array, value: Array | Expansion, stddev: Array) -> Array:
    """Returns ``value`` plus noise, by ``jit``: called alone it is one program, not thirty."""
    shape = value.leading.shape if isinstance(value, Expansion) else value.shape
    return add_on_grid(value, stddev * standard_normal(key, shape), stddev)


def add_on_grid(value: Array | Expansion, noise: Array, stddev: Array) -> Array:
    """Returns ``value`` plus ``noise``, added in float64 and rounded together, then cast.

    Args:
      value: floating array of any shape, or an ``Expansion`` sum.
      noise: float64 of that shape.
      stddev: float64, that of the noise, which the grid depends on alone.

    Returns:
      An array of the shape and dtype of ``value``.

    >>> with jax.enable_x64(True):
    ...     noise, stddev = jnp.full(1, 0.1), jnp.array(1.0)
    >>> print(4096 * add_on_grid(jnp.zeros(1), noise, stddev))
    [410.]
    """
    wide = value if isinstance(value, Expansion) else widen(value)
    with jax.enable_x64(True):
        return lax.convert_element_type(_round(to_float64(wide) + noise, stddev), _dtype(value))


def _dtype(value: Array | Expansion) -> jnp.dtype:
    return value.leading.dtype if isinstance(value, Expansion) else value.dtype


def _round(value: Array, stddev: Array) -> Array:
    """Rounds float64 to multiples of 2^-GRID_BITS times the power of two at or below ``stddev``."""
    bits = lax.bitcast_convert_type(stddev, jnp.int64) & jnp.int64(_EXPONENT)
    grid = lax.bitcast_convert_type(bits, jnp.float64) * 2.0**-GRID_BITS
    return jnp.where(grid > 0, jnp.round(value / jnp.where(grid > 0, grid, 1)) * grid, value)


def add_gaussian(
    key: Key[Array, ""],
    tree: PyTree[Float[ArrayLike, "?*shape"], "PyTree"],
    stddev: Real[Array, ""] | float,
    *,
    unsafe_fast_noise: bool = False,
) -> PyTree[Float[Array, "?*shape"], "PyTree"]:
    """Returns ``tree`` with independent N(0, stddev^2) noise on every entry of every leaf.

    Args:
      key: a key used for nothing else, shape ().
      tree: pytree of floating arrays.
      stddev: scalar standard deviation, in the units of the leaves.
      unsafe_fast_noise: see ``perturb``.

    Returns:
      A pytree like ``tree``. Leaf i is drawn with ``fold_in(key, i)``, so leaves of equal shape get
      independent noise.

    Raises:
      ValueError: if a leaf is not floating.

    Privacy: with l2 sensitivity D of the whole tree this is the Gaussian mechanism of noise
    multiplier stddev / D. The caller answers for D.

    Reference: Dwork and Roth (2014), appendix A; here as one mechanism over the flattened tree.

    >>> noisy = add_gaussian(jax.random.key(0), {"a": jnp.zeros(2), "b": jnp.zeros(2)}, 1.0)
    >>> bool((noisy["a"] == noisy["b"]).any())
    False
    """
    leaves, structure = jax.tree.flatten(tree)
    for leaf in leaves:
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            raise ValueError(f"noise needs floating leaves, got {jnp.result_type(leaf)}.")
    noisy = [
        perturb(
            fold(key, jnp.uint32([i])),
            jnp.asarray(leaf),
            stddev,
            unsafe_fast_noise=unsafe_fast_noise,
        )
        for i, leaf in enumerate(leaves)
    ]
    return jax.tree.unflatten(structure, noisy)
