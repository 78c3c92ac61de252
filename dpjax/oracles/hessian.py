"""Oracles of Hessians: alone, with the gradient as one release, and both in a subspace."""

from typing import Any, NamedTuple

from dpjax._typing import Array, Params, pytree_dataclass, static
from dpjax.accounting.release import Quantity
from dpjax.derivatives import clipped_hessian, joint_clipped, subspace_clipped
from dpjax.mechanisms.noise import Gaussian, Noise, SymmetricGaussian
from dpjax.oracles.query import Mask, Query, Records, Sums
from dpjax.oracles.setting import ClippedSums


class SecondOrderAnswer(NamedTuple):
    """Noisy data terms at one point: gradient (p,) and symmetric Hessian (p, p)."""

    gradient: Array
    hessian: Array


@pytree_dataclass(kw_only=True)
class HessianQuery(Query):
    """Asks for (sum of Frobenius-clipped Hessians) / divisor + symmetric Gaussian noise.

    Args:
      noise_multiplier: standard deviation of a diagonal entry over the Frobenius sensitivity.
      clip_norm: C_H, the bound on the Frobenius norm of one record's Hessian.
      isometric: the form of the noise, see ``add_symmetric_gaussian``.
      **others: as ``Query``.

    Privacy: the Gaussian mechanism of multiplier ``noise_multiplier`` in either form.
    """

    clip_norm: Array | float
    isometric: bool = static(default=True)

    name = "hessian"
    sums_units = True
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

    def postprocess(self, noisy: tuple[Array, ...], params: Params) -> Array:
        return noisy[0] / self.divisor

    def noisy_parts(self, answer: Array) -> tuple[Array, ...]:
        return (answer * self.divisor,)


@pytree_dataclass(kw_only=True)
class JointQuery(Query):
    """Asks for gradient and Hessian as one vector (g / gradient_weight, svec(H) / hessian_weight).

    One record's vector is clipped to norm 1, so one release pays for both parts.

    Args:
      noise_multiplier: standard deviation over the sensitivity of the weighted mean vector.
      gradient_weight: w_g; the gradient's noise is w_g times that of the weighted vector.
      hessian_weight: w_h; the Hessian's noise is w_h times it, in the isometric form.
      label: the name; an algorithm with several joint queries gives each its own.
      **others: as ``Query``.

    Privacy: one Gaussian mechanism of multiplier ``noise_multiplier``. Gradient and Hessian from
      one sample are one event; there is no way to book them as two.
    """

    gradient_weight: Array | float
    hessian_weight: Array | float
    label: str = static(default="gradient_and_hessian")

    quantity = Quantity("isometric")
    sums_units = True

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
        return (
            ("gradient", float(self.stddev)),
            ("hessian", float(self.hessian_stddev)),
        )

    def exact(self, records: Records, params: Params, mask: Mask = None, **public: Any) -> Sums:
        """Returns the sums of jointly clipped gradients (p,) and Hessians (p, p). NOT PRIVATE."""
        return self._clipped_by(joint_clipped, **self._weights).wide(params, records, mask)

    def noises(self, **public: Any) -> tuple[tuple[str, Noise], ...]:
        # Each part has a noise key of its own, but both are one vector: ``releases`` books one
        # Gaussian.
        return (("gradient", Gaussian()), ("hessian", SymmetricGaussian()))

    def stddevs(self, params: Params, **public: Any) -> tuple[Any, ...]:
        # The weighted vector has noise of one scale; undoing a weight multiplies that scale by it.
        return tuple(map(self._sum_noise_std, (self.gradient_weight, self.hessian_weight)))

    def postprocess(self, noisy: tuple[Array, ...], params: Params) -> SecondOrderAnswer:
        return SecondOrderAnswer(*(total / self.divisor for total in noisy))

    def noisy_parts(self, answer: SecondOrderAnswer) -> tuple[Array, ...]:
        return tuple(mean * self.divisor for mean in answer)

    @property
    def _weights(self) -> dict[str, Any]:
        return {"gradient_weight": self.gradient_weight, "hessian_weight": self.hessian_weight}


@pytree_dataclass(kw_only=True)
class SubspaceQuery(JointQuery):
    """Asks for (S g / gradient_weight, svec(S H S^T) / hessian_weight) for a sketch S (k, p).

    The fields are those of ``JointQuery``; the sketch comes with each question, as ``sketch=``.

    Privacy: one Gaussian mechanism of multiplier ``noise_multiplier`` for every sketch that is
      public or made of earlier answers, since one record's projected vector is clipped to norm 1.
    """

    name = "subspace_gradient_and_hessian"  # pyright: ignore[reportAssignmentType]
    closed_form = False  # pyright: ignore[reportAssignmentType]
    sums_units = False

    sums = ClippedSums(reviewed="SubspaceQuery")

    def exact(self, records: Records, params: Params, mask: Mask = None, **public: Any) -> Sums:
        """Returns the sums of S g (k,) and S H S^T (k, k), jointly clipped. NOT PRIVATE."""
        clipped = self._clipped_by(subspace_clipped, **self._weights)
        return clipped.wide(params, records, public["sketch"], mask)
