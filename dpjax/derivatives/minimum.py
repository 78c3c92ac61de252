"""The minimiser of a ridge-regularized margin loss, up to a proven distance; no noise."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax

from dpjax._typing import Array, Float, Integer, Real
from dpjax._wide import Expansion, float64, from_float64, to_float64
from dpjax.derivatives.linear.scaled_rows import Linear
from dpjax.derivatives.linear.sums import score_sums
from dpjax.objectives.linear import LinearLoss

_WIDE_UNIT = 2.0**-53


@functools.partial(jax.jit, static_argnames=("linear", "data_size"))
def ridge_minimum(
    linear: LinearLoss,
    records: Linear,
    tilt: Float[Expansion, " p"],
    strength: Real[Array, ""] | float,
    lipschitz: Real[Array, ""] | float,
    smoothness: Real[Array, ""] | float,
    iterations: Integer[Array, ""] | int,
    data_size: int,
) -> Float[Expansion, " p"]:
    """Returns w near the minimum of sum phi(m_i) / n + strength |w|^2 / 2 + <tilt, w>, shape (p,).

    It takes ``iterations`` accelerated gradient steps of Nesterov from w = 0, in float64.

    Args:
      linear: a convex loss phi of the margin m = y <x, w>.
      records: from ``linear.scaled_rows.prepare``; features longer than 1 are scaled to length 1.
      tilt: (p,), a linear term.
      strength: mu, above 0.
      lipschitz: G; derivatives phi' beyond it are clipped to it, which keeps phi convex.
      smoothness: M, a bound on phi''.
      iterations: K, see ``iterations_for``.
      data_size: the declared n.

    Privacy: NOT a mechanism. One record moves the exact minimum by G / (n mu) at most, or twice
      that if it is replaced: with F and F' the two objectives, mu |w - w'| <= |grad F(w')| =
      |grad (F - F')(w')|, and only one record's term of the sum differs.

    Reference: Nesterov, "Introductory lectures on convex optimization" (2004), scheme 2.2.11.

    >>> from dpjax.objectives.linear import Margin
    >>> from dpjax._wide import to_expansion
    >>> from dpjax.derivatives.linear.scaled_rows import prepare
    >>> records = prepare((jnp.array([[1.0, 0.0]]), jnp.ones(1)))
    >>> tilted = Margin(lambda m: m**2 / 2 - m)
    >>> ridge_minimum(tilted, records, to_expansion(jnp.zeros(2)), 1.0, 9.0, 1.0, 50,
    ...     data_size=1).leading.round(4)
    Array([0.5, 0. ], dtype=float32)
    """
    dtype, rows = records.dtype, records.of_unit_length()
    with jax.enable_x64(True):
        mu, bound, slope = float64(strength), float64(lipschitz), to_float64(tilt)
        # With the margin of ``distance_bound``, whose proof needs steps of at most 1 / curvature.
        curvature = float64(smoothness) * (1 + 1e-6) + mu
        # Nesterov's constant momentum for strongly convex functions, (1 - sqrt q) / (1 + sqrt q).
        root = jnp.sqrt(mu / curvature)
        momentum = (1 - root) / (1 + root)

        def body(_: Array, both: tuple[Array, Array]) -> tuple[Array, Array]:
            last, ahead = both
            # In any order: what einsum does in float64 breaks under a later trace without x64.
            total, _ = score_sums(linear, rows, ahead, (1.0, None), bound, True)
            assert total is not None
            total = to_float64(total)
            gradient = total / float64(float(data_size)) + mu * ahead + slope
            point = ahead - gradient / curvature
            return point, point + momentum * (point - last)

        start = jnp.zeros_like(slope)
        # One integer width, with or without x64.
        last = lax.convert_element_type(iterations, jnp.int32)
        return from_float64(lax.fori_loop(jnp.int32(0), last, body, (start, start))[0], dtype)


def distance_bound(
    slope: Real[Array, ""] | float,
    strength: float,
    smoothness: float,
    iterations: Integer[Array, ""] | int,
    rows: int,
) -> Real[Array, ""] | float:
    """Returns a bound on the distance between ``ridge_minimum`` and the exact minimum.

    After K steps F(w_K) - F* <= (1 - 1/sqrt(kappa))^K (F(0) - F* + mu |w*|^2 / 2), with kappa =
    (M + mu) / mu. There F(0) - F* <= s^2 / (2 mu) and |w*| <= s / mu for s = |grad F(0)|, and
    |w_K - w*|^2 <= 2 (F(w_K) - F*) / mu: so the distance is at most sqrt(2) (s / mu) e^(-K / (2
    sqrt(kappa))). Rounding of gradients, at most u (rows / 64 + 512) s each, is amplified by
    8 sqrt(kappa) / mu at most.

    Args:
      slope: s, a bound on |grad F(0)| for all data.
      strength: mu.
      smoothness: M.
      iterations: K.
      rows: n, for rounding.

    Reference: Nesterov (2004), theorem 2.2.3.

    >>> print(f"{distance_bound(1.0, 1e-3, 0.25, 600, 1000):.1e}")
    8.5e-06
    """
    # The margin of ``ridge_minimum``, of whose steps this is the bound.
    root = math.sqrt((smoothness * (1 + 1e-6) + strength) / strength)
    rounding = 8 * root * (rows / 64 + 512) * _WIDE_UNIT
    decayed = math.sqrt(2) * jnp.exp(-jnp.asarray(iterations) / (2 * root))
    return (decayed + rounding) * slope / strength


def iterations_for(ratio: float, strength: float, smoothness: float) -> int:
    """Returns the steps K at which ``distance_bound`` without rounding is ``ratio`` s / mu.

    >>> iterations_for(1e-8, 1e-3, 0.25)
    595
    """
    root = math.sqrt((smoothness * (1 + 1e-6) + strength) / strength)
    # ``distance_bound`` solved for K, and rounded up so that the bound holds.
    return max(1, math.ceil(2 * root * math.log(math.sqrt(2) / ratio)))
