"""``Entry``: one run in a ledger, read from its lines."""

from collections.abc import Iterable
from typing import Any, NamedTuple


class Entry(NamedTuple):
    """One run in a ledger."""

    run_id: str
    label: str
    """The caller's word for the data."""
    config_hash: str
    parent: str | None
    """The run this one was forked from, or chosen after."""
    cost: float
    """What it takes of the limit: mu^2, or rho at the ledger's order."""
    overflow: float
    """Probability that a batch of it overflows."""
    started: str
    finished: str | None
    """None while unfinished. The cost is spent all the same."""


def read_entries(lines: Iterable[dict[str, Any]]) -> tuple[Entry, ...]:
    """Returns the runs in a ledger's lines, in order.

    >>> read_entries([{"kind": "declaration"}])
    ()
    """
    lines = tuple(lines)
    ended = {one["run"]: one["at"] for one in lines if one["kind"] == "completion"}
    return tuple(
        Entry(
            run_id=one["run"],
            label=one["label"],
            config_hash=one["config"],
            parent=one["parent"],
            cost=one["cost"],
            overflow=one["overflow"],
            started=one["at"],
            finished=ended.get(one["run"]),
        )
        for one in lines
        if one["kind"] == "intent"
    )
