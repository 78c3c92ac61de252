"""Oracles that read eigenvalues: scores of released iterates, the best one, Newton directions."""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dpjax import _validate
from dpjax._typing import Array, Params, PyTree, pytree_dataclass, static
from dpjax._wide import Expansion, float64, from_float64, to_float64, wide_dtype, zeros
from dpjax.accounting import Release, gumbel_scale
from dpjax.accounting.release import Quantity
from dpjax.derivatives import clipped_grad, clipped_hessian, flatten
from dpjax.mechanisms import selection_error
from dpjax.mechanisms.noise import Gumbel
from dpjax.oracles.query import Mask, Query, Records, Sums
from dpjax.oracles.setting import ClippedSums, Evaluations
from dpjax.sampling import FullBatch, SinglePass, as_shuffled

# Of an eigendecomposition in float64, per parameter and clip norm: 2^9 times the unit roundoff.
_EIGENVALUE_ERROR = 2.0**-44
_MODIFICATIONS = ("add", "clip")


class ValueQuery(Query):
    """A question whose ``exact`` is on the scale of a mean: nothing is divided after the noise."""

    def _check_dimension(self, params: Params) -> None:
        # The rounding of eigenvalues, or the length of a tilt, is charged for so many parameters.
        size, declared = flatten(params)[0].size, self.dimension  # pyright: ignore
        if size > declared:
            raise ValueError(
                f"{type(self).__name__} declares dimension={declared}, by which rounding and noise "
                f"are charged, and there are {size} parameters: make it with dimension={size}."
            )

    def stddevs(self, params: Params, **public: Any) -> tuple[Any, ...]:
        return (self.stddev,)

    def postprocess(self, noisy: tuple[Array, ...], params: Params) -> PyTree:
        return noisy[0]

    def noisy_parts(self, answer: PyTree) -> tuple[Array, ...]:
        return (answer,)

    def evidence(self, answer: PyTree, params: Params, **public: Any) -> list[tuple[Any, Any]]:
        return []

    def _smallest_curvature(
        self, params: Params, records: Records, mask: Mask, clip_norm: Any, count: Any, dtype: Any
    ) -> Array:
        """Returns lambda_min of (sum of clipped Hessians) / count + the regularizer's, float64 ().

        Privacy: NOT a mechanism: the eigenvalue is exact. By Weyl's inequality one record moves it
          by C_H / count at most, whatever p, with C_H = ``clip_norm`` on its Frobenius norm.
        """
        total = self._clipped_by(clipped_hessian, clip_norm=clip_norm).wide(params, records, mask)
        size = flatten(params)[0].size
        # Added after clipping: the regularizer is exact and reads no record: no sensitivity.
        regularizer = self.objective.regularize_hessian(jnp.zeros((size, size), dtype), params)
        with jax.enable_x64(True):
            mean = lax.div(to_float64(total), lax.full_like(to_float64(total), count))
            return _smallest_eigenvalue(mean + float64(regularizer))


def _smallest_eigenvalue(matrix: Array) -> Array:
    # In float32 it would err by as much as one record of a million moves it.
    return lax.linalg.eigh(matrix, sort_eigenvalues=True)[1][0]


class Scores(NamedTuple):
    """What a person would look at, with noise; both (K,)."""

    gradient_norm: Array
    min_eigenvalue: Array


@pytree_dataclass(kw_only=True)
class ScoreQuery(ValueQuery):
    """Asks for gradient norm and smallest eigenvalue at K candidates, each with Gaussian noise.

    Of records that nothing else read. Whoever is told may choose the best and bound it: both are
    post-processing.

    Args:
      noise_multiplier: standard deviation over sensitivity of the vector of all 2 K numbers, in
        units of the clip norms.
      clip_norm: C, the bound on one record's gradient.
      hessian_clip_norm: C_H, the bound on the Frobenius norm of one record's Hessian.
      dimension: number of parameters p.
      candidates: K.
      setting: whose objective's regularizer is included, exactly; the relation ``"zero_out"`` or
        ``"replace_one"``; the sampler a ``SinglePass`` over the places that were kept for this.

    Privacy: one Gaussian mechanism. A record moves a gradient norm by C / m and, by Weyl's
      inequality, an eigenvalue by C_H / m (``replace_one``: twice that) whatever p, so the vector
      by sqrt(2 K) / m in these units. A noisy Hessian's eigenvalue has noise that grows with
      sqrt(p).
    """

    clip_norm: Array | float
    hessian_clip_norm: Array | float
    dimension: int = static()
    candidates: int = static()

    name = "scores"
    reads = SinglePass
    sums = ClippedSums(reviewed="ScoreQuery")

    @property
    def quantity(self) -> Quantity:
        clip_norms = "clip_norm", "hessian_clip_norm"
        numbers = tuple((name, float(getattr(self, name))) for name in clip_norms)
        return Quantity("scores", (("candidates", self.candidates), *numbers))

    def bound(self, params: Params | None = None, **public: Any) -> float:
        """How far one record moves m times the vector, in clip norms."""
        # The error is of the mean's eigenvalue, and this bound is on m times the vector. Both
        # neighbours err, hence the 2.
        errors = 2 * self.dimension * _EIGENVALUE_ERROR * self.sampler.expected
        return (2 * self.candidates) ** 0.5 * (1 + errors)

    @property
    def noise_draws(self) -> int:
        return 2 * self.candidates

    @property
    def components(self) -> tuple[tuple[str, float], ...]:
        stddev = float(self.stddev)
        return (
            ("gradient norm", stddev * float(self.clip_norm)),
            ("smallest eigenvalue", stddev * float(self.hessian_clip_norm)),
        )

    def evaluations(self, count: int) -> Evaluations:
        """Returns the gradients that ``count`` answers take; Hessians are not counted."""
        rows = count * self.candidates * self.sampler.max_batch_size
        return Evaluations(rows, rows)

    def exact(self, records: Records, params: Params, mask: Mask = None, **public: Any) -> Sums:
        """Returns the numbers in units of the clip norms, (2, K). NOT PRIVATE.

        ``params`` are the candidates, stacked along a leading axis of length K, all released
        before. ``public`` has ``filled``, how many there are, the first ones; the others get noise
        around 0.
        """
        rows: Any = self.sampler
        start, size = jnp.int32(rows.first), jnp.int32(rows.max_batch_size)
        # One read for all candidates: they are scored on the same held-out records.
        batch, present = rows.minibatch(as_shuffled(records), start, size, rows.max_batch_size)
        first = jax.tree.map(lambda leaf: leaf[0], params)
        self._check_dimension(first)
        dtype = flatten(first)[0].dtype

        def one(place: Array, scores: Expansion) -> Expansion:
            candidate = jax.tree.map(lambda leaf: leaf[place], params)
            clipped = self._clipped_by(clipped_grad, clip_norm=self.clip_norm)
            total = clipped.wide(candidate, batch, present)
            # From zeros, for the regularizer's exact gradient alone; the data term is added below.
            nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, dtype), candidate)
            own = self.objective.regularize_gradient(nothing, candidate)
            bound, count = self.hessian_clip_norm, self.sampler.expected
            smallest = self._smallest_curvature(candidate, batch, present, bound, count, dtype)
            with jax.enable_x64(True):
                mean = lax.div(to_float64(total), lax.full_like(to_float64(total), count))
                gradient = mean + float64(flatten(own)[0])
                norm = jnp.sqrt(jnp.sum(gradient * gradient)) / float64(self.clip_norm)
                curvature = smallest / float64(self.hessian_clip_norm)
                # In these units one record moves every number by 1 / m: one scale serves all.
                both = lax.concatenate([lax.reshape(norm, (1,)), lax.reshape(curvature, (1,))], 0)
                found = from_float64(both, dtype)
            pairs = zip(scores.terms, found.terms, strict=True)
            return Expansion(tuple(terms.at[:, place].set(term) for terms, term in pairs))

        # Columns past ``filled`` read no record and stay 0; they get noise like the others.
        return (lax.fori_loop(0, public["filled"], one, zeros((2, self.candidates), dtype)),)

    def postprocess(self, noisy: tuple[Array, ...], params: Params) -> Scores:
        return Scores(*(self._units.astype(noisy[0].dtype)[:, None] * noisy[0]))

    def noisy_parts(self, answer: Scores) -> tuple[Array, ...]:
        return (jnp.stack(answer) / self._units[:, None],)

    @property
    def _units(self) -> Array:
        return jnp.stack([jnp.asarray(self.clip_norm), jnp.asarray(self.hessian_clip_norm)])


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
    gradients_per_record = 0  # Hessians alone
    sums = ClippedSums(reviewed="SelectionQuery")

    def bound(self, params: Params | None = None, **public: Any) -> Array | float:
        """What one record adds to n times a score."""
        return self.clip_norm / self.curvature_tolerance

    @property
    def sensitivity(self) -> Array | float:
        """How far one record moves a score, rounding of sums and eigenvalues included."""
        # Twice, because the eigenvalues of both neighbours err.
        errors = 2 * self.dimension * _EIGENVALUE_ERROR
        return (self._mean_sensitivity(1.0) + errors) * self.clip_norm / self.curvature_tolerance

    @property
    def components(self) -> tuple[tuple[str, float], ...]:
        return (("score", float(self.noise_multiplier) * float(self.sensitivity)),)

    def releases(self, count: int) -> tuple[Release, ...]:
        failed = selection_error(self.candidates)
        # The table's error in Gumbel noise is charged as a failure probability, not by the number
        # of draws.
        return (self._release(count, failure_probability=failed, noise_draws=0),)

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

    def exact(self, records: Records, params: Params, mask: Mask = None, **public: Any) -> Sums:
        """Returns the scores (K,), -inf beyond ``filled``. NOT PRIVATE.

        ``params`` are the candidates, as in ``ScoreQuery.exact``. ``public`` has
        ``gradient_norms``, (K,), released before, and ``filled``, how many candidates there are,
        the first ones. With 0 of them no record is read and the place is 0.
        """
        self._check_dimension(jax.tree.map(lambda leaf: leaf[0], params))
        gradient_norms, filled = public["gradient_norms"], public["filled"]
        dtype = wide_dtype(gradient_norms.dtype)
        scores = zeros((self.candidates,), dtype)
        # A slot without a candidate is never chosen.
        scores = Expansion((jnp.full_like(scores.leading, -math.inf), *scores.terms[1:]))

        def one(place: Array, scores: Expansion) -> Expansion:
            candidate = jax.tree.map(lambda leaf: leaf[place], params)
            count = float(self.data_size)
            how = self.clip_norm, count, dtype
            smallest = self._smallest_curvature(candidate, records, None, *how)
            with jax.enable_x64(True):
                curvature = -smallest / float64(self.curvature_tolerance)
                gradient = float64(gradient_norms[place]) / float64(self.gradient_tolerance)
                score = from_float64(-jnp.maximum(gradient, curvature), dtype)
            pairs = zip(scores.terms, score.terms, strict=True)
            return Expansion(tuple(terms.at[place].set(term) for terms, term in pairs))

        # As many passes as there are candidates, also where runs are batched: a branch not taken
        # would be computed there.
        return (lax.fori_loop(0, filled, one, scores),)


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
    quantity = Quantity("newton_direction")
    purpose = "direction"  # pyright: ignore[reportAssignmentType]
    reads = FullBatch
    gradients_per_record = 0  # the Hessian is taken where the gradient was
    sums = ClippedSums(reviewed="NewtonQuery")

    def __post_init__(self):
        _validate.choice("modification", self.modification, _MODIFICATIONS)

    def bound(self, params: Params | None = None, **public: Any) -> Array | float:
        return self.clip_norm / self.floor**2

    @property
    def sensitivity(self) -> Array | float:
        """How far one record moves f(H) u, rounding of sums and eigenvectors included."""
        # Twice, because the decompositions of both neighbours err.
        errors = 2 * self.dimension * _EIGENVALUE_ERROR
        # An error in H moves f(H) by its slope, 1 / floor^2; an error in the eigenvectors turns
        # f(H) u, whose length is at most 1 / floor.
        return (self._mean_sensitivity(1.0) + errors) * self.bound() + errors / self.floor

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
