"""The layers of a network, found in its traced loss where a parameter meets an activation.

The loss of one record is read as JAX traces it. At a matrix product, a convolution or a look-up in
a table, one factor of which is a parameter and the other depends on the record, the gradient of the
parameter follows from two small arrays: the layer's input, and the cotangent of its output. A
parameter that is used anywhere else is *copied*: every record gets its own copy, whose gradient JAX
computes. Loops (``scan``) and rematerialised parts are read too, and run as what they are.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from dpjax._typing import Array, Loss, Params, PyTree
from dpjax.derivatives import primitives
from dpjax.derivatives.ghost.layer_rules import ByEntry, rule_of


class _Slices:
    """In a chain: what follows is done to each slice along the leading axis, a loop's steps."""


class _Value(NamedTuple):
    """An intermediate value of the loss of one record."""

    primal: Array
    of_record: bool = False
    leaves: frozenset[int] = frozenset()
    """Parameters that it depends on, if it depends on no record."""
    chain: tuple | None = ()
    """Equations that lead to it from one parameter by moving and repeating entries; else None."""


class Loop(NamedTuple):
    """A loop around a layer."""

    length: int
    stacked: bool
    """Whether each step has a weight of its own; otherwise all steps use one."""


class Layer(NamedTuple):
    """One use of a parameter, or one in each step of the loops around it."""

    leaf: int
    """Number of the parameter among the leaves."""
    rule: Any
    """How a weight's gradient follows from the layer's input and the cotangent of its output."""
    chain: tuple
    """Equations that turn it into the layer's weight, by moving and repeating its entries."""
    loops: tuple[Loop, ...] = ()
    """Outermost first; their steps are the first axes of the layer's input and of its cotangent."""

    @property
    def stack(self) -> tuple[int, ...]:
        """The first axes of the weight: the loops with one for each step."""
        return tuple(loop.length for loop in self.loops if loop.stacked)

    @property
    def repeats(self) -> tuple[int, ...]:
        """The loops whose steps use the same weight."""
        return tuple(loop.length for loop in self.loops if not loop.stacked)

    @property
    def positions(self) -> int:
        """Number of positions at which one record uses one weight."""
        return self.rule.positions * math.prod(self.repeats)

    def by_weight(self, array: Array) -> Array:
        """Returns a record's input or cotangent with one leading axis, over the stack."""
        order = sorted(range(len(self.loops)), key=lambda i: not self.loops[i].stacked)
        array = array.transpose(*order, *range(len(order), array.ndim))
        return array.reshape(math.prod(self.stack), *array.shape[len(self.stack) :])

    def matrices(self, residual: Array, cotangent: Array) -> tuple[Array, Array]:
        """Returns A of one weight, or the rows that are looked up, and G."""

        def joined(function: Callable[[Array], Array], array: Array) -> Array:
            matrix = self._mapped(function)(array)
            return matrix.reshape(-1, *matrix.shape[len(self.repeats) + 1 :])

        return joined(self.rule.left, residual), joined(self.rule.right, cotangent)

    def product(self, residual: Array, cotangent: Array) -> Array:
        """Returns the gradient of one weight as a matrix, (outputs, inputs)."""
        return self.rule.product(*self.matrices(residual, cotangent))

    def gradient(self, residual: Array, cotangent: Array) -> Array:
        """Returns the gradient of the layer's weights, of all in the stack."""

        def one(residual: Array, cotangent: Array) -> Array:
            if not isinstance(self.rule, ByEntry):
                return self.rule.weight(self.product(residual, cotangent).T)
            each = self._mapped(self.rule.gradient)(residual, cotangent)
            return jnp.sum(each, axis=tuple(range(len(self.repeats))))

        if not self.stack:
            return one(residual, cotangent)
        every = jax.vmap(one)(self.by_weight(residual), self.by_weight(cotangent))
        return every.reshape(*self.stack, *every.shape[1:])

    def _mapped(self, function: Callable[..., Array]) -> Callable[..., Array]:
        for _ in self.repeats:
            function = jax.vmap(function)
        return function

    def back(self, weight: Array, shape: tuple[int, ...]) -> Array:
        """Returns the gradient of the weight as that of the parameter, which has ``shape``."""

        def moved(leaf: Array, chain: tuple) -> Array:
            for i, equation in enumerate(chain):
                if isinstance(equation, _Slices):
                    return jax.vmap(lambda one, i=i: moved(one, chain[i + 1 :]))(leaf)
                leaf = primitives.bind(equation, [leaf])[0]
            return leaf

        # Moving and repeating entries is linear: its transpose brings the gradient back.
        parameter = jax.ShapeDtypeStruct(shape, weight.dtype)
        (back,) = jax.linear_transpose(lambda leaf: moved(leaf, self.chain), parameter)(weight)
        return back


class Plan(NamedTuple):
    """The layers of a loss, read from its trace before it is run."""

    layers: tuple[Layer, ...]
    copied: frozenset[int]
    """Numbers of the parameters of which every record gets its own copy."""
    sequential: bool
    """Whether records must be computed one after another, see ``primitives``."""
    outputs: tuple[jax.ShapeDtypeStruct, ...]
    """Shapes and dtypes of the outputs of the layers, for one record."""


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
            return Plan(tuple(walk.layers), copied | unused, walk.sequential, tuple(walk.outputs))
        # A copy depends on the record, which may turn another parameter's use into a layer.
        copied = walk.copied


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
        self.sequential = False

    def run(self, loss: Loss, params: Params, record: PyTree) -> Array:
        """Returns the loss."""
        traced = primitives.trace(loss, params, record)
        starts = [self._leaf(i, leaf) for i, leaf in enumerate(jax.tree.leaves(params))]
        starts += [_Value(jnp.asarray(leaf), of_record=True) for leaf in jax.tree.leaves(record)]
        (out,) = self.through(traced, starts)
        if not out.of_record:
            self._copy(out)  # the loss ignores the record: all records have the same gradient
        return out.primal

    def through(self, program: core.ClosedJaxpr, starts: list[_Value]) -> list[_Value]:
        """Returns the results of a program."""
        inlined = primitives.INLINED - set(_KINDS)
        return primitives.walk(program, starts, _Value, self._take, inlined)

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
            # As a constant: no derivative is asked of it.
            if equation.primitive.name == "stop_gradient":
                return [_Value(result) for result in results]
            chain = _chain(equation, values, results)
            return [_Value(result, leaves=leaves, chain=chain) for result in results]
        if (entered := self._enter(equation, values)) is not None:
            return entered
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
        return output if self._probes is None else _tapped(output, self._probes.offsets[number])

    def _enter(self, equation: Any, values: list[_Value]) -> list[_Value] | None:
        """Returns the results of a loop or a rematerialised part, or None if it has no layers."""
        kind = _KINDS.get(equation.primitive.name)
        if kind is None:
            return None
        part, inner = kind(equation, values), _Walk(self._given)
        jax.eval_shape(lambda p: part.run(inner, p), part.program.in_avals)
        if not inner.layers:
            return None
        carried = [*part.carry, *part.results[: len(part.carry)]]
        self.copied |= inner.copied.union(*(value.leaves for value in carried))
        self.sequential |= inner.sequential
        number, primals = len(self.layers), [value.primal for value in values]
        for layer, output in zip(inner.layers, inner.outputs, strict=True):
            of_step = any(each is part.slices for each in layer.chain)
            loops = (*(Loop(length, of_step) for length in part.lengths), *layer.loops)
            self.layers.append(layer._replace(loops=loops))
            shape = (*part.lengths, *output.shape)
            self.outputs.append(jax.ShapeDtypeStruct(shape, output.dtype))
        if self._probes is None:
            return part.values(primitives.bind(equation, primals))
        offsets = self._probes.offsets[number : len(self.layers)]

        def run(primals: list[Array], offsets: list[Array]) -> tuple[list[Array], list[Array]]:
            return part.run(_Walk(self._given, Probes(offsets, {})), primals)

        outs, residuals = part.execute(run, primals, offsets)
        self.residuals += residuals
        return part.values(outs)


# An offset is zero: adding it would only cost the time to read it.
@jax.custom_jvp
def _tapped(output: Array, offset: Array) -> Array:
    """Returns ``output``, as a function of which the derivative is that of the sum."""
    return output


@_tapped.defjvp
def _tapped_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple:
    return primals[0], tangents[0] + tangents[1]


class _Rematerialized:
    """A part of the loss that its backward pass computes again."""

    def __init__(self, equation: Any, values: list[_Value]):
        self.settings, self.program = equation.params, primitives.program_of(equation)
        self.starts, self.results, self.carry = values, [], []
        # Of the loop that it is, if it is one.
        self.lengths, self.slices = (), _Slices()

    def run(self, walk: _Walk, primals: list[Array]) -> tuple[list[Array], list[Array]]:
        """Returns the results of the program inside, and the residuals of its layers."""
        starts = [v._replace(primal=p) for v, p in zip(self.starts, primals, strict=True)]
        self.results = walk.through(self.program, starts)
        return [result.primal for result in self.results], walk.residuals

    def execute(self, run: Callable, primals: list[Array], offsets: list[Array]) -> tuple:
        """Returns the results of the equation, and the residuals."""
        # The inputs of its layers are kept, and all else inside is computed again.
        how = {name: self.settings[name] for name in ("prevent_cse", "policy")}
        return jax.checkpoint(run, **how)(primals, offsets)

    def values(self, outs: list[Array]) -> list[_Value]:
        """Returns the results as values of the program outside."""
        return [v._replace(primal=out) for v, out in zip(self.results, outs, strict=True)]


class _Scan(_Rematerialized):
    """A loop with a fixed number of steps."""

    def __init__(self, equation: Any, values: list[_Value]):
        super().__init__(equation, values)
        self.lengths, self.first = (self.settings["length"],), self.settings["num_consts"]
        self.carries = self.settings["num_carry"]
        steps = self.first + self.carries
        self.carry = values[self.first : steps]
        # What a loop carries depends on the record, whatever it starts from.
        self.starts = values[: self.first] + [_Value(value.primal, True) for value in self.carry]
        for value in values[steps:]:
            chain = None if value.chain is None else (*value.chain, self.slices)
            self.starts.append(value._replace(chain=chain))

    def execute(self, run: Callable, primals: list[Array], offsets: list[Array]) -> tuple:
        first, steps = self.first, self.first + self.carries

        def body(carry: list[Array], both: tuple[list[Array], list[Array]]) -> tuple:
            outs, residuals = run([*primals[:first], *carry, *both[0]], both[1])
            return outs[: self.carries], (outs[self.carries :], residuals)

        how = {name: self.settings[name] for name in ("length", "reverse", "unroll")}
        inputs = primals[steps:], offsets
        carry, (outs, residuals) = lax.scan(body, primals[first:steps], inputs, **how)
        return [*carry, *outs], residuals

    def values(self, outs: list[Array]) -> list[_Value]:
        carry = [_Value(out, True) for out in outs[: self.carries]]
        stacked = super().values(outs)[self.carries :]
        return carry + [value._replace(chain=None) for value in stacked]


_KINDS = {"scan": _Scan, "checkpoint": _Rematerialized, "remat2": _Rematerialized}


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
    moves = [each for each in weight.chain if not isinstance(each, _Slices)]
    # Repeated entries add up in the parameter's gradient, whose norm the rules do not give.
    repeats = any(e.invars[0].aval.size != e.outvars[0].aval.size for e in moves)
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
