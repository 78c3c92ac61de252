"""The gradient oracle: the noisy mean of clipped per-example gradients."""

import dataclasses

import jax

from dpjax._typing import Array, Params, Relation
from dpjax.accounting import Event, Release, records_moved
from dpjax.derivatives import clipped_grad
from dpjax.mechanisms import add_gaussian
from dpjax.objectives import Objective
from dpjax.oracles.base import Records, static


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class GradientQuery:
    """Asks for (sum of clipped gradients) / data_size + N(0, stddev^2 I), the data term alone.

    Args:
      noise_multiplier: standard deviation over the l2 sensitivity of the mean.
      clip_norm: C, the bound on one record's gradient.
      objective: whose ``loss`` is differentiated.
      data_size: the declared public n, the divisor.
      relation: fixes the sensitivity, C / n or 2 C / n.

    Privacy: the Gaussian mechanism of multiplier ``noise_multiplier``; sensitivity ``sensitivity``
      holds for every data set, because clipping always runs.
    """

    noise_multiplier: Array | float
    clip_norm: Array | float
    objective: Objective = static()
    data_size: int = static()
    relation: Relation = static()

    @property
    def name(self) -> str:
        """What an algorithm asks by."""
        return "gradient"

    @property
    def sensitivity(self) -> Array | float:
        """L2 sensitivity of the mean gradient."""
        return records_moved(self.relation) * self.clip_norm / float(self.data_size)

    @property
    def stddev(self) -> Array | float:
        """Standard deviation of the noise on each coordinate of the mean gradient."""
        return self.noise_multiplier * self.sensitivity

    def answer(self, key: Array, records: Records, params: Params) -> Params:
        """Returns the noisy mean gradient, a pytree like ``params``."""
        total = clipped_grad(self.objective, clip_norm=self.clip_norm)(params, records)
        mean = jax.tree.map(lambda leaf: leaf / float(self.data_size), total)
        return add_gaussian(key, mean, self.stddev)

    def event(self, count: int) -> Event:
        """Returns what ``count`` answers release."""
        release = Release(
            self.name,
            count,
            noise_multiplier=float(self.noise_multiplier),
            sensitivity=float(self.sensitivity),
            components=(("gradient", float(self.stddev)),),
        )
        return Event((release,), self.relation)
