"""NOT PRIVATE: results kept on disk, so that an interrupted experiment goes on where it was."""

import hashlib
import json
import pathlib
from collections.abc import Callable
from typing import Any

from dpjax import _durable


class Cache:
    """A folder of results, one file for each configuration that gave one; None keeps nothing.

    >>> import tempfile
    >>> cache = Cache(pathlib.Path(tempfile.mkdtemp()))
    >>> cache.found({"epsilon": 1.0}, lambda: [0.5]), cache.found({"epsilon": 1.0}, lambda: [9.0])
    ([0.5], [0.5])
    """

    def __init__(self, folder: pathlib.Path | None):
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def found(self, configuration: dict[str, Any], compute: Callable[[], Any]) -> Any:
        """Returns the result of ``configuration``, computed and kept if none can be read."""
        if self._folder is None:
            return compute()
        words = json.dumps(configuration, sort_keys=True)
        path = self._folder / f"{hashlib.sha256(words.encode()).hexdigest()[:24]}.json"
        try:
            content = json.loads(path.read_text())
        except (OSError, ValueError):
            content = {}
        if json.dumps(content.get("configuration"), sort_keys=True) != words:
            content = {"configuration": configuration, "result": compute()}
            _durable.replace_private(path, json.dumps(content, indent=1).encode())
        return content["result"]
