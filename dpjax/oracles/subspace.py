"""The oracle of a subspace: gradient and Hessian along public directions, as one release."""

from typing import Any

from dpjax._typing import Array, Params, pytree_dataclass
from dpjax._wide import Expansion
from dpjax.derivatives import subspace_clipped
from dpjax.oracles.hessian import JointQuery
from dpjax.oracles.query import Records
from dpjax.oracles.setting import ClippedSums


@pytree_dataclass(kw_only=True)
class SubspaceQuery(JointQuery):
    """Asks for (S g / gradient_weight, svec(S H S^T) / hessian_weight) for a sketch S (k, p).

    The fields are those of ``JointQuery``; the sketch comes with each question, as ``sketch=``.

    Privacy: one Gaussian mechanism of multiplier ``noise_multiplier`` for every sketch that is
      public or made of earlier answers, since one record's projected vector is clipped to norm 1.
    """

    name = "subspace_gradient_and_hessian"  # pyright: ignore[reportAssignmentType]
    closed_form = False  # pyright: ignore[reportAssignmentType]
    closed_form_for_units = False

    sums = ClippedSums(reviewed="SubspaceQuery")

    def exact(
        self, records: Records, params: Params, mask: Array | None = None, **public: Any
    ) -> tuple[Expansion, ...]:
        """Returns the sums of S g (k,) and S H S^T (k, k), jointly clipped. NOT PRIVATE."""
        return subspace_clipped(
            self.objective.data_term,
            gradient_weight=self.gradient_weight,
            hessian_weight=self.hessian_weight,
            permutation_invariant=self.permutation_invariant,
        ).wide(params, records, public["sketch"], mask)
