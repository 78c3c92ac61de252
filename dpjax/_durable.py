"""Crash-safe files: write all, sync and rename, and a lock against concurrent use."""

import contextlib
import fcntl
import os
import pathlib

PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700


def write_all(descriptor: int, content: bytes) -> None:
    """Writes all of ``content`` and syncs it to the disk.

    Raises:
      OSError: if the disk is full or fails; part of ``content`` may then be written.
    """
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
    os.fsync(descriptor)


def sync_folder(folder: str | os.PathLike) -> None:
    """Makes created, renamed and removed names in ``folder`` last through a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_private(path: pathlib.Path, content: bytes) -> None:
    """Puts ``content`` at ``path``, all or nothing, readable by its owner alone.

    Raises:
      OSError: if it cannot be written; what was at ``path`` is still there.
    """
    # One name, so that a crash leaves at most one such file, which the next call overwrites.
    temporary = path.with_name(path.name + ".tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE_FILE)
        try:
            os.fchmod(descriptor, PRIVATE_FILE)
            write_all(descriptor, content)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    sync_folder(path.parent)


def lock(descriptor: int) -> bool:
    """Returns whether ``descriptor``'s file is now locked for this opening of it alone.

    The lock goes when the descriptor is closed, or its process dies in any way.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
