"""Oracles of Hessians: alone, of gradients times themselves, with the gradient, in a subspace."""

import dataclasses
import math
from collections import Counter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpjax._typing import Array, Params, PyTree, pytree_dataclass, static
from dpjax.accounting import Release
from dpjax.accounting.release import Quantity
from dpjax.derivatives import ClippedSum, clipped_hessian, joint_clipped, subspace_clipped
from dpjax.derivatives.linear import prepared, units
from dpjax.mechanisms.noise import Gaussian, Noise, SymmetricGaussian
from dpjax.objectives import Objective
from dpjax.objectives.linear import LinearLoss
from dpjax.oracles.query import Mask, MeanQuery, Query, Records, Sums
from dpjax.oracles.setting import ClippedSums


class SecondOrderAnswer(NamedTuple):
    """Noisy data terms at one point: gradient (p,) and symmetric Hessian (p, p)."""

    gradient: Array
    hessian: Array


@pytree_dataclass(kw_only=True)
class HessianQuery(MeanQuery):
    """Asks for (sum of Frobenius-clipped Hessians) / divisor + symmetric Gaussian noise.

    Args:
      noise_multiplier: standard deviation of a diagonal entry over the Frobenius sensitivity.
      clip_norm: C_H, the bound on the Frobenius norm of one record's Hessian.
      isometric: the form of the noise, see ``add_symmetric_gaussian``.
      the others: as ``Query``.

    Privacy: the Gaussian mechanism of multiplier ``noise_multiplier`` in either form.
    """

    clip_norm: Array | float
    isometric: bool = static(default=True)

    name = "hessian"
    closed_form_for_units = True
    gradients_per_record = 0  # Hessians alone
    sums = ClippedSums(reviewed="HessianQuery")

    def bound(self, params: Params | None = None, **public: Any) -> Array | float:
        return self.clip_norm

    @property
    def hessian_bound(self) -> Array | float:
        """Bound on the Frobenius norm of one record's Hessian."""
        return self.clip_norm

    @property
    def hessian_stddev(self) -> Array | float:
        """Standard deviation of the noise on a diagonal entry of the mean Hessian."""
        return self.stddev

    @property
    def quantity(self) -> Quantity:
        return Quantity("isometric") if self.isometric else Quantity()

    @property
    def noise_draws(self) -> int:
        # An upper bound: one triangle is drawn.
        return self.setting.dimension * self.setting.dimension

    def exact(self, records: Records, params: Params, mask: Mask = None, **public: Any) -> Sums:
        """Returns the sum of clipped Hessians of the flattened parameters, (p, p). NOT PRIVATE."""
        clipped = self._clipped_by(clipped_hessian, clip_norm=self.clip_norm)
        return (clipped.wide(params, records, mask),)

    def noises(self, **public: Any) -> tuple[tuple[str, Noise], ...]:
        return ((self.name, SymmetricGaussian(isometric=self.isometric)),)


@dataclasses.dataclass(frozen=True)
class _OuterGradient(LinearLoss):
    """A loss whose Hessian, where it is taken, is the gradient of an objective times itself."""

    of: Objective

    linear = property(lambda self: self if self.of.linear else None)
    labels = property(lambda self: self.of.linear.labels)  # pyright: ignore
    outputs = property(lambda self: self.of.linear.outputs)  # pyright: ignore

    def derivatives(self, score: Array, label: Any) -> tuple[Array, Array]:
        loss: Any = self.of.linear
        slope, _ = loss.derivatives(score, label)
        return slope, slope * slope if self.outputs == 1 else jnp.outer(slope, slope)

    def __call__(self, params: Params, example: PyTree) -> Array:
        gradient = jax.lax.stop_gradient(jax.grad(self.of.loss)(params, example))
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
        data: Any = self.objective.data_term
        bound = self.bound(fitted=fitted)
        if isinstance(records, units.PreparedUnits):
            return (units.outer_sum(data.of_scores, records, params, bound),)
        clipped = ClippedSum(None, 1.0, bound, _OuterGradient(data), self.permutation_invariant)
        return (clipped.wide(params, records, mask),)


def _half_square(score: Array) -> Array:
    return score**2 / 2


# Of one score, with the Hessian x x^T whatever the label is.
_HALF_SQUARE = Objective(lambda w, record: _half_square(record[0] @ w), margin=_half_square)


@pytree_dataclass(kw_only=True)
class MomentQuery(CovarianceQuery):
    """Asks for (sum of clipped x x^T) / divisor + symmetric Gaussian noise, x a record's features.

    Longer ones are scaled down to norm ``clip_norm``, those so long that float32 cannot hold the
    factor count for nothing; the setting's ``dimension`` is their number.

    Privacy: as ``CovarianceQuery``, since |x x^T|_F = |x|^2.
    """

    name = "second_moment"
    quantity = Quantity("second_moment")  # pyright: ignore[reportAssignmentType]
    gradients_per_record = 0
    sums = ClippedSums(reviewed="MomentQuery")

    @property
    def noise_norm(self) -> Array | float:
        """The typical spectral norm of the noise on the mean."""
        return self.stddev * math.sqrt(2 * self.setting.dimension)

    def exact(self, records: Records, params: Params, mask: Mask = None, **public: Any) -> Sums:
        """Returns the sum of clipped x x^T, (p, p). NOT PRIVATE."""
        rows, order = prepared(self.setting.linear, records, mask), self.permutation_invariant
        clipped = ClippedSum(None, 1.0, self.bound(), _HALF_SQUARE, order)
        return (clipped.wide(jnp.zeros(self.setting.dimension), rows),)


@pytree_dataclass(kw_only=True)
class JointQuery(Query):
    """Asks for gradient and Hessian as one vector (g / gradient_weight, svec(H) / hessian_weight).

    One record's vector is clipped to norm 1, so one release pays for both parts.

    Args:
      noise_multiplier: standard deviation over the sensitivity of the weighted mean vector.
      gradient_weight: w_g; the gradient's noise is w_g times that of the weighted vector.
      hessian_weight: w_h; the Hessian's noise is w_h times it, in the isometric form.
      label: the name; an algorithm with several joint queries gives each its own.
      the others: as ``Query``.

    Privacy: one Gaussian mechanism of multiplier ``noise_multiplier``. Gradient and Hessian from
      one sample are one event; there is no way to book them as two.
    """

    gradient_weight: Array | float
    hessian_weight: Array | float
    label: str = static(default="gradient_and_hessian")

    quantity = Quantity("isometric")
    closed_form_for_units = True
    sums = ClippedSums(reviewed="JointQuery")

    @property
    def name(self) -> str:
        return self.label

    def bound(self, params: Params | None = None, **public: Any) -> Array | float:
        """The gradient's weight: the joint vector is clipped to norm 1."""
        return self.gradient_weight

    # The joint vector's noise is spherical in this form alone: its one bound pays for both parts.
    isometric = True

    @property
    def hessian_bound(self) -> Array | float:
        """Bound on the Frobenius norm of one record's Hessian."""
        return self.hessian_weight

    @property
    def hessian_stddev(self) -> Array | float:
        """Standard deviation of the noise on a diagonal entry of the mean Hessian."""
        return self.noise_multiplier * self._mean_sensitivity(self.hessian_weight)

    @property
    def noise_draws(self) -> int:
        # p for the gradient and p^2 for the Hessian, an upper bound as in ``HessianQuery``.
        return self.setting.dimension * (self.setting.dimension + 1)

    @property
    def components(self) -> tuple[tuple[str, float], ...]:
        return (("gradient", float(self.stddev)), ("hessian", float(self.hessian_stddev)))

    def exact(self, records: Records, params: Params, mask: Mask = None, **public: Any) -> Sums:
        """Returns the sums of jointly clipped gradients (p,) and Hessians (p, p). NOT PRIVATE."""
        clipped = self._clipped_by(joint_clipped, **self._weights(**public))
        return clipped.wide(params, records, mask)

    def noises(self, **public: Any) -> tuple[tuple[str, Noise], ...]:
        # Each part has a noise key of its own, but both are one vector: ``releases`` books one
        # Gaussian.
        return (("gradient", Gaussian()), ("hessian", SymmetricGaussian()))

    def stddevs(self, params: Params, **public: Any) -> tuple[Any, ...]:
        # The weighted vector has noise of one scale; undoing a weight multiplies that scale by it.
        return tuple(map(self._sum_noise_std, self._weights(**public).values()))

    def postprocess(self, noisy: tuple[Array, ...], params: Params) -> SecondOrderAnswer:
        return SecondOrderAnswer(*(total / self.divisor for total in noisy))

    def noisy_parts(self, answer: SecondOrderAnswer) -> tuple[Array, ...]:
        return tuple(mean * self.divisor for mean in answer)

    def _weights(self, **public: Any) -> dict[str, Any]:
        return {"gradient_weight": self.gradient_weight, "hessian_weight": self.hessian_weight}


@pytree_dataclass(kw_only=True)
class FittedQuery(JointQuery):
    """Asks what ``JointQuery`` does, with ``fitted`` times the gradient's weight, and its noise.

    ``public`` may have ``fitted``, from 0 to 1, public or released before.

    Privacy: as ``JointQuery`` of the smaller weight; the event is the same whatever it is.
    """

    quantity = Quantity("fitted")
    sums = ClippedSums(reviewed="FittedQuery")

    def _weights(self, fitted: Any = 1.0, **public: Any) -> dict[str, Any]:
        return super()._weights() | {"gradient_weight": self.gradient_weight * fitted}


@pytree_dataclass(kw_only=True)
class WeightedQuery(JointQuery):
    """Asks what ``JointQuery`` does, each answer with noise of its own.

    ``public`` has ``iteration``, from 0 to T - 1: each is asked once, which the algorithm assures.

    Args:
      factors: noise of each answer over that of ``noise_multiplier``, public, float32 (T,).

    Privacy: answer t is a Gaussian mechanism of multiplier ``noise_multiplier`` * factors[t], and
      booked as such. The factors are fixed before the first answer, so mu^2 of all is the sum of
      1 / multiplier^2, whatever points are chosen from earlier answers. An algorithm that asks one
      ``iteration`` twice breaks this unseen.
    """

    factors: Array
    sums = ClippedSums(reviewed="WeightedQuery")

    def stddevs(self, params: Params, **public: Any) -> tuple[Any, ...]:
        factor = jnp.asarray(self.factors)[public["iteration"]]
        return tuple(stddev * factor for stddev in super().stddevs(params))

    def releases(self, count: int) -> tuple[Release, ...]:
        if count != len(self.factors):
            raise ValueError(f"{len(self.factors)} answers have factors, but {count} are asked.")
        released = ()
        for factor, times in Counter(np.asarray(self.factors).tolist()).items():
            multiplier = float(self.noise_multiplier) * factor
            released += (dataclasses.replace(self, noise_multiplier=multiplier)._release(times),)
        return released


@pytree_dataclass(kw_only=True)
class SubspaceQuery(JointQuery):
    """Asks for (S g / gradient_weight, svec(S H S^T) / hessian_weight) for a sketch S (k, p).

    The fields are those of ``JointQuery``; the sketch comes with each question, as ``sketch=``.

    Privacy: one Gaussian mechanism of multiplier ``noise_multiplier`` for every sketch that is
      public or made of earlier answers, since one record's projected vector is clipped to norm 1.
    """

    name = "subspace_gradient_and_hessian"  # pyright: ignore[reportAssignmentType]
    closed_form = False  # pyright: ignore[reportAssignmentType]
    closed_form_for_units = False
    sums = ClippedSums(reviewed="SubspaceQuery")

    def exact(self, records: Records, params: Params, mask: Mask = None, **public: Any) -> Sums:
        """Returns the sums of S g (k,) and S H S^T (k, k), jointly clipped. NOT PRIVATE."""
        clipped = self._clipped_by(subspace_clipped, **self._weights())
        return clipped.wide(params, records, public["sketch"], mask)
