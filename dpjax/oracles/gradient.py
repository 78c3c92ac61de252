"""The gradient oracle: the noisy mean of clipped gradients, at every step or at anchors alone."""

from typing import Any

from dpjax._typing import Array, Params, Relation, pytree_dataclass, static
from dpjax._wide import Expansion
from dpjax.derivatives import ClippedGrad, clipped_grad
from dpjax.objectives import Objective
from dpjax.oracles.base import Query, Records
from dpjax.sampling import Sampler


@pytree_dataclass
class GradientQuery(Query):
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
    objective: Objective
    data_size: int = static()
    relation: Relation = static()
    sampler: Sampler | None = None
    unsafe_fast_noise: bool = static(default=False)

    @property
    def name(self) -> str:
        """What an algorithm asks by."""
        return "gradient"

    @property
    def purpose(self) -> str:
        """What the key of the noise is derived for, whatever the name."""
        return "gradient"

    @property
    def unit(self) -> Array | float:
        """The clip norm."""
        return self.clip_norm

    @property
    def components(self) -> tuple[tuple[str, float], ...]:
        """The gradient alone."""
        return (("gradient", float(self.stddev)),)

    def exact(
        self, records: Records, params: Params, mask: Array | None = None, **public: Any
    ) -> tuple[Expansion, ...]:
        """Returns the sum of clipped gradients, (p,). NOT PRIVATE."""
        del public
        return (self._clipped.wide(params, records, mask, self.any_order),)

    @property
    def _clipped(self) -> ClippedGrad:
        return clipped_grad(self.objective.data_term, clip_norm=self.clip_norm)


@pytree_dataclass
class NetworkQuery(GradientQuery):
    """Asks what ``GradientQuery`` does, of a network: layers may be clipped each, memory limited.

    Args:
      per_layer: as in ``clipped_grad``; the joint bound stays ``clip_norm``.
      memory_limit: bytes, as in ``clipped_grad``.

    Privacy: as ``GradientQuery``; both change what is computed within the same bound.
    """

    per_layer: bool = static(default=False)
    memory_limit: int | None = static(default=None)

    @property
    def _clipped(self) -> ClippedGrad:
        return clipped_grad(
            self.objective.data_term,
            clip_norm=self.clip_norm,
            per_layer=self.per_layer,
            memory_limit=self.memory_limit,
        )


@pytree_dataclass
class AnchorQuery(GradientQuery):
    """Asks what ``GradientQuery`` does, at the few steps that renew an anchor.

    Privacy: as many Gaussian mechanisms as renewals; a step that renews nothing reads no record.
    """

    @property
    def name(self) -> str:
        """What an algorithm asks by."""
        return "anchor"

    def is_asked(self, *, renew: Array) -> Array:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Returns ``renew``, bool (): public or of released values. Otherwise the answer is 0."""
        return renew
