"""Finds the layers of a network in its traced loss: where a parameter meets an activation.

The loss of one record is read as JAX traces it. At a matrix product, a convolution or a look-up in
a table, one factor of which is a parameter and the other depends on the record, the gradient of the
parameter follows from two small arrays: the layer's input, and the slope of the loss in its output.
A parameter that is used anywhere else is *copied*: every record gets its own, whose gradient JAX
finds.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dpjax._typing import Array, Loss, Params, PyTree
from dpjax.derivatives import apart, primitives
from dpjax.derivatives.layer_rules import ByEntry, Rule, rule_of


class _Value(NamedTuple):
    """An intermediate value of the loss of one record."""

    primal: Array
    of_record: bool = False
    leaves: frozenset[int] = frozenset()
    """Parameters that it is made of, with no record in it."""
    chain: tuple | None = ()
    """How it was made of its one parameter, by moving and repeating entries; None if otherwise."""


class Layer(NamedTuple):
    """One use of a parameter.

    Attributes:
      leaf: number of the parameter among the leaves.
      rule: what the gradient is made of.
      chain: equations that turn the parameter into the layer's weight, by moving and repeating its
        entries.
    """

    leaf: int
    rule: Rule
    chain: tuple

    def back(self, weight: Array, shape: tuple[int, ...]) -> Array:
        """Returns the gradient of the weight as that of the parameter, which has ``shape``."""

        def moved(leaf: Array) -> Array:
            for equation in self.chain:
                leaf = primitives.bind(equation, [leaf])[0]
            return leaf

        (back,) = jax.linear_transpose(moved, jax.ShapeDtypeStruct(shape, weight.dtype))(weight)
        return back


class Plan(NamedTuple):
    """What is known of a loss before it is run.

    Attributes:
      layers: in the order they are met.
      copied: numbers of the parameters of which every record gets its own.
      numbers: intermediate values of one record, a bound on what its gradient keeps.
      couples: whether records must be computed one by one, see ``apart``.
    """

    layers: tuple[Layer, ...]
    copied: frozenset[int]
    numbers: int
    couples: bool


class Taps(NamedTuple):
    """Where ``tapped`` may be differentiated: zeros on the layers' outputs, and the copies."""

    offsets: list[Array]
    copies: dict[int, Array]


def plan(loss: Loss, params: Params, record: PyTree) -> Plan:
    """Returns the layers of ``loss``, from the shapes of parameters and of one record.

    >>> def loss(params, x):
    ...     return jnp.tanh(x @ params["w"] + params["b"]).sum()
    >>> found = plan(loss, {"b": jnp.zeros(2), "w": jnp.zeros((3, 2))}, jnp.zeros(3))
    >>> [layer.leaf for layer in found.layers], sorted(found.copied)
    ([1, 0], [])
    """
    copied: frozenset[int] = frozenset()
    while True:
        walk = _Walk(copied)
        jax.eval_shape(lambda p, r, walk=walk: walk.run(loss, p, r), params, record)
        if walk.copied == copied:
            used = {layer.leaf for layer in walk.layers}
            unused = frozenset(range(len(jax.tree.leaves(params)))) - used
            return Plan(tuple(walk.layers), copied | unused, walk.numbers, walk.couples)
        # A parameter that is copied is of the record, which may make a layer of another's use.
        copied = walk.copied


def offsets(loss: Loss, found: Plan, params: Params, record: PyTree) -> list[Any]:
    """Returns shapes and dtypes of the outputs of the layers."""
    walk = _Walk(found.copied)
    jax.eval_shape(lambda p, r: walk.run(loss, p, r), params, record)
    return walk.outputs


def tapped(
    loss: Loss, found: Plan, params: Params, taps: Taps, record: PyTree
) -> tuple[Array, list[Array]]:
    """Returns the loss of one record, and what each layer keeps of its input.

    Its derivatives in ``taps.offsets`` are the slopes of the loss in the layers' outputs, those in
    ``taps.copies`` the gradients of the copied parameters.
    """
    walk = _Walk(found.copied, taps)
    value = walk.run(loss, params, record)
    return value, walk.kept


class _Walk:
    """One pass through the loss; ``taps`` are missing where only shapes matter."""

    def __init__(self, copied: frozenset[int], taps: Taps | None = None):
        self.copied, self._own, self._taps = copied, copied, taps
        self.layers: list[Layer] = []
        self.outputs: list[Any] = []
        self.kept: list[Array] = []
        self.numbers = 0
        self.couples = False

    def run(self, loss: Loss, params: Params, record: PyTree) -> Array:
        """Returns the loss."""
        traced = primitives.trace(loss, params, record)
        starts = [self._leaf(i, leaf) for i, leaf in enumerate(jax.tree.leaves(params))]
        starts += [_Value(jnp.asarray(leaf), of_record=True) for leaf in jax.tree.leaves(record)]
        (out,) = primitives.walk(traced, starts, _Value, self._take)
        if not out.of_record:
            self._copy(out)  # a loss without the record: its gradient is every record's
        return out.primal

    def _leaf(self, i: int, leaf: Array) -> _Value:
        if i not in self._own:
            return _Value(lax.stop_gradient(leaf), leaves=frozenset({i}))
        own = leaf if self._taps is None else self._taps.copies[i]
        return _Value(own, of_record=True)

    def _take(self, equation: Any, values: list[_Value]) -> list[_Value]:
        primals = [value.primal for value in values]
        if not any(value.of_record for value in values):
            leaves = frozenset().union(*(value.leaves for value in values))
            results = primitives.bind(equation, primals)
            chain = _chain(equation, values, results)
            return [_Value(result, leaves=leaves, chain=chain) for result in results]
        if (layer := _layer(equation, values)) is not None:
            results = [self._tap(layer, equation, primals)]
        else:
            for value in values:
                self._copy(value)
            # Of a kernel that every record has for itself; other convolutions never mix images.
            own_kernel = len(values) > 1 and (values[1].of_record or bool(values[1].leaves))
            self.couples |= own_kernel and apart.is_coupled(equation)
            self.couples |= apart.has_batch_rule(equation) or apart.couples_inside(equation)
            results = primitives.bind(equation, primals)
        self.numbers += sum(result.size for result in results)
        return [_Value(result, of_record=True) for result in results]

    def _copy(self, value: _Value) -> None:
        self.copied = self.copied | value.leaves

    def _tap(self, layer: Layer, equation: Any, primals: list[Array]) -> Array:
        rule, number = layer.rule, len(self.layers)

        def apply(*arguments: Array) -> Array:
            return primitives.bind(equation, arguments)[0]

        output, kept = rule.forward(apply, primals)
        self.layers.append(layer)
        self.outputs.append(jax.ShapeDtypeStruct(output.shape, output.dtype))
        self.kept.append(lax.stop_gradient(kept))
        self.numbers += kept.size
        return output if self._taps is None else output + self._taps.offsets[number]


def _layer(equation: Any, values: list[_Value]) -> Layer | None:
    """Returns the layer that an equation is, or None."""
    weights = [i for i, value in enumerate(values) if value.leaves]
    if len(values) != 2 or len(weights) != 1:
        return None
    weight = values[weights[0]]
    if weight.chain is None or len(weight.leaves) > 1:
        return None
    shapes = [jax.typeof(value.primal) for value in values]
    if (rule := rule_of(equation, shapes, weights[0])) is None:
        return None
    (leaf,) = weight.leaves
    repeats = any(e.invars[0].aval.size != e.outvars[0].aval.size for e in weight.chain)
    return None if repeats and not isinstance(rule, ByEntry) else Layer(leaf, rule, weight.chain)


def _chain(equation: Any, values: list[_Value], results: list[Array]) -> tuple | None:
    """Returns the chain of a value that is one parameter with its entries moved, or None."""
    if len(values) != 1 or len(results) != 1:
        return None
    name, chain = equation.primitive.name, values[0].chain
    if chain is None or (
        name == "convert_element_type" and jnp.issubdtype(results[0].dtype, jnp.floating)
    ):
        return chain
    moves = name in ("reshape", "transpose", "squeeze", "expand_dims", "broadcast_in_dim", "rev")
    return (*chain, equation) if moves else None
