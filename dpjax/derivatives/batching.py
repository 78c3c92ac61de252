"""``map_examples`` over a batch, sequential where ``vmap`` would mix examples.

Under ``vmap`` the gradient of a convolution's kernel is a grouped convolution with one group for
each example. On a CPU, XLA computes those with several channels in a group, and all in float64, as
one dense convolution in which the entries of other examples are multiplied by zero: a NaN in one
example is then a NaN in every one, all examples are dropped, and the sum moves by n C.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax import lax
from jax.extend import core

from dpjax._typing import Loss, Params, PyTree
from dpjax.placement.shard import shares


def map_examples(
    function: Callable[..., PyTree], examples: PyTree, sequential: bool = False
) -> PyTree:
    """Returns ``function`` mapped over the examples, with results along a leading axis.

    ``sequential``, from ``vmap_mixes_examples``, computes one example after another.

    Privacy: NOT a mechanism; with ``sequential`` from ``vmap_mixes_examples``, the result for an
      example depends on that example alone.

    >>> import jax.numpy as jnp
    >>> map_examples(jnp.sum, jnp.ones((3, 2)), sequential=True).tolist()
    [2.0, 2.0, 2.0]
    """
    # A loop holds one example at a time, so that no operation can read two.
    return lax.map(function, examples) if sequential else jax.vmap(function)(examples)


def example_of(examples: PyTree) -> PyTree:
    """Returns shapes and dtypes of one example of a batch, or of a device's share of one."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), shares(examples)
    )


def vmap_mixes_examples(loss: Loss, params: Params, examples: PyTree) -> bool:
    """Returns whether derivatives of ``loss`` under ``vmap`` may mix examples.

    >>> import jax.numpy as jnp
    >>> vmap_mixes_examples(lambda w, x: w @ x, jnp.zeros(2), jnp.zeros((3, 2)))
    False
    """
    # Of a function that it knows JAX would keep the program, even if what that reads has changed.
    traced = jax.make_jaxpr(lambda *arguments: loss(*arguments))(params, example_of(examples))
    return any(map(equation_mixes_examples, equations(traced.jaxpr)))


def inner_program_mixes_examples(equation: Any) -> bool:
    """Returns whether a program inside an equation, such as a loop's, may mix examples."""
    return any(map(equation_mixes_examples, _within(equation)))


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
        yield from _within(equation)


def _within(equation: Any) -> Iterator[Any]:
    # A parameter may be a program, a closed one, or a tuple of them (a ``cond``'s branches).
    for value in jax.tree.leaves(
        list(equation.params.values()), is_leaf=lambda leaf: hasattr(leaf, "eqns")
    ):
        inner = getattr(value, "jaxpr", value)
        if hasattr(inner, "eqns"):
            yield from equations(inner)
