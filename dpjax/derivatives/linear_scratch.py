"""Streamed records of a linear model, prepared once, in a scratch file that each pass reads."""

import functools
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._files import Scratch
from dpjax._typing import Array
from dpjax.derivatives.linear.records import AT_ONCE, Parts, in_blocks
from dpjax.derivatives.rounding import BLOCK
from dpjax.objectives.linear import Signs
from dpjax.placement import stream
from dpjax.placement.shard import SHARE
from dpjax.placement.stream import Streamed


def prepare_on_disk(rows: Streamed, labels: Signs, report: Callable[[float], None]) -> Streamed:
    """Returns streamed records with their prepared form beside them, in a scratch file.

    A pass over them then neither maps nor prepares a row. Returns ``rows`` unchanged if they are
    few, if they need no mapping, if they lie in several places, or if no scratch file can be
    written.

    ``report`` is called with the fraction that is done, up to 1.

    Privacy: raw data, see ``Scratch``.
    """
    source = stream.computed_from(rows)
    if source is None or rows.size <= SHARE:
        return rows
    x, y = rows.shapes
    chunk = max(1, AT_ONCE // (BLOCK * x.shape[1])) * BLOCK
    parts = jax.eval_shape(
        functools.partial(_prepared, labels=labels),
        jax.ShapeDtypeStruct((chunk, *x.shape[1:]), x.dtype),
        jax.ShapeDtypeStruct((chunk,), y.dtype),
        chunk,
    )
    blocks = -(-rows.size // BLOCK)
    prepared = jax.tree.map(
        lambda part: jax.ShapeDtypeStruct((blocks, *part.shape[1:]), part.dtype), parts
    )
    scratches = [Scratch(source, part.shape, part.dtype) for part in jax.tree.leaves(prepared)]
    if not _write_all(rows, labels, chunk, scratches, report):
        return rows
    return stream.with_prepared(rows, prepared, scratches)


def _write_all(
    rows: Streamed,
    labels: Signs,
    chunk: int,
    scratches: list[Scratch],
    report: Callable[[float], None],
) -> bool:
    """Returns whether all prepared records were written; closes the files if not, or on an error.

    The next chunk is read and prepared while one is written.
    """

    def write(parts: Parts) -> None:
        for scratch, part in zip(scratches, jax.tree.leaves(parts), strict=True):
            scratch.append(np.asarray(part))

    complete = False
    try:
        with ThreadPoolExecutor(1, thread_name_prefix="dpjax-prepared") as writer:
            written: Future = writer.submit(lambda: None)
            for start, (x, y) in stream.chunks(rows, chunk):
                left = min(rows.size - start, chunk)
                parts = _prepared(x, y, left, labels=labels)
                written.result()
                if any(scratch.dropped for scratch in scratches):
                    break
                written = writer.submit(write, parts)
                report((start + left) / rows.size)
            written.result()
        complete = all(scratch.complete for scratch in scratches)
    finally:
        if not complete:
            for scratch in scratches:
                scratch.close()
    return complete


@functools.partial(jax.jit, static_argnames="labels")
def _prepared(x: Array, y: Array, left: Array | int, *, labels: Signs) -> Parts:
    return in_blocks(x, y, jnp.arange(x.shape[0]) < left, labels, BLOCK)
