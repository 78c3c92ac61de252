"""Programs that JAX compiled, kept in the user's cache folder: a second start does not wait."""

import hashlib
import os
import pathlib
import platform
import re
import sys

import jax

from dpjax.datasets.registry import cache_folder

OFF = "DPJAX_NO_CACHE"  # with any value nothing is kept


def keep() -> None:
    """Lets JAX keep what it compiles in a folder of mode 700, and says so when it makes that.

    Privacy: programs hold shapes, the number of records among them, and public constants; records
      and keys are their arguments. Whoever may write into the folder decides what runs.
    """
    # Who has told JAX of a folder has chosen one.
    if os.environ.get(OFF) or jax.config.jax_compilation_cache_dir:  # pyright: ignore
        return
    folder = cache_folder() / f"compiled-{_machine()}"
    is_new = not folder.exists()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return  # a home that cannot be written to is no reason not to train
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        print(f"dpjax: {folder} is not yours alone and is not used: chmod 700", file=sys.stderr)
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # Small programs too: there are dozens of them.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    if is_new:
        words = "so that the next start is faster; they hold no records and no keys. --no-cache or"
        said = f"dpjax: compiled programs are kept in {folder}, {words} {OFF}=1 turns that off."
        print(said, file=sys.stderr)


def _machine() -> str:
    """Names what the processor can do: homes may be on a network, and another's code crashes."""
    cpus = pathlib.Path("/proc/cpuinfo")
    text = cpus.read_text() if cpus.exists() else ""
    # On ARM they are called features; other processors of a machine are alike.
    flags = re.findall("^(?:flags|Features).*", text, re.MULTILINE)
    return hashlib.sha256(f"{platform.machine()} {flags[:1]}".encode()).hexdigest()[:12]
