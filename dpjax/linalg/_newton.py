"""The trust-region subproblem by eigenvectors and, outside the hard case, by Cholesky factors.

On a CPU an eigendecomposition makes hundreds of small LAPACK calls. Each runs on all threads of a
library that shares the cores with XLA's threads, and the two wait for each other: 100 times longer
has been seen. A Cholesky factorisation is one such call, and a solve for one vector takes one
thread.
"""

import jax
import jax.numpy as jnp
from jax import Array, lax

_JACOBI_SIZE = 512  # above it XLA divides and conquers on a TPU, which compiles for longer
_MAX_ITERATIONS = 64  # a bound no instance of the tests comes near: most take 3 to 6


def by_eigenvectors(matrix: Array, linear: Array, weight: Array) -> tuple[Array, Array, Array]:
    """Returns step, multiplier and lowest eigenvalue of the Hessian, by an eigendecomposition.

    Here and below the model is of the gradient ``linear`` (p,) and the Hessian ``weight`` A, with
    A symmetric (p, p), entries of at most 1, and ``weight`` in [0, 1]; its ball has radius 1.
    """
    values, vectors = lax.platform_dependent(matrix, tpu=_by_rotations, default=_by_eigh)
    values, coefficients = _clear_rounding(values, linear @ vectors)
    # The gaps before the product: a fused multiply-subtract would not give 0 for the lowest.
    gaps = weight * (values - values[0])
    coordinates, multiplier = _solve_diagonal(weight * values, gaps, coefficients)
    return vectors @ coordinates, multiplier, weight * values[0]


def _by_eigh(matrix: Array) -> tuple[Array, Array]:
    values, vectors = jnp.linalg.eigh(matrix, symmetrize_input=False)
    return values, vectors


def _by_rotations(matrix: Array) -> tuple[Array, Array]:
    """Returns eigenvalues and eigenvectors as a TPU finds them soonest, by Jacobi's rotations."""
    if len(matrix) > _JACOBI_SIZE:
        return _by_eigh(matrix)
    vectors, _ = lax.linalg.eigh(
        matrix, symmetrize_input=False, implementation=lax.linalg.EighImplementation.JACOBI
    )
    # Thousands of rotations leave rounding: a step towards orthogonal vectors, and their values.
    vectors = 1.5 * vectors - vectors @ (vectors.T @ vectors) / 2
    values = jnp.sum(vectors * (matrix @ vectors), 0)
    order = jnp.argsort(values)
    return values[order], vectors[:, order]


def _clear_rounding(values: Array, coefficients: Array) -> tuple[Array, Array]:
    """Sets to 0 the eigenvalues that are rounding, and the gradient's rounding along them."""
    tolerance = 4 * values.size**0.5 * jnp.finfo(values.dtype).eps
    flat = jnp.abs(values) <= tolerance * jnp.max(jnp.abs(values))
    rounding = jnp.abs(coefficients) <= tolerance * jnp.max(jnp.abs(coefficients))
    return jnp.where(flat, 0, values), jnp.where(flat & rounding, 0, coefficients)


def _solve_diagonal(values: Array, gaps: Array, coefficients: Array) -> tuple[Array, Array]:
    """Returns minimiser and multiplier on the unit ball; ``gaps`` are ``values - values[0]``."""
    lowest = values[0]
    free = -coefficients / jnp.where(values > 0, values, 1)
    unbounded = jnp.any((values <= 0) & (coefficients != 0)) | (lowest < 0)
    interior = ~unbounded & (jnp.sum(free**2) <= 1)

    # The hard case is the limit of near-hard ones: a component along the bottom eigenvector far
    # below rounding, of either sign, makes the secular equation solvable and fixes the sign.
    least = jnp.finfo(values.dtype).eps ** 3
    bottom = jnp.where(coefficients[0] < 0, -1, 1) * jnp.maximum(jnp.abs(coefficients[0]), least)
    coefficients = coefficients.at[0].set(jnp.where(lowest < 0, bottom, coefficients[0]))

    # In the shift mu = multiplier + lowest nothing cancels, however close to 0 the root lies.
    shift = _secular_root(gaps, coefficients, jnp.maximum(lowest, least), skip=interior)
    bounded = -coefficients / (gaps + shift)
    multiplier = jnp.maximum(shift - lowest, 0)
    return jnp.where(interior, free, bounded), jnp.where(interior, 0, multiplier)


def _secular_root(gaps: Array, coefficients: Array, floor: Array, skip: Array) -> Array:
    """Returns the shift mu >= floor at which c / (gaps + mu) has norm 1.

    The reciprocal of that norm is concave and increasing in mu, so that Newton's iteration climbs
    from the left to the root without passing it. It is slow where the root lies many orders of
    magnitude above the bottom component; a second point, which halves the bracket on a
    logarithmic scale or is Newton's from the right, carries it over.
    """
    tolerance = 4 * jnp.finfo(gaps.dtype).eps
    # Each term alone has norm at most 1 at the root. Without the tolerance the rounding of this
    # difference could exceed a root that is many orders of magnitude below the gaps.
    low = jnp.maximum(floor, jnp.max((1 - tolerance) * jnp.abs(coefficients) - gaps))
    high = jnp.maximum(low, jnp.linalg.norm(coefficients))

    def unfinished(carry):
        iteration, _, _, _, excess = carry
        return ~skip & (excess > tolerance) & (iteration < _MAX_ITERATIONS)

    def advance(carry):
        iteration, low, middle, high, _ = carry
        shifts = jnp.stack([low, middle])[:, None] + gaps[None, :]
        squares = (coefficients[None, :] / shifts) ** 2
        norm_squared = jnp.sum(squares, axis=1)
        excess = jnp.sqrt(norm_squared) - 1
        newton = excess * norm_squared / jnp.sum(squares / shifts, axis=1)
        newton = jnp.stack([low, middle]) + newton
        left = excess[1] > 0
        climbed = jnp.where(excess[0] > tolerance, newton[0], low)
        low = jnp.where(left, jnp.maximum(climbed, newton[1]), climbed)
        high = jnp.maximum(low, jnp.where(left, high, middle))
        middle = jnp.sqrt(low) * jnp.sqrt(high)
        middle = jnp.where(left, middle, jnp.maximum(middle, newton[1]))
        return iteration + 1, low, jnp.clip(middle, low, high), high, excess[0]

    start = (0, low, jnp.sqrt(low) * jnp.sqrt(high), high, jnp.full_like(low, jnp.inf))
    return lax.while_loop(unfinished, advance, start)[1]


def or_one(size: Array) -> Array:
    """Returns ``size``, or 1 in place of 0, as a divisor."""
    return jnp.where(size > 0, size, 1)


_CANDIDATES = 8  # multipliers tried at once; a scan over 8 lanes costs what one over 1 does
_MAX_ROUNDS = 12  # most instances take 3 to 6; one that takes more is hard, or nearly
_VECTORS = 24  # of the first guess: from it 1 to 4 factorisations are enough
_MAX_FACTORISATIONS = 12


def try_interior(matrix: Array, linear: Array, weight: Array) -> tuple[Array, Array]:
    """Returns the unconstrained minimiser, by Cholesky, and whether it is valid in the unit ball.

    It is then accurate to rounding; otherwise the step is meaningless.
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

    Returned are the step, the multiplier, and whether they are accurate to rounding; otherwise they
    are meaningless.

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
