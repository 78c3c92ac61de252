"""Detects, on synthetic inputs, whether a model mixes examples of a batch, and in which layer."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from dpjax._program import program_hash
from dpjax._typing import Array, Params, PyTree

Apply = Callable[[Params, PyTree], Any]

_UNMIXED: set[str] = set()
"""Programs of models that mix nothing, so that another fit of one need not run it."""


class Call(NamedTuple):
    """What one layer was shown and gave."""

    layer: str
    inputs: PyTree
    outputs: PyTree


Watch = Callable[[list[Call]], contextlib.AbstractContextManager[None]]
"""Appends every call of a layer, in the order in which they end."""


def mixing_layer(apply: Apply, params: Params, example: PyTree, watch: Watch) -> str | None:
    """Returns words for the first layer that mixes a batch, or None if none does.

    Its output for one example changes with another.

    Args:
      apply: of parameters and a batch.
      params: of which shapes and dtypes are read.
      example: shapes and dtypes of one example.
      watch: while it is open, the calls of layers are noted.

    Privacy: reads no record; parameters and examples are made up.

    >>> example = jax.ShapeDtypeStruct((2,), jnp.float32)
    >>> mixing_layer(lambda w, x: x @ w, jnp.zeros(2), example, no_layers) is None
    True
    >>> mixing_layer(lambda w, x: x @ w - jnp.mean(x), jnp.zeros(2), example, no_layers)
    'the model itself'
    """
    pair = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((2, *leaf.shape), leaf.dtype), example)
    program = program_hash((apply, (params, pair)))
    if program in _UNMIXED:
        return None
    rng = np.random.default_rng(0)
    # Made up too: a start of zeros would hide what a layer does to the output.
    params = jax.tree.map(functools.partial(_made_up, rng), params)
    pair = jax.tree.map(functools.partial(_made_up, rng), pair)
    other = jax.tree.map(_with_another_second, pair)
    run = jax.jit(lambda params, batch: apply(params, batch))
    if _first_is_same(run(params, pair), run(params, other)):
        _UNMIXED.add(program)
        return None
    calls: tuple[list[Call], list[Call]] = [], []
    for noted, batch in zip(calls, (pair, other), strict=True):
        with watch(noted):
            apply(params, batch)
    for one, two in zip(*calls, strict=True):
        if _first_is_same(one.inputs, two.inputs) and not _first_is_same(one.outputs, two.outputs):
            return one.layer
    return "the model itself"


@contextlib.contextmanager
def no_layers(calls: list[Call]) -> Iterator[None]:
    """Notes nothing: a plain function has no layers."""
    del calls
    yield


@contextlib.contextmanager
def linen_layers(calls: list[Call]) -> Iterator[None]:
    """Notes the calls of flax linen modules."""

    def note(method: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
        outputs = method(*args, **kwargs)
        if context.method_name == "__call__":
            name = "/".join(context.module.path)
            calls.append(Call(_words(name, context.module), args, outputs))
        return outputs

    with nn.intercept_methods(note):
        yield


def nnx_layers(module: nnx.Module) -> Watch:
    """Returns what notes the calls of flax nnx modules of the classes that ``module`` holds.

    Python looks ``__call__`` up in the class, so that is where it is put, and taken away again.
    """
    kinds = {type(node) for _, node in _modules(module) if callable(node)}

    @contextlib.contextmanager
    def watch(calls: list[Call]) -> Iterator[None]:
        names: dict[int, str] = {}
        with contextlib.ExitStack() as stack:
            for kind in kinds:
                stack.callback(_restore, kind, kind.__dict__.get("__call__"))
                kind.__call__ = _noted(kind.__call__, names, calls)
            yield

    return watch


def _modules(module: nnx.Module) -> list[tuple[str, nnx.Module]]:
    nodes = nnx.iter_graph(module)
    return [("/".join(map(str, p)), node) for p, node in nodes if isinstance(node, nnx.Module)]


def _noted(method: Callable[..., Any], names: dict[int, str], calls: list[Call]) -> Any:
    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not names:  # the whole model is called first
            names.update((id(node), name) for name, node in _modules(self))
        outputs = method(self, *args, **kwargs)
        calls.append(Call(_words(names.get(id(self), ""), self), args, outputs))
        return outputs

    return call


def _words(name: str, layer: Any) -> str:
    kind = type(layer).__name__
    return f"the layer {name!r} of the model (a {kind})" if name else f"the model itself (a {kind})"


def _restore(kind: type, method: Any) -> None:
    if method is None:
        del kind.__call__
    else:
        kind.__call__ = method


def _made_up(rng: np.random.Generator, leaf: Any) -> Array:
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        width = np.prod(leaf.shape[:-1])  # of what a kernel sums over, so that no layer overflows
        return jnp.asarray(rng.normal(size=leaf.shape) / np.sqrt(width), leaf.dtype)
    return jnp.asarray(rng.integers(0, 2, leaf.shape), leaf.dtype)  # a token that any table has


def _with_another_second(leaf: Array) -> Array:
    return leaf.at[1].set((1 - leaf[1].astype(jnp.float32)).astype(leaf.dtype))


def _first_is_same(one: PyTree, other: PyTree) -> bool:
    return all(map(_same_half, jax.tree.leaves(one), jax.tree.leaves(other)))


def _same_half(one: Any, other: Any) -> bool:
    dtype = jnp.result_type(one)
    rounding = 32 * float(jnp.finfo(dtype).eps) if jnp.issubdtype(dtype, jnp.floating) else 0.0
    one, other = (np.asarray(array).astype(np.float64) for array in (one, other))
    # Some layers are shown the rows of all examples under each other.
    if one.ndim and len(one) % 2 == 0:
        one, other = one[: len(one) // 2], other[: len(other) // 2]
    # Some accelerators do not add in the same order each time.
    room = rounding * np.max(np.abs(one), initial=0.0, where=np.isfinite(one))
    return np.allclose(one, other, rtol=0.0, atol=room, equal_nan=True)
