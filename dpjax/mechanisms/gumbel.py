"""The exponential mechanism: only the index of the largest noisy score is released."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax

from dpjax._typing import Array
from dpjax._wide import float64
from dpjax.mechanisms.base import check_threefry

if TYPE_CHECKING:
    from jaxtyping import Float, Int32, Key, Real

# Between the choice below and that of real arithmetic, per score, see ``selection_error``.
_ERROR_BITS = 44


def noisy_argmax(
    key: Key[Array, ""],
    scores: Float[Array, " k"],
    scale: Real[Array, ""] | float,
    *,
    unsafe_fast_noise: bool = False,
) -> Int32[Array, ""]:
    """Returns the place of the largest score after adding Gumbel noise: i with P ~ e^(s_i / scale).

    Args:
      key: a key used for nothing else, shape ().
      scores: floating, shape (K,); -inf, or anything that is not a number, is never chosen unless
        all are.
      scale: public, shape (), above 0.
      unsafe_fast_noise: True draws and compares in float32, NOT SAFE for a release.

    Returns:
      int32, shape ().

    Raises:
      ValueError: for a key that is not threefry.

    Privacy: where neighbours move every score by D at most, log-ratios of outcomes spread over
      2 D / scale: pure differential privacy of that epsilon, and rho = (2 D / scale)^2 / 8. No
      noisy score leaves, so there are no low bits to read; what floating point changes is which
      place wins a near tie, with probability ``selection_error`` at most.

    Reference: McSherry and Talwar, "Mechanism design via differential privacy" (2007); Dong, Durfee
      and Rogers (2020), lemma 4.2, for the noise.

    >>> noisy_argmax(jax.random.key(0), jnp.array([0.0, 100.0, -jnp.inf]), 1.0)
    Array(1, dtype=int32)
    """
    check_threefry(key)
    if unsafe_fast_noise:
        fast = jax.random.gumbel(key, scores.shape, jnp.float32)
        noisy = scores.astype(jnp.float32) / jnp.asarray(scale, jnp.float32) + fast
        return jnp.argmax(jnp.where(jnp.isnan(noisy), -jnp.inf, noisy)).astype(jnp.int32)
    noise = gumbel_from_bits(jax.random.bits(key, (2, *scores.shape), jnp.uint32))
    with jax.enable_x64(True):
        wide = float64(scores)
        wide = lax.select(lax.is_finite(wide), wide, lax.full_like(wide, -jnp.inf))
        # Relative to the best: scores that can win are then exact to 2^-46 of the scale.
        best = lax.reduce_max(wide, (0,))
        best = lax.select(lax.is_finite(best), best, lax.full_like(best, 0.0))
        noisy = lax.div(wide - best, lax.broadcast(float64(scale), wide.shape)) + noise
        largest = noisy == lax.reduce_max(noisy, (0,))
    # lax.argmax on float64 does not lower where x64 is off.
    return jnp.argmax(largest).astype(jnp.int32)


def selection_error(count: int) -> float:
    """Returns a bound on the total variation between ``noisy_argmax`` and real arithmetic.

    With noise of scale 1, the difference of one noisy score and the largest of the others has a
    density of 1/4 at most. A score within 64 of the best (all others win with probability e^-64),
    its noise of at most 45 and their sum are each wrong by at most 2^-46: together 6 2^-46 for two
    of them, half of which, times 1/4 and the number of scores, is below 2^-46 a score. The 64 bits
    stand for a cell of the exponential variable each, which moves the noise by 1/m in the m-th cell
    of probability 2^-64, and its other tail is cut to 2^-53: below 2^-50 in all. The bound is
    twice the sum and more.

    Args:
      count: number of scores.

    >>> selection_error(32) == 2.0**-39
    True
    """
    return count * 2.0**-_ERROR_BITS


def gumbel_from_bits(bits: Array) -> Array:
    """Returns the standard Gumbel quantile that 64 random bits choose.

    Args:
      bits: uint32 (2, ...), the number m; t = (m + 1/2) / 2^64 is the upper tail's probability.

    Returns:
      float64 (...): -log(-log(1 - t)), with full precision where it is large. The largest is 45.

    >>> with jax.enable_x64(True):
    ...     print(gumbel_from_bits(jnp.array([[0, 2**31], [0, 0]], jnp.uint32)).round(4))
    [45.0546  0.3665]
    """
    with jax.enable_x64(True):
        tail = float64(bits[0]) * 2.0**-32 + float64(bits[1]) * 2.0**-64 + 2.0**-65
        return -jnp.log(-jnp.log1p(-tail))
