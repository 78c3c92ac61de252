"""The oracle of output perturbation: the noisy minimiser of a ridge-regularized margin loss."""

from typing import Any

from dpjax._typing import Array, Params, pytree_dataclass, static
from dpjax._wide import Expansion, zeros
from dpjax.accounting.release import Quantity
from dpjax.derivatives import distance_bound, iterations_for, ridge_minimum
from dpjax.objectives import Objective
from dpjax.oracles.query import Query, Records
from dpjax.oracles.setting import ClippedSums, Setting
from dpjax.oracles.value import ValueQuery
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
        return self.objective.constants.lipschitz / strength_of(self.objective)  # pyright: ignore

    @property
    def sensitivity(self) -> Array | float:
        """How far one record moves the minimum, and how far from it the answers may start."""
        # No rounding error of sums here: ``distance_bound`` includes the rounding of the gradients.
        exact = self.sampler.scale(self.bound(), self.relation)
        slope, smoothness, _ = self.objective.constants  # pyright: ignore
        mu = strength_of(self.objective)
        # Twice: the answers on both data sets may start that far from their minima.
        return exact + 2 * distance_bound(slope, mu, smoothness, self.iterations, self.data_size)

    def exact(
        self, records: Records, params: Params, mask: Array | None = None, **public: Any
    ) -> tuple[Expansion, ...]:
        """Returns the minimiser, (p,); of ``params`` it reads the shape alone. NOT PRIVATE.

        ``public`` may have ``tilt``, of a query with noise in its objective; secret.
        """
        tilt = public.get("tilt")
        if tilt is None:
            tilt = zeros(params.shape, shares(records).dtype)
        slope, smoothness, _ = self.objective.constants  # pyright: ignore
        # A fixed number of steps, whatever the data: a test of convergence would read them.
        minimum = ridge_minimum(
            self.objective.linear,  # pyright: ignore
            records,
            tilt,
            strength_of(self.objective),
            slope,
            smoothness,
            self.iterations,
            self.data_size,
        )
        return (minimum,)


def iterations_of(objective: Objective, ratio: float) -> int:
    """Returns the iterations after which the distance to the minimum is ``ratio`` s / mu at most.

    With s a bound on the slope at 0 and kappa = (M + mu) / mu, 2 sqrt(kappa) ln(sqrt(2) / ratio).

    >>> from dpjax import objectives
    >>> iterations_of(objectives.logistic_l2(1e-3), 1e-8)
    595
    """
    return iterations_for(ratio, strength_of(objective), objective.constants.smoothness)  # pyright: ignore


def strength_of(objective: Objective) -> float:
    """Returns mu of the regularizer ``L2(mu)``."""
    return objective.regularizer.strength  # pyright: ignore[reportOptionalMemberAccess]
