"""Clipped sums of gradients and Hessians along k directions, at the cost of about k gradients.

Differentiating twice record by record would build per-example gradients of all p parameters, one
for each direction, and contract them with the directions again: 100 times the cost of a gradient
step and more. Here the chain rule is applied to the steps of the loss instead. With ``a'`` the
derivative of an intermediate value along a direction and ``c`` that of the loss in it,

    d' S H S^T d = sum over the nonlinear steps y = f(a) of <c_y, f''(a)[a', a']>,

and of a product with a weight W only ``a'`` and the pull-back of ``c`` through the direction's W'
are needed, which all records share: large convolutions and matrix products, no array of p numbers
for a record.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dpjax._typing import Array, Float, Loss, PyTree, Real, Relation, pytree_dataclass, static
from dpjax._wide import Expansion, on_device, wide_dtype
from dpjax.derivatives import chunks, clipping, general, primitives, rounding
from dpjax.derivatives.chunks import Chunk, blocks
from dpjax.derivatives.general import Batch, Mask, Tree
from dpjax.derivatives.ghost import patches
from dpjax.derivatives.integers import Summand
from dpjax.derivatives.per_example import JointSum
from dpjax.derivatives.primitives import example_of, map_examples, vmap_mixes_examples

Store = Callable[[Array], Array]


@dataclasses.dataclass(eq=False)
class _Value:
    """An intermediate value of the loss of one record."""

    primal: Array
    active: bool = False  # whether it depends on the parameters
    of_record: bool = False
    curved: bool = False  # whether a nonlinear step lies before it, so that its c is needed


class _Step(NamedTuple):
    """One step from parameters to loss, as a function of its active inputs."""

    primitive: str
    parameters: dict[str, Any]
    linear: bool
    inputs: list[_Value]
    outputs: list[_Value]
    apply: Callable[..., list[Array]]


def derivatives(
    loss: Callable[[Array, PyTree], Array],
    point: Array,
    directions: Array,
    record: PyTree,
    store: Store = lambda value: value,
) -> tuple[Array, Array]:
    """Returns S g, shape (k,), and S H S^T, shape (k, k), of the loss of one record.

    ``loss`` may be anything that ``jax.jvp`` of ``jax.grad`` takes, but for functions with a
    ``jax.custom_vjp``, which have no forward derivative. ``directions`` are the rows of S;
    ``store`` stores an intermediate derivative in memory, so that no compiler recomputes it.

    Privacy: NOT a mechanism; reads one record.
    """
    start, out, steps = _trace_steps(loss, point, record)
    k, dtype = directions.shape[0], directions.dtype
    if not out.active:
        return jnp.zeros(k, dtype), jnp.zeros((k, k), dtype)
    # Second derivatives meet the inputs of nonlinear steps alone; that of the loss is S g.
    needed = {id(value): value for step in steps if not step.linear for value in step.inputs}
    needed[id(out)] = out

    def push(direction: Array) -> dict[int, Array]:
        tangents = {id(start): direction}
        for step in steps:
            _push(step, tangents, store)
        # Only these leave the map: all others would be held for all k directions at once.
        return {name: tangents[name] for name in needed}

    tangents = jax.vmap(push)(directions)
    curvature = _curvature(out, steps, tangents, store)
    return tangents[id(out)].astype(dtype), curvature.astype(dtype)


def widest(loss: Callable[[Array, PyTree], Array], point: Array, record: PyTree) -> int:
    """Returns the size of the largest intermediate value whose derivatives are stored.

    >>> widest(lambda w, x: jnp.sum(jnp.tanh(jnp.outer(x, w))), jnp.zeros(3), jnp.ones(5))
    15
    """
    sizes = [1]

    def measure(point: Array, record: PyTree) -> None:
        steps = _trace_steps(loss, point, record)[2]
        values = [value for step in steps for value in step.outputs if value.curved]
        sizes.extend(value.primal.size for value in values)

    # Nothing is computed, only traced; the sizes leave by the list.
    jax.eval_shape(measure, point, record)
    return max(sizes)


def _trace_steps(
    loss: Callable[[Array, PyTree], Array], point: Array, record: PyTree
) -> tuple[_Value, _Value, list[_Step]]:
    """Returns the point, the loss, and the steps between them."""
    steps: list[_Step] = []
    traced = primitives.trace(loss, point, record)
    start = _Value(point, active=True)
    leaves = [_Value(leaf, of_record=True) for leaf in jax.tree.leaves(record)]
    take = functools.partial(_take, steps)
    (out,) = primitives.walk(traced, [start, *leaves], _Value, take)
    return start, out, steps


def _take(steps: list[_Step], equation: Any, values: list[_Value]) -> list[_Value]:
    name = equation.primitive.name
    primals = [value.primal for value in values]
    of_record = any(value.of_record for value in values)
    outputs = [_Value(result, of_record=of_record) for result in primitives.bind(equation, primals)]
    active = [i for i, value in enumerate(values) if value.active]
    # Integers and bools, such as an index or a comparison, have no derivative.
    moving = [
        i for i, v in enumerate(outputs) if jnp.issubdtype(jnp.result_type(v.primal), jnp.floating)
    ]
    # Constant in the parameters: a value to read, but no step of the chain rule.
    if not active or not moving:
        return outputs

    def apply(*changed: Array) -> list[Array]:
        arguments = list(primals)
        for i, argument in zip(active, changed, strict=True):
            arguments[i] = argument
        results = primitives.bind(equation, arguments)
        return [results[i] for i in moving]

    # A product is linear while only one factor moves, a quotient while its divisor stands still.
    alone = len(active) == 1
    linear = (
        name in primitives.LINEAR
        or (alone and name in primitives.BILINEAR)
        or (name == "div" and active == [0])
    )
    for i in moving:
        outputs[i].active = True
        outputs[i].curved = not linear or any(values[i].curved for i in active)
    parts = [values[i] for i in active], [outputs[i] for i in moving]
    steps.append(_Step(name, equation.params, linear, *parts, apply))
    return outputs


def _push(step: _Step, tangents: dict[int, Array], store: Store) -> None:
    """Adds the derivatives of a step's outputs along one direction to ``tangents``."""
    # Only what a nonlinear step takes in is read again, by ``_curvature``.
    if not step.linear:
        for value in step.inputs:
            if value.of_record and jnp.ndim(value.primal):
                tangents[id(value)] = store(tangents[id(value)])
    points = tuple(value.primal for value in step.inputs)
    moves = tuple(tangents[id(value)] for value in step.inputs)
    if step.primitive in primitives.BY_ENTRY:
        # The derivative once, and not once for every direction.
        _, (derivative,) = jax.jvp(step.apply, points, (jnp.ones_like(points[0]),))
        pushed = [derivative * moves[0]]
    else:
        _, pushed = jax.jvp(step.apply, points, moves)
    tangents |= {id(value): move for value, move in zip(step.outputs, pushed, strict=True)}


def _curvature(out: _Value, steps: list[_Step], tangents: dict[int, Array], store: Store) -> Array:
    """Returns S H S^T (k, k), by a backward pass with the cotangents c of all values."""
    k = tangents[id(out)].shape[0]
    total = jnp.zeros((k, k), wide_dtype(out.primal.dtype))
    cotangents = {id(out): jnp.ones_like(out.primal)}
    for step in reversed(steps):
        # Up to the first nonlinear step nothing adds to the Hessian.
        if not any(value.curved and id(value) in cotangents for value in step.outputs):
            continue
        # An output that the loss does not read has the cotangent 0.
        of_outputs = [cotangents.get(id(v), jnp.zeros_like(v.primal)) for v in step.outputs]
        if not step.linear:
            moves = [tangents[id(value)] for value in step.inputs]
            total = total + _second(step, moves, of_outputs, store).astype(total.dtype)
        for value, cotangent in _pull(step, of_outputs):
            # A value that several steps read gets the sum of their cotangents.
            known = id(value) in cotangents
            cotangents[id(value)] = cotangents[id(value)] + cotangent if known else cotangent
    return total


def _pull(step: _Step, cotangents: list[Array]) -> list[tuple[_Value, Array]]:
    """Returns c in each input that needs it; a weight itself never does."""
    needed = [i for i, value in enumerate(step.inputs) if value.curved]
    if not needed:
        return []

    def of_needed(*changed: Array) -> list[Array]:
        arguments = [value.primal for value in step.inputs]
        for i, argument in zip(needed, changed, strict=True):
            arguments[i] = argument
        return step.apply(*arguments)

    # With respect to the needed inputs alone: the cotangent of a weight would have p numbers.
    _, pull = jax.vjp(of_needed, *(step.inputs[i].primal for i in needed))
    return list(zip((step.inputs[i] for i in needed), pull(cotangents), strict=True))


def _second(step: _Step, tangents: list[Array], cotangents: list[Array], store: Store) -> Array:
    """Returns <c, f''[a'_i, a'_j]> of one nonlinear step for all pairs of directions, (k, k)."""
    points = tuple(value.primal for value in step.inputs)

    def pulled_back(*point: Array) -> tuple[Array, ...]:
        return jax.vjp(step.apply, *point)[1](cotangents)

    plain = step.primitive == "conv_general_dilated" and patches.is_plain(step.parameters)
    if plain and step.inputs[0].of_record and not step.inputs[1].of_record:
        # As below for products, by convolutions that are fast on a CPU.
        kernels = jax.vmap(lambda kernel: patches.turned(step.parameters, kernel))(tangents[1])
        back = jax.vmap(
            lambda kernel: patches.transposed(
                step.parameters, kernel, cotangents[0], points[0].shape
            )
        )(store(kernels))
        # f'' of a product has two mixed terms, each the transpose of the other.
        half = _gram(tangents[0], back)
        return half + half.T
    if step.primitive in primitives.BILINEAR:
        # Pull back to the factor that depends on the record: the other derivative is shared.
        first, second = (0, 1) if step.inputs[0].of_record else (1, 0)

        def through(direction: Array) -> Array:
            def product(factor: Array) -> list[Array]:
                return step.apply(*((factor, direction) if first == 0 else (direction, factor)))

            return jax.vjp(product, points[first])[1](cotangents)[0]

        half = _gram(tangents[first], jax.vmap(through)(tangents[second]))
        return half + half.T
    if step.primitive in primitives.BY_ENTRY:
        # f'' is diagonal: one number an entry, the same for all directions.
        _, (curvature,) = jax.jvp(pulled_back, points, (jnp.ones_like(points[0]),))
        return _gram(tangents[0] * curvature[None], tangents[0])
    # Any other step: forward over backward, one pass for each direction.
    turned = jax.vmap(lambda *moves: jax.jvp(pulled_back, points, moves)[1])(*tangents)
    return sum(map(_gram, tangents, turned), jnp.zeros(()))


def _gram(left: Array, right: Array) -> Array:
    wide = wide_dtype(left.dtype)
    left, right = (part.reshape(part.shape[0], -1).astype(wide) for part in (left, right))
    return lax.dot_general(left, right, (((1,), (1,)), ((), ())), precision=lax.Precision.HIGHEST)


@pytree_dataclass
class SubspaceClipped:
    """The function that ``subspace_clipped`` returns."""

    gradient_weight: Real[Array, ""] | float
    hessian_weight: Real[Array, ""] | float
    loss: Any = static()
    permutation_invariant: bool = static(default=False)

    def __call__(
        self, params: Tree, batch: Batch, sketch: Float[Array, "k p"], mask: Mask = None
    ) -> JointSum:
        """Returns the sums of S g, shape (k,), and S H S^T, shape (k, k)."""
        total = self.wide(params, batch, sketch, mask)
        return JointSum(*(each.leading for each in total))

    def wide(
        self, params: Tree, batch: Batch, sketch: Float[Array, "k p"], mask: Mask = None
    ) -> JointSum:
        """Returns the result of a call in float64, as ``Expansion``."""
        weights, batch = (self.gradient_weight, self.hessian_weight), on_device(batch)
        order = self.permutation_invariant
        return JointSum(*_sums(self.loss, params, sketch, batch, mask, weights, order))

    def sensitivity(self, relation: Relation, *, rows: int) -> Real[Array, ""] | float:
        """Returns the l2 sensitivity of (S g / gradient_weight, svec(S H S^T) / hessian_weight).

        Arguments as in ``clipped_grad``; rounding is included.
        """
        # The weights are the bounds, so that C is 1.
        return rounding.sum_sensitivity(1.0, relation, rows, self.permutation_invariant)


def subspace_clipped(
    loss: Loss,
    *,
    gradient_weight: Real[Array, ""] | float,
    hessian_weight: Real[Array, ""] | float,
    permutation_invariant: bool = False,
) -> SubspaceClipped:
    """Returns ``f(params, batch, sketch, mask=None)``: derivatives in a subspace, jointly clipped.

    One record's vector is (S g / gradient_weight, svec(S H S^T) / hessian_weight) for a public
    sketch S (k, p); one factor brings it to norm 1. It costs about k gradients, and memory for the
    derivatives of a chunk of records along k directions: neither p x p nor rows x p numbers.

    Args:
      loss: ``loss(params, example) -> scalar`` sees one example.
      gradient_weight: w_g, above 0.
      hessian_weight: w_h, above 0.
      permutation_invariant: add in float64 too, for neighbours whose common rows lie elsewhere.

    Returns:
      A callable with ``.sensitivity(relation, rows=)``; its result is a ``JointSum`` in natural
      units.

    Raises:
      ValueError: if a weight is not above 0.

    Privacy: NOT a mechanism. The sensitivity holds for every sketch that does not depend on the
      records, orthonormal or not, since the projected vector is clipped.

    >>> import jax.numpy as jnp
    >>> total = subspace_clipped(
    ...     lambda w, x: (w @ x) ** 2 / 2, gradient_weight=1.0, hessian_weight=1.0)
    >>> sketch = jnp.array([[0.6, 0.8]])
    >>> print(total(jnp.zeros(2), jnp.array([[0.6, 0.8], [30.0, 40.0]]), sketch).hessian.round(3))
    [[2.]]
    """
    return SubspaceClipped(
        clipping.positive_number("gradient_weight", gradient_weight),
        clipping.positive_number("hessian_weight", hessian_weight),
        loss,
        permutation_invariant,
    )


@functools.partial(jax.jit, static_argnames=("loss", "permutation_invariant"))
def _sums(
    loss: Loss,
    params: Tree,
    sketch: Array,
    batch: PyTree,
    mask: Array | None,
    weights: tuple[Array | float, Array | float],
    permutation_invariant: bool,
) -> tuple[Expansion, Expansion]:
    n = chunks.common_length(batch, mask)
    flat, unflatten = general.flatten(params)
    if sketch.ndim != 2 or sketch.shape[1] != flat.size:
        raise ValueError(f"sketch must have shape (k, {flat.size}), got {sketch.shape}.")
    k, sketch = sketch.shape[0], sketch.astype(flat.dtype)

    def of_flat(point: Array, record: PyTree) -> Array:
        return loss(unflatten(point), record)

    sequential = vmap_mixes_examples(loss, params, batch)

    def contribution(chunk: Chunk) -> tuple[Array, Array]:
        records, keep = chunk.stored(batch, mask)

        # Without storing them a compiler would compute derivatives anew for every use.
        def store(value: Array) -> Array:
            return chunks.compute_once(chunk, lambda: value)

        def rows() -> tuple[Array, Array]:
            gradients, hessians = map_examples(
                lambda record: derivatives(of_flat, flat, sketch, record, store),
                records,
                sequential,
            )
            hessians = hessians.reshape(-1, k * k)
            return clipping.sanitize_nonfinite(gradients), clipping.sanitize_nonfinite(hessians)

        # Stored: norm and sum must read the same numbers.
        gradients, hessians = chunks.compute_once(chunk, rows)
        # The weights are the bounds, so that the joint norm is clipped to 1.
        factors = clipping.clip_factors(
            1.0, (gradients, weights[0]), (hessians, weights[1]), keep=keep
        )
        first, second = (
            rounding.block_products(blocks(factors), blocks(rows), permutation_invariant, axis=1)
            for rows in (gradients, hessians)
        )
        return first, second.reshape(-1, k, k)

    # The derivatives along all k directions are what fills the memory.
    numbers = k * widest(of_flat, flat, example_of(batch))
    # Only the Hessian is a square, which is made exactly symmetric.
    summands = tuple(
        Summand(shape, flat.dtype, weight, squares)
        for shape, weight, squares in zip(((k,), (k, k)), weights, (0, 1), strict=True)
    )
    return chunks.sum_chunks(n, chunks.rows_per_chunk(n, numbers), contribution, summands)
