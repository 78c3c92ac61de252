"""Checkpoints to resume a run after a crash. They hold SECRET state: the key, hence the noise.

A folder of mode 0700 with two files of mode 0600: ``manifest.json``, what must be the same for the
run to go on, and ``state``, where it is. Both are replaced whole or not at all.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
from typing import Any

import jax
import numpy as np

from dpjax import _durable
from dpjax._lazy import serialization
from dpjax._typing import Array

_FORMAT = "dpjax-checkpoint-4"
_MANIFEST, _STATE = "manifest.json", "state"


class ResumeMismatch(ValueError):
    """A run cannot go on bit for bit, because something is no longer what it was."""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """Where a run is.

    Privacy: SECRET. Whoever holds the key can subtract the noise.
    """

    run_id: str
    """Its name in the ledger, which it keeps when it is resumed."""
    key: Array = dataclasses.field(repr=False)
    step: int
    leaves: tuple[np.ndarray, ...] = dataclasses.field(repr=False)
    """Of the loop's carry."""
    manifest: dict[str, Any] = dataclasses.field(repr=False)
    """What must be the same to go on."""


def holds_run(folder: str | os.PathLike) -> bool:
    """Returns whether ``folder`` holds a run that ``run(..., checkpoint=folder)`` would resume.

    >>> holds_run("no-such-folder")
    False
    """
    return pathlib.Path(folder, _STATE).exists()


class Folder(contextlib.AbstractContextManager):
    """A checkpoint folder, made if it is absent, and locked until it is closed.

    Privacy: SECRET, see ``Checkpoint``. Never publish or back it up beside the results.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = pathlib.Path(path)
        if not self.path.absolute().parent.is_dir():
            raise ValueError(
                f"checkpoint={os.fspath(path)!r} cannot be made: its parent folder does not exist."
            )
        with contextlib.suppress(FileExistsError):
            self.path.mkdir(mode=_durable.PRIVATE_FOLDER)
            # Sync the folder's name too, or a power cut loses the files that were synced inside it.
            _durable.sync_folder(self.path.absolute().parent)
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except NotADirectoryError as error:
            raise ValueError(
                f"checkpoint={os.fspath(path)!r} is a link or a file: name a folder, or what is to "
                "be one."
            ) from error
        self._descriptor: int | None = descriptor
        if why := self._refusal(descriptor):
            self.close()
            raise ValueError(f"checkpoint={os.fspath(path)!r} {why}.")

    def _refusal(self, descriptor: int) -> str:
        # Check the open folder, not the path, which may name another folder by now.
        status = os.fstat(descriptor)
        whose = "will hold the key: name a folder that does not exist"
        if status.st_uid != os.geteuid():
            # Its owner can read what is in it, and may hold open what is written to.
            return f"is another user's, and {whose}"
        if (mode := status.st_mode & 0o777) & 0o077:
            enter = "so others may enter it"
            return f"has mode {mode:o}, {enter}, and it {whose}, or `chmod 700 {self.path}`"
        return "" if _durable.lock(descriptor) else "is in use by another run"

    def read(self) -> Checkpoint | None:
        """Returns the run that the folder holds, or None."""
        if not holds_run(self.path):
            return None
        raw = (self.path / _STATE).read_bytes()
        try:
            described = (self.path / _MANIFEST).read_bytes()
            # The first 32 bytes are the hash of the rest, see ``write``; the error below has the
            # advice.
            if hashlib.sha256(raw[32:]).digest() != raw[:32]:
                raise KeyError
            content: Any = serialization.msgpack_restore(raw[32:])
            # Checked before other fields are read, which another version may have written
            # differently.
            if content["format"] != _FORMAT:
                raise ResumeMismatch(
                    f"the checkpoint in {self.path} was made by another dpjax, whose sums or "
                    "state were others. Resume it with that version; or start another run with "
                    "another folder and a new key, which spends the budget again."
                )
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
            # It is a ValueError too, and the next clause would report damage.
            raise
        except (KeyError, TypeError, ValueError, FileNotFoundError) as error:
            raise ValueError(
                f"the checkpoint in {self.path} is damaged; restore it from a copy (an older one "
                "of the same run will do), or start anew with another folder and a new key."
            ) from error

    def write(self, checkpoint: Checkpoint) -> None:
        """Puts ``checkpoint`` in place of the one before, all or nothing."""
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
        # The state is written last, because ``holds_run`` looks for it.
        _durable.replace_private(self.path / _STATE, hashlib.sha256(packed).digest() + packed)

    def close(self) -> None:
        """Lets the folder go; what was written stays."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __exit__(self, *raised: object) -> None:
        self.close()
