"""Shortcuts for large subproblems that are not hard; each says whether it found the minimiser."""

import jax
import jax.numpy as jnp
from jax import Array, lax

_CANDIDATES = 8  # multipliers tried at once; a scan over 8 lanes costs what one over 1 does
_MAX_ROUNDS = 12  # most instances take 3 to 6; one that takes more is hard, or nearly


def try_interior(matrix: Array, linear: Array, weight: Array) -> tuple[Array, Array]:
    """The unconstrained minimiser, by Cholesky, and whether it is one and lies in the unit ball.

    Args:
      matrix: A, shape (p, p), symmetric, entries of at most 1; the Hessian is ``weight`` A.
      linear: shape (p,), the gradient.
      weight: in [0, 1].

    Returns:
      The step, and whether it holds to rounding; if not it means nothing.
    """
    factor = jnp.linalg.cholesky(matrix, symmetrize_input=False)
    pivots = jnp.diagonal(factor) ** 2
    # Curvature that may be rounding is left to the eigendecomposition. A failed factor is NaN.
    definite = jnp.min(pivots) > jnp.finfo(pivots.dtype).eps ** 0.5 * jnp.max(pivots)
    step = jax.scipy.linalg.cho_solve((factor, True), -linear)
    step = step / jnp.where(weight > 0, weight, 1)
    return step, definite & (weight > 0) & (jnp.linalg.norm(step) <= 1)


def try_tridiagonal(matrix: Array, linear: Array, weight: Array) -> tuple[Array, Array, Array]:
    """The minimiser on the unit sphere, by Newton's iteration on tridiagonal factors.

    Several times cheaper than an eigendecomposition. The multiplier itself is the unknown, so that
    digits are lost where it is close to minus the lowest eigenvalue; there it gives up.

    Args:
      matrix: as in ``try_interior``, and so ``linear`` and ``weight``.
      linear: see there.
      weight: see there.

    Returns:
      The step, the multiplier, and whether they hold to rounding; if not they mean nothing.
    """
    packed, diagonal, off, taus = lax.linalg.tridiagonal(matrix, lower=True)
    reflectors = packed[1:, :-1]

    def rotate(vector, transpose):
        rest = lax.linalg.ormqr(reflectors, taus, vector[1:, None], transpose=transpose)
        return jnp.concatenate([vector[:1], rest[:, 0]])

    diagonal, off, vector = weight * diagonal, weight * off, rotate(linear, True)
    multiplier, step, found = _search(diagonal, off, vector)
    return rotate(step, False), multiplier, found


def _search(diagonal: Array, off: Array, vector: Array) -> tuple[Array, Array, Array]:
    tolerance = 16 * jnp.finfo(vector.dtype).eps
    below, above = jnp.pad(off, (1, 0)), jnp.pad(off, (0, 1))
    margin, length = jnp.abs(below) + jnp.abs(above), jnp.linalg.norm(vector)
    low = jnp.maximum(0, length - jnp.max(diagonal + margin))
    low = jnp.maximum(low, -jnp.min(diagonal))
    high = jnp.maximum(low, length - jnp.min(diagonal - margin))
    fractions = jnp.linspace(0, 1, _CANDIDATES - 1, dtype=vector.dtype)

    def unfinished(carry):
        return (carry[0] < _MAX_ROUNDS) & (carry[1] < carry[2]) & ~carry[-1]

    def advance(carry):
        count, low, high, trial = carry[:4]
        trials = jnp.append(low + (high - low) * fractions, trial)
        steps, norms, slopes, definite = _evaluate(diagonal, below, above, vector, trials)
        newton = trials + (norms - 1) * norms**2 / jnp.where(slopes > 0, slopes, 1)
        good = definite & (jnp.abs(norms - 1) <= tolerance)
        best = jnp.argmax(good)
        left = ~definite | (norms > 1)
        low = jnp.max(jnp.where(left, trials, low))
        high = jnp.min(jnp.where(left, high, trials))
        # From the left Newton's iteration climbs to the root without passing it; from the right it
        # lands on the left of it, or where the matrix is indefinite.
        climbed = jnp.max(jnp.where(definite, newton, low))
        middle = low + (high - low) / 16
        trial = jnp.where((climbed > low) & (climbed < high), climbed, middle)
        return count + 1, low, high, trial, trials[best], steps[:, best], good[best]

    start = (0, low, high, low, low, jnp.zeros_like(vector), jnp.bool_(False))
    return lax.while_loop(unfinished, advance, start)[-3:]


def _evaluate(
    diagonal: Array, below: Array, above: Array, vector: Array, trials: Array
) -> tuple[Array, Array, Array, Array]:
    """For each multiplier: the step, its norm, the scale of its slope, and definiteness."""
    one, zero = jnp.ones_like(trials), jnp.zeros_like(trials)

    def factor(carry, row):
        pivot, entry = carry
        a, b, g = row
        ratio = b / pivot
        entry = -g - ratio * entry
        raw = a + trials - ratio * b
        pivot = jnp.where(raw > 0, raw, 1)
        return (pivot, entry), (pivot, ratio, entry, raw)

    def substitute(later, row):
        entry, pivot, b = row
        now = (entry - b * later) / pivot
        return now, now

    def resubstitute(earlier, row):
        value, ratio = row
        now = value - ratio * earlier
        return now, now

    _, (pivots, ratios, entries, raw) = lax.scan(factor, (one, zero), (diagonal, below, vector))
    _, steps = lax.scan(substitute, zero, (entries, pivots, above), reverse=True)
    _, halves = lax.scan(resubstitute, zero, (steps, ratios))
    norms = jnp.linalg.norm(steps, axis=0)
    slopes = jnp.sum(halves**2 / pivots, axis=0)
    return steps, norms, slopes, jnp.all(raw > 0, axis=0)
