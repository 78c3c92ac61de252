"""One parameter's share of all gradients: what is kept of a record, its norm, the weighted sum.

For a gradient A' G of a record there are three ways, of which shapes choose the cheapest:

- used once (``Outer``): |A|^2 |G|^2 is its square, and the weighted sum one matrix product;
- as an array (``Rows``): for kernels, whose gradient is smaller than their patches;
- by pairs of times (``Pairs``): <A A', G G'> is its square. The terms cancel and are many, so that
  all is in float64.

The gradient of a table is a sum over equal indices (``Table``). Each way measures the arrays that
it adds: rounding before them is one record's own, and rounding after them has a bound.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from dpjax._typing import Array
from dpjax._wide import float64
from dpjax.derivatives import clipping, rounding
from dpjax.derivatives.chunks import blocks
from dpjax.derivatives.layer_rules import ByEntry, Lookup
from dpjax.derivatives.layers import Layer, Taps

# A number that is stored for a record costs as much as so many that are multiplied and added.
_STORED = 16
# Gradients of more numbers than this are not stored for a record where there is another way.
_LARGEST = 2**22
_UNIT = 2.0**-53


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
        with jax.enable_x64(True):
            return left * right

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


class Pairs(Part):
    """A weight that is used at a few times, whose gradient would be large."""

    @property
    def numbers(self) -> int:
        """Products of pairs of times, and inputs and slopes in float64."""
        rule = self.rule
        return 4 * rule.times**2 + 2 * rule.times * (rule.inputs + rule.outputs)

    def found(self, taps: Taps, kept: list[Array], dtype: jnp.dtype) -> tuple[Array, ...]:
        """Returns inputs (records, times, inputs) and slopes (records, times, outputs)."""
        inputs, slope = self._input_slope(taps, kept, dtype)
        left = jax.vmap(self.rule.left)(inputs)
        return clipping.mark(left.astype(dtype)), slope

    def squares(self, found: tuple[Array, ...]) -> Array:
        """Returns the sums over pairs of times."""
        left, right = found
        terms = left.shape[1] ** 2 + left.shape[2] + right.shape[2] + 8
        bad = clipping.bad(left) | clipping.bad(right)
        with jax.enable_x64(True):
            one, other = float64(left), float64(right)
            square = jnp.sum(_gram(one) * _gram(other), axis=(1, 2))
            lengths = jnp.sqrt(jnp.sum(one * one, axis=2) * jnp.sum(other * other, axis=2))
            return _guarded(square, jnp.sum(lengths, axis=1), terms, bad)

    def weighted(
        self, found: tuple[Array, ...], factors: Array, size: int, any_order: bool
    ) -> Array:
        """Returns the weighted sum over records and times, in float64."""
        del size, any_order
        left, right = found
        with jax.enable_x64(True):
            scaled = float64(right) * float64(factors)[:, None, None]
            return lax.dot_general(float64(left), scaled, (((0, 1), (0, 1)), ((), ())))[None]


class Table(Part):
    """A table of rows that records look up."""

    @property
    def numbers(self) -> int:
        """Products of pairs of times, and slopes in float64."""
        rule = self.rule
        return 4 * rule.times**2 + 2 * rule.times * rule.outputs

    def found(self, taps: Taps, kept: list[Array], dtype: jnp.dtype) -> tuple[Array, ...]:
        """Returns indices (records, times) and slopes (records, times, outputs)."""
        return self._input_slope(taps, kept, dtype)

    def squares(self, found: tuple[Array, ...]) -> Array:
        """Returns the sums over pairs of times at which the same row is looked up."""
        index, right = found
        same = (index[:, :, None] == index[:, None, :]) & (index < self.shape[0])[:, :, None]
        bad = clipping.bad(right)
        terms = right.shape[1] ** 2 + right.shape[2] + 8
        with jax.enable_x64(True):
            wide = float64(right)
            square = jnp.sum(jnp.where(same, _gram(wide), 0), axis=(1, 2))
            largest = jnp.sum(jnp.sqrt(jnp.sum(wide * wide, axis=2)), axis=1)
            return _guarded(square, largest, terms, bad)

    def weighted(
        self, found: tuple[Array, ...], factors: Array, size: int, any_order: bool
    ) -> Array:
        """Returns the weighted sum, in float64."""
        del size, any_order
        index, right = found
        with jax.enable_x64(True):
            scaled = float64(right) * float64(factors)[:, None, None]
            flat = scaled.reshape(-1, scaled.shape[-1])
            empty = lax.full(self.shape, 0.0, jnp.float64)
            return empty.at[index.ravel()].add(flat, mode="drop")[None]


def part_of(leaf: int, shape: tuple[int, ...], used: list[tuple[int, Layer]] | None) -> Part:
    """Returns the cheapest way to one parameter.

    Args:
      leaf: its number.
      shape: its shape.
      used: the layers that use it, with their numbers; None if every record has a copy.
    """
    if not used:
        return Rows(leaf, shape)
    if len(used) > 1 or isinstance(used[0][1].rule, ByEntry):
        return Rows(leaf, shape, tuple(used))
    rule: Any = used[0][1].rule
    one = (leaf, shape, tuple(used))
    if isinstance(rule, Lookup):
        return Table(*one)
    if rule.times == 1:
        return Outer(*one)
    whole = rule.inputs * rule.outputs
    # In float64 a product costs two.
    pairs = 2 * (rule.times**2 * (rule.inputs + rule.outputs) + rule.times * whole)
    rows = (rule.times + _STORED) * whole
    return Pairs(*one) if pairs < rows or whole > _LARGEST else Rows(*one)


def _guarded(square: Array, largest: Array, terms: int, bad: Array) -> Array:
    """Returns a bound on squared norms that were added up from terms which may cancel.

    ``largest`` is the norm if none did: rounding takes ``terms`` units of its square away at most.
    It is no more than 2^12 times what is returned, so that rounding in the weighted sum stays
    below 1e-7 of the clip norm.
    """
    rounded = jnp.abs(square) + terms * _UNIT * largest**2
    return jnp.where(bad, jnp.inf, jnp.maximum(rounded, (largest / 2**12) ** 2))


def _gram(matrix: Array) -> Array:
    """Returns the products (records, times, times) of rows of ``matrix``."""
    return lax.dot_general(matrix, matrix, (((2,), (2,)), ((0,), (0,))))
