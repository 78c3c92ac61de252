"""The p-norm mirror map of the l1 ball: its gradient, and the way back into the ball."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax._typing import Array


class PNorm(NamedTuple):
    """psi(x) = |x|_q^2 / (2 modulus), which is 1-strongly convex with respect to |.|_1.

    Attributes:
      q: in (1, 2].
      modulus: (q - 1) p^(-2 (q - 1) / q), since |x|_q^2 / 2 is (q - 1)-strongly convex with respect
        to |.|_q, and |x|_1 is at most p^((q - 1) / q) |x|_q.
    """

    q: float
    modulus: float


def p_norm(dimension: int) -> PNorm:
    """Returns the p-norm function of least range on the l1 ball.

    With s = (q - 1) / q its range is e^(2 s ln p) (1 - s) / (2 s) on the unit ball, least where
    2 s (1 - s) ln p = 1: about e ln p, where the usual q = 1 + 1 / ln p has e^2 ln p / 2. Below 8
    coordinates q = 2 is best.

    Reference: Beck and Teboulle (2003), "Mirror descent and nonlinear projected subgradient
      methods", for the p-norm functions.

    >>> [round(p_norm(p).q, 3) for p in (4, 4000)]
    [2.0, 1.069]
    """
    log = math.log(_validate.positive_int("dimension", dimension))
    share = (1 - math.sqrt(1 - 2 / log)) / 2 if log > 2 else 0.5
    q = 1 / (1 - share)
    return PNorm(q, (q - 1) * math.exp(-2 * share * log))


def to_dual(x: Array, psi: PNorm) -> Array:
    """Returns the gradient of ``psi`` at ``x``, shape (p,)."""
    top = jnp.max(jnp.abs(x))
    ratio = jnp.abs(x) / _above_zero(top)
    norm = jnp.sum(ratio**psi.q) ** (1 / psi.q)
    return top / psi.modulus * _above_zero(norm) ** (2 - psi.q) * ratio ** (psi.q - 1) * jnp.sign(x)


def from_dual(dual: Array, psi: PNorm, radius: Array | float) -> tuple[Array, Array]:
    """Returns argmin over |z|_1 <= ``radius`` of psi(z) - <dual, z>, and psi's gradient there.

    The gradient at the minimum is ``dual`` with every entry brought nearer to zero by one threshold
    nu >= 0, and the point's l1 norm grows as nu falls. What is left of the largest entry, u, is
    found by bisection: it is at most radius / modulus, because |z|_1 >= |z|_q >= modulus u.

    >>> point, _ = from_dual(jnp.array([3.0, 1.0]), p_norm(2), 1.0)
    >>> [round(float(w), 3) for w in point]
    [1.0, 0.0]
    """
    conjugate = psi.q / (psi.q - 1)
    # Distances below the largest entry, so that a threshold close to it keeps its digits.
    top = jnp.max(jnp.abs(dual))
    below = jnp.abs(dual) - top

    def at(left: Array) -> tuple[Array, Array]:
        kept = jnp.maximum(below + left, 0)
        ratio = kept / _above_zero(left)
        norm = _above_zero(jnp.sum(ratio**conjugate)) ** (1 / conjugate)
        return psi.modulus * left * norm ** (2 - conjugate) * ratio ** (conjugate - 1), kept

    def halve(_: int, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bracket
        middle = (low + high) / 2
        inside = jnp.sum(at(middle)[0]) <= radius
        return jnp.where(inside, middle, low), jnp.where(inside, high, middle)

    highest = jnp.minimum(jnp.asarray(radius / psi.modulus, dual.dtype), top)
    halvings = jnp.finfo(dual.dtype).nmant + 2
    left, _ = jax.lax.fori_loop(0, halvings, halve, (jnp.zeros_like(top), highest))
    point, kept = at(left)
    return point * jnp.sign(dual), kept * jnp.sign(dual)


def _above_zero(value: Array) -> Array:
    return jnp.maximum(value, jnp.finfo(value.dtype).tiny)
