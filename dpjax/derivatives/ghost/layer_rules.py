"""Gradients of layers from activations and cotangents: product, convolution, look-up, shift, scale.

Each of the first three gives the layer's input as a matrix A (positions, inputs) and the cotangent
of its output as G (positions, outputs), so that the gradient of one record is A' G, (inputs,
outputs); the *positions* are those of an image or a sequence at which the same weight is used. The
gradient of a weight that is added is the cotangent; of one that multiplies entry by entry, the
cotangent times the input.
"""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from dpjax._typing import Array
from dpjax.derivatives.ghost.patches import Convolution, Product, is_plain, sum_over_positions


class Dense(NamedTuple):
    """``dot_general`` without batch dimensions, one argument of which is the weight."""

    contracted: tuple[tuple[int, ...], tuple[int, ...]]
    """Dimensions of the input and of the weight that are summed over, in step."""
    weight_first: bool
    input_shape: tuple[int, ...]
    weight_shape: tuple[int, ...]

    @property
    def positions(self) -> int:
        """Number of positions at which one record uses the weight."""
        return math.prod(self.input_shape) // self.inputs

    @property
    def inputs(self) -> int:
        """Number of inputs that are summed over."""
        return math.prod(self.input_shape[i] for i in self.contracted[0])

    @property
    def outputs(self) -> int:
        """Number of outputs at one position."""
        return math.prod(self.weight_shape) // self.inputs

    def forward(self, apply: Product, primals: list[Array]) -> tuple[Array, Array]:
        """Returns the output, and the matrix A."""
        source = primals[1] if self.weight_first else primals[0]
        # The free dimensions of the input are the positions: all of them use the same weight.
        free = _others(source.ndim, self.contracted[0])
        left = source.transpose(*free, *self.contracted[0]).reshape(self.positions, self.inputs)
        return apply(*primals), left

    def left(self, residual: Array) -> Array:
        """Returns the matrix A."""
        return residual

    def right(self, cotangent: Array) -> Array:
        """Returns the matrix G."""
        # The output of ``dot_general`` has the free dimensions of its first argument first.
        if self.weight_first:
            return cotangent.reshape(self.outputs, self.positions).T
        return cotangent.reshape(self.positions, self.outputs)

    def product(self, residual: Array, right: Array) -> Array:
        """Returns the gradient of one record, (outputs, inputs)."""
        return sum_over_positions(residual, right)

    def weight(self, gradient: Array) -> Array:
        """Returns the gradient in the shape of the weight."""
        contracted = self.contracted[1]
        # Contracted dimensions come first in the gradient; the inverse order restores the weight's.
        order = (*contracted, *_others(len(self.weight_shape), contracted))
        shape = [self.weight_shape[i] for i in order]
        return gradient.reshape(shape).transpose(*(order.index(i) for i in range(len(order))))


class Lookup(NamedTuple):
    """``gather`` of whole rows of a table, which is the weight."""

    clamps: bool
    """Whether an index out of range stands for the nearest row; otherwise it stands for none."""
    input_shape: tuple[int, ...]
    weight_shape: tuple[int, ...]

    @property
    def positions(self) -> int:
        """Number of rows that one record looks up."""
        return math.prod(self.input_shape[:-1])

    @property
    def inputs(self) -> int:
        """Number of rows of the table."""
        return self.weight_shape[0]

    @property
    def outputs(self) -> int:
        """Length of a row."""
        return math.prod(self.weight_shape[1:])

    def forward(self, apply: Product, primals: list[Array]) -> tuple[Array, Array]:
        """Returns the output, and the row at each position; ``inputs`` stands for none."""
        index = primals[1].reshape(self.positions)
        # The number after the last row stands for none: adding drops what is out of range.
        known = (index >= 0) & (index < self.inputs)
        other = jnp.clip(index, 0, self.inputs - 1) if self.clamps else self.inputs
        return apply(*primals), jnp.where(known, index, other).astype(jnp.int32)

    def left(self, residual: Array) -> Array:
        """Returns the row at each position."""
        return residual

    def right(self, cotangent: Array) -> Array:
        """Returns the matrix G."""
        return cotangent.reshape(self.positions, self.outputs)

    def product(self, residual: Array, right: Array) -> Array:
        """Returns the gradient of one record, (outputs, inputs)."""
        empty = jnp.zeros((self.inputs, self.outputs), right.dtype)
        return empty.at[residual].add(right, mode="drop").T

    def weight(self, gradient: Array) -> Array:
        """Returns the gradient in the shape of the table."""
        return gradient.reshape(self.weight_shape)


class ByEntry(NamedTuple):
    """``add``, ``sub`` or ``mul`` of a value and a weight, entry by entry."""

    name: str
    weight_first: bool
    weight_shape: tuple[int, ...]
    """Of as many dimensions as the output, those of size 1 repeated; or () for a scalar."""

    def forward(self, apply: Product, primals: list[Array]) -> tuple[Array, Array]:
        """Returns the output, and for ``mul`` the factor of the cotangent."""
        residual = primals[1 if self.weight_first else 0] if self.name == "mul" else jnp.zeros(())
        return apply(*primals), residual

    def gradient(self, residual: Array, cotangent: Array) -> Array:
        """Returns the gradient of one record, in the shape of the weight."""
        full = -cotangent if self.name == "sub" and not self.weight_first else cotangent
        full = residual * cotangent if self.name == "mul" else full
        # Where the weight was broadcast the gradients of its copies add up.
        repeated = [i for i, size in enumerate(self.weight_shape) if size == 1]
        return jnp.sum(full, axis=repeated if self.weight_shape else None, keepdims=True).reshape(
            self.weight_shape
        )


Matrix = Dense | Convolution | Lookup
Rule = Matrix | ByEntry


def rule_of(equation: Any, shapes: list[Any], index: int) -> Rule | None:
    """Returns the rule of an equation whose argument number ``index`` is the weight, or None."""
    name, parameters = equation.primitive.name, equation.params
    weight, source = shapes[index].shape, shapes[1 - index].shape
    if name == "dot_general":
        contracted, batch = parameters["dimension_numbers"]
        # Along a batch dimension the weight differs between positions: A' G is not its gradient.
        if batch != ((), ()) or math.prod(source) == 0:
            return None
        pair = tuple(map(tuple, contracted))
        return Dense((pair[1 - index], pair[index]), index == 0, source, weight)
    # Only a kernel, on the right: the patches are those of the left input.
    if name == "conv_general_dilated" and index == 1 and is_plain(parameters):
        output = equation.outvars[0].aval.shape
        return Convolution(tuple(parameters.items()), source, weight, output)
    if name in ("add", "sub", "mul"):
        return ByEntry(name, index == 0, weight)
    if name == "gather" and index == 0:
        return _lookup(parameters, source, weight)
    return None


def _lookup(parameters: dict[str, Any], source: tuple, weight: tuple) -> Lookup | None:
    numbers, mode = parameters["dimension_numbers"], parameters["mode"]
    last = len(source) - 1
    # Only whole rows, each by one index: the table of any other gather is copied.
    rows = (
        numbers.collapsed_slice_dims == (0,)
        and numbers.start_index_map == (0,)
        and not numbers.operand_batching_dims
        and numbers.offset_dims == tuple(range(last, last + len(weight) - 1))
        and tuple(parameters["slice_sizes"]) == (1, *weight[1:])
    )
    if not rows or mode == lax.GatherScatterMode.ONE_HOT:
        return None
    return Lookup(mode == lax.GatherScatterMode.CLIP, source, weight)


def _others(count: int, chosen: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(i for i in range(count) if i not in chosen)
