"""``dpjax show``: what a saved model is, guarantees and found, as plain text."""

import argparse
import functools
import os

import dpjax
from dpjax.cli import options
from dpjax.reporting import facts_of
from dpjax.reporting.facts import fields
from dpjax.reporting.page import text

HELP = """
Print what a saved model is and guarantees, all of it released or public.

dpjax show model
dpjax show model --json model.json
dpjax show model --report report.html --author "A. Meyer" --ledger visits.ledger
"""
_LEDGER: options.Options = {
    "--ledger": {"type": options.Input, "help": "for the report: what is left of its budget"}
}
OPTIONS = options.MODEL, options.JSON, options.REPORT, _LEDGER


def command(arguments: argparse.Namespace) -> int:
    """Prints what there is to say of the model, and returns 0."""
    options.check(arguments)
    model = dpjax.load(arguments.model)
    facts = facts_of(model)
    name = os.path.basename(arguments.model)
    print(text(facts, name))
    page = functools.partial(dpjax.report, model=name, author=arguments.author)
    return options.write(
        (arguments.json, lambda path: options.write_json(path, fields(facts))),
        (arguments.report, lambda path: page(model, path, ledger=arguments.ledger)),
    )
