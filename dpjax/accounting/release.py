"""``Release``: unsampled Gaussian noise, and the base class of all other kinds of release."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dpjax import _validate
from dpjax._lazy import dp_accounting
from dpjax._typing import Relation
from dpjax.accounting import losses

_LARGEST = 1e100

PrivacyLoss = tuple[Callable, tuple[float, ...]]
"""A function of ``accounting.losses``, and the numbers it takes before the distance of the grid."""

_KINDS: dict[tuple[str, str], type["Release"]] = {}


class Quantity(NamedTuple):
    """What a query releases, as facts for the guarantee, whose text has words for each kind.

    Attributes:
      kind: by which ``results/guarantee.txt`` describes it.
      numbers: those that belong to its description, by name.
      asserted_by: the class from outside dpjax that asserts the bound on one record, or nothing.
      description: of that class's, what is released and with which noise; or nothing.
      stated_by: the class that states how its sums are bounded and added, which dpjax has not
        reviewed; or nothing.
    """

    kind: str = "clipped_sum"
    numbers: tuple[tuple[str, float], ...] = ()
    asserted_by: str = ""
    description: str = ""
    stated_by: str = ""


_LAWS = ("privacy_loss", "renyi", "whole_epsilon")


@dataclasses.dataclass(frozen=True)
class Release:
    """A function of all records plus Gaussian noise, released ``count`` times.

    The other kinds are its subclasses. Each knows its privacy loss, its Renyi divergence and its
    ``dp_accounting`` event, and says which relations it has an accounting for; nothing but the
    guarantee's words depends on its kind. One that draws its records is made by the sampler that
    draws (``dpjax.sampling``), never by hand: its numbers are then those of the draw. All answers
    from one draw are one release, of one joint vector: no two releases share a draw. A kind of your
    own sets ``mechanism`` and ``sampling``, the names by which it is saved, and may set
    ``description``, a sentence for the guarantee. A number out of range raises a ``ValueError``.

    Args:
      name: of the released quantity, as printed.
      count: number of releases, at least 1.
      noise_multiplier: standard deviation over the l2 sensitivity for the relation of the event; of
        batches that are drawn, over C, the bound on *one* record's part.
      sensitivity: the number that the multiplier is relative to, in the units of the released mean.
      components: standard deviation of each part of the release, in that part's units.
      quantity: what it is a release of, for the guarantee.
      noise_draws: how many numbers of noise one release has at most, which epsilon is charged for;
        0 for noise that is taken to be exact.

    >>> Release("gradient", 10, noise_multiplier=5.0, sensitivity=0.1).stddev
    0.5
    """

    name: str
    count: int
    noise_multiplier: float
    sensitivity: float = 1.0
    components: tuple[tuple[str, float], ...] = ()
    quantity: Quantity = Quantity()
    noise_draws: int = 0

    mechanism: ClassVar[str] = "gaussian"
    sampling: ClassVar[str] = "none"
    description: ClassVar[str] = ""
    """Of a class from outside dpjax, what the guarantee adds to the numbers of a release."""
    std_of: ClassVar[str] = "mean"
    is_gaussian: ClassVar[bool] = True
    """Whether it is exactly a Gaussian mechanism of this multiplier for every record."""
    is_lossless: ClassVar[bool] = False
    """Whether ``certain_delta`` is the whole privacy loss, as of ball noise."""
    constant_charge: ClassVar[float] = 0.0
    """The part of delta charged for all ``count`` releases at any epsilon."""
    is_subsampled: ClassVar[bool] = False
    """Whether records are sampled, so that subsampling amplifies privacy."""
    ledger_objection: ClassVar[str | None] = None
    """Why no ledger can book it; None where one can."""
    refused: ClassVar[dict[str, str]] = {}
    """Relations that a kind has no accounting under, and why."""
    ends_early: ClassVar[bool] = False
    """Whether a run ends when its records are used up."""
    fields_determine_loss: ClassVar[bool] = True
    """Whether class and fields determine its loss, so that a ledger may take two steps for alike.

    No subclass inherits the statement, as its loss may read more.
    """

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        # A base of several kinds names neither.
        if "mechanism" in cls.__dict__ or "sampling" in cls.__dict__:
            _KINDS[cls.mechanism, cls.sampling] = cls
        if cls.mechanism != Release.mechanism:
            # Else the losses of a Gaussian would be inherited, and accounted.
            cls.is_gaussian = cls.__dict__.get("is_gaussian", False)
            laws = cls.privacy_loss, cls.whole_epsilon
            if laws == (Release.privacy_loss, Release.whole_epsilon):
                raise TypeError(
                    f"{cls.__name__} is of {cls.mechanism} noise, whose privacy_loss it must "
                    "define."
                )
        # Of another law, its own or a mixin's, what a class says of its law is not inherited.
        for stated in ("is_gaussian", "is_lossless"):
            owner = next(base for base in cls.__mro__ if stated in vars(base))
            if any(getattr(cls, law) is not getattr(owner, law, None) for law in _LAWS):
                setattr(cls, stated, False)

    def __post_init__(self):
        self._check(_validate.positive_int, "count")
        draws = self.noise_draws
        if type(draws) is bool or not isinstance(draws, int | np.integer) or not 0 <= draws < 2**63:
            raise ValueError(
                "noise_draws must be a whole number of at least 0, got " + _validate.shown(draws)
            )
        # As float: dp_accounting takes another path for int and np.float32 multipliers.
        self._check(_validate.positive, "noise_multiplier", "sensitivity")
        if not 1 / _LARGEST <= self.noise_multiplier <= _LARGEST:
            raise ValueError(
                f"noise_multiplier must be from {1 / _LARGEST:g} to {_LARGEST:g}, whose squares "
                f"float64 holds, got {self.noise_multiplier!r}."
            )
        self.validate()

    def _check(self, check: Callable[[str, Any], Any], *fields: str) -> None:
        """Puts into each field what ``check`` returns of its name and value."""
        for field in fields:
            object.__setattr__(self, field, check(field, getattr(self, field)))

    def validate(self) -> None:
        """Raises for a field of a subclass that is out of range."""

    @property
    def stddev(self) -> float:
        """Standard deviation of the noise on the mean, in the units of ``sensitivity``."""
        return self.noise_multiplier * self.sensitivity

    # A property: as a class variable it would hide the field that batches have of this name.
    @property
    def failure_probability(self) -> float:
        """Bound on the total variation between an actual and an accounted release: 0."""
        return 0.0

    @property
    def growing_charge(self) -> float:
        """The charge to delta for failures of all ``count`` releases, over 1 + e^epsilon."""
        return self.count * self.failure_probability

    def certain_delta(self, factor: float = 1.0) -> float:
        """Returns the probability that the ``count`` releases tell neighbours apart with certainty.

        ``factor`` is the noise, relative to that of the release.
        """
        return 0.0

    def parts(self) -> Sequence["Release"]:
        """Returns the releases that make up this one: itself, unless it has parts or repeats."""
        return (self,)

    def check_relation(self, relation: Relation) -> None:
        """Raises where this kind has no accounting under a relation, saying which it has."""
        if relation in self.refused:
            raise ValueError(self.refused[relation])

    def privacy_loss(self, relation: Relation) -> PrivacyLoss | None:
        """Returns the privacy loss distribution of one release; None if it ``is_lossless``."""
        # The pair N(0, 1), N(mu, 1) does not know which relation gave mu.
        return losses.gaussian, (1 / self.noise_multiplier,)

    def whole_epsilon(
        self, releases: Sequence["Release"], relation: Relation, delta: float, accountant: str
    ) -> float | None:
        """Returns the epsilon of an event of ``releases``; None where their losses are composed."""

    def whole_deltas(
        self, releases: Sequence["Release"], relation: Relation, epsilons: np.ndarray, scale: float
    ) -> np.ndarray | None:
        """Returns the deltas of an event of ``releases``; None where their losses are composed.

        ``scale`` is the noise, relative to that of the releases; ``epsilons`` are at least 0.
        """

    def renyi(self, orders: np.ndarray, relation: Relation) -> np.ndarray:
        """Returns the Renyi divergence of one release at each order; raises if none is known."""
        # A subclass inherits this method, and must not inherit a Gaussian's divergence.
        if not self.is_gaussian:
            raise ValueError(f"no Renyi divergence is known for {self.mechanism} noise; use 'pld'.")
        return orders / (2 * self.noise_multiplier**2)

    @property
    def dp_event(self) -> "dp_accounting.DpEvent":
        """One release as a ``dp_accounting`` event, for comparison; see ``Event.dp_event``."""
        if not self.is_gaussian:
            return dp_accounting.UnsupportedDpEvent()
        return dp_accounting.GaussianDpEvent(float(self.noise_multiplier))

    def scaled(self, factor: float) -> "Release":
        """Returns the same release with ``factor`` times the noise."""
        return dataclasses.replace(self, noise_multiplier=factor * self.noise_multiplier)

    def without_failures(self) -> "Release":
        """Returns the same release with draws and selections that never differ from the accounted.

        What it spends is no bound on what the release spends; audits compare amounts of noise.
        """
        if not self.failure_probability:
            return self
        return dataclasses.replace(self, failure_probability=0.0)  # pyright: ignore[reportCallIssue]

    @staticmethod
    def kinds(sampling: str) -> dict[str, type["Release"]]:
        """Returns the kinds of release on one kind of draw, by the mechanism of the noise."""
        return {noise: kind for (noise, draw), kind in _KINDS.items() if draw == sampling}

    @staticmethod
    def from_fields(fields: dict[str, Any]) -> "Release":
        """Returns the release whose ``to_fields`` went through JSON; raises for an unknown kind."""
        fields = dict(fields)
        kind = fields.pop("mechanism"), fields.pop("sampling")
        if kind not in _KINDS:
            raise ValueError(
                f"no class is known for releases of mechanism {kind[0]!r} and sampling "
                f"{kind[1]!r}; import the module that defines it first."
            )
        kept: dict[str, Any] = {name: _from_plain(value) for name, value in fields.items()}
        # JSON has turned this named tuple into a list.
        kept["quantity"] = Quantity(*kept["quantity"])
        return _KINDS[kind](**kept)

    def to_fields(self) -> dict[str, Any]:
        """Returns the fields that ``from_fields`` needs, as JSON types."""
        kind = {"mechanism": self.mechanism, "sampling": self.sampling}
        # Not ``asdict``, which would also convert the releases inside, and lose their classes.
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return kind | {name: _to_plain(value) for name, value in fields.items()}

    def to_json(self) -> dict[str, Any]:
        """Returns the release as the command line prints it.

        ``multiplier`` is ``stddev / sensitivity``: where ``sampling`` is ``"none"`` over the
        sensitivity for the relation, else over the bound on one record's part of the mean. A
        selection describes the noise on its scores.
        """
        own = ("name", "count", "mechanism", "std_of", "stddev", "sensitivity")
        return {name: getattr(self, name) for name in own} | {
            "multiplier": self.noise_multiplier,
            "sampling_probability": getattr(self, "sampling_probability", None),
            "sampling": self.sampling,
            "max_batch_size": getattr(self, "max_batch_size", None),
            "overflow": self.failure_probability,
            "idle": getattr(self, "undrawn_shift", 0.0),
            "components": dict(self.components),
            "noise_draws": self.noise_draws,
            "radius": getattr(self, "radius", None),
            "parts": [part.to_json() for part in getattr(self, "disjoint_parts", ())],
        }


def mu_squared(releases: Iterable[Release]) -> float:
    """Returns the square of mu of unsampled Gaussians, rounded once, so that no order matters."""
    return math.fsum(release.count / release.noise_multiplier**2 for release in releases)


# ``__init_subclass__`` runs for subclasses, not for this class.
_KINDS[Release.mechanism, Release.sampling] = Release


def _to_plain(value: Any) -> Any:
    if isinstance(value, Release):
        return value.to_fields()
    return [_to_plain(item) for item in value] if isinstance(value, tuple) else value


def _from_plain(value: Any) -> Any:
    if isinstance(value, dict) and "mechanism" in value:
        return Release.from_fields(value)
    return tuple(map(_from_plain, value)) if isinstance(value, list | tuple) else value
