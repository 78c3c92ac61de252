"""Gaussian noise for arrays and pytrees; ``perturb`` is the only function that adds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dpjax._typing import Array
from dpjax._wide import Expansion
from dpjax.mechanisms import lattice
from dpjax.mechanisms.fixed_point import FRACTION, standard_normal
from dpjax.mechanisms.keys import check_threefry, fold

if TYPE_CHECKING:
    from jaxtyping import Float, Key, PyTree, Real


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
                f"stddev must fit a value of shape {value.shape}, got {scale.shape}: broadcast the "
                "value first."
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


def add_gaussian(
    key: Key[Array, ""],
    tree: PyTree[Float[ArrayLike, "?*shape"], "PyTree"],
    stddev: Real[Array, ""] | float,
) -> PyTree[Float[Array, "?*shape"], "PyTree"]:
    """Returns ``tree`` with independent N(0, stddev^2) noise on every entry of every leaf.

    Args:
      key: a key used for nothing else, shape ().
      tree: pytree of floating arrays.
      stddev: scalar standard deviation, in the units of the leaves.

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
        perturb(fold(key, jnp.uint32([i])), jnp.asarray(leaf), stddev)
        for i, leaf in enumerate(leaves)
    ]
    return jax.tree.unflatten(structure, noisy)
