"""The trust-region subproblem by eigendecomposition and secular equation, hard case included."""

import jax.numpy as jnp
from jax import Array, lax

_JACOBI_SIZE = 512  # above it XLA divides and conquers on a TPU, which compiles for longer
_MAX_ITERATIONS = 64  # a bound no instance of the tests comes near: most take 3 to 6


def by_eigenvectors(matrix: Array, linear: Array, weight: Array) -> tuple[Array, Array, Array]:
    """Returns the minimiser on the unit ball, by an eigendecomposition.

    Args:
      matrix: A, shape (p, p), symmetric; the Hessian is ``weight`` A.
      linear: shape (p,), the gradient.
      weight: in [0, 1].

    Returns:
      The step, the multiplier, and the lowest eigenvalue of the Hessian.
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
