"""NOT PRIVATE: results kept on disk, so that an interrupted experiment goes on where it was."""

import hashlib
import json
import pathlib
from collections.abc import Callable
from typing import Any

from dpjax import _durable


class Cache:
    """A folder of results, one file for each configuration that gave one.

    Args:
      folder: made if it is absent; None to keep nothing.

    Privacy: NOT PRIVATE; results hold exact values of the data.

    >>> import tempfile
    >>> cache = Cache(pathlib.Path(tempfile.mkdtemp()))
    >>> cache.put({"epsilon": 1.0}, {"values": [0.5]})
    >>> cache.get({"epsilon": 1.0}), cache.get({"epsilon": 2.0})
    ({'values': [0.5]}, None)
    """

    def __init__(self, folder: pathlib.Path | None):
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def found(self, configuration: dict[str, Any], compute: Callable[[], Any]) -> Any:
        """Returns the result of ``configuration``, computed and kept if it is not there."""
        result = self.get(configuration)
        if result is None:
            result = compute()
            self.put(configuration, result)
        return result

    def get(self, configuration: dict[str, Any]) -> Any:
        """Returns the result of ``configuration``, or None if there is none that can be read."""
        if self._folder is None:
            return None
        try:
            content = json.loads(self._path(configuration).read_text())
        except (OSError, ValueError):
            return None
        same = content.get("configuration") == _plain(configuration)
        return content["result"] if same else None

    def put(self, configuration: dict[str, Any], result: Any) -> None:
        """Keeps a result, all of it or nothing.

        Raises:
          OSError: if it cannot be written.
        """
        if self._folder is None:
            return
        content = {"configuration": configuration, "result": result}
        encoded = json.dumps(content, indent=1).encode()
        _durable.replace_private(self._path(configuration), encoded)

    def _path(self, configuration: dict[str, Any]) -> pathlib.Path:
        assert self._folder is not None
        words = json.dumps(configuration, sort_keys=True).encode()
        return self._folder / f"{hashlib.sha256(words).hexdigest()[:24]}.json"


def _plain(configuration: dict[str, Any]) -> Any:
    # As JSON gives it back: tuples are lists.
    return json.loads(json.dumps(configuration))
