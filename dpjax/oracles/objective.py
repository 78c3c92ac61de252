"""The oracle of objective perturbation: the minimiser of an objective with a random linear term."""

import math
from typing import Any

import jax.numpy as jnp

from dpjax._typing import Array, Params, pytree_dataclass, static
from dpjax.accounting import PerturbationRelease, Release
from dpjax.accounting.release import Quantity
from dpjax.derivatives import clipped_grad, distance_bound
from dpjax.mechanisms import derive
from dpjax.mechanisms.noise import Gaussian, Noise
from dpjax.oracles.minimizer import MinimizerQuery, strength_of
from dpjax.oracles.query import Records
from dpjax.oracles.setting import ClippedSums
from dpjax.placement.shard import shares

# No draw of ``standard_normal`` is larger.
_REACH = 10.1
# Beside curvature, what the rounding of unit vectors to float32 may add to it.
_ROUNDING = 1e-6


@pytree_dataclass(kw_only=True)
class ObjectiveQuery(MinimizerQuery):
    """Asks for the minimiser of (1/n) sum phi(m_i) + mu |w|^2 / 2 + <tilt, w>, tilt secret noise.

    Features longer than 1 are scaled to length 1 first, so it is their objective that is minimised.

    Args:
      noise_multiplier: standard deviation of the tilt over G / n (``replace_one``: 2 G / n).
      output_multiplier: that of the noise on the minimiser, over how far it may be from the exact
        one, twice.
      dimension: number of parameters p.
      **others: as ``MinimizerQuery``; the margin must fall, -G <= phi' <= 0.

    Privacy: two releases. The exact minimiser, whose noise is the tilt: see
      ``accounting.perturbed_delta`` for the proof. And, given it, how far the answer is from it:
      at most ``distance`` on either data set whatever the data, so that Gaussian noise of
      ``output_multiplier`` over twice that hides it. The tilt itself never leaves.

    Reference: Iyengar et al. (2019), algorithm 1, approximate minima perturbation; Redberg, Koskela
      and Wang (2023), algorithm 1.
    """

    output_multiplier: Array | float
    dimension: int = static()

    name = "perturbed_minimizer"
    sums = ClippedSums(reviewed="ObjectiveQuery")

    def bound(self, params: Params | None = None, **public: Any) -> Array | float:
        return self.objective.constants.lipschitz  # pyright: ignore[reportOptionalMemberAccess]

    @property
    def sensitivity(self) -> Array | float:
        """How far one record moves the gradient of the objective: G / n, or 2 G / n."""
        return self.sampler.scale(self.bound(), self.relation)

    @property
    def distance(self) -> Array | float:
        """Bound on how far the answer is from the exact minimiser, before the noise on it."""
        # A bound on the gradient at 0, where the solver starts: G for the data, plus the tilt's
        # length if every coordinate is within _REACH deviations.
        slope = self.bound() + _REACH * math.sqrt(self.dimension) * self.stddev
        smoothness = self.objective.constants.smoothness  # pyright: ignore
        mu = strength_of(self.objective)
        return distance_bound(slope, mu, smoothness, self.iterations, self.data_size)

    @property
    def output_stddev(self) -> Array | float:
        """Standard deviation of the noise on the minimiser."""
        return self.output_multiplier * 2 * self.distance

    @property
    def components(self) -> tuple[tuple[str, float], ...]:
        return (("tilt", float(self.stddev)),)

    def releases(self, count: int) -> tuple[Release, ...]:
        smoothness = self.objective.constants.smoothness * (1 + _ROUNDING)  # pyright: ignore
        tilted = PerturbationRelease(
            self.name,
            count,
            noise_multiplier=float(self.noise_multiplier),
            sensitivity=float(self.sensitivity),
            components=self.components,
            quantity=Quantity("perturbed_minimizer"),
            noise_draws=self.dimension,
            log_shift=math.log1p(smoothness / (self.data_size * strength_of(self.objective))),
        )
        hidden = Release(
            "distance_from_minimum",
            count,
            noise_multiplier=float(self.output_multiplier),
            # Twice: on either data set the answer may be that far from its exact minimum.
            sensitivity=2 * float(self.distance),
            components=(("minimizer", float(self.output_stddev)),),
            noise_draws=self.dimension,
            quantity=Quantity("distance"),
        )
        return tilted, hidden

    def stddevs(self, params: Params, **public: Any) -> tuple[Any, ...]:
        return (self.output_stddev,)

    def evidence(self, answer: Array, params: Params, **public: Any) -> list[tuple[Any, Any]]:
        """Returns that of the tilt, which is minus the regularizer's gradient at the answer."""
        mu = strength_of(self.objective)
        # Without records the minimum is -tilt / mu, so mu times the answer is the tilt plus mu
        # times the output noise, and the two are independent.
        return [Gaussian().excess(mu * answer, jnp.hypot(self.stddev, mu * self.output_stddev))]

    def likelihood_terms(
        self,
        answer: Array,
        records: Records,
        params: Params,
        mask: Array | None = None,
        **public: Any,
    ) -> tuple[tuple[Noise, Array, Array, Any], ...]:
        """Returns the tilt that makes the answer the minimum, as if 0 had been seen. NOT PRIVATE.

        That tilt is minus the gradient there. Up to the determinants of the Hessians, which are
        alike, and the little noise that is added afterwards.
        """
        clipped = clipped_grad(self.objective.data_term, clip_norm=self.bound())
        mean = clipped(answer, records, mask) / self.data_size
        tilt = -self.objective.regularize_gradient(mean, answer)
        return ((Gaussian(), jnp.zeros_like(tilt), tilt, self.stddev),)

    def secret_arguments(
        self, key: Array, records: Records, params: Params, **public: Any
    ) -> dict[str, Any]:
        """Returns the tilt, which goes into the objective and never leaves."""
        self._check_dimension(params)
        dtype = shares(records).dtype
        # A purpose of its own, because the query's purpose draws the noise on the output.
        own, noise = derive(key, "tilt", 0), Gaussian()
        return {"tilt": noise.alone(own, params.shape, self.stddev, dtype)}
