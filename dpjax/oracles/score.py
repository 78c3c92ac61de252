"""The score oracle: how close each of several released iterates is to a second-order point."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dpjax._typing import Array, Params, pytree_dataclass, static
from dpjax._wide import Expansion, float64, from_float64, to_float64, zeros
from dpjax.accounting.release import Quantity
from dpjax.derivatives import clipped_grad, flatten
from dpjax.oracles.curvature import EIGENVALUE_ERROR, smallest_curvature
from dpjax.oracles.query import Records
from dpjax.oracles.setting import ClippedSums, Evaluations
from dpjax.oracles.value import ValueQuery
from dpjax.sampling import SinglePass, as_shuffled
from dpjax.sampling.samplers import expect


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
    sums = ClippedSums(reviewed="ScoreQuery")

    @property
    def quantity(self) -> Quantity:
        clip_norms = "clip_norm", "hessian_clip_norm"
        numbers = tuple((name, float(getattr(self, name))) for name in clip_norms)
        return Quantity("scores", (("candidates", self.candidates), *numbers))

    @property
    def sampler(self) -> SinglePass:
        return expect(SinglePass, self.setting.sampler, "ScoreQuery")

    def bound(self, params: Params | None = None, **public: Any) -> float:
        """How far one record moves m times the vector, in clip norms."""
        # The error is of the mean's eigenvalue, and this bound is on m times the vector. Both
        # neighbours err, hence the 2.
        errors = 2 * self.dimension * EIGENVALUE_ERROR * self.sampler.expected
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

    def exact(
        self, records: Records, params: Params, mask: Array | None = None, **public: Any
    ) -> tuple[Expansion, ...]:
        """Returns the numbers in units of the clip norms, (2, K). NOT PRIVATE.

        Args:
          records: see ``bind``.
          params: the candidates, stacked along a leading axis of length K; all released before.
          mask: None.
          **public: ``filled``, how many there are, the first ones. The others get noise around 0.
        """
        kept = as_shuffled(records)
        rows = self.sampler
        # One read for all candidates: they are scored on the same held-out records.
        batch, mask = rows.minibatch(
            kept, jnp.int32(rows.first), jnp.int32(rows.max_batch_size), rows.max_batch_size
        )
        first = jax.tree.map(lambda leaf: leaf[0], params)
        self._check_dimension(first)
        dtype = flatten(first)[0].dtype

        def one(place: Array, scores: Expansion) -> Expansion:
            candidate = jax.tree.map(lambda leaf: leaf[place], params)
            found = self._one(batch, mask, candidate, dtype)
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

    def _one(self, batch: Records, mask: Array, params: Params, dtype: jnp.dtype) -> Expansion:
        clipped = clipped_grad(
            self.objective.data_term,
            clip_norm=self.clip_norm,
            permutation_invariant=self.permutation_invariant,
        )
        total = clipped.wide(params, batch, mask)
        # From zeros, to get the regularizer's exact gradient alone; the noisy data term is added
        # below.
        own = self.objective.regularize_gradient(
            jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, dtype), params), params
        )
        smallest = smallest_curvature(
            self.objective,
            params,
            batch,
            clip_norm=self.hessian_clip_norm,
            divisor=self.sampler.expected,
            permutation_invariant=self.permutation_invariant,
            dtype=dtype,
            mask=mask,
        )
        with jax.enable_x64(True):
            mean = lax.div(
                to_float64(total), lax.full_like(to_float64(total), self.sampler.expected)
            )
            gradient = mean + float64(flatten(own)[0])
            norm = jnp.sqrt(jnp.sum(gradient * gradient)) / float64(self.clip_norm)
            curvature = smallest / float64(self.hessian_clip_norm)
            # In these units one record moves every number by 1 / m: one scale of noise serves all.
            both = lax.concatenate([lax.reshape(norm, (1,)), lax.reshape(curvature, (1,))], 0)
            return from_float64(both, dtype)
