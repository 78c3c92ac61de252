"""The trust-region subproblem: the global minimiser and its dual variable."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.core import Tracer
from jax.typing import ArrayLike

from dpjax import _validate
from dpjax._typing import Float, Real
from dpjax.linalg._newton import by_eigenvectors, or_one, try_interior, try_newton
from dpjax.linalg.lanczos import try_lanczos

_NEWTON_SIZE = 48  # below it an eigendecomposition is about as cheap, and on one thread


class TrustRegionStep(NamedTuple):
    """A minimiser of the quadratic model over the ball, and the multiplier that proves it.

    Attributes:
      step: the minimiser h, shape (p,).
      multiplier: the dual variable lambda >= max(0, -lambda_min(H)), shape (); 0 inside the ball.
    """

    step: Float[Array, " p"]
    multiplier: Float[Array, ""]


class Solver(Protocol):
    """What minimises a scaled model over the unit ball; hashable, as it is part of the program."""

    def solve(self, matrix: Array, linear: Array, weight: Array) -> tuple[Array, Array]:
        """Returns the minimiser h of <linear, h> + weight h' matrix h / 2, and its multiplier.

        Args:
          matrix: symmetric, shape (p, p), its largest entry of size 1, or 0.
          linear: shape (p,), entries of size at most 1.
          weight: at least 0 and at most 1, shape ().
        """
        ...


@dataclasses.dataclass(frozen=True)
class Exact(Solver):
    """Solves by eigenvectors, or by Cholesky factors where those are faster.

    Takes one symmetric eigendecomposition and a bracketed Newton iteration on the secular equation;
    it is exact in the hard case and near it, where iterations on Cholesky factors
    (``scipy.optimize``'s ``trust-exact``) lose digits or fail. On a CPU a minimiser inside the ball
    is found by one Cholesky factorisation instead and, from p = 48, one on the sphere by 2 to 5,
    which do not compete with XLA for the cores; a hard instance pays for both. The step satisfies
    (H + lambda I) h = -g, lambda (radius - |h|) = 0, |h| <= radius and H + lambda I >= 0, each to a
    relative residual of 1e-12 in float64 and 1e-5 in float32. Rounding is not treated as curvature:
    eigenvalues within 4 sqrt(p) eps |H| of 0 count as 0, and if the model is flat there the step
    does not move along them. Where there are several minimisers (the hard case) one of them is
    returned.

    Reference: Moré and Sorensen (1983), Computing a trust region step; Conn, Gould and Toint
    (2000), Trust-region methods, section 7.3.
    """

    def solve(self, matrix: Array, linear: Array, weight: Array) -> tuple[Array, Array]:
        return lax.platform_dependent(
            matrix, linear, weight, cpu=_by_shortcut, default=_by_eigenvectors
        )


@dataclasses.dataclass(frozen=True)
class Lanczos(Solver):
    """Solves on a Krylov space; several times faster than ``Exact`` from p of about 300.

    The value of the step is proved to be within a relative 1e-5 of the minimum, and an instance
    without a proof, such as a hard one with many eigenvalues close to the lowest, is solved by
    ``Exact`` after all. Under ``vmap`` every model pays for both.

    Reference: Gould, Lucidi, Roma and Toint (1999), Solving the trust-region subproblem using the
    Lanczos method.
    """

    def solve(self, matrix: Array, linear: Array, weight: Array) -> tuple[Array, Array]:
        step, multiplier, proved = try_lanczos(matrix, linear, weight)
        return lax.cond(
            proved, lambda: (step, multiplier), lambda: Exact().solve(matrix, linear, weight)
        )


@dataclasses.dataclass(frozen=True)
class BySize(Solver):
    """Solves by ``Lanczos`` from a dimension on, and by ``Exact`` below it.

    Args:
      lanczos_from: least p for ``Lanczos``; below 256 an exact solution takes at most a few
        milliseconds.
    """

    lanczos_from: int = 256

    def solve(self, matrix: Array, linear: Array, weight: Array) -> tuple[Array, Array]:
        solver = Lanczos() if linear.size >= self.lanczos_from else Exact()
        return solver.solve(matrix, linear, weight)


BY_SIZE = BySize()


def check_solver(name: str, solver: Any) -> Solver:
    """Returns a solver, or raises where it is none, naming the argument."""
    if isinstance(solver, type) or not callable(getattr(solver, "solve", None)):
        raise ValueError(
            f"{name} must be a solver such as dpjax.linalg.Exact(), dpjax.linalg.Lanczos() or "
            f"dpjax.linalg.BySize(), got {solver!r}."
        )
    return solver


def trust_region_step(
    gradient: Float[ArrayLike, " p"],
    hessian: Float[ArrayLike, "p p"],
    radius: Real[ArrayLike, ""],
    solver: Solver = BY_SIZE,
) -> TrustRegionStep:
    """Returns the global minimiser of <g, h> + h'Hh/2 over |h| <= radius, for any symmetric H.

    Works under ``jit`` and ``vmap``; under ``vmap`` ``solver=Exact()`` is the faster one.

    Args:
      gradient: g, shape (p,), float32 or float64, finite (the oracles guarantee that).
      hessian: H, shape (p, p), of the gradient's dtype, finite; its symmetric part is used.
      radius: above 0 and finite, a number or a scalar array, which may be traced. Its product with
        the largest entry of ``hessian`` must not overflow.
      solver: ``Exact()``, ``Lanczos()``, or by default ``BySize()``, Lanczos from p = 256.

    Returns:
      ``TrustRegionStep(step, multiplier)`` in the dtype of the gradient.

    Raises:
      ValueError: if a shape, dtype or solver is wrong, or if the radius is concrete and not above
        0.

    Privacy: post-processing of its inputs.

    Reference: that of the solver.

    >>> import jax.numpy as jnp
    >>> saddle = jnp.diag(jnp.array([-1.0, 3.0]))
    >>> step, multiplier = trust_region_step(jnp.array([0.0, 4.0]), saddle, radius=2.0)
    >>> print(f"{abs(step[0]):.3f} {step[1]:.3f} {multiplier:.3f}")
    1.732 -1.000 1.000
    """
    gradient, hessian = jnp.asarray(gradient), jnp.asarray(hessian)
    _check(gradient, hessian, radius)
    solver = check_solver("solver", solver)
    return _solve(gradient, hessian, jnp.asarray(radius, gradient.dtype), solver)


def _check(gradient: Array, hessian: Array, radius: Any) -> None:
    if gradient.ndim != 1 or gradient.size == 0:
        raise ValueError(f"gradient must have shape (p,), got {gradient.shape}.")
    if hessian.shape != 2 * gradient.shape:
        raise ValueError(
            f"hessian must have shape {2 * gradient.shape} to go with gradient, "
            f"got {hessian.shape}."
        )
    if gradient.dtype not in (jnp.float32, jnp.float64):
        raise ValueError(f"gradient must be float32 or float64, got {gradient.dtype}; cast it.")
    if hessian.dtype != gradient.dtype:
        raise ValueError(
            f"hessian must have the dtype of gradient, {gradient.dtype}, got {hessian.dtype}."
        )
    if np.ndim(radius) != 0:
        raise ValueError(f"radius must be a scalar, got shape {np.shape(radius)}.")
    if not isinstance(radius, Tracer):
        _validate.positive("radius", radius)


@functools.partial(jax.jit, static_argnames="solver")
@jax.default_matmul_precision("highest")  # else a residual of 1e-5 is 4e-4 in TF32
def _solve(gradient: Array, hessian: Array, radius: Array, solver: Solver) -> TrustRegionStep:
    # In units of the radius, and with the larger of |g| and |H| radius at 1, nothing below can
    # overflow in float32, and what underflows is negligible.
    hessian_size, gradient_size = jnp.max(jnp.abs(hessian)), jnp.max(jnp.abs(gradient))
    size = or_one(jnp.maximum(hessian_size * radius, gradient_size))
    curvature_weight = hessian_size * radius / size
    linear = gradient / size
    matrix = hessian / or_one(hessian_size)
    matrix = (matrix + matrix.T) / 2

    step, multiplier = solver.solve(matrix, linear, curvature_weight)
    length = jnp.linalg.norm(step)
    # On the sphere the length is the radius, up to the solver's rounding.
    step = jnp.where(multiplier > 0, step / or_one(length), step)
    # With H radius / size in the scaled model, its multiplier is lambda radius / size.
    return TrustRegionStep(radius * step, multiplier * (size / radius))


def _by_shortcut(matrix: Array, linear: Array, weight: Array) -> tuple[Array, Array]:
    if linear.size < _NEWTON_SIZE:
        # Below this size minimisers on the sphere are left to the eigenvectors, as cheap there.
        step, valid = try_interior(matrix, linear, weight)
        multiplier = jnp.zeros_like(weight)
    else:
        step, multiplier, valid = try_newton(matrix, linear, weight)
    return lax.cond(
        valid, lambda: (step, multiplier), lambda: _by_eigenvectors(matrix, linear, weight)
    )


def _by_eigenvectors(matrix: Array, linear: Array, weight: Array) -> tuple[Array, Array]:
    return by_eigenvectors(matrix, linear, weight)[:2]
