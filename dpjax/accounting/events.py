"""What was released: ``Release``, ``Event``, and the one mapping of them to dp_accounting."""

import dataclasses
import functools
import math
from collections.abc import Iterable
from typing import Any

import dp_accounting
import numpy as np

from dpjax import _validate
from dpjax._typing import Relation
from dpjax.accounting import budget as _budget

ACCOUNTANTS = ("pld", "rdp")


@dataclasses.dataclass(frozen=True)
class Release:
    """One kind of Gaussian release, made ``count`` times.

    Args:
      name: what is released, for people.
      count: number of releases, at least 1.
      noise_multiplier: standard deviation over l2 sensitivity, for the relation of the event.
      sensitivity: l2 sensitivity of the released mean, in its own units.
      components: standard deviation of each part of the release, in that part's own units.

    >>> Release("gradient", 10, noise_multiplier=5.0, sensitivity=0.1).stddev
    0.5
    """

    name: str
    count: int
    noise_multiplier: float
    sensitivity: float = 1.0
    components: tuple[tuple[str, float], ...] = ()

    def __post_init__(self):
        object.__setattr__(self, "count", _validate.positive_int("count", self.count))
        for field in ("noise_multiplier", "sensitivity"):
            # float(): dp_accounting takes another path for int and np.float32 multipliers.
            object.__setattr__(self, field, _validate.positive(field, getattr(self, field)))

    @property
    def stddev(self) -> float:
        """Standard deviation of the noise on the mean, in the units of ``sensitivity``."""
        return self.noise_multiplier * self.sensitivity

    def to_json(self) -> dict[str, Any]:
        """The release as the command line prints it."""
        return {
            "name": self.name,
            "count": self.count,
            "std_of": "mean",
            "stddev": self.stddev,
            "sensitivity": self.sensitivity,
            "multiplier": self.noise_multiplier,
            "sampling_probability": None,
            "components": dict(self.components),
        }


@dataclasses.dataclass(frozen=True)
class Event:
    """Releases that together are what a training publishes, and the relation they were built for.

    Args:
      releases: at least one ``Release``.
      relation: the neighbouring relation whose sensitivities the multipliers refer to.

    Privacy: accounting only; nothing is released here. An event answers for its own relation and
    raises for another one.

    >>> event = Event((Release("gradient", 16, noise_multiplier=20.0),), "zero_out")
    >>> event.gaussian_mu
    0.2
    """

    releases: tuple[Release, ...]
    relation: Relation

    def __post_init__(self):
        _validate.choice("relation", self.relation, _budget.RELATIONS)
        object.__setattr__(self, "releases", tuple(self.releases))
        if not self.releases:
            raise ValueError("an event needs at least one release.")

    @property
    def gaussian_mu(self) -> float:
        """The mu of Gaussian differential privacy: sqrt(sum of count / multiplier^2), exact."""
        return math.sqrt(math.fsum(r.count / r.noise_multiplier**2 for r in self.releases))

    @property
    def dp_event(self) -> dp_accounting.DpEvent:
        """The same as a ``dp_accounting`` event, multipliers relative to the sensitivity."""
        return dp_accounting.ComposedDpEvent(
            [
                dp_accounting.SelfComposedDpEvent(
                    dp_accounting.GaussianDpEvent(float(r.noise_multiplier)), r.count
                )
                for r in self.releases
            ]
        )


def compose(events: Iterable[Event]) -> Event:
    """Returns the event of all ``events`` together.

    Args:
      events: at least one; each may have been chosen after seeing the answers of those before.

    Raises:
      ValueError: if their relations differ.

    >>> one = Event((Release("gradient", 1, noise_multiplier=2.0),), "zero_out")
    >>> compose([one, one]).gaussian_mu == 2 ** 0.5 / 2
    True
    """
    events = list(events)
    relations = {event.relation for event in events}
    if len(relations) > 1:
        raise ValueError(
            f"events built for different relations cannot be composed: {sorted(relations)}."
        )
    return Event(tuple(r for event in events for r in event.releases), events[0].relation)


def epsilon(event: Event, delta: float, relation: Relation, accountant: str = "pld") -> float:
    """Returns the epsilon that ``event`` spends at ``delta``.

    Args:
      event: what is released.
      delta: strictly between 0 and 1.
      relation: must be the one the event was built for.
      accountant: ``"pld"`` (exact; the closed form of Gaussian differential privacy while nothing
        is sampled) or ``"rdp"`` (Renyi, looser, from ``dp_accounting``).

    Returns:
      An epsilon, never below the true one.

    Raises:
      ValueError: for another relation than the event's, a delta out of range, an accountant that
        does not exist.

    Reference: Dong, Roth and Su, "Gaussian differential privacy" (2022), corollary 2.13.

    >>> event = Event((Release("gradient", 1, noise_multiplier=1.0),), "zero_out")
    >>> round(epsilon(event, 1e-5, "zero_out"), 4)
    4.3772
    """
    if not isinstance(event, Event):
        raise ValueError(
            f"event must be a dpjax.accounting.Event, which carries its relation, got {event!r}."
        )
    delta = _validate.open_unit("delta", delta)
    _validate.choice("relation", relation, _budget.RELATIONS)
    _validate.choice("accountant", accountant, ACCOUNTANTS)
    if relation != event.relation:
        raise ValueError(
            f"this event was built for relation {event.relation!r}; its multipliers mean something "
            f"else under {relation!r}. Build the algorithm with a budget of that relation."
        )
    return _epsilon(event, delta, accountant)


@functools.lru_cache(maxsize=4096)
def _epsilon(event: Event, delta: float, accountant: str) -> float:
    if accountant == "pld":
        # On its way the root finder meets deltas too small to represent, and takes their log.
        with np.errstate(divide="ignore"):
            found = dp_accounting.get_epsilon_gaussian(1 / event.gaussian_mu, delta)
        # It stops within 1e-12 on either side; the sum errs on the safe one.
        return found + 2e-12
    return float(gaussian_accountant(accountant).compose(event.dp_event).get_epsilon(delta))


def gaussian_accountant(name: str) -> dp_accounting.PrivacyAccountant:
    """Returns a ``dp_accounting`` accountant that reads multipliers as std over sensitivity.

    For unsampled Gaussians the pair N(0, s^2), N(D, s^2) does not know which relation gave D, so
    the accountant is the add-or-remove one *whatever the relation*. Under REPLACE_ONE the two
    accountants of dp_accounting 0.6 read the multiplier differently (RDP over the sensitivity, PLD
    over the clip norm); nothing in dpjax may ask them that.

    Args:
      name: ``"pld"`` or ``"rdp"``.

    >>> accountant = gaussian_accountant("rdp").compose(dp_accounting.GaussianDpEvent(1.0))
    >>> print(round(accountant.get_epsilon(1e-5), 4))
    4.7285
    """
    relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    if _validate.choice("accountant", name, ACCOUNTANTS) == "rdp":
        return dp_accounting.rdp.RdpAccountant(neighboring_relation=relation)
    return dp_accounting.pld.PLDAccountant(neighboring_relation=relation)


def renyi(event: Event, order: float) -> float:
    """Returns the Renyi divergence of ``event`` at ``order``, in nats.

    >>> renyi(Event((Release("gradient", 8, noise_multiplier=2.0),), "zero_out"), 3.0)
    3.0
    """
    return order * math.fsum(r.count / r.noise_multiplier**2 for r in event.releases) / 2
