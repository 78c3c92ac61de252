"""``Entry``, one run in a ledger: its place in a plan, what it resumes, what ran outside dpjax."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation, UnsupportedEventError

from dpjax import _validate
from dpjax._typing import Relation
from dpjax.accounting.events import Event
from dpjax.accounting.filters import drawn, steps
from dpjax.accounting.release import PrivacyLoss, Release

_REFUSALS = UnsupportedEventError, ArithmeticError, AssertionError, TypeError, ValueError
_GAUSSIAN = {"GaussianDpEvent", "ComposedDpEvent", "SelfComposedDpEvent"}
_OR_NONE = type(None)
# A line edited by hand may be valid JSON: types are checked before anything is computed.
_FIELDS: dict[str, dict[str, tuple[type, ...]]] = {
    "declaration": {"parts": (list,), "unsampled": (bool,), "noise_draws": (int,)},
    "intent": {
        **dict.fromkeys(("run", "label", "config", "at"), (str,)),
        **dict.fromkeys(("parent", "part"), (str, _OR_NONE)),
        **{"releases": (list,), "plan": (list, _OR_NONE), "draws": (int,), "tails": (int, float)},
    },
    "completion": {"run": (str,), "at": (str,), "planned": (list, _OR_NONE)},
}


def check_lines(lines: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """Returns the declared parts; raises some error for a line that no ledger has written."""
    parts = tuple(lines[0].get("parts") or ())
    for line in lines:
        read = all(isinstance(line.get(name), kind) for name, kind in _FIELDS[line["kind"]].items())
        names = outside_names(line)
        lists = [
            # As ``Ledger.plan`` writes a run: relation, steps, part, draws; the first and last
            # dictionary have the same keys.
            isinstance(one, list) and len(one) == 4 and one[1].keys() == one[3].keys()
            for one in line.get("planned", ())
        ]
        read = read and line.get("releases") != []
        if not (read and all(lists) and all(isinstance(one, str) for one in (*parts, *names))):
            raise TypeError("a field is of another type")
        # True is an int in Python. json.loads accepts NaN and infinity, which fail the comparison.
        numbers = [line.get(name, 0) for name in ("draws", "tails", "noise_draws")]
        if not all(type(one) is not bool and 0 <= one < 2.0**99 for one in numbers):
            raise ValueError("it draws less than no noise")
        # The parent may be None but not absent, which ``get`` cannot tell apart.
        if line.get("part") not in (None, *parts) or ("config" in line) != ("parent" in line):
            raise ValueError("it names no part that is declared, or no parent")
    return parts


def outside_names(line: dict[str, Any]) -> list[str]:
    """Returns what another program released, if a line books that, in its own words."""
    # ``outside`` books another program as a single release.
    return [one["name"] for one in line.get("releases", ())[:1] if one["mechanism"] == "outside"]


class Entry(NamedTuple):
    """One run in a ledger."""

    run_id: str
    label: str
    """The caller's name for the data."""
    config_hash: str
    parent: str | None
    """The run this one was forked from, or chosen after."""
    cost: float
    """The fraction of the budget that it takes, in the book that has more left; 0 if planned. Of
    several parts, where it takes most."""
    overflow: float
    """Probability that one of its batches exceeds the maximum size."""
    started: str
    finished: str | None
    """None while unfinished; the cost is spent in either case."""
    draws: int
    """How many numbers of noise it draws at most; not counted where a plan has paid."""
    plan: str | None
    """The plan that has paid for it."""
    outside: str | None
    """The ``dp_accounting`` event that another program spent; None for a run."""
    part: str | None
    """The part of the data that it reads; None for all."""


def place(lines: Sequence[dict[str, Any]], event: Event, part: str | None) -> list | None:
    """Returns a place that a plan holds for a run that is accounted like this one, or for less."""
    wanted, draws = [event.relation, steps(event), part], drawn(event)
    # Without ``fields_determine_loss`` no run is known to be like a planned one.
    if not draws:
        return None
    taken = [line["plan"] for line in lines if "plan" in line]
    places = (
        [line["run"], number]
        for line in lines
        for number, planned in enumerate(line.get("planned", []))
        # A run that draws fewer numbers than planned costs no more.
        if planned[:3] == wanted and all(draws[one] <= planned[3][one] for one in wanted[1])
    )
    return next((place for place in places if place not in taken), None)


def is_booked(
    path: str, intents: Iterable[dict[str, Any]], intent: dict[str, Any], resumed: bool
) -> bool:
    """Returns whether this run is booked already; raises where another run has its name."""
    run_id = intent["run"]
    booked = next((line for line in intents if line["run"] == run_id), None)
    if booked is None:
        return False
    if differing := [field for field in intent if booked.get(field) != intent[field]]:
        raise ValueError(
            f"run_id {run_id!r} is in {path} with another {differing[0]}: "
            f"{booked.get(differing[0])!r}, not {intent[differing[0]]!r}; a new run needs a "
            "new run_id and a new key."
        )
    if not resumed:
        raise ValueError(
            f"run_id {run_id!r} is in {path} already; a new run needs a new run_id and a new key. "
            "Only a run that goes on from its checkpoint, with its own key, spends nothing more: "
            "resumed=True says so."
        )
    return True


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
