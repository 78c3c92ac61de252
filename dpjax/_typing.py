"""Type aliases that all modules share, and the marker of a static (structural) field."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import jax

Array = jax.Array
PyTree = Any
Params = PyTree
Example = PyTree
Loss = Callable[[Params, Example], Array]

Relation = Literal["zero_out", "replace_one", "add_or_remove_one"]


def static(**kwargs) -> Any:
    """Returns a dataclass field that is structure, not a number: a change of it compiles anew."""
    return dataclasses.field(metadata={"static": True}, **kwargs)
