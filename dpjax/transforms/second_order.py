"""The trust-region step as a link of an optax chain: from noisy derivatives to a move."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import optax
from jax.core import Tracer
from jax.flatten_util import ravel_pytree

from dpjax import _validate
from dpjax._typing import Array, Params, PyTree
from dpjax._wide import at_least_float32
from dpjax.linalg import Solver, trust_region_step
from dpjax.linalg.trust_region import BY_SIZE, check_solver


class TrustRegionLinkState(NamedTuple):
    """Number of updates so far, int32, and the last multiplier, infinite before the first."""

    count: Array
    multiplier: Array


def trust_region(
    radius: optax.ScalarOrSchedule,
    *,
    damping: optax.ScalarOrSchedule = 0.0,
    solver: Solver = BY_SIZE,
) -> optax.GradientTransformationExtraArgs:
    """Returns a transformation from a noisy gradient g and Hessian H to the trust-region step.

    The step minimises <g, h> + h'(H + damping I)h / 2 over |h| <= radius; no learning rate follows.

    Args:
      radius: above 0, a number or an optax schedule.
      damping: at least 0, a number or an optax schedule; about the spectral norm of the noise on H.
      solver: as in ``dpjax.trust_region_step``.

    Returns:
      An optax transformation. ``update(..., hessian=H)`` takes H (p, p), ordered as
      ``clipped_hessian`` orders it, of the dtype of the updates; its symmetric part is used.
      Updates that leave are at least float32.

    Raises:
      ValueError: for a number out of range; by ``update`` for a Hessian that is missing or has
        another shape or dtype. The step is NaN where a derivative is not finite, or a number that
        is traced is out of range.

    Privacy: post-processing; both derivatives must be released, each by an event of its own.

    Reference: Wang and Xu (2020), algorithm 1, steps 5 and 6.

    >>> link, saddle = trust_region(2.0), jnp.diag(jnp.array([-1.0, 3.0]))
    >>> step, _ = link.update(jnp.array([0.0, 4.0]), link.init(jnp.zeros(2)), hessian=saddle)
    >>> print(f"{abs(step[0]):.3f} {step[1]:.3f}")
    1.732 -1.000
    """
    solver = check_solver("solver", solver)
    numbers = ("radius", radius, _validate.positive), ("damping", damping, _validate.non_negative)
    for number in numbers:
        _ = callable(number[1]) or _at(0, *number)

    def init(params: Params) -> TrustRegionLinkState:
        dtype = ravel_pytree(at_least_float32(params))[0].dtype
        return TrustRegionLinkState(jnp.zeros((), jnp.int32), jnp.array(jnp.inf, dtype))

    def update(
        updates: PyTree, state: Any, params: Any = None, *, hessian: Any = None, **extra: Any
    ) -> tuple[PyTree, TrustRegionLinkState]:
        gradient, unravel = ravel_pytree(at_least_float32(updates))
        p, dtype = gradient.size, gradient.dtype
        got = jnp.asarray(() if hessian is None else hessian)
        if (got.shape, got.dtype) != ((p, p), dtype):
            words = "none" if hessian is None else f"{got.dtype} of shape {got.shape}"
            raise ValueError(
                f"hessian must be the noisy Hessian, {dtype} of shape {(p, p)}, got {words}: pass "
                "update(updates, state, params, hessian=H), ordered as clipped_hessian orders it."
            )
        bound, lift = jnp.array([_at(state.count, *number) for number in numbers], dtype)
        lifted = got + lift * jnp.eye(p, dtype=dtype)
        step, multiplier = trust_region_step(gradient, lifted, bound, solver)
        # A solver may overlook an entry that is not finite, and a negative radius turns the step.
        usable = (bound > 0) & (bound < jnp.inf) & (lift >= 0)
        usable &= jnp.isfinite(gradient).all() & jnp.isfinite(lifted).all()
        step, multiplier = (jnp.where(usable, one, jnp.nan) for one in (step, multiplier))
        return unravel(step), TrustRegionLinkState(state.count + 1, multiplier)

    return optax.GradientTransformationExtraArgs(init, update)


def _at(count: Any, name: str, given: Any, check: Callable[[str, Any], float]) -> Any:
    """Returns a number, or a schedule's at ``count``, checked where its value is known."""
    number = given(count) if callable(given) else given
    if not isinstance(number, Tracer):
        check(name, number)
    return number
