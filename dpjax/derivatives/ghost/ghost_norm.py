"""Ghost norms in float64, over pairs of positions: large weights used at few positions, tables."""

import math

import jax
import jax.numpy as jnp
from jax import lax

from dpjax._typing import Array
from dpjax._wide import float64
from dpjax.derivatives import clipping
from dpjax.derivatives.chunks import blocks
from dpjax.derivatives.ghost.layer_rules import Dense, Lookup
from dpjax.derivatives.ghost.layers import Layer, Probes
from dpjax.derivatives.ghost.parts import Arrays, Part

_UNIT = 2.0**-53


class GhostNorm(Part):
    """A weight used at a few positions: the squared norm is <A A', G G'>, over pairs of positions.

    The positions may be those of several uses, one after the other. Where the weight is a table in
    which rows are looked up, A has a single 1 at such a position and is not written down: only the
    row's number is, and the cotangents of one row are added up before squares are taken. In a table
    that is also multiplied by (a tied one) both kinds of positions meet in the cross terms.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        rule = self.rule
        if len(self.layers) == 1:
            return (rule.inputs, rule.outputs)
        return (self.leaf_shape[0], math.prod(self.leaf_shape[1:]))

    def arrays(self, cotangents: Probes, residuals: list[Array], dtype: jnp.dtype) -> Arrays:
        """Returns A and G of products, then rows (records, positions) and their G of look-ups."""
        (rows, columns), count = self.shape, cotangents.offsets[self.layers[0][0]].shape[0]
        # Without positions, so that a weight that is used in one way has both kinds.
        empty = jnp.zeros((count, 0, columns), dtype)
        products = [(jnp.zeros((count, 0, rows), dtype), empty)]
        looked_up = [(jnp.zeros((count, 0), jnp.int32), empty)]
        for use in self.layers:
            left, right = self.matrices(use, cotangents, residuals, dtype)
            if isinstance(use[1].rule, Lookup):
                # A cotangent of no row has no part in the gradient, whether it is finite or not.
                looked_up.append((left, jnp.where((left < rows)[:, :, None], right, 0)))
                continue
            turned = len(self.layers) > 1 and is_turned(use[1], self.leaf_shape)
            products.append((right, left) if turned else (left, right))
        kinds = (zip(*kind, strict=True) for kind in (products, looked_up))
        return tuple(jnp.concatenate(each, axis=1) for kind in kinds for each in kind)

    def squares(self, arrays: Arrays) -> Array:
        """Returns the sums over pairs of positions."""
        left, right, index, cotangent = arrays
        (rows, columns), count = self.shape, sum(positions(self.layers))
        # Additions behind one square: over pairs of positions, in both inner products, and over the
        # cotangents of a row and its entries.
        terms = count**2 + rows + (count + 1) * columns + 8
        bad = clipping.bad(left) | clipping.bad(right) | clipping.bad(cotangent)
        first = jax.vmap(_first)(index)
        with jax.enable_x64(True):
            left, right, cotangent = map(float64, (left, right, cotangent))
            by_row = jax.vmap(lambda i, g: jnp.zeros_like(g).at[i].add(g))(first, cotangent)
            square = jnp.sum(_gram(left, left) * _gram(right, right), axis=(1, 2))
            square += jnp.sum(by_row**2, axis=(1, 2)) + 2 * _crossed(left, right, index, cotangent)
            # The norm if no terms cancelled, by the triangle inequality.
            both = jnp.sum(left * left, axis=2) * jnp.sum(right * right, axis=2)
            lengths = jnp.concatenate([both, jnp.sum(cotangent * cotangent, axis=2)], axis=1)
            return _guarded(square, jnp.sum(jnp.sqrt(lengths), axis=1), terms, bad)

    def weighted(self, arrays: Arrays, factors: Array, size: int) -> Array:
        left, right, index, cotangent = (blocks(part, size=size) for part in arrays)

        def added(total: Array, index: Array, rows: Array) -> Array:
            # An index past the table is a look-up of no row.
            return total.at[index.ravel()].add(rows.reshape(-1, rows.shape[-1]), mode="drop")

        with jax.enable_x64(True):
            factors = float64(blocks(factors, size=size))[..., None, None]
            # In float64, as the norm is: terms may cancel here as they do there.
            scaled = float64(right) * factors
            total = lax.dot_general(float64(left), scaled, (((1, 2), (1, 2)), ((0,), (0,))))
            return jax.vmap(added)(total, index, float64(cotangent) * factors)

    def finish(self, total: Array) -> Array:
        return super().finish(total) if len(self.layers) == 1 else total.reshape(self.leaf_shape)


def positions(layers: tuple[tuple[int, Layer], ...]) -> tuple[int, int]:
    """Returns the numbers of positions that look rows up, and of those of products."""
    looked_up = sum(x.positions for _, x in layers if isinstance(x.rule, Lookup))
    return looked_up, sum(x.positions for _, x in layers) - looked_up


def is_turned(layer: Layer, shape: tuple[int, ...]) -> bool | None:
    """Returns whether a use of a matrix has its rows as outputs; None if it is no such use."""
    if layer.stack or len(shape) != 2:
        return None
    if isinstance(layer.rule, Lookup):
        return None if layer.chain else False
    chain = [equation.params.get("permutation") for equation in layer.chain]
    if not isinstance(layer.rule, Dense) or chain not in ([], [(1, 0)]):
        return None
    if len(layer.rule.contracted[1]) != 1:
        return None
    # A has the rows where the dimension that is summed over is the parameter's first.
    return (layer.rule.contracted[1] == (0,)) == bool(chain)


def _crossed(left: Array, right: Array, index: Array, cotangent: Array) -> Array:
    """Returns the inner products of the gradients of products and of look-ups, (records,)."""
    # The first, A' G, at the rows that are looked up; the cotangent of none is zero.
    at_rows = jax.vmap(lambda a, i: jnp.take(a, i, axis=1, mode="clip"))(left, index)
    return jnp.sum(at_rows * _gram(right, cotangent), axis=(1, 2))


def _first(index: Array) -> Array:
    """Returns the first position of the same number, for each of some numbers."""
    places = jnp.where(index[:, None] == index[None, :], jnp.arange(index.size), index.size)
    return jnp.min(places, axis=1, initial=index.size)


def _guarded(square: Array, largest: Array, terms: int, bad: Array) -> Array:
    """Returns an upper bound on squared norms computed as sums of terms that may cancel.

    ``largest`` is the norm if none did: rounding takes ``terms`` units of its square away at most.
    It is no more than 2^12 times what is returned: a gradient whose terms cancel further is clipped
    to less than C. So rounding in the sum of a block of N records stays below N^2 times 2^-41 C,
    1e-8 C times the positions at 128, within what is charged for sums in float32.
    """
    rounded = jnp.abs(square) + terms * _UNIT * largest**2
    return jnp.where(bad, jnp.inf, jnp.maximum(rounded, (largest / 2**12) ** 2))


def _gram(left: Array, right: Array) -> Array:
    """Returns the products (records, positions, positions) of rows of two matrices."""
    return lax.dot_general(left, right, (((2,), (2,)), ((0,), (0,))))
