"""The gradient oracle: the noisy mean of clipped per-example gradients."""

import dataclasses

import jax

from dpjax._typing import Array, Params, Relation, static
from dpjax.derivatives import clipped_grad, flatten
from dpjax.mechanisms import derive, perturb
from dpjax.objectives import Objective
from dpjax.oracles.base import GaussianQuery, Records
from dpjax.sampling import Sampler


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class GradientQuery(GaussianQuery):
    """Asks for (sum of clipped gradients) / divisor + N(0, stddev^2 I), the data term alone.

    Args:
      noise_multiplier: standard deviation over the l2 sensitivity of the mean.
      clip_norm: C, the bound on one record's gradient.
      objective: whose ``loss`` is differentiated.
      data_size: the declared public n, the divisor unless a sampler has its own.
      relation: fixes the sensitivity, C / n or 2 C / n and what rounding adds to it.
      sampler: who is asked; None for all records.
      unsafe_fast_noise: see ``mechanisms.perturb``.

    Privacy: the Gaussian mechanism of multiplier ``noise_multiplier``; sensitivity ``sensitivity``
      holds for every data set, because clipping always runs.
    """

    noise_multiplier: Array | float
    clip_norm: Array | float
    objective: Objective = static()
    data_size: int = static()
    relation: Relation = static()
    sampler: Sampler | None = None
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
        batch, mask = self._drawn(key, records)
        total = clipped_grad(self.objective, clip_norm=self.clip_norm).wide(
            params, batch, mask, self.any_order
        )
        noisy = perturb(
            derive(key, "gradient", 0),
            total,
            self._noise_on_sum(self.clip_norm),
            unsafe_fast_noise=self.unsafe_fast_noise,
        )
        return flatten(params)[1](noisy / self.divisor, as_sum=True)
