"""Wide dtypes: at least float32, float64 with or without x64, and sums that keep all digits."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from dpjax._typing import Array, PyTree, pytree_dataclass

_TERMS = 3  # three float32 of 24 bits hold the 53 bits of a float64
_LARGE = 2**13  # numbers of a part; smaller ones a CPU adds as it multiplies, at no cost


@pytree_dataclass
class Expansion:
    """A float64 array as an unevaluated sum of float32 terms, which programs without x64 can hold.

    Args:
      terms: arrays of one shape, largest first; one float64 array, or three float32 ones.
    """

    terms: tuple[Array, ...]

    @property
    def leading(self) -> Array:
        """The largest term, which is the sum rounded to its dtype."""
        return self.terms[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the array, as every word has it."""
        return self.terms[0].shape

    @property
    def dtype(self) -> jnp.dtype:
        """Of the words: float64, or float32 where three of them hold it."""
        return self.terms[0].dtype


def on_device(tree: PyTree) -> Any:
    """Returns ``tree`` with every leaf as a JAX array, in silence.

    A float64 number that is beyond float32 becomes infinite, and its record contributes nothing.
    NumPy would warn of it, and a warning, or the refusal that a filter makes of it, tells that such
    a record is there.
    """
    with np.errstate(all="ignore"):
        return jax.tree.map(_on_device, tree)


def _on_device(leaf: Any) -> Array:
    if not isinstance(leaf, np.ndarray):
        return jnp.asarray(leaf)
    # Not by jnp.asarray, which looks for NaN under jax_debug_nans, and so tells of a record.
    return jax.device_put(leaf.astype(jax.dtypes.canonicalize_dtype(leaf.dtype), copy=False))


def wide_dtype(*trees: PyTree) -> jnp.dtype:
    """Returns the dtype to measure and add in: that of the leaves, but at least float32."""
    return jnp.result_type(jnp.float32, *jax.tree.leaves(trees))


def at_least_float32(tree: PyTree) -> Any:
    """Returns ``tree`` with every leaf in its dtype, but at least float32."""
    return jax.tree.map(lambda leaf: leaf.astype(wide_dtype(leaf.dtype)), tree)


def float64(value: Array | float) -> Array:
    """Returns ``value`` as float64, also where x64 is off; only ``lax`` may touch it there.

    A program that holds it is refused when it is compiled for a TPU, whose compiler would imitate
    float64 by two float32 numbers: what dpjax proves of sums and noise would be false in silence.
    """
    with jax.enable_x64(True):
        return _needs_float64.bind(lax.convert_element_type(value, jnp.float64))


def _refused(*_: Any) -> Any:
    raise ValueError(
        "this training needs float64, which a TPU does not have: ball noise, private Newton, "
        "minimizers, Spider's scores (candidates=0 takes the last iterate), private "
        "selection (selection_epsilon=0 takes released gradients), accumulate, networks by "
        "book-keeping or layer, all under add_or_remove_one, and units of several records unless "
        "the TPU is JAX's default device. Run it on a CPU or GPU, or declare relation='zero_out' "
        "and what is not in this list (docs/accelerators.md)."
    )


# An operation of its own, which the lowering for a TPU refuses; elsewhere it is nothing.
_needs_float64 = Primitive("needs_float64")
_needs_float64.def_impl(lambda value: value)
_needs_float64.def_abstract_eval(lambda value: value)
batching.defvectorized(_needs_float64)
mlir.register_lowering(_needs_float64, lambda _, value: [value])
mlir.register_lowering(_needs_float64, _refused, platform="tpu")


def zeros(shape: tuple[int, ...], dtype: jnp.dtype) -> Expansion:
    """Returns 0 in terms of ``dtype``, float32 or float64.

    >>> zeros((2,), jnp.dtype("float32")).leading
    Array([0., 0.], dtype=float32)
    """
    count = 1 if dtype == jnp.float64 else _TERMS
    return Expansion((jnp.zeros(shape, dtype),) * count)


def to_float64(value: Expansion) -> Array:
    """Returns the float64 array that ``value`` stands for; call it under ``enable_x64``."""
    with jax.enable_x64(True):
        total = float64(value.terms[-1])
        # From the smallest on, so that none of its bits is lost.
        for term in value.terms[-2::-1]:
            total = total + float64(term)
        return total


def from_float64(value: Array, dtype: jnp.dtype) -> Expansion:
    """Returns a float64 array in terms of ``dtype``, exact down to float32's smallest number."""
    with jax.enable_x64(True):
        if dtype == jnp.float64:
            return Expansion((value,))
        terms = []
        for _ in range(_TERMS):
            # A float64 number less its own rounding is exact, so that the terms lose nothing.
            terms.append(lax.convert_element_type(value, jnp.float32))
            value = value - float64(terms[-1])
        return Expansion(tuple(terms))


def accumulate(total: Expansion, parts: Array) -> Expansion:
    """Returns ``total`` plus the sum of ``parts`` over their leading axis, added in float64.

    >>> total = accumulate(zeros((), jnp.dtype("float32")), jnp.array([2.0**30, 1.0, -(2.0**30)]))
    >>> float(total.leading)
    1.0
    """
    with jax.enable_x64(True):
        return from_float64(to_float64(total) + sum_in_float64(parts), total.leading.dtype)


def sum_in_float64(parts: Array) -> Array:
    """Returns the sum of ``parts`` over their leading axis; call it under ``enable_x64``."""
    with jax.enable_x64(True):
        count, *shape = parts.shape
        if math.prod(shape) < _LARGE:
            return jnp.sum(float64(parts), axis=0)
        # One after the other: on CPU a reduction over a leading axis strides through memory, at
        # twice the cost of a network's gradients.
        added = float64(lax.index_in_dim(parts, 0, keepdims=False))
        for index in range(1, count):
            added = added + float64(lax.index_in_dim(parts, index, keepdims=False))
        return added


def to_expansion(value: Array | Expansion) -> Expansion:
    """Returns an array of any floating dtype as ``Expansion``, and an ``Expansion`` itself."""
    return value if isinstance(value, Expansion) else Expansion((at_least_float32(value),))
