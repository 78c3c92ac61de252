"""Crash-safe files: write all, sync and rename, and a lock against concurrent use."""

import contextlib
import fcntl
import os
import pathlib
import secrets
from collections.abc import Iterator
from typing import BinaryIO

PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700


def write_all(descriptor: int, content: bytes) -> None:
    """Writes all of ``content``, of which a disk that fails may hold a part, and syncs it."""
    _write(descriptor, content)
    os.fsync(descriptor)


def sync_folder(folder: str | os.PathLike) -> None:
    """Makes created, renamed and removed names in ``folder`` last through a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def replacing(
    path: str | os.PathLike, mode: int = 0o666, temporary: pathlib.Path | None = None
) -> Iterator[BinaryIO]:
    """Yields a new file that takes the place of ``path`` once all is written, or never.

    ``temporary`` is its first name, by default one that nobody can foresee in the same folder. If
    it cannot be written, what was at ``path`` is still there.
    """
    path = pathlib.Path(path)
    temporary = temporary or path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")
    # Never a file or a link that somebody else has put there.
    new = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    file = os.fdopen(os.open(temporary, new, mode), "wb")
    try:
        with file:
            yield file
            file.flush()
            # Before it is renamed: a power cut must not leave an empty file of that name.
            os.fsync(file.fileno())
        os.replace(temporary, path)
    # Ctrl-C too leaves no half-written file behind.
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def replace_private(path: pathlib.Path, content: bytes) -> None:
    """Puts ``content`` at ``path``, all or nothing, readable by its owner alone.

    The folder is one that its owner alone may enter, and where one process writes at a time.
    """
    # One name, so that a crash leaves at most one such file, which the next call removes.
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)
    with replacing(path, PRIVATE_FILE, temporary) as file:
        _write(file.fileno(), content)
    sync_folder(path.parent)


def lock(descriptor: int) -> bool:
    """Returns whether ``descriptor``'s file is now locked for this opening of it alone.

    The lock goes when the descriptor is closed, or its process dies in any way.
    """
    try:
        # Not lockf, whose locks are lost when the process closes any descriptor of the file.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        # A write may take fewer bytes than it is given.
        rest = rest[os.write(descriptor, rest) :]
