"""A traced loss, equation by equation: what its primitives are, and if ``vmap`` mixes examples.

Under ``vmap`` the gradient of a convolution's kernel is a grouped convolution with one group for
each example. On a CPU, XLA computes those with several channels in a group, and all in float64, as
one dense convolution in which the entries of other examples are multiplied by zero: a NaN in one
example is then a NaN in every one, all examples are dropped, and the sum moves by n C.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import jax
from jax import lax
from jax.extend import core

from dpjax._typing import Array, Loss, Params, PyTree
from dpjax.placement.shard import shares

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
    inlined: frozenset[str] = INLINED,
) -> list[Value]:
    """Returns the results of a program on values of a type that the caller defines.

    Calls within it named in ``inlined`` are written out. ``constant`` makes a value of an array
    that the program holds, and ``take(equation, values) -> results`` is called for the equations in
    their order.

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
        if equation.primitive.name in inlined:
            results = walk(program_of(equation), values, constant, take, inlined)
        else:
            results = take(equation, values)
        known |= zip(equation.outvars, results, strict=True)
    return [read(atom) for atom in jaxpr.outvars]


def program_of(equation: Any) -> core.ClosedJaxpr:
    """Returns the program that an equation calls."""
    inner = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
    return inner if isinstance(inner, core.ClosedJaxpr) else core.ClosedJaxpr(inner, ())


def bind(equation: Any, arguments: Iterable[Array]) -> list[Array]:
    """Returns the results of one equation."""
    parameters = equation.primitive.get_bind_params(equation.params)
    results = equation.primitive.bind(*arguments, **parameters)
    return list(results) if equation.primitive.multiple_results else [results]


def map_examples(
    function: Callable[..., PyTree], examples: PyTree, sequential: bool = False
) -> PyTree:
    """Returns ``function`` mapped over the examples, with results along a leading axis.

    Privacy: NOT a mechanism; with ``sequential`` from ``vmap_mixes_examples``, the result for an
      example depends on that example alone.
    """
    # A loop holds one example at a time, so that no operation can read two.
    return lax.map(function, examples) if sequential else jax.vmap(function)(examples)


def example_of(examples: PyTree) -> PyTree:
    """Returns shapes and dtypes of one example of a batch, or of a device's share of one."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), shares(examples)
    )


def vmap_mixes_examples(loss: Loss, params: Params, examples: PyTree) -> bool:
    """Returns whether derivatives of ``loss`` under ``vmap`` may mix examples."""
    # Of a function that it knows JAX would keep the program, even if what that reads has changed.
    traced = jax.make_jaxpr(lambda *arguments: loss(*arguments))(params, example_of(examples))
    return any(map(equation_mixes_examples, equations(traced.jaxpr)))


def equation_mixes_examples(equation: Any) -> bool:
    """Returns whether ``vmap`` of an equation may mix examples: a convolution, or a user's rule."""
    if has_batch_rule(equation):
        return True
    if equation.primitive.name != "conv_general_dilated" or jax.default_backend() != "cpu":
        return False
    # Both are made one dense product on a CPU, see above.
    double = any(atom.aval.dtype == "float64" for atom in equation.invars)
    parameters = equation.params
    return double or (parameters["feature_group_count"], parameters["batch_group_count"]) != (1, 1)


def has_batch_rule(equation: Any) -> bool:
    """Returns whether an equation calls a user's rule for batches, which sees all examples."""
    return equation.primitive.name == "custom_vmap_call"


def equations(jaxpr: core.Jaxpr) -> Iterator[Any]:
    """Yields every equation of a program and of the programs inside it."""
    for equation in jaxpr.eqns:
        yield equation
        yield from within(equation)


def within(equation: Any) -> Iterator[Any]:
    """Yields every equation of the programs inside an equation, such as a loop's."""
    for inner in programs_of(equation):
        yield from equations(inner)


def programs_of(equation: Any) -> Iterator[core.Jaxpr]:
    """Yields the programs that are parameters of an equation."""
    # A parameter may be a program, a closed one, or a tuple of them (a ``cond``'s branches).
    for value in jax.tree.leaves(
        list(equation.params.values()), is_leaf=lambda leaf: hasattr(leaf, "eqns")
    ):
        inner = getattr(value, "jaxpr", value)
        if hasattr(inner, "eqns"):
            yield inner


def bytes_alive(function: Callable[[PyTree], PyTree], record: PyTree) -> int:
    """Returns the most bytes that ``function`` holds at once of values that depend on ``record``.

    At least 1. Read from the program as JAX traces it, so that every machine gets the same number:
    a compiler that fuses holds less, and one that copies more.

    >>> import jax.numpy as jnp
    >>> bytes_alive(lambda x: jnp.sum(jnp.sin(x) * jnp.cos(x)), jnp.zeros(100, jnp.float32))
    1200
    """
    program = jax.make_jaxpr(lambda record: function(record))(record).jaxpr  # anew
    return max(1, _bytes_alive(program, set(program.invars)))


def _bytes_alive(program: core.Jaxpr, varying: set[Any]) -> int:
    """The same of a program; ``varying`` are those of its inputs that depend on the record."""

    def size(variables: Iterable[Any]) -> int:
        return sum(each.aval.size * each.aval.dtype.itemsize for each in variables)

    # When each value is read last; results stay.
    last = {atom: i for i, equation in enumerate(program.eqns) for atom in _variables(equation)}
    last |= {atom: len(program.eqns) for atom in program.outvars if isinstance(atom, core.Var)}
    alive, most = set(), 0
    for i, equation in enumerate(program.eqns):
        if varying.isdisjoint(_variables(equation)):
            continue
        inside = 0
        for inner in programs_of(equation):
            # From the last: a ``cond`` has an index before what its branches take.
            pairs = zip(reversed(inner.invars), reversed(equation.invars), strict=False)
            reads = {mine for mine, atom in pairs if isinstance(atom, core.Var) and atom in varying}
            inside = max(inside, _bytes_alive(inner, reads))
        varying |= set(equation.outvars)
        most = max(most, size(alive) + max(inside, size(equation.outvars)))
        alive = {each for each in alive | set(equation.outvars) if last.get(each, i) > i}
    return most


def _variables(equation: Any) -> list[Any]:
    return [atom for atom in equation.invars if isinstance(atom, core.Var)]
