"""The arithmetic of clipping: norms that do not under- or overflow, and factors that never grow."""

import jax
import jax.numpy as jnp

from dpjax._typing import Array, PyTree

# Rounding after the product could push a record past C by one part in 10^7; stop short of it.
SHORT_OF_C = 1 - 2.0**-20


def clip_tree(tree: PyTree, clip_norm: Array | float) -> PyTree:
    """Returns ``tree`` scaled down to l2 norm at most ``clip_norm`` over all leaves together.

    Args:
      tree: pytree of floating arrays: one record's contribution.
      clip_norm: C, above 0, in the units of the leaves.

    Returns:
      A pytree of the same shapes in at least float32. A tree with any entry that is not finite
      becomes exactly zero, at the same cost; a zero tree stays zero.

    Privacy: the l2 norm of the result is at most C for every input.

    >>> clip_tree(jnp.array([3.0, 4.0]), 1.0).round(3)
    Array([0.6, 0.8], dtype=float32)
    >>> clip_tree(jnp.array([jnp.inf, 4.0]), 1.0)
    Array([0., 0.], dtype=float32)
    """
    (clipped,) = clip_parts(((tree, 1.0),), clip_norm)
    return clipped


def clip_parts(
    parts: tuple[tuple[PyTree, Array | float], ...], clip_norm: Array | float
) -> tuple[PyTree, ...]:
    """Returns several trees scaled by one factor, so that their weighted joint norm is at most C.

    Args:
      parts: pairs (tree, weight); the joint norm is that of all tree / weight together.
      clip_norm: C, above 0.

    Returns:
      The trees in at least float32, in their own units; all zero if any entry is not finite.

    Privacy: sum over parts of |tree / weight|^2 is at most C^2 for every input.

    >>> g, h = clip_parts(((jnp.array([3.0]), 1.0), (jnp.array([8.0]), 2.0)), 1.0)
    >>> g.round(3), h.round(3)
    (Array([0.6], dtype=float32), Array([1.6], dtype=float32))
    """
    wide = [(jax.tree.map(_widen, tree), weight) for tree, weight in parts]
    largest = jnp.stack(
        [jnp.max(jnp.abs(leaf)) / weight for tree, weight in wide for leaf in jax.tree.leaves(tree)]
    ).max()
    scale = jnp.where(largest > 0, largest, 1)
    # Entries are at most 1 after the scaling, so squares and their sum neither under- nor overflow.
    scaled = [(jax.tree.map(lambda leaf: leaf / scale, tree), weight) for tree, weight in wide]
    square = sum(
        jnp.sum((leaf / weight) ** 2) for tree, weight in scaled for leaf in jax.tree.leaves(tree)
    )
    bounded = jnp.minimum(
        scale, clip_norm * SHORT_OF_C / jnp.sqrt(jnp.where(square > 0, square, 1))
    )
    # NaN and infinity reach the largest entry, whichever they stand in.
    keep = jnp.isfinite(largest) & jnp.isfinite(square)
    return tuple(
        jax.tree.map(lambda leaf: jnp.where(keep, leaf * bounded, 0), tree) for tree, _ in scaled
    )


def scalar_factor(norm: Array, clip_norm: Array | float) -> Array:
    """Returns min(1, C / norm) for contributions whose norm is known in closed form.

    Args:
      norm: non-negative, any shape; NaN or infinity marks a contribution to drop.
      clip_norm: C, above 0.

    Returns:
      Factors in [0, 1] of the same shape, 0 where ``norm`` is not finite.

    >>> scalar_factor(jnp.array([0.5, 2.0, jnp.inf]), 1.0).round(3)
    Array([1. , 0.5, 0. ], dtype=float32)
    """
    bound = clip_norm * SHORT_OF_C
    factor = jnp.where(norm > bound, bound / norm, 1)
    return jnp.where(jnp.isfinite(norm), factor, 0)


def hypot(a: Array, b: Array) -> Array:
    """Returns sqrt(a^2 + b^2) without under- or overflow; NaN if either is.

    >>> hypot(jnp.float32(3e30), jnp.float32(4e30)) > 4.9e30
    Array(True, dtype=bool)
    """
    largest = jnp.maximum(jnp.abs(a), jnp.abs(b))
    safe = jnp.where(largest > 0, largest, 1)
    return largest * jnp.sqrt((a / safe) ** 2 + (b / safe) ** 2)


def _widen(leaf: Array) -> Array:
    return leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))
