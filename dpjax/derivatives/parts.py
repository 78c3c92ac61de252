"""One parameter's share of all gradients: what is kept of a record, its norm, the weighted sum.

For a gradient A' G of a record there are three ways, of which shapes choose the cheapest:

- used once (``Outer``): |A|^2 |G|^2 is its square, and the weighted sum one matrix product;
- as an array (``Rows``): for kernels, whose gradient is smaller than their patches;
- by pairs of times (``pairs.Pairs``): <A A', G G'> is its square. The terms cancel and are many,
  so that all is in float64.

The gradient of a table is a sum over equal indices (``pairs.Table``). Each way measures the arrays
that it adds: rounding before them is one record's own, and rounding after them has a bound.
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
from dpjax.derivatives.layer_rules import ByEntry
from dpjax.derivatives.layers import Layer, Taps


@dataclasses.dataclass(frozen=True)
class Part:
    """One parameter.

    Attributes:
      leaf: its number among the leaves.
      leaf_shape: its shape.
      layers: where it is used, with their numbers; none if every record has a copy.
    """

    leaf: int
    leaf_shape: tuple[int, ...]
    layers: tuple[tuple[int, Layer], ...] = ()

    saves = True
    """Whether no array like the parameter is made for every record."""

    @property
    def rule(self) -> Any:
        """What the gradient is made of, of a part that is used once."""
        return self.layers[0][1].rule

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the weighted sum, before ``finish``."""
        return (self.rule.inputs, self.rule.outputs)

    @property
    def numbers(self) -> int:
        """Values kept for one record beside those of the loss."""
        return 0

    def found(self, taps: Taps, kept: list[Array], dtype: jnp.dtype) -> tuple[Array, ...]:
        """Returns the marked arrays that are measured and added, with a leading axis of records."""
        raise NotImplementedError

    def squares(self, found: tuple[Array, ...]) -> Array:
        """Returns the squared norm of each record's gradient, float64; infinite or NaN if bad."""
        raise NotImplementedError

    def weighted(
        self, found: tuple[Array, ...], factors: Array, size: int, any_order: bool
    ) -> Array:
        """Returns the sums of gradients times factors, one for each block of ``size`` records."""
        raise NotImplementedError

    def finish(self, total: Array) -> Array:
        """Returns the sum in the parameter's shape."""
        return self.layers[0][1].back(self.rule.weight(total), self.leaf_shape)

    def _input_slope(self, taps: Taps, kept: list[Array], dtype: jnp.dtype) -> tuple[Array, Array]:
        number = self.layers[0][0]
        slope = jax.vmap(self.rule.right)(taps.offsets[number])
        return kept[number], clipping.mark(slope.astype(dtype))


class Rows(Part):
    """The gradient of every record as an array."""

    saves = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the weighted sum: flat."""
        return (math.prod(self.leaf_shape),)

    @property
    def numbers(self) -> int:
        """The gradient."""
        return 2 * math.prod(self.leaf_shape)

    def found(self, taps: Taps, kept: list[Array], dtype: jnp.dtype) -> tuple[Array, ...]:
        """Returns the gradients (records, numbers)."""
        if not self.layers:
            rows = taps.copies[self.leaf]
        else:
            each = [self._of_layer(n, layer, taps, kept) for n, layer in self.layers]
            rows = functools.reduce(jnp.add, each)
        count = rows.shape[0]
        return (clipping.mark(rows.reshape(count, -1).astype(dtype)),)

    def _of_layer(self, number: int, layer: Layer, taps: Taps, kept: list[Array]) -> Array:
        def gradient(kept: Array, slope: Array) -> Array:
            if isinstance(layer.rule, ByEntry):
                return layer.back(layer.rule.gradient(kept, slope), self.leaf_shape)
            whole = layer.rule.product(kept, layer.rule.right(slope))
            if self._as_matrix:
                return whole
            return layer.back(layer.rule.weight(whole), self.leaf_shape)

        return jax.vmap(gradient)(kept[number], taps.offsets[number])

    def squares(self, found: tuple[Array, ...]) -> Array:
        """Returns the squared norms of the rows."""
        return clipping.square_norms(found[0])

    def weighted(
        self, found: tuple[Array, ...], factors: Array, size: int, any_order: bool
    ) -> Array:
        """Returns the weighted sums of the rows."""
        return rounding.block_products(
            blocks(factors, size=size), blocks(found[0], size=size), any_order, axis=1
        )

    def finish(self, total: Array) -> Array:
        """Returns the sum in the parameter's shape."""
        if not self._as_matrix:
            return total.reshape(self.leaf_shape)
        return super().finish(total.reshape(self.rule.inputs, self.rule.outputs))

    @property
    def _as_matrix(self) -> bool:
        # Turned into the parameter's shape after the sum, and not once a record.
        return len(self.layers) == 1 and not isinstance(self.layers[0][1].rule, ByEntry)


class Outer(Part):
    """A weight that is used at one time alone, so that its gradient is of rank one."""

    def found(self, taps: Taps, kept: list[Array], dtype: jnp.dtype) -> tuple[Array, ...]:
        """Returns inputs (records, inputs) and slopes (records, outputs)."""
        inputs, slope = self._input_slope(taps, kept, dtype)
        left = jax.vmap(self.rule.left)(inputs)
        return clipping.mark(left[:, 0].astype(dtype)), slope[:, 0]

    def squares(self, found: tuple[Array, ...]) -> Array:
        """Returns the products of both squared norms."""
        left, right = map(clipping.square_norms, found)
        bad = clipping.bad(found[0]) | clipping.bad(found[1])
        with jax.enable_x64(True):
            return jnp.where(bad, jnp.inf, left * right)

    def weighted(
        self, found: tuple[Array, ...], factors: Array, size: int, any_order: bool
    ) -> Array:
        """Returns the weighted sums of the products."""
        left, right = found
        scaled = factors[:, None] * right
        # Subnormal products are coarse enough to exceed C where hardware keeps them.
        scaled = jnp.where(jnp.abs(scaled) < jnp.finfo(scaled.dtype).tiny, 0, scaled)
        return rounding.block_outer_products(
            blocks(left, size=size), blocks(scaled, size=size), any_order
        )
