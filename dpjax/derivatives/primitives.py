"""Properties of JAX's primitives, and ``walk``, which evaluates a traced loss by equation."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import jax
from jax.extend import core

from dpjax._typing import Array, Loss, Params, PyTree

Value = TypeVar("Value")

# Linear or piecewise linear, jointly in all arguments that depend on parameters.
LINEAR = frozenset({
    "abs", "add", "add_any", "broadcast_in_dim", "clamp", "concatenate", "convert_element_type",
    "copy", "cumsum", "dynamic_slice", "dynamic_update_slice", "expand_dims", "gather", "max",
    "min", "neg", "pad", "reduce_max", "reduce_min", "reduce_sum", "reduce_window_max",
    "reduce_window_sum", "reshape", "rev", "select_n", "slice", "sort", "split", "squeeze",
    "stop_gradient", "sub", "transpose",
})  # fmt: skip

# Linear in each of two arguments.
BILINEAR = frozenset({"conv_general_dilated", "dot_general", "mul"})

# Elementwise functions of one argument.
BY_ENTRY = frozenset({
    "cos", "erf", "exp", "expm1", "integer_pow", "log", "log1p", "logistic", "rsqrt", "sin", "sqrt",
    "tanh",
})  # fmt: skip

# Calls of a program, replaced by its equations.
INLINED = frozenset({"checkpoint", "closed_call", "core_call", "jit", "pjit", "remat2"})


def trace(loss: Loss, params: Params, record: PyTree) -> core.ClosedJaxpr:
    """Returns the program of a loss of one record."""
    traced = jax.make_jaxpr(lambda *arguments: loss(*arguments))(params, record)  # anew
    if [aval.shape for aval in traced.out_avals] != [()]:
        raise TypeError(f"the loss of one record must be a scalar, got {traced.out_avals}.")
    return traced


def walk(
    closed: core.ClosedJaxpr,
    inputs: list[Value],
    constant: Callable[[Any], Value],
    take: Callable[[Any, list[Value]], list[Value]],
) -> list[Value]:
    """Returns the results of a program on values of a type that the caller defines.

    Args:
      closed: from ``trace``; calls within it are written out.
      inputs: one value for each argument.
      constant: makes a value of an array that the program holds.
      take: ``take(equation, values) -> results`` of one equation, in the order they are run.

    >>> program = jax.make_jaxpr(lambda x: 2 * x + x)(1.0)
    >>> def deeper(equation, depths):
    ...     return [1 + max(depths)]
    >>> walk(program, [0], lambda array: 0, deeper)
    [2]
    """
    jaxpr = closed.jaxpr
    known = dict(zip(jaxpr.constvars, map(constant, closed.consts), strict=True))
    known |= zip(jaxpr.invars, inputs, strict=True)

    def read(atom: Any) -> Value:
        return constant(atom.val) if isinstance(atom, core.Literal) else known[atom]

    for equation in jaxpr.eqns:
        values = [read(atom) for atom in equation.invars]
        # A call is its equations, or a layer within ``jit`` would not be seen.
        if equation.primitive.name in INLINED:
            inner = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
            if not isinstance(inner, core.ClosedJaxpr):
                inner = core.ClosedJaxpr(inner, ())
            results = walk(inner, values, constant, take)
        else:
            results = take(equation, values)
        known |= zip(equation.outvars, results, strict=True)
    return [read(atom) for atom in jaxpr.outvars]


def bind(equation: Any, arguments: Iterable[Array]) -> list[Array]:
    """Returns the results of one equation."""
    parameters = equation.primitive.get_bind_params(equation.params)
    results = equation.primitive.bind(*arguments, **parameters)
    return list(results) if equation.primitive.multiple_results else [results]
