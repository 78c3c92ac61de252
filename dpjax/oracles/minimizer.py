"""Oracles of a ridge-regularized minimiser: with noise on it, or in a random linear term before."""

import math
from typing import Any

import jax.numpy as jnp

from dpjax._typing import Array, Params, pytree_dataclass, static
from dpjax._wide import zeros
from dpjax.accounting import PerturbationRelease, Release
from dpjax.accounting.release import Quantity
from dpjax.derivatives import clipped_grad, distance_bound, iterations_for, ridge_minimum
from dpjax.mechanisms import derive
from dpjax.mechanisms.noise import Gaussian, Noise
from dpjax.objectives import Objective
from dpjax.oracles.query import Mask, Query, Records, Sums
from dpjax.oracles.score import ValueQuery
from dpjax.oracles.setting import ClippedSums, Setting
from dpjax.placement.shard import shares
from dpjax.sampling import FullBatch


@pytree_dataclass(kw_only=True)
class MinimizerQuery(ValueQuery):
    """Asks for the minimiser of (1/n) sum phi(m_i) + mu |w|^2 / 2, plus N(0, stddev^2 I).

    Features longer than 1 are scaled to length 1 first, so it is their objective that is minimised.

    Args:
      setting: structure here, not numbers. Its objective has a convex margin, constants (G, M, .)
        and the regularizer ``L2(mu)``; n is public, as steps that are safe for n records may not
        be for more; the relation is ``"zero_out"`` or ``"replace_one"``; all records are asked.
      noise_multiplier: standard deviation over the l2 sensitivity.
      iterations: steps towards the minimum, see ``iterations_of``.

    Privacy: the Gaussian mechanism. The exact minimisers of neighbours are G / (n mu) apart at
      most (``replace_one``: 2 G / (n mu)), see ``ridge_minimum``; the answer starts from a point
      that is within ``distance_bound`` of the exact one after a number of steps that no record
      influences, whatever the data. Nothing is measured, so nothing can fail: twice that bound is
      part of the sensitivity.

    Reference: Chaudhuri, Monteleoni and Sarwate (2011), algorithm 1 and corollary 8, for exact
      minimisers; Zhang, Zheng, Mou and Wang (2017), for a proven distance from them.
    """

    setting: Setting = static()
    iterations: Array | int

    name = "minimizer"
    quantity = Quantity("minimizer")
    reads = FullBatch
    evidence = Query.evidence  # of no record the minimiser is 0
    sums = ClippedSums(reviewed="MinimizerQuery")

    def __post_init__(self):
        if self.relation == "add_or_remove_one":
            raise ValueError(
                "a minimizer cannot be released under relation='add_or_remove_one': with more "
                "records than the declared data_size the solver may not converge, and one record "
                "could change the answer by any amount. Declare 'zero_out' or 'replace_one'."
            )

    @property
    def gradients_per_record(self) -> int:
        return int(self.iterations)

    def bound(self, params: Params | None = None, **public: Any) -> Array | float:
        """What one record's term of the sum moves the minimiser by, times n: G / mu."""
        slope, _, mu = self._numbers
        return slope / mu

    @property
    def _numbers(self) -> tuple[float, float, float]:
        """G and M, bounds on the slope and curvature of the loss, and mu of the regularizer."""
        slope, smoothness, _ = self.objective.constants  # pyright: ignore
        return slope, smoothness, self.objective.regularizer.strength  # pyright: ignore

    @property
    def sensitivity(self) -> Array | float:
        """How far one record moves the minimum, and how far from it the answers may start."""
        # No rounding error of sums here: ``distance_bound`` includes the rounding of the gradients.
        exact = self.sampler.scale(self.bound(), self.relation)
        slope, smoothness, mu = self._numbers
        # Twice: the answers on both data sets may start that far from their minima.
        return exact + 2 * distance_bound(slope, mu, smoothness, self.iterations, self.data_size)

    def exact(self, records: Records, params: Params, mask: Mask = None, **public: Any) -> Sums:
        """Returns the minimiser, (p,); of ``params`` it reads the shape alone. NOT PRIVATE.

        ``public`` may have ``tilt``, of a query with noise in its objective; secret.
        """
        tilt = public.get("tilt")
        if tilt is None:
            tilt = zeros(params.shape, shares(records).dtype)
        slope, smoothness, mu = self._numbers
        loss: Any = self.objective.linear
        # A fixed number of steps, whatever the data: a test of convergence would read them.
        steps = self.iterations, self.data_size
        return (ridge_minimum(loss, records, tilt, mu, slope, smoothness, *steps),)


def iterations_of(objective: Objective, ratio: float) -> int:
    """Returns the iterations after which the distance to the minimum is ``ratio`` s / mu at most.

    With s a bound on the slope at 0 and kappa = (M + mu) / mu, 2 sqrt(kappa) ln(sqrt(2) / ratio).

    >>> from dpjax import objectives
    >>> iterations_of(objectives.logistic_l2(1e-3), 1e-8)
    595
    """
    strength, smoothness = objective.regularizer.strength, objective.constants.smoothness  # pyright: ignore
    return iterations_for(ratio, strength, smoothness)


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
      the others: as ``MinimizerQuery``; the margin must fall, -G <= phi' <= 0.

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
        return self._numbers[0]

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
        _, smoothness, mu = self._numbers
        return distance_bound(slope, mu, smoothness, self.iterations, self.data_size)

    @property
    def output_stddev(self) -> Array | float:
        """Standard deviation of the noise on the minimiser."""
        return self.output_multiplier * 2 * self.distance

    @property
    def components(self) -> tuple[tuple[str, float], ...]:
        return (("tilt", float(self.stddev)),)

    def releases(self, count: int) -> tuple[Release, ...]:
        _, smoothness, mu = self._numbers
        tilted = PerturbationRelease(
            self.name,
            count,
            noise_multiplier=float(self.noise_multiplier),
            sensitivity=float(self.sensitivity),
            components=self.components,
            quantity=Quantity("perturbed_minimizer"),
            noise_draws=self.dimension,
            log_shift=math.log1p(smoothness * (1 + _ROUNDING) / (self.data_size * mu)),
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
        mu = self._numbers[2]
        # Without records the minimum is -tilt / mu, so mu times the answer is the tilt plus mu
        # times the output noise, and the two are independent.
        return [Gaussian().excess(mu * answer, jnp.hypot(self.stddev, mu * self.output_stddev))]

    def likelihood_terms(
        self, answer: Array, records: Records, params: Params, mask: Mask = None, **public: Any
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
