"""``dpjax ledger``: declare a budget for some data, show what remains of it, verify its file."""

import argparse

import dpjax
from dpjax.accounting import Ledger
from dpjax.display.cards import printable


def create(arguments: argparse.Namespace) -> int:
    """Declares a budget and returns 0."""
    budget = dpjax.PrivacyBudget(arguments.epsilon, arguments.delta, arguments.relation)
    options = {name: getattr(arguments, name) for name in ("renyi_order", "unsampled", "parts")}
    with Ledger.create(arguments.file, budget, **options) as ledger:
        print("\n".join(_budget_lines(ledger)))
    return 0


def show(arguments: argparse.Namespace) -> int:
    """Prints what is declared, what every run took and what remains, and returns 0."""
    ledger = Ledger.read(arguments.file)
    for entry in ledger.entries:
        ended = f"finished {entry.finished}" if entry.finished else "unfinished (but spent)"
        after = f", part {entry.part!r}" if entry.part else ""
        after += f", after {entry.parent}" if entry.parent else ""
        what = f"outside: {printable(entry.outside)}" if entry.outside else entry.run_id
        print(f"{what}  on {entry.label!r}{after}")
        share = "planned" if entry.plan else f"{100 * entry.cost:.3g} % of the budget"
        print(f"  {share}, started {entry.started}, {ended}")
    print("\n".join(_budget_lines(ledger)))
    return 0


def verify(arguments: argparse.Namespace) -> int:
    """Checks every line of the file and returns 0; whatever is wrong raises."""
    ledger = Ledger.read(arguments.file)
    if arguments.anchor is not None and not ledger.covers(arguments.anchor):
        raise ValueError(
            f"{arguments.file} has no line with hash {arguments.anchor}: lines were removed, or "
            "it is another ledger."
        )
    print(f"{arguments.file}: intact, {len(ledger.entries)} runs")
    if ledger.torn:
        print("a crash truncated its last line, which the next run will drop; nothing was released")
    print(f"anchor: {ledger.anchor}")
    return 0


def _budget_lines(ledger: Ledger) -> list[str]:
    budget = ledger.budget
    return [
        f"declared: epsilon {budget.epsilon:g}, delta {budget.delta:g}, {budget.relation}",
        *(
            f"remaining{f' of part {part!r}' * bool(part)}: {ledger.of(part or None).advice}"
            for part in ledger.parts or ("",)
        ),
        f"anchor: {ledger.anchor}",
    ]
