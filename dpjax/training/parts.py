"""Which parameters of a model are trained, and which are constants of it."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from dpjax import _validate
from dpjax._typing import Params, PyTree

Predicate = Callable[[tuple[Any, ...], Any], Any]


def predicate_of(trainable: Any) -> Predicate:
    """Returns ``trainable`` as a function of a path, a tuple of names, and what stands there."""
    try:
        return nnx.filterlib.to_predicate(trainable)
    except (TypeError, ValueError) as error:
        raise ValueError(
            "trainable must be an nnx filter such as nnx.LoRAParam or nnx.PathContains('head'), or "
            f"a function (path, leaf) -> bool, got {_validate.shown(trainable)}."
        ) from error


def trained_variables(module: nnx.Module, predicate: Predicate) -> Predicate:
    """Returns the variables of ``module`` that are trained, by their paths.

    A filter that looks at no type would choose statistics and random streams as well: what is no
    ``nnx.Param`` is trained only where the filter asks for its type.
    """

    def trains(path: tuple[Any, ...], variable: Any) -> bool:
        if not predicate(path, variable):
            return False
        return isinstance(variable, nnx.Param) or not predicate(path, nnx.Param(variable))

    variables = dict(nnx.to_flat_state(nnx.state(module)))
    trained = {path for path, variable in variables.items() if trains(path, variable)}
    # The state has each variable once, by the first of its names.
    for names, (path, variable) in itertools.product(
        nnx.find_duplicates(module), variables.items()
    ):
        below = [path[len(name) :] for name in names if path[: len(name)] == name]
        for other in (name + rest for rest in below for name in names):
            if trains(other, variable) != (path in trained):
                one, two = ("/".join(map(str, name)) for name in (path, other))
                raise ValueError(
                    f"trainable chooses one of {one!r} and {two!r} of the model, which are one "
                    "parameter (tied weights). Choose both or neither."
                )
    if all(itertools.starmap(predicate, variables.items())):
        raise _no_part("all", list(variables))
    return nnx.filterlib.PathIn(*trained)


def _no_part(chosen: str, paths: Sequence[tuple[Any, ...]]) -> ValueError:
    names = ["/".join(map(str, path)) or "one array without a name" for path in paths]
    return ValueError(
        f"trainable chooses {chosen} of the parameters of the model: {', '.join(names[:20])}"
        f"{' and more' if len(names) > 20 else ''}. Pass nnx.PathContains(name), or a function of "
        f"a path, a tuple of names such as {paths[0] if paths else ()}; filters by type are for "
        "nnx. To train all parameters leave trainable= out."
    )


def _name(key: Any) -> Any:
    return getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))


def partition(model: Any, params: Params, predicate: Predicate) -> tuple[Params, Params]:
    """Returns the trained and the other parameters, each with None in place of the rest."""
    leaves, tree = jax.tree_util.tree_flatten_with_path(params)
    paths = [tuple(map(_name, path)) for path, _ in leaves]
    trained = [bool(predicate(path, leaf)) for path, (_, leaf) in zip(paths, leaves, strict=True)]
    if not any(trained):
        raise _no_part("none", paths)
    if all(trained) and not isinstance(model, nnx.Module):  # of which state may be left out
        raise _no_part("all", paths)
    parts = (
        [leaf if t is part else None for t, (_, leaf) in zip(trained, leaves, strict=True)]
        for part in (True, False)
    )
    return tuple(jax.tree.unflatten(tree, part) for part in parts)


def check_trained(model: Any, params: Params, fixed: PyTree) -> None:
    """Raises where what is trained is no floating array, or a LoRA of too high a rank."""
    if not jax.tree.leaves(params):
        raise ValueError("the model has no parameters: there is nothing to train.")
    for (part, *path), leaf in jax.tree_util.tree_leaves_with_path((params, fixed)):
        dtype = jnp.result_type(leaf)
        # What is not trained may be any numbers, but no keys.
        numbers = part.idx and not jnp.issubdtype(dtype, jax.dtypes.extended)
        if not (numbers or jnp.issubdtype(dtype, jnp.floating)):
            name = jax.tree_util.keystr(tuple(path), simple=True, separator="/")
            raise ValueError(
                f"params must be floating: {name!r} of the model is {dtype}. Convert it, make it a "
                "constant of the model, or, of numbers, leave it out by trainable=."
            )
    paths = {tuple(map(_name, path)) for path, _ in jax.tree_util.tree_leaves_with_path(params)}
    for path, layer in nnx.iter_graph(model) if isinstance(model, nnx.Module) else ():
        if isinstance(layer, nnx.LoRA) and (*path, "lora_a") in paths:
            rank, name = layer.lora_a.shape[-1], "/".join(map(str, path))
            if rank > (width := min(layer.lora_a.shape[-2], layer.lora_b.shape[-1])):
                raise ValueError(
                    f"the LoRA layer {name!r} has rank {rank}, above its width {width}: noise is "
                    f"added to more numbers than its weight has, for nothing. Take at most {width}."
                )
