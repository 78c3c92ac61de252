"""The exponential mechanism: only the index of the largest noisy score is released."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from dpjax._typing import Array
from dpjax._wide import Expansion
from dpjax.mechanisms import lattice
from dpjax.mechanisms.fixed_point import FRACTION, standard_gumbel
from dpjax.mechanisms.keys import check_threefry

if TYPE_CHECKING:
    from jaxtyping import Float, Int32, Key, Real

# Between the choice below and that of real arithmetic, a score, see ``selection_error``.
_ERROR_BITS = 44


def noisy_argmax(
    key: Key[Array, ""],
    scores: Float[Array | Expansion, " k"],
    scale: Real[Array, ""] | float,
) -> Int32[Array, ""]:
    """Returns the place of the largest score after adding Gumbel noise: i with P ~ e^(s_i / scale).

    Args:
      key: a key used for nothing else, shape ().
      scores: floating, shape (K,); -inf, or anything that is not a number, is never chosen unless
        all are.
      scale: public, shape (), above 0.

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
    with jax.enable_x64(True):
        noise = standard_gumbel(key, scores.shape)
        unit = lattice.scale_of(scale)
        # Scores and noise as pairs of integers, upper and lower digits, which add without rounding.
        grids, rest = lattice.split(scores, unit.exponent)
        rest = rest + lattice.in_units(noise, unit, FRACTION)
        # After the carry, upper digits decide first and lower digits break ties.
        grids, rest = lattice.carried(grids, rest)
        leading = scores.leading if isinstance(scores, Expansion) else scores
        usable = jnp.isfinite(leading)
        usable = usable | ~jnp.any(usable)
        for digits in (grids, rest):
            best = jnp.max(jnp.where(usable, digits, jnp.iinfo(jnp.int64).min))
            usable = usable & (digits == best)
    # lax.argmax of 64-bit integers does not lower where x64 is off.
    return jnp.argmax(usable).astype(jnp.int32)


def selection_error(count: int) -> float:
    """Returns a bound on the total variation between ``noisy_argmax`` and real arithmetic.

    Its scale is the one that is used, which is the given one or up to 2^-20 of it more. In units of
    it each noisy score is wrong by at most e: the table by 2^-50, its 63 bits by 2^-50 (they leave
    the tail open to a relative 2^-50 where no second word is read), the product and at most three
    terms of a score by 2^-53 each. That a place wins then implies that it wins in real arithmetic
    with its score raised by 2 e, which changes the logarithm of its probability by 2 e at most,
    together below 2^-47. Tails are cut at 2^-64 a score. The bound is eight times the sum.

    Args:
      count: number of scores.

    >>> selection_error(32) == 2.0**-39
    True
    """
    return count * 2.0**-_ERROR_BITS
