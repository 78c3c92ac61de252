"""From per-example gradients to their mean: clip, sum, and divide by a public number."""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpjax import _validate
from dpjax._typing import Array, Params, PyTree, Relation
from dpjax._wide import on_device, wide_dtype
from dpjax.derivatives import chunks, clipping, rounding
from dpjax.derivatives.chunks import Chunk, blocks
from dpjax.derivatives.integers import Summand
from dpjax.transforms.checks import check_callers, check_updates


class ClippingTransformation(optax.GradientTransformationExtraArgs):
    """An optax transformation that clips and adds up, and knows how far a record moves its sum."""

    clip_norm: float
    """The bound on one record's gradient, over all leaves."""
    permutation_invariant: bool
    """Whether blocks of rows are added in float64."""

    def __new__(
        cls,
        init: Callable[..., Any],
        update: Callable[..., Any],
        clip_norm: float,
        permutation_invariant: bool = False,
    ) -> "ClippingTransformation":
        """Makes the pair that optax reads, with the bound beside it."""
        # ``inject_hyperparams`` calls the factory itself, at every update: only here is it seen.
        check_callers(making=True)
        pair = super().__new__(cls, init, update)
        # Attributes of the named tuple: optax unpacks it as any other transformation.
        pair.clip_norm, pair.permutation_invariant = clip_norm, permutation_invariant
        return pair

    def sensitivity(self, relation: Relation, *, rows: int) -> float:
        """Returns how far one record moves the sum of at most ``rows`` rows, rounding included."""
        order = self.permutation_invariant
        return float(rounding.sum_sensitivity(self.clip_norm, relation, rows, order))


def clip_and_sum(
    clip_norm: float | PyTree, *, per_layer: bool = False, permutation_invariant: bool = False
) -> ClippingTransformation:
    """Returns a transformation from per-example gradients to the sum of them, each clipped.

    ``dpjax.clipped_grad`` makes the same sum without ever holding all gradients; this one is for
    gradients that are there already, or come from elsewhere.

    Args:
      clip_norm: C, above 0, the bound on one record's gradient over all leaves; with ``per_layer``
        also a pytree like the parameters, with the bound of each leaf.
      per_layer: clip every leaf by a factor of its own: to C / sqrt(L), L the number of leaves, or
        to the bounds given.
      permutation_invariant: add in float64, for neighbours whose common rows lie elsewhere, as
        under ``add_or_remove_one``; without it that relation costs more slack.

    Returns:
      A ``ClippingTransformation``. Updates that arrive have a leading axis of records, as
      ``jax.vmap(jax.grad(loss), (None, 0))(params, batch)`` gives; those that leave have none, and
      are at least float32. ``update(..., mask=mask)`` takes bool (n,), False for rows that hold no
      record: those of a sampler's batch must be named so, for they repeat row 0.

    Raises:
      ValueError: for a norm that is not above 0, or norms by leaf without ``per_layer``; by
        ``update`` for updates that are not floating, have no axis of records, or do not fit
        ``params`` where those are passed.

    Privacy: NOT a mechanism: the sum is exact. Its l2 sensitivity is C for the joint vector of all
      leaves, whichever way they are clipped: C / sqrt(L) each, or the root of the sum of squared
      bounds. A record whose gradient is not finite contributes zero.

    Reference: Abadi et al. (2016), algorithm 1, without the noise; McMahan et al. (2018), section
      2.2, for the bounds by layer.

    >>> total = clip_and_sum(1.0)
    >>> gradients = {"w": jnp.array([[3.0, 4.0], [0.3, 0.4], [jnp.nan, 0.0]])}
    >>> summed, _ = total.update(gradients, total.init({"w": jnp.zeros(2)}))
    >>> print([round(float(entry), 3) for entry in summed["w"]])
    [0.9, 1.2]
    >>> round(total.sensitivity("replace_one", rows=256), 2)
    2.0
    """
    joint, norms_of = _clip_norms(clip_norm, per_layer)

    def init(params: Params) -> optax.EmptyState:
        check_callers()
        check_updates((), params, {})
        return optax.EmptyState()

    def update(
        updates: Any, state: Any, params: Any = None, *, mask: Array | None = None, **extra: Any
    ) -> tuple[PyTree, optax.EmptyState]:
        check_updates(updates, params, extra)
        check_rows(updates, params)
        # On the device in silence: a warning about one record's numbers would be a release.
        rows, norms = on_device(updates), norms_of(updates)
        total, _ = clipped_sum(rows, norms, mask, permutation_invariant)
        return total, state

    return ClippingTransformation(init, update, joint, permutation_invariant)


def divide_by(divisor: float) -> optax.GradientTransformation:
    """Returns a transformation that divides by a number declared beforehand.

    Args:
      divisor: above 0 and public, such as ``sampler.expected``; a number of the host, no array.

    Raises:
      ValueError: for anything else; a count of the records that were drawn is an array.

    Privacy: post-processing of noisy sums. By the size of the batch that was really drawn it would
      be none: a record that leaves would change the weight of all others, and of the noise.

    >>> mean = divide_by(256.0)
    >>> updates, _ = mean.update(jnp.ones(2), mean.init(jnp.zeros(2)))
    >>> float(updates[0])
    0.00390625
    """
    if isinstance(divisor, jax.Array | np.ndarray):
        raise ValueError(
            "divisor must be a public number declared beforehand, got an array: the size of a "
            "sampled batch changes with a record, and so would the weight of all others. Pass "
            "sampler.expected."
        )
    number = _validate.positive("divisor", divisor)
    return optax.stateless_with_tree_map(lambda update, _: update / number)


@functools.partial(jax.jit, static_argnames=("permutation_invariant",))
def clipped_sum(
    rows: PyTree,
    norms: tuple[Array | float, ...],
    mask: Array | None,
    permutation_invariant: bool = False,
) -> tuple[PyTree, Array]:
    """Returns the sum of clipped rows, and how many more were within their bounds than were not.

    ``norms`` are one bound for all leaves together, or one for each. The sum is a pytree like
    ``rows`` without their leading axis, at least float32; the number is exact below 2^24. A row
    that is masked or not finite is in neither.
    """
    n = chunks.common_length(rows, mask)
    leaves, tree = jax.tree.flatten(rows)
    dtype = wide_dtype(leaves)
    widths = [leaf.size // n for leaf in leaves]

    def contribution(chunk: Chunk) -> list[Array]:
        length = chunk.fresh.shape[0]
        parts = chunks.compute_once(
            chunk,
            lambda: [
                # Cast first: float16's largest number, which marks a NaN, is an ordinary float32.
                clipping.sanitize_nonfinite(chunk.of(leaf).reshape(length, width).astype(dtype))
                for leaf, width in zip(leaves, widths, strict=True)
            ],
        )
        keep = chunk.fresh if mask is None else chunk.fresh & chunk.of(mask)
        factors, smallest = _factors(parts, norms, keep)
        sums = [
            rounding.block_products(blocks(factor), blocks(part), permutation_invariant, axis=1)
            for factor, part in zip(factors, parts, strict=True)
        ]
        # 1 within the bound, -1 clipped, 0 for a row that does not count.
        side = jnp.where(smallest == 1, 1, jnp.where(smallest > 0, -1, 0))
        return [*sums, blocks(side).sum(axis=1).astype(dtype)]

    chunk_rows = chunks.rows_per_chunk(n, sum(widths), numbers=2**20)
    # The bound on the joint vector holds for each of its leaves.
    bounds = norms if len(norms) > 1 else norms * len(leaves)
    summands = [
        Summand((width,), dtype, bound) for width, bound in zip(widths, bounds, strict=True)
    ]
    # The grid of a bound of 1 holds -1, 0 and 1: the balance is exact.
    summands.append(Summand((), dtype, bound=1.0))
    # Rounded to float32, which ``rounding.sum_sensitivity`` charges for.
    totals = chunks.sum_chunks(n, chunk_rows, contribution, summands)
    *sums, balance = [total.leading for total in totals]
    shaped = [total.reshape(leaf.shape[1:]) for total, leaf in zip(sums, leaves, strict=True)]
    return jax.tree.unflatten(tree, shaped), balance


def _factors(
    parts: list[Array], norms: tuple[Array | float, ...], keep: Array
) -> tuple[list[Array], Array]:
    """The factor of every row of each leaf, and the smallest of each row."""
    if len(norms) == 1:
        factor = clipping.clip_factors(norms[0], *((part, 1.0) for part in parts), keep=keep)
        return [factor] * len(parts), factor
    factors = [
        clipping.clip_factors(norm, (part, 1.0), keep=keep)
        for norm, part in zip(norms, parts, strict=True)
    ]
    smallest = functools.reduce(jnp.minimum, factors)
    # A record that is not finite in one layer is a null record in all.
    return [jnp.where(smallest > 0, factor, 0) for factor in factors], smallest


def check_rows(updates: PyTree, params: Params | None) -> None:
    """Raises if updates are not per-example gradients."""
    advice = "take jax.vmap(jax.grad(loss), (None, 0))(params, batch)."
    for leaf in jax.tree.leaves(updates):
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            raise ValueError(f"gradients must be floating, got {jnp.result_type(leaf)}; {advice}")
        if jnp.ndim(leaf) == 0:
            raise ValueError(f"gradients need a leading axis of records, got a number; {advice}")
    check_like([jnp.shape(leaf)[1:] for leaf in jax.tree.leaves(updates)], params, advice)


def check_like(shapes: list[tuple[int, ...]], params: Params | None, advice: str) -> None:
    """Raises, with ``advice``, if ``shapes`` of updates are not those of ``params``, where passed.

    The first that is wanted is named; the shape that is there may hold the number of records.
    """
    if params is None:
        return
    wanted = [jnp.shape(leaf) for leaf in jax.tree.leaves(params)]
    # Over the longer of both: a leaf too many is as wrong as one of another shape.
    for got, want in itertools.zip_longest(shapes, wanted):
        if got != want:
            raise ValueError(
                f"the gradient of one record has another shape where the parameter has {want}; "
                f"{advice}"
            )


def _clip_norms(
    clip_norm: float | PyTree, per_layer: bool
) -> tuple[float, Callable[[PyTree], tuple[float, ...]]]:
    """The bound on a record over all leaves, and what returns the bounds for some updates."""
    bounds, tree = jax.tree.flatten(clip_norm)
    # A number is a tree of one leaf; anything else names a bound for each leaf.
    single = jax.tree_util.treedef_is_leaf(tree)
    norms = tuple(_validate.clip_norm("clip_norm", norm) for norm in bounds)
    if not norms:
        raise ValueError(f"clip_norm must be a number above 0, got {clip_norm!r}.")
    if not single and not per_layer:
        raise ValueError(
            f"clip_norm={clip_norm!r} names a bound for every leaf; pass per_layer=True with it."
        )

    def norms_of(updates: PyTree) -> tuple[float, ...]:
        if single and per_layer:
            leaves = len(jax.tree.leaves(updates))
            # L leaves within C / sqrt(L) each are within C together.
            return (norms[0] / math.sqrt(leaves),) * leaves
        if not single and jax.tree.structure(updates) != tree:
            raise ValueError(
                f"clip_norm={clip_norm!r} must be a pytree like the gradients, "
                f"{jax.tree.structure(updates)}."
            )
        return norms

    # Leaves are orthogonal parts of one vector, so that the squares of their bounds add up.
    return math.hypot(*norms), norms_of
