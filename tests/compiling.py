"""Compiles the programs of tests fast, and a program once in a test session.

Most time of the suite was XLA's optimisation of programs that run once. What is about rounding or
bits is marked ``optimised`` and is compiled as users' programs are; what computes for long, as an
audit does, is marked ``computes`` and is optimised a little.
"""

import atexit
import functools
import os
import pathlib
import tempfile

import jax
from jax._src import compiler  # jit takes compiler options of one function, nothing takes all's
from jax._src.lru_cache import _CACHE_SUFFIX, LRUCache

# Together they take four fifths off the time of compiling: the first two alone half of it.
FAST = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
}
# By mark, None for a test that has none. Without any optimisation audits take three times as long.
OPTIONS = {None: FAST, "computes": FAST | {"xla_backend_optimization_level": 1}, "optimised": {}}
FOLDER = "DPJAX_TESTS_COMPILED"  # where the workers of a session find its compiled programs
_mark = None


def install():
    """From now on programs are compiled fast, here and, by what there is for it, in processes."""
    os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    whole = compiler.get_compile_options
    if hasattr(whole, "__wrapped__"):
        return  # by a session around this one

    @functools.wraps(whole)
    def options(*args, env_options_overrides=None, **more):
        chosen = OPTIONS[_mark] | (env_options_overrides or {})
        return whole(*args, env_options_overrides=chosen, **more)

    compiler.get_compile_options = options
    LRUCache.put = _put


def share():
    """From now on this process and the workers it starts keep compiled programs in one folder.

    Processes that tests start have no part in it: some of them are killed while they write.
    """
    if jax.config.jax_compilation_cache_dir:
        return  # the caller's own, or a session around this one
    if FOLDER not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="dpjax-tests-")
        atexit.register(folder.cleanup)
        os.environ[FOLDER] = folder.name
    jax.config.update("jax_compilation_cache_dir", os.environ[FOLDER])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


def _put(self, key, value):
    """Writes an entry as a whole: JAX's own way shows half of it to the other worker."""
    with tempfile.NamedTemporaryFile(dir=self.path, delete=False) as entry:
        entry.write(value)
    pathlib.Path(entry.name).replace(self.path / f"{key}{_CACHE_SUFFIX}")


def choose(mark):
    """Compiles as a mark says; programs that were compiled otherwise are forgotten."""
    global _mark
    if mark != _mark:
        _mark = mark
        jax.clear_caches()
