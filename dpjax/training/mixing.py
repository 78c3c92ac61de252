"""Detection of layers that mix the examples of a batch, and of state that a call writes."""

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.core import Tracer

from dpjax._program import program_hash
from dpjax._typing import Array, Params, PyTree
from dpjax.derivatives.primitives import walk

Apply = Callable[[Params, PyTree], Any]

_UNMIXED: set[str] = set()
"""Hashes of models that do not mix examples, so that they are checked only once."""


class Call(NamedTuple):
    """One call of a layer: its inputs and outputs."""

    layer: str
    inputs: PyTree
    outputs: PyTree


Watch = Callable[[list[Call]], contextlib.AbstractContextManager[Any]]
"""Context that appends every call of a layer, in the order in which the calls end."""


def batch_of(example: PyTree, size: int) -> PyTree:
    """Returns shapes and dtypes of a batch of examples."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((size, *x.shape), x.dtype), example)


def written(
    called: Callable[..., Any], params: Params, state: tuple[PyTree, PyTree], example: PyTree
) -> tuple[tuple[Any, ...], bool] | None:
    """Returns the path of a part of the state that a call writes, and whether by the example.

    The first part are parameters that are not trained. What depends on no example and is read by no
    output, such as the count of an unused random stream, does not count: it may stay as it is. Nor
    does what a call makes of parameters by themselves, as it begins with those that are given.

    ``called(params, state, x) -> (outputs, state)``; arrays of NumPy in ``state`` are not traced,
    as Python may compute shapes by them.
    """
    held, tree = jax.tree_util.tree_flatten_with_path(state)
    arrays = {i: leaf for i, (_, leaf) in enumerate(held) if isinstance(leaf, jax.Array)}

    def call(params: Params, arrays: dict[int, Any], x: PyTree) -> tuple[list[Any], PyTree]:
        leaves = [arrays.get(i, leaf) for i, (_, leaf) in enumerate(held)]
        outputs, state = called(params, jax.tree.unflatten(tree, leaves), x)
        after = dict(jax.tree_util.tree_leaves_with_path(state))
        return [after.get(path, old) for (path, _), old in zip(held, leaves, strict=True)], outputs

    # A value has a bit for each input that it depends on, the first for the example; in a list, so
    # that what no equation writes stays the same object.
    places = {i: [2 << i] for i in arrays}
    of_params, of_example = (len(jax.tree.leaves(tree)) for tree in (params, example))
    inputs = [[0]] * of_params + list(places.values()) + [[1]] * of_example
    results = _followed(jax.make_jaxpr(call)(params, arrays, example), inputs)
    read = _reads(results[len(held) :])
    for i, ((part, *path), _) in enumerate(held):
        carried = part == jax.tree_util.SequenceKey(1) and read & 2 << i
        if results[i] is not places.get(i) and (results[i][0] & 1 or carried):
            return tuple(path), bool(results[i][0] & 1)
    return None


def reads_first(function: Callable[..., Any], *arguments: Any) -> bool:
    """Returns whether what ``function`` returns depends on its first argument."""
    sizes = [len(jax.tree.leaves(argument)) for argument in arguments]
    inputs = [[1]] * sizes[0] + [[0]] * sum(sizes[1:])
    return bool(_reads(_followed(jax.make_jaxpr(function)(*arguments), inputs)))


def _followed(program: Any, inputs: list[list[int]]) -> list[list[int]]:
    def take(equation: Any, values: list[list[int]]) -> list[list[int]]:
        results, params = [[_reads(values)]] * len(equation.outvars), equation.params
        if equation.primitive.name in ("scan", "custom_jvp_call", "custom_vjp_call"):
            # A loop hands on a carry that comes back in its place, and rows that come back.
            own = [list(value) for value in values]
            first, carries = params.get("num_consts", 0), params.get("num_carry", 0)
            after = _followed(params.get("jaxpr", params.get("call_jaxpr")), own)
            for place, value in enumerate(after):
                allowed = range(first + carries, len(own)) if place >= carries else [first + place]
                for i in (i for i in allowed if own[i] is value):
                    results[place] = values[i]
        return results

    return walk(program, inputs, lambda _: [0], take)


def _reads(values: list[list[int]]) -> int:
    return functools.reduce(operator.or_, (value[0] for value in values), 0)


def mixing_layer(apply: Apply, params: Params, example: PyTree, watch: Watch) -> str | None:
    """Returns a description of the first layer that mixes a batch, or None if none does.

    A layer mixes if its output for one example changes with another example.

    Privacy: reads no record; parameters and examples are synthetic.
    """
    pair = batch_of(example, 2)
    program = program_hash((apply, (params, pair)))
    if program in _UNMIXED:
        return None
    rng = np.random.default_rng(0)
    # Random too: zero parameters would hide a layer's effect on the output.
    params = jax.tree.map(functools.partial(_random_like, rng), params)
    pair = jax.tree.map(functools.partial(_random_like, rng), pair)
    other = jax.tree.map(_with_another_second, pair)
    run = jax.jit(lambda params, batch: apply(params, batch))
    if _first_is_same(run(params, pair), run(params, other)):
        _UNMIXED.add(program)
        return None
    calls: tuple[list[Call], list[Call]] = [], []
    for recorded, batch in zip(calls, (pair, other), strict=True):
        with watch(recorded):
            apply(params, batch)
    for call, changed in zip(*calls, strict=True):
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((call, changed))):
            continue  # within a transformation of the model's own
        same_inputs = _first_is_same(call.inputs, changed.inputs)
        if same_inputs and not _first_is_same(call.outputs, changed.outputs):
            return call.layer
    return "the model itself"


@contextlib.contextmanager
def linen_layers(calls: list[Call]) -> Iterator[None]:
    """Records the calls of flax linen modules."""

    def record(method: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
        outputs = method(*args, **kwargs)
        if context.method_name == "__call__":
            name = "/".join(context.module.path)
            calls.append(Call(_describe(name, context.module), args, outputs))
        return outputs

    with nn.intercept_methods(record):
        yield


def nnx_layers(module: nnx.Module) -> Watch:
    """Returns a context that records the calls of flax nnx modules of the classes in ``module``.

    Python looks ``__call__`` up in the class, so the context replaces it there and restores it.
    """
    kinds = {type(node) for _, node in _modules(module) if callable(node)}

    @contextlib.contextmanager
    def watch(calls: list[Call]) -> Iterator[None]:
        names: dict[int, str] = {}
        with contextlib.ExitStack() as stack:
            for kind in kinds:
                recorded = _recorded(kind.__call__, names, calls)
                stack.enter_context(mock.patch.object(kind, "__call__", recorded))
            yield

    return watch


def _modules(module: nnx.Module) -> list[tuple[str, nnx.Module]]:
    nodes = nnx.iter_graph(module)
    return [("/".join(map(str, p)), node) for p, node in nodes if isinstance(node, nnx.Module)]


def _recorded(method: Callable[..., Any], names: dict[int, str], calls: list[Call]) -> Any:
    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not names:  # the outermost model is called first
            names.update((id(node), name) for name, node in _modules(self))
        outputs = method(self, *args, **kwargs)
        calls.append(Call(_describe(names.get(id(self), ""), self), args, outputs))
        return outputs

    return call


def _describe(name: str, layer: Any) -> str:
    kind = type(layer).__name__
    return f"the layer {name!r} of the model (a {kind})" if name else f"the model itself (a {kind})"


def _random_like(rng: np.random.Generator, leaf: Any) -> Array:
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        width = np.prod(leaf.shape[:-1])  # summands of a kernel: no layer overflows
        return jnp.asarray(rng.normal(size=leaf.shape) / np.sqrt(width), leaf.dtype)
    return jnp.asarray(rng.integers(0, 2, leaf.shape), leaf.dtype)  # a token that any table has


def _with_another_second(leaf: Array) -> Array:
    return leaf.at[1].set((1 - leaf[1].astype(jnp.float32)).astype(leaf.dtype))


def _first_is_same(left: PyTree, right: PyTree) -> bool:
    return all(map(_same_half, jax.tree.leaves(left), jax.tree.leaves(right)))


def _same_half(left: Any, right: Any) -> bool:
    dtype = jnp.result_type(left)
    rounding = 32 * float(jnp.finfo(dtype).eps) if jnp.issubdtype(dtype, jnp.floating) else 0.0
    left, right = (np.asarray(array).astype(np.float64) for array in (left, right))
    # Some layers receive the rows of all examples stacked.
    if left.ndim and len(left) % 2 == 0:
        left, right = left[: len(left) // 2], right[: len(right) // 2]
    # Some accelerators do not add in the same order each time.
    tolerance = rounding * np.max(np.abs(left), initial=0.0, where=np.isfinite(left))
    return np.allclose(left, right, rtol=0.0, atol=tolerance, equal_nan=True)
