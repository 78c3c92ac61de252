"""The oracle of Newton directions: the modified Hessian's inverse times a public vector."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from dpjax import _validate
from dpjax._typing import Array, Params, pytree_dataclass, static
from dpjax._wide import float64, from_float64, to_float64
from dpjax.derivatives import clipped_hessian, flatten
from dpjax.oracles.query import Mask, Records, Sums, ValueQuery
from dpjax.oracles.score import EIGENVALUE_ERROR
from dpjax.oracles.setting import ClippedSums
from dpjax.sampling import FullBatch

MODIFICATIONS = ("add", "clip")


@pytree_dataclass(kw_only=True)
class NewtonQuery(ValueQuery):
    """Asks for f(H) u + N(0, stddev^2 I), u the unit vector along a vector released before.

    H is the mean of Frobenius-clipped Hessians plus the regularizer's exact one, and f acts on its
    eigenvalues: f(t) = 1 / (max(t, 0) + floor) where the floor is added, 1 / max(t, floor) where
    they are clipped at it. The Newton direction is |g| times the answer at u = g / |g|.

    Args:
      noise_multiplier: standard deviation over the l2 sensitivity of f(H) u.
      clip_norm: C, the bound on the Frobenius norm of one record's Hessian.
      floor: lambda_0, above 0.
      modification: ``"add"`` or ``"clip"``.
      dimension: number of parameters p.
      setting: as in ``Query``, of all records.

    Privacy: the Gaussian mechanism. Both f have slope 1 / floor^2 at most. In the eigenbases (a, v)
      of A and (b, w) of B, |f(A) - f(B)|_F^2 is the sum over i, j of (f(a_i) - f(b_j))^2
      <v_i, w_j>^2, and |A - B|_F^2 is that of (a_i - b_j)^2 <v_i, w_j>^2. So one record, which
      moves H by C / n in the Frobenius norm (``replace_one``: 2 C / n), moves f(H) u by
      C / (n floor^2) at most: for every loss, convex or not, of any rank. One record in the
      direction of u where nothing else curves moves it by C / (n floor^2 + C floor): no smaller
      bound is to be had but for the last term. The paper needs Hessians of rank one, has this exact
      value for ``"add"``, and C / (n floor^2 - C floor) for ``"clip"``.

    Reference: Ganesh, Haghifam, Steinke and Thakurta (2023), algorithm 3; Bhatia, "Matrix analysis"
      (1997), section VI, for functions of matrices.
    """

    clip_norm: Array | float
    floor: Array | float
    modification: str = static()
    dimension: int = static()

    name = "newton_direction"
    purpose = "direction"  # pyright: ignore[reportAssignmentType]
    reads = FullBatch
    gradients_per_record = 0  # the Hessian is taken where the gradient was

    sums = ClippedSums(reviewed="NewtonQuery")

    def __post_init__(self):
        _validate.choice("modification", self.modification, MODIFICATIONS)

    def bound(self, params: Params | None = None, **public: Any) -> Array | float:
        return self.clip_norm / self.floor**2

    @property
    def sensitivity(self) -> Array | float:
        """How far one record moves f(H) u, rounding of sums and eigenvectors included."""
        # Twice, because the decompositions of both neighbours err.
        errors = 2 * self.dimension * EIGENVALUE_ERROR
        # An error in H moves f(H) by its slope, 1 / floor^2; an error in the eigenvectors turns
        # f(H) u, whose length is at most 1 / floor.
        return (self._mean_sensitivity(1.0) + errors) * self.bound() + errors / self.floor

    @property
    def components(self) -> tuple[tuple[str, float], ...]:
        return (("direction", float(self.stddev)),)

    def exact(self, records: Records, params: Params, mask: Mask = None, **public: Any) -> Sums:
        """Returns f(H) u at ``params``, shape (p,). NOT PRIVATE.

        ``public`` has ``along``, (p,), released before; only its direction counts, and 0 gives
        noise alone.
        """
        self._check_dimension(params)
        clipped = self._clipped_by(clipped_hessian, clip_norm=self.clip_norm)
        total = clipped.wide(params, records, mask)
        p, dtype = flatten(params)[0].size, total.leading.dtype
        regularizer = self.objective.regularize_hessian(jnp.zeros((p, p), dtype), params)
        with jax.enable_x64(True):
            mean = lax.div(
                to_float64(total), lax.full_like(to_float64(total), float(self.data_size))
            )
            # In float32 the eigenvectors would err by more than one record moves them.
            vectors, values = lax.linalg.eigh(mean + float64(regularizer))
            wanted = float64(public["along"])
            length = jnp.sqrt(jnp.sum(wanted * wanted))
            # Without a direction it is 0, and the answer noise alone; 0 / 0 would be NaN.
            unit = jnp.where(length > 0, wanted / jnp.where(length > 0, length, 1), 0)
            turned = jnp.sum(vectors * unit[:, None], axis=0) * self._inverse(values)
            return (from_float64(jnp.sum(vectors * turned[None, :], axis=1), dtype),)

    def _inverse(self, values: Array) -> Array:
        # In float64, like the eigenvalues that it bounds from below.
        floor = float64(self.floor)
        if self.modification == "add":
            return 1 / (jnp.maximum(values, 0) + floor)
        return 1 / jnp.maximum(values, floor)
