"""NOT PRIVATE: results kept on disk, so that an interrupted experiment goes on where it was."""

import hashlib
import json
import pathlib
import re
import tempfile
from collections.abc import Callable
from typing import Any

import jax
import numpy as np


def cached(
    folder: pathlib.Path | None, configuration: dict[str, Any], compute: Callable[[], Any]
) -> Any:
    """Returns the result of ``configuration``, computed and kept if none can be read.

    Each has a file of its own in the folder; None keeps nothing.
    """
    if folder is None:
        return compute()
    words = json.dumps(configuration, sort_keys=True)
    path = folder / f"{hashlib.sha256(words.encode()).hexdigest()[:24]}.json"
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        content = {}
    if json.dumps(content.get("configuration"), sort_keys=True) != words:
        content = {"configuration": configuration, "result": compute()}
        replace(path, json.dumps(content, indent=1))
    return content["result"]


def replace(path: pathlib.Path, text: str) -> None:
    """Writes a file, all of it or nothing."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
    pathlib.Path(file.name).replace(path)


def digest(tree: Any) -> str:
    """Returns a hash of arrays: another table of the same name has other results."""
    found = hashlib.sha256()
    for array in map(np.asarray, jax.tree.leaves(tree)):
        found.update(f"{array.dtype} {array.shape}".encode() + array.tobytes())
    return found.hexdigest()[:24]


def program(function: Callable[..., Any], *arguments: Any) -> str:
    """Returns a hash of what a function computes, not of what it is called.

    >>> program(lambda w: 2 * w, 1.0) == program(lambda w: 3 * w, 1.0)
    False
    """
    traced = jax.make_jaxpr(lambda *arguments: function(*arguments))(*arguments)
    # Functions with a derivative of their own are printed with an address.
    words = re.sub(r" at 0x[0-9a-f]+", "", str(traced))
    return hashlib.sha256((words + digest(traced.consts)).encode()).hexdigest()
