"""A convolution's input patches, of which its kernel's gradient is made, and its transpose."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dpjax._typing import Array
from dpjax._wide import wide_dtype


def is_plain(parameters: dict[str, Any]) -> bool:
    """Returns whether a convolution has neither groups nor a dilated left input."""
    # ``transposed`` reverses the kernel alone: groups or a dilated input would need more.
    groups = parameters["feature_group_count"], parameters["batch_group_count"]
    return groups == (1, 1) and set(parameters["lhs_dilation"]) <= {1}


def transposed(parameters: dict[str, Any], kernel: Array, cotangent: Array, size: Any) -> Array:
    """Returns ``cotangent`` pulled back through a convolution, by one with the reversed kernel.

    JAX's own leaves it to the compiler to reverse the kernel, and once that is moved out of a loop
    XLA has no fast program for what is left: 50 times slower in the network of the papers.

    The convolution ``is_plain``, its kernel already ``turned``; ``size`` is the shape of its input.
    """
    numbers = parameters["dimension_numbers"]
    spatial = numbers.rhs_spec[2:]
    padding = []
    for axis, (low, _) in enumerate(parameters["padding"]):
        reach = (kernel.shape[spatial[axis]] - 1) * parameters["rhs_dilation"][axis]
        outputs = (cotangent.shape[numbers.out_spec[2 + axis]] - 1) * parameters["window_strides"][
            axis
        ]
        # Every input meets each output that read it, so that the padding is what the kernel reaches
        # beyond.
        before = reach - low
        padding.append((before, size[numbers.lhs_spec[2 + axis]] + reach - outputs - 1 - before))
    return lax.conv_general_dilated(
        cotangent,
        kernel,
        window_strides=(1,) * len(spatial),
        padding=padding,
        lhs_dilation=parameters["window_strides"],
        rhs_dilation=parameters["rhs_dilation"],
        dimension_numbers=lax.ConvDimensionNumbers(
            numbers.out_spec, numbers.rhs_spec, numbers.lhs_spec
        ),
        precision=parameters["precision"],
    )


def turned(parameters: dict[str, Any], kernel: Array) -> Array:
    """Returns a convolution's kernel as its transpose reads it."""
    outputs, inputs, *spatial = parameters["dimension_numbers"].rhs_spec
    return jnp.swapaxes(lax.rev(kernel, spatial), outputs, inputs)


Product = Callable[..., Array]


def sum_over_positions(left: Array, right: Array) -> Array:
    """Returns G' A, sums over positions: the gradient of one record as (outputs, inputs)."""
    wide = wide_dtype(left.dtype)
    left, right = left.astype(wide), right.astype(wide)
    # The longer rows last, and positions where a CPU's products read them at once.
    return lax.dot_general(right.T, left, (((1,), (0,)), ((), ())), precision=lax.Precision.HIGHEST)


class Convolution(NamedTuple):
    """``conv_general_dilated`` whose kernel is the weight, without groups."""

    parameters: tuple[tuple[str, Any], ...]
    input_shape: tuple[int, ...]
    weight_shape: tuple[int, ...]
    output_shape: tuple[int, ...]

    @property
    def positions(self) -> int:
        """Number of positions at which the kernel is applied."""
        return math.prod(self.output_shape) // self.outputs

    @property
    def inputs(self) -> int:
        """Size of the patch that the kernel is applied to."""
        return math.prod(self.weight_shape) // self.outputs

    @property
    def outputs(self) -> int:
        """Number of channels of the output."""
        return self.weight_shape[self._numbers.rhs_spec[0]]

    @property
    def _numbers(self) -> lax.ConvDimensionNumbers:
        return dict(self.parameters)["dimension_numbers"]

    def forward(self, apply: Product, primals: list[Array]) -> tuple[Array, Array]:
        """Returns the output, and the patches, which are the matrix A."""
        if jax.default_backend() == "cpu":
            return _through_patches(self, *primals)
        return apply(*primals), self.patches(primals[0])

    def left(self, residual: Array) -> Array:
        """Returns the matrix A."""
        return residual

    def right(self, cotangent: Array) -> Array:
        """Returns the matrix G."""
        # Positions in the order of ``patches``, channels last.
        spec = self._numbers.out_spec
        return cotangent.transpose(spec[0], *spec[2:], spec[1]).reshape(
            self.positions, self.outputs
        )

    def product(self, residual: Array, right: Array) -> Array:
        """Returns the gradient of one record, (outputs, inputs)."""
        return sum_over_positions(residual, right)

    def weight(self, gradient: Array) -> Array:
        """Returns the gradient in the shape of the kernel."""
        order = self._order
        shape = [self.weight_shape[i] for i in order]
        return gradient.reshape(shape).transpose(*(order.index(i) for i in range(len(order))))

    def matrix(self, kernel: Array) -> Array:
        """Returns the kernel as (inputs, outputs)."""
        return kernel.transpose(*self._order).reshape(self.inputs, self.outputs)

    @property
    def _order(self) -> tuple[int, ...]:
        # Offsets in the kernel before channels, as ``patches`` stacks its pieces.
        outputs, channels, *spatial = self._numbers.rhs_spec
        return (*spatial, channels, outputs)

    def patches(self, source: Array) -> Array:
        """Returns the patches that the kernel is applied to, (positions, inputs)."""
        parameters, numbers = dict(self.parameters), self._numbers
        batch, channels, *spatial = numbers.lhs_spec
        source = source.transpose(batch, *spatial, channels)
        # ``lax.pad`` also takes the negative padding that a convolution may have.
        edges = [(0, 0, 0), *((*edge, 0) for edge in parameters["padding"]), (0, 0, 0)]
        source = lax.pad(source, jnp.zeros((), source.dtype), edges)
        sizes = [self.output_shape[i] for i in numbers.out_spec[2:]]
        reach = [self.weight_shape[i] for i in numbers.rhs_spec[2:]]
        strides, holes = parameters["window_strides"], parameters["rhs_dilation"]
        # One axis after the other: far fewer and longer copies than one for each offset.
        for axis in reversed(range(len(sizes))):
            span = strides[axis] * (sizes[axis] - 1) + 1
            firsts = [holes[axis] * i for i in range(reach[axis])]
            pieces = [
                lax.slice_in_dim(source, first, first + span, strides[axis], axis + 1)
                for first in firsts
            ]
            source = jnp.concatenate(pieces, axis=-1)
        return source.reshape(self.positions, self.inputs)

    def output(self, matrix: Array) -> Array:
        """Returns (positions, outputs) in the shape of the layer's output."""
        batch, channels, *spatial = self._numbers.out_spec
        order = (batch, *spatial, channels)
        shaped = matrix.reshape([self.output_shape[i] for i in order])
        return shaped.transpose(*(order.index(i) for i in range(len(order))))


# On a CPU the patches cost as much as the convolution: they are computed once, for both.
def _patched(rule: Convolution, source: Array, kernel: Array) -> tuple[Array, Array]:
    patches = rule.patches(source)
    # As the convolution asks for, so that the loss does not change.
    how = {name: dict(rule.parameters)[name] for name in ("precision", "preferred_element_type")}
    matrix = lax.dot_general(patches, rule.matrix(kernel), (((1,), (0,)), ((), ())), **how)
    return rule.output(matrix), patches


def _patched_forward(rule: Convolution, source: Array, kernel: Array) -> tuple[Any, Array]:
    return _patched(rule, source, kernel), kernel


def _patched_backward(rule: Convolution, kernel: Array, cotangents: tuple[Array, Array]) -> tuple:
    parameters = dict(rule.parameters)
    back = turned(parameters, kernel)
    pulled = transposed(parameters, back, cotangents[0], rule.input_shape)
    # Nobody asks for the kernel's: its gradient is made of the patches.
    return pulled, jnp.zeros_like(kernel)


_through_patches = jax.custom_vjp(_patched, nondiff_argnums=(0,))
_through_patches.defvjp(_patched_forward, _patched_backward)
