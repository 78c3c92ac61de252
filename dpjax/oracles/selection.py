"""The selection oracle: which released iterate is closest to a second-order point."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from dpjax._typing import Array, Params, pytree_dataclass, static
from dpjax._wide import Expansion, float64, from_float64, wide_dtype, zeros
from dpjax.accounting import Release, gumbel_scale
from dpjax.accounting.release import Quantity
from dpjax.mechanisms import selection_error
from dpjax.mechanisms.noise import Gumbel
from dpjax.oracles.curvature import EIGENVALUE_ERROR, smallest_curvature
from dpjax.oracles.query import Records
from dpjax.oracles.setting import ClippedSums, Evaluations
from dpjax.oracles.value import ValueQuery
from dpjax.sampling import FullBatch


@pytree_dataclass(kw_only=True)
class SelectionQuery(ValueQuery):
    """Asks which candidate w_k has the largest score.

    It is -max(|g_k| / alpha, -lambda_min(H(w_k)) / sqrt(rho alpha)), from -1 at an alpha-SOSP:
    |gradient| <= alpha, lambda_min >= -sqrt(rho alpha).
    The gradient norms were released before; only H, the mean of clipped Hessians plus the exact
    regularizer's, reads records.

    Args:
      noise_multiplier: standard deviation of the noise on a score over its sensitivity.
      clip_norm: C_H, the bound on the Frobenius norm, and so on the spectral one, of one record's
        Hessian.
      gradient_tolerance: alpha.
      curvature_tolerance: sqrt(rho alpha).
      dimension: number of parameters p.
      candidates: K, the most there are to choose from.
      setting: as in ``Query``, of all records.

    Privacy: the exponential mechanism. By Weyl's inequality one record moves an eigenvalue by C_H /
      n (``replace_one``: 2 C_H / n) at most, whatever p, where a noisy Hessian's eigenvalue has
      noise that grows with sqrt(p). Of n p^2 numbers only a place leaves.

    Reference: Wang, Chen and Xu, "Differentially private empirical risk minimization with
      non-convex loss functions" (ICML 2019), for the criterion.
    """

    clip_norm: Array | float
    gradient_tolerance: Array | float
    curvature_tolerance: Array | float
    dimension: int = static()
    candidates: int = static()

    name = "selection"
    quantity = Quantity("selection")
    # Rows of a margin loss are scaled, as for the gradients beside it.
    closed_form = True  # pyright: ignore[reportAssignmentType]
    noise = Gumbel()
    reads = FullBatch

    sums = ClippedSums(reviewed="SelectionQuery")

    def bound(self, params: Params | None = None, **public: Any) -> Array | float:
        """What one record adds to n times a score."""
        return self.clip_norm / self.curvature_tolerance

    @property
    def sensitivity(self) -> Array | float:
        """How far one record moves a score, rounding of sums and eigenvalues included."""
        # Twice, because the eigenvalues of both neighbours err.
        errors = 2 * self.dimension * EIGENVALUE_ERROR
        return (self._mean_sensitivity(1.0) + errors) * self.clip_norm / self.curvature_tolerance

    @property
    def components(self) -> tuple[tuple[str, float], ...]:
        return (("score", float(self.noise_multiplier) * float(self.sensitivity)),)

    def releases(self, count: int) -> tuple[Release, ...]:
        failed = selection_error(self.candidates)
        # The table's error in Gumbel noise is charged as a failure probability, not by the number
        # of draws.
        return (self._release(count, failure_probability=failed, noise_draws=0),)

    def evaluations(self, count: int) -> Evaluations:
        # A selection computes Hessians, and only gradients are counted.
        return Evaluations(0, 0)

    def is_asked(self, **public: Any) -> Array:
        """Returns whether there is a candidate; the place is 0 where there is none."""
        return jnp.asarray(public["filled"]) > 0

    def stddevs(self, params: Params, **public: Any) -> tuple[Any, ...]:
        return (self.gumbel_scale,)

    @property
    def gumbel_scale(self) -> Array:
        """Scale of the noise on a score, float64."""
        with jax.enable_x64(True):
            # In float64, as the scores that the noise is added to.
            wide = dataclasses.replace(
                self,
                clip_norm=float64(self.clip_norm),
                curvature_tolerance=float64(self.curvature_tolerance),
            )
            return float64(wide.sensitivity) * gumbel_scale(float64(self.noise_multiplier))

    def exact(
        self, records: Records, params: Params, mask: Array | None = None, **public: Any
    ) -> tuple[Expansion, ...]:
        """Returns the scores (K,), -inf beyond ``filled``. NOT PRIVATE.

        Args:
          records: see ``bind``.
          params: the candidates, stacked along a leading axis of length K; all released before.
          mask: None.
          **public: ``gradient_norms``, (K,), released before; ``filled``, how many candidates there
            are, the first ones. With 0 of them no record is read and the place is 0.
        """
        self._check_dimension(jax.tree.map(lambda leaf: leaf[0], params))
        gradient_norms, filled = public["gradient_norms"], public["filled"]
        dtype = wide_dtype(gradient_norms.dtype)
        scores = zeros((self.candidates,), dtype)
        # A slot without a candidate is never chosen.
        scores = Expansion((jnp.full_like(scores.leading, -math.inf), *scores.terms[1:]))

        def one(place: Array, scores: Expansion) -> Expansion:
            candidate = jax.tree.map(lambda leaf: leaf[place], params)
            score = self._score(records, candidate, gradient_norms[place], dtype)
            pairs = zip(scores.terms, score.terms, strict=True)
            return Expansion(tuple(terms.at[place].set(term) for terms, term in pairs))

        # As many passes as there are candidates, also where runs are batched: a branch not taken
        # would be computed there.
        return (lax.fori_loop(0, filled, one, scores),)

    def _score(
        self, records: Records, candidate: Params, gradient_norm: Array, dtype: jnp.dtype
    ) -> Expansion:
        smallest = smallest_curvature(
            self.objective,
            candidate,
            records,
            clip_norm=self.clip_norm,
            divisor=float(self.data_size),
            permutation_invariant=self.permutation_invariant,
            dtype=dtype,
        )
        with jax.enable_x64(True):
            curvature = -smallest / float64(self.curvature_tolerance)
            gradient = float64(gradient_norm) / float64(self.gradient_tolerance)
            return from_float64(-jnp.maximum(gradient, curvature), dtype)
