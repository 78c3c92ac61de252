"""Records in the form a query reads, and checks of shapes and dtypes, which cost no privacy."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from dpjax._typing import Params, PyTree
from dpjax._wide import on_device
from dpjax.derivatives.linear import prepared, scaled_rows, units
from dpjax.objectives.linear import ONE_LABEL, LinearLoss
from dpjax.objectives.units import UnitLoss, is_grouped
from dpjax.oracles.gradient import GradientQuery, NetworkQuery
from dpjax.oracles.query import Query, Records
from dpjax.placement.shard import Spread, length, shares

# Their bound holds whatever a loss draws, and their answer is used for one step alone.
_REDRAWING = (GradientQuery, NetworkQuery)


def bind(query: Query, examples: PyTree) -> Records:
    """Returns ``examples`` in the form ``query`` reads, made once per training.

    Examples are the tuple ``(x, y)`` where the objective is one of linear scores, else any pytree
    whose leaves share their leading axis. Rows that are drawn stay as they are, to be gathered.

    Privacy: raw data; stays inside the program of a training and is never returned by one.
    """
    examples = on_device(examples)
    if not query.closed_form:
        return examples
    # Of all records, not of a device's share: chunks must not depend on the devices.
    if query.closed_form_for_units and units.can_prepare(
        query.objective, shares(examples), query.permutation_invariant
    ):
        loss = query.objective.loss
        width = units.chunk_width(length(examples), *shares(examples)[0][0].shape[1:])
        how = {"reduction": loss.reduction, "width": width, "labels": loss.linear.labels}
        prepare = functools.partial(units.prepare_units, **how)
    elif (linear := query.objective.linear) is None:
        return examples
    else:
        width = scaled_rows.chunk_width(length(examples), shares(examples)[0].shape[1])
        prepare = functools.partial(prepared, linear, width=width)
    return examples.map(prepare) if isinstance(examples, Spread) else prepare(examples, None)


def check_examples(query: Query, examples: PyTree, params: Params) -> None:
    """Raises if data, parameters and the declared numbers do not fit together.

    Raises:
      ValueError: for empty data, leaves of different length, integer features, parameters whose
        shape does not fit, or a ``data_size`` that is not n (unless n is private).

    Privacy: reads shapes and dtypes, no value. Where n is private no message names it; that empty
      data are refused does tell n = 0 from n = 1.
    """
    leaves = jax.tree.leaves(examples)
    if not leaves or any(jnp.ndim(leaf) == 0 for leaf in leaves):
        found = "single numbers: convert lists by np.asarray" if leaves else "no array"
        raise ValueError(
            f"data must be a Dataset or arrays of one row per record; it holds {found}."
        )
    lengths = {jnp.shape(leaf)[0] for leaf in leaves}
    if len(lengths) > 1:
        got = "" if query.relation == "add_or_remove_one" else f", got {sorted(lengths)}"
        raise ValueError(
            f"all leaves of the data must have the same number of rows{got}: one for each record."
        )
    (n,) = lengths
    if n == 0:
        raise ValueError("the data are empty: n = 0.")
    canaries = query.setting.canaries
    if query.relation != "add_or_remove_one" and n + canaries != query.data_size:
        held = f"{n} rows" + f", and there are {canaries} canaries" * bool(canaries)
        raise ValueError(
            f"data_size={query.data_size} was declared, but the data have {held}; pass data_size="
            f"{n + canaries} if n is public, or declare relation='add_or_remove_one' if it is not."
        )
    query.setting.check_sampler(query.sampler)
    for leaf in jax.tree.leaves(params):
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            raise ValueError(f"params must be floating, got {jnp.result_type(leaf)}.")
    if query.objective.draws and type(query) not in _REDRAWING:
        raise ValueError(
            f"the loss of {query.objective.name} draws random numbers, and {type(query).__name__} "
            "asks for one function of the parameters: take dp_optimizer, dp_sgd or another method "
            "of gradients of batches, without with_accuracy and with_count, or a loss without key, "
            "such as a network without dropout."
        )
    # Data and objective are each of rows or of units, whoever made them: both must agree.
    of_units = isinstance(query.objective.loss, UnitLoss)
    if is_grouped(examples) and not of_units:
        raise ValueError(
            "the data are grouped into units, but the objective is one of single records: pass "
            "objective.of_units()."
        )
    if of_units and not is_grouped(examples):
        raise ValueError(
            f"{query.objective.name} reads units (records, present): group the records by "
            "dpjax.datasets.group(data, by=..., max_records=...)."
        )
    if (linear := query.objective.of_scores) is not None:
        rows = examples[0] if of_units else examples
        _check_linear_examples(rows, params, linear, 1 + of_units)
    query.check_examples(examples, params)


def check_query(query: Query) -> None:
    """Raises for a query whose bound is no bound, or that reads records by itself."""
    name = type(query).__name__
    for final in ("answer", "event"):
        if getattr(type(query), final) is not getattr(Query, final):
            raise ValueError(
                f"{name} has an {final} of its own, which may read records, or book what it does "
                f"not release: leave {final} to dpjax.oracles.Query, and define exact, bound and, "
                "if need be, releases."
            )
    bound = query.bound()
    if isinstance(bound, Tracer) or np.ndim(bound) > 0:
        return  # of a batch of algorithms; each was made, and checked, alone
    # An array itself would be compared by a traced operation under ``jit``.
    if not (math.isfinite(bound) and float(bound) > 0):
        raise ValueError(
            f"the bound of {name} must be finite and above 0, got {float(bound)!r}: return the "
            "most that one record can contribute to the sum, in l2 norm."
        )


def _check_linear_examples(examples: PyTree, params: Params, linear: LinearLoss, axes: int) -> None:
    if not (isinstance(examples, tuple) and len(examples) == 2):
        raise ValueError("this objective reads (x, y): pass the tuple (x, y) or a Dataset.")
    x, y = examples
    if (weights := linear.labels.axes) and jnp.shape(y)[axes:] != (2,):
        raise ValueError("y must hold two numbers for each record: its label and its weight.")
    if (jnp.ndim(x), jnp.ndim(y)) != (axes + 1, axes + weights):
        needed = "(n, p) and y (n,)" if axes == 1 else "(n, K, p) and y (n, K)"
        swapped = (jnp.ndim(y), jnp.ndim(x)) == (axes + 1, axes)
        raise ValueError(
            f"x must have shape {needed}, got {jnp.ndim(x)} and {jnp.ndim(y)} axes: "
            f"{'pass (x, y), not (y, x)' if swapped else ONE_LABEL}."
        )
    if jnp.iscomplexobj(y):
        raise ValueError(
            f"labels must be real numbers, {linear.labels.words}, got {jnp.result_type(y)}: pass "
            "y.real."
        )
    if not jnp.issubdtype(jnp.result_type(x), jnp.floating):
        raise ValueError(
            f"features must be floating-point numbers, got {jnp.result_type(x)}; scale them by "
            "bounds that are chosen without a look at the data, and convert them by "
            "x.astype('float32')."
        )
    size = jnp.shape(x)[axes] * linear.outputs
    if jnp.shape(params) != (size,):
        scores = f" for {linear.outputs} scores" if linear.outputs > 1 else ""
        raise ValueError(
            f"params must have shape ({size},) to fit x{scores}, got {jnp.shape(params)}: pass "
            f"dimension={size} to the factory, and params of that shape, if any."
        )
