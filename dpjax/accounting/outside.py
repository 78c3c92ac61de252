"""``outside``: what another program released, from the ``dp_accounting`` event that says so."""

import dataclasses
from typing import Any

import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation, UnsupportedEventError

from dpjax import _validate
from dpjax._typing import Relation
from dpjax.accounting.events import Event
from dpjax.accounting.release import PrivacyLoss, Release

_REFUSALS = UnsupportedEventError, ArithmeticError, AssertionError, TypeError, ValueError
_GAUSSIAN = {"GaussianDpEvent", "ComposedDpEvent", "SelfComposedDpEvent"}


@dataclasses.dataclass(frozen=True)
class OutsideRelease(Release):
    """What another program released, of which Renyi divergences alone are read, or Gaussians."""

    dp: Any = dataclasses.field(default=None, compare=False)  # the name says what it is
    is_gaussian: bool = False  # pyright: ignore[reportIncompatibleVariableOverride]

    mechanism = "outside"

    def privacy_loss(self, relation: Relation) -> PrivacyLoss | None:
        raise ValueError(f"no privacy loss distribution is read from {self.name}.")

    def renyi(self, orders: np.ndarray, relation: Relation) -> np.ndarray:
        """Returns the least divergence that ``dp_accounting`` knows at each order or above it."""
        # It knows some at whole orders alone, and that of the best of several from all orders.
        grid = np.unique([*orders, *np.ceil(orders), *range(2, 65)])
        like = NeighboringRelation[{"zero_out": "REPLACE_SPECIAL"}.get(relation, relation.upper())]
        found = dp_accounting.rdp.RdpAccountant(grid.tolist(), like).compose(self.dp).rdp
        return np.fmin.accumulate(found[::-1])[::-1][np.searchsorted(grid, orders)]

    def scaled(self, factor: float) -> Release:
        return self


def outside(event: dp_accounting.DpEvent, relation: Relation) -> Event:
    """Returns what another program released; see ``Ledger.spend``."""
    if not isinstance(event, dp_accounting.DpEvent):
        raise ValueError(
            f"event must be a DpEvent of dp_accounting, got {_validate.shown(event)}; a run of "
            "dpjax is booked by run(ledger=), or by reserve."
        )
    kinds: set[str] = set()
    try:
        dp = _over_sensitivity(event, 2.0 if relation == "replace_one" else 1.0, kinds)
        release = OutsideRelease(repr(event), 1, 1.0, dp=dp)
        (divergence,) = release.renyi(np.array([2.0]), relation)
        if not 0 < divergence < np.inf:
            raise ValueError(f"its Renyi divergence at order 2 is {divergence:g}")
        if kinds <= _GAUSSIAN:
            # A Gaussian's divergence at order 2 is mu^2, so this is 1 / mu.
            release = OutsideRelease(release.name, 1, divergence**-0.5, dp=dp, is_gaussian=True)
    except _REFUSALS as error:
        raise ValueError(
            f"dp_accounting cannot account for {event!r} under {relation!r}: "
            f"{str(error).rstrip('.')}. If you know a bound, book that: "
            "dp_accounting.ZCDpEvent(rho), or with rho=0 and xi=epsilon one of epsilon alone."
        ) from None
    return Event((release,), relation)


def _over_sensitivity(value: Any, moved: float, kinds: set[str]) -> Any:
    """Returns an event as ``RdpAccountant`` reads it, and notes what kinds of events it holds.

    That takes multipliers to be over the sensitivity, which for a replaced record is twice the
    bound they are defined by; and it reads a batch with an integer among them as that one alone.
    """
    if isinstance(value, list | tuple):
        return [_over_sensitivity(one, moved, kinds) for one in value]
    if not isinstance(value, dp_accounting.DpEvent):
        return value
    kinds.add(type(value).__name__)
    names = [field.name for field in type(value).__attrs_attrs__]  # pyright: ignore
    fields = {name: _over_sensitivity(getattr(value, name), moved, kinds) for name in names}
    if (name := "noise_multiplier") in fields:
        fields[name] = _validate.positive(name, fields[name]) / moved
    if (name := "count") in fields:
        fields[name] = _validate.positive_int(name, fields[name])
    return type(value)(**fields)
