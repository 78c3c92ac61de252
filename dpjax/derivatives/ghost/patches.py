"""The input patches from which a convolution's kernel gradient is computed."""

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dpjax._typing import Array
from dpjax._wide import wide_dtype
from dpjax.derivatives.ghost import convolution

Product = Callable[..., Array]


def sum_over_positions(left: Array, right: Array, axis: int) -> Array:
    """Returns the sum of products over positions: ``axis`` of ``left``, the first of ``right``.

    >>> sum_over_positions(jnp.ones((3, 2)), jnp.ones((3, 4)), 0).shape
    (2, 4)
    """
    wide = wide_dtype(left.dtype)
    left, right = left.astype(wide), right.astype(wide)
    return lax.dot_general(
        left, right, (((axis,), (0,)), ((), ())), precision=lax.Precision.HIGHEST
    )


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
        """Returns the output, and the patches: A' (inputs, positions)."""
        if jax.default_backend() == "cpu":
            return _through_patches(self, *primals)
        return apply(*primals), self.patches(primals[0])

    def left(self, residual: Array) -> Array:
        """Returns the matrix A."""
        return residual.T

    def right(self, cotangent: Array) -> Array:
        """Returns the matrix G."""
        # Positions in the order of ``patches``, channels last.
        spec = self._numbers.out_spec
        return cotangent.transpose(spec[0], *spec[2:], spec[1]).reshape(
            self.positions, self.outputs
        )

    def product(self, residual: Array, right: Array) -> Array:
        """Returns the gradient of one record, (inputs, outputs)."""
        return sum_over_positions(residual, right, 1)

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
        """Returns the patches that the kernel is applied to, (inputs, positions)."""
        parameters, numbers = dict(self.parameters), self._numbers
        batch, channels, *spatial = numbers.lhs_spec
        source = source.transpose(channels, batch, *spatial)
        # ``lax.pad`` also takes the negative padding that a convolution may have.
        edges = [(0, 0, 0), (0, 0, 0), *((*edge, 0) for edge in parameters["padding"])]
        source = lax.pad(source, jnp.zeros((), source.dtype), edges)
        sizes = [self.output_shape[i] for i in numbers.out_spec[2:]]
        reach = [self.weight_shape[i] for i in numbers.rhs_spec[2:]]
        strides, holes = parameters["window_strides"], parameters["rhs_dilation"]
        pieces = []
        for offset in itertools.product(*map(range, reach)):
            first = [i * hole for i, hole in zip(offset, holes, strict=True)]
            # One past the last position: a full stride more could leave the padded input.
            last = [f + s * (n - 1) + 1 for f, s, n in zip(first, strides, sizes, strict=True)]
            leading = source.shape[:2]
            piece = lax.slice(source, (0, 0, *first), (*leading, *last), (1, 1, *strides))
            pieces.append(piece.reshape(source.shape[0], self.positions))
        return jnp.concatenate(pieces)

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
    matrix = lax.dot_general(patches, rule.matrix(kernel), (((0,), (0,)), ((), ())), **how)
    return rule.output(matrix), patches


def _patched_forward(rule: Convolution, source: Array, kernel: Array) -> tuple[Any, Array]:
    return _patched(rule, source, kernel), kernel


def _patched_backward(rule: Convolution, kernel: Array, cotangents: tuple[Array, Array]) -> tuple:
    parameters = dict(rule.parameters)
    turned = convolution.turned(parameters, kernel)
    pulled = convolution.transposed(parameters, turned, cotangents[0], rule.input_shape)
    # Nobody asks for the kernel's: its gradient is made of the patches.
    return pulled, jnp.zeros_like(kernel)


_through_patches = jax.custom_vjp(_patched, nondiff_argnums=(0,))
_through_patches.defvjp(_patched_forward, _patched_backward)
