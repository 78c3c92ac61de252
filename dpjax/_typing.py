"""Type aliases that all modules share, and dataclasses that are pytrees."""

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, TypeVar, dataclass_transform, overload

import jax

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Float64, Int, Int32, Integer, Key, PyTree, Real, Shaped
    from jaxtyping import UInt32  # isort: skip
else:  # shapes in signatures are for readers, type checkers and tests, which read the annotations
    Bool = Float = Float64 = Int = Int32 = Integer = Key = PyTree = Real = Shaped = UInt32 = Any

Array = jax.Array
Params = PyTree
Loss = Callable[[Params, Any], Array]
Relation = Literal["zero_out", "replace_one", "add_or_remove_one"]

_Class = TypeVar("_Class", bound=type)


def static(**kwargs) -> Any:
    """Returns a dataclass field that is structure, not a number: a change of it compiles anew."""
    return dataclasses.field(metadata={"static": True}, **kwargs)


@overload
@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field, static))
def pytree_dataclass(cls: _Class) -> _Class: ...


@overload
@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field, static))
def pytree_dataclass(*, kw_only: bool) -> Callable[[_Class], _Class]: ...


def pytree_dataclass(cls: Any = None, *, kw_only: bool = False) -> Any:
    """Makes a frozen dataclass of a class and registers it as a pytree; a decorator.

    For queries and algorithms of your own ``jax.tree_util.register_dataclass`` will not do, and
    ``solve`` refuses it. With JAX 0.10.2 the structures of two classes registered by it are equal
    where their static fields are, and then a compiled function that is called with one class may,
    by chance, run the program of the other, with its clipping and its noise. Here the class is part
    of the structure.

    Args:
      cls: a class with annotated fields, or a frozen dataclass. Fields whose metadata say
        ``{"static": True}`` are structure, all others children.
      kw_only: whether its own fields are given by name alone; of a class that is not yet a
        dataclass.
    """
    if cls is None:
        return functools.partial(pytree_dataclass, kw_only=kw_only)
    # In its own dictionary, since a subclass of a dataclass inherits the attribute.
    if "__dataclass_fields__" not in cls.__dict__:
        cls = dataclasses.dataclass(frozen=True, kw_only=kw_only)(cls)
    # The others follow from these, and the constructor sets them again.
    fields = [field for field in dataclasses.fields(cls) if field.init]
    children = [field.name for field in fields if not field.metadata.get("static")]
    fixed = [field.name for field in fields if field.metadata.get("static")]
    keys = [jax.tree_util.GetAttrKey(name) for name in children]

    def flatten(node: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        structure = (cls, *(getattr(node, name) for name in fixed))
        return tuple(getattr(node, name) for name in children), structure

    def flatten_with_keys(node: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        values, structure = flatten(node)
        return tuple(zip(keys, values, strict=True)), structure

    def unflatten(structure: tuple[Any, ...], values: Iterable[Any]) -> Any:
        named = dict(zip(fixed, structure[1:], strict=True))
        return cls(**named, **dict(zip(children, values, strict=True)))

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls


def confusable(structure: Any) -> list[Any]:
    """Returns the dataclasses in a pytree's structure that JAX may take for one another."""
    classes = [cls for child in structure.children() for cls in confusable(child)]
    cls, fixed = structure.node_data() or (object, None)
    # What ``register_dataclass`` keeps of a node is the tuple of its static fields alone.
    if dataclasses.is_dataclass(cls) and isinstance(fixed, tuple) and fixed[:1] != (cls,):
        classes.append(cls)
    return classes
