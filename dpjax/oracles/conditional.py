"""``cond_under_vmap``: an answer computed only at the steps that need it, also under vmap."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from dpjax._typing import Array, Params, PyTree


def cond_under_vmap(
    asked: Array, compute: Callable[[Params], PyTree], params: Params, otherwise: PyTree
) -> PyTree:
    """Returns ``compute(params)`` where ``asked``, else ``otherwise``, which reads no record.

    Args:
      asked: bool, shape ().
      compute: reads the records.
      params: where.
      otherwise: a pytree like the answer.

    >>> print(cond_under_vmap(jnp.array(True), jnp.sin, jnp.zeros(()), jnp.ones(())))
    0.0
    """

    def once(_: Array, carry: tuple[Params, PyTree]) -> tuple[Params, PyTree]:
        point, _ = carry
        # What a loop does not change XLA computes before it, hence always: so a pass changes this.
        return jax.tree.map(jnp.zeros_like, point), compute(point)

    # No pass or one: of a branch both sides would be computed where runs are batched.
    passes = jnp.asarray(asked).astype(jnp.int32)
    return lax.fori_loop(0, passes, once, (params, otherwise))[1]
