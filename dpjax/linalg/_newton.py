"""Trust-region subproblems outside the hard case, by a few Cholesky factorisations.

On a CPU an eigendecomposition makes hundreds of small LAPACK calls. Each runs on all threads of a
library that shares the cores with XLA's threads, and the two wait for each other: 100 times longer
has been seen. A Cholesky factorisation is one such call, and a solve for one vector takes one
thread.
"""

import jax
import jax.numpy as jnp
from jax import Array, lax

from dpjax.linalg._secular import or_one

_CANDIDATES = 8  # multipliers tried at once; a scan over 8 lanes costs what one over 1 does
_MAX_ROUNDS = 12  # most instances take 3 to 6; one that takes more is hard, or nearly
_VECTORS = 24  # of the first guess: from it 1 to 4 factorisations are enough
_MAX_FACTORISATIONS = 12


def try_interior(matrix: Array, linear: Array, weight: Array) -> tuple[Array, Array]:
    """Returns the unconstrained minimiser, by Cholesky, and whether it is valid in the unit ball.

    Args:
      matrix: A, shape (p, p), symmetric, entries of at most 1; the Hessian is ``weight`` A.
      linear: shape (p,), the gradient.
      weight: in [0, 1].

    Returns:
      The step, and whether it is accurate to rounding; otherwise the step is meaningless.
    """
    factor = jnp.linalg.cholesky(matrix, symmetrize_input=False)
    step = jax.scipy.linalg.cho_solve((factor, True), -linear)
    step = step / jnp.where(weight > 0, weight, 1)
    return step, _surely_definite(factor) & (weight > 0) & (jnp.linalg.norm(step) <= 1)


def try_newton(matrix: Array, linear: Array, weight: Array) -> tuple[Array, Array, Array]:
    """Returns the minimiser on the unit ball, by Newton's iteration on Cholesky factors.

    Lanczos vectors of the gradient give the first multiplier: the exact one of the model on their
    span, which is at most that of the full model, and mostly equal to many digits. The unknown is
    the multiplier itself, which loses digits close to minus the lowest eigenvalue; there the
    iteration gives up.

    The arguments are those of ``try_interior``.

    Returns:
      The step, the multiplier, and whether they are accurate to rounding; otherwise they are
      meaningless.

    Reference: Moré and Sorensen (1983), algorithm 3.14; Gould, Lucidi, Roma and Toint (1999).
    """
    eps, length = jnp.finfo(linear.dtype).eps, jnp.linalg.norm(linear)
    identity = jnp.eye(linear.size, dtype=linear.dtype)

    def unfinished(carry):
        return (carry[0] < _MAX_FACTORISATIONS) & (carry[1] < carry[2]) & ~carry[-1]

    def advance(carry):
        count, low, high, trial = carry[:4]
        factor = jnp.linalg.cholesky(weight * matrix + trial * identity, symmetrize_input=False)
        definite = jnp.all(jnp.diagonal(factor) > 0)  # a failed factor is NaN
        step = jax.scipy.linalg.cho_solve((factor, True), -linear)
        half = jax.scipy.linalg.solve_triangular(factor, step, lower=True)
        norm, slope = jnp.linalg.norm(step), half @ half
        # Residual of the gradient once the step is scaled to length 1, relative to its terms.
        good = definite & (jnp.abs(norm - 1) * length <= 16 * eps * (trial + length) * norm)
        inside = (trial == 0) & (norm <= 1) & _surely_definite(factor)
        left = ~definite | (norm > 1)
        low, high = jnp.where(left, trial, low), jnp.where(left, high, trial)
        # From the left Newton's iteration climbs to the root without passing it; from the right it
        # lands on the left of it, or where the matrix is indefinite.
        newton = trial + (norm - 1) * norm**2 / jnp.where(slope > 0, slope, 1)
        middle = low + (high - low) / jnp.where(left, 64, 2)
        following = jnp.where(definite & (newton > low) & (newton < high), newton, middle)
        return count + 1, low, high, following, trial, step, good | inside

    low = jnp.maximum(0, -weight * jnp.min(jnp.diagonal(matrix)))
    high = length + weight * jnp.linalg.norm(matrix)
    trial = jnp.clip(_first_guess(matrix, linear, weight), low, high)
    # Without a gradient every step here is 0, and only an eigenvector leads down.
    count = jnp.where(length > 0, 0, _MAX_FACTORISATIONS)
    start = (count, low, high, trial, trial, jnp.zeros_like(linear), jnp.bool_(False))
    multiplier, step, converged = lax.while_loop(unfinished, advance, start)[-3:]
    return step, multiplier, converged


def _surely_definite(factor: Array) -> Array:
    # Curvature that may be rounding is left to the eigendecomposition. A failed factor is NaN.
    pivots = jnp.diagonal(factor) ** 2
    return jnp.min(pivots) > jnp.finfo(pivots.dtype).eps ** 0.5 * jnp.max(pivots)


def _first_guess(matrix: Array, linear: Array, weight: Array) -> Array:
    """Returns the multiplier of the model on the span of a few Lanczos vectors of the gradient."""
    size = min(_VECTORS, linear.size)
    length = jnp.linalg.norm(linear)
    rounding = 64 * jnp.finfo(linear.dtype).eps

    def advance(index, carry):
        basis, diagonal, off, vector, last = carry
        basis = basis.at[index].set(vector)
        image = matrix @ vector
        # Beyond the Krylov space of the gradient: positive, so that it has no effect.
        curvature = jnp.where(jnp.any(vector != 0), image @ vector, 1)
        diagonal, off = diagonal.at[index].set(curvature), off.at[index].set(last)
        for _ in range(2):  # once leaves the rounding of what cancelled
            image = image - (basis @ image) @ basis
        norm = jnp.linalg.norm(image)
        norm = jnp.where(norm > rounding * jnp.linalg.norm(diagonal), norm, 0)
        return basis, diagonal, off, jnp.where(norm > 0, image / or_one(norm), 0), norm

    zeros, basis = jnp.zeros(size, linear.dtype), jnp.zeros((size, linear.size), linear.dtype)
    start = (basis, zeros, zeros, linear / or_one(length), jnp.zeros_like(length))
    _, diagonal, off, _, _ = lax.fori_loop(0, size, advance, start)
    return _search(weight * diagonal, weight * off[1:], zeros.at[0].set(length))


def _search(diagonal: Array, off: Array, vector: Array) -> Array:
    """Returns the approximate multiplier, at least 0, of a tridiagonal model on the unit sphere."""
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
        norms, slopes, definite = _evaluate(diagonal, below, above, vector, trials)
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
        return count + 1, low, high, trial, trials[best], good[best]

    start = (0, low, high, low, low, jnp.bool_(False))
    return lax.while_loop(unfinished, advance, start)[-2]


def _evaluate(
    diagonal: Array, below: Array, above: Array, vector: Array, trials: Array
) -> tuple[Array, Array, Array]:
    """Returns, for each multiplier, its step's norm, the scale of its slope, and definiteness."""
    ones, zeros = jnp.ones_like(trials), jnp.zeros_like(trials)

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

    _, (pivots, ratios, entries, raw) = lax.scan(factor, (ones, zeros), (diagonal, below, vector))
    _, steps = lax.scan(substitute, zeros, (entries, pivots, above), reverse=True)
    _, halves = lax.scan(resubstitute, zeros, (steps, ratios))
    norms = jnp.linalg.norm(steps, axis=0)
    slopes = jnp.sum(halves**2 / pivots, axis=0)
    return norms, slopes, jnp.all(raw > 0, axis=0)
