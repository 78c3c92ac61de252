"""The oracle of histograms: in which public bin of each column records lie, counted with noise."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from dpjax._typing import Array, Params, pytree_dataclass
from dpjax.oracles.gradient import GradientQuery
from dpjax.oracles.setting import ClippedSums


@dataclasses.dataclass(frozen=True)
class BinsLoss:
    """The loss whose gradient has a 1 for the bin in which a record lies in each column.

    A record is ``(places, y)``: the number of its bin in each column, of ``sizes`` bins, then
    further numbers, summed as they are. A place that is no bin, NaN and y add nothing.

    >>> import jax
    >>> jax.grad(BinsLoss((3, 2)))(jnp.zeros(6), (jnp.array([1.0, 0.0, 0.5]), 0.0)).tolist()
    [0.0, 1.0, 0.0, 1.0, 0.0, 0.5]
    """

    sizes: tuple[int, ...]

    def __call__(self, params: Params, example: Any) -> Array:
        """Returns the inner product of ``params`` and what a record adds."""
        record, count = example[0], len(self.sizes)
        column, place = np.repeat(np.arange(count), self.sizes), np.r_[*map(np.arange, self.sizes)]
        inside = record[column] == place
        return params @ jnp.r_[inside, jnp.nan_to_num(record[count:])].astype(params.dtype)


@pytree_dataclass(kw_only=True)
class HistogramQuery(GradientQuery):
    """Asks for (sum of what ``BinsLoss`` counts) / n + N(0, stddev^2 I), once for all columns.

    Privacy: the Gaussian mechanism. A record adds a 1 in each of m columns, and a unit the mean of
      its records: neither has a norm above ``clip_norm``, sqrt(m + s) for further numbers of
      squared norm s. Clipping enforces it whatever a record holds.
    """

    name = "histogram"
    description = "shares of records in public bins, with Gaussian noise"
    sums = ClippedSums(reviewed="HistogramQuery")

    @property
    def components(self) -> tuple[tuple[str, float], ...]:
        return (("share of a bin", float(self.stddev)),)
