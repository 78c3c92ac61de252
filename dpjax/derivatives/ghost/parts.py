"""``Part``: one parameter's share of the gradients, its norms and its weighted sum.

A record's gradient is A' G: at each position a row of A, the layer's input, times one of G, the
cotangent of its output. Shapes choose how its norm is found. Each part takes the norm of the arrays
that it adds: rounding before them is part of one record's contribution, and rounding after them has
a bound.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from dpjax._typing import Array
from dpjax.derivatives import clipping, rounding
from dpjax.derivatives.chunks import blocks
from dpjax.derivatives.ghost.layer_rules import ByEntry
from dpjax.derivatives.ghost.layers import Layer, Probes

Arrays = tuple[Array, ...]
"""What a part's norm and sum are made of, along an axis of records."""


@dataclasses.dataclass(frozen=True)
class Part:
    """The part of the gradient that belongs to one parameter."""

    leaf: int
    """Number of the parameter among the leaves."""
    leaf_shape: tuple[int, ...]
    layers: tuple[tuple[int, Layer], ...] = ()
    """Those that use it, with their numbers; none if every record has a copy."""
    permutation_invariant: bool = False
    saves = True
    """Whether the per-example gradients are not materialised."""

    @property
    def layer(self) -> Layer:
        """The only layer that uses the parameter."""
        return self.layers[0][1]

    @property
    def rule(self) -> Any:
        """Rule of that layer."""
        return self.layer.rule

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the weighted sum, before ``finish``."""
        return (self.rule.inputs, self.rule.outputs)

    def arrays(self, cotangents: Probes, residuals: list[Array], dtype: jnp.dtype) -> Arrays:
        """Returns the sanitized arrays behind norm and sum, along an axis of records."""
        raise NotImplementedError

    def squares(self, arrays: Arrays) -> Array:
        """Returns the squared norms of records, float64; infinite or NaN for one to drop."""
        raise NotImplementedError

    def weighted(self, arrays: Arrays, factors: Array, size: int) -> Array:
        """Returns the sums of gradients times factors, one for each block of ``size`` records."""
        raise NotImplementedError

    def finish(self, total: Array) -> Array:
        """Returns the sum in the parameter's shape."""
        return self.layer.back(self.rule.weight(total), self.leaf_shape)

    def matrices(
        self, use: tuple[int, Layer], cotangents: Probes, residuals: list[Array], dtype: jnp.dtype
    ) -> tuple[Array, Array]:
        """Returns A, or the rows looked up, and G of a layer, (records, positions, ...)."""
        number, layer = use
        left, right = jax.vmap(layer.matrices)(residuals[number], cotangents.offsets[number])
        if jnp.issubdtype(left.dtype, jnp.floating):
            left = clipping.sanitize_nonfinite(left.astype(dtype))
        return left, clipping.sanitize_nonfinite(right.astype(dtype))


class Materialized(Part):
    """The gradient of every record as an array, where it is smaller than A and G."""

    saves = False

    @property
    def shape(self) -> tuple[int, ...]:
        return (math.prod(self.leaf_shape),)

    def arrays(self, cotangents: Probes, residuals: list[Array], dtype: jnp.dtype) -> Arrays:
        if not self.layers:
            rows = cotangents.copies[self.leaf]
        else:
            # Added before the norm is taken: a shared parameter's gradient is their sum.
            uses = [self._of_layer(n, layer, cotangents, residuals) for n, layer in self.layers]
            rows = functools.reduce(jnp.add, uses)
        count = rows.shape[0]
        return (clipping.sanitize_nonfinite(rows.reshape(count, -1).astype(dtype)),)

    def _of_layer(
        self, number: int, layer: Layer, cotangents: Probes, residuals: list[Array]
    ) -> Array:
        def gradient(residual: Array, cotangent: Array) -> Array:
            if self._as_matrix:
                return layer.product(residual, cotangent)
            return layer.back(layer.gradient(residual, cotangent), self.leaf_shape)

        return jax.vmap(gradient)(residuals[number], cotangents.offsets[number])

    def squares(self, arrays: Arrays) -> Array:
        return clipping.square_norms(arrays[0])

    def weighted(self, arrays: Arrays, factors: Array, size: int) -> Array:
        factors, rows = blocks(factors, size=size), blocks(arrays[0], size=size)
        return rounding.block_products(factors, rows, self.permutation_invariant, axis=1)

    def finish(self, total: Array) -> Array:
        if not self._as_matrix:
            return total.reshape(self.leaf_shape)
        return super().finish(total.reshape(self.rule.outputs, self.rule.inputs).T)

    @property
    def _as_matrix(self) -> bool:
        # Brought into the parameter's shape after the sum, not for each record.
        one = len(self.layers) == 1
        return one and not self.layer.stack and not isinstance(self.rule, ByEntry)


class Rank1(Part):
    """A weight that is used at one position only: the squared norm is |A|^2 |G|^2."""

    def arrays(self, cotangents: Probes, residuals: list[Array], dtype: jnp.dtype) -> Arrays:
        """Returns inputs (records, inputs) and cotangents (records, outputs)."""
        left, right = self.matrices(self.layers[0], cotangents, residuals, dtype)
        # One position: A and G have one row each.
        return left[:, 0], right[:, 0]

    def squares(self, arrays: Arrays) -> Array:
        left, right = map(clipping.square_norms, arrays)
        # The product of the squares may be 0 times infinity.
        bad = clipping.bad(arrays[0]) | clipping.bad(arrays[1])
        with jax.enable_x64(True):
            return jnp.where(bad, jnp.inf, left * right)

    def weighted(self, arrays: Arrays, factors: Array, size: int) -> Array:
        left, right = arrays
        # The factor multiplies one side only, or it would count twice.
        scaled = factors[:, None] * right
        # Subnormal products are coarse enough to exceed C where hardware keeps them.
        scaled = jnp.where(jnp.abs(scaled) < jnp.finfo(scaled.dtype).tiny, 0, scaled)
        both = blocks(left, size=size), blocks(scaled, size=size)
        return rounding.block_products(*both, self.permutation_invariant, axis=1, left_axis=1)


@dataclasses.dataclass(frozen=True)
class Stacked(Part):
    """A weight for each step of a loop, each with norms and sums of its own, as one array."""

    one: Any = None
    """The ``Part`` of one of the weights."""

    @property
    def shape(self) -> tuple[int, ...]:
        return (math.prod(self.layer.stack), *self.one.shape)

    def arrays(self, cotangents: Probes, residuals: list[Array], dtype: jnp.dtype) -> Arrays:
        number = self.layers[0][0]

        def of_weight(cotangent: Array, residual: Array) -> Arrays:
            return self.one.arrays(Probes([cotangent], {}), [residual], dtype)

        both = (cotangents.offsets[number], residuals[number])
        both = [jax.vmap(self.layer.by_weight)(each) for each in both]
        return jax.vmap(of_weight, in_axes=1, out_axes=1)(*both)

    def squares(self, arrays: Arrays) -> Array:
        each = jax.vmap(self.one.squares, in_axes=1)(arrays)
        with jax.enable_x64(True):
            return jnp.sum(each, axis=0)

    def weighted(self, arrays: Arrays, factors: Array, size: int) -> Array:
        def of_weight(arrays: Arrays) -> Array:
            return self.one.weighted(arrays, factors, size)

        return jax.vmap(of_weight, in_axes=1, out_axes=1)(arrays)

    def finish(self, total: Array) -> Array:
        weights = jax.vmap(self.one.finish)(total)
        return self.layer.back(
            weights.reshape(*self.layer.stack, *weights.shape[1:]), self.leaf_shape
        )
