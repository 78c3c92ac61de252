"""Checkpoints to resume a run after a crash. They hold SECRET state: the key, hence the noise.

A folder of mode 0700 with two files of mode 0600: ``manifest.json``, what must be the same for the
run to go on, and ``state``, where it is. Both are replaced whole or not at all.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
from typing import Any

import jax
import numpy as np
from flax import serialization

from dpjax import _durable
from dpjax._typing import Array

_FORMAT = "dpjax-checkpoint-4"
_EARLIER = ("dpjax-checkpoint-1", "dpjax-checkpoint-2", "dpjax-checkpoint-3")
_MANIFEST, _STATE = "manifest.json", "state"


class ResumeMismatch(ValueError):
    """A run cannot go on bit for bit, because something is no longer what it was."""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """Where a run is.

    Args:
      run_id: its name in the ledger.
      key: the root key.
      step: steps taken.
      leaves: of the loop's carry, as NumPy arrays.
      manifest: what must be the same to go on.

    Privacy: SECRET. Whoever holds the key can subtract the noise.
    """

    run_id: str
    key: Array = dataclasses.field(repr=False)
    step: int
    leaves: tuple[np.ndarray, ...] = dataclasses.field(repr=False)
    manifest: dict[str, Any] = dataclasses.field(repr=False)


def holds_run(folder: str | os.PathLike) -> bool:
    """Returns whether ``folder`` holds a run that ``run(..., checkpoint=folder)`` would resume.

    >>> holds_run("no-such-folder")
    False
    """
    return pathlib.Path(folder, _STATE).exists()


class Folder:
    """A checkpoint folder, made if it is absent, and locked until it is closed.

    Args:
      path: the folder.

    Raises:
      ValueError: if others than its owner may enter it, or another process works in it.
      OSError: if it cannot be made.

    Privacy: SECRET, see ``Checkpoint``. Never publish or back it up beside the results.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = pathlib.Path(path)
        if not self.path.absolute().parent.is_dir():
            raise ValueError(
                f"checkpoint={os.fspath(path)!r} cannot be made: its parent folder does not exist."
            )
        if not self.path.exists():
            self.path.mkdir(mode=_durable.PRIVATE_FOLDER)
            _durable.sync_folder(self.path.absolute().parent)
        mode = self.path.stat().st_mode & 0o777
        if mode & 0o077:
            raise ValueError(
                f"checkpoint={os.fspath(path)!r} has mode {mode:o}, so others may enter it, and it "
                f"will hold the key: `chmod 700 {path}`, or name a folder that does not exist."
            )
        self._descriptor: int | None = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        if not _durable.lock(self._descriptor):
            self.close()
            raise ValueError(f"checkpoint={os.fspath(path)!r} is in use by another run.")

    def read(self) -> Checkpoint | None:
        """Returns the run that the folder holds, or None.

        Raises:
          ValueError: if a file is damaged.
        """
        if not holds_run(self.path):
            return None
        raw = (self.path / _STATE).read_bytes()
        try:
            described = (self.path / _MANIFEST).read_bytes()
            if hashlib.sha256(raw[32:]).digest() != raw[:32]:
                raise KeyError
            content: Any = serialization.msgpack_restore(raw[32:])
            if content["format"] in _EARLIER:
                raise ResumeMismatch(
                    f"the checkpoint in {self.path} was made by an earlier dpjax, whose sums or "
                    "state were others. Resume it with that version; or start another run with "
                    "another folder and a new key, which spends the budget again."
                )
            if content["format"] != _FORMAT:
                raise KeyError
            if content["manifest"] != hashlib.sha256(described).hexdigest():
                raise KeyError
            manifest = json.loads(described)
            leaves = content["leaves"]
            return Checkpoint(
                run_id=content["run_id"],
                key=jax.random.wrap_key_data(content["key"], impl=manifest["key_impl"]),
                step=content["step"],
                leaves=tuple(leaves[str(i)] for i in range(len(leaves))),
                manifest=manifest,
            )
        except ResumeMismatch:
            raise
        except (KeyError, TypeError, ValueError, FileNotFoundError) as error:
            raise ValueError(
                f"the checkpoint in {self.path} is damaged; restore it from a copy (an older one "
                "of the same run will do), or start anew with another folder and a new key."
            ) from error

    def write(self, checkpoint: Checkpoint) -> None:
        """Puts ``checkpoint`` in place of the one before, all or nothing.

        Raises:
          OSError: if it cannot be written; the one before is still there.
        """
        described = json.dumps(checkpoint.manifest, indent=2).encode()
        content = {
            "format": _FORMAT,
            "manifest": hashlib.sha256(described).hexdigest(),
            "run_id": checkpoint.run_id,
            "key": np.asarray(jax.random.key_data(checkpoint.key)),
            "step": checkpoint.step,
            "leaves": {str(i): leaf for i, leaf in enumerate(checkpoint.leaves)},
        }
        packed = serialization.msgpack_serialize(content)
        # A run's manifest never changes, so it can be older than the state but not another's.
        if not holds_run(self.path):
            _durable.replace_private(self.path / _MANIFEST, described)
        _durable.replace_private(self.path / _STATE, hashlib.sha256(packed).digest() + packed)

    def close(self) -> None:
        """Lets the folder go; what was written stays."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> "Folder":
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()
