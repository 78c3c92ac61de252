"""Keeps the computation of each record independent where a compiler would mix records.

Over a batch, the gradient of a convolution's kernel is a convolution in groups, one a record. On a
CPU, XLA computes those of several channels a group, and all of float64, as one dense convolution
whose foreign entries are multiplied by zero: a NaN in one record is then a NaN in all of them, all
are dropped, and the sum has moved by n C.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax import lax
from jax.extend import core

from dpjax._typing import Loss, Params, PyTree


def over_records(
    function: Callable[[PyTree], PyTree], loss: Loss, params: Params, records: PyTree
) -> PyTree:
    """Returns ``function`` of every record: all at once, or one by one where that couples them.

    Args:
      function: of one record, made of derivatives of ``loss``.
      loss: of one record.
      params: where it is differentiated.
      records: pytree with a leading axis of records.

    Privacy: NOT a mechanism; what it returns of a record depends on that record alone.

    >>> import jax.numpy as jnp
    >>> over_records(jnp.sum, lambda w, x: w @ x, jnp.zeros(2), jnp.ones((3, 2))).tolist()
    [2.0, 2.0, 2.0]
    """
    return each(function, records, couples(loss, params, records))


def each(function: Callable[..., PyTree], records: PyTree, one_by_one: bool) -> PyTree:
    """Returns ``function`` of every record, one by one or at once."""
    return lax.map(function, records) if one_by_one else jax.vmap(function)(records)


def couples(loss: Loss, params: Params, records: PyTree) -> bool:
    """Returns whether derivatives of ``loss`` over a batch may couple records.

    >>> import jax.numpy as jnp
    >>> couples(lambda w, x: w @ x, jnp.zeros(2), jnp.zeros((3, 2)))
    False
    """
    record = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), records)
    traced = jax.make_jaxpr(loss)(params, record)
    return any(map(is_coupled, equations(traced.jaxpr)))


def couples_inside(equation: Any) -> bool:
    """Returns whether an equation holds a program, such as a loop's, that may couple records."""
    return any(map(is_coupled, _within(equation)))


def is_coupled(equation: Any) -> bool:
    """Returns whether an equation couples records, over a batch: a kernel's gradient, or a rule."""
    if has_batch_rule(equation):
        return True
    if equation.primitive.name != "conv_general_dilated" or jax.default_backend() != "cpu":
        return False
    double = any(atom.aval.dtype == "float64" for atom in equation.invars)
    parameters = equation.params
    return double or (parameters["feature_group_count"], parameters["batch_group_count"]) != (1, 1)


def has_batch_rule(equation: Any) -> bool:
    """Returns whether the user's own rule for batches is called, which sees all records at once."""
    return equation.primitive.name == "custom_vmap_call"


def equations(jaxpr: core.Jaxpr) -> Iterator[Any]:
    """Yields every equation of a program, and of the programs within."""
    for equation in jaxpr.eqns:
        yield equation
        yield from _within(equation)


def _within(equation: Any) -> Iterator[Any]:
    for value in jax.tree.leaves(
        list(equation.params.values()), is_leaf=lambda leaf: hasattr(leaf, "eqns")
    ):
        inner = getattr(value, "jaxpr", value)
        if hasattr(inner, "eqns"):
            yield from equations(inner)
