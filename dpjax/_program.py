"""Hashes of the program that JAX traces from a function, the same in every process."""

import functools
import hashlib
import re
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend import core

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_CALLBACKS = ("pure_callback", "io_callback", "debug_callback", "debug_print", "ffi_call")
# Under the vmap over records its rule sees the whole batch, and may let one record reach another.
_BATCH_RULE = "custom_vmap_call"
_RULES = ("custom_jvp_call", "custom_vjp_call")


class CallsPython(ValueError):
    """A function calls Python while it runs, so that its traced program is not all of it."""


class Program(NamedTuple):
    """What a function computes.

    Args:
      digest: of the traced program and its constants.
      traced: constants that are tracers of a transformation around it, such as a number that
        ``vmap`` runs over: they have no bytes, and are not in the digest.
      shapes: of the constants.
      rules_left: whether a function with a rule of its own for derivatives is called where no
        derivative is taken. The rule is not in the digest; that of a derivative holds it.
    """

    digest: str
    traced: tuple[jax.Array, ...]
    shapes: tuple[tuple[int, ...], ...]
    rules_left: bool


def trace(function: Callable[..., Any], *arguments: Any) -> Program:
    """Returns the program of ``function``, traced anew: what it reads may have changed.

    Two functions of one digest are the same program; the same function written otherwise may have
    another. The arguments are arrays or their shapes.

    Raises:
      CallsPython: for a function that calls back into Python, whose code no trace holds.
    """
    # JAX keeps the program of a function that it knows, even if what that reads has changed.
    closed = jax.make_jaxpr(lambda *arguments: function(*arguments))(*arguments)
    writer = _Writer()
    digest = writer.closed(closed)
    return Program(digest, tuple(writer.traced), tuple(writer.shapes), writer.rules_left)


def program_hash(*traced: tuple[Callable[..., Any], tuple[Any, ...]]) -> str:
    """Returns one hash of what several functions compute, each with what it is traced with.

    A closure has no name that lasts: optax's transformations are closures, and a network reads the
    code of its class.
    """
    return sha256(*(trace(function, *arguments).digest for function, arguments in traced))


def sha256(*words: str) -> str:
    """Returns the SHA-256 of several words, which no other words give, as ("ab", "c") does not."""
    return hashlib.sha256(repr(words).encode()).hexdigest()


class _Writer:
    """Writes programs down: variables by their number, constants by their bytes, no addresses."""

    def __init__(self):
        self.traced: list[jax.Array] = []
        self.shapes: list[tuple[int, ...]] = []
        self.rules_left = False
        # The program is kept beside its digest, so that no other one gets its id.
        self._known: dict[int, tuple[core.Jaxpr, str]] = {}

    def closed(self, program: core.ClosedJaxpr) -> str:
        return sha256(self._open(program.jaxpr), *map(self._constant, program.consts))

    def _open(self, program: core.Jaxpr) -> str:
        # A function that is called often is traced once, and would be written as often as called.
        if id(program) not in self._known:
            self._known[id(program)] = program, self._digest(program)
        return self._known[id(program)][1]

    def _digest(self, program: core.Jaxpr) -> str:
        numbers: dict[Any, int] = {}

        def named(variable: Any) -> str:
            if isinstance(variable, core.Literal):
                return self._constant(variable.val) + str(variable.aval)
            return f"{numbers.setdefault(variable, len(numbers))}:{variable.aval}"

        lines = [" ".join(map(named, [*program.constvars, *program.invars]))]
        for equation in program.eqns:
            kind, params = equation.primitive.name, equation.params
            self._check(kind, params)
            self.rules_left |= kind in _RULES
            lines += [
                kind,
                *map(named, equation.invars),
                # Sorted, as the order in which JAX stores them is no part of the program.
                *(f"{name}={self._value(params[name])}" for name in sorted(params)),
                *map(named, equation.outvars),
            ]
        return sha256(*lines, *map(named, program.outvars))

    def _check(self, kind: str, params: dict[str, Any]) -> None:
        # Beside a program, a function says how to differentiate it, or what to keep.
        if kind == _BATCH_RULE:
            raise CallsPython(
                "the function to be traced has a rule of its own for batches "
                "(jax.custom_batching.custom_vmap). It would see all records of a batch at once, "
                "and no bound on one record would hold. Take the rule out."
            )
        leaves = jax.tree.leaves(list(params.values()))
        holds_program = any(isinstance(leaf, core.ClosedJaxpr | core.Jaxpr) for leaf in leaves)
        opaque = any(map(_is_function, params.values())) and not holds_program
        if kind in _CALLBACKS or opaque:
            raise CallsPython(
                f"the function to be traced calls Python or C while it runs ({kind}). Its code is "
                "not in the traced program, so that another one would draw the same noise, and it "
                "could carry records from one call to the next. Write it in JAX, or take it out."
            )

    def _value(self, value: Any) -> str:
        if isinstance(value, core.ClosedJaxpr):
            return self.closed(value)
        if isinstance(value, core.Jaxpr):
            return self._open(value)
        if isinstance(value, dict):
            return sha256(*sorted(f"{name!r}: {self._value(item)}" for name, item in value.items()))
        if isinstance(value, set | frozenset):
            # Strings hash otherwise in each process, and a set is ordered by hashes.
            return sha256(*sorted(map(self._value, value)))
        if isinstance(value, tuple | list):
            return sha256(type(value).__name__, *map(self._value, value))
        if isinstance(value, np.ndarray | np.generic | jax.Array):
            return self._constant(value)
        if _is_function(value):
            return "a function"  # see ``_check``
        # An address is another in each process.
        return _ADDRESS.sub("", repr(value))

    def _constant(self, constant: Any) -> str:
        if isinstance(constant, jax.Ref):
            raise CallsPython(
                "the function to be traced reads or writes a mutable array (jax.new_ref), which "
                "could carry records from one call to the next. Pass its content as an array."
            )
        self.shapes.append(np.shape(constant))
        if isinstance(constant, Tracer):
            self.traced.append(constant)
            return f"traced {constant.aval}"
        if jnp.issubdtype(jnp.result_type(constant), jax.dtypes.prng_key):
            # The words of a constant key are wanted now, even while a program around it is traced.
            with jax.ensure_compile_time_eval():
                constant = jax.random.key_data(constant)
        array = np.asarray(constant)
        digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
        return f"{array.dtype}{array.shape}{digest}"


def _is_function(value: Any) -> bool:
    kinds = types.FunctionType | types.BuiltinFunctionType | types.MethodType | functools.partial
    return isinstance(value, kinds) or hasattr(value, "call_wrapped")
