"""Compiles the programs of tests fast, and a program once in a test session.

Most time of the suite was XLA's optimisation of programs that run once. What is about rounding or
bits is marked ``optimised`` and is compiled as users' programs are; what computes for long, as an
audit does, is marked ``computes`` and is optimised a little.

JAX keeps what it traced and compiled in one mark, or with one planted bug, apart from the rest, so
nothing has to be forgotten between tests. A bug is planted in the product: JAX's own functions, as
``jnp.sum``, are the same with it and are shared.
"""

import atexit
import contextlib
import functools
import os
import pathlib
import tempfile

import jax
from jax._src import compiler, dispatch, pjit  # jit takes one function's options, nothing all's
from jax._src.lru_cache import _CACHE_SUFFIX, LRUCache

# Passes that find nothing to do in the programs of tests, or that only pay where a program is long.
IDLE_PASSES = (
    *("while-loop-invariant-code-motion", "while-loop-constant-sinking"),
    *("apply-xla-transforms", "associative-scan-rewriter", "cpu-all-reduce-combiner"),
    *("cpu-parallel-task-assigner", "dynamic-dimension-simplifier", "gemv-rewriter"),
    *("optimize_input_output_buffer_alias", "reduce-window-resizer", "sub-byte-size-setter"),
    *(f"float-normalization-{kind}" for kind in ("u4", "f4e2m1fn", "f8e3m4", "f8e4m3", "f8e4m3fn")),
    *(f"float-normalization-{kind}" for kind in ("f8e4m3b11fnuz", "f8e5m2", "f8e8m0fnu")),
)
# Kernels are compiled in parallel by default, at a sixth more work; workers keep the cores busy.
ONE_PART = "xla_cpu_parallel_codegen_split_count"
# Together they take five sixths off the time of compiling: the first two alone half of it.
FAST = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
    ONE_PART: 1,
    "xla_disable_hlo_passes": ",".join(IDLE_PASSES),
}
# By mark, None for a test that has none. Without any optimisation audits take three times as long.
OPTIONS = {
    None: FAST,
    "computes": FAST | {"xla_backend_optimization_level": 1},
    "optimised": {ONE_PART: 1},
}
FOLDER = "DPJAX_TESTS_COMPILED"  # where the workers of a session find its compiled programs
# The mark and the planted bug that programs are traced and compiled with, in all threads.
_context = jax.make_user_context((None, None))


def install():
    """From now on programs are compiled fast, here and, by what there is for it, in processes."""
    os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    whole = compiler.get_compile_options
    if hasattr(whole, "__wrapped__"):
        return  # by a session around this one

    @functools.wraps(whole)
    def options(*args, env_options_overrides=None, **more):
        chosen = OPTIONS[_context.value[0]] | (env_options_overrides or {})
        return whole(*args, env_options_overrides=chosen, **more)

    compiler.get_compile_options = options
    LRUCache.put = _put
    pjit._infer_params = _without_bug_if_own(pjit._infer_params, 0, (2, 3))
    pjit._run_python_pjit = _without_bug_if_own(pjit._run_python_pjit, 2, (3, 4))
    dispatch.xla_primitive_callable = _without_bug(dispatch.xla_primitive_callable)


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


def mark_of(item):
    """The mark that says how a test's programs are compiled, or None."""
    return next((mark for mark in ("computes", "optimised") if item.get_closest_marker(mark)), None)


def choose(mark):
    """Compiles as a mark says."""
    _context.set_global((mark, _context.get_global()[1]))


@contextlib.contextmanager
def apart(bug):
    """Uses no program that was traced before, and lets none be used that is traced within."""
    before = _context.get_global()
    _context.set_global((before[0], (bug, object())))
    try:
        yield
    finally:
        _context.set_global(before)


def _without_bug(primitive_callable):
    """A primitive run outside of all programs: it sees no bug, only what was traced before."""

    @functools.wraps(primitive_callable)
    def shared(*args, **params):
        mark, bug = _context.value
        if bug is None:
            return primitive_callable(*args, **params)
        with _context((mark, None)):
            run = primitive_callable(*args, **params)

        def apart_from_bug(*operands):
            with _context((mark, None)):
                return run(*operands)

        return apart_from_bug

    return shared


def _without_bug_if_own(whole, function, arguments):
    """A step of ``jit`` without the planted bug where the function is JAX's and calls no other."""

    @functools.wraps(whole)
    def step(*args):
        mark, bug = _context.value
        if bug is None or not _is_own(args[function], *(args[place] for place in arguments)):
            return whole(*args)
        with _context((mark, None)):
            return whole(*args)

    return step


def _is_own(function, args, kwargs):
    """Whether a function is one of JAX's modules and gets no function, which may see the bug."""
    name, module = getattr(function, "__qualname__", "<"), getattr(function, "__module__", "") or ""
    own = module.partition(".")[0] == "jax" and "<" not in name
    given = (*args, *kwargs.values())
    return own and all(isinstance(value, type) or not callable(value) for value in given)
