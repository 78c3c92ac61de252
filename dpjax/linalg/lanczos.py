"""Large trust-region subproblems by block Lanczos, with a proof of each solution's value."""

import jax
import jax.numpy as jnp
from jax import Array, lax

from dpjax.linalg._newton import by_eigenvectors, or_one

TOLERANCE = 1e-5  # relative error of the model's value at a proved solution
_STAGES = (16, 32, 64, 128)  # blocks of two vectors, after which a solution is tried
_ROUNDING = 4  # of a Cholesky factorisation, in eps times the largest diagonal entry; measured: 1/2


def try_lanczos(matrix: Array, linear: Array, weight: Array) -> tuple[Array, Array, Array]:
    """Returns the minimiser of <g, h> + h'Hh/2 on the unit ball, from products with H.

    The model is minimised exactly on the space of the Lanczos vectors of two starts, the gradient
    and a random vector, whose products with H share one pass over memory. The gradient's carry
    the solution where it is not hard; the random ones reach the bottom eigenvectors, along which
    the solution must move in the hard case and which the gradient's do not see there. At 32, 64,
    128 and 256 vectors, but not beyond p / 2, a solution is tried, and the first is returned that
    Cholesky's factorisation proves. The random start is fixed and public: it makes a provable step
    likely, and the proof does not depend on it.

    The model is that of ``by_eigenvectors``. Returned are the step, the multiplier, and whether the
    step is proved: then its value is within ``TOLERANCE`` of the minimum, relative to it, and
    H + multiplier I >= -``TOLERANCE`` |value|. Otherwise they are meaningless.

    Reference: Gould, Lucidi, Roma and Toint (1999), Solving the trust-region subproblem using the
    Lanczos method; the second start and the proof are ours.
    """
    block = jnp.stack([linear, _start(linear)])
    block = _orthonormal(block, jnp.zeros_like(block))
    return _from_stage(0, block, block @ matrix, matrix, linear, weight)


def _start(linear: Array) -> Array:
    return jax.random.normal(jax.random.key(0, impl="threefry2x32"), linear.shape, linear.dtype)


def _from_stage(
    stage: int, basis: Array, images: Array, matrix: Array, linear: Array, weight: Array
) -> tuple[Array, Array, Array]:
    """Returns the first solution that is proved, at this stage or a later one."""
    # The first stage is almost free; with more than p / 2 vectors an exact solution is cheaper.
    if stage == len(_STAGES) or (4 if stage else 2) * _STAGES[stage] >= linear.size:
        return jnp.zeros_like(linear), jnp.zeros_like(weight), jnp.bool_(False)
    basis, images = _extend(matrix, basis, images, _STAGES[stage])
    projected = images @ basis.T
    coordinates, multiplier, lowest = by_eigenvectors(
        (projected + projected.T) / 2, basis @ linear, weight
    )
    step = coordinates @ basis
    length = jnp.linalg.norm(step)
    step = step / jnp.where((multiplier > 0) | (length > 1), or_one(length), 1)
    proved = _proved(matrix, linear, weight, step, multiplier, lowest)
    return lax.cond(
        proved,
        lambda: (step, multiplier, proved),
        lambda: _from_stage(stage + 1, basis, images, matrix, linear, weight),
    )


def _extend(matrix: Array, basis: Array, images: Array, blocks: int) -> tuple[Array, Array]:
    """Returns ``blocks`` pairs of Lanczos vectors, as rows, and their products with the matrix."""
    count = basis.shape[0]
    room = ((0, 2 * blocks - count), (0, 0))

    def advance(index, carry):
        basis, images = carry
        last = lax.dynamic_slice_in_dim(images, 2 * (index - 1), 2)
        block = _orthonormal(last, basis)
        basis = lax.dynamic_update_slice_in_dim(basis, block, 2 * index, 0)
        return basis, lax.dynamic_update_slice_in_dim(images, block @ matrix, 2 * index, 0)

    start = jnp.pad(basis, room), jnp.pad(images, room)
    return lax.fori_loop(count // 2, blocks, advance, start)


def _orthonormal(block: Array, basis: Array) -> Array:
    """Returns the two rows of ``block`` orthonormalised against ``basis`` and each other.

    A row that the others span to rounding becomes 0, as does a gradient that is 0: no direction,
    and to the projected model one more eigenvalue 0 without gradient, which moves no minimiser.
    """
    rounding = 64 * jnp.finfo(block.dtype).eps * jnp.linalg.norm(block, axis=1)
    for _ in range(2):  # once leaves the rounding of what cancelled
        block = block - (block @ basis.T) @ basis
        first = _unit(block[0], rounding[0])
        second = _unit(block[1] - (block[1] @ first) * first, rounding[1])
        block, rounding = jnp.stack([first, second]), jnp.zeros_like(rounding)
    return block


def _unit(vector: Array, rounding: Array) -> Array:
    length = jnp.linalg.norm(vector)
    return jnp.where(length > rounding, vector / or_one(length), 0)


def _proved(
    matrix: Array, linear: Array, weight: Array, step: Array, multiplier: Array, lowest: Array
) -> Array:
    """Returns whether the value of ``step`` is proved to be within ``TOLERANCE`` of the minimum.

    By weak duality: where B = H + s I is positive definite, s >= 0, no value in the unit ball is
    below the minimum of <g, h> + h'Bh/2 over all h, less s/2. With r = B h + g, the value of
    ``step`` h exceeds that by r'B^-1 r/2 + s (1 - |h|^2)/2, whatever h and s are. Cholesky's
    factorisation shows that B is definite and gives the first term. For s the multiplier is raised
    by half of the allowed error, so that the factorisation exists in the hard case too; there that
    costs a quarter of the allowed error. A Ritz value in its place would prove nothing, being above
    the lowest eigenvalue.
    """
    image = weight * (matrix @ step)
    value = linear @ step + image @ step / 2
    allowed = -TOLERANCE * value
    shift = multiplier + allowed / 2
    residual = image + shift * step + linear
    eps = jnp.finfo(step.dtype).eps

    def by_cholesky():
        # What is factorised lies below B by more than the factorisation's rounding as measured. In
        # float64 even the a-priori bound (Rump 2006), p^2 eps |B|, is far below the allowed error,
        # unless the value is tiny beside |H|; in float32 the measurement is all there is.
        largest = weight * jnp.max(jnp.abs(jnp.diagonal(matrix))) + shift
        identity = jnp.eye(step.size, dtype=step.dtype)
        lowered = weight * matrix + (shift - _ROUNDING * eps * largest) * identity
        factor = jnp.linalg.cholesky(lowered, symmetrize_input=False)
        half = jax.scipy.linalg.solve_triangular(factor, residual, lower=True)
        return half @ half / 2 + shift * (1 - step @ step) / 2 <= allowed

    # An estimate by the lowest Ritz value, only to spare hopeless factorisations.
    curvature = jnp.maximum(lowest + shift, eps**2)
    hopeful = residual @ residual / 2 <= allowed * curvature
    return lax.cond(hopeful, by_cholesky, lambda: jnp.bool_(False))
