"""Streamed records of a linear model, prepared once, in a scratch file that each pass reads."""

import functools
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _streaming
from dpjax._files import Scratch
from dpjax._linear import Signs
from dpjax._sharding import SHARE
from dpjax._streaming import Streamed
from dpjax._typing import Array
from dpjax._wide import wide_dtype
from dpjax.derivatives.linear_records import Parts, in_blocks
from dpjax.derivatives.rounding import BLOCK

# Records that are prepared at once hold so many numbers (8 MB in float32).
_AT_ONCE = 2**21


def prepare_on_disk(
    rows: Streamed, labels: Signs, report: Callable[[float], None] = lambda part: None
) -> Streamed:
    """Returns streamed records with their prepared form beside them, in a scratch file.

    A pass then neither maps nor prepares a row. Few records, those that are read as they lie in a
    file of the user's, and all where no scratch file can be written are returned as they came.

    Args:
      rows: ``(x, y)``, with x (n, p) floating and y (n,).
      labels: which labels count.
      report: called with the part that is done, from 0 to 1.

    Privacy: raw data, see ``Scratch``.
    """
    source = _streaming.computed_from(rows)
    if source is None or rows.size <= SHARE:
        return rows
    p = rows.shapes[0].shape[1]
    at_once = max(1, _AT_ONCE // (BLOCK * p)) * BLOCK
    parts = jax.eval_shape(functools.partial(_prepared, labels=labels), *_some(rows, at_once))
    blocks = -(-rows.size // BLOCK)
    prepared = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((blocks, *leaf.shape[1:]), leaf.dtype), parts
    )
    leaves = jax.tree.leaves(prepared)
    scratches = [Scratch(source, leaf.shape, leaf.dtype) for leaf in leaves]
    if _filled(rows, labels, at_once, scratches, report):
        return _streaming.with_prepared(rows, prepared, scratches)
    for scratch in scratches:
        scratch.close()
    return rows


def _filled(
    rows: Streamed,
    labels: Signs,
    at_once: int,
    scratches: list[Scratch],
    report: Callable[[float], None],
) -> bool:
    """Writes the prepared records, while the next are read and prepared; whether all are written.

    The files are closed if it raises.
    """

    def write(parts: Parts) -> None:
        for scratch, part in zip(scratches, jax.tree.leaves(parts), strict=True):
            scratch.append(np.asarray(part))

    with ThreadPoolExecutor(1, thread_name_prefix="dpjax-prepared") as writer:
        written: Future = writer.submit(lambda: None)
        try:
            for start, (x, y) in _streaming.chunks(rows, at_once):
                parts = _prepared(x, y, rows.size - start, labels=labels)
                written.result()
                if any(scratch.dropped for scratch in scratches):
                    return False
                written = writer.submit(write, parts)
                report(start / rows.size)
            written.result()
        except BaseException:
            writer.shutdown(wait=True)
            for scratch in scratches:
                scratch.close()
            raise
    return all(scratch.complete for scratch in scratches)


@functools.partial(jax.jit, static_argnames="labels")
def _prepared(x: Array, y: Array, left: Array | int, *, labels: Signs) -> Parts:
    here = jnp.arange(x.shape[0]) < left
    return in_blocks(x.astype(wide_dtype(x.dtype)), y, here, labels, BLOCK)


def _some(rows: Streamed, count: int) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Shapes of so many rows, and of how many are left."""
    x, y = (jax.ShapeDtypeStruct((count, *like.shape[1:]), like.dtype) for like in rows.shapes)
    return x, y, jax.ShapeDtypeStruct((), jnp.int32)
