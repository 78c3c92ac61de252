"""The oracle of a subspace: gradient and Hessian along public directions, as one release."""

import dataclasses

import jax

from dpjax import _validate
from dpjax._typing import Array, Params
from dpjax.accounting import PrivacyBudget
from dpjax.derivatives import subspace_clipped
from dpjax.oracles.base import Records
from dpjax.oracles.hessian import JointQuery, SecondOrderAnswer
from dpjax.sampling import Poisson, poisson


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SubspaceQuery(JointQuery):
    """Asks for (S g / gradient_weight, svec(S H S^T) / hessian_weight) for a sketch S (k, p).

    The fields are those of ``JointQuery``; the sketch comes with each question, as ``sketch=``.

    Privacy: one Gaussian mechanism of multiplier ``noise_multiplier`` for every sketch that is
      public or made of earlier answers, since one record's projected vector is clipped to norm 1.
    """

    @property
    def name(self) -> str:
        """What an algorithm asks by."""
        return "subspace_gradient_and_hessian"

    @property
    def closed_form(self) -> bool:
        """False: records are read as they are."""
        return False

    def answer(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, key: Array, records: Records, params: Params, *, sketch: Array
    ) -> SecondOrderAnswer:
        """Returns the noisy means of S g (k,) and S H S^T (k, k)."""
        batch, mask = self._drawn(key, records)
        total = subspace_clipped(
            self.objective,
            gradient_weight=self.gradient_weight,
            hessian_weight=self.hessian_weight,
        ).wide(params, batch, sketch, mask, self.any_order)
        return self._noisy(key, total)


def poisson_batches(
    batch_size: int | None,
    data_size: int,
    *,
    budget: PrivacyBudget,
    count: int,
    capacity: int | None = None,
) -> Poisson | None:
    """Returns the sampler of ``count`` Poisson batches, or None for all records each time.

    Args:
      batch_size: expected number of records, below ``data_size``; None for all.
      data_size: the declared n.
      budget: of the whole training.
      count: number of draws.
      capacity: as in ``sampling.poisson``.

    Raises:
      ValueError: if a number is out of range, or ``capacity`` is given without batches.

    >>> poisson_batches(None, 100, budget=PrivacyBudget(1.0, 1e-5), count=3) is None
    True
    """
    if batch_size is None:
        if capacity is not None:
            raise ValueError(f"capacity={capacity} is for batches; give batch_size too.")
        return None
    batch_size = _validate.positive_int("batch_size", batch_size)
    if batch_size >= data_size:
        raise ValueError(
            f"batch_size must be below data_size={data_size}, got {batch_size}; leave it out to "
            "read every record."
        )
    return poisson(batch_size, data_size, budget=budget, count=count, capacity=capacity)
