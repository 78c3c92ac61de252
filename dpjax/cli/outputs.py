"""Checks that results can be written, before any budget is spent."""

import argparse
import os
import tempfile

import dpjax


def check(arguments: argparse.Namespace) -> None:
    """Raises if a file that the arguments name cannot be written at the end.

    Raises:
      ValueError: naming the option and what is wrong with its path, for a path that two options
        share, or one that would overwrite the data, the bounds, the schema or the ledger.
      ImportError: for a plot without matplotlib.
    """
    given = vars(arguments)
    names = ("data", "bounds", "schema", "ledger", "public")
    read = {name: given.get(name) for name in names}
    taken = {
        os.path.realpath(path): f"--{name}"
        for name, path in read.items()
        if path and os.path.exists(path)
    }
    for name in ("json", "save", "plot"):
        path = given.get(name)
        if not path:
            continue
        _check_file(f"--{name}", path)
        own = os.path.realpath(path)
        if own in taken:
            raise ValueError(f"--{name} and {taken[own]} both name {path}; choose another file.")
        taken[own] = f"--{name}"
    if given.get("checkpoint"):
        _check_folder("--checkpoint", arguments.checkpoint)
    if given.get("plot"):
        dpjax.plotting.check_path(arguments.plot)


def _check_file(option: str, path: str) -> None:
    refused = f"{option} {path} cannot be written"
    if os.path.isdir(path):
        raise ValueError(f"{refused}: it is a folder.")
    if os.path.exists(path) and not (os.path.isfile(path) and os.access(path, os.W_OK)):
        raise ValueError(f"{refused}: it exists and may not be overwritten.")
    _check_writable(os.path.dirname(path) or ".", refused)


def _check_folder(option: str, path: str) -> None:
    refused = f"{option} {path} cannot be written"
    if os.path.exists(path) and not os.path.isdir(path):
        raise ValueError(f"{refused}: it is a file, but must be a folder.")
    _check_writable(path if os.path.isdir(path) else os.path.dirname(path) or ".", refused)


def _check_writable(folder: str, refused: str) -> None:
    if not os.path.isdir(folder):
        raise ValueError(f"{refused}: its folder does not exist.")
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"{refused}: {error.strerror}.") from error
