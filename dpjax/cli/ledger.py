"""``dpjax ledger``: declare a budget for some data, show what remains of it, verify its file."""

import argparse
from typing import Any

import dpjax
from dpjax.accounting import Ledger
from dpjax.cli import options
from dpjax.cli.main import Parser
from dpjax.display.cards import printable

HELP = """
Declare a budget for some data, show what remains of it, verify its file.

dpjax ledger create visits.ledger --epsilon 3 --delta 1e-6
dpjax run dp-tr --epsilon 1 --ledger visits.ledger
dpjax ledger show visits.ledger
"""
_CREATE = """
dpjax ledger create visits.ledger --epsilon 3 --delta 1e-6
dpjax ledger create visits.ledger --epsilon 3 --delta 1e-6 --unsampled
""".strip()
OPTIONS, command = (), None
_FILE: options.Options = {"file": {"metavar": "FILE"}}
_OF_CREATE: options.Options = {
    "--epsilon": {"type": float, "required": True, "help": "for all runs together"},
    "--delta": {"type": float, "required": True, "help": "for all runs together"},
    **options.RELATION,
    "--renyi-order": {
        "type": float,
        "metavar": "ALPHA",
        "help": "account for runs of different kinds by Renyi DP at this order (default: the order "
        "that admits most)",
    },
    "--unsampled": {
        "action": "store_true",
        "help": "admit runs without sampling and selection only, and account for them without loss",
    },
    "--parts": {
        "nargs": "+",
        "metavar": "NAME",
        "default": (),
        "help": "parts of the data that have no unit of privacy in common, by your declaration; "
        "runs with --part spend side by side",
    },
}
_OF_VERIFY: options.Options = {
    "--anchor": {"metavar": "HASH", "help": "a hash noted earlier, which the file must contain"}
}


def add_verbs(parser: Parser) -> None:
    """Adds the verbs, each of which has options of its own."""
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    def add(command: Any, line: str, examples: str, *groups: options.Options) -> None:
        text = f"{line.capitalize()}.\n\n{examples}"
        verbs.add_parser(command.__name__, help=line).take(text, command, (_FILE, *groups))

    add(create, "declare a budget in a new file", _CREATE, _OF_CREATE)
    said = "print the declared budget, the cost of each run, and what remains"
    add(show, said, "dpjax ledger show visits.ledger")
    add(verify, "check every line of the file", "dpjax ledger verify visits.ledger", _OF_VERIFY)


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
        # A run is booked before it asks the data anything: one that broke off has spent its budget.
        ended = f"finished {entry.finished}" if entry.finished else "unfinished (but spent)"
        after = f", part {entry.part!r}" if entry.part else ""
        after += f", after {entry.parent}" if entry.parent else ""
        # A person typed these words, which may hold what changes a terminal.
        what = f"outside: {printable(entry.outside)}" if entry.outside else entry.run_id
        print(f"{what}  on {entry.label!r}{after}")
        cost = "planned" if entry.plan else f"{100 * entry.cost:.3g} % of the budget"
        print(f"  {cost}, started {entry.started}, {ended}")
    print("\n".join(_budget_lines(ledger)))
    return 0


def verify(arguments: argparse.Namespace) -> int:
    """Checks every line of the file and returns 0; whatever is wrong raises."""
    ledger = Ledger.read(arguments.file)
    # A chain of hashes cannot show that its last lines were cut off; a hash noted elsewhere can.
    if arguments.anchor is not None and not ledger.covers(arguments.anchor):
        raise ValueError(
            f"{arguments.file} has no line with hash {arguments.anchor}: lines were removed, or "
            "it is another ledger."
        )
    print(f"{arguments.file}: intact, {len(ledger.entries)} runs")
    # A line is synced before its run asks anything, so that a torn one has released nothing.
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
            # Parts spend side by side, so that each has a rest of its own.
            for part in ledger.parts or ("",)
        ),
        f"anchor: {ledger.anchor}",
    ]
