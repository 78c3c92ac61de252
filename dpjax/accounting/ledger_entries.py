"""``Entry``: one run in a ledger; and where a new one stands in a plan, or what it resumes."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from dpjax.accounting.events import Event
from dpjax.accounting.filters import drawn, steps

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
