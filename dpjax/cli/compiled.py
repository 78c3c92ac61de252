"""Programs that JAX compiled, kept in the user's cache folder: a second start does not wait."""

import hashlib
import os
import pathlib
import platform
import sys
import time

import jax

from dpjax.datasets.registry import cache_folder

OFF = "DPJAX_NO_CACHE"
"""Environment variable: with any value nothing is kept."""
_DAYS = 90


def keep() -> None:
    """Lets JAX keep what it compiles in a folder of mode 700, and says so when it makes that.

    Privacy: programs hold shapes, the number of records among them, and public constants; records,
      labels and keys are their arguments, as ``tests/cli/test_compiled.py`` sees to. Whoever may
      write into the folder decides what runs, so that another's is not used.
    """
    # Who has told JAX of a folder has chosen one.
    if os.environ.get(OFF) or jax.config.jax_compilation_cache_dir:
        return
    folder = cache_folder() / f"compiled-{_machine()}"
    is_new = not folder.exists()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            print(f"dpjax: {folder} is not yours alone and is not used: chmod 700", file=sys.stderr)
            return
        # Programs of tables, and of versions of JAX, that nobody trains with any more.
        for path in folder.glob("*-cache"):
            if path.stat().st_mtime < time.time() - _DAYS * 86_400:
                path.unlink(missing_ok=True)
    except OSError:
        return  # a home that cannot be written to is no reason not to train
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # Small programs too: there are dozens, each of which takes as long to compile as to trace.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    if is_new:
        print(
            f"dpjax: compiled programs are kept in {folder}, so that the next start is faster; "
            f"they hold no records and no keys. --no-cache or {OFF}=1 turns that off.",
            file=sys.stderr,
        )


def _machine() -> str:
    """Names what the processor can do: a home may be on a network, and code of another crash."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        # Those of the first processor; on ARM they are called features.
        can = next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        can = platform.processor()
    return hashlib.sha256(f"{platform.machine()} {can}".encode()).hexdigest()[:12]
