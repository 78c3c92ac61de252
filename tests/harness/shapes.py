"""Holds public functions to the shapes in their signatures, for as long as a test session lasts.

The package imports jaxtyping for type checkers only. Here the annotations are read, and each call
is checked: arguments and result of one call must agree on every dimension that has a name.
"""

import functools
import inspect
import sys
import types
import typing

import beartype
import jax
import jaxtyping
from beartype.vale import Is
from jaxtyping import jaxtyped

import dpjax.derivatives
import dpjax.linalg
import dpjax.mechanisms

PACKAGES = (dpjax.linalg, dpjax.mechanisms, dpjax.derivatives)
# An int is a float, as type checkers have it.
_checker = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))


def hints(annotated):
    """The annotations that hold a shape, by name; those without are left to the function."""
    module = vars(sys.modules[annotated.__module__])
    # ``dpjax._typing`` has names without shapes in their place.
    own = {"Array": jax.Array, "PyTree": jaxtyping.PyTree}
    names = {**module, **vars(jaxtyping), **own}
    read = typing.get_type_hints(annotated, names, include_extras=True)
    return {name: _with_fields(hint) for name, hint in read.items() if _has_shape(hint)}


def checked(function):
    """``function``, which raises ``jaxtyping.TypeCheckError`` where a shape is not as annotated.

    What the function itself refuses it still refuses in its own words.
    """
    shapes = hints(inspect.unwrap(function))
    signature = inspect.signature(function)
    parameters = [
        parameter.replace(annotation=shapes.get(parameter.name, parameter.empty))
        for parameter in signature.parameters.values()
    ]

    @functools.wraps(function)
    def call(*args, **kwargs):
        return function(*args, **kwargs)

    call.__annotations__ = shapes
    call.__signature__ = signature.replace(
        parameters=parameters, return_annotation=shapes.get("return", signature.empty)
    )
    strict = jaxtyped(call, typechecker=_checker)

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        try:
            return strict(*args, **kwargs)
        except jaxtyping.TypeCheckError:
            function(*args, **kwargs)
            raise

    wrapper.holds_shapes = True
    return wrapper


def public():
    """The public functions and classes of the packages, and of the modules that are public."""
    for package in PACKAGES:
        for name in package.__all__:
            value = getattr(package, name)
            if isinstance(value, types.ModuleType):
                yield from _inside(value)
            elif _home(value).startswith("dpjax."):
                yield value


def install():
    """Puts checked functions in the place of the public ones, wherever dpjax has them.

    Once in a process, which may hold a session within a session: what is checked stays as it is.
    """
    functions = {}
    for found in {id(value): value for value in public()}.values():
        if not inspect.isclass(found):
            if not hasattr(found, "holds_shapes") and hints(inspect.unwrap(found)):
                functions[id(found)] = (found, checked(found))
        elif not issubclass(found, tuple):
            for name, method in list(vars(found).items()):
                public_name = name == "__call__" or name[0] != "_"
                if (
                    inspect.isfunction(method)
                    and public_name
                    and not hasattr(method, "holds_shapes")
                ):
                    setattr(found, name, checked(method))
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "dpjax":
            for inner, value in list(vars(module).items()):
                if id(value) in functions:
                    setattr(module, inner, functions[id(value)][1])


def _inside(module):
    for name, value in vars(module).items():
        if isinstance(value, types.ModuleType) and value.__name__ == f"{module.__name__}.{name}":
            yield from _inside(value)
        elif name[0] != "_" and _home(value) == module.__name__:
            yield value


def _home(value):
    return (getattr(value, "__module__", None) or "") if callable(value) else ""


def _has_shape(hint):
    if _is_named_tuple(hint):
        return any(map(_has_shape, hints(hint).values()))
    if isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray):
        return True
    if hint is not jaxtyping.PyTree and getattr(hint, "leaftype", None) is not None:
        return True
    return any(map(_has_shape, typing.get_args(hint)))


def _is_named_tuple(hint):
    return inspect.isclass(hint) and issubclass(hint, tuple) and hasattr(hint, "_fields")


def _with_fields(hint):
    """A named tuple together with the shapes of its fields, in the dimensions of the same call."""
    if not _is_named_tuple(hint) or typing.get_origin(hint):
        return hint
    fields = hints(hint)

    def fit(value):
        return all(isinstance(getattr(value, name), shape) for name, shape in fields.items())

    return typing.Annotated[hint, Is[fit]]
