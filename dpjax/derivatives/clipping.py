"""The numerics of clipping to l2 norm C: no overflow, no underflow, no overshoot, no NaN."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import core

from dpjax import _validate
from dpjax._typing import Array, PyTree

SLACK = 1.0 - 2.0**-20
"""Vectors are clipped to C times this, so that rounding cannot carry a norm above C."""

_SLICES = 8


def wide_dtype(*trees: PyTree) -> jnp.dtype:
    """Returns the dtype to measure and add in: that of the leaves, but at least float32.

    >>> wide_dtype(jnp.zeros(2, jnp.bfloat16))
    dtype('float32')
    """
    return jnp.result_type(jnp.float32, *jax.tree.leaves(trees))


def positive_number(name: str, value: Array | float) -> Array | float:
    """Returns ``value``, or raises if it is known and not finite and above 0; tracers pass.

    Raises:
      ValueError: naming the argument.

    >>> positive_number("clip_norm", 2)
    2.0
    """
    if isinstance(value, core.Tracer):
        return value
    if isinstance(value, jax.Array):
        for number in value.ravel().tolist():
            _validate.positive(name, number)
        return value
    return _validate.positive(name, value)


def mark(values: Array) -> Array:
    """Returns ``values`` with every non-finite one replaced by the largest finite number.

    ``clip_factors`` gives a row that holds this number the factor 0: so a NaN is known by the array
    that is added itself, and 0 times it is 0.

    >>> bool(jnp.isfinite(mark(jnp.array([jnp.nan, jnp.inf, 1.0]))).all())
    True
    """
    largest = jnp.finfo(values.dtype).max
    return jnp.where(jnp.abs(values) < largest, values, largest)


def tree_reduce(operation: Callable[[Array, Array], Array], rows: Array) -> Array:
    """Reduces axis 1 of ``rows`` (n, k) by a balanced tree.

    A sum of k squares then errs by log2(k) roundings instead of k, and the slices vectorise where
    a plain reduction would wait for each addition.

    >>> tree_reduce(jnp.add, jnp.ones((2, 11))).tolist()
    [11.0, 11.0]
    """
    while (k := rows.shape[1]) > 1:
        slices = min(_SLICES, 1 << (k.bit_length() - 1))
        width = k // slices
        parts = [rows[:, i * width : (i + 1) * width] for i in range(slices)]
        while len(parts) > 1:
            parts = [operation(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
        rest = rows[:, slices * width :]
        rows = parts[0] if rest.shape[1] == 0 else jnp.concatenate([parts[0], rest], axis=1)
    return rows[:, 0]


def scaled_norms(rows: Array) -> tuple[Array, Array, Array]:
    """The l2 norm of each row as ``norm / scale``, which is exact where the norm itself overflows.

    Args:
      rows: (n, k) of ``mark``ed values.

    Returns:
      ``(norm, scale, finite)``, each (n,); ``scale`` is the power of two that brings the row's
      largest entry near 1.

    >>> norm, scale, finite = scaled_norms(jnp.array([[3e30, 4e30], [3e-30, 4e-30]]))
    >>> [f"{value:.1e}" for value in (norm / scale).tolist()]
    ['5.0e+30', '5.0e-30']
    """
    limits = jnp.finfo(rows.dtype)
    if rows.shape[1] == 0:
        zero = jnp.zeros(rows.shape[0], rows.dtype)
        return zero, zero + 1, zero == 0
    largest = tree_reduce(jnp.maximum, jnp.abs(rows))
    _, exponent = jnp.frexp(largest)
    bound = -int(limits.minexp)
    exponent = jnp.where(largest > 0, jnp.clip(-exponent, -bound, bound), bound)
    scale = jnp.ldexp(jnp.ones_like(largest), exponent)
    unit = rows * scale[:, None]
    return jnp.sqrt(tree_reduce(jnp.add, unit * unit)), scale, largest < limits.max


def clip_factors(
    clip_norm: Array | float, *parts: tuple[Array, Array | float], keep: Array | None = None
) -> Array:
    """The factors in [0, 1] that bring each row's weighted norm to at most ``clip_norm``.

    Args:
      clip_norm: C, above 0.
      *parts: pairs ``(rows, weight)``; the vector of row i is the concatenation of
        ``rows[i] / weight``, with rows (n, k) of ``mark``ed values.
      keep: bool (n,); False gives the factor 0.

    Returns:
      (n,); exactly 0 for a row with a non-finite entry, exactly 1 for a row within C.

    Privacy: row i reads row i alone; no control flow depends on values.

    >>> print(clip_factors(1.0, (jnp.array([[3.0, 4.0], [0.0, 0.5]]), 1.0)).round(3))
    [0.2 1. ]
    """
    measured = [(*scaled_norms(rows), weight) for rows, weight in parts]
    common = measured[0][1]
    for _, scale, _, _ in measured[1:]:
        common = jnp.minimum(common, scale)
    total = jnp.zeros_like(common)
    fine = jnp.ones(common.shape, bool) if keep is None else keep
    for norm, scale, finite, weight in measured:
        total = jnp.hypot(total, norm * (common / scale) / weight)
        fine &= finite
    room = jnp.asarray(clip_norm, total.dtype) * SLACK / total * common
    return jnp.where(fine & jnp.isfinite(total), jnp.minimum(1, room), 0).astype(total.dtype)


def clip_tree(tree: PyTree, clip_norm: Array | float) -> PyTree:
    """Returns one vector, given as a pytree, scaled down to l2 norm at most ``clip_norm``.

    Args:
      tree: pytree of floating arrays of any shapes.
      clip_norm: C, above 0.

    Returns:
      A pytree like ``tree``, of dtype at least float32. A vector with a NaN or an infinity becomes
      exactly zero, and so does the part below the smallest normal number.

    Raises:
      ValueError: if ``clip_norm`` is known and not above 0.

    Privacy: NOT a mechanism; it bounds what one record adds to a sum.

    >>> clipped = clip_tree({"a": jnp.array([3e30]), "b": jnp.array(4e30)}, 1.0)
    >>> round(float(clipped["a"][0]), 3), round(float(clipped["b"]), 3)
    (0.6, 0.8)
    """
    clip_norm = positive_number("clip_norm", clip_norm)
    dtype = wide_dtype(tree)
    leaves, treedef = jax.tree.flatten(tree)
    wide = [mark(jnp.asarray(leaf).astype(dtype)) for leaf in leaves]
    factor = clip_factors(clip_norm, *((leaf.reshape(1, -1), 1.0) for leaf in wide))[0]
    return jax.tree.unflatten(treedef, [leaf * factor for leaf in wide])


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
    bound = clip_norm * SLACK
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


def symmetrize(matrix: Array) -> Array:
    """Returns the mean of ``matrix`` and its transpose, exactly symmetric.

    >>> symmetrize(jnp.array([[1.0, 2.0], [4.0, 3.0]])).tolist()
    [[1.0, 3.0], [3.0, 3.0]]
    """
    mean = (matrix + matrix.T) / 2
    # Fused with a product, the sum of two terms is rounded otherwise with the two exchanged: hence
    # both sides look up the same entry.
    i = jnp.arange(matrix.shape[0])
    return mean[jnp.maximum(i[:, None], i[None]), jnp.minimum(i[:, None], i[None])]
