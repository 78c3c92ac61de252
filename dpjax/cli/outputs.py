"""Whether results can be written, found out before any budget is spent on them."""

import argparse
import os
import tempfile

import dpjax


def check(arguments: argparse.Namespace) -> None:
    """Raises if a file that the arguments name cannot be written at the end.

    Raises:
      ValueError: naming the option and what is wrong with its path, for a path that two options
        share, or one that would overwrite the data, the bounds or the ledger.
      ImportError: for a plot without matplotlib.
    """
    given = vars(arguments)
    read = {name: given.get(name) for name in ("data", "bounds", "ledger")}
    taken = {os.path.realpath(path): f"--{name}" for name, path in read.items() if path}
    for name in ("json", "save", "plot"):
        path = given.get(name)
        if not path:
            continue
        check_path(f"--{name}", path)
        own = os.path.realpath(path)
        if own in taken:
            raise ValueError(f"--{name} and {taken[own]} both name {path}; choose another file.")
        taken[own] = f"--{name}"
    if given.get("plot"):
        dpjax.plotting.check_path(arguments.plot)


def check_path(option: str, path: str) -> None:
    """Raises if ``path`` cannot be written, by trying to write beside it.

    Raises:
      ValueError: naming the option and the path.
    """
    folder, refused = os.path.dirname(path) or ".", f"{option} {path} cannot be written"
    if not os.path.isdir(folder):
        raise ValueError(f"{refused}: its folder does not exist.")
    if os.path.isdir(path):
        raise ValueError(f"{refused}: it is a folder.")
    if os.path.exists(path) and not (os.path.isfile(path) and os.access(path, os.W_OK)):
        raise ValueError(f"{refused}: it is there, and may not be replaced.")
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"{refused}: {error.strerror}.") from error
