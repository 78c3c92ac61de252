"""DP-TR in public random subspaces: for models whose Hessian does not fit in memory."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from dpjax import _validate, objectives
from dpjax._typing import Array, Params, pytree_dataclass, static
from dpjax._wide import at_least_float32
from dpjax.accounting import PrivacyBudget
from dpjax.algorithms import base, model_queries, schedules, trust_region
from dpjax.algorithms.trust_region import TrustRegionInfo
from dpjax.oracles import SubspaceQuery

STEPS = 32
DIRECTIONS = 16


class SubspaceState(NamedTuple):
    """The state of DP-TR in subspaces; released."""

    params: Params
    iteration: Array


@pytree_dataclass
class SubspaceTrustRegion(base.SingleQueryAlgorithm):
    """Configuration of DP-TR in subspaces; made by ``dp_subspace_trust_region``."""

    query: SubspaceQuery
    radius: Array | float
    radius_decay: Array | float
    damping: Array | float
    seed_high: Array | np.uint32
    seed_low: Array | np.uint32
    subspace_dimension: int = static()

    title = "DP-TR in subspaces"

    def sketch(self, iteration: Array | int, dtype: jnp.dtype | str = "float32") -> Array:
        """Returns S (k, p) of one iteration, its rows orthonormal and otherwise random.

        Privacy: public; its key is that of ``subspace_seed``, and has nothing to do with the
          noise.
        """
        words = jnp.stack([jnp.asarray(self.seed_high), jnp.asarray(self.seed_low)])
        key = jax.random.wrap_key_data(words.astype(jnp.uint32), impl="threefry2x32")
        shape = (self.subspace_dimension, self.dimension)
        rows = jax.random.normal(jax.random.fold_in(key, iteration), shape, dtype)
        if 8 * self.subspace_dimension > self.dimension:
            return jnp.linalg.qr(rows.T)[0].T
        # So few Gaussian rows are nearly orthogonal: this is as exact, and several times faster.
        # Cholesky QR twice: the second pass removes the rounding error of the first.
        for _ in range(2):
            # By default accelerators multiply in 8 to 11 bits, and the rows would be as far from
            # orthogonal.
            root = jnp.linalg.cholesky(jnp.matmul(rows, rows.T, precision="highest"))
            rows = jax.scipy.linalg.solve_triangular(root, rows, lower=True)
        return rows

    def init(self, params: Params) -> SubspaceState:
        return SubspaceState(params, jnp.array(0))

    def step(
        self, key: Array, state: SubspaceState, ask: base.Ask
    ) -> tuple[SubspaceState, TrustRegionInfo]:
        # One iteration of DP-TR for the k coordinates z of w + S^T z.
        wide = at_least_float32(state.params)
        flat, unravel = ravel_pytree(wide)
        # New directions at every step: what one subspace misses another has.
        sketch = self.sketch(state.iteration, flat.dtype)
        answer = ask(self.query, state.params, sketch=sketch)
        gradient, hessian = self._regularize(answer.gradient, answer.hessian, flat, unravel, sketch)
        radius = schedules.radius_at(self, state.iteration, hessian.dtype)
        damping = schedules.at_step(self.damping, state.iteration)
        move, info = trust_region.minimize_model(gradient, hessian, damping, radius)
        moved = unravel(flat + jnp.matmul(move, sketch, precision="highest"))
        return SubspaceState(optax.tree.cast_like(moved, state.params), state.iteration + 1), info

    @jax.default_matmul_precision("highest")
    def _regularize(
        self, gradient: Array, hessian: Array, flat: Array, unravel, sketch: Array
    ) -> tuple[Array, Array]:
        regularizer = self.objective.regularizer
        if regularizer is None:
            return gradient, hessian
        slope = jax.grad(lambda w: regularizer(unravel(w)))
        # S (hess r) S^T by k products, as the (p, p) Hessian would not fit in memory.
        products = jax.vmap(lambda row: jax.jvp(slope, (flat,), (row,))[1])(sketch)
        return gradient + sketch @ slope(flat), hessian + products @ sketch.T


def dp_subspace_trust_region(
    objective: objectives.Objective,
    budget: PrivacyBudget,
    *,
    data_size: int,
    dimension: int,
    subspace_dimension: int | None = None,
    batch_size: int | None = None,
    steps: int = STEPS,
    radius: optax.ScalarOrSchedule | None = None,
    final_radius: float | None = None,
    damping: optax.ScalarOrSchedule = 0.5,
    clip_norm: float | None = None,
    hessian_clip_norm: float | None = None,
    max_batch_size: int | None = None,
    subspace_seed: int = 0,
    accountant: str = "pld",
) -> SubspaceTrustRegion:
    """Returns the private trust-region method for large models, calibrated to the budget.

    Each step draws k public random directions, asks for gradient and Hessian along them, and solves
    the subproblem of size k exactly. For networks of 10^4 to 10^5 parameters; memory is O(k p), and
    a step costs about k gradients of its batch.

    Args:
      subspace_dimension: k, at most p; by default 16, or p if that is less.
      batch_size: expected size of a Poisson batch; by default all records.
      clip_norm: w_g, bound on one record's gradient in the subspace, about sqrt(k / p) of the whole
        for a network; by default the Lipschitz constant.
      subspace_seed: from 0 to 2^64 - 1; public, fixes the directions.
      the others: the same in all factories, see ``help(dpjax.algorithms)``.

    Privacy: releases T jointly clipped means of (S g, S H S^T) with Gaussian noise. The directions
      are drawn from a public seed, not from the key of the noise; the rest is post-processing.

    Reference: Wang and Xu (2020), algorithms 1 and 2; subspace, joint release and damping are ours.

    >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-6)
    >>> algorithm = dp_subspace_trust_region(
    ...     objectives.logistic(), budget, data_size=10_000, dimension=100)
    >>> algorithm.sketch(0).shape
    (16, 100)
    """
    problem = base.check_problem(objective, budget, data_size, dimension, accountant)
    base.check_smooth(objective, "DP-TR in subspaces")
    k = min(DIRECTIONS, problem.dimension) if subspace_dimension is None else subspace_dimension
    k = _validate.positive_int("subspace_dimension", k)
    if k > dimension:
        raise ValueError(
            f"subspace_dimension must be at most dimension={dimension}, got {k}; lower it."
        )
    steps = _validate.int32_count("steps", steps)
    radii = schedules.check_radii(problem, radius, final_radius, steps)
    # Rows only get shorter in a subspace: the weight that is free for |x| <= 1 stays so.
    clip, weight, _ = model_queries.joint_weights(objective, clip_norm, hessian_clip_norm)
    weights: dict[str, Any] = {"gradient_weight": clip, "hessian_weight": weight}
    batch = problem.data_size if batch_size is None else batch_size
    # Answers have k and k^2 numbers, whatever p is.
    small = problem._replace(dimension=k)
    query = base.calibrated_query(small, SubspaceQuery, steps, batch, max_batch_size, **weights)
    kappa = schedules.scheduled("damping", damping, problem, steps, _validate.non_negative)
    seed = subspace_seed
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**64:
        raise ValueError(f"subspace_seed must be an integer from 0 to 2^64 - 1, got {seed!r}.")
    return SubspaceTrustRegion(
        query=query,
        **schedules.shrinking(radii, steps),
        damping=base.to_leaf(kappa * model_queries.spectral_scale(query)),
        # Two leaves, as without x64 JAX has no integer of 64 bits.
        seed_high=np.uint32(seed >> 32),
        seed_low=np.uint32(seed & 0xFFFF_FFFF),
        subspace_dimension=k,
        **problem.plan(steps, 1),
    )
