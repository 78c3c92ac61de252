"""Compiles the programs of tests fast, for as long as a test session lasts.

Most time of the suite was XLA's optimisation of programs that run once. What is about rounding or
bits is marked ``optimised`` and is compiled as users' programs are; what computes for long, as an
audit does, is marked ``computes`` and is optimised a little.
"""

import functools
import os

import jax
from jax._src import compiler  # jit takes compiler options of one function, nothing takes all's

# Together they take four fifths off the time of compiling: the first two alone half of it.
FAST = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
}
# By mark, None for a test that has none. Without any optimisation audits take three times as long.
OPTIONS = {None: FAST, "computes": FAST | {"xla_backend_optimization_level": 1}, "optimised": {}}
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


def choose(mark):
    """Compiles as a mark says; programs that were compiled otherwise are forgotten."""
    global _mark
    if mark != _mark:
        _mark = mark
        jax.clear_caches()
