"""Oracles of how gradients spread: their covariance, how long they are, and a step that fits."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from dpjax._typing import Array, Params, PyTree, pytree_dataclass
from dpjax.accounting.release import Quantity
from dpjax.derivatives import ClippedSum, count_rows
from dpjax.derivatives.linear import prepared, sums, units
from dpjax.derivatives.linear.scaled_rows import PreparedLinear
from dpjax.objectives.linear import LinearLoss, Signs
from dpjax.oracles.hessian import HessianQuery, JointQuery
from dpjax.oracles.query import Mask, Query, Records, Sums
from dpjax.oracles.setting import ClippedSums
from dpjax.sampling import FullBatch

_BINS = 16


@dataclasses.dataclass(frozen=True)
class _OuterScores(LinearLoss):
    """In place of the curvature of a loss of scores, the square of its slope."""

    loss: LinearLoss

    @property
    def labels(self) -> Signs:
        return self.loss.labels

    @property
    def outputs(self) -> int:
        return self.loss.outputs

    def derivatives(self, score: Array, label: Any) -> tuple[Array, Array]:
        slope, _ = self.loss.derivatives(score, label)
        return slope, slope * slope if self.outputs == 1 else jnp.outer(slope, slope)


@dataclasses.dataclass(frozen=True)
class _OuterGradient:
    """A loss whose Hessian, where it is taken, is the gradient of ``loss`` times itself."""

    loss: Any
    linear: LinearLoss | None

    def __call__(self, params: Params, example: PyTree) -> Array:
        gradient = jax.lax.stop_gradient(jax.grad(self.loss)(params, example))
        return (ravel_pytree(gradient)[0] @ ravel_pytree(params)[0]) ** 2 / 2


@pytree_dataclass(kw_only=True)
class CovarianceQuery(HessianQuery):
    """Asks for (sum of clipped g g^T) / divisor + symmetric Gaussian noise, g a record's gradient.

    Its Frobenius norm, |g|^2, is clipped to C^2, the square of ``clip_norm``. ``public`` may have
    ``fitted``, from 0 to 1, public or released before: C is then so much less.

    Privacy: the Gaussian mechanism. One record moves the sum by C^2 at most in the Frobenius norm,
      one that is replaced by 2 C^2. The noise falls with the bound: the event is always the same.
    """

    name = "gradient_covariance"
    quantity = Quantity("gradient_covariance")  # pyright: ignore[reportAssignmentType]
    gradients_per_record = 1
    sums = ClippedSums(reviewed="CovarianceQuery")

    def bound(self, params: Params | None = None, fitted: Any = 1.0, **public: Any) -> Any:
        return (self.clip_norm * fitted) ** 2

    def exact(
        self, records: Records, params: Params, mask: Mask = None, fitted: Any = 1.0, **public: Any
    ) -> Sums:
        """Returns the sum of clipped g g^T of the flattened parameters, (p, p). NOT PRIVATE."""
        loss, bound = self.objective.data_term, self.bound(fitted=fitted)
        if isinstance(records, units.PreparedUnits):
            assert loss.of_scores is not None
            return (units.outer_sum(loss.of_scores, records, params, bound),)
        linear = None if loss.linear is None else _OuterScores(loss.linear)
        order = self.permutation_invariant
        clipped = ClippedSum(None, 1.0, bound, _OuterGradient(loss.loss, linear), order)
        return (clipped.wide(params, records, mask),)


@pytree_dataclass(kw_only=True)
class FittedQuery(JointQuery):
    """Asks what ``JointQuery`` does, with ``fitted`` times the gradient's weight, and its noise.

    ``public`` may have ``fitted``, from 0 to 1, public or released before.

    Privacy: as ``JointQuery`` of the smaller weight; the event is the same whatever it is.
    """

    quantity = Quantity("fitted")
    sums = ClippedSums(reviewed="FittedQuery")

    def _fitted(self, fitted: Any = 1.0, **public: Any) -> JointQuery:
        return JointQuery(
            setting=self.setting,
            noise_multiplier=self.noise_multiplier,
            gradient_weight=self.gradient_weight * fitted,
            hessian_weight=self.hessian_weight,
        )

    def exact(self, records: Records, params: Params, mask: Mask = None, **public: Any) -> Sums:
        return self._fitted(**public).exact(records, params, mask)

    def stddevs(self, params: Params, **public: Any) -> tuple[Any, ...]:
        return self._fitted(**public).stddevs(params)


@pytree_dataclass(kw_only=True)
class NormsQuery(Query):
    """Asks what share of n records has a gradient's norm in each bin, with noise.

    Upper ends of bins are 2^(-i/3) times ``clip_norm``; the first also has all larger norms, the
    last all smaller ones.

    Privacy: the Gaussian mechanism. A record adds 1 to one bin, whatever it holds, or nothing where
      it is null: it moves the counts by 1 in the l2 norm, and one that is replaced by 2 at most.
      Counts are added exactly.
    """

    clip_norm: Array | float

    name = "gradient_norms"
    quantity = Quantity("gradient_norms")
    noise_draws = _BINS  # pyright: ignore[reportAssignmentType]
    reads = FullBatch
    closed_form_for_units = True
    _jumps = True  # rounding can move a norm into another bin
    sums = ClippedSums(reviewed="NormsQuery")

    def bound(self, params: Params | None = None, **public: Any) -> float:
        return 1.0

    def exact(self, records: Records, params: Params, mask: Mask = None, **public: Any) -> Sums:
        """Returns how many norms are in each bin. NOT PRIVATE."""
        loss = self.objective.data_term
        form: Any = loss.of_scores
        ends = self.clip_norm * self.edges

        def count(low: Array, high: Array) -> Any:
            def inside(norm: Array) -> Array:
                return (norm > low) & (norm <= high)

            def of_rows(rows: PreparedLinear) -> Array:
                weights = params.astype(rows.dtype).reshape(form.outputs, -1)
                held = (rows.directions, rows.radius, rows.label)
                slope, _ = sums.derivatives(form, weights, *held)
                return inside(jnp.linalg.norm(slope, axis=1)).reshape(rows.radius.shape)

            def of_examples(rows: PyTree) -> Array:
                gradients = jax.vmap(jax.grad(loss.loss), in_axes=(None, 0))(params, rows)
                return inside(jax.vmap(optax.tree.norm)(gradients))

            if isinstance(records, units.PreparedUnits):
                return units.count_gradients(form, records, params, inside)
            if loss.linear is None:
                return count_rows(records, mask, of_examples)
            return sums.count(prepared(form, records, mask), of_rows)

        return (jax.vmap(count)(jnp.append(ends[1:], 0.0), ends.at[0].set(jnp.inf)),)

    @property
    def edges(self) -> Array:
        """The upper ends of the bins over ``clip_norm``, (bins,)."""
        return 2.0 ** (-jnp.arange(_BINS) / 3)

    def postprocess(self, noisy: tuple[Array, ...], params: Params) -> Array:
        return noisy[0] / self.divisor

    def noisy_parts(self, answer: Array) -> tuple[Array, ...]:
        return (answer * self.divisor,)

    def exceeded(self, answer: Array, share: float) -> Array:
        """Returns the least edge that about ``share`` of the records exceed at most, ()."""
        # The upper end of the first bin with which too many are counted; of the last one else.
        above = jnp.append(jnp.cumsum(answer)[:-1], jnp.inf)
        return self.edges[jnp.argmax(above > share)]
