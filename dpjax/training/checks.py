"""Which optax optimizers ``fit`` cannot be handed, told from their state before any is made."""

from typing import Any

from dpjax._typing import Params
from dpjax.transforms import check_no_multi_steps, holds_noise


def check_optimizer(optimizer: Any, params: Params) -> None:
    """Raises for an optimizer that would break the noise or add it twice.

    Args:
      optimizer: an optax transformation.
      params: what it is for, or shapes.

    Raises:
      ValueError: for what is none, ``optax.MultiSteps``, or one that adds noise itself.

    >>> import jax.numpy as jnp, optax
    >>> check_optimizer(optax.sgd(0.1), jnp.zeros(2))
    """
    if not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        raise ValueError(
            "optimizer must be an optax transformation such as optax.adam(1e-3), got "
            f"{optimizer!r}."
        )
    check_no_multi_steps(optimizer, params)
    if holds_noise(optimizer, params):
        raise ValueError(
            "optimizer adds noise itself, which fit does too: pass what follows the noise, such as "
            "optax.sgd(0.1) or optax.adam(1e-3); clipping and noise are clip_norm= and the budget."
        )
