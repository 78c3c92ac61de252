"""The layers of a network, found in its traced loss where a parameter meets an activation.

The loss of one record is read as JAX traces it. At a matrix product, a convolution or a look-up in
a table, one factor of which is a parameter and the other depends on the record, the gradient of the
parameter follows from two small arrays: the layer's input, and the cotangent of its output. A
parameter that is used anywhere else is *copied*: every record gets its own copy, whose gradient JAX
computes.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dpjax._typing import Array, Loss, Params, PyTree
from dpjax.derivatives import primitives
from dpjax.derivatives.ghost.layer_rules import ByEntry, Rule, rule_of


class _Value(NamedTuple):
    """An intermediate value of the loss of one record."""

    primal: Array
    of_record: bool = False
    leaves: frozenset[int] = frozenset()
    """Parameters that it depends on, if it depends on no record."""
    chain: tuple | None = ()
    """Equations that lead to it from one parameter by moving and repeating entries; else None."""


class Layer(NamedTuple):
    """One use of a parameter."""

    leaf: int
    """Number of the parameter among the leaves."""
    rule: Rule
    """How its gradient follows from the layer's input and the cotangent of its output."""
    chain: tuple
    """Equations that turn it into the layer's weight, by moving and repeating its entries."""

    def back(self, weight: Array, shape: tuple[int, ...]) -> Array:
        """Returns the gradient of the weight as that of the parameter, which has ``shape``."""

        def moved(leaf: Array) -> Array:
            for equation in self.chain:
                leaf = primitives.bind(equation, [leaf])[0]
            return leaf

        # Moving and repeating entries is linear: its transpose brings the gradient back.
        (back,) = jax.linear_transpose(moved, jax.ShapeDtypeStruct(shape, weight.dtype))(weight)
        return back


class Plan(NamedTuple):
    """The layers of a loss, read from its trace before it is run."""

    layers: tuple[Layer, ...]
    copied: frozenset[int]
    """Numbers of the parameters of which every record gets its own copy."""
    numbers: int
    """Intermediate values of one record, a bound on what its gradient keeps."""
    sequential: bool
    """Whether records must be computed one after another, see ``primitives``."""


class Probes(NamedTuple):
    """Variables of differentiation in ``probed``: zeros added to layer outputs, and the copies."""

    offsets: list[Array]
    copies: dict[int, Array]


def plan(loss: Loss, params: Params, record: PyTree) -> Plan:
    """Returns the layers of ``loss``, from the shapes of parameters and of one record."""
    copied: frozenset[int] = frozenset()
    # ``copied`` only grows, so that this ends.
    while True:
        walk = _Walk(copied)
        jax.eval_shape(lambda p, r, walk=walk: walk.run(loss, p, r), params, record)
        if walk.copied == copied:
            used = {layer.leaf for layer in walk.layers}
            unused = frozenset(range(len(jax.tree.leaves(params)))) - used
            return Plan(tuple(walk.layers), copied | unused, walk.numbers, walk.sequential)
        # A copy depends on the record, which may turn another parameter's use into a layer.
        copied = walk.copied


def offsets(loss: Loss, layout: Plan, params: Params, record: PyTree) -> list[Any]:
    """Returns shapes and dtypes of the outputs of the layers."""
    walk = _Walk(layout.copied)
    jax.eval_shape(lambda p, r: walk.run(loss, p, r), params, record)
    return walk.outputs


def probed(
    loss: Loss, layout: Plan, params: Params, probes: Probes, record: PyTree
) -> tuple[Array, list[Array]]:
    """Returns the loss of one record and each layer's residual, the saved form of its input.

    The derivatives of the loss in ``probes.offsets`` are the cotangents of the layers' outputs,
    those in ``probes.copies`` the gradients of the copied parameters.
    """
    walk = _Walk(layout.copied, probes)
    value = walk.run(loss, params, record)
    return value, walk.residuals


class _Walk:
    """One pass through the loss; without ``probes`` where only shapes matter."""

    def __init__(self, copied: frozenset[int], probes: Probes | None = None):
        self.copied, self._given, self._probes = copied, copied, probes
        self.layers: list[Layer] = []
        self.outputs: list[Any] = []
        self.residuals: list[Array] = []
        self.numbers = 0
        self.sequential = False

    def run(self, loss: Loss, params: Params, record: PyTree) -> Array:
        """Returns the loss."""
        traced = primitives.trace(loss, params, record)
        starts = [self._leaf(i, leaf) for i, leaf in enumerate(jax.tree.leaves(params))]
        starts += [_Value(jnp.asarray(leaf), of_record=True) for leaf in jax.tree.leaves(record)]
        (out,) = primitives.walk(traced, starts, _Value, self._take)
        if not out.of_record:
            self._copy(out)  # the loss ignores the record: all records have the same gradient
        return out.primal

    def _leaf(self, i: int, leaf: Array) -> _Value:
        if i not in self._given:
            # Its gradient follows from the probes, so that JAX need not compute it.
            return _Value(lax.stop_gradient(leaf), leaves=frozenset({i}))
        copy = leaf if self._probes is None else self._probes.copies[i]
        return _Value(copy, of_record=True)

    def _take(self, equation: Any, values: list[_Value]) -> list[_Value]:
        primals = [value.primal for value in values]
        # The same for every record: computed once, and no layer yet.
        if not any(value.of_record for value in values):
            leaves = frozenset().union(*(value.leaves for value in values))
            results = primitives.bind(equation, primals)
            chain = _chain(equation, values, results)
            return [_Value(result, leaves=leaves, chain=chain) for result in results]
        if (layer := _layer(equation, values)) is not None:
            results = [self._probe(layer, equation, primals)]
        else:
            for value in values:
                self._copy(value)
            # Only a convolution whose kernel differs between records may mix images under vmap.
            copied_kernel = len(values) > 1 and (values[1].of_record or bool(values[1].leaves))
            self.sequential |= copied_kernel and primitives.equation_mixes_examples(equation)
            self.sequential |= primitives.has_batch_rule(equation)
            inner = primitives.within(equation)
            self.sequential |= any(map(primitives.equation_mixes_examples, inner))
            results = primitives.bind(equation, primals)
        self.numbers += sum(result.size for result in results)
        return [_Value(result, of_record=True) for result in results]

    def _copy(self, value: _Value) -> None:
        self.copied = self.copied | value.leaves

    def _probe(self, layer: Layer, equation: Any, primals: list[Array]) -> Array:
        rule, number = layer.rule, len(self.layers)

        def apply(*arguments: Array) -> Array:
            return primitives.bind(equation, arguments)[0]

        output, residual = rule.forward(apply, primals)
        self.layers.append(layer)
        self.outputs.append(jax.ShapeDtypeStruct(output.shape, output.dtype))
        # Saved beside the loss; no derivative is taken of it.
        self.residuals.append(lax.stop_gradient(residual))
        self.numbers += residual.size
        return output if self._probes is None else output + self._probes.offsets[number]


def _layer(equation: Any, values: list[_Value]) -> Layer | None:
    """Returns the layer of an equation, or None if it is not one."""
    weights = [i for i, value in enumerate(values) if value.leaves]
    if len(values) != 2 or len(weights) != 1:
        return None
    weight = values[weights[0]]
    # The weight is more than one parameter's moved entries: the chain rule would go on from here.
    if weight.chain is None or len(weight.leaves) > 1:
        return None
    shapes = [jax.typeof(value.primal) for value in values]
    if (rule := rule_of(equation, shapes, weights[0])) is None:
        return None
    (leaf,) = weight.leaves
    # Repeated entries add up in the parameter's gradient, whose norm the rules do not give.
    repeats = any(e.invars[0].aval.size != e.outvars[0].aval.size for e in weight.chain)
    return None if repeats and not isinstance(rule, ByEntry) else Layer(leaf, rule, weight.chain)


def _chain(equation: Any, values: list[_Value], results: list[Array]) -> tuple | None:
    """Returns the chain of a value that is one parameter with its entries moved, or None."""
    if len(values) != 1 or len(results) != 1:
        return None
    name, chain = equation.primitive.name, values[0].chain
    # A cast moves nothing: without it ``back`` runs in the dtype of the gradient.
    if chain is None or (
        name == "convert_element_type" and jnp.issubdtype(results[0].dtype, jnp.floating)
    ):
        return chain
    moves = name in ("reshape", "transpose", "squeeze", "expand_dims", "broadcast_in_dim", "rev")
    return (*chain, equation) if moves else None
