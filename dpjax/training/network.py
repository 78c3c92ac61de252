"""``Network``: one interface to flax nnx, flax linen and plain functions, for one example."""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import errors, nnx

from dpjax import _validate
from dpjax._program import CallsPython, program_hash
from dpjax._typing import Array, Params, PyTree
from dpjax._wide import at_least_float32
from dpjax.mechanisms import derive
from dpjax.training.mixing import batch_of, linen_layers, mixing_layer, nnx_layers, written

# Errors of models on inputs of an unexpected shape.
_REFUSALS = (TypeError, ValueError, IndexError, AssertionError, errors.FlaxError)


@dataclasses.dataclass(frozen=True)
class Network:
    """A model as a function of one example; hashable, and equal when rebuilt.

    Args:
      apply: ``apply(params, x) -> outputs``.
      batched: whether ``apply`` expects a leading batch axis; it then receives a batch of one.
      bounds: declared range of the features, to be clamped and scaled to [0, 1]; None for no
        scaling.
      program: hash of its computation, see ``program_hash``.
    """

    apply: Callable[[Params, Any], Any]
    batched: bool
    bounds: tuple[float, float] | None
    program: str = ""

    def __call__(self, params: Params, x: PyTree) -> PyTree:
        """Returns the outputs for one example, without a batch axis."""
        x = scaled(x, self.bounds)
        if not self.batched:
            return self.apply(params, x)
        outputs = self.apply(params, jax.tree.map(lambda leaf: leaf[None], x))
        return jax.tree.map(lambda leaf: leaf[0], outputs)


@dataclasses.dataclass(frozen=True)
class Flax:
    """The function of a flax module of ``params``.

    Args:
      module: a linen module, or the graph of an nnx module.
      state: other collections, or all that is no ``nnx.Param``: it stays as it is.
    """

    module: Any
    # Arrays cannot be hashed; what they hold is in the hash of the program.
    state: Any = dataclasses.field(compare=False, repr=False)

    def __call__(self, params: Params, x: Any) -> Any:
        """Returns the outputs."""
        return self.bound(params)(x)

    def bound(self, params: Params) -> Any:
        """Returns the module with all that it holds, in variables of its own."""
        if isinstance(self.module, nn.Module):
            return self.module.bind({"params": params, **self.state}, mutable=list(self.state))
        # New containers: what a module writes must not reach the state that is kept.
        state = jax.tree.map(lambda leaf: leaf, self.state)
        return nnx.merge(self.module, nnx.State(params), state)

    def called(self, params: Params, state: Any, x: Any) -> Any:
        """Returns outputs, and ``state`` after the call."""
        if isinstance(self.module, nn.Module):
            return self.module.apply({"params": params, **state}, x, mutable=list(state))
        module = dataclasses.replace(self, state=state).bound(params)
        # Parameters, then all that is none: the third part is the state.
        return module(x), nnx.split(module, nnx.Param, ...)[2]


def scaled(x: PyTree, bounds: tuple[float, float] | None) -> PyTree:
    """Returns ``x`` clamped to the declared ``bounds``, then scaled to [0, 1]."""
    if bounds is None:
        return x
    low, high = bounds

    def scale(leaf: Array) -> Array:
        return (jnp.clip(at_least_float32(leaf), low, high) - low) / (high - low)

    return jax.tree.map(scale, x)


def network(
    model: Any,
    example: PyTree,
    params: Params | None,
    root: Callable[[], Array],
    *,
    batched: bool | None = None,
    bounds: tuple[float, float] | None = None,
) -> tuple[Network, Params]:
    """Returns the model as a function of one example, and its parameters.

    ``model``, ``params``, ``batched`` and ``bounds`` are those of ``fit``; ``example`` holds shapes
    and dtypes of one example's features; ``root`` returns the root key, and is called only to
    initialise a linen module.
    """
    if bounds is not None:
        low, high = (_validate.finite("bounds", bound) for bound in bounds)
        if not low < high:
            raise ValueError(f"bounds must be (low, high), low below high, got {bounds!r}.")
        bounds = (low, high)
    # As the model sees them: scaled features are floating.
    example = jax.eval_shape(lambda x: scaled(x, bounds), example)
    watch: Any = contextlib.nullcontext
    if isinstance(model, nnx.Module):
        apply, params = _split(model, params)
        watch = nnx_layers(model)
    elif isinstance(model, nn.Module):
        watch = linen_layers
        apply, params, batched = _initialised(model, example, params, root, batched)
    # A class that nobody has instantiated is callable too.
    elif callable(model) and not isinstance(model, type):
        apply, batched = model, bool(batched)
        if params is None:
            raise ValueError(
                "params is required with a plain function: pass its public starting point."
            )
    else:
        raise ValueError(
            "model must be a flax module or a function (params, x) -> outputs of one example, got "
            f"{model!r}."
        )
    _check_floating(params)
    params = jax.tree.map(jnp.asarray, params)
    if batched is None:
        batched = _follows_batches(lambda x: apply(params, x), example)
    # Hashed without the bounds, which are compared as numbers.
    unscaled = Network(apply, batched, None)
    program = _program(model, unscaled, params, example)
    # A model that takes one example cannot see another.
    layer = None if not batched else mixing_layer(apply, params, example, watch)
    if layer is not None:
        raise ValueError(
            f"{layer} mixes the examples of a batch: its output for one changes with another. "
            "Private training computes the gradient of each example separately, so the layer "
            "would see batches of one and compute something else. Remove it, or use a layer that "
            "works within one example, such as LayerNorm or GroupNorm."
        )
    return dataclasses.replace(unscaled, bounds=bounds, program=program), params


def _program(model: Any, unscaled: Network, params: Params, example: PyTree) -> str:
    shapes, apply, found = jax.eval_shape(lambda: params), unscaled.apply, None
    try:
        if isinstance(apply, Flax) and apply.state:
            seen = batch_of(example, 1) if unscaled.batched else example
            found = written(apply.called, shapes, apply.state, seen)
        program = program_hash((unscaled, (shapes, example)))
    except errors.InvalidRngError as error:
        layer = str(error).split(" needs ")[0]
        raise ValueError(f"the layer {layer!r} of the model ({error}) {_DRAWS}") from error
    except CallsPython:
        # Also a ``ValueError``, but with a message of its own.
        raise
    except _REFUSALS as error:
        shapes, needed = (jax.tree.map(_shown, tree) for tree in (params, example))
        raise ValueError(
            f"the model cannot be computed with params {shapes} for an example {needed}: {error} "
            "params= is its public starting point, in the shapes that it reads."
        ) from error
    if found is not None:
        raise ValueError(_state_error(model, *found))
    return program


def _split(module: nnx.Module, params: Params | None) -> tuple[Flax, Params]:
    graphdef, own, rest = nnx.split(module, nnx.Param, ...)
    own = nnx.to_pure_dict(own)

    def kept(leaf: Any) -> Any:  # as it is now, whoever writes an array of NumPy later
        return np.broadcast_to(leaf.copy(), leaf.shape) if isinstance(leaf, np.ndarray) else leaf

    given = nnx.to_pure_dict(params) if isinstance(params, nnx.State) else params
    return Flax(graphdef, jax.tree.map(kept, rest)), own if given is None else _like(given, own)


def _initialised(
    module: nn.Module,
    example: PyTree,
    params: Params | None,
    root: Callable[[], Array],
    batched: bool | None,
) -> tuple[Flax, Params, bool]:
    # Shapes do not depend on the key.
    def shapes(x: PyTree) -> Any:
        return jax.eval_shape(module.init_with_output, jax.random.key(0), x)

    if batched is None:
        batched = _follows_batches(lambda x: shapes(x)[0], example)
    # A batch of one, as training calls it.
    seen = batch_of(example, 1) if batched else example
    start = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), seen)
    expected = {"params": {}, **shapes(start)[1]}
    given: Any = params
    if params is None:
        initial = jax.jit(module.init)
        # By a public key, so that whoever loads the parameters can make the rest again.
        given = initial(jax.random.key(0), start) if len(expected) > 1 else {}
        given["params"] = initial(derive(root(), "initial", 0), start).get("params", {})
    elif not isinstance(given, Mapping) or "params" not in given or "params" in expected["params"]:
        given = {"params": given}
    # Copies: what the caller later writes into its arrays changes no training.
    state = jax.tree.map(jnp.array, _like(given, expected))
    return Flax(module, state), state.pop("params"), batched


def _like(given: PyTree, needed: PyTree) -> PyTree:
    """Returns ``given`` in the containers of ``needed``: a saved file has dictionaries of words."""
    found, wanted = (
        {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}
        for leaves in map(jax.tree_util.tree_leaves_with_path, (given, needed))
    )
    # In the model's order, then what it does not have: the first difference is named.
    for name in {**wanted, **found}:
        one, other = (_shown(leaves.get(name)) for leaves in (found, wanted))
        if one != other:
            raise ValueError(
                f"params are not those of the model: {name!r} is {one}, and in the model {other}. "
                "Pass a tree like nnx.state(model, nnx.Param), or for linen like module.init's."
            )
    return jax.tree.unflatten(jax.tree.structure(needed), [found[name] for name in wanted])


def _shown(leaf: Any) -> str:
    return "missing" if leaf is None else f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}"


def _follows_batches(apply: Callable[[PyTree], Any], example: PyTree) -> bool:
    """Returns whether outputs have the leading axis of the inputs, whatever its length."""
    try:
        # At two lengths, as outputs may have one of them by chance.
        for size in (2, 3):
            for leaf in jax.tree.leaves(jax.eval_shape(apply, batch_of(example, size))):
                if leaf.ndim == 0 or leaf.shape[0] != size:
                    return False
    except _REFUSALS:
        return False
    return True


_DRAWS = (
    "draws random numbers, for which training has no stream. Turn that off, by model.eval() or "
    "deterministic=True, or take Dropout out: the noise of private training regularizes already."
)


def _state_error(model: Any, path: tuple[Any, ...], by_example: bool) -> str:
    # Keys of the state's dictionaries; the path may go on inside a variable.
    of_dicts = itertools.takewhile(lambda key: hasattr(key, "key"), path)
    keys, nodes = tuple(key.key for key in of_dicts), {}
    layer, name, what = keys[1:-1], keys[-1:], f"a linen collection {keys[0]!r}"
    if isinstance(model, nnx.Module):
        nodes = dict(nnx.iter_graph(model))
        # The innermost module on the path is the layer to name.
        depth = max(i for i in range(len(keys)) if isinstance(nodes.get(keys[:i]), nnx.Module))
        layer, name, what = keys[:depth], keys[depth:], f"a {type(nodes[keys[:depth]]).__name__}"
    layer, name = ("/".join(map(str, names)) for names in (layer, name))
    begin = f"the layer {layer or 'the module itself'!r} of the model ({what}) "
    if isinstance(nodes.get(keys), nnx.RngState):
        return begin + _DRAWS
    if by_example:
        return begin + (
            f"keeps statistics or a memory, {name!r}, which a call writes from the examples: no "
            "clipping bounds and no noise covers what they would carry on. Where what it holds is "
            "public, computed from none of these records, freeze it by model.eval() or "
            "use_running_average=True; or use GroupNorm or LayerNorm in its place."
        )
    return begin + (
        f"writes {name!r} in each call and computes with it in the next, but training calls the "
        "model for each record apart, in no order. Turn that off, by model.eval() or "
        "update_stats=False, or make it a constant."
    )


def _check_floating(params: Params) -> None:
    leaves = jax.tree_util.tree_leaves_with_path(params)
    if not leaves:
        raise ValueError("the model has no parameters: there is nothing to train.")
    for path, leaf in leaves:
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            raise ValueError(
                f"params must be floating: {name!r} of the model is {jnp.result_type(leaf)}. Make "
                "it a constant of the model, or convert it."
            )
