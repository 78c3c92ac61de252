"""``Network``: one interface to flax nnx, flax linen and plain functions, for one example."""

import contextlib
import dataclasses
import functools
import itertools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import errors, nnx

from dpjax import _validate
from dpjax._program import CallsPython, program_hash, sha256
from dpjax._typing import Array, Params, PyTree
from dpjax._wide import at_least_float32, wide_dtype
from dpjax.mechanisms import derive
from dpjax.objectives.keyed import Keyed, takes_key, with_shape_of_key
from dpjax.training.mixing import (
    batch_of,
    linen_layers,
    mixing_layer,
    nnx_layers,
    reads_first,
    written,
)
from dpjax.training.parts import (
    Predicate,
    check_trained,
    partition,
    predicate_of,
    trained_variables,
)

# Errors of models on inputs of an unexpected shape.
_REFUSALS = (TypeError, ValueError, ArithmeticError, LookupError, AssertionError, errors.FlaxError)


@dataclasses.dataclass(frozen=True)
class Network:
    """A model as a function of one example; hashable, and equal when rebuilt.

    Args:
      apply: ``apply(params, x) -> outputs``. One that draws in training has, for that,
        ``apply.drawn(params, x, key)``.
      batched: whether ``apply`` expects a leading batch axis; it then receives a batch of one.
      bounds: declared range of the features, to be clamped and scaled to [0, 1]; None for no
        scaling.
      program: hash of its computation, see ``program_hash``, with all that is constant in it.
      draws: whether it draws random numbers in training, where x comes as ``Keyed``.
      fixed: parameters that are not trained, None in place of the others: those of a call. Without
        it a call takes all parameters.
      dtypes: those of what is trained, in a call. Its steps are taken in float32 at least: in half
        precision those below 1/256 of a parameter would be lost.
    """

    apply: Callable[[Params, Any], Any]
    batched: bool
    bounds: tuple[float, float] | None
    program: str = ""
    draws: bool = False
    # Arrays cannot be hashed: they are in ``program``, as the state of ``Flax``.
    fixed: PyTree = dataclasses.field(default=None, compare=False, repr=False)
    dtypes: PyTree = dataclasses.field(default=None, compare=False, repr=False)

    def merged(self, params: Params) -> Params:
        """Returns all parameters of the model, in its dtypes, the trained ones as in ``params``."""
        params = params if self.dtypes is None else jax.tree.map(_cast, params, self.dtypes)
        if self.fixed is None:
            return params
        both = functools.partial(jax.tree.map, is_leaf=lambda leaf: leaf is None)
        return both(lambda fixed, leaf: leaf if fixed is None else fixed, self.fixed, params)

    def __call__(self, params: Params, x: PyTree) -> PyTree:
        """Returns the outputs for one example, without a batch axis."""
        apply: Any = self.apply
        if isinstance(x, Keyed):
            apply = functools.partial(apply.drawn, key=x.key) if self.draws else apply
            x = x.records
        params, x = self.merged(params), scaled(x, self.bounds)
        if not self.batched:
            return apply(params, x)
        outputs = apply(params, jax.tree.map(lambda leaf: leaf[None], x))
        return jax.tree.map(lambda leaf: leaf[0], outputs)


@dataclasses.dataclass(frozen=True)
class Drawing:
    """A function ``(params, x, key) -> outputs``, whose ``key`` is None but in training."""

    function: Callable[..., Any]

    def __call__(self, params: Params, x: Any) -> Any:
        """Returns the outputs, with nothing drawn."""
        return self.function(params, x, key=None)

    def drawn(self, params: Params, x: Any, key: Array) -> Any:
        """Returns the outputs in training."""
        return self.function(params, x, key=key)


@dataclasses.dataclass(frozen=True)
class Flax:
    """The function of a flax module of ``params``, with its dropout off.

    Args:
      module: a linen module, or the graph of an nnx module.
      state: other collections, or all that is no ``nnx.Param``: it stays as it is.
      training: the graph of an nnx module as it was given, if it has dropout that is on.
    """

    module: Any
    # Arrays cannot be hashed; what they hold is in the hash of the program.
    state: Any = dataclasses.field(compare=False, repr=False)
    training: Any = None

    def __call__(self, params: Params, x: Any) -> Any:
        """Returns the outputs."""
        with nn.intercept_methods(_without_dropout):
            return self.bound(params)(x)

    def drawn(self, params: Params, x: Any, key: Array) -> Any:
        """Returns the outputs in training, where all random streams begin with ``key``."""
        if isinstance(self.module, nn.Module):
            held = {"params": params, **self.state}
            return self.module.apply(held, x, rngs=_streams(key), mutable=list(self.state))[0]
        begun = dataclasses.replace(self, module=self.training, state=_begun(self.state, key))
        return begun.bound(params)(x)

    def bound(self, params: Params) -> Any:
        """Returns the module with all that it holds, in variables of its own."""
        if isinstance(self.module, nn.Module):
            return self.module.bind({"params": params, **self.state}, mutable=list(self.state))
        # New containers: what a module writes must not reach the state that is kept.
        state = jax.tree.map(lambda leaf: leaf, self.state)
        return nnx.merge(self.module, nnx.State(params), state)

    def called(self, params: Params, state: Any, x: Any) -> Any:
        """Returns outputs, and all state after the call, of which ``state`` is a part."""
        if isinstance(self.module, nn.Module):
            with nn.intercept_methods(_without_dropout):
                return self.module.apply({"params": params, **state}, x, mutable=list(state))
        module = dataclasses.replace(self, state=state).bound(params)
        return module(x), nnx.state(module)


def _without_dropout(method: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
    """Calls a method of a linen module with dropout off, also that of flax's attention."""
    module = context.module
    if context.method_name != "__call__" or not hasattr(module, "deterministic"):
        return method(*args, **kwargs)
    if isinstance(module, nn.Dropout):
        return args[0] if args else kwargs["inputs"]
    # What a module of one's own does with such a name is its own affair.
    if not type(module).__module__.startswith("flax."):
        return method(*args, **kwargs)
    # Of the copy that is bound to this call; in two places flax takes no value.
    object.__setattr__(module, "deterministic", True)
    return method(*args, **{name: kwargs[name] for name in kwargs if name != "deterministic"})


def _streams(key: Array) -> dict[str, Array]:
    """Returns the streams of a linen module; one of another name has the key of the first."""
    return {"params": key, "dropout": jax.random.fold_in(key, 1)}


def _begun(state: Any, key: Array) -> Any:
    """Returns the state of an nnx module, each random stream begun with a key of its own."""
    begun, number = [], 0
    for path, variable in nnx.to_flat_state(state):
        if isinstance(variable, nnx.RngKey):
            keys = jax.random.split(jax.random.fold_in(key, number), variable.shape)
            variable, number = variable.replace(keys), number + 1
        elif isinstance(variable, nnx.RngCount):
            variable = variable.replace(jnp.zeros(variable.shape, variable.dtype))
        begun.append((path, variable))
    return nnx.from_flat_state(begun)


def _cast(leaf: Array, dtype: Any) -> Array:
    return leaf if leaf.dtype == dtype else leaf.astype(dtype)  # a weak type stays one


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
    trainable: Any = None,
    batched: bool | None = None,
    bounds: tuple[float, float] | None = None,
) -> tuple[Network, Params]:
    """Returns the model as a function of one example, and the parameters that are trained.

    ``model``, ``params``, ``trainable``, ``batched`` and ``bounds`` are those of ``fit``;
    ``example`` holds shapes and dtypes of one example's features; ``root`` returns the root key,
    and is called only to initialise a linen module.
    """
    if bounds is not None:
        low, high = (_validate.finite("bounds", bound) for bound in bounds)
        if not low < high:
            raise ValueError(f"bounds must be (low, high), low below high, got {bounds!r}.")
        bounds = (low, high)
    # As the model sees them: scaled features are floating.
    example = jax.eval_shape(lambda x: scaled(x, bounds), example)
    watch: Any = contextlib.nullcontext
    whole = any(trainable is everything for everything in (None, True, ...))
    predicate = None if whole else predicate_of(trainable)
    if isinstance(model, nnx.Module):
        predicate = None if predicate is None else trained_variables(model, predicate)
        apply, params = _split(model, params, predicate)
        watch = nnx_layers(model)
    elif isinstance(model, nn.Module):
        watch = linen_layers
        apply, params, batched = _initialised(model, example, params, root, batched)
    # A class that nobody has instantiated is callable too.
    elif callable(model) and not isinstance(model, type):
        apply, batched = Drawing(model) if takes_key(model) else model, bool(batched)
        if params is None:
            raise ValueError("params is required with a function: pass a public starting point.")
    else:
        raise ValueError(
            "model must be a flax module or a function (params, x) -> outputs of one example, got "
            f"{model!r}."
        )
    trained, fixed = (params, None) if predicate is None else partition(model, params, predicate)
    check_trained(model, trained, fixed)
    trained, params = jax.tree.map(jnp.asarray, (trained, params))
    # Copies: what is published may not follow what the caller later writes into an array of NumPy.
    fixed = jax.tree.map(lambda x: x if isinstance(x, jax.Array) else jnp.array(x), fixed)
    if batched is None:
        batched = _follows_batches(lambda x: apply(params, x), example)
    # Hashed without the bounds, which are compared as numbers.
    unscaled = Network(
        apply, batched, None, "", False, fixed, jax.tree.map(jnp.result_type, trained)
    )
    trained = jax.tree.map(lambda leaf: _cast(leaf, wide_dtype(leaf.dtype)), trained)
    program = _program(model, unscaled, trained, example)
    draws, program = _in_training(model, unscaled, trained, example, program)
    # A model that takes one example cannot see another.
    layer = None if not batched else mixing_layer(apply, params, example, watch)
    if layer is not None:
        raise ValueError(
            f"{layer} mixes the examples of a batch: its output for one changes with another. "
            "Private training computes the gradient of each example separately, so the layer "
            "would see batches of one and compute something else. Remove it, or use a layer that "
            "works within one example, such as LayerNorm or GroupNorm."
        )
    return dataclasses.replace(unscaled, bounds=bounds, program=program, draws=draws), trained


def _in_training(
    model: Any, unscaled: Network, params: Params, example: PyTree, program: str
) -> tuple[bool, str]:
    """Returns whether what is drawn in training changes an output, and the program with it."""
    apply: Any = unscaled.apply
    can = isinstance(apply, Drawing)
    if isinstance(apply, Flax):
        can = apply.training is not None or isinstance(apply.module, nn.Module)
    if not can:
        return False, program
    shapes, drawing = jax.eval_shape(lambda: params), dataclasses.replace(unscaled, draws=True)

    def drawn(words: Array, params: Params, x: PyTree) -> Any:
        return drawing(params, Keyed(x, words))

    layers = [x for _, x in nnx.iter_modules(model)] if isinstance(model, nnx.Module) else []

    def watched(method: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
        layers.append(context.module)
        return method(*args, **kwargs)

    try:
        with nn.intercept_methods(watched):
            found = reads_first(drawn, with_shape_of_key(example).words, shapes, example)
        if not found:
            if any(map(_may_drop, layers)):
                warnings.warn(_IDLE, stacklevel=4)  # the line that calls fit
            return False, program
        return True, sha256(program, program_hash((drawing, (shapes, with_shape_of_key(example)))))
    except CallsPython:
        raise
    except _REFUSALS as error:
        raise ValueError(
            f"the model can be evaluated, but not computed in training: {error} Mend that, or turn "
            "dropout off, by model.eval() or a rate of 0."
        ) from error


def _may_drop(layer: Any) -> bool:
    """Returns whether a layer of flax drops values, where its dropout is on."""
    if isinstance(layer, nn.Dropout | nnx.Dropout):
        return bool(layer.rate)
    return type(layer).__module__.startswith("flax.") and bool(getattr(layer, "dropout_rate", 0))


def _program(model: Any, unscaled: Network, params: Params, example: PyTree) -> str:
    shapes, apply, found = jax.eval_shape(lambda: params), unscaled.apply, None

    def called(params: Params, held: tuple[PyTree, PyTree], x: Any) -> tuple[Any, Any]:
        whole = dataclasses.replace(unscaled, fixed=held[0]).merged(params)
        outputs, state = apply.called(whole, held[1], x)
        return outputs, (nnx.to_pure_dict(state) if isinstance(state, nnx.State) else {}, state)

    try:
        if isinstance(apply, Flax) and (apply.state or unscaled.fixed is not None):
            seen = batch_of(example, 1) if unscaled.batched else example
            found = written(called, shapes, (unscaled.fixed, apply.state), seen)
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
            "params= is its public starting point, in the shapes that it reads. A third argument "
            "of a function has to be key, which is None in evaluation."
        ) from error
    if found is not None:
        raise ValueError(_state_error(model, *found))
    return program


def _split(
    module: nnx.Module, params: Params | None, predicate: Predicate | None
) -> tuple[Flax, Params]:
    training, own, rest = nnx.split(module, nnx.Any(nnx.Param, predicate), ...)
    module = nnx.merge(training, own, rest)
    for _, layer in nnx.iter_modules(module):
        if "deterministic" in vars(layer):  # no property, which follows from something else
            layer.deterministic = True  # pyright: ignore[reportAttributeAccessIssue]
    graphdef = nnx.graphdef(module)
    own = nnx.to_pure_dict(own)

    def kept(leaf: Any) -> Any:  # as it is now, whoever writes an array of NumPy later
        return np.broadcast_to(leaf.copy(), leaf.shape) if isinstance(leaf, np.ndarray) else leaf

    given = nnx.to_pure_dict(params) if isinstance(params, nnx.State) else params
    apply = Flax(graphdef, jax.tree.map(kept, rest), None if training == graphdef else training)
    return apply, own if given is None else _like(given, own)


def _initialised(
    module: nn.Module,
    example: PyTree,
    params: Params | None,
    root: Callable[[], Array],
    batched: bool | None,
) -> tuple[Flax, Params, bool]:
    # Shapes do not depend on the key.
    def shapes(x: PyTree) -> Any:
        return jax.eval_shape(module.init_with_output, _streams(jax.random.key(0)), x)

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
        given = initial(_streams(jax.random.key(0)), start) if len(expected) > 1 else {}
        given["params"] = initial(_streams(derive(root(), "initial", 0)), start).get("params", {})
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
    # What was stored of an ``nnx.State`` names the value of each variable.
    if not found.keys() & wanted.keys():
        found = {name.removesuffix("/value"): leaf for name, leaf in found.items()}
    # In the model's order, then what it does not have: the first difference is named.
    for name in {**wanted, **found}:
        one, other = (_shown(leaves.get(name)) for leaves in (found, wanted))
        if one != other:
            raise ValueError(
                f"params are not those of the model: {name!r} is {one}, and in the model {other}. "
                "Pass a tree of arrays like nnx.state(model, nnx.Param), or for linen like "
                "module.init's: rename and transpose those of another library, or cast them."
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


_IDLE = (
    "the model has dropout, but none changes an output in training: it is called with "
    "deterministic=True, as by train=False, or not at all. To drop, pass a function (params, x, "
    "key) that calls the module with train=key is not None, or leave deterministic False, which "
    "fit turns on in evaluation; if you want none, set the rate to 0, or call model.eval() (nnx)."
)
_DRAWS = (
    "draws random numbers even where dropout is off, as in evaluation. Let it follow an attribute "
    "deterministic (of nnx), or write a function (params, x, key), where key is None in evaluation."
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
