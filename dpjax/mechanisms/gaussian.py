"""Gaussian noise for arrays and pytrees; ``perturb`` is the one place where noise is drawn."""

import jax
import jax.numpy as jnp

from dpjax._typing import Array, PyTree


def perturb(key: Array, value: Array, stddev: Array | float) -> Array:
    """Returns ``value`` plus independent N(0, stddev^2) noise; all Gaussian noise passes here.

    Args:
      key: a key used for nothing else, shape ().
      value: floating array of any shape.
      stddev: broadcastable to ``value``.

    Returns:
      An array of the shape and dtype of ``value``; noise and sum are formed in at least float32.

    >>> perturb(jax.random.key(0), jnp.zeros(3), 0.0)
    Array([0., 0., 0.], dtype=float32)
    """
    wide = jnp.promote_types(value.dtype, jnp.float32)
    noise = jax.random.normal(key, value.shape, wide)
    return (value.astype(wide) + jnp.asarray(stddev, wide) * noise).astype(value.dtype)


def add_gaussian(key: Array, tree: PyTree, stddev: Array | float) -> PyTree:
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
        perturb(jax.random.fold_in(key, i), jnp.asarray(leaf), stddev)
        for i, leaf in enumerate(leaves)
    ]
    return jax.tree.unflatten(structure, noisy)
