"""What queries declare: their setting, how their sums are made, and the gradients they take."""

import dataclasses
from typing import ClassVar, NamedTuple, cast

from dpjax._typing import Relation, pytree_dataclass, static
from dpjax.objectives import Objective
from dpjax.objectives.linear import LinearLoss
from dpjax.sampling import FullBatch, Sampler


@pytree_dataclass
class Setting:
    """The objective, the declared number of records, the relation, the sampler, and the noise.

    Args:
      objective: its ``loss`` is what is summed or differentiated.
      data_size: the declared number n; public.
      relation: the neighbouring relation; it fixes sensitivities and the order of summation.
      sampler: which records an answer reads, and the divisor of sums; by default
        ``FullBatch(data_size)``.
      dimension: number of parameters p, or a bound on it, by which epsilon is charged for the noise
        that is drawn; by default 4,096, and a training of more is refused.

    Privacy: public numbers alone.

    >>> from dpjax import objectives
    >>> Setting(objectives.logistic(), 100, "zero_out").sampler
    FullBatch(data_size=100)
    """

    objective: Objective
    data_size: int = static()
    relation: Relation = static()
    sampler: Sampler = cast(Sampler, None)
    dimension: int = static(default=2**12)
    canaries: ClassVar[int] = 0

    def __post_init__(self):
        if self.sampler is None:
            # The default depends on another field, which a dataclass default cannot express.
            object.__setattr__(self, "sampler", FullBatch(self.data_size))

    def drawn_by(self, sampler: Sampler) -> "Setting":
        """Returns this setting with another sampler."""
        return dataclasses.replace(self, sampler=sampler)

    def check_sampler(self, sampler: Sampler) -> None:
        """Raises if a sampler draws from another number of records than is declared."""
        if sampler.data_size != self.data_size:
            raise ValueError(
                f"the sampler draws from data_size={sampler.data_size}, the query declares "
                f"{self.data_size}; make both with the same number."
            )

    @property
    def linear(self) -> LinearLoss:
        """The objective's loss of linear scores, of single records; raises if it has none."""
        if self.objective.linear is None:
            words = "is no loss of linear scores of single records: pass one such as softmax, and "
            words += "rows in place of units of several, or take dp_optimizer."
            raise ValueError(f"{self.objective.name} {words}")
        return self.objective.linear

    @property
    def of_all(self) -> "Setting":
        """This setting with every record asked."""
        return self.drawn_by(FullBatch(self.data_size))


@pytree_dataclass
class CanarySetting(Setting):
    """A setting of which ``canaries`` records are made up, with no row: ``with_canaries``."""

    canaries: int = static(default=0)  # pyright: ignore[reportIncompatibleVariableOverride]


class Evaluations(NamedTuple):
    """How many gradients of single records are computed.

    Attributes:
      declared: those of batches of the declared size.
      padded: the same with padding rows: each batch counts as its largest size, rounded up to a
        multiple of 128 if it is above 128.
    """

    declared: int
    padded: int


class ClippedSums(NamedTuple):
    """States that the sums of a query's ``exact`` are those of dpjax's clipped functions.

    Such functions enforce the bound by clipping, add records as integers, in blocks, and on any
    number of devices alike. What a query that does not state this adds is taken to be added record
    by record, on one device, within a bound that its author asserts.

    Attributes:
      additions: how many finished sums are added up by floats.
      reviewed: the name of the class of which dpjax reviews and audits that it does so. A class of
        your own leaves it out, and the guarantee names the class.
    """

    additions: int = 0
    reviewed: str = ""
