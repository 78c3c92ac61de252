"""Proximal operators: argmin over x of |x - params|^2 / 2 + the penalty; post-processing."""

import jax
import jax.numpy as jnp

from dpjax._typing import Array, Params

# Projections on sets, the operators of their indicators, are optax's: see ``domains``.


def prox_zero(params: Params, scale: Array | float) -> Params:
    """Returns ``params``, the proximal operator of no penalty, whatever its ``scale``.

    >>> prox_zero(jnp.array([1.0]), 2.0).tolist()
    [1.0]
    """
    return params


def prox_l1(params: Params, scale: Array | float) -> Params:
    """Returns every weight brought nearer to zero by ``scale``, and not past it.

    ``scale``, not below 0, is the step size times the strength of the penalty.

    Reference: soft thresholding; Parikh and Boyd, "Proximal algorithms" (2014), section 6.5.2.

    >>> prox_l1(jnp.array([3.0, -0.5]), 1.0).tolist()
    [2.0, -0.0]
    """
    # In the weights' dtype, which a float64 step size would widen.
    return jax.tree.map(
        lambda w: jnp.sign(w) * jnp.maximum(jnp.abs(w) - jnp.asarray(scale, w.dtype), 0), params
    )


def prox_l2(params: Params, scale: Array | float) -> Params:
    """Returns ``params`` / (1 + ``scale``), the operator of scale / 2 times the squared l2 norm.

    >>> prox_l2(jnp.array([3.0]), 2.0).tolist()
    [1.0]
    """
    return jax.tree.map(lambda w: w / (1 + jnp.asarray(scale, w.dtype)), params)


def prox_elastic_net(params: Params, l1: Array | float, l2: Array | float) -> Params:
    """Returns the operator of l1 |x|_1 + l2 / 2 |x|^2: threshold, then shrink.

    Reference: Parikh and Boyd (2014), section 6.5.3.

    >>> prox_elastic_net(jnp.array([4.0]), 1.0, 2.0).tolist()
    [1.0]
    """
    return prox_l2(prox_l1(params, l1), l2)
