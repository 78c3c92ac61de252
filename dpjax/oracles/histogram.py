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

    A record is ``(places, y)``: the number of its bin in each column, then further numbers, which
    are summed as they are. Of places that are no bin, numbers that are not finite, and y nothing is
    counted. ``sizes`` are the numbers of bins.

    >>> import jax
    >>> record = jnp.array([1.0, 0.0, 0.5]), 0.0
    >>> jax.grad(BinsLoss((3, 2)))(jnp.zeros(6), record).tolist()
    [0.0, 1.0, 0.0, 1.0, 0.0, 0.5]
    """

    sizes: tuple[int, ...]

    def __call__(self, params: Params, example: Any) -> Array:
        """Returns the inner product of ``params`` and what a record adds."""
        record, _ = example
        column = np.repeat(np.arange(len(self.sizes)), self.sizes)
        inside = record[column] == np.concatenate([*map(np.arange, self.sizes)])
        numbers = jnp.nan_to_num(record[len(self.sizes) :], posinf=0.0, neginf=0.0)
        return params @ jnp.concatenate([inside, numbers]).astype(params.dtype)


@pytree_dataclass(kw_only=True)
class HistogramQuery(GradientQuery):
    """Asks for (sum of what ``BinsLoss`` counts of records) / n + N(0, stddev^2 I).

    Privacy: the Gaussian mechanism on one vector for all columns. A record adds one 1 in each of m
      columns, and a unit the mean of its records: by the triangle inequality neither has a norm
      above sqrt(m + s), s the squared norm of further numbers. Clipping to ``clip_norm``, which is
      that, enforces it whatever a record holds.
    """

    name = "histogram"
    sums = ClippedSums(reviewed="HistogramQuery")

    @property
    def components(self) -> tuple[tuple[str, float], ...]:
        return (("share of a bin", float(self.stddev)),)
