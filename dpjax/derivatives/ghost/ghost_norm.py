"""Ghost norms in float64, over pairs of positions: large weights used at few positions, tables."""

import jax
import jax.numpy as jnp
from jax import lax

from dpjax._typing import Array
from dpjax._wide import float64
from dpjax.derivatives import clipping
from dpjax.derivatives.chunks import blocks
from dpjax.derivatives.ghost.layers import Probes
from dpjax.derivatives.ghost.parts import Arrays, Part

_UNIT = 2.0**-53


class GhostNorm(Part):
    """A weight that is used at a few positions: the squared norm is <A A', G G'>, over pairs."""

    @property
    def numbers(self) -> int:
        rule = self.rule
        # In float64, where a number counts twice: both Gram matrices, then both factors.
        return 4 * rule.positions**2 + 2 * rule.positions * (rule.inputs + rule.outputs)

    def arrays(self, cotangents: Probes, residuals: list[Array], dtype: jnp.dtype) -> Arrays:
        """Returns A and G, (records, positions, inputs or outputs)."""
        inputs, cotangent = self._input_cotangent(cotangents, residuals, dtype)
        left = jax.vmap(self.rule.left)(inputs)
        return clipping.sanitize_nonfinite(left.astype(dtype)), cotangent

    def squares(self, arrays: Arrays) -> Array:
        """Returns the sums over pairs of positions."""
        left, right = arrays
        # Additions behind one square: over pairs of positions, and in both inner products.
        terms = left.shape[1] ** 2 + left.shape[2] + right.shape[2] + 8
        bad = clipping.bad(left) | clipping.bad(right)
        with jax.enable_x64(True):
            left, right = float64(left), float64(right)
            square = jnp.sum(_gram(left) * _gram(right), axis=(1, 2))
            # The norm if no terms cancelled, by the triangle inequality.
            lengths = jnp.sqrt(jnp.sum(left * left, axis=2) * jnp.sum(right * right, axis=2))
            return _guarded(square, jnp.sum(lengths, axis=1), terms, bad)

    def weighted(self, arrays: Arrays, factors: Array, size: int) -> Array:
        left, right = (blocks(part, size=size) for part in arrays)
        with jax.enable_x64(True):
            factors = float64(blocks(factors, size=size))[..., None, None]
            # In float64, as the norm is: terms may cancel here as they do there.
            scaled = float64(right) * factors
            return lax.dot_general(float64(left), scaled, (((1, 2), (1, 2)), ((0,), (0,))))


class Embedding(Part):
    """A table whose rows the records look up."""

    @property
    def numbers(self) -> int:
        rule = self.rule
        return 4 * rule.positions**2 + 2 * rule.positions * rule.outputs

    def arrays(self, cotangents: Probes, residuals: list[Array], dtype: jnp.dtype) -> Arrays:
        """Returns indices (records, positions) and cotangents (records, positions, outputs)."""
        index, cotangent = self._input_cotangent(cotangents, residuals, dtype)
        # A cotangent of no row has no part in the table's gradient, whether it is finite or not.
        return index, jnp.where((index < self.shape[0])[:, :, None], cotangent, 0)

    def squares(self, arrays: Arrays) -> Array:
        """Returns the sums over pairs of positions at which the same row is looked up."""
        index, right = arrays
        # The indices are equal, so comparing one of them with the table's length is enough.
        same = (index[:, :, None] == index[:, None, :]) & (index < self.shape[0])[:, :, None]
        bad = clipping.bad(right)
        terms = right.shape[1] ** 2 + right.shape[2] + 8
        with jax.enable_x64(True):
            wide = float64(right)
            square = jnp.sum(jnp.where(same, _gram(wide), 0), axis=(1, 2))
            largest = jnp.sum(jnp.sqrt(jnp.sum(wide * wide, axis=2)), axis=1)
            return _guarded(square, largest, terms, bad)

    def weighted(self, arrays: Arrays, factors: Array, size: int) -> Array:
        index, right = (blocks(part, size=size) for part in arrays)

        def added(index: Array, rows: Array) -> Array:
            empty = lax.full(self.shape, 0.0, jnp.float64)
            # An index past the table is a look-up of no row.
            return empty.at[index.ravel()].add(rows.reshape(-1, rows.shape[-1]), mode="drop")

        with jax.enable_x64(True):
            factors = float64(blocks(factors, size=size))[..., None, None]
            return jax.vmap(added)(index, float64(right) * factors)


def _guarded(square: Array, largest: Array, terms: int, bad: Array) -> Array:
    """Returns an upper bound on squared norms computed as sums of terms that may cancel.

    ``largest`` is the norm if none did: rounding takes ``terms`` units of its square away at most.
    It is no more than 2^12 times what is returned: a gradient whose terms cancel further is clipped
    to less than C. So rounding in the sum of a block of N records stays below N^2 times 2^-41 C,
    1e-8 C times the positions at 128, within what is charged for sums in float32.
    """
    rounded = jnp.abs(square) + terms * _UNIT * largest**2
    return jnp.where(bad, jnp.inf, jnp.maximum(rounded, (largest / 2**12) ** 2))


def _gram(matrix: Array) -> Array:
    """Returns the products (records, positions, positions) of rows of ``matrix``."""
    return lax.dot_general(matrix, matrix, (((2,), (2,)), ((0,), (0,))))
