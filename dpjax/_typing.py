"""The few type names that every room shares."""

from collections.abc import Callable
from typing import Any, Literal

import jax

Array = jax.Array
PyTree = Any
Params = PyTree
Example = PyTree
Loss = Callable[[Params, Example], Array]

Relation = Literal["zero_out", "replace_one", "add_or_remove_one"]
