"""Clipped sums in closed form for linear models whose example is a unit of several rows."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpjax._typing import Array, Bool, Float, PyTree, Real, pytree_dataclass, static
from dpjax._wide import Expansion, float64, wide_dtype
from dpjax.derivatives import clipping, rounding
from dpjax.derivatives.chunks import Chunk, common_length, compute_once, sum_chunks
from dpjax.derivatives.integers import COUNT, Summand
from dpjax.derivatives.linear import scaled_rows, sums
from dpjax.objectives.linear import LinearLoss, Signs
from dpjax.objectives.units import UnitLoss, is_grouped
from dpjax.placement.shard import SHARE
from dpjax.placement.stream import Streamed

# Chunks of features of this many numbers stay in a core's cache, as those of ``records``.
_NUMBERS = 2**18
# The norms of a unit's rows add up to at most so many times the clip norm, and to at most as many
# as it has rows: a block of 128 rows is then rounded as one of 128 records is.
_SPREAD = 8
# Entries of a Gram matrix are rounded by 2^-24, which moves a squared norm by 64 times as much at
# most, of Hessians twice; the products of the rows with their factors add less.
_SLACK = 1.0 - 2.0**-16
# A unit takes at most a block.
MOST_ROWS = rounding.BLOCK


@pytree_dataclass
class PreparedUnits:
    """Units of a linear model in the layout of the closed forms, prepared once; secret.

    Args:
      directions: (blocks, p, K * units), x_i / |x_i| as columns, times y_i where labels are signs:
        the first row of each of a block's units, then the second of each; 0 for a row that
        contributes nothing.
      radius: (blocks, K * units), |x_i|; 0 for such a row.
      weight: (blocks, K * units), what a row's loss counts in that of its unit.
      gram: (blocks, K (K + 1) / 2 * units), inner products of pairs of a unit's directions; those
        of a chunk are (pairs, its units), one diagonal of Gram matrices after the other.
      rows: K, of one unit.
      width: blocks of a chunk, which divides their number.
      label: (blocks, K * units), y_i, or None where labels are signs.
    """

    directions: Float[Array, "blocks p rows"]
    radius: Float[Array, "blocks rows"]
    weight: Float[Array, "blocks rows"]
    gram: Float[Array, "blocks pairs"]
    rows: int = static()
    width: int = static()
    label: Float[Array, "blocks rows *label"] | None = None

    def of(self, chunk: Chunk) -> tuple[Array, Array, Array, Array | None]:
        """Returns the directions, radii, weights and labels of a chunk."""
        z = scaled_rows.finite(chunk.of(self.directions))
        radius, weight = chunk.of(self.radius), chunk.of(self.weight)
        return z, radius, weight, None if self.label is None else chunk.of(self.label)


def can_prepare(objective: Any, examples: PyTree, permutation_invariant: bool) -> bool:
    """Returns whether sums over units have a closed form, by float64 and so on a CPU alone.

    Elsewhere the derivatives of each unit are held, and clipped by their own norm. The loss of a
    unit must be made of one of linear scores, and ``examples`` be ``((x, y), present)`` in memory,
    of at most ``MOST_ROWS`` rows a unit. Where rows that neighbours share may shift there is none.

    Privacy: reads shapes and dtypes, no value.
    """
    loss = _unit_loss(objective)
    if isinstance(examples, Streamed) or permutation_invariant or not isinstance(loss, UnitLoss):
        return False
    if jax.default_backend() != "cpu":
        return False
    return loss.linear is not None and is_grouped(examples) and examples[1].shape[1] <= MOST_ROWS


def _unit_loss(objective: Any) -> Any:
    # A loss that is no ``Objective`` is a loss of one example itself.
    return getattr(objective, "loss", objective)


def chunk_width(units: int, rows: int, p: int) -> int:
    """Returns the blocks of a chunk of ``units`` of ``rows`` rows with ``p`` features."""
    blocks = _blocks_of_share(units, rows)
    held = _units_of_block(units, rows)
    most = max(1, min(SHARE // held, _NUMBERS // (held * rows * p)))
    # Nearly equal chunks leave few blocks of the last one empty.
    return -(-blocks // -(-blocks // most))


def _units_of_block(units: int, rows: int) -> int:
    most = max(1, rounding.BLOCK // rows)
    # Vectors of 8 numbers fit the rows of a block, where that does not leave it much smaller.
    step = 8 // math.gcd(8, rows)
    return min(units, most // step * step or most)


def _blocks_of_share(units: int, rows: int) -> int:
    # Blocks end where a device's share does.
    return -(-min(units, SHARE) // _units_of_block(units, rows))


@functools.partial(jax.jit, static_argnames=("reduction", "width", "labels"))
def prepare_units(
    examples: PyTree,
    mask: Bool[Array, " n"] | None,
    reduction: str,
    width: int | None = None,
    labels: Signs | None = None,
) -> PreparedUnits:
    """Returns units in the layout that ``unit_sums`` reads.

    Examples are ``((x, y), present)``, x (n, K, p) floating, y (n, K), present (n, K) bool, and the
    labels that count by default -1 and +1.

    Privacy: raw data; each unit's columns depend on that unit alone. A row that is not present,
      with a feature that is not finite, or with a label that does not count contributes nothing and
      does not count in its unit's mean.
    """
    (x, y), present = examples
    common_length((x, y, present), mask)
    n, rows, p = x.shape
    dtype = wide_dtype(x.dtype)
    kind = Signs() if labels is None else labels
    held = _units_of_block(n, rows)
    at_once = width or chunk_width(n, rows, p)
    share = min(n, SHARE)
    chunks = -(-_blocks_of_share(n, rows) // at_once)  # of a share
    count = -(-n // share) * chunks * at_once

    def some_blocks(i: Array) -> PreparedUnits:
        # No block reaches over a device's share: blocks are the same on any number of devices.
        place = i % chunks * at_once * held + jnp.arange(at_once * held)
        position = i // chunks * share + place
        unit = jnp.minimum(position, n - 1)
        there = (place < share) & (position < n)
        if mask is not None:
            there = there & mask[unit]
        features, label = x[unit].astype(dtype), y[unit].astype(dtype)
        valid = there[:, None] & present[unit] & kind.accepts(label)
        valid = valid & jnp.all(jnp.isfinite(features), axis=2)
        directions, radius = scaled_rows.polar(
            features.reshape(-1, p), kind.sign(label).ravel(), valid.ravel()
        )
        weight = valid.astype(dtype)
        if reduction == "mean":
            # A unit without a valid row gets the weights 0, not 0 / 0.
            weight = weight / jnp.maximum(jnp.sum(weight, axis=1, keepdims=True), 1)

        def by_row(array: Array) -> Array:
            ends = array.shape[2:]
            shaped = array.reshape(at_once, held, rows, *ends).swapaxes(1, 2)
            return shaped.reshape(at_once, -1, *ends)

        beside = kind.beside(kind.known(label, valid))
        columns = directions.reshape(at_once, held, rows, p).transpose(0, 3, 2, 1)
        return PreparedUnits(
            columns.reshape(at_once, p, rows * held),
            by_row(radius),
            by_row(weight),
            _gram(directions.reshape(-1, rows, p)).reshape(at_once, -1),
            rows,
            at_once,
            None if beside is None else by_row(beside),
        )

    return scaled_rows.stacked(count, at_once, some_blocks)


def count_units(
    units: PreparedUnits, flags: Callable[[scaled_rows.PreparedLinear], Any] | None = None
) -> Float[Expansion, ""]:
    """Returns how many units have a row that counts, (), exactly; a unit moves it by 1.

    With ``flags``, bool (blocks, rows), it adds up the share that they have in those rows instead.
    """

    def contribution(chunk: Chunk) -> Array:
        z, r, v, label = units.of(chunk)
        counts = (v > 0).reshape(len(v), units.rows, -1)
        if flags is None:
            return counts.any(axis=1).ravel()
        rows = flags(scaled_rows.PreparedLinear(z, r, 1, label)).reshape(counts.shape)
        return share(rows & counts, counts, axis=1).ravel()

    return sum_chunks(len(units.weight), units.width, contribution, COUNT)


def _coefficients(
    linear: LinearLoss, matrix: Array, rows: tuple[Any, ...], fresh: Array, weights: sums.Weights
) -> list[Array]:
    """Those of a chunk's rows in gradients and Hessians of units, (rows, _); 0 of no record."""
    z, r, v, label = rows
    both = sums.derivatives(linear, matrix, z, r, label)
    counted = jnp.where(fresh[:, None], v, 0).reshape(-1, 1)
    return [jnp.where(counted > 0, part * counted, 0) for part in sums.wanted(both, weights)]


def _gradients(linear: LinearLoss, units: PreparedUnits, params: Array, chunk: Chunk) -> Array:
    """Gradients (blocks, k, units) of a chunk's units, 0 of one that is not finite."""
    z, *_ = rows = units.of(chunk)
    matrix = params.astype(z.dtype).reshape(linear.outputs, -1)
    (slope,) = _coefficients(linear, matrix, rows, chunk.fresh, (1.0, None))
    slope = slope.reshape(len(z), 1, -1, linear.outputs)
    each = slope.swapaxes(1, 3).swapaxes(2, 3) * z[:, None]
    each = each.reshape(len(z), -1, units.rows, z.shape[2] // units.rows)
    total = jnp.sum(each, axis=2)
    return jnp.where(jnp.isfinite(total).all(axis=1, keepdims=True), total, 0)


@functools.partial(jax.jit, static_argnames=("linear",))
def outer_sum(
    linear: LinearLoss,
    units: PreparedUnits,
    params: Float[Array, " k"],
    bound: Real[Array, ""] | float,
) -> Float[Expansion, "k k"]:
    """Returns the sum of g g^T of the units' gradients, each clipped to ``bound``.

    Privacy: one unit moves it by ``bound`` at most in the Frobenius norm, as the gradient that is
      clipped is what is added, however its rows cancel.
    """

    def contribution(chunk: Chunk) -> Array:
        g = _gradients(linear, units, params, chunk)
        rows = g.swapaxes(1, 2).reshape(-1, params.size)
        factors = clipping.clip_factors(
            jnp.sqrt(bound), (rows, 1.0), keep=jnp.ones(len(rows), bool)
        )
        clipped = sums.times(factors.reshape(len(g), 1, -1), g)
        return rounding.block_products(clipped, clipped, permutation_invariant=False)

    size, dtype = params.size, units.directions.dtype
    summand = Summand((size, size), dtype, jnp.asarray(bound, dtype), squares=1)
    return sum_chunks(len(units.weight), units.width, contribution, summand)


def count_gradients(
    linear: LinearLoss, units: PreparedUnits, params: Float[Array, " k"], flags: Any
) -> Float[Expansion, ""]:
    """Returns of how many units ``flags`` of the gradient's norm is True, (), exactly."""

    def contribution(chunk: Chunk) -> Array:
        return flags(jnp.linalg.norm(_gradients(linear, units, params, chunk), axis=1)).ravel()

    return sum_chunks(len(units.weight), units.width, contribution, COUNT)


def share(some: Bool[Array, "..."], of: Bool[Array, "..."], axis: int) -> Float[Array, "..."]:
    """Returns the share, from 0 to 1 and rounded once, that ``some`` is of ``of``; 0 of none."""
    return some.sum(axis=axis) / jnp.maximum(of.sum(axis=axis), 1)


def _gram(directions: Array) -> Array:
    """Inner products (pairs, units) of (units, K, p), summed in float64."""
    rows = directions.shape[1]
    first = np.concatenate([np.arange(rows - offset) for offset in range(rows)])
    second = np.concatenate([np.arange(offset, rows) for offset in range(rows)])
    with jax.enable_x64(True):
        wide = float64(directions)
        product = lax.dot_general(
            wide, wide, (((2,), (2,)), ((0,), (0,))), precision=lax.Precision.HIGHEST
        )
        return lax.convert_element_type(product[:, first, second].T, directions.dtype)


@functools.partial(jax.jit, static_argnames=("linear",))
def unit_sums(
    linear: LinearLoss,
    units: PreparedUnits,
    params: Float[Array, " k"],
    weights: sums.Weights,
    clip_norm: Real[Array, ""] | float,
) -> tuple[Float[Expansion, " k"] | None, Float[Expansion, "k k"] | None]:
    """Returns the sums of gradients and Hessians of units, clipped by one factor a unit.

    With directions z_i, a unit's gradient is g = sum a_i (x) z_i and its Hessian H = sum B_i (x)
    z_i z_i^T for a_i (K,) and B_i (K, K) of K scores. By the Gram matrix G of its directions
    |g|^2 and |H|_F^2 are the sums of <a_i, a_j> G_ij and <B_i, B_j> G_ij^2, so that norms are known
    without either, and the sums are one weighted product over all rows.

    Rows of a unit may cancel: then |g| is small while the sum of |a_i| is not, and neither the sum
    in float32 nor the entries of G would have an error in proportion to C. So the factor also
    keeps the sum of the rows' norms within min(K, 8) C: a unit whose rows cancel may be clipped to
    less than C, though never where each row alone is within C under the mean.

    Privacy: one unit moves (g / w_g, svec(H) / w_h) by at most ``clip_norm``, however many rows it
      has and whatever they are. One with a coefficient that is not finite contributes nothing.
    """
    blocks, p, size = units.directions.shape
    outputs, dtype = linear.outputs, units.directions.dtype
    matrix = params.astype(dtype).reshape(outputs, p)
    # Of a Hessian the inner product of two rows' directions counts squared.
    with_power = sums.wanted(((weights[0], 1), (weights[1], 2)), weights)

    def contribution(chunk: Chunk) -> Array:
        z, *_ = rows = units.of(chunk)
        gram = chunk.of(units.gram).reshape(units.rows * (units.rows + 1) // 2, -1)
        parts = compute_once(
            chunk, lambda: _coefficients(linear, matrix, rows, chunk.fresh, weights)
        )

        def factors() -> Array:
            weighted = [
                (values.reshape(-1, size, values.shape[1]), *how)
                for values, how in zip(parts, with_power, strict=True)
            ]
            by_unit = _factors(gram, units.rows, weighted, clip_norm).reshape(len(z), 1, -1)
            return jnp.broadcast_to(by_unit, (len(z), units.rows, by_unit.shape[2])).reshape(-1)

        return sums.products(chunk, z, parts, factors, outputs, weights)

    summand = sums.summand(outputs, p, dtype, weights, clip_norm)
    total = sum_chunks(blocks, units.width, contribution, summand)
    return sums.split(total, outputs, weights)


def _factors(
    gram: Float[Array, "pairs units"],
    rows: int,
    parts: list[tuple[Float[Array, "blocks rows _"], Any, int]],
    clip_norm: Real[Array, ""] | float,
) -> Float[Array, " units"]:
    """Factors in [0, 1] of units of ``rows`` rows, 0 for one with a coefficient not finite.

    ``parts`` are coefficients of the rows' directions, or of their outer products, with the weight
    in the joint norm, and the power 1 or 2 of inner products.
    """
    dtype, count = gram.dtype, gram.shape[1]
    with jax.enable_x64(True):
        square = jnp.zeros(count, jnp.float64)
        lengths = jnp.zeros((rows, count), jnp.float64)
        for coefficients, weight, power in parts:
            blocks, size, outputs = coefficients.shape
            a = coefficients.reshape(blocks, rows, size // rows, outputs).swapaxes(0, 1)
            a = a.reshape(rows, count, outputs)
            a = float64(a) * (1 / (float64(clip_norm) * float64(weight)))
            lengths = lengths + jnp.sum(a * a, axis=2)
            for offset in range(rows):
                # Where this diagonal of a Gram matrix begins.
                place = offset * rows - offset * (offset - 1) // 2
                inner = float64(gram[place : place + rows - offset]) ** power
                pairs = inner * jnp.sum(a[: rows - offset] * a[offset:], axis=2)
                # Off the diagonal a pair counts twice.
                square = square + (2 if offset else 1) * jnp.sum(pairs, axis=0)
        spread = jnp.sum(jnp.sqrt(lengths), axis=0)
        # Rounding may bring the square of rows that cancel below 0.
        norm = jnp.maximum(jnp.sqrt(jnp.maximum(square, 0)), spread / min(rows, _SPREAD))
        good = norm < jnp.inf  # False for NaN
        return clipping.shrinking(jnp.where(good, norm, 1), good, dtype, _SLACK)


def prepared(
    objective: Any, batch: PyTree, mask: Any, permutation_invariant: bool
) -> tuple[LinearLoss, PreparedUnits] | None:
    """Returns the loss of a score and a batch's units, or None where there is no closed form."""
    if isinstance(batch, PreparedUnits):
        return _unit_loss(objective).linear, scaled_rows.without_mask(batch, mask)
    if not can_prepare(objective, batch, permutation_invariant):
        return None
    loss = _unit_loss(objective)
    return loss.linear, prepare_units(batch, mask, loss.reduction, labels=loss.linear.labels)
