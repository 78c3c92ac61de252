"""NOT PRIVATE: results kept on disk, so that an interrupted experiment goes on where it was."""

import json
import pathlib
from collections.abc import Callable
from typing import Any

from dpjax import _durable
from dpjax._program import sha256


def cached(
    folder: pathlib.Path | None, configuration: dict[str, Any], compute: Callable[[], Any]
) -> Any:
    """Returns the result of ``configuration``, computed and kept if none can be read.

    Each has a file of its own in the folder; None keeps nothing.
    """
    if folder is None:
        return compute()
    words = json.dumps(configuration, sort_keys=True)
    path = folder / f"{sha256(words)[:24]}.json"
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        content = {}
    if json.dumps(content.get("configuration"), sort_keys=True) != words:
        content = {"configuration": configuration, "result": compute()}
        _durable.replace_private(path, json.dumps(content, indent=1).encode())
    return content["result"]
