"""``dpjax show``: what a saved model is, guarantees and found."""

import argparse
import functools
import os
import textwrap

import numpy as np

import dpjax
from dpjax.cli import options
from dpjax.cli.main import Parser
from dpjax.display.cards import printable
from dpjax.reporting import Facts, facts_of
from dpjax.reporting.facts import fields

_EXAMPLES = """
dpjax show model
dpjax show model --json model.json
dpjax show model --report report.html --author "A. Meyer" --ledger visits.ledger
"""
_LEDGER: options.Options = {
    "--ledger": {"type": options.Input, "help": "for the report: what is left of its budget"}
}


def add_options(parser: Parser) -> None:
    """Adds what the command takes."""
    options.add(parser, options.MODEL, options.JSON, options.REPORT, _LEDGER)
    parser.describe(
        command,
        "Print what a saved model is and guarantees, all of it released or public.",
        _EXAMPLES,
    )


def command(arguments: argparse.Namespace) -> int:
    """Prints what there is to say of the model, and returns 0."""
    options.check(arguments)
    model = dpjax.load(arguments.model)
    facts = facts_of(model)
    # A model may come from anybody, and a name in it hold what changes a terminal.
    print(printable("\n".join(lines(facts))))
    name = os.path.basename(arguments.model)
    page = functools.partial(dpjax.report, model=name, author=arguments.author)
    return options.write(
        (arguments.json, lambda path: options.write_json(path, fields(facts))),
        (arguments.report, lambda path: page(model, path, ledger=arguments.ledger)),
    )


def lines(facts: Facts) -> list[str]:
    """Returns what there is to say as lines for a person."""
    # Before any number that may not be relied on.
    words = [facts.warning] if facts.warning else []
    words.append(f"model: {facts.title}, {facts.parameters:,} parameters")
    words += [facts.claim, *_filled(facts.meaning)]
    status = "" if facts.status is None else f": {facts.status.message}"
    words.append(f"steps: {facts.steps:,} of {facts.description.steps:,}{status}")
    words += facts.answer_lines
    words += ["", "certificate:", *_filled(facts.certificate_words, "  ")]
    words += ["", "history, first to last step:", *_history(facts)]
    words += ["", "coefficients:", *_coefficient_lines(facts)]
    return [*words, "", facts.guarantee]


def _coefficient_lines(facts: Facts) -> list[str]:
    if (held := facts.coefficients) is None:
        return ["  none by name: the model is not a linear one"]
    rows = [f"  {line}" for line in repr(held).splitlines()]
    return [*rows, *_filled(held.caption, "  "), *_filled(held.interval_caption, "  ")]


def _filled(words: str, indent: str = "") -> list[str]:
    return textwrap.wrap(words, 100, initial_indent=indent, subsequent_indent=indent)


def _history(facts: Facts) -> list[str]:
    words = []
    for name, values in facts.history.items():
        # A quantity may be a vector at each step, or NaN where a step had none.
        known = values[np.isfinite(values)] if values.ndim == 1 else values[:0]
        if len(known):
            words.append(f"  {name.replace('_', ' ')}: {known[0]:.4g} to {known[-1]:.4g}")
    return words
