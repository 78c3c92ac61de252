"""``Network``: one interface to flax nnx, flax linen and plain functions, for one example."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import core, errors, nnx

from dpjax import _validate
from dpjax._program import CallsPython, program_hash
from dpjax._typing import Array, Params, PyTree
from dpjax._wide import at_least_float32
from dpjax.mechanisms import derive
from dpjax.training.mixing import linen_layers, mixing_layer, nnx_layers, no_layers

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
class Linen:
    """The function of a flax linen module; ``params`` is its collection of that name."""

    module: nn.Module

    def __call__(self, params: Params, x: Any) -> Any:
        """Returns ``module.apply``."""
        return self.module.apply({"params": params}, x)


@dataclasses.dataclass(frozen=True)
class Nnx:
    """The function of a flax nnx module; ``params`` are the arrays of its ``nnx.Param``."""

    graphdef: Any

    def __call__(self, params: Params, x: Any) -> Any:
        """Returns the outputs of the merged module."""
        return nnx.merge(self.graphdef, nnx.State(params))(x)


def scaled(x: PyTree, bounds: tuple[float, float] | None) -> PyTree:
    """Returns ``x`` clamped to the declared ``bounds``, then scaled to [0, 1].

    >>> print(scaled(jnp.array([0, 64, 255], jnp.uint8), (0.0, 128.0)))
    [0.  0.5 1. ]
    """
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

    Args:
      model: as in ``fit``.
      example: shapes and dtypes of one example's features.
      params: as in ``fit``.
      root: returns the root key; called only to initialise a linen module.
      batched: as in ``fit``.
      bounds: as in ``fit``.

    Raises:
      ValueError: for a model with state beside its parameters, one that mixes the examples of a
        batch, or one whose parameters are missing, empty, not floating, or do not fit the model.

    >>> net, params = network(nn.Dense(3), jnp.zeros(2), None, lambda: jax.random.key(0))
    >>> net.batched, net(params, jnp.zeros(2)).shape
    (True, (3,))
    """
    if bounds is not None:
        low, high = (_validate.finite("bounds", bound) for bound in bounds)
        if not low < high:
            raise ValueError(f"bounds must be (low, high), low below high, got {bounds!r}.")
        bounds = (low, high)
    example = jax.eval_shape(lambda x: scaled(x, bounds), example)
    watch = no_layers
    if isinstance(model, nnx.Module):
        apply, params = _split(model, params)
        watch = nnx_layers(model)
    elif isinstance(model, nn.Module):
        watch = linen_layers
        apply, params, batched = _initialised(model, example, params, root, batched)
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
    unscaled = Network(apply, batched, None)
    program = _program(unscaled, params, example)
    layer = None if not batched else mixing_layer(apply, params, example, watch)
    if layer is not None:
        raise ValueError(
            f"{layer} mixes the examples of a batch: its output for one changes with another. "
            "Private training computes the gradient of each example separately, so the layer "
            "would see batches of one and compute something else. Remove it, or use a layer that "
            "works within one example, such as LayerNorm or GroupNorm."
        )
    return dataclasses.replace(unscaled, bounds=bounds, program=program), params


def _program(unscaled: Network, params: Params, example: PyTree) -> str:
    try:
        return program_hash((unscaled, (jax.eval_shape(lambda: params), example)))
    except errors.InvalidRngError as error:
        layer = str(error).split(" needs ")[0]
        raise ValueError(_state_error(layer, "random stream", str(error))) from error
    except CallsPython:
        raise
    except _REFUSALS as error:
        shapes, needed = (
            jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", tree)
            for tree in (params, example)
        )
        raise ValueError(
            f"the model cannot be computed with params {shapes} for an example {needed}: {error} "
            "params= is its public starting point, in the shapes that it reads."
        ) from error


def _split(module: nnx.Module, params: Params | None) -> tuple[Nnx, Params]:
    if params is not None:
        raise ValueError("params must be None with an nnx module, which holds its own.")
    graphdef, params_of_module, rest = nnx.split(module, nnx.Param, ...)
    nodes = dict(nnx.iter_graph(module))
    for path, variable in nnx.to_flat_state(rest):
        layers = (path[:i] for i in range(len(path) - 1, -1, -1))
        layer = next(p for p in layers if isinstance(nodes.get(p), nnx.Module))
        kind = "random stream" if isinstance(variable, nnx.RngState) else type(variable).__name__
        name = "/".join(map(str, layer)) or "the module itself"
        raise ValueError(_state_error(name, kind, f"a {type(nodes[layer]).__name__}"))
    return Nnx(graphdef), nnx.to_pure_dict(params_of_module)


def _initialised(
    module: nn.Module,
    example: PyTree,
    params: Params | None,
    root: Callable[[], Array],
    batched: bool | None,
) -> tuple[Linen, Params, bool]:
    # Shapes do not depend on the key.
    def shapes(x: PyTree) -> Any:
        return jax.eval_shape(module.init_with_output, jax.random.key(0), x)

    if batched is None:
        batched = _follows_batches(lambda x: shapes(x)[0], example)
    sizes = (1,) if batched else ()
    start = jax.tree.map(lambda leaf: jnp.zeros((*sizes, *leaf.shape), leaf.dtype), example)
    variables = shapes(start)[1]
    for collection, content in variables.items():
        leaves = jax.tree_util.tree_leaves_with_path(content)
        if collection != "params" and leaves:
            layer = "/".join(key.key for key in leaves[0][0][:-1]) or "the module itself"
            raise ValueError(_state_error(layer, collection, f"a linen collection {collection!r}"))
    expected = variables.get("params", {})
    if params is None:
        key = derive(root(), "initial", 0)
        return Linen(module), jax.jit(module.init)(key, start)["params"], batched
    params = core.unfreeze(params)
    if isinstance(params, Mapping) and set(params) == {"params"} and "params" not in expected:
        params = params["params"]
    if jax.tree.map(jnp.shape, params) != jax.tree.map(jnp.shape, expected):
        raise ValueError(
            "params are not those of the model for such examples: "
            f"{jax.tree.map(jnp.shape, params)}, and it has {jax.tree.map(jnp.shape, expected)}."
        )
    return Linen(module), params, batched


def _follows_batches(apply: Callable[[PyTree], Any], example: PyTree) -> bool:
    """Returns whether outputs have the leading axis of the inputs, whatever its length."""
    try:
        for size in (2, 3):
            batch = jax.tree.map(
                lambda leaf, size=size: jax.ShapeDtypeStruct((size, *leaf.shape), leaf.dtype),
                example,
            )
            for leaf in jax.tree.leaves(jax.eval_shape(apply, batch)):
                if leaf.ndim == 0 or leaf.shape[0] != size:
                    return False
    except _REFUSALS:
        return False
    return True


def _state_error(layer: str, kind: str, what: str) -> str:
    begin = f"the layer {layer!r} of the model ({what}) "
    if kind in ("BatchStat", "batch_stats"):
        return begin + (
            "keeps statistics of the batch, through which a record reaches the gradients of the "
            "others, so that no clipping bounds it. Use GroupNorm in its place, or LayerNorm."
        )
    if kind == "random stream" and "Dropout" in what + layer:
        return begin + (
            "draws random numbers, for which training has no stream. Take Dropout out: the noise "
            "of private training regularizes already."
        )
    if kind == "random stream":
        return begin + (
            "keeps a stream of random numbers, which training has none for. A recurrent layer "
            "draws its initial carry from it: make it without, as nnx.RNN(cell, rngs=False), and "
            "call it with initial_carry=, such as zeros."
        )
    return begin + (
        f"keeps state beside its parameters, {kind!r}, which would carry records from step to step "
        "without noise. Leave it out; in place of batch statistics use GroupNorm."
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
