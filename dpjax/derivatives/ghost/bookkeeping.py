"""Book-keeping: the clipped sum of gradients in one pass, without per-example gradients.

The norm is always taken of the same arrays that are added: see ``parts``.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpjax._typing import Array, Loss, Params, PyTree
from dpjax._wide import Expansion, wide_dtype
from dpjax.derivatives import clipping, primitives
from dpjax.derivatives.chunks import Chunk, common_length, compute_once, sum_blocks
from dpjax.derivatives.ghost import layers
from dpjax.derivatives.ghost.ghost_norm import GhostNorm, is_turned, positions
from dpjax.derivatives.ghost.layer_rules import ByEntry
from dpjax.derivatives.ghost.parts import Materialized, Part, Rank1, Stacked
from dpjax.derivatives.integers import Summand
from dpjax.derivatives.primitives import example_of, map_examples
from dpjax.placement.stream import Streamed

# Storing one number for a record costs as much as this many multiplications and additions.
_STORED = 16
# Per-example gradients of more numbers than this are not stored where there is another way.
_LARGEST = 2**22


class Reading(NamedTuple):
    """How the gradient of a loss is computed, decided from shapes."""

    plan: layers.Plan
    parts: tuple[Part, ...]
    """One for each parameter, in the order of the leaves."""

    @property
    def saves(self) -> bool:
        """Whether the gradient of any parameter is not materialised for every record."""
        return any(part.saves for part in self.parts)


def read(loss: Loss, params: Params, batch: PyTree, permutation_invariant: bool = False) -> Reading:
    """Returns how to compute the gradient of ``loss``.

    >>> reading = read(lambda w, x: jnp.tanh(x @ w).sum(), jnp.zeros((3, 2)), jnp.zeros((5, 3)))
    >>> type(reading.parts[0]).__name__, reading.saves
    ('Rank1', True)
    """
    plan = layers.plan(loss, params, example_of(batch))
    leaves = jax.tree.leaves(params)
    uses = {
        i: [(k, x) for k, x in enumerate(plan.layers) if x.leaf == i] for i in range(len(leaves))
    }
    parts = tuple(
        part_of(i, leaf.shape, uses[i] if i not in plan.copied else None, permutation_invariant)
        for i, leaf in enumerate(leaves)
    )
    return Reading(plan, parts)


def bytes_per_record(loss: Loss, reading: Reading, params: Params, batch: PyTree) -> int:
    """Returns the memory that one more record of a piece takes, see ``bytes_alive``."""

    def squares_and_arrays(records: PyTree) -> tuple:
        return measured(loss, reading, params, records, lambda f: f(), wide_dtype(params))

    def alone(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype)

    return primitives.bytes_alive(squares_and_arrays, jax.tree.map(alone, example_of(batch)))


@functools.partial(jax.jit, static_argnames=("loss", "permutation_invariant", "rows"))
def gradient_sum(
    loss: Loss,
    params: Params,
    batch: PyTree,
    mask: Array | None,
    clip_norm: Array | float,
    permutation_invariant: bool,
    rows: int,
) -> Expansion:
    """Returns the sum (p,) of clipped gradients, of at most ``rows`` records at once.

    ``clip_norm`` bounds the full gradient, shape (), or each leaf, (leaves,).
    """
    n = common_length(batch, mask)
    reading, dtype = read(loss, params, batch, permutation_invariant), wide_dtype(params)

    def contribution(chunk: Chunk, size: int) -> list[Array]:
        # Past the last record that one is read again, and masked.
        places = jnp.minimum(chunk.start + jnp.arange(chunk.fresh.size), n - 1)
        keep = chunk.fresh if mask is None else chunk.fresh & mask[places]
        if isinstance(batch, Streamed):
            records = compute_once(chunk, lambda: batch.chunk(chunk.start, places.size))
        else:
            records = jax.tree.map(lambda leaf: leaf[places], batch)
        store = functools.partial(compute_once, chunk)
        squares, arrays = measured(loss, reading, params, records, store, dtype)
        factors = clipping.factors(squares, clip_norm, keep, dtype)
        both = zip(reading.parts, arrays, factors, strict=True)
        return [part.weighted(of_part, factor, size) for part, of_part, factor in both]

    # The bound on a full gradient holds for each of its parts.
    norms = jnp.broadcast_to(clip_norm, len(reading.parts))
    summands = [Summand(part.shape, dtype, norms[i]) for i, part in enumerate(reading.parts)]
    sums = sum_blocks(n, rows, contribution, summands)
    shaped = [
        jax.tree.map(lambda word, part=part: part.finish(word).ravel(), total)
        for part, total in zip(reading.parts, sums, strict=True)
    ]
    return jax.tree.map(lambda *words: jnp.concatenate(words), *shaped)


def measured(
    loss: Loss,
    reading: Reading,
    params: Params,
    records: PyTree,
    store: Callable[[Callable[[], Any]], Any],
    dtype: jnp.dtype,
) -> tuple[list[Array], list[tuple[Array, ...]]]:
    """Returns the squared norms of every part, and the arrays they are computed from.

    ``store`` is ``compute_once`` of a chunk, or only calls, where nothing but shapes is read.
    """
    # Cotangents first: a compiler would compute them anew for every sum over positions.
    cotangents, residuals = store(lambda: _differentiated(loss, reading.plan, params, records))
    arrays = store(lambda: [part.arrays(cotangents, residuals, dtype) for part in reading.parts])
    both = zip(reading.parts, arrays, strict=True)
    return [part.squares(of_part) for part, of_part in both], arrays


def _differentiated(
    loss: Loss, plan: layers.Plan, params: Params, records: PyTree
) -> tuple[layers.Probes, list[Array]]:
    """Returns the cotangents at the probes and the layers' residuals, along an axis of records."""
    leaves = jax.tree.leaves(params)
    count = jax.tree.leaves(records)[0].shape[0]
    offsets = [jnp.zeros(o.shape, o.dtype) for o in plan.outputs]
    # A copy for each record: the gradient with respect to it is that record's alone.
    copies = {i: jnp.broadcast_to(leaves[i], (count, *leaves[i].shape)) for i in plan.copied}

    def of_record(both: tuple[dict[int, Array], PyTree]) -> tuple[layers.Probes, list[Array]]:
        copies, record = both
        probes = layers.Probes(offsets, copies)
        run = functools.partial(layers.probed, loss, plan, params)
        return jax.grad(lambda probes: run(probes, record), has_aux=True)(probes)

    return map_examples(of_record, (copies, records), plan.sequential)


def part_of(
    leaf: int,
    shape: tuple[int, ...],
    used: list[tuple[int, layers.Layer]] | None,
    permutation_invariant: bool,
) -> Part:
    """Returns the cheapest ``Part`` for one parameter.

    ``used`` are the layers that use it, with their numbers; None if every record has a copy. The
    smaller charge for rounding of ``permutation_invariant`` does not cover sums over positions.
    """
    fields = (leaf, shape, tuple(used or ()), permutation_invariant)
    if not used or any(isinstance(layer.rule, ByEntry) for _, layer in used):
        return Materialized(*fields)
    layer = used[0][1]
    if len(used) == 1 and layer.stack:
        alone = layer._replace(chain=(), loops=tuple(x for x in layer.loops if not x.stacked))
        one = part_of(leaf, layer.rule.weight_shape, [(0, alone)], permutation_invariant)
        return Stacked(*fields, one) if one.saves else Materialized(*fields)
    looked_up, products = positions(fields[2])
    if len(used) == 1 and (looked_up, products) == (0, 1):
        return Rank1(*fields)
    # The gradients of several uses add up, in one order of the parameter's entries.
    unlike = len(used) > 1 and any(is_turned(layer, shape) is None for _, layer in used)
    if permutation_invariant or unlike:
        return Materialized(*fields)
    ghost = GhostNorm(*fields)
    (rows, columns), size = ghost.shape, math.prod(ghost.shape)
    # In float64 a product costs two.
    pairs = products * (products + looked_up)
    cost = 2 * (products * (products * rows + size) + (pairs + products + looked_up) * columns)
    materialized = (products + _STORED) * size
    return (
        ghost if cost < materialized or size > _LARGEST or not products else Materialized(*fields)
    )
