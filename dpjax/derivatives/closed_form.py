"""Clipped sums of linear models by their closed form, where a loss and its records have one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jax.typing import ArrayLike

from dpjax._linear import LinearLoss, linear_of
from dpjax._typing import Array
from dpjax._wide import Expansion
from dpjax.derivatives import linear_model, linear_outputs, linear_records, linear_units
from dpjax.derivatives.linear_unit_outputs import unit_output_sums
from dpjax.placement.stream import Streamed

if TYPE_CHECKING:
    from jaxtyping import Float, PyTree, Real

Sums = tuple[Expansion | None, Expansion | None]


def sums(
    loss: Any,
    params: PyTree[Float[ArrayLike, "..."]],
    batch: PyTree,
    mask: Any,
    *,
    gradient_weight: Real[Array, ""] | float | None = None,
    hessian_weight: Real[Array, ""] | float | None = None,
    clip_norm: Real[Array, ""] | float,
    any_order: bool,
) -> Sums | None:
    """Returns the sums of gradients (k,) and of Hessians (k, k), clipped by one factor a record.

    ``params`` are (k,) where there is a closed form. ``clip_norm`` bounds sqrt(|g|^2 / w_g^2 +
    |H|_F^2 / w_h^2) of one record; a weight that is None asks for no such sum.

    Returns:
      Both sums, None for one without a weight; None alone if there is no closed form.

    Privacy: one record moves (g / w_g, svec(H) / w_h) by at most ``clip_norm``.
    """
    given: dict[str, Any] = {
        "gradient_weight": gradient_weight,
        "hessian_weight": hessian_weight,
        "clip_norm": clip_norm,
    }
    linear = linear_of(loss)
    if linear is None:
        if (found := linear_units.prepared(loss, batch, mask, any_order)) is None:
            return None
        of_units = unit_output_sums if found[0].outputs > 1 else linear_units.unit_sums
        return of_units(*found, params, **given)
    records = prepared(linear, batch, mask)
    if linear.outputs > 1:
        return linear_outputs.output_sums(linear, records, params, **given, any_order=any_order)
    if gradient_weight is not None and hessian_weight is not None:
        return linear_model.linear_sums(linear, records, params, **given, any_order=any_order)
    if gradient_weight is not None:
        bound = clip_norm * gradient_weight
        return linear_model.gradient_sum(linear, records, params, bound, any_order), None
    assert hessian_weight is not None
    bound = clip_norm * hessian_weight
    return None, linear_model.hessian_sum(linear, records, params, bound, any_order)


def prepared(linear: LinearLoss, batch: PyTree, mask: Any) -> linear_records.Linear:
    """Returns the records of a batch in the layout of the closed forms.

    Raises:
      ValueError: for a mask beside records that are prepared.
    """
    if isinstance(batch, linear_records.Linear):
        if mask is not None:
            raise ValueError("prepared records take no mask; pass it to prepare.")
        return batch
    if isinstance(batch, Streamed):
        assert mask is None  # of all records none is masked
        return linear_records.streamed(batch, labels=linear.labels)
    return linear_records.prepare(batch, mask, labels=linear.labels)
