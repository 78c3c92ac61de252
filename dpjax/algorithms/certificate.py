"""The private certificate: bounds on the exact gradient and curvature, from released values."""

import jax.numpy as jnp
import optax

from dpjax._typing import Array, Params, pytree_dataclass, static
from dpjax._wide import at_least_float32
from dpjax.objectives import Objective

# Rounding in norms and in eigvalsh; far below any useful noise.
_SLACK = 1e-6
# In units of the clip norm: clipping stops 2^-17 short of it, so it acts by that much even where it
# never should, and a float32 sum of n terms of that size is rounded.
CLIP_SLACK = 1.1e-5


@pytree_dataclass
class Certificate:
    """Bounds that hold together with probability at least 1 - beta over the noise.

    Args:
      gradient_norm_upper: bound on the l2 norm of the gradient at the certified iterate.
      min_eigenvalue_lower: bound on the Hessian's smallest eigenvalue there; None if no Hessian
        was released.
      beta: probability that a bound fails.
      iterate: which iterate: ``"last_query"`` (w_{T-1}, where the last answers were asked) or
        ``"output"``.
      scope: which function: ``"objective"`` where clipping provably never acts (a loss of dpjax's
        own with clip norms at its constants, n public, and a ``Dataset`` that declares its rows to
        have norm at most 1), else ``"clipped objective"``, divided by the declared n.

    Privacy: post-processing of released values.
    """

    gradient_norm_upper: Array
    min_eigenvalue_lower: Array | None
    beta: Array | float
    iterate: str = static()
    scope: str = static()


@pytree_dataclass
class NoiseBounds:
    """Quantiles of the noise of one answer, found on the host.

    Args:
      gradient: the norm of the gradient's noise exceeds this with probability at most beta / 2
        (beta, if no Hessian is released).
      hessian: the largest eigenvalue of the Hessian's noise exceeds this with probability at most
        beta / 2; None without a Hessian.
    """

    gradient: Array | float
    hessian: Array | float | None


def certify(
    objective: Objective,
    params: Params,
    gradient: Params,
    hessian: Array | None,
    bounds: NoiseBounds,
) -> tuple[Array, Array | None]:
    """Returns |g + grad r| + bound, and lambda_min(H + hess r) - bound.

    g and H (p, p) are noisy derivatives of the data term at ``params``, undamped; r is the
    objective's regularizer, which is exact.

    Privacy: post-processing.
    """
    # In half precision the squares of a small gradient underflow, and the bound with them.
    params, gradient = at_least_float32(params), at_least_float32(gradient)
    norm = optax.tree.norm(objective.regularize_gradient(gradient, params))
    upper = (norm + bounds.gradient) * (1 + _SLACK)
    if hessian is None or bounds.hessian is None:
        return upper, None
    eigenvalues = jnp.linalg.eigvalsh(objective.regularize_hessian(hessian, params))
    # eigvalsh is off by a part of the largest eigenvalue, which the smallest may be far below.
    rounding = _SLACK * jnp.max(jnp.abs(eigenvalues))
    return upper, eigenvalues[0] - bounds.hessian * (1 + _SLACK) - rounding


def scope_of(unclipped: bool) -> str:
    """Returns the name of the function that the bounds speak of."""
    return "objective" if unclipped else "clipped objective"
