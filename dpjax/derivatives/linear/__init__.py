"""Clipped sums of linear models by their closed form, where a loss and its records have one."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from dpjax._typing import Array, PyTree, Real
from dpjax._wide import Expansion
from dpjax.derivatives.linear import scaled_rows, sums, units
from dpjax.objectives.linear import LinearLoss, linear_of
from dpjax.placement.stream import Streamed


def clipped_sums(
    loss: Any,
    params: PyTree,
    batch: PyTree,
    mask: Any,
    weights: sums.Weights,
    clip_norm: Real[Array, ""] | float,
    permutation_invariant: bool,
) -> tuple[Expansion | None, Expansion | None] | None:
    """Returns the sums of gradients (k,) and of Hessians (k, k), clipped by one factor a record.

    ``loss`` may be an objective, and ``batch`` prepared records; the others are as in
    ``score_sums``. It returns None for a sum without a weight, and None alone without a closed
    form.

    Privacy: one record moves (g / w_g, svec(H) / w_h) by at most ``clip_norm``.
    """
    linear = linear_of(loss)
    if linear is None:
        # Units have a form of their own, by the Gram matrices of their rows.
        form = units.prepared(loss, batch, mask, permutation_invariant)
        return form and units.unit_sums(*form, jnp.asarray(params), weights, clip_norm)
    of_records = sums.output_sums if linear.outputs > 1 else sums.score_sums
    records, params = prepared(linear, batch, mask), jnp.asarray(params)
    return of_records(linear, records, params, weights, clip_norm, permutation_invariant)


def prepared(
    linear: LinearLoss, batch: PyTree, mask: Any = None, width: int | None = None
) -> scaled_rows.Linear:
    """Returns the records of a batch in the layout of the closed forms.

    Raises:
      ValueError: for a mask beside records that are prepared.
    """
    if isinstance(batch, scaled_rows.Linear):
        return scaled_rows.without_mask(batch, mask)
    if isinstance(batch, Streamed):
        assert mask is None  # of all records none is masked
        return scaled_rows.streamed(batch, width, linear.labels)
    return scaled_rows.prepare(batch, mask, width=width, labels=linear.labels)
