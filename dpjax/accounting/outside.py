"""``outside``: what another program released, from the ``dp_accounting`` event that says so."""

import dataclasses
from typing import Any

import dp_accounting
import numpy as np

from dpjax import _validate
from dpjax._typing import Relation
from dpjax.accounting.events import Event
from dpjax.accounting.release import PrivacyLoss, Release

_RELATIONS = {
    "zero_out": dp_accounting.NeighboringRelation.REPLACE_SPECIAL,
    "add_or_remove_one": dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    "replace_one": dp_accounting.NeighboringRelation.REPLACE_ONE,
}
_GAUSSIAN = {
    dp_accounting.GaussianDpEvent,
    dp_accounting.ComposedDpEvent,
    dp_accounting.SelfComposedDpEvent,
}


class OutsideGaussian(Release):
    """Unsampled Gaussian releases of another program, as one."""

    def scaled(self, factor: float) -> Release:
        """Returns the release: its noise was drawn."""
        del factor
        return self


@dataclasses.dataclass(frozen=True)
class OutsideRelease(OutsideGaussian):
    """Any other release of another program, of which Renyi divergences alone are read."""

    dp: Any = dataclasses.field(default=None, compare=False)  # the name says what it is

    mechanism = "outside"

    def privacy_loss(self, relation: Relation) -> PrivacyLoss | None:
        """Raises."""
        raise ValueError(f"no privacy loss distribution is read from {self.name}.")

    def renyi(self, orders: np.ndarray, relation: Relation) -> np.ndarray:
        """Returns the least divergence that ``dp_accounting`` knows at each order or above it."""
        # It knows some at whole orders alone, and that of the best of several from all orders.
        grid = np.unique([*orders, *np.ceil(orders), *range(2, 65)])
        accountant = dp_accounting.rdp.RdpAccountant(grid.tolist(), _RELATIONS[relation])
        divergences = accountant.compose(self.dp).rdp
        return np.fmin.accumulate(divergences[::-1])[::-1][np.searchsorted(grid, orders)]


def outside(event: dp_accounting.DpEvent, relation: Relation) -> Event:
    """Returns what another program released; see ``Ledger.spend``.

    Raises:
      ValueError: if ``dp_accounting`` knows no finite Renyi divergence of it above 0.

    >>> outside(dp_accounting.GaussianDpEvent(2.0), "zero_out").gaussian_mu
    0.5
    """
    if not isinstance(event, dp_accounting.DpEvent):
        raise ValueError(
            f"event must be a DpEvent of dp_accounting, got {_validate.shown(event)}; a run of "
            "dpjax is booked by run(ledger=), or by reserve."
        )
    kinds: set[type] = set()
    try:
        dp = _over_sensitivity(event, 2.0 if relation == "replace_one" else 1.0, kinds)
        release = OutsideRelease(repr(event), 1, 1.0, dp=dp)
        (divergence,) = release.renyi(np.array([2.0]), relation)
        if not 0 < divergence < np.inf:
            raise ValueError(f"its Renyi divergence at order 2 is {divergence:g}")
    except (
        dp_accounting.UnsupportedEventError,
        *(ArithmeticError, AssertionError, TypeError, ValueError),
    ) as error:
        words = str(error).rstrip(".") or "its numbers are out of range"
        raise ValueError(
            f"dp_accounting cannot account for {event!r} under {relation!r}: {words}. If you know "
            "a bound, book that: dp_accounting.ZCDpEvent(rho), or with xi=epsilon and rho=0 one of "
            "epsilon alone."
        ) from None
    if kinds <= _GAUSSIAN:
        release = OutsideGaussian(repr(event), 1, divergence**-0.5)
    return Event((release,), relation)


def _over_sensitivity(value: Any, moved: float, kinds: set[type]) -> Any:
    """Returns an event as ``RdpAccountant`` reads it, and notes what kinds of events it holds.

    That takes multipliers to be over the sensitivity, which for a replaced record is twice the
    bound that they are defined by; and of a batch with an integer among several it reads that one
    alone.
    """
    if isinstance(value, list | tuple):
        return [_over_sensitivity(one, moved, kinds) for one in value]
    if not isinstance(value, dp_accounting.DpEvent):
        return value
    kinds.add(type(value))
    fields = {field.name: getattr(value, field.name) for field in type(value).__attrs_attrs__}  # pyright: ignore
    fields = {name: _over_sensitivity(field, moved, kinds) for name, field in fields.items()}
    if "noise_multiplier" in fields:
        multiplier = _validate.positive("noise_multiplier", fields["noise_multiplier"])
        fields["noise_multiplier"] = multiplier / moved
    if "count" in fields:
        _validate.positive_int("count", fields["count"])
    return type(value)(**fields)
