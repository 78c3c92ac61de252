"""A hash of the program that JAX makes of a function, the same in every process."""

import hashlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def program_hash(*traced: tuple[Callable[..., Any], tuple[Any, ...]]) -> str:
    """Returns a hash of what functions compute, constants included.

    A closure has no name that lasts: optax's transformations are closures, and a network reads the
    code of its class. Two functions of one hash are the same program, but for the rules of
    ``jax.custom_jvp`` and ``jax.custom_vjp``, which are not traced here, and Python callbacks; the
    same function written otherwise may have another.

    Args:
      *traced: pairs of a function and the arguments it is traced with, arrays or their shapes.

    >>> program_hash((lambda w: 2 * w, (1.0,))) == program_hash((lambda w: 3 * w, (1.0,)))
    False
    """
    digest = hashlib.sha256()
    for function, arguments in traced:
        closed = jax.make_jaxpr(function)(*arguments)
        # str() has colours in a terminal and in a notebook, and none elsewhere.
        digest.update(_ADDRESS.sub("", closed.pretty_print(use_color=False)).encode())
        for constant in _constants(closed):
            digest.update(_bytes(constant))
    return digest.hexdigest()


def _constants(program: core.ClosedJaxpr | core.Jaxpr) -> Iterator[Any]:
    # Some programs inside, such as that of jax.checkpoint, are open: they have no constants of
    # their own, but may hold programs that do.
    if isinstance(program, core.ClosedJaxpr):
        yield from program.consts
        program = program.jaxpr
    for equation in program.eqns:
        for value in jax.tree.leaves(list(equation.params.values())):
            if isinstance(value, core.ClosedJaxpr | core.Jaxpr):
                yield from _constants(value)


def _bytes(constant: Any) -> bytes:
    if jnp.issubdtype(jnp.result_type(constant), jax.dtypes.prng_key):
        constant = jax.random.key_data(constant)
    array = np.asarray(constant)
    return f"{array.dtype}{array.shape}".encode() + array.tobytes()
