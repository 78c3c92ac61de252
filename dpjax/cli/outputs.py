"""Checks that results can be written, before any budget is spent."""

import argparse
import os
import secrets
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence

import dpjax
from dpjax.reporting.page import check_path


def check(
    arguments: argparse.Namespace,
    written: Sequence[str] = ("json", "save", "plot", "report"),
    read: Mapping[str, str] | None = None,
) -> None:
    """Raises if a file that the arguments name cannot be written at the end.

    ``written`` are the options that name a file to write, ``read`` the arguments that name what is
    read, and how the command calls them; by default the options of a training.

    Raises:
      ValueError: naming the option and what is wrong with its path, for a path that two options
        share, or one that would overwrite the data, the bounds, the schema or the ledger.
      ImportError: for a plot without matplotlib.
    """
    given = vars(arguments)
    if given.get("part") and not given.get("ledger"):
        raise ValueError("--part is a part that a ledger declares: give --ledger FILE too.")
    if read is None:
        names = ("data", "bounds", "schema", "ledger", "public")
        read = {name: f"--{name}" for name in names}
    taken = {
        os.path.realpath(given[name]): shown
        for name, shown in read.items()
        if given.get(name) and os.path.exists(given[name])
    }
    for name in written:
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
    if given.get("report"):
        check_path(arguments.report)


def write(*outputs: tuple[str | None, Callable[[str], object]]) -> int:
    """Writes each file that is asked for and says so; returns 2 if any could not be written.

    Each is a path, or None, and what writes there. The first is what the budget was spent on: where
    it cannot be written at its path, it is kept among temporary files.
    """
    status = 0
    for number, (path, writer) in enumerate(outputs):
        if not path:
            continue
        try:
            writer(path)
            print(f"wrote {path}")
        except OSError as error:
            status = 2
            print(f"dpjax: {path} could not be written: {error}", file=sys.stderr)
            if number == 0:
                kept = os.path.join(tempfile.gettempdir(), f"dpjax-{secrets.token_hex(8)}")
                writer(kept)
                print(f"dpjax: it is kept as {kept}", file=sys.stderr)
    return status


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
