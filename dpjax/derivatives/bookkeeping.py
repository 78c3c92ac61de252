"""Clipped sums of per-example gradients of a network, without the per-example gradients.

One pass forward and backward keeps the input of each layer and the slope in its output. From them
come the norm of each record's gradient, and then the sum of all gradients, each with its clip
factor: a second pass is not needed.

What is measured is what is added, in every case: see ``parts``.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpjax._typing import Array, Loss, Params, PyTree
from dpjax._wide import Wide, wide_dtype, zeros
from dpjax.derivatives import clipping, layers
from dpjax.derivatives.apart import each
from dpjax.derivatives.chunks import Chunk, common_length, compute_once, sum_blocks
from dpjax.derivatives.layer_rules import ByEntry, Lookup
from dpjax.derivatives.pairs import Pairs, Table
from dpjax.derivatives.parts import Outer, Part, Rows

# A number that is stored for a record costs as much as so many that are multiplied and added.
_STORED = 16
# Gradients of more numbers than this are not stored for a record where there is another way.
_LARGEST = 2**22


class Reading(NamedTuple):
    """How the gradient of a loss is computed, decided from shapes.

    Attributes:
      plan: the layers of the loss.
      parts: one a parameter, in the order of the leaves.
      numbers: values in memory for one record.
    """

    plan: layers.Plan
    parts: tuple[Part, ...]
    numbers: int

    @property
    def saves(self) -> bool:
        """Whether any parameter needs no gradient of its own for every record."""
        return any(part.saves for part in self.parts)


def read(loss: Loss, params: Params, batch: PyTree, any_order: bool = False) -> Reading:
    """Returns how the gradient of ``loss`` is computed; ``any_order`` as in ``part_of``.

    >>> reading = read(lambda w, x: jnp.tanh(x @ w).sum(), jnp.zeros((3, 2)), jnp.zeros((5, 3)))
    >>> type(reading.parts[0]).__name__, reading.saves
    ('Outer', True)
    """
    record = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), batch)
    plan = layers.plan(loss, params, record)
    leaves = jax.tree.leaves(params)
    own = {
        i: [(k, x) for k, x in enumerate(plan.layers) if x.leaf == i] for i in range(len(leaves))
    }
    parts = tuple(
        part_of(i, leaf.shape, own[i] if i not in plan.copied else None, any_order)
        for i, leaf in enumerate(leaves)
    )
    # Forward and backward, each value about once.
    return Reading(plan, parts, 2 * plan.numbers + sum(part.numbers for part in parts))


@functools.partial(jax.jit, static_argnames=("loss", "any_order", "rows"))
def gradient_sum(
    loss: Loss,
    params: Params,
    batch: PyTree,
    mask: Array | None,
    clip_norm: Array | float,
    any_order: bool,
    rows: int,
) -> Wide:
    """Returns the sum (p,) of clipped gradients.

    Args:
      loss: of one record.
      params: pytree of floating arrays.
      batch: pytree with one row per record.
      mask: (n,) bool.
      clip_norm: one for the whole gradient, or one a leaf, (leaves,).
      any_order: as in ``rounding.block_products``.
      rows: records at once, at most.

    Privacy: NOT a mechanism: it is exact.
    """
    n = common_length(batch, mask)
    reading, dtype = read(loss, params, batch, any_order), wide_dtype(params)

    def contribution(chunk: Chunk, size: int) -> list[Array]:
        records, keep = rows_of(chunk, batch, mask, n)
        squares, found = measured(loss, reading, params, records, chunk, dtype)
        factors = clipping.factors(squares, clip_norm, keep, dtype)
        pairs = zip(reading.parts, found, factors, strict=True)
        return [part.weighted(own, factor, size, any_order) for part, own, factor in pairs]

    zero = [zeros(part.shape, dtype) for part in reading.parts]
    sums = sum_blocks(n, rows, contribution, zero)
    shaped = [
        jax.tree.map(lambda word, part=part: part.finish(word).ravel(), total)
        for part, total in zip(reading.parts, sums, strict=True)
    ]
    return jax.tree.map(lambda *words: jnp.concatenate(words), *shaped)


def rows_of(chunk: Chunk, batch: PyTree, mask: Array | None, n: int) -> tuple[PyTree, Array]:
    """Returns the records of a chunk, and which of them count."""
    rows = jnp.minimum(chunk.start + jnp.arange(chunk.fresh.size), n - 1)
    keep = chunk.fresh if mask is None else chunk.fresh & mask[rows]
    return jax.tree.map(lambda leaf: leaf[rows], batch), keep


def measured(
    loss: Loss, reading: Reading, params: Params, records: PyTree, chunk: Chunk, dtype: jnp.dtype
) -> tuple[list[Array], list[tuple[Array, ...]]]:
    """Returns the squared norms of every part, and what was measured."""
    # Slopes first: a compiler would compute them anew for every sum over positions.
    taps, kept = compute_once(chunk, lambda: _tapped(loss, reading.plan, params, records))
    found = compute_once(chunk, lambda: [part.found(taps, kept, dtype) for part in reading.parts])
    return [part.squares(own) for part, own in zip(reading.parts, found, strict=True)], found


def _tapped(
    loss: Loss, plan: layers.Plan, params: Params, records: PyTree
) -> tuple[layers.Taps, list[Array]]:
    """Returns the slopes at every tap, and what the layers keep, with a leading axis of records."""
    leaves = jax.tree.leaves(params)
    count = jax.tree.leaves(records)[0].shape[0]
    first = jax.tree.map(lambda leaf: leaf[0], records)
    offsets = [jnp.zeros(o.shape, o.dtype) for o in layers.offsets(loss, plan, params, first)]
    copies = {i: jnp.broadcast_to(leaves[i], (count, *leaves[i].shape)) for i in plan.copied}

    def slopes(own: tuple[dict[int, Array], PyTree]) -> tuple[layers.Taps, list[Array]]:
        copies, record = own
        taps = layers.Taps(offsets, copies)
        run = functools.partial(layers.tapped, loss, plan, params)
        return jax.grad(lambda taps: run(taps, record), has_aux=True)(taps)

    return each(slopes, (copies, records), plan.couples)


def part_of(
    leaf: int, shape: tuple[int, ...], used: list[tuple[int, layers.Layer]] | None, any_order: bool
) -> Part:
    """Returns the cheapest way to one parameter.

    Args:
      leaf: its number.
      shape: its shape.
      used: the layers that use it, with their numbers; None if every record has a copy.
      any_order: as in ``rounding.block_products``, where less is charged for rounding than sums
        over times would take.
    """
    if not used:
        return Rows(leaf, shape)
    if len(used) > 1 or isinstance(used[0][1].rule, ByEntry):
        return Rows(leaf, shape, tuple(used))
    rule: Any = used[0][1].rule
    one = (leaf, shape, tuple(used))
    if rule.times == 1 and not isinstance(rule, Lookup):
        return Outer(*one)
    if any_order:
        return Rows(*one)
    if isinstance(rule, Lookup):
        return Table(*one)
    whole = rule.inputs * rule.outputs
    # In float64 a product costs two.
    pairs = 2 * (rule.times**2 * (rule.inputs + rule.outputs) + rule.times * whole)
    rows = (rule.times + _STORED) * whole
    return Pairs(*one) if pairs < rows or whole > _LARGEST else Rows(*one)
