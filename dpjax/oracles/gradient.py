"""The gradient oracle: the noisy mean of clipped gradients, at every step or at anchors alone."""

from typing import Any

from dpjax._typing import Array, Params, pytree_dataclass, static
from dpjax._wide import Expansion
from dpjax.derivatives import ClippedSum, clipped_grad
from dpjax.oracles.query import Query, Records
from dpjax.oracles.setting import ClippedSums


@pytree_dataclass(kw_only=True)
class GradientQuery(Query):
    """Asks for (sum of clipped gradients) / divisor + N(0, stddev^2 I), the data term alone.

    Args:
      clip_norm: C, the bound on one record's gradient.
      **others: as ``Query``.

    Privacy: the Gaussian mechanism of multiplier ``noise_multiplier``; sensitivity ``sensitivity``
      holds for every data set, because clipping always runs.
    """

    clip_norm: Array | float

    name = "gradient"
    # Subclasses may share this purpose, since ``step_key`` derives from their names as well.
    purpose = "gradient"  # pyright: ignore[reportAssignmentType]
    closed_form_for_units = True

    sums = ClippedSums(reviewed="GradientQuery")

    def bound(self, params: Params | None = None, **public: Any) -> Array | float:
        return self.clip_norm

    @property
    def components(self) -> tuple[tuple[str, float], ...]:
        return (("gradient", float(self.stddev)),)

    def exact(
        self, records: Records, params: Params, mask: Array | None = None, **public: Any
    ) -> tuple[Expansion, ...]:
        """Returns the sum of clipped gradients, (p,). NOT PRIVATE."""
        return (self._clipped.wide(params, records, mask),)

    @property
    def _clipped(self) -> ClippedSum:
        return clipped_grad(
            self.objective.data_term,
            clip_norm=self.clip_norm,
            permutation_invariant=self.permutation_invariant,
        )


@pytree_dataclass(kw_only=True)
class NetworkQuery(GradientQuery):
    """Asks what ``GradientQuery`` does, of a network: layers may be clipped each, memory limited.

    Args:
      per_layer: as in ``clipped_grad``; the joint bound stays ``clip_norm``.
      memory_limit: bytes, as in ``clipped_grad``.
      **others: as ``GradientQuery``.

    Privacy: as ``GradientQuery``; both change what is computed within the same bound.
    """

    per_layer: bool = static(default=False)
    memory_limit: int | None = static(default=None)

    sums = ClippedSums(reviewed="NetworkQuery")

    @property
    def _clipped(self) -> ClippedSum:
        return clipped_grad(
            self.objective.data_term,
            clip_norm=self.clip_norm,
            per_layer=self.per_layer,
            memory_limit=self.memory_limit,
            permutation_invariant=self.permutation_invariant,
        )


@pytree_dataclass(kw_only=True)
class AnchorQuery(GradientQuery):
    """Asks what ``GradientQuery`` does, at the few steps that renew an anchor.

    Privacy: as many Gaussian mechanisms as renewals; a step that renews nothing reads no record.
    """

    name = "anchor"
    sums = ClippedSums(reviewed="AnchorQuery")

    def is_asked(self, *, refresh: Array) -> Array:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Returns ``refresh``, bool (): public or of released values. Otherwise the answer is 0."""
        return refresh
