"""The gradient oracle: the noisy mean of clipped per-example gradients."""

import dataclasses

import jax

from dpjax._typing import Array, Params, Relation
from dpjax.derivatives import clipped_grad, flatten
from dpjax.mechanisms import perturb
from dpjax.objectives import Objective
from dpjax.oracles.base import GaussianQuery, Records, static


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class GradientQuery(GaussianQuery):
    """Asks for (sum of clipped gradients) / data_size + N(0, stddev^2 I), the data term alone.

    Args:
      noise_multiplier: standard deviation over the l2 sensitivity of the mean.
      clip_norm: C, the bound on one record's gradient.
      objective: whose ``loss`` is differentiated.
      data_size: the declared public n, the divisor.
      relation: fixes the sensitivity, C / n or 2 C / n and what rounding adds to it.
      unsafe_fast_noise: see ``mechanisms.perturb``.

    Privacy: the Gaussian mechanism of multiplier ``noise_multiplier``; sensitivity ``sensitivity``
      holds for every data set, because clipping always runs.
    """

    noise_multiplier: Array | float
    clip_norm: Array | float
    objective: Objective = static()
    data_size: int = static()
    relation: Relation = static()
    unsafe_fast_noise: bool = static(default=False)

    @property
    def name(self) -> str:
        """What an algorithm asks by."""
        return "gradient"

    @property
    def unit(self) -> Array | float:
        """The clip norm."""
        return self.clip_norm

    @property
    def components(self) -> tuple[tuple[str, float], ...]:
        """The gradient alone."""
        return (("gradient", float(self.stddev)),)

    def answer(self, key: Array, records: Records, params: Params) -> Params:
        """Returns the noisy mean gradient, a pytree like ``params``."""
        total = clipped_grad(self.objective, clip_norm=self.clip_norm).wide(
            params, records, any_order=self.any_order
        )
        noisy = perturb(
            key,
            total,
            self._noise_on_sum(self.clip_norm),
            unsafe_fast_noise=self.unsafe_fast_noise,
        )
        return flatten(params)[1](noisy / float(self.data_size), as_sum=True)
